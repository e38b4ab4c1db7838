//! Volume to volume: by the storage itself, on another thread, as long as it can; else through buffers.

use lunet_os::sync::mpsc::Receiver;

use arrayvec::ArrayVec;
use lunet_block::{ByteRange, Completion, Error, Op, Support};
use lunet_ring::{Buf, Payload};

use super::{Failure, Progress};
use crate::limit::Cost;
use crate::memory::Budget;
use crate::open::VolumeId;
use crate::operation::{CHUNK, DEPTH, Face, Parties, Requests};
use crate::storage::Storage;
use crate::stride::Stride;

/// The most that the storage copies in one go, in bytes: an abort waits for no more.
const STRIDE: u64 = 16 << 20;

/// A copy of one range to another, or of zeroes to a range.
pub struct Copy {
    /// The volumes.
    parties: Parties,
    /// What is read.
    from: ByteRange,
    /// What is written.
    to: ByteRange,
    /// How it is done.
    how: How,
    /// How much has been asked for.
    asked: u64,
    /// Up to here the storage could not copy what is data: it goes through buffers.
    through: u64,
    /// How much has been written, from the start on or from the end back.
    written: u64,
    /// What has been written beyond that: offset and length.
    ahead: ArrayVec<(u64, u64), DEPTH>,
    /// The outcome of the stride that another thread copies.
    away: Option<Receiver<Result<Stride, Error>>>,
    /// Reading the next part is paid for, where the volume that is read has a limit.
    paid: bool,
}

/// How data is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// By the storage itself, as long as it can.
    Storage,
    /// Through buffers, so many requests at a time.
    Buffers(usize),
    /// One after the other, from the end back: the ranges overlap on one volume.
    Backwards,
    /// Nothing is read.
    Zeroes,
}

impl Copy {
    /// A copy between ranges of one length; without a source, of zeroes.
    pub(crate) fn new(
        (source, destination): (Option<VolumeId>, VolumeId),
        (from, to): (ByteRange, ByteRange),
    ) -> Self {
        let overlap = source == Some(destination) && from.overlaps(to);
        let how = match source {
            None => How::Zeroes,
            Some(_) if overlap && to.offset > from.offset => How::Backwards,
            Some(_) if overlap => How::Buffers(1),
            Some(_) => How::Storage,
        };
        let parties = Parties { source: source.unwrap_or(destination), destination };
        let (asked, through, written, ahead) = (0, 0, 0, ArrayVec::new());
        Self { parties, from, to, how, asked, through, written, ahead, away: None, paid: false }
    }

    /// Bytes at the end of the range that are not written. `None` if nothing is written, or if it is written from the
    /// end back.
    pub fn residual(&self) -> Option<u64> {
        let counts = self.written > 0 && self.how != How::Backwards;
        counts.then_some(self.to.len - self.written)
    }

    /// The volumes.
    pub(crate) const fn parties(&self) -> Parties {
        self.parties
    }

    /// True if it asks the storage for more when it is pumped next.
    pub(crate) fn asks_more(&self, requests: &Requests) -> bool {
        let room = requests.in_flight() + self.ahead.len() < self.depth();
        !requests.is_failed() && self.asked < self.to.len && room
    }

    /// Requests that may be at work or wait for their turn to count.
    const fn depth(&self) -> usize {
        match self.how {
            How::Buffers(depth) => depth,
            How::Storage if self.asked < self.through => DEPTH,
            How::Storage | How::Backwards => 1,
            How::Zeroes => DEPTH,
        }
    }

    /// Submits what may be in flight. `budget` pays for the buffers; without one, the volumes do.
    pub(crate) fn pump<F: Face>(
        &mut self,
        requests: &mut Requests,
        storage: &mut Storage<F>,
        budget: Option<Budget<'_>>,
    ) -> Progress {
        loop {
            if requests.is_failed() || self.written == self.to.len {
                return Progress::finished_if(requests.in_flight() == 0);
            }
            if !self.asks_more(requests) {
                return Progress::Waits;
            }
            let on = match self.how {
                How::Storage if self.asked >= self.through => {
                    let len = (self.to.len - self.asked).min(STRIDE);
                    if !self.lets(requests, storage, Cost::of_request(Op::Unmap, len)) {
                        return Progress::Waits;
                    }
                    requests.spend_all();
                    storage.unreserve(requests);
                    self.send_away(requests, storage);
                    true
                }
                How::Storage | How::Buffers(_) | How::Backwards => {
                    self.read_next(requests, storage, budget)
                }
                How::Zeroes => self.zero_next(requests, storage, budget),
            };
            if !on {
                return Progress::Waits;
            }
        }
    }

    /// True if limits allow that the next part is copied, which costs so much on each of the volumes.
    fn lets<F>(&mut self, requests: &mut Requests, storage: &mut Storage<F>, cost: Cost) -> bool {
        let Parties { source, destination } = self.parties;
        if !self.paid && source != destination {
            if !storage.lets(requests, source, cost) {
                return false;
            }
            requests.spend_all();
            storage.unreserve(requests);
            self.paid = true;
        }
        let lets = storage.lets(requests, destination, cost);
        self.paid &= !lets;
        lets
    }

    /// Has the storage copy the next stride on another thread. If too much work waits there, or a range lock is in the
    /// way, the rest goes through buffers.
    fn send_away<F: Face>(&mut self, requests: &mut Requests, storage: &mut Storage<F>) {
        let Parties { source, destination } = self.parties;
        let len = (self.to.len - self.asked).min(STRIDE);
        let from = ByteRange::new(self.from.offset + self.asked, len);
        let to = ByteRange::new(self.to.offset + self.asked, len);
        let reads = storage.volumes[source].core.clone();
        let writes = storage.volumes[destination].core.clone();
        if reads.locks.is_free(from) && writes.locks.is_free(to) {
            // Locks that come now wait for it, as for any request at the storage.
            for (slot, range) in [(source, from), (destination, to)] {
                requests.begin(slot, range);
            }
            let work = move || writes.copy_from(to.offset, &reads, from);
            self.away = storage.send_away(requests, work);
        }
        if self.away.is_none() {
            requests.in_flight.clear();
            // Requests wait for the lock.
            self.how = How::Buffers(DEPTH);
        }
    }

    /// The thread is back: the storage has copied, or cannot. Returns as [`Copy::done`] does.
    pub(crate) fn returned<F>(
        &mut self,
        requests: &mut Requests,
        storage: &mut Storage<F>,
    ) -> Result<Option<u64>, Failure> {
        let destination = self.parties.destination;
        let Some(Ok(found)) = self.away.take().map(|away| away.try_recv()) else { return Ok(None) };
        match found {
            Ok(Stride::Copied(len)) => {
                let offset = self.ask(len);
                storage.volumes[destination].written = true;
                return Ok(Some(self.wrote(storage, offset, len)));
            }
            Ok(Stride::Hole(len)) if !requests.is_failed() => {
                let range = ByteRange::new(self.to.offset + self.ask(len), len);
                let op = Op::WriteZeroes { may_unmap: true };
                storage.submit_to(destination, requests, op, range, None);
            }
            Ok(Stride::Hole(_)) => {}
            Ok(Stride::Data(len)) => self.through = self.asked + len,
            Ok(Stride::Blind) => self.how = How::Buffers(DEPTH),
            Err(error) => {
                // It is not known where in the stride.
                let range = ByteRange::new(self.to.offset + self.asked, 0);
                return Err(Failure::Storage { error, op: Op::Write { fua: false }, range });
            }
        }
        Ok(None)
    }

    /// A buffer for the next part, charged to the volume in a slot as well. `None` if memory is short: the copy goes on
    /// when its own requests, or others, give some back.
    fn take_buffer<F>(
        requests: &mut Requests,
        storage: &mut Storage<F>,
        (budget, slot): (Option<Budget<'_>>, VolumeId),
        len: u64,
    ) -> Option<Buf> {
        let own = storage.volumes[slot].account.clone();
        let budget = budget.unwrap_or(Budget { account: &own, reserve: None });
        let taken = storage.take_some(budget, slot, len.min(CHUNK as u64) as usize);
        if taken.is_none() && requests.in_flight() == 0 {
            storage.starve(requests);
        }
        taken
    }

    /// Reads the next chunk. False if there is no memory for it.
    fn read_next<F>(
        &mut self,
        requests: &mut Requests,
        storage: &mut Storage<F>,
        budget: Option<Budget<'_>>,
    ) -> bool {
        let end = if self.how == How::Storage { self.through } else { self.to.len };
        let (source, left) = (self.parties.source, end - self.asked);
        if !self.lets(requests, storage, Cost::of(left.min(CHUNK as u64))) {
            return false;
        }
        let taken = Self::take_buffer(requests, storage, (budget, source), left);
        let Some(buf) = taken else { return false };
        let len = buf.len() as u64;
        let range = ByteRange::new(self.from.offset + self.ask(len), len);
        storage.submit_to(source, requests, Op::Read, range, Some(Payload::Buf(buf)));
        requests.spend_all();
        true
    }

    /// Makes the next part read as zeroes. False if there is no memory for it.
    fn zero_next<F>(
        &mut self,
        requests: &mut Requests,
        storage: &mut Storage<F>,
        budget: Option<Budget<'_>>,
    ) -> bool {
        let (destination, left) = (self.parties.destination, self.to.len - self.asked);
        let native = storage.volumes[destination].core.caps.write_zeroes == Support::Native;
        let cost = match native {
            true => Cost::of_request(Op::WriteZeroes { may_unmap: true }, left.min(STRIDE)),
            false => Cost::of(left.min(CHUNK as u64)),
        };
        if !storage.lets(requests, destination, cost) {
            return false;
        }
        let (op, len, buf) = if native {
            (Op::WriteZeroes { may_unmap: true }, left.min(STRIDE), None)
        } else {
            let taken = Self::take_buffer(requests, storage, (budget, destination), left);
            let Some(mut buf) = taken else { return false };
            buf.fill(0);
            (Op::Write { fua: false }, buf.len() as u64, Some(Payload::Buf(buf)))
        };
        let range = ByteRange::new(self.to.offset + self.ask(len), len);
        storage.submit_to(destination, requests, op, range, buf);
        requests.spend_all();
        true
    }

    /// A chunk has been read or written. If it was written, returns how many more bytes are written without a gap.
    pub(crate) fn done<F>(
        &mut self,
        requests: &mut Requests,
        storage: &mut Storage<F>,
        done: Completion<Payload>,
    ) -> Result<Option<u64>, Failure> {
        let Completion { op, range, result, buf, .. } = done;
        result.map_err(|error| Failure::Storage { error, op, range })?;
        if op != Op::Read {
            return Ok(Some(self.wrote(storage, range.offset - self.to.offset, range.len)));
        }
        if !requests.is_failed() {
            let offset = range.offset - self.from.offset;
            let to = ByteRange::new(self.to.offset + offset, range.len);
            let op = Op::Write { fua: false };
            storage.submit_to(self.parties.destination, requests, op, to, buf);
        }
        Ok(None)
    }

    /// Takes the next `len` bytes. Returns their offset in the range.
    fn ask(&mut self, len: u64) -> u64 {
        let offset = match self.how {
            How::Backwards => self.to.len - self.asked - len,
            _ => self.asked,
        };
        self.asked += len;
        offset
    }

    /// `len` bytes from an offset on are written. Returns how many more bytes are written without a gap.
    fn wrote<F>(&mut self, storage: &mut Storage<F>, offset: u64, len: u64) -> u64 {
        storage.volumes[self.parties.destination].count.copied(len);
        self.count(offset, len)
    }

    fn count(&mut self, offset: u64, len: u64) -> u64 {
        let before = self.written;
        if self.how == How::Backwards {
            self.written += len;
            return len;
        }
        // There is room: each of them was at work before.
        self.ahead.push((offset, len));
        while let Some(at) = self.ahead.iter().position(|(offset, _)| *offset == self.written) {
            self.written += self.ahead.swap_remove(at).1;
        }
        self.written - before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(source: usize, from: u64, to: u64) -> Copy {
        let ranges = (ByteRange::new(from, 8192), ByteRange::new(to, 8192));
        Copy::new((Some(VolumeId::new(source)), VolumeId::new(1)), ranges)
    }

    #[test]
    fn overlapping_ranges_are_copied_from_the_side_that_is_safe() {
        assert_eq!(copy(0, 0, 4096).how, How::Storage);
        assert_eq!(copy(1, 0, 8192).how, How::Storage);
        assert_eq!(copy(1, 4096, 0).how, How::Buffers(1));
        let mut backwards = copy(1, 0, 4096);
        assert_eq!(backwards.how, How::Backwards);
        assert_eq!((backwards.ask(512), backwards.ask(512)), (7680, 7168));
    }

    #[test]
    fn only_what_is_written_in_order_counts() {
        let mut copy = copy(0, 0, 0);
        copy.how = How::Buffers(DEPTH);
        assert_eq!((copy.ask(1024), copy.ask(1024), copy.ask(512)), (0, 1024, 2048));
        assert_eq!((copy.count(2048, 512), copy.count(1024, 1024)), (0, 0));
        assert_eq!((copy.ahead.len(), copy.residual()), (2, None));
        assert_eq!((copy.count(0, 1024), copy.written, copy.ahead.len()), (2560, 2560, 0));
        assert_eq!(copy.residual(), Some(8192 - 2560));
    }
}
