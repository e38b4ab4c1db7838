//! Failover groups: several gateways serve the same images of a Ceph cluster, one of them at a time.
//!
//! [`Gateway`] is the state machine of one gateway for one group. It does no I/O and has no clock: it is given
//! [inputs](Input) with the time, and gives back [actions](Action), which the caller carries out in order. What the
//! gateways share is the [`Record`] of the group, an object in the cluster. [`Gate`] says of each command whether it may
//! be executed.
//!
//! The order of a takeover, and why it is the only safe one, is in `docs/design/gateways.md`.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod access;
mod action;
mod bytes;
mod codec;
mod contact;
mod gate;
mod jobs;
mod machine;
mod message;
mod moving;
mod record;
mod requests;
mod standby;
mod takeover;
mod way;

pub use access::{Access, AccessState};
pub use action::{
    Ack, Action, Answer, Attention, ClientName, Failure, Input, Job, LONG_ENOUGH, Lost, Notice,
    NotifyId, OpId, Order, Outcome, Refusal, Reply, Request, Result, TEN_YEARS,
};
pub use codec::Malformed;
pub use gate::{Admission, Gate, Link, Ping, Stamp};
pub use machine::{Condition, Config, Gateway};
pub use message::{Message, Response};
pub use record::{
    Change, Contents, Invalid, MAX_BODY, MAX_MODES, MAX_PORTS, MAX_VOLUMES, Owner, Port, Portals,
    Record, Registered, Reserved, Sanitize, Tag, Taker, Volume,
};
pub use takeover::Candidate;
pub use way::{Passage, Turn, Way};

/// A gateway of the group, by the number that its configuration gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GatewayId(pub u16);

/// How often the group has changed hands. It only rises, and what was received in one epoch is executed in no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The one after it.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
