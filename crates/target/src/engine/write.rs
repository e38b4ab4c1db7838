//! Initiator to volume, and operations on the volume without a stream of data.

use lunet_block::{BlockRange, ByteRange, Completion, Op};
use lunet_iscsi::target::{Tag, TransferError};
use lunet_ring::{Arena, Buf, Payload};
use lunet_scsi::{Action, Code, Key, Sanitize, Sense, status};
use lunet_volume::{CHUNK, DEPTH, OperationId};

use super::Engine;
use super::intake::Piece;
use super::task::{Bare, Compare, Data, Fill, Job, Owner, Then};
use crate::conn::Conn;

/// Ready-to-transfers of one command that wait to be filled.
const SOLICITED: u32 = 4;

impl Engine {
    /// A ready-to-transfer was filled.
    pub fn data_arrived(
        &mut self,
        conn: &mut Conn,
        index: OperationId,
        offset: u32,
        len: u32,
        buf: Buf,
    ) {
        let Some(task) = self.exec.operations.get_mut(index) else { return };
        task.soliciting -= 1;
        let piece = match &mut task.command.job {
            Job::Write(job) => job.intake.arrived(offset, len, buf),
            Job::Compare(job) => job.intake.arrived(offset, len, buf),
            Job::Collect(job) => job.intake.arrived(offset, len, buf),
            Job::Exclusive(job) => job.intake.arrived(offset, len, buf),
            _ => return,
        };
        self.take_piece(conn, index, piece);
        self.pump(conn, index);
    }

    /// The data transfer of a command broke: nothing more will come.
    pub fn transfer_failed(&mut self, conn: &mut Conn, index: OperationId, error: TransferError) {
        let Some(task) = self.exec.operations.get_mut(index) else { return };
        task.soliciting = 0;
        let sense = error.sense();
        let (asc, ascq) = (sense[12], sense[13]);
        task.command.fail(Sense::new(Key::AbortedCommand, Code { asc, ascq }));
        self.pump(conn, index);
    }

    /// The tag of a task, if it works at this LUN of its session.
    pub fn tag_at(&self, index: OperationId, lun: u16) -> Option<Tag> {
        let task = self.exec.operations.get(index).filter(|task| task.command.lun == lun)?;
        task.command.owner.map(|owner| owner.tag)
    }

    /// Whole blocks have come: they go where the command wants them.
    pub(super) fn take_piece(&mut self, conn: &mut Conn, index: OperationId, piece: Piece) {
        let task = &mut self.exec.operations[index];
        if task.command.sense.is_some() {
            return;
        }
        match &mut task.command.job {
            Job::Write(job) => {
                let range = ByteRange::new(job.base + piece.offset, piece.len as u64);
                let op = Op::Write { fua: job.fua };
                let seq = task.take_seq();
                self.exec.submit(index, seq, op, range, Some(Payload::Buf(piece.buf)));
            }
            Job::Compare(_) => self.compare_piece(index, piece),
            Job::Collect(_) => self.collected(conn, index, piece.buf, piece.len),
            Job::Exclusive(_) => self.exclusive_piece(index, piece),
            Job::Read(_)
            | Job::Fill(_)
            | Job::Bare(_)
            | Job::Sanitize(_)
            | Job::Settle(_)
            | Job::Away(_)
            | Job::Copy => {}
        }
    }

    /// Asks for more data while there is some to come. True if the command can be answered.
    pub(super) fn pump_write(&mut self, conn: &mut Conn, index: OperationId) -> bool {
        self.solicit(conn, index, SOLICITED);
        let task = &self.exec.operations[index];
        let Job::Write(job) = &task.command.job else { return false };
        task.is_idle() && (task.command.sense.is_some() || job.written == job.intake.total)
    }

    /// A piece is on the volume.
    pub(super) fn write_done(&mut self, index: OperationId, done: Completion<Payload>) {
        let task = &mut self.exec.operations[index];
        let Job::Write(job) = &mut task.command.job else { return };
        match done.result {
            Ok(()) => job.written += done.range.len,
            Err(error) => self.fail(index, error, done.op, done.range),
        }
    }

    /// Sends ready-to-transfers, at most `most` at a time and as memory allows.
    pub(super) fn solicit(&mut self, conn: &mut Conn, index: OperationId, most: u32) {
        loop {
            let task = &self.exec.operations[index];
            let Some(Owner { tag, .. }) = task.command.owner else { return };
            let room =
                task.soliciting < most && task.soliciting as usize + task.in_flight() < DEPTH;
            let (intake, least) = match &task.command.job {
                Job::Write(job) => (&job.intake, CHUNK / 16),
                Job::Compare(job) => (&job.intake, CHUNK / 16),
                Job::Collect(job) => (&job.intake, job.intake.total as usize),
                _ => return,
            };
            if !room || task.command.sense.is_some() || intake.all_requested() {
                return;
            }
            // Parameter lists do not go to the storage.
            let volume = (!matches!(task.command.job, Job::Collect(_))).then_some(task.volume);
            let mut limit = self.exec.room_for(conn.budget(), volume, least);
            let allowance = self.exec.allowance(&conn.account);
            while let Some(size) = limit {
                let task = &mut self.exec.operations[index];
                let asked = task.command.intake().is_some_and(|intake| {
                    intake.solicit(conn, tag, (self.exec.ring.arena(), allowance), size)
                });
                if asked {
                    task.soliciting += 1;
                    break;
                }
                // There may be enough, but in pieces.
                limit = (size / 2 >= Arena::cost(least)).then_some(size / 2);
            }
            if limit.is_none() {
                self.exec.starve(index);
                return;
            }
        }
    }

    /// Fetches the rest of a parameter list or block.
    pub(super) fn pump_collect(&mut self, conn: &mut Conn, index: OperationId) -> bool {
        self.solicit(conn, index, 1);
        let task = &self.exec.operations[index];
        task.is_idle() && task.command.sense.is_some()
    }

    /// A parameter list, or a block to repeat or compare, is complete.
    fn collected(&mut self, conn: &mut Conn, index: OperationId, buf: Buf, len: usize) {
        let task = &self.exec.operations[index];
        let Job::Collect(job) = &task.command.job else { return };
        let job = match job.then {
            Then::Parameters(parameters) => {
                let unit = &self.exec.volumes[task.volume].core.face.unit;
                return match lunet_scsi::parameters(unit, parameters, &buf[..len]) {
                    Action::Unmap(ranges) => self.unmap_collected(index, &ranges),
                    Action::Complete(reply) => self.end(index, reply.sense),
                    Action::Sanitize(what) => self.sanitize_collected(index, what),
                    Action::Modes(modes) => self.set_modes(conn, index, modes),
                    Action::PortGroups(request) => {
                        self.port_groups_collected(conn, index, &request);
                    }
                    Action::Reservation(request) => {
                        self.reservation_collected(conn, index, &request);
                    }
                    Action::Copy(request) => self.copy_collected(conn, index, request),
                    _ => {}
                };
            }
            Then::Pattern(range) => Job::Compare(Compare::with_pattern(range, buf)),
            Then::Fill { range, unmap } if buf[..len].iter().all(|byte| *byte == 0) => {
                let volume = task.volume;
                // A block of zeroes is at hand if there is no memory for more.
                let fill = Fill { range, written: 0, pattern: Some(buf) };
                self.zeroes(conn, volume, range, unmap).unwrap_or(Job::Fill(fill))
            }
            Then::Fill { range, .. } => {
                let volume = task.volume;
                let wanted = CHUNK.min(range.len as usize);
                // Short of memory: slower, block by block.
                let pattern = match self.exec.take_buffer(conn.budget(), volume, wanted) {
                    None => buf,
                    Some(mut pattern) => {
                        for block in pattern.chunks_mut(len) {
                            block.copy_from_slice(&buf[..block.len()]);
                        }
                        pattern
                    }
                };
                Job::Fill(Fill { range, written: 0, pattern: Some(pattern) })
            }
        };
        self.exec.operations[index].command.job = job;
    }

    /// The list of UNMAP has been read.
    fn unmap_collected(&mut self, index: OperationId, ranges: &[BlockRange]) {
        let volume = self.exec.operations[index].volume;
        let core = &self.exec.volumes[volume].core;
        let block = core.caps.block_size;
        let ranges: Vec<ByteRange> = ranges.iter().map(|range| range.bytes(block)).collect();
        if ranges.iter().any(|range| core.fence.blocks(*range)) || self.exec.is_crowded(volume) {
            return self.refuse(index, status::BUSY);
        }
        let task = &mut self.exec.operations[index];
        task.writes = hull(&ranges);
        task.command.job = Job::Bare(Bare { op: Op::Unmap, ranges, next: 0 });
    }

    /// The parameter list of SANITIZE has been read.
    fn sanitize_collected(&mut self, index: OperationId, what: Sanitize) {
        let volume = self.exec.operations[index].volume;
        match self.begin_sanitize(volume, what) {
            Ok(job) => self.exec.operations[index].command.job = job,
            Err(None) => self.refuse(index, status::BUSY),
            Err(sense) => self.end(index, sense),
        }
    }

    /// Nothing is left to do but to answer.
    pub(super) fn end(&mut self, index: OperationId, sense: Option<Sense>) {
        let task = &mut self.exec.operations[index];
        task.command.sense = sense;
        task.command.job = Job::Bare(Bare::nothing());
    }

    /// Writes the pattern once more. True if the command can be answered.
    pub(super) fn pump_fill(&mut self, index: OperationId) -> bool {
        let task = &mut self.exec.operations[index];
        let Job::Fill(job) = &mut task.command.job else { return false };
        if task.command.sense.is_some() || job.written == job.range.len {
            return task.in_flight() == 0;
        }
        let Some(pattern) = job.pattern.take() else { return false };
        let len = (pattern.len() as u64).min(job.range.len - job.written);
        let range = ByteRange::new(job.range.offset + job.written, len);
        let seq = task.take_seq();
        self.exec.submit(index, seq, Op::Write { fua: false }, range, Some(Payload::Buf(pattern)));
        false
    }

    /// The pattern is on the volume once more.
    pub(super) fn fill_done(&mut self, index: OperationId, done: Completion<Payload>) {
        let task = &mut self.exec.operations[index];
        let Job::Fill(job) = &mut task.command.job else { return };
        if let Some(Payload::Buf(buf)) = done.buf {
            job.pattern = Some(buf);
        }
        match done.result {
            Ok(()) => job.written += done.range.len,
            Err(error) => self.fail(index, error, done.op, done.range),
        }
    }

    /// Starts the next requests without data. True if the command can be answered.
    pub(super) fn pump_bare(&mut self, index: OperationId) -> bool {
        loop {
            let task = &mut self.exec.operations[index];
            let (full, at_work) = (task.is_full(), task.in_flight());
            let Job::Bare(job) = &mut task.command.job else { return false };
            if task.command.sense.is_some() || job.next == job.ranges.len() {
                return at_work == 0;
            }
            if full {
                return false;
            }
            let (op, range) = (job.op, job.ranges[job.next]);
            job.next += 1;
            let seq = task.take_seq();
            self.exec.submit(index, seq, op, range, None);
        }
    }

    /// A request without data is done.
    pub(super) fn bare_done(&mut self, index: OperationId, done: Completion<Payload>) {
        if let Err(error) = done.result {
            self.fail(index, error, done.op, done.range);
        }
    }
}

impl Bare {
    /// Nothing: the command is over.
    pub fn nothing() -> Self {
        Self { op: Op::Flush, ranges: Vec::new(), next: 0 }
    }

    /// A flush.
    pub fn flush() -> Self {
        Self { op: Op::Flush, ranges: vec![ByteRange::new(0, 0)], next: 0 }
    }
}

impl Compare {
    /// Every block of a range against one.
    pub fn with_pattern(range: ByteRange, block: Buf) -> Self {
        Self {
            base: range.offset,
            intake: super::intake::Intake::nothing(),
            compared: 0,
            write_first: false,
            compares: true,
            data: Data::Pattern(block),
            total: range.len,
        }
    }
}

/// The smallest range that holds all of these.
pub fn hull(ranges: &[ByteRange]) -> Option<ByteRange> {
    let start = ranges.iter().map(|range| range.offset).min()?;
    let end = ranges.iter().map(|range| range.end()).max()?;
    Some(ByteRange::new(start, end - start))
}
