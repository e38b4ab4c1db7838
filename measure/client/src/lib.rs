//! An iSCSI initiator that makes load, measures what comes of it, and checks what it reads.
//!
//! It logs in to any target, on an event loop of its own thread and without a kernel module. One
//! thread can serve many sessions; nothing is allocated and nothing is locked for an operation.
//!
//! ```no_run
//! use std::sync::atomic::AtomicBool;
//! use lunet_client::{Plan, Target, Workload, run};
//!
//! let target = Target::parse("iscsi://10.0.0.1/iqn.2026-11.local.lunet:demo/0")?;
//! let plan = Plan::new(target, Workload::new(4096));
//! let outcome = run(&plan, &AtomicBool::new(false), |progress| {
//!     println!("{} operations", progress.second.work.operations());
//! })?;
//! println!("{:.0} operations/s", outcome.operations_per_second());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | what |
//! |---|---|
//! | `target` | `iscsi://` addresses |
//! | `link`, `ask` | a session that waits for each answer: logins, questions |
//! | `unit` | what a portal, a target and a logical unit say of themselves |
//! | `reader` | reads blocks one after the other |
//! | `workload` | what load to make |
//! | `layout` | which operation comes next |
//! | `pattern`, [`verify`] | what verified writes carry, and what is wrong with what is read |
//! | `run` | threads, event loop, sessions |
//! | `outcome` | what came of it |
#![forbid(unsafe_code)]

mod ask;
pub mod cdb;
mod error;
mod latency;
mod layout;
mod link;
mod login;
mod outcome;
mod pattern;
mod random;
mod reader;
mod run;
mod sense;
mod target;
mod unit;
mod usage;
pub mod verify;
mod workload;

pub use ask::{Answer, number};
pub use error::Error;
pub use latency::Latency;
pub use link::Link;
pub use login::{INITIATOR_NAME, Login};
pub use lunet_iscsi::chap::{Account, Secret};
pub use lunet_iscsi::initiator::{DigestOffer, DiscoveredTarget, LoginInfo, Negotiated};
pub use lunet_ring::DriverChoice;
pub use outcome::{
    ErrorCount, JobOutcome, Kind, Outcome, Progress, Second, Stage, Tally, ThreadOutcome, Work,
};
pub use reader::Reader;
pub use run::run;
pub use sense::Failure;
pub use target::{PORT, Target, TargetError};
pub use unit::{LogicalUnit, discover, inspect, luns};
pub use usage::Usage;
pub use workload::{
    BlockSize, MAX_BLOCK, MAX_DEPTH, MAX_JOBS, MAX_KEPT_BLOCK, OnError, Order, Plan, Rate,
    ReadData, Verify, Workload,
};
