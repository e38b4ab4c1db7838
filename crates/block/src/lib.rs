//! The words that every layer of lunet speaks about blocks.
//!
//! A device server turns a command into [`Request`]s, a [`Channel`] answers each with one
//! [`Completion`]. Buffers are a type parameter, so this crate knows nothing of memory, files or
//! event loops: it is `no_std`, forbids unsafe code, and does no I/O.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod backend;
mod caps;
#[cfg(feature = "conformance")]
pub mod conformance;
mod random;
mod range;
mod request;
mod size;
mod slow;

pub use backend::{Backend, Channel, IoDone, IoToken, Submit};
pub use caps::{Caps, Support};
pub use random::{Random, mix};
pub use range::{BlockRange, ByteRange, Lba};
pub use request::{Completion, Error, Op, Request};
pub use size::Size;
pub use slow::{Extent, NothingSlow, Slow, Space};
