//! What needs no data of the client: one block again and again, and requests without data.

use lunet_block::{ByteRange, Completion, Op, Support};
use lunet_ring::{Buf, Payload};

use super::{Failure, Progress, Work};
use crate::limit::Cost;
use crate::memory::Budget;
use crate::open::VolumeId;
use crate::operation::{CHUNK, Requests};
use crate::storage::Storage;

impl Work {
    /// Makes a range of the volume in a slot read as zeroes: by the storage's own operation, or with zeroes written
    /// where it has none. `None` if there is no buffer memory at all.
    pub fn zeroes<F>(
        storage: &Storage<F>,
        (budget, slot): (Budget<'_>, VolumeId),
        range: ByteRange,
        may_unmap: bool,
    ) -> Option<Self> {
        let caps = &storage.volumes[slot].core.caps;
        if caps.write_zeroes == Support::Native {
            let op = Op::WriteZeroes { may_unmap };
            return Some(Self::Plain(Plain::new(op, vec![range])));
        }
        let wanted = CHUNK.min(range.len as usize);
        let block = || storage.ring.arena().alloc_for(caps.block_size as usize, budget.account);
        let mut pattern = storage.take_buffer(budget, slot, wanted).or_else(block)?;
        pattern.fill(0);
        Some(Self::Fill(Fill::new(range, pattern)))
    }

    /// Fills a range of the volume in a slot with a block, which is `len` bytes at the start of a buffer. One of zeroes
    /// may be unmapped instead of written.
    pub fn fill<F>(
        storage: &Storage<F>,
        (budget, slot): (Budget<'_>, VolumeId),
        range: ByteRange,
        (block, len): (Buf, usize),
        may_unmap: bool,
    ) -> Self {
        if block[..len].iter().all(|byte| *byte == 0) {
            // A block of zeroes is at hand if there is no memory for more.
            let zeroes = Self::zeroes(storage, (budget, slot), range, may_unmap);
            return zeroes.unwrap_or(Self::Fill(Fill::new(range, block)));
        }
        let wanted = CHUNK.min(range.len as usize);
        // Short of memory: slower, block by block.
        let Some(mut pattern) = storage.take_buffer(budget, slot, wanted) else {
            return Self::Fill(Fill::new(range, block));
        };
        for part in pattern.chunks_mut(len) {
            part.copy_from_slice(&block[..part.len()]);
        }
        Self::Fill(Fill::new(range, pattern))
    }
}

/// A range that is filled with a pattern.
pub struct Fill {
    /// Where.
    range: ByteRange,
    /// How much has been written.
    written: u64,
    /// The pattern, in whole blocks; `None` while a request has it.
    pub(super) pattern: Option<Buf>,
}

impl Fill {
    /// Fills a range with a pattern of whole blocks.
    pub(crate) const fn new(range: ByteRange, pattern: Buf) -> Self {
        Self { range, written: 0, pattern: Some(pattern) }
    }

    /// Writes the pattern once more.
    pub(crate) fn pump<F>(
        &mut self,
        requests: &mut Requests,
        storage: &mut Storage<F>,
    ) -> Progress {
        if requests.is_failed() || self.written == self.range.len {
            return Progress::finished_if(requests.in_flight() == 0);
        }
        if let Some(pattern) = self.pattern.take() {
            let len = (pattern.len() as u64).min(self.range.len - self.written);
            if !storage.lets(requests, requests.volume, Cost::of(len)) {
                self.pattern = Some(pattern);
                return Progress::Waits;
            }
            requests.spend_all();
            let range = ByteRange::new(self.range.offset + self.written, len);
            let op = Op::Write { fua: false };
            storage.submit(requests, op, range, Some(Payload::Buf(pattern)));
        }
        Progress::Waits
    }

    /// The pattern is on the volume once more.
    pub(crate) fn done(&mut self, done: Completion<Payload>) -> Result<(), Failure> {
        let Completion { op, range, result, buf, .. } = done;
        if let Some(Payload::Buf(buf)) = buf {
            self.pattern = Some(buf);
        }
        result.map_err(|error| Failure::Storage { error, op, range })?;
        self.written += range.len;
        Ok(())
    }
}

/// Requests without data, one after the other: giving space back, zeroes, a flush.
pub struct Plain {
    /// What to do with each range.
    op: Op,
    /// Where; for a flush one empty range.
    ranges: Vec<ByteRange>,
    /// The range that comes next.
    next: usize,
}

impl Plain {
    /// The same for each of these ranges.
    pub const fn new(op: Op, ranges: Vec<ByteRange>) -> Self {
        Self { op, ranges, next: 0 }
    }

    /// A flush.
    pub fn flush() -> Self {
        Self::new(Op::Flush, vec![ByteRange::new(0, 0)])
    }

    /// Starts the next requests.
    pub(crate) fn pump<F>(
        &mut self,
        requests: &mut Requests,
        storage: &mut Storage<F>,
    ) -> Progress {
        while !requests.is_failed() && self.next < self.ranges.len() {
            if requests.is_full() {
                return Progress::Waits;
            }
            let range = self.ranges[self.next];
            let (slot, cost) = (requests.writes_on(), Cost::of_request(self.op, range.len));
            if cost.operations > 0 && !storage.lets(requests, slot, cost) {
                return Progress::Waits;
            }
            requests.spend_all();
            self.next += 1;
            storage.submit_to(requests.writes_on(), requests, self.op, range, None);
        }
        Progress::finished_if(requests.in_flight() == 0)
    }

    /// A request is done.
    pub(crate) fn done(done: &Completion<Payload>) -> Result<(), Failure> {
        let Completion { op, range, result, .. } = *done;
        result.map_err(|error| Failure::Storage { error, op, range })
    }
}
