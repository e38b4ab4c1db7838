//! Volumes without storage. A null volume reads as zeroes and drops what is written: it measures all
//! that is not storage. An absent volume stands for one whose storage is missing: its logical unit keeps its LUN
//! and its names, and is not ready.

use std::any::Any;
use std::sync::Arc;

use lunet_block::{
    Backend, ByteRange, Caps, Channel, Error, Extent, NothingSlow, Op, Request, Slow, Support,
};
use lunet_ring::{Payload, Region, RegionRef, Ring};

use crate::geometry::Geometry;
use crate::memory::{Inline, InlineChannel, caps, check, refuse, room};
use crate::{OpenError, Volume, VolumeSpec};

/// The longest read that is answered by reference; as much address space, and no memory until it
/// is read.
const MAX_MAPPED: u64 = 64 << 20;

pub(crate) fn open(spec: &VolumeSpec, size: u64) -> Result<Volume, OpenError> {
    let geometry = Geometry::new(spec, "null volume", size, 512, 4096)?;
    let zeroes = Region::new(size.min(MAX_MAPPED))
        .map_err(|error| OpenError::Memory { size: MAX_MAPPED, error })?;
    Ok(Arc::new(Null { caps: caps(&geometry, spec.read_only), zeroes: Arc::new(zeroes) }))
}

pub(crate) struct Null {
    caps: Caps,
    zeroes: Arc<Region>,
}

impl Backend<Payload, Ring> for Null {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn open_channel(
        &self,
        _number: u16,
        _io: &mut Ring,
    ) -> Result<Box<dyn Channel<Payload, Ring>>, i32> {
        let zeroes = RegionRef::new(Arc::clone(&self.zeroes));
        Ok(Box::new(InlineChannel(NullChannel { caps: self.caps.clone(), zeroes })))
    }

    fn slow(&self) -> &dyn Slow {
        self
    }
}

impl Slow for Null {
    fn extents(&self, range: ByteRange, most: usize) -> Result<Vec<Extent>, Error> {
        check(&self.caps, range)?;
        Ok(Extent::all_mapped(range).into_iter().take(most).collect())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

struct NullChannel {
    caps: Caps,
    /// Never written.
    zeroes: RegionRef,
}

impl Inline for NullChannel {
    fn run(&self, request: &mut Request<Payload>) -> Result<(), Error> {
        refuse(&self.caps, request)?;
        let len = request.range.len;
        match request.op {
            Op::Read => room(&mut request.buf, len).ok_or(Error::Unsupported)?.fill(0),
            Op::ReadMapped if len > MAX_MAPPED => return Err(Error::Unsupported),
            Op::ReadMapped => request.buf = Some(self.zeroes.map(0..len).into()),
            Op::Write { .. } | Op::Flush | Op::Unmap | Op::WriteZeroes { .. } => {}
        }
        Ok(())
    }
}

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
