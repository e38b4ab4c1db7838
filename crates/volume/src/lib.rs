//! What a volume is to any protocol: its storage and the health of that, the writes that are fenced off, the ranges
//! that commands lock, who has reserved it, the threads that do for it what may block, and the [`Executor`] of each
//! shard, which carries out operations on it.
//!
//! Nothing here knows what a client speaks. A protocol keeps what it shows of a volume beside it
//! ([`Volume::face`]), and the command that an operation belongs to in the operation ([`Operation::command`]).
#![forbid(unsafe_code)]

mod channel;
mod clients;
mod count;
mod executor;
mod fence;
mod health;
mod hold;
mod keeper;
mod limit;
mod locks;
mod memory;
mod offload;
mod open;
mod operation;
mod queue;
pub mod reserve;
mod share;
mod stage;
mod storage;
mod stride;
mod throttle;
mod volume;
mod work;

pub use clients::{ClientLimits, ClientRates, ClientRule, Clients};
pub use count::{Kind, LimitWaits, VolumeCount, Whose};
pub use executor::{Executor, NoChannel, Step};
pub use health::{Cause, Fault, Health, MarkFile, StorageId, read_mark};
pub use hold::{HeldVolume, HoldError};
pub use keeper::{Keeper, Orders};
pub use limit::{Cost, DEFAULT_BURST, Limit, Rates};
pub use locks::Waiter;
pub use memory::{BACKLOG_HIGH, Budget, take};
pub use offload::{Offload, SlowWork, Ticket};
pub use open::{OpenVolumes, VolumeId};
pub use operation::{
    CHUNK, Command, DEPTH, Face, Names, Operation, OperationId, Operations, Parties, PathState,
    Requests,
};
pub use share::{DEFAULT_WEIGHT, POOL_DEPTH, Pool, PoolShare, Share};
pub use stage::{Stage, StageTimes, Timed};
pub use storage::{Drain, ShardConfig, Shards, Storage};
pub use volume::Volume;
pub use work::{
    Client, Compare, Copy, Exclusive, Failure, Fill, Intake, Merge, Overwrite, Piece, Plain,
    Progress, Read, Sink, Source, Work, Write,
};
