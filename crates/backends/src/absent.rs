//! A volume whose storage is not there. Its logical unit keeps its place and its names, and is not ready.

use std::sync::Arc;

use lunet_block::{Backend, Caps, Channel, Error, NothingSlow, Request, Slow, Support};
use lunet_ring::{Payload, Ring};

use crate::Volume;
use crate::memory::{Inline, InlineChannel};

/// A volume with these numbers, in bytes, whose every request fails.
pub fn absent(size: u64, block_size: u32, read_only: bool) -> Volume {
    let caps = Caps {
        block_size,
        physical_block_size: block_size.max(4096),
        blocks: (size / u64::from(block_size.max(1))).max(1),
        read_only,
        // As a file has it that may come back.
        write_cache: !read_only,
        fua: Support::Native,
        write_zeroes: Support::Native,
        unmap: Support::Native,
        unmap_zeroes: true,
        unmap_granularity: 4096,
        mapped_reads: false,
        alignment: 1,
    };
    Arc::new(Absent(caps))
}

struct Absent(Caps);

impl Backend<Payload, Ring> for Absent {
    fn caps(&self) -> &Caps {
        &self.0
    }

    fn open_channel(
        &self,
        _number: u16,
        _io: &mut Ring,
    ) -> Result<Box<dyn Channel<Payload, Ring>>, i32> {
        Ok(Box::new(InlineChannel(Nowhere)))
    }

    fn slow(&self) -> &dyn Slow {
        &NothingSlow
    }
}

struct Nowhere;

impl Inline for Nowhere {
    fn run(&self, _request: &mut Request<Payload>) -> Result<(), Error> {
        Err(Error::Io(libc::ENODEV))
    }
}
