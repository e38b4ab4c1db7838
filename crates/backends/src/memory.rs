//! A volume in memory. It starts as zeroes and nothing survives a restart. Memory is taken as
//! blocks are written and given back by unmap; volumes that are larger than the memory that is available
//! are refused.

mod huge;
mod pages;
mod room;
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
use room::Room;

/// The unit in which memory is given back.
const PAGE: u32 = 4096;

pub(crate) fn open(spec: &VolumeSpec, size: u64) -> Result<Volume, OpenError> {
    let geometry = Geometry::new(spec, "memory volume", size, 512, PAGE)?;
    let refused = |available| OpenError::MoreThanMemory { size, available };
    let room = Room::take(size).map_err(refused)?;
    let region = Region::sparse(size).map_err(|error| OpenError::Memory { size, error })?;
    let (caps, region) = (caps(&geometry, spec.read_only), DropElsewhere::new(Arc::new(region)));
    let pages = Arc::new(Pages::new(size));
    let zeroes = Region::new(MAX_MAPPED).map_err(|error| OpenError::Memory { size, error })?;
    huge::watch(&region, &pages);
    Ok(Arc::new(Memory { caps, region, pages, zeroes: Arc::new(zeroes), _room: room }))
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

/// The longest read of blocks that were never written that is answered by reference, in bytes; longer ones are
/// answered from the volume.
const MAX_MAPPED: u64 = 16 << 20;

/// Pages are made for so many bytes at a time, when the first of them is written: sixteen pages in one system
/// call take a few microseconds, a huge page takes a hundred or more.
const POPULATE: u64 = 64 << 10;

struct Memory {
    caps: Caps,
    /// Giving much memory back takes long.
    region: DropElsewhere<Arc<Region>>,
    /// What has been written.
    pages: Arc<Pages>,
    /// What was never written is read from here: to read it from the volume would take page tables, and leave
    /// behind a page of zeroes that the next write has to break up.
    zeroes: Arc<Region>,
    _room: Room,
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
        let zeroes = RegionRef::new(Arc::clone(&self.zeroes));
        Ok(Box::new(InlineChannel(MemoryChannel { caps, region, pages, zeroes })))
    }

    fn slow(&self) -> &dyn Slow {
        self
    }
}

struct MemoryChannel {
    caps: Caps,
    region: RegionRef,
    pages: Arc<Pages>,
    zeroes: RegionRef,
}

impl MemoryChannel {
    /// Makes the pages of a range of which nothing around was written.
    fn prepare(&self, range: ByteRange) {
        let mut at = range.offset / POPULATE * POPULATE;
        while at < range.end() {
            let end = (at + POPULATE).min(self.region.region().len());
            if self.pages.is_blank(at, end) {
                self.region.region().populate(at, end - at);
            }
            at = end;
        }
    }
}

/// Reads from a volume, without touching what was never written.
fn read(region: &Region, pages: &Pages, offset: u64, to: &mut [u8]) {
    let (mut at, end) = (offset, offset + to.len() as u64);
    while at < end {
        let (written, until) = pages.run(at, end);
        let part = &mut to[(at - offset) as usize..(until - offset) as usize];
        match written {
            true => region.read(at, part),
            false => part.fill(0),
        }
        at = until;
    }
}

impl Inline for MemoryChannel {
    fn lent(&self) -> usize {
        self.region.lent()
    }

    fn lends(&self, answer: &Payload) -> bool {
        matches!(answer, Payload::Mapped(part) if self.region.holds(part))
    }

    fn run(&self, request: &mut Request<Payload>) -> Result<(), Error> {
        refuse(&self.caps, request)?;
        let (offset, len) = (request.range.offset, request.range.len);
        match request.op {
            Op::Read => {
                let to = room(&mut request.buf, len).ok_or(Error::Unsupported)?;
                read(self.region.region(), &self.pages, offset, to);
            }
            Op::ReadMapped => {
                let written = len > MAX_MAPPED || !self.pages.is_blank(offset, offset + len);
                request.buf = Some(match written {
                    true => self.region.map(offset..offset + len).into(),
                    false => self.zeroes.map(0..len).into(),
                });
            }
            Op::Write { .. } => {
                self.prepare(request.range);
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

    /// True if this is one of them, as [`Channel::lends`].
    fn lends(&self, _answer: &Payload) -> bool {
        false
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

    fn lends(&self, answer: &Payload) -> bool {
        self.0.lends(answer)
    }

    fn close(self: Box<Self>, _io: &mut Ring) {}
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::Storage;

    const MIB: u64 = 1 << 20;

    fn memory(size: u64) -> Memory {
        let spec = VolumeSpec::new(Storage::Memory { size });
        let geometry = Geometry::new(&spec, "memory volume", size, 512, PAGE).expect("a size");
        Memory {
            caps: caps(&geometry, false),
            region: DropElsewhere::new(Arc::new(Region::sparse(size).expect("a small mapping"))),
            pages: Arc::new(Pages::new(size)),
            zeroes: Arc::new(Region::new(MAX_MAPPED).expect("a small mapping")),
            _room: Room::take(size).unwrap_or_else(|_| panic!("as much memory")),
        }
    }

    fn channel(memory: &Memory) -> MemoryChannel {
        MemoryChannel {
            caps: memory.caps.clone(),
            region: RegionRef::new(Arc::clone(&memory.region)),
            pages: Arc::clone(&memory.pages),
            zeroes: RegionRef::new(Arc::clone(&memory.zeroes)),
        }
    }

    /// The answer to a request, as bytes.
    fn run(channel: &MemoryChannel, op: Op, offset: u64, len: u64, data: Option<u8>) -> Vec<u8> {
        let buf = match op {
            Op::Read => Some(Payload::Bytes(vec![0xEE; len as usize])),
            _ => data.map(|byte| Payload::Bytes(vec![byte; len as usize])),
        };
        let mut request = Request::new(1, op, ByteRange::new(offset, len), buf);
        let result = channel.run(&mut request);
        let done = request.complete(result);
        done.result.expect("it is on the volume");
        let mut bytes = Vec::new();
        if let Some(buf) = &done.buf {
            buf.for_each_chunk(0..buf.len(), |chunk| bytes.extend_from_slice(chunk));
        }
        bytes
    }

    const WRITE: Op = Op::Write { fua: false };

    #[test]
    fn reading_what_was_never_written_takes_no_page() {
        let memory = memory(32 * MIB);
        let channel = channel(&memory);
        for op in [Op::Read, Op::ReadMapped] {
            for at in 0..32 {
                assert!(run(&channel, op, at * MIB, MIB, None).iter().all(|byte| *byte == 0));
            }
        }
        assert_eq!(memory.region.resident().expect("a mapping"), 0);
        // A write takes what is around it, and no huge page, so that it is quick.
        run(&channel, WRITE, 5 * MIB + 512, 4096, Some(7));
        assert_eq!(memory.region.resident().expect("a mapping") as u64, POPULATE / 4096);
        for op in [Op::Read, Op::ReadMapped] {
            let read = run(&channel, op, 5 * MIB, 128 << 10, None);
            assert!(read[512..4608].iter().all(|byte| *byte == 7));
            assert!(read[..512].iter().chain(&read[4608..]).all(|byte| *byte == 0));
        }
        // Unmapped, it is as if it had never been written.
        run(&channel, Op::Unmap, 4 * MIB, 2 * MIB, None);
        let taken = memory.region.resident().expect("a mapping");
        assert!(
            run(&channel, Op::ReadMapped, 4 * MIB, 2 * MIB, None).iter().all(|byte| *byte == 0)
        );
        assert_eq!((taken, memory.region.resident().expect("a mapping")), (0, 0));
        // A write at the end, where less than the usual is left.
        run(&channel, WRITE, 32 * MIB - 512, 512, Some(9));
        assert_eq!(run(&channel, Op::Read, 32 * MIB - 512, 512, None), [9; 512]);
    }

    struct End<'a>(&'a AtomicU64);

    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.fetch_max(4096, Ordering::Release);
        }
    }

    #[test]
    fn a_read_after_the_end_of_the_first_write_sees_it_on_every_thread() {
        let memory = memory(16 * MIB);
        let written = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for op in [Op::Read, Op::ReadMapped] {
                let (memory, written) = (&memory, &written);
                scope.spawn(move || {
                    let channel = channel(memory);
                    loop {
                        let n = written.load(Ordering::Acquire);
                        for block in n.min(4096).saturating_sub(3)..n.min(4096) {
                            assert_eq!(run(&channel, op, block * 4096, 4096, None), [1; 4096]);
                        }
                        if n >= 4096 {
                            return;
                        }
                        std::thread::yield_now();
                    }
                });
            }
            // Whatever happens here, the readers end.
            let _end = End(&written);
            let channel = channel(&memory);
            for block in 0..4096 {
                run(&channel, WRITE, block * 4096, 4096, Some(1));
                written.store(block + 1, Ordering::Release);
            }
        });
    }
}
