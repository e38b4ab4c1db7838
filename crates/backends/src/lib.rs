//! Where the blocks of a volume are kept.
//!
//! | storage | answers | stable after |
//! |---|---|---|
//! | sparse file | through the kernel | a flush (fdatasync), or a write with FUA |
//! | block device | through the kernel, O_DIRECT | the same, or at once if the device has no volatile cache |
//! | memory | on the spot, reads by reference | never: nothing survives a restart |
//! | null | on the spot, zeroes | never |
//!
//! [`open`] checks everything that can be checked beforehand, and says in one sentence what is
//! wrong. An open [`Volume`] is shared by all shards; each opens a channel of its own on its own
//! event loop.
#![forbid(unsafe_code)]

// The tests share code that sees this crate from outside.
#[cfg(test)]
extern crate self as lunet_backends;

#[cfg(test)]
#[path = "../tests/suite/common.rs"]
mod common;
mod device;
mod disk;
mod error;
mod file;
mod geometry;
mod grow;
pub mod layers;
mod memory;
mod null;
pub mod patience;
pub mod snapshot;
mod spec;
mod sysfs;
mod token;
pub mod zfs;

use std::sync::Arc;

use lunet_block::Backend;
use lunet_ring::{Payload, Ring};

pub use error::OpenError;
pub use grow::{grow, opened};
pub use spec::{Access, FileSpec, Provisioning, Storage, VolumeSpec};
pub use token::{disk_token, parse_disk_token};

/// An open volume. Its storage is let go with the last clone and the last channel.
pub type Volume = Arc<dyn Backend<Payload, Ring>>;

/// One shard's way to a volume. `Read` and `Write` need a [`Payload::Buf`]; the answer to a
/// `ReadMapped` carries a [`Payload::Mapped`].
pub type Channel = dyn lunet_block::Channel<Payload, Ring>;

/// Opens a volume. Blocks: it is for the start of the program, not for a running event loop.
///
/// # Errors
/// [`OpenError`]: what is wrong with the specification, the path or the storage.
pub fn open(spec: &VolumeSpec) -> Result<Volume, OpenError> {
    let volume = match &spec.storage {
        Storage::File(file) => file::open(spec, file),
        Storage::Block { path } => device::open(spec, path),
        Storage::Memory { size } => memory::open(spec, *size),
        Storage::Null { size } => null::open(spec, *size),
    }?;
    if spec.layers.is_empty() {
        return Ok(volume);
    }
    Ok(layers::wrap(volume, &spec.layers).0)
}
