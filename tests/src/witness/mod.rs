//! A witness of what was acknowledged: it writes, remembers, and after a crash says whether each block holds what it may.
//!
//! It speaks iSCSI itself, so that between it and the target nothing repeats, merges or caches. The rules:
//!
//! * A change that was acknowledged before a flush was sent is there once the flush was acknowledged, and a write with FUA once
//!   it was acknowledged itself. They survive everything.
//! * A change that was acknowledged survives the end of the server's process.
//! * Any other change that was sent is there or not, but no block is half the one and half the other, unless the storage is known
//!   to tear what was not flushed.

mod load;
mod model;
mod unit;

pub use load::Load;
pub use model::{BLOCK, Model, written_block};
pub use unit::{Crash, Units};
