//! Passes over a whole volume: every block is written, or its space given back.

use lunet_block::{ByteRange, Caps, Completion, Op, Support};
use lunet_ring::{Buf, Payload};

use super::{Failure, Progress};
use crate::operation::{CHUNK, Requests};
use crate::storage::Storage;

/// Requests at work at a time: enough to keep a disk busy, and other volumes hardly notice.
const WIDTH: usize = 2;

/// How much space one request gives back, in bytes.
const ERASE: u64 = 16 << 20;

/// Bytes written in one loop iteration, or one request that gives space back: a volume in memory answers on the
/// spot, and the shard has others to serve.
const SHARE: u64 = 8 << 20;

/// Passes over all blocks of a volume. Each is stable before the next begins, and the last before the work is over.
pub struct Overwrite {
    /// What each pass writes into every block. None: there is one pass, after which all reads as zeroes by the
    /// storage's own operation.
    passes: Vec<Vec<u8>>,
    /// The pass, counted from 0, and where its next request starts.
    pass: usize,
    next: u64,
    /// Bytes worked on in all passes.
    done: u64,
    /// Buffers with the data of this pass.
    ready: Vec<Buf>,
    /// Bytes that may still be worked on in this loop iteration.
    share: u64,
    /// What this pass did is being made stable.
    flushes: bool,
}

impl Overwrite {
    /// One pass for each of these blocks, which writes it to every block of the volume. They have the volume's block size.
    pub const fn with(passes: Vec<Vec<u8>>) -> Self {
        let (pass, next, done, share) = (0, 0, 0, SHARE);
        Self { passes, pass, next, done, ready: Vec::new(), share, flushes: false }
    }

    /// Makes all of a volume with these capabilities read as zeroes. Its space is given back where that is enough, and
    /// zeroes are written where the storage has no operation that can be relied on.
    pub fn with_zeroes(caps: &Caps) -> Self {
        let relies = caps.unmap_zeroes || caps.write_zeroes == Support::Native;
        Self::with(if relies { Vec::new() } else { vec![vec![0; caps.block_size as usize]] })
    }

    /// How much of the work on a volume of so many bytes is done, in 65,536ths.
    pub fn progress(&self, bytes: u64) -> u16 {
        let total = u128::from(bytes) * self.passes.len().max(1) as u128;
        let progress = (u128::from(self.done) << 16) / total.max(1);
        progress.min(0xFFFF) as u16
    }

    /// Another loop iteration has begun.
    pub(crate) fn renew(&mut self) {
        self.share = SHARE;
    }

    /// Gives back the memory that no request has.
    pub(super) fn drop_buffers(&mut self) {
        self.ready.clear();
    }

    /// Sends the next requests of a pass. When all are done, makes them stable.
    pub(crate) fn pump<F>(
        &mut self,
        requests: &mut Requests,
        storage: &mut Storage<F>,
    ) -> Progress {
        loop {
            let at_work = requests.in_flight();
            if requests.is_failed() || self.pass == self.passes.len().max(1) {
                return Progress::finished_if(at_work == 0);
            }
            let caps = &storage.volumes[requests.volume].core.caps;
            let (total, cached) = (caps.bytes(), caps.write_cache);
            if self.next >= total {
                if at_work > 0 {
                    return Progress::Waits;
                }
                if cached && !self.flushes {
                    self.flushes = true;
                    storage.submit(requests, Op::Flush, ByteRange::new(0, 0), None);
                    return Progress::Waits;
                }
                (self.pass, self.next, self.flushes) = (self.pass + 1, 0, false);
                self.ready.clear();
                continue;
            }
            if at_work >= WIDTH || storage.in_queue.contains(&requests.id()) {
                return Progress::Waits;
            }
            if self.share == 0 {
                storage.queue(requests.id());
                storage.look_soon();
                return Progress::Waits;
            }
            let Some((op, len, buf)) = self.next_request(requests, storage) else {
                // Its own requests give memory back; without any, it tries again at the next look.
                if at_work == 0 {
                    storage.queue(requests.id());
                }
                return Progress::Waits;
            };
            self.share = self.share.saturating_sub(len.min(SHARE));
            // The volume may have grown while it was flushed.
            self.flushes = false;
            let range = ByteRange::new(self.next, len.min(total - self.next));
            self.next = range.end();
            storage.submit(requests, op, range, buf);
        }
    }

    /// What comes next, for how many bytes at the most. `None` if memory is short.
    fn next_request<F>(
        &mut self,
        requests: &Requests,
        storage: &Storage<F>,
    ) -> Option<(Op, u64, Option<Payload>)> {
        let caps = &storage.volumes[requests.volume].core.caps;
        let Some(block) = self.passes.get(self.pass) else {
            let may_unmap = caps.unmap != Support::None;
            let zeroes = Op::WriteZeroes { may_unmap };
            return Some((if caps.unmap_zeroes { Op::Unmap } else { zeroes }, ERASE, None));
        };
        let buf = self.ready.pop().or_else(|| {
            let arena = storage.ring.arena();
            let mut buf = arena.alloc(CHUNK).or_else(|| arena.alloc(block.len()))?;
            buf.chunks_exact_mut(block.len()).for_each(|part| part.copy_from_slice(block));
            Some(buf)
        })?;
        Some((Op::Write { fua: false }, buf.len() as u64, Some(Payload::Buf(buf))))
    }

    /// A request is done.
    pub(crate) fn done(&mut self, done: Completion<Payload>) -> Result<(), Failure> {
        let Completion { op, range, result, buf, .. } = done;
        if let Some(Payload::Buf(buf)) = buf {
            self.ready.push(buf);
        }
        result.map_err(|error| Failure::Storage { error, op, range })?;
        self.done += range.len;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_that_of_all_passes() {
        let mut overwrite = Overwrite::with(vec![vec![0; 512]; 4]);
        assert_eq!(overwrite.progress(8192), 0);
        overwrite.done = 8192;
        assert_eq!(overwrite.progress(8192), 1 << 14);
        overwrite.done = 4 * 8192;
        assert_eq!(overwrite.progress(8192), u16::MAX);
        let erase = Overwrite { done: 4096, ..Overwrite::with(Vec::new()) };
        assert_eq!(erase.progress(8192), 1 << 15);
    }
}
