//! What no other operation may come between: a comparison with a write, and a write of what the data and the volume
//! make together.
//!
//! All of the data is here before the operation takes its place in the queue for the range, so that it waits for
//! the storage only, never for a client. The memory that it needs is taken at the start: such operations
//! never wait for each other's.

use lunet_block::{ByteRange, Completion, Error, Op};
use lunet_ring::{Buf, Payload};

use super::intake::{Intake, Piece};
use super::{Client, Failure, Progress};
use crate::limit::Cost;
use crate::memory::Budget;
use crate::open::VolumeId;
use crate::operation::{CHUNK, Requests};
use crate::storage::Storage;

/// Pieces that a client is asked for at a time.
const SOLICITED: u32 = 4;

/// An operation that needs no more memory than this gets it whatever its connection holds. In bytes.
const SMALL: usize = 16 << 10;

/// How the data and the volume meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// The first half of the data is compared with the volume; if they are the same, the second half is written.
    CompareAndWrite,
    /// The data and the volume are joined by OR.
    Or,
}

/// An exclusive operation.
pub struct Exclusive {
    merge: Merge,
    range: ByteRange,
    fua: bool,
    pub(crate) intake: Intake,
    /// Memory for the data that has not been asked for.
    reserve: Vec<Buf>,
    /// The data, by offsets.
    pieces: Vec<Piece>,
    /// Bytes of the data that are here.
    arrived: u64,
    step: Step,
}

/// What an exclusive operation does.
enum Step {
    /// Its data is on its way in.
    Collect,
    /// It stands in the queue.
    Queue,
    /// It reads its range: what is compared with, or becomes part of, the data. With the next byte.
    Read(u64),
    /// It writes what is left of the data.
    Write,
}

impl Merge {
    /// Bytes of data for a range.
    const fn total(self, range: ByteRange) -> u64 {
        match self {
            Self::CompareAndWrite => 2 * range.len,
            Self::Or => range.len,
        }
    }
}

impl Exclusive {
    /// An exclusive operation on the volume in a slot, and the data that has come with its command. `None` if there is
    /// no memory for the rest.
    pub fn new<F>(
        storage: &Storage<F>,
        (budget, slot): (Budget<'_>, VolumeId),
        (merge, range, fua): (Merge, ByteRange, bool),
        first: Option<(Buf, usize)>,
    ) -> Option<(Self, Option<Piece>)> {
        let total = merge.total(range);
        let block = storage.volumes[slot].core.caps.block_size as usize;
        let (intake, piece) = Intake::new(total, block, first);
        let here = piece.as_ref().map_or(0, |piece| piece.len as u64);
        let mut needs: Vec<usize> = Vec::new();
        let mut left = (total - here) as usize;
        while left > 0 {
            needs.push(left.min(CHUNK));
            left -= left.min(CHUNK);
        }
        // Taken from the end: what is read needs its buffer last.
        needs.push(CHUNK.min(range.len as usize));
        needs.reverse();
        let small = needs.iter().sum::<usize>() <= SMALL && !storage.is_full(slot);
        let take = |len: usize| {
            let own = || storage.ring.arena().alloc_for(len, budget.account);
            storage.take_buffer(budget, slot, len).or_else(|| if small { own() } else { None })
        };
        let reserve = needs.into_iter().map(take).collect::<Option<Vec<Buf>>>()?;
        let (pieces, arrived, step) = (Vec::new(), 0, Step::Collect);
        Some((Self { merge, range, fua, intake, reserve, pieces, arrived, step }, piece))
    }

    /// Gives back the memory that no request has.
    pub(super) fn drop_buffers(&mut self) {
        self.reserve.clear();
        self.pieces.clear();
    }

    /// Does what it can do now.
    pub(crate) fn pump<F>(
        &mut self,
        requests: &mut Requests,
        storage: &mut Storage<F>,
        client: &mut impl Client,
    ) -> Progress {
        loop {
            if requests.is_failed() {
                return Progress::finished_if(requests.is_idle());
            }
            match &mut self.step {
                Step::Collect if self.arrived < self.intake.total => {
                    self.solicit(requests, storage, client);
                    return Progress::Waits;
                }
                Step::Collect => {
                    // Read, and then written. It pays before it keeps others out.
                    let cost = Cost::of(2 * self.range.len);
                    if !storage.lets(requests, requests.volume, cost) {
                        return Progress::Waits;
                    }
                    requests.spend_all();
                    storage.unreserve(requests);
                    self.step = Step::Queue;
                    if !storage.claim(requests, self.range) {
                        requests.fail(Failure::Crowded);
                    }
                }
                Step::Queue if !storage.has_range(requests) => return Progress::Waits,
                Step::Queue => self.step = Step::Read(0),
                Step::Read(at) if *at == self.range.len => self.step = Step::Write,
                Step::Read(at) => {
                    let Some(buf) = self.reserve.pop() else { return Progress::Waits };
                    let len = (self.range.len - *at).min(buf.len() as u64);
                    let range = ByteRange::new(self.range.offset + *at, len);
                    storage.submit(requests, Op::Read, range, Some(Payload::Buf(buf)));
                    return Progress::Waits;
                }
                Step::Write => return self.write(requests, storage),
            }
        }
    }

    /// Asks for the data, whose memory is reserved.
    fn solicit<F>(
        &mut self,
        requests: &mut Requests,
        storage: &mut Storage<F>,
        client: &mut impl Client,
    ) {
        while requests.soliciting < SOLICITED && !self.intake.all_requested() {
            // The first of the reserve is for reading.
            if self.reserve.len() > 1 {
                self.reserve.pop();
            }
            // What has just been given back is at hand.
            if !self.intake.ask(client, (storage.ring.arena(), usize::MAX), CHUNK) {
                storage.starve(requests);
                return;
            }
            requests.soliciting += 1;
        }
    }

    /// A piece of the data has come.
    pub(crate) fn piece(&mut self, piece: Piece) {
        self.arrived += piece.len as u64;
        let at = self.pieces.partition_point(|other| other.offset < piece.offset);
        self.pieces.insert(at, piece);
    }

    /// Writes as much as may be at work.
    fn write<F>(&mut self, requests: &mut Requests, storage: &mut Storage<F>) -> Progress {
        loop {
            if requests.is_full() {
                return Progress::Waits;
            }
            let Some((range, buf)) = self.next_write() else {
                return Progress::finished_if(requests.in_flight() == 0);
            };
            let op = Op::Write { fua: self.fua };
            storage.submit(requests, op, range, Some(Payload::Buf(buf)));
        }
    }

    /// A request is done.
    pub(crate) fn done(&mut self, done: Completion<Payload>) -> Result<(), Failure> {
        let Completion { op, range, result, buf, .. } = done;
        let failed = |error| Failure::Storage { error, op, range };
        result.map_err(failed)?;
        match (op, buf) {
            (Op::Read, Some(Payload::Buf(buf))) => {
                let (at, len) = (range.offset - self.range.offset, range.len);
                let difference = self.meet(at, &buf[..len as usize]);
                self.reserve.push(buf);
                self.step = Step::Read(at + len);
                difference.map_or(Ok(()), |offset| Err(Failure::Differs { offset }))
            }
            (Op::Read, _) => Err(failed(Error::Unsupported)),
            _ => Ok(()),
        }
    }

    /// What was read at an offset of the range meets the data: the offset of the first difference, where that counts.
    fn meet(&mut self, at: u64, read: &[u8]) -> Option<u64> {
        let end = at + read.len() as u64;
        for piece in &mut self.pieces {
            let (from, to) = (at.max(piece.offset), end.min(piece.offset + piece.len as u64));
            if from >= to {
                continue;
            }
            let read = &read[(from - at) as usize..(to - at) as usize];
            let start = (from - piece.offset) as usize;
            let data = &mut piece.buf[start..start + read.len()];
            match self.merge {
                Merge::Or => data.iter_mut().zip(read).for_each(|(data, read)| *data |= read),
                Merge::CompareAndWrite if *data == *read => {}
                Merge::CompareAndWrite => {
                    let first = data.iter().zip(read).position(|(a, b)| a != b);
                    return first.map(|first| from + first as u64);
                }
            }
        }
        None
    }

    /// The next piece to write, with its place on the volume.
    fn next_write(&mut self) -> Option<(ByteRange, Buf)> {
        let from = self.intake.total - self.range.len;
        while let Some(Piece { offset, len, mut buf }) = self.pieces.pop() {
            let skipped = from.saturating_sub(offset).min(len as u64) as usize;
            if skipped == len {
                continue;
            }
            // A request's data stands at the start of its buffer.
            buf.copy_within(skipped..len, 0);
            let place = self.range.offset + (offset + skipped as u64 - from);
            return Some((ByteRange::new(place, (len - skipped) as u64), buf));
        }
        None
    }
}
