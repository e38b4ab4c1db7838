//! How a request on a file or a device becomes kernel operations: pure state, no I/O of its own.
//!
//! A request is one *flight*: a step that runs in the kernel, what it has moved so far, and the
//! request itself, which is answered when the last step ends. All that the kernel may do halfway
//! (a short read, an interruption, an operation that the file system does not have) is settled
//! here, so a request has one answer whatever happened below.

use std::ops::Range;

use lunet_block::{Completion, Error, IoDone, Op, Request, Submit};
use rustix::io::Errno;
use slab::Slab;

/// Requests in flight on one channel at most. Beyond it, `Submit::Busy`.
pub(crate) const CAPACITY: usize = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 10;

/// `fallocate` holds the file's lock in the kernel and may write where the device cannot zero by
/// itself, so a big range goes in pieces: others get their turn, and a cancellation its chance.
const ZEROING_STEP: u64 = 256 << 20;

/// Zeroes that are written at once where the storage cannot zero a range by itself.
pub(crate) const ZEROES: usize = 256 << 10;

const IO_ERROR: Error = Error::Io(Errno::IO.raw_os_error());

/// The kernel operations that a flight is made of. Each ends in [`Machine::advance`] with its
/// slot. `P` is a buffer.
pub(crate) trait DiskQueue<P> {
    /// True if the operations below can take this buffer, for `len` bytes.
    fn takes(&self, buf: &P, len: u64) -> bool;
    /// Reads from `at` on into the first `len` bytes of the buffer.
    fn read(&mut self, slot: u32, at: u64, buf: P, len: usize);
    /// Writes a range of the buffer from `at` on.
    fn write(&mut self, slot: u32, at: u64, buf: P, range: Range<usize>);
    /// fdatasync.
    fn sync_data(&mut self, slot: u32);
    /// fallocate, FALLOC_FL_PUNCH_HOLE.
    fn punch_hole(&mut self, slot: u32, at: u64, len: u64);
    /// fallocate, FALLOC_FL_ZERO_RANGE.
    fn zero_range(&mut self, slot: u32, at: u64, len: u64);
    /// BLKDISCARD.
    fn discard(&mut self, slot: u32, at: u64, len: u64);
    /// Gives up the operation if it has not started. It ends in any case.
    fn cancel(&mut self, slot: u32);
    /// A buffer of [`ZEROES`] zeroes, if there is memory for one.
    fn zeroes(&mut self) -> Option<P>;
}

/// What the storage can do, found out when it was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abilities {
    /// Capacity in bytes.
    pub size: u64,
    pub read_only: bool,
    /// A write is stable only after fdatasync.
    pub write_cache: bool,
    /// `punch_hole` works.
    pub punch_hole: bool,
    /// `zero_range` works.
    pub zero_range: bool,
    /// `discard` works, and `punch_hole` does not.
    pub discard: Option<Discard>,
}

/// How a device discards. All in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Discard {
    /// The unit that it gives back.
    pub granularity: u64,
    /// Where the first whole unit starts: a partition may start in the middle of one.
    pub first: u64,
    /// Whole units read as zeroes afterwards; the device leaves parts of units as they are.
    pub zeroes: bool,
    /// The device has not refused it yet.
    pub works: bool,
}

impl Discard {
    /// Whether it does what is asked for.
    const fn serves(self, op: Op) -> bool {
        match op {
            Op::Unmap => self.works,
            Op::WriteZeroes { may_unmap } => may_unmap && self.zeroes && self.works,
            Op::Read | Op::ReadMapped | Op::Write { .. } | Op::Flush => false,
        }
    }

    /// What to do with the first of `left` bytes at `at`: discard so many, or zero so many.
    fn next(self, at: u64, left: u64) -> (Step, u64) {
        let step = left.min(ZEROING_STEP);
        if !self.zeroes {
            return (Step::Discard, step);
        }
        let unit = self.granularity;
        // How far `at` lies behind a boundary; `first` is less than a unit.
        let beside = (at + unit - self.first) % unit;
        match step / unit * unit {
            _ if beside > 0 => (Step::ZeroRange, step.min(unit - beside)),
            0 => (Step::ZeroRange, step),
            whole => (Step::Discard, whole),
        }
    }
}

/// What a flight does in the kernel at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Read,
    Write,
    Sync,
    PunchHole,
    ZeroRange,
    WriteZeroes,
    Discard,
}

struct Flight<P> {
    slot: u32,
    request: Request<P>,
    step: Step,
    /// Bytes of the range that are done.
    moved: u64,
    /// The piece that runs now.
    piece: u64,
    cancelled: bool,
}

/// All flights of one channel.
pub(crate) struct Machine<P> {
    able: Abilities,
    flights: Slab<Flight<P>>,
    /// Makes slots unique in time: a late cancellation must not meet the next user of a slot.
    turn: u32,
    /// Lent to the flight that writes zeroes.
    zeroes: Option<P>,
    /// Flights that write zeroes. More than one only if several find out at the same time that
    /// they must.
    zeroing: usize,
}

impl<P> Machine<P> {
    pub fn new(able: Abilities) -> Self {
        Self { able, flights: Slab::new(), turn: 0, zeroes: None, zeroing: 0 }
    }

    /// Takes the zeroes that are written where `able.zero_range` is false. Without them they are
    /// asked for at the first use, and the request fails if there is no memory.
    pub fn keep_zeroes(&mut self, zeroes: P) {
        self.zeroes = Some(zeroes);
    }

    /// As [`lunet_block::Channel::submit`].
    pub fn submit(&mut self, request: Request<P>, io: &mut impl DiskQueue<P>) -> Submit<P> {
        if let Some(result) = self.refuse(&request, io) {
            return Submit::Done(request.complete(result));
        }
        let step = self.first_step(request.op);
        if self.flights.len() == CAPACITY || (step == Step::WriteZeroes && self.zeroing > 0) {
            return Submit::Busy(request);
        }
        self.turn = self.turn.wrapping_add(1);
        let entry = self.flights.vacant_entry();
        let index = entry.key();
        // The index is below CAPACITY, so it fits into its bits. The top bit is for layers.
        let slot = ((self.turn << INDEX_BITS) | index as u32) & (u32::MAX >> 1);
        entry.insert(Flight { slot, request, step, moved: 0, piece: 0, cancelled: false });
        match self.launch(index, io) {
            Ok(()) => Submit::Queued,
            Err(error) => Submit::Done(self.flights.remove(index).request.complete(Err(error))),
        }
    }

    /// As [`lunet_block::Channel::advance`].
    pub fn advance(
        &mut self,
        done: IoDone<P>,
        io: &mut impl DiskQueue<P>,
    ) -> Option<Completion<P>> {
        let index = done.slot as usize % CAPACITY;
        let flight = self.flights.get_mut(index).filter(|f| f.slot == done.slot)?;
        if flight.step == Step::WriteZeroes {
            self.zeroes = done.buf;
            self.zeroing -= 1;
        } else if done.buf.is_some() {
            flight.request.buf = done.buf;
        }
        let next = match done.result {
            Ok(n) => flight.settle(n as u64, &self.able),
            Err(errno) => self.settle_failure(index, errno),
        };
        let result = match next {
            Next::Finished(result) => result,
            Next::Launch => match self.launch(index, io) {
                Ok(()) => return None,
                Err(error) => Err(error),
            },
        };
        Some(self.flights.remove(index).request.complete(result))
    }

    /// As [`lunet_block::Channel::cancel`].
    pub fn cancel(&mut self, tag: u64, io: &mut impl DiskQueue<P>) {
        let found = self.flights.iter_mut().find(|(_, f)| f.request.tag == tag);
        if let Some((_, flight)) = found {
            flight.cancelled = true;
            io.cancel(flight.slot);
        }
    }

    /// The answer to a request that needs or gets no flight.
    fn refuse(&self, request: &Request<P>, io: &impl DiskQueue<P>) -> Option<Result<(), Error>> {
        if request.op.changes() && self.able.read_only {
            return Some(Err(Error::ReadOnly));
        }
        if request.op == Op::Flush {
            // Nothing was ever written through a read-only volume.
            return self.able.read_only.then_some(Ok(()));
        }
        let range = request.range;
        if range.offset.checked_add(range.len).is_none_or(|end| end > self.able.size) {
            return Some(Err(Error::OutOfRange));
        }
        let given_up = self.able.discard.is_some_and(|d| !d.works && !d.zeroes);
        if range.len == 0 || (request.op == Op::Unmap && given_up) {
            return Some(Ok(()));
        }
        let moves_data = matches!(request.op, Op::Read | Op::Write { .. });
        let usable = !moves_data || request.buf.as_ref().is_some_and(|b| io.takes(b, range.len));
        (request.op == Op::ReadMapped || !usable).then_some(Err(Error::Unsupported))
    }

    fn first_step(&self, op: Op) -> Step {
        match op {
            Op::Read | Op::ReadMapped => Step::Read,
            Op::Write { .. } => Step::Write,
            Op::Flush => Step::Sync,
            Op::Unmap | Op::WriteZeroes { may_unmap: true } if self.able.punch_hole => {
                Step::PunchHole
            }
            Op::Unmap | Op::WriteZeroes { .. } => self.zeroing_step(),
        }
    }

    fn zeroing_step(&self) -> Step {
        if self.able.zero_range { Step::ZeroRange } else { Step::WriteZeroes }
    }

    /// Queues the flight's step for what is left of its range.
    fn launch(&mut self, index: usize, io: &mut impl DiskQueue<P>) -> Result<(), Error> {
        let flight = &mut self.flights[index];
        if flight.cancelled {
            return Err(flight.given_up());
        }
        let (slot, range) = (flight.slot, flight.request.range);
        let (at, left) = (range.offset + flight.moved, range.len - flight.moved);
        flight.piece = left.min(ZEROING_STEP);
        if let Some(discard) = self.able.discard.filter(|d| d.serves(flight.request.op)) {
            (flight.step, flight.piece) = discard.next(at, left);
            if flight.step == Step::ZeroRange && !self.able.zero_range {
                flight.step = Step::WriteZeroes;
            }
        }
        let taken = |buf: &mut Option<P>| buf.take().ok_or(IO_ERROR);
        match flight.step {
            Step::Read => {
                io.read(slot, range.offset, taken(&mut flight.request.buf)?, range.len as usize);
            }
            Step::Write => {
                let rest = flight.moved as usize..range.len as usize;
                io.write(slot, at, taken(&mut flight.request.buf)?, rest);
            }
            Step::Sync => io.sync_data(slot),
            Step::PunchHole => io.punch_hole(slot, at, flight.piece),
            Step::ZeroRange => io.zero_range(slot, at, flight.piece),
            Step::Discard => io.discard(slot, at, flight.piece),
            Step::WriteZeroes => {
                let zeroes = self.zeroes.take().or_else(|| io.zeroes());
                let buf = zeroes.ok_or(Error::Io(Errno::NOMEM.raw_os_error()))?;
                self.zeroing += 1;
                io.write(slot, at, buf, 0..flight.piece.min(ZEROES as u64) as usize);
            }
        }
        Ok(())
    }

    /// What follows when the kernel has refused a step.
    fn settle_failure(&mut self, index: usize, errno: i32) -> Next {
        let flight = &mut self.flights[index];
        match (Errno::from_raw_os_error(errno), flight.step) {
            (Errno::INTR, _) => Next::Launch,
            (Errno::CANCELED, _) => Next::Finished(Err(flight.given_up())),
            // The storage has not kept what it promised when it was opened (or a layer below was
            // exchanged): from now on the next way is taken.
            (Errno::OPNOTSUPP | Errno::NOSYS, Step::PunchHole) => {
                self.able.punch_hole = false;
                self.flights[index].step = self.zeroing_step();
                Next::Launch
            }
            (Errno::OPNOTSUPP | Errno::NOSYS, Step::Discard) => {
                let discard = self.able.discard.as_mut();
                let zeroes = discard.is_some_and(|discard| {
                    discard.works = false;
                    discard.zeroes
                });
                if !zeroes {
                    // Nothing was promised but an attempt.
                    return Next::Finished(Ok(()));
                }
                self.flights[index].step = self.zeroing_step();
                Next::Launch
            }
            (Errno::OPNOTSUPP | Errno::NOSYS, Step::ZeroRange) => {
                self.able.zero_range = false;
                flight.step = Step::WriteZeroes;
                Next::Launch
            }
            // The kernel tells this once, and what is lost may be anybody's.
            (_, Step::Sync) => Next::Finished(Err(Error::NotStable(errno))),
            _ => Next::Finished(Err(Error::from_errno(errno))),
        }
    }
}

enum Next {
    Launch,
    Finished(Result<(), Error>),
}

impl<P> Flight<P> {
    /// What follows when the kernel has done a step, and moved `n` bytes.
    fn settle(&mut self, n: u64, able: &Abilities) -> Next {
        match self.step {
            Step::Sync => return Next::Finished(Ok(())),
            Step::PunchHole | Step::ZeroRange | Step::Discard => self.moved += self.piece,
            // No progress. For a read it is the end of the file, where the volume has blocks:
            // someone has cut it off.
            Step::Read if n <= self.moved => return Next::Finished(Err(IO_ERROR)),
            Step::Write | Step::WriteZeroes if n == 0 => return Next::Finished(Err(IO_ERROR)),
            // A short read is rare and done again from the start.
            Step::Read => self.moved = n,
            Step::Write | Step::WriteZeroes => self.moved += n,
        }
        if self.moved < self.request.range.len {
            return Next::Launch;
        }
        if able.write_cache && self.request.op == (Op::Write { fua: true }) {
            self.step = Step::Sync;
            return Next::Launch;
        }
        Next::Finished(Ok(()))
    }

    /// The answer to a cancelled request: `Cancelled` promises that it took no effect.
    fn given_up(&self) -> Error {
        let changed = self.moved > 0 && self.step != Step::Read;
        if changed { Error::Io(Errno::CANCELED.raw_os_error()) } else { Error::Cancelled }
    }
}

#[cfg(test)]
mod tests;
