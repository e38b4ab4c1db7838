//! What a running lunet is asked, and what it answers: requests, answers, events and coded errors.
//!
//! The control socket of the server, every command that asks one, `lunet top`, `lunet bench` and `lunet doctor` use these
//! types and no others, and `--json` prints them. docs/api.md describes them for other programs.
//!
//! Two programs of different versions understand each other by four rules:
//!
//! - A reader ignores fields that it does not know. Only a [`Change`] is refused when it has one: the field may be what
//!   keeps it from doing harm.
//! - Every field of an answer has a default. An answer of an older server can be read by it.
//! - A word that is not known is [kept](Code) and not an error.
//! - [`Reply`] and [`Call`] tell the other side's [`VERSION`], so that an error can say which side is older.
#![forbid(unsafe_code)]

mod change;
mod error;
mod event;
mod group;
pub mod line;
mod part;
pub mod rates;
mod request;
mod session;
mod stats;
mod target;
mod verdict;
mod volume;
mod wire;
mod words;

pub use change::{
    Change, Difference, Done, NewSecret, NewUser, NewVolume, Preview, SecretText, SessionChange,
    SessionFate, VolumeLimits,
};
pub use error::{Code, Error};
pub use event::{Interval, OperationRates, Rates, SessionRates, ShardRates, VolumeRates};
pub use group::{
    GatewayState, Group, GroupAccess, GroupConfig, GroupGateway, GroupProtocol, GroupState,
    GroupVolume,
};
pub use part::{Part, PartKind, PartsOf, Place};
pub use request::{Answer, Configuration, Request};
pub use session::{Controller, OverTcp, Queue, RdmaPath, Session, Transport};
pub use stats::{
    Bucket, LimitWaits, NoIser, NvmeCounts, Operations, Percentile, Portal, Protocol, Room,
    ShardLoad, ShardOperations, SilentShard, StageTime, Stats, VolumeStats, VolumeTime,
};
pub use target::{Lun, Reach, SecretPlace, Target, User};
pub use verdict::{
    AtLimit, Binding, BoundBy, LimitKind, Stage, StageShare, Verdict, VolumeBinding,
};
pub use volume::{
    Backend, Erasure, ErasureState, Fault, FaultState, Limit, Limited, MappedAs, Snapshot, Volume,
    WriteCache,
};
pub use wire::{Call, Reply, TOO_MANY, Unread, read_call, read_reply};

/// The version of this API. It grows when a request, a change or a field of a change is added.
///
/// 1 had errors without a code, and named no version.
pub const VERSION: u32 = 3;
