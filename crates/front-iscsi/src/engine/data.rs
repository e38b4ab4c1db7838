//! Data between initiators and operations: Data-In, R2T and what comes of it.

use lunet_block::{BlockRange, ByteRange, Op};
use lunet_iscsi::target::{Tag, TransferError};
use lunet_ring::{Buf, Payload};
use lunet_scsi::{Action, Code, Key, Sanitize, Sense, Transfer, status};
use lunet_volume::{
    BACKLOG_HIGH, Budget, Client, Compare, OperationId, Piece, Plain, Sink, Source, Step, Timed,
    Work,
};

use super::Engine;
use super::answer::wanted;
use super::task::{Job, Then, fail};
use crate::connection::{Conn, Data, Pdus};

/// The command of an initiator, on its connection.
pub struct Initiator<'a> {
    pub conn: &'a mut Conn,
    pub tag: Tag,
    pub transfer: Transfer,
}

impl Sink for Initiator<'_> {
    fn is_behind(&mut self, operation: OperationId) -> bool {
        let behind = self.conn.backlog() >= BACKLOG_HIGH;
        self.conn.blocked.extend(behind.then_some(operation));
        behind
    }

    fn send(&mut self, payload: Payload, len: usize, last: bool) {
        let status = last.then(|| wanted(self.transfer));
        let Conn { front, out, .. } = &mut *self.conn;
        front.proto.send_data(self.tag, Data(payload), 0..len, status, &mut Pdus(out));
    }
}

impl Source for Initiator<'_> {
    fn ask(&mut self, offset: u64, len: usize, buf: Buf) {
        let Conn { front, out, .. } = &mut *self.conn;
        // No command is longer than 4 GiB.
        front.proto.solicit(self.tag, offset as u32, len as u32, buf, &mut Pdus(out));
    }
}

impl Client for Initiator<'_> {
    fn budget(&self) -> Budget<'_> {
        self.conn.budget()
    }

    fn timed(&mut self, timed: Timed) {
        self.conn.out.timed.get_or_insert(timed);
    }
}

impl Engine {
    /// A ready-to-transfer was filled.
    pub fn data_arrived(
        &mut self,
        conn: &mut Conn,
        id: OperationId,
        (offset, len): (u32, u32),
        buf: Buf,
    ) {
        if self.exec.operations.get(id).is_none() {
            return;
        }
        if self.relayed_data(conn, id, &buf[..len as usize]) {
            return;
        }
        let step = self.exec.data_arrived(id, u64::from(offset), len as usize, buf);
        self.take_step(conn, id, step);
        self.pump(conn, id);
    }

    /// Whole blocks have come with a command.
    pub(super) fn take_piece(&mut self, conn: &mut Conn, id: OperationId, piece: Piece) {
        let step = self.exec.take_piece(id, piece);
        self.take_step(conn, id, step);
    }

    pub(super) fn take_step(&mut self, conn: &mut Conn, id: OperationId, step: Step) {
        match step {
            Step::Done => {}
            Step::Collected(buf, len) => self.collected(conn, id, buf, len),
            Step::Copied(bytes) => self.copied(id, bytes),
        }
    }

    /// The data transfer of a command broke: nothing more will come.
    pub fn transfer_failed(&mut self, conn: &mut Conn, id: OperationId, error: TransferError) {
        let sense = error.sense();
        let (asc, ascq) = (sense[12], sense[13]);
        if self.exec.operations.get(id).is_none()
            || self.relayed_broke(conn, id, Code { asc, ascq })
        {
            return;
        }
        let task = &mut self.exec.operations[id];
        task.requests.expect_nothing();
        fail(task, Sense::new(Key::AbortedCommand, Code { asc, ascq }));
        self.pump(conn, id);
    }

    /// The tag of a task, if it works at this LUN of its session.
    pub fn tag_at(&self, id: OperationId, lun: u16) -> Option<Tag> {
        self.exec.operations.get(id).filter(|task| task.command.lun == lun)?;
        self.tag_of(id)
    }

    /// The tag of a task whose command waits for its answer.
    pub fn tag_of(&self, id: OperationId) -> Option<Tag> {
        self.exec.operations.get(id)?.command.owner.map(|owner| owner.tag)
    }

    /// A parameter list, or a block to repeat or compare, is complete.
    fn collected(&mut self, conn: &mut Conn, id: OperationId, buf: Buf, len: usize) {
        let task = &self.exec.operations[id];
        let Job::Collect(then) = &task.command.job else { return };
        let (then, volume) = (*then, task.requests.volume);
        let work = match then {
            Then::Parameters(parameters) => {
                let unit = &self.exec.storage.volumes[volume].core.face.unit;
                return match lunet_scsi::parameters(unit, parameters, &buf[..len]) {
                    Action::Unmap(ranges) => self.unmap_collected(id, &ranges),
                    Action::Complete(reply) => self.end(id, reply.sense),
                    Action::Sanitize(what) => self.sanitize_collected(id, what),
                    Action::Modes(modes) => self.set_modes(conn, id, modes),
                    Action::PortGroups(request) => {
                        self.port_groups_collected(conn, id, &request);
                    }
                    Action::Reservation(request) => {
                        let asks = (parameters.kind, &buf[..len]);
                        if self.hand_over_change(conn, id, asks) {
                            return;
                        }
                        self.reservation_collected(conn, id, &request);
                    }
                    Action::Copy(request) => self.copy_collected(conn, id, request),
                    _ => {}
                };
            }
            Then::Pattern(range) => Work::Compare(Compare::with_pattern(range, buf)),
            Then::Fill { range, unmap } => {
                Work::fill(&self.exec.storage, (conn.budget(), volume), range, (buf, len), unmap)
            }
        };
        self.set_work(id, work);
    }

    /// A command works on the storage from now on.
    pub(super) fn set_work(&mut self, id: OperationId, work: Work) {
        let task = &mut self.exec.operations[id];
        (task.work, task.command.job) = (work, Job::Storage);
    }

    /// The list of UNMAP has been read.
    fn unmap_collected(&mut self, id: OperationId, ranges: &[BlockRange]) {
        let volume = self.exec.operations[id].requests.volume;
        let core = &self.exec.storage.volumes[volume].core;
        let block = core.caps.block_size;
        let ranges: Vec<ByteRange> = ranges.iter().map(|range| range.bytes(block)).collect();
        if ranges.iter().any(|range| core.fence.blocks(*range))
            || self.exec.storage.is_crowded(volume)
        {
            return self.refuse(id, status::BUSY);
        }
        let task = &mut self.exec.operations[id];
        task.requests.writes = hull(&ranges);
        self.set_work(id, Work::Plain(Plain::new(Op::Unmap, ranges)));
    }

    /// The parameter list of SANITIZE has been read.
    fn sanitize_collected(&mut self, id: OperationId, what: Sanitize) {
        let volume = self.exec.operations[id].requests.volume;
        match self.begin_sanitize(volume, what) {
            Ok(job) => {
                self.set_work(id, Work::None);
                self.exec.operations[id].command.job = job;
            }
            Err(None) => self.refuse(id, status::BUSY),
            Err(sense) => self.end(id, sense),
        }
    }

    /// Nothing is left to do but to answer.
    pub(super) fn end(&mut self, id: OperationId, sense: Option<Sense>) {
        let task = &mut self.exec.operations[id];
        if let Some(sense) = sense {
            fail(task, sense);
        }
        self.set_work(id, Work::None);
    }
}

/// The smallest range that holds all of these.
pub fn hull(ranges: &[ByteRange]) -> Option<ByteRange> {
    let start = ranges.iter().map(|range| range.offset).min()?;
    let end = ranges.iter().map(|range| range.end()).max()?;
    Some(ByteRange::new(start, end - start))
}
