//! A volume that does the wrong thing once, and says that all is well.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lunet_backends::Volume;
use lunet_block::{Backend, ByteRange, Caps, Channel, Completion, IoDone, Op, Request, Submit};
use lunet_ring::{Arena, Payload, Ring};

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// The write does not happen.
    LoseWrite,
    /// Only the first half of the write happens.
    TearWrite,
    /// The read returns what was there before the last write to the place.
    StaleRead,
    /// The write goes to the end of the volume.
    MisplaceWrite,
    /// A bit of what the write leaves behind is flipped.
    FlipBit,
    /// The read returns the blocks behind those that were asked for.
    MisplaceRead,
}

/// A volume with a fault, which happens to the first operation from `from` on, counted among all
/// reads or all writes.
pub struct Faulty {
    inner: Volume,
    plant: Plant,
    from: u64,
    counts: Arc<Counts>,
}

#[derive(Default)]
pub struct Counts {
    operations: AtomicU64,
    /// How often the fault happened.
    pub happened: AtomicU64,
}

impl Faulty {
    pub fn over(inner: Volume, plant: Plant, from: u64) -> (Volume, Arc<Counts>) {
        let counts = Arc::new(Counts::default());
        (Arc::new(Self { inner, plant, from, counts: counts.clone() }), counts)
    }
}

impl Backend<Payload, Ring> for Faulty {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn open_channel(
        &self,
        number: u16,
        ring: &mut Ring,
    ) -> Result<Box<dyn Channel<Payload, Ring>>, i32> {
        Ok(Box::new(FaultyChannel {
            inner: self.inner.open_channel(number, ring)?,
            plant: self.plant,
            from: self.from,
            counts: self.counts.clone(),
            arena: ring.arena().clone(),
            before: None,
        }))
    }
}

struct FaultyChannel {
    inner: Box<dyn Channel<Payload, Ring>>,
    plant: Plant,
    from: u64,
    counts: Arc<Counts>,
    arena: Arena,
    /// A place, and what was there before it was written.
    before: Option<(ByteRange, Vec<u8>)>,
}

impl FaultyChannel {
    /// Carries something out on the memory below, which answers at once.
    fn now(&mut self, request: Request<Payload>, ring: &mut Ring) -> Completion<Payload> {
        match self.inner.submit(request, ring) {
            Submit::Done(completion) => completion,
            Submit::Queued | Submit::Busy(_) => panic!("memory answers at once"),
        }
    }

    fn read(&mut self, range: ByteRange, ring: &mut Ring) -> Vec<u8> {
        let buf = self.arena.alloc(range.len as usize).expect("room in the arena");
        let request = Request::new(0, Op::Read, range, Some(buf.into()));
        match self.now(request, ring).buf {
            Some(Payload::Buf(buf)) => buf.to_vec(),
            _ => panic!("the buffer comes back"),
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8], ring: &mut Ring) {
        let mut buf = self.arena.alloc(bytes.len()).expect("room in the arena");
        buf.copy_from_slice(bytes);
        let range = ByteRange::new(offset, bytes.len() as u64);
        let request = Request::new(0, Op::Write { fua: false }, range, Some(buf.into()));
        self.now(request, ring).result.expect("memory takes writes");
    }

    /// True for the operation that it happens to.
    fn is_hit(&self) -> bool {
        let number = self.counts.operations.fetch_add(1, Ordering::SeqCst);
        let once = || self.counts.happened.fetch_add(1, Ordering::SeqCst) == 0;
        number >= self.from && self.counts.happened.load(Ordering::SeqCst) == 0 && once()
    }

    /// Carries a write out wrongly.
    fn spoil(&mut self, request: Request<Payload>, ring: &mut Ring) -> Submit<Payload> {
        let range = request.range;
        let mut bytes = Vec::new();
        let data = request.buf.as_ref().expect("a write has data");
        data.for_each_chunk(0..range.len as usize, |chunk| bytes.extend_from_slice(chunk));
        match self.plant {
            Plant::LoseWrite => {}
            Plant::TearWrite => {
                self.write(range.offset, &bytes[..bytes.len() / 2], ring);
            }
            Plant::MisplaceWrite => {
                let end = self.inner_bytes();
                self.write(end - range.len, &bytes, ring);
            }
            Plant::FlipBit => {
                bytes[700] ^= 0x10;
                self.write(range.offset, &bytes, ring);
            }
            Plant::StaleRead | Plant::MisplaceRead => panic!("a fault of reads"),
        }
        Submit::Done(request.complete(Ok(())))
    }

    fn inner_bytes(&self) -> u64 {
        super::faults::SIZE_MIB << 20
    }

    /// Answers a read with these bytes.
    fn answer(&self, mut request: Request<Payload>, bytes: Vec<u8>) -> Submit<Payload> {
        match &mut request.buf {
            Some(Payload::Buf(buf)) => buf[..bytes.len()].copy_from_slice(&bytes),
            buf => *buf = Some(Payload::Bytes(bytes)),
        }
        Submit::Done(request.complete(Ok(())))
    }
}

impl Channel<Payload, Ring> for FaultyChannel {
    fn submit(&mut self, request: Request<Payload>, ring: &mut Ring) -> Submit<Payload> {
        let range = request.range;
        let read = matches!(request.op, Op::Read | Op::ReadMapped);
        let write = matches!(request.op, Op::Write { .. });
        match self.plant {
            Plant::StaleRead if write => self.before = Some((range, self.read(range, ring))),
            Plant::StaleRead if read => {
                // Before the place was written: something else is there now.
                let before = self.before.take_if(|(place, _)| *place == range);
                if let Some((_, old)) = before {
                    if self.is_hit() {
                        return self.answer(request, old);
                    }
                }
            }
            Plant::MisplaceRead if read => {
                let behind = ByteRange::new(range.end(), range.len);
                if behind.end() <= self.inner_bytes() && self.is_hit() {
                    let bytes = self.read(behind, ring);
                    return self.answer(request, bytes);
                }
            }
            Plant::StaleRead | Plant::MisplaceRead => {}
            _ if write && self.is_hit() => return self.spoil(request, ring),
            _ => {}
        }
        self.inner.submit(request, ring)
    }

    fn advance(&mut self, done: IoDone<Payload>, ring: &mut Ring) -> Option<Completion<Payload>> {
        self.inner.advance(done, ring)
    }

    fn cancel(&mut self, tag: u64, ring: &mut Ring) {
        self.inner.cancel(tag, ring);
    }

    fn close(self: Box<Self>, ring: &mut Ring) {
        self.inner.close(ring);
    }
}
