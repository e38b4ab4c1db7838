//! What a volume is to any protocol: its storage and the health of that, the writes that are fenced off, the ranges
//! that commands lock, and the threads that do for it what may block.
//!
//! Nothing here knows what a client speaks. A protocol keeps what it shows of a volume beside it
//! ([`Volume::face`]).
#![forbid(unsafe_code)]

mod fence;
pub mod files;
mod health;
mod locks;
mod offload;
mod volume;

pub use fence::Fence;
pub use health::{Cause, During, Fault, Health, MarkFile, Storage, read_mark};
pub use locks::{Locks, Passage, Stage, Waiter};
pub use offload::{NO_VOLUME, Offload, Work};
pub use volume::Volume;
