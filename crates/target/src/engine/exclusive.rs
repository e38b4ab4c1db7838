//! Commands that no other may come between: COMPARE AND WRITE, ORWRITE.
//!
//! All of their data is here before they take their place in the line for the range, so that they wait for
//! the storage only, never for an initiator. The memory that they need is taken at the start: they
//! never wait for each other's.

use lunet_block::{ByteRange, Completion, Error, Op};
use lunet_ring::{Buf, Payload};
use lunet_scsi::{Exclusive as What, Sense, status};
use lunet_volume::{CHUNK, OperationId};

use super::Engine;
use super::intake::{Intake, Piece};
use super::task::{Job, Owner};
use crate::conn::Conn;

/// Ready-to-transfers of one command that wait to be filled.
const SOLICITED: u32 = 4;

/// A command that needs no more memory than this gets it whatever its connection holds.
const SMALL: usize = 16 << 10;

/// State of [`Job::Exclusive`].
pub struct Exclusive {
    what: What,
    range: ByteRange,
    fua: bool,
    pub intake: Intake,
    /// Memory for the data that has not been asked for.
    reserve: Vec<Buf>,
    /// The data, by offsets.
    pieces: Vec<Piece>,
    /// Bytes of the data that are here.
    arrived: u64,
    step: Step,
}

/// What an exclusive command does.
enum Step {
    /// Its data is on its way in.
    Collect,
    /// It stands in line.
    Line,
    /// It reads its range: what is compared with, or becomes part of, the data. With the next byte.
    Read(u64),
    /// It writes what is left of the data.
    Write,
}

impl Exclusive {
    /// Bytes of Data-Out.
    const fn total(what: What, range: ByteRange) -> u64 {
        match what {
            What::CompareAndWrite => 2 * range.len,
            What::OrWrite => range.len,
        }
    }

    /// Where in the Data-Out the bytes start that are written.
    const fn written_from(&self) -> u64 {
        match self.what {
            What::CompareAndWrite => self.range.len,
            What::OrWrite => 0,
        }
    }

    /// Gives back the memory that no request has.
    pub fn drop_buffers(&mut self) {
        self.reserve.clear();
        self.pieces.clear();
    }

    fn add(&mut self, piece: Piece) {
        self.arrived += piece.len as u64;
        let at = self.pieces.partition_point(|other| other.offset < piece.offset);
        self.pieces.insert(at, piece);
    }

    /// What was read at an offset of the range meets the data: the offset of the first difference, for
    /// COMPARE AND WRITE.
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
            match self.what {
                What::OrWrite => data.iter_mut().zip(read).for_each(|(data, read)| *data |= read),
                What::CompareAndWrite if *data == *read => {}
                What::CompareAndWrite => {
                    let first = data.iter().zip(read).position(|(a, b)| a != b);
                    return first.map(|first| from + first as u64);
                }
            }
        }
        None
    }

    /// The next piece to write, with its place on the volume.
    fn next_write(&mut self) -> Option<(ByteRange, Buf)> {
        let from = self.written_from();
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

impl Engine {
    /// The job of an exclusive command, and its unsolicited data. `None` if there is no memory for the rest.
    pub(super) fn plan_exclusive(
        &self,
        (conn, slot): (&Conn, usize),
        (what, range, fua): (What, ByteRange, bool),
        block: u32,
        first: Option<(Buf, usize)>,
    ) -> Option<(Job, Option<Piece>)> {
        let total = Exclusive::total(what, range);
        let (intake, piece) = Intake::new(total, block as usize, first);
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
        let small = needs.iter().sum::<usize>() <= SMALL && !self.exec.is_full(slot);
        let take = |len: usize| {
            let own = || self.exec.ring.arena().alloc_for(len, &conn.account);
            self.exec
                .take_buffer(conn.budget(), slot, len)
                .or_else(|| if small { own() } else { None })
        };
        let reserve = needs.into_iter().map(take).collect::<Option<Vec<Buf>>>()?;
        let (pieces, arrived, step) = (Vec::new(), 0, Step::Collect);
        let job = Exclusive { what, range, fua, intake, reserve, pieces, arrived, step };
        Some((Job::Exclusive(Box::new(job)), piece))
    }

    /// Lets an exclusive command do what it can do now. True if it can be answered.
    pub(super) fn pump_exclusive(&mut self, conn: &mut Conn, index: OperationId) -> bool {
        loop {
            let task = &mut self.exec.operations[index];
            let Job::Exclusive(job) = &mut task.command.job else { return false };
            if task.command.sense.is_some() {
                return task.is_idle();
            }
            match &mut job.step {
                Step::Collect if job.arrived < job.intake.total => {
                    self.solicit_exclusive(conn, index);
                    return false;
                }
                Step::Collect => {
                    job.step = Step::Line;
                    let range = job.range;
                    if !self.exec.claim(index, range) {
                        self.refuse(index, status::BUSY);
                        return true;
                    }
                }
                Step::Line => {
                    if !self.exec.has_range(index) {
                        return false;
                    }
                    let Job::Exclusive(job) = &mut self.exec.operations[index].command.job else {
                        return false;
                    };
                    job.step = Step::Read(0);
                }
                Step::Read(at) if *at == job.range.len => job.step = Step::Write,
                Step::Read(at) => {
                    let at = *at;
                    let (range, Some(buf)) = (job.range, job.reserve.pop()) else {
                        return false;
                    };
                    let len = (range.len - at).min(buf.len() as u64);
                    let range = ByteRange::new(range.offset + at, len);
                    let seq = task.take_seq();
                    self.exec.submit(index, seq, Op::Read, range, Some(Payload::Buf(buf)));
                    return false;
                }
                Step::Write => return self.write_exclusive(index),
            }
        }
    }

    /// Sends ready-to-transfers for the data, whose memory is reserved.
    fn solicit_exclusive(&mut self, conn: &mut Conn, index: OperationId) {
        let task = &mut self.exec.operations[index];
        let Some(Owner { tag, .. }) = task.command.owner else { return };
        let Job::Exclusive(job) = &mut task.command.job else { return };
        while task.soliciting < SOLICITED && !job.intake.all_requested() {
            // The first of the reserve is for reading.
            if job.reserve.len() > 1 {
                job.reserve.pop();
            }
            // What has just been given back is at hand.
            if !job.intake.solicit(conn, tag, (self.exec.ring.arena(), usize::MAX), CHUNK) {
                self.exec.starve(index);
                return;
            }
            task.soliciting += 1;
        }
    }

    /// Data of an exclusive command has come.
    pub(super) fn exclusive_piece(&mut self, index: OperationId, piece: Piece) {
        if let Job::Exclusive(job) = &mut self.exec.operations[index].command.job {
            job.add(piece);
        }
    }

    /// Writes as much as may be at work. True if all has been written.
    fn write_exclusive(&mut self, index: OperationId) -> bool {
        loop {
            let task = &mut self.exec.operations[index];
            if task.is_full() {
                return false;
            }
            let Job::Exclusive(job) = &mut task.command.job else { return false };
            let Some((range, buf)) = job.next_write() else { return task.in_flight() == 0 };
            let op = Op::Write { fua: job.fua };
            let seq = task.take_seq();
            self.exec.submit(index, seq, op, range, Some(Payload::Buf(buf)));
        }
    }

    /// A request of an exclusive command is done.
    pub(super) fn exclusive_done(&mut self, index: OperationId, done: Completion<Payload>) {
        let task = &mut self.exec.operations[index];
        let Job::Exclusive(job) = &mut task.command.job else { return };
        match (done.result, done.op, done.buf) {
            (Ok(()), Op::Read, Some(Payload::Buf(buf))) => {
                let (at, len) = (done.range.offset - job.range.offset, done.range.len);
                let difference = job.meet(at, &buf[..len as usize]);
                job.reserve.push(buf);
                job.step = Step::Read(at + len);
                if let Some(offset) = difference {
                    task.command.fail(Sense::miscompare(offset));
                }
            }
            (Ok(()), Op::Read, _) => self.fail(index, Error::Unsupported, done.op, done.range),
            (Ok(()), ..) => {}
            (Err(error), op, _) => self.fail(index, error, op, done.range),
        }
    }
}
