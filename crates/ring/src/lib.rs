//! The event loop of lunet: sockets and files of one thread, and the memory for their data.
//!
//! [`Ring`] hides which driver does the work: io_uring, or epoll with a few disk threads where
//! io_uring is denied. Both batch: operations are queued without a system call, and one call
//! submits all of them and waits. Nothing is allocated and nothing is locked per operation.
//!
//! Only this crate and `lunet-verbs` have unsafe code. The rules here:
//! - An operation owns its buffers from the moment it is queued until the kernel reports its end.
//!   They live in a slot that only that report frees.
//! - What the kernel gets a pointer to is on the heap, in the arena or in a region, and is not
//!   touched while the operation runs.
//! - Dropping a driver waits until the kernel holds no pointer any more.

mod arena;
#[cfg(debug_assertions)]
pub mod attempts;
mod buddy;
mod chain;
mod config;
mod epoll;
mod event;
mod files;
mod heap;
mod leave;
mod mapping;
mod passthrough;
mod payload;
mod polling;
mod pool;
mod region;
mod ring;
mod shrink;
#[cfg(feature = "simulated")]
pub mod simulated;
mod slots;
mod sys;
mod timers;
mod uring;
mod waker;

pub use arena::{Account, Arena, Buf, MAX_BUF, MAX_RESERVE, RESIDENT_LEAST, Reserve, Slab};
pub use chain::TxChain;
pub use config::{Config, Counters, Driver, DriverChoice, PassthroughRings};
pub use event::{Delivery, Event, FileId, PollSource, RxBufs, SocketId, Token, WatchId};
pub use heap::give_back_heap;
pub use leave::{DropElsewhere, leave};
pub use passthrough::{Namespace, Passthrough, Unpassable};
pub use payload::Payload;
pub use polling::BusyPoll;
pub use region::{Mapped, Region, RegionRef};
pub use ring::Ring;
pub use shrink::Shrink;
pub use slots::{Key, Slots};
pub use sys::{Treatment, has_tls, secure_stream};
pub use waker::Waker;
