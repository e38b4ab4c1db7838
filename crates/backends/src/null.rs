//! A volume that keeps nothing: it reads as zeroes and swallows what is written. It measures all
//! that is not storage.

use std::any::Any;
use std::sync::Arc;

use lunet_block::{Backend, ByteRange, Caps, Channel, Error, Extent, Op, Request, Slow};
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
