//! A client that makes load on a volume, measures what comes of it, and checks what it reads.
//!
//! It speaks to any target, on an event loop of its own threads and without a kernel module. One
//! thread can serve many connections; nothing is allocated and nothing is locked for an operation.
//!
//! ```no_run
//! use std::sync::atomic::AtomicBool;
//! use lunet_client::iscsi::{Initiator, Target};
//! use lunet_client::{Plan, Workload, run};
//!
//! let target = Target::parse("iscsi://10.0.0.1/iqn.2026-11.local.lunet:demo/0")?;
//! let plan = Plan::new(Initiator::from(target), Workload::new(4096));
//! let outcome = run(&plan, &AtomicBool::new(false), |progress| {
//!     println!("{} operations", progress.second.work.operations());
//! })?;
//! println!("{:.0} operations/s", outcome.operations_per_second());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`front`] | what a protocol gives to the load loop |
//! | `identity` | what a disk is known by, and who has reserved it |
//! | [`iscsi`], [`nvme`] | fronts: addresses, logins, questions, sessions |
//! | [`rdma`] | RDMA for both: connections, memory that targets may reach |
//! | `workload` | what load to make |
//! | `layout` | which operation comes next |
//! | `pattern`, [`verify`] | what verified writes carry, and what is wrong with what is read |
//! | `run` | threads, event loop, jobs |
//! | `outcome` | what came of it |
//!
//! Only `iscsi` knows SCSI or iSCSI, and only `nvme` NVMe: a protocol is a module with a
//! [`Front`](front::Front) of its own.
#![forbid(unsafe_code)]

pub mod front;
mod identity;
pub mod iscsi;
mod latency;
mod layout;
pub mod nvme;
mod outcome;
mod pattern;
mod pieces;
mod place;
mod random;
pub mod rdma;
mod run;
mod usage;
pub mod verify;
mod workload;

pub use front::Error;
pub use identity::{Claims, Identity, Registrant};
pub use latency::Latency;
pub use lunet_ring::DriverChoice;
pub use outcome::{
    ErrorCount, JobOutcome, Kind, Outcome, Progress, Second, Stage, Tally, ThreadOutcome, Work,
};
pub use run::run;
pub use usage::Usage;
pub use workload::{
    BlockSize, MAX_BLOCK, MAX_DEPTH, MAX_JOBS, MAX_KEPT_BLOCK, OnError, Order, Plan, Rate,
    ReadData, Verify, Workload,
};

/// What to do where no packet comes to a machine at all.
fn route(kind: std::io::ErrorKind) -> Option<&'static str> {
    use std::io::ErrorKind::{HostUnreachable, NetworkUnreachable};
    let is_out_of_reach = matches!(kind, HostUnreachable | NetworkUnreachable);
    is_out_of_reach.then_some(
        "there is no route to it: check the address, and `ip route get ADDRESS` on this machine",
    )
}
