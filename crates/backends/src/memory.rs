//! A volume in memory. It starts as zeroes and nothing survives a restart. Memory is taken as
//! blocks are written and given back by unmap; a volume that is larger than the machine's memory
//! can be opened, but not filled.

mod pages;
mod slow;

use std::sync::Arc;

use lunet_block::{
    Backend, ByteRange, Caps, Channel, Completion, Error, IoDone, Op, Request, Slow, Submit,
    Support,
};
use lunet_ring::{DropElsewhere, Payload, Region, RegionRef, Ring};

use crate::geometry::Geometry;
use crate::{OpenError, Volume, VolumeSpec};
use pages::Pages;

/// The unit in which memory is given back.
const PAGE: u32 = 4096;

/// Blocks. Power loss takes all of a volume in memory, so there is no half of a write to be found.
const ATOMIC: u32 = 256;

pub(crate) fn open(spec: &VolumeSpec, size: u64) -> Result<Volume, OpenError> {
    let geometry = Geometry::new(spec, "memory volume", size, 512, PAGE)?;
    let region = Region::new(size).map_err(|error| OpenError::Memory { size, error })?;
    let (caps, region) = (caps(&geometry, spec.read_only), DropElsewhere::new(Arc::new(region)));
    Ok(Arc::new(Memory { caps, region, pages: Arc::new(Pages::new(size)) }))
}

/// What a volume can do whose data is nowhere but in memory.
pub(crate) const fn caps(geometry: &Geometry, read_only: bool) -> Caps {
    Caps {
        block_size: geometry.block_size,
        physical_block_size: geometry.physical_block_size,
        blocks: geometry.blocks,
        read_only,
        write_cache: false,
        fua: Support::Native,
        write_zeroes: Support::Native,
        unmap: Support::Native,
        unmap_zeroes: true,
        unmap_granularity: PAGE,
        atomic_bytes: ATOMIC * geometry.block_size,
        mapped_reads: true,
        alignment: 1,
    }
}

/// The answer to a request that never reaches the memory: one that changes a read-only volume or
/// lies beyond its end.
pub(crate) fn refuse<B>(caps: &Caps, request: &Request<B>) -> Result<(), Error> {
    match request.op {
        Op::Flush => return Ok(()),
        Op::Write { .. } | Op::Unmap | Op::WriteZeroes { .. } if caps.read_only => {
            return Err(Error::ReadOnly);
        }
        _ => {}
    }
    check(caps, request.range)
}

/// Whether a range lies on the volume.
pub(crate) fn check(caps: &Caps, range: ByteRange) -> Result<(), Error> {
    match range.offset.checked_add(range.len) {
        Some(end) if end <= caps.bytes() => Ok(()),
        _ => Err(Error::OutOfRange),
    }
}

/// The first `len` bytes of a request's buffer.
pub(crate) fn room(buf: &mut Option<Payload>, len: u64) -> Option<&mut [u8]> {
    match buf {
        Some(Payload::Buf(buf)) => buf.get_mut(..len as usize),
        Some(Payload::Bytes(bytes)) => bytes.get_mut(..len as usize),
        Some(Payload::Mapped(_) | Payload::Shared(_)) | None => None,
    }
}

struct Memory {
    caps: Caps,
    /// Giving much memory back takes long.
    region: DropElsewhere<Arc<Region>>,
    /// What has been written.
    pages: Arc<Pages>,
}

impl Backend<Payload, Ring> for Memory {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn open_channel(
        &self,
        _number: u16,
        _io: &mut Ring,
    ) -> Result<Box<dyn Channel<Payload, Ring>>, i32> {
        let region = RegionRef::new(Arc::clone(&self.region));
        let (caps, pages) = (self.caps.clone(), Arc::clone(&self.pages));
        Ok(Box::new(InlineChannel(MemoryChannel { caps, region, pages })))
    }

    fn slow(&self) -> &dyn Slow {
        self
    }
}

struct MemoryChannel {
    caps: Caps,
    region: RegionRef,
    pages: Arc<Pages>,
}

impl Inline for MemoryChannel {
    fn lent(&self) -> usize {
        self.region.lent()
    }

    fn run(&self, request: &mut Request<Payload>) -> Result<(), Error> {
        refuse(&self.caps, request)?;
        let (offset, len) = (request.range.offset, request.range.len);
        match request.op {
            Op::Read => {
                let to = room(&mut request.buf, len).ok_or(Error::Unsupported)?;
                self.region.region().read(offset, to);
            }
            Op::ReadMapped => {
                request.buf = Some(self.region.map(offset..offset + len).into());
            }
            Op::Write { .. } => {
                let from = request.buf.as_ref().filter(|b| b.len() as u64 >= len);
                let mut at = offset;
                from.ok_or(Error::Unsupported)?.for_each_chunk(0..len as usize, |chunk| {
                    self.region.region().write(at, chunk);
                    at += chunk.len() as u64;
                });
                self.pages.set(offset, len);
            }
            Op::Flush => {}
            Op::Unmap | Op::WriteZeroes { may_unmap: true } => {
                self.pages.clear(offset, len);
                self.region.region().zero(offset, len);
            }
            Op::WriteZeroes { may_unmap: false } => {
                self.region.region().zero(offset, len);
                self.pages.set(offset, len);
            }
        }
        Ok(())
    }
}

/// Carries a request out on the spot.
pub(crate) trait Inline {
    /// Fills or takes the request's buffer.
    fn run(&self, request: &mut Request<Payload>) -> Result<(), Error>;

    /// Answers by reference to what may change, as [`Channel::lent`].
    fn lent(&self) -> usize {
        0
    }
}

/// A channel that answers on the spot, so nothing is ever queued or left to cancel.
pub(crate) struct InlineChannel<T>(pub T);

impl<T: Inline> Channel<Payload, Ring> for InlineChannel<T> {
    fn submit(&mut self, mut request: Request<Payload>, _io: &mut Ring) -> Submit<Payload> {
        let result = self.0.run(&mut request);
        Submit::Done(request.complete(result))
    }

    fn advance(&mut self, _done: IoDone<Payload>, _io: &mut Ring) -> Option<Completion<Payload>> {
        None
    }

    fn cancel(&mut self, _tag: u64, _io: &mut Ring) {}

    fn lent(&self) -> usize {
        self.0.lent()
    }

    fn close(self: Box<Self>, _io: &mut Ring) {}
}
