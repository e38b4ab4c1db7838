//! SCSI Commands and their order (RFC 7143 sections 4.2.2.1 and 11.3).

use super::connection::{Connection, Phase};
use super::event::{CloseReason, Command, Event, TransferError};
use super::held::Waiting;
use super::options::MAX_IMMEDIATE;
use super::rx::{Pending, Sink};
use super::task::{Failure, Kind, Task};
use super::window::Position;
use super::{Cx, Response, Site, Tag, Transmit};
use crate::pdu::{self, Ahs, BasicHeader, Bhs, RejectReason, ScsiCommand, TaskAttribute, Wire};
use alloc::boxed::Box;
use alloc::vec::Vec;

impl<B: AsRef<[u8]> + AsMut<[u8]>> Connection<B> {
    /// The header of a SCSI Command is there.
    pub(super) fn begin_command<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        bhs: &Bhs,
        cx: &mut Cx<'_, S, T>,
    ) -> (Sink<B>, Pending) {
        let header = BasicHeader::from_bhs(bhs);
        let pdu = ScsiCommand::from_bhs(bhs);
        let position = self.position(pdu.cmd_sn.get(), header.immediate());
        if position == Position::Outside {
            self.counters.outside_window += 1;
            self.counters.swallowed_bytes += header.data_len() as u64;
            return (Sink::Discard, Pending::Nothing);
        }
        self.counters.commands += 1;
        let mut task = match self.new_task(pdu, header) {
            Ok(task) => task,
            Err(reason) => {
                self.counters.protocol_errors += 1;
                self.counters.swallowed_bytes += header.data_len() as u64;
                self.take_number(position, pdu.cmd_sn.get(), Waiting::Void, cx);
                return (Sink::Discard, Pending::Reject(reason));
            }
        };
        task.arrived = cx.now;
        task.answers = self.answers;
        let sink = self.unsolicited_sink(&mut task, header, cx.site);
        let tag = self.tasks.insert(task);
        if let Some(mover) = &mut self.mover {
            mover.remember_memory(tag);
        }
        (sink, Pending::Command(tag))
    }

    /// Where a numbered PDU stands; a number that is held already counts as outside.
    pub(super) fn position(&self, cmd_sn: u32, immediate: bool) -> Position {
        match self.window.position(cmd_sn, immediate) {
            Position::Ahead if self.held.contains(cmd_sn) => Position::Outside,
            position => position,
        }
    }

    /// Makes a task of a command, or says why it is rejected.
    fn new_task(&self, pdu: &ScsiCommand, header: &BasicHeader) -> Result<Task<B>, RejectReason> {
        let (itt, immediate) = (pdu.itt.get(), header.immediate());
        let (reads, writes) = (pdu.flags & pdu::READ != 0, pdu.flags & pdu::WRITE != 0);
        if self.discovery {
            return Err(RejectReason::ProtocolError);
        }
        if itt == pdu::RESERVED_TAG || (header.data_len() > 0 && !writes) {
            return Err(RejectReason::InvalidPduField);
        }
        if self.tasks.find(itt).is_some() {
            return Err(RejectReason::TaskInProgress);
        }
        if immediate && self.tasks.immediate() >= MAX_IMMEDIATE {
            return Err(RejectReason::ImmediateCommandReject);
        }
        let ahs = match self.rx.ahs() {
            [] => Ahs::default(),
            bytes => Ahs::parse(bytes).map_err(|_| RejectReason::InvalidPduField)?,
        };
        let mut task = Task::new(Kind::Collecting, itt, pdu.cmd_sn.get(), pdu.lun.get(), immediate);
        (task.reads, task.writes) = (reads, writes);
        let expected = pdu.expected_len.get();
        if writes {
            task.expects_write = expected;
            task.expects_read = if reads { ahs.bidi_read_len.unwrap_or(0) } else { 0 };
        } else if reads {
            task.expects_read = expected;
        }
        if let Some(mover) = &self.mover {
            let first = self.negotiated.first_burst_length.min(task.expects_write);
            let unsolicited = if header.is_final() { header.data_len.get() } else { first };
            mover.check_memory(task.expects_read > 0, task.expects_write > unsolicited)?;
        }
        task.cdb = pdu.cdb;
        task.long_cdb = ahs.extended_cdb.map(|rest| {
            let mut cdb = Vec::with_capacity(pdu.cdb.len() + rest.len());
            cdb.extend_from_slice(&pdu.cdb);
            cdb.extend_from_slice(rest);
            cdb.into_boxed_slice()
        });
        task.attribute = TaskAttribute::from_code(pdu.flags & 7).unwrap_or(TaskAttribute::Simple);
        Ok(task)
    }

    /// Decides what becomes of the immediate data, and whether unsolicited Data-Out follows.
    fn unsolicited_sink<S: Site<Buf = B>>(
        &mut self,
        task: &mut Task<B>,
        header: &BasicHeader,
        site: &mut S,
    ) -> Sink<B> {
        if !task.writes {
            return Sink::Discard;
        }
        let n = &self.negotiated;
        let len = header.data_len.get();
        task.limit = n.first_burst_length.min(task.expects_write);
        task.burst_done = header.is_final() || len == task.limit;
        if (len > 0 && !n.immediate_data) || (!task.burst_done && n.initial_r2t) {
            task.fail(Failure::Transfer(TransferError::UnexpectedUnsolicitedData));
        } else if len > task.limit {
            task.fail(Failure::Transfer(TransferError::IncorrectAmountOfData));
        }
        let room = if task.burst_done { len } else { task.limit };
        if room == 0 || task.failure.is_some() {
            return Sink::Discard;
        }
        // Over RDMA immediate data may be in a buffer already.
        let mover = self.mover.as_mut().filter(|_| room == len);
        if let Some(buf) = mover.and_then(|mover| mover.keep(site)) {
            return Sink::Payload(Some(buf), len as usize);
        }
        match site.alloc(room as usize) {
            Some(buf) if len > 0 => Sink::Payload(Some(buf), 0),
            Some(buf) => {
                task.data = Some(buf);
                Sink::Discard
            }
            None => {
                task.fail(Failure::NoBuffer);
                Sink::Discard
            }
        }
    }

    /// A SCSI Command with its immediate data is there.
    pub(super) fn command_complete<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        tag: Tag,
        bhs: &Bhs,
        right: bool,
        cx: &mut Cx<'_, S, T>,
    ) {
        let header = BasicHeader::from_bhs(bhs);
        let len = header.data_len.get();
        let payload = self.rx.take_payload();
        if !right {
            self.reject(RejectReason::DataDigestError, bhs, cx.tx);
        }
        let cmd_sn = ScsiCommand::from_bhs(bhs).cmd_sn.get();
        let position = self.position(cmd_sn, header.immediate());
        let mut waiting = Waiting::Void;
        if let Some(task) = self.tasks.get_mut(tag) {
            waiting = Waiting::Command(tag);
            if payload.is_some() {
                task.data = payload;
            }
            if !right {
                task.fail(Failure::Transfer(TransferError::ProtocolServiceCrcError));
            }
            if task.failure.is_some() {
                self.counters.swallowed_bytes += u64::from(len);
            } else {
                self.counters.bytes_out += u64::from(len);
                (task.filled, task.received) = (len, len);
            }
        }
        self.take_number(position, cmd_sn, waiting, cx);
    }

    /// Takes a number from the window, now or when the gap in front of it is closed, and does what
    /// was waiting for it.
    pub(super) fn take_number<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        position: Position,
        cmd_sn: u32,
        waiting: Waiting,
        cx: &mut Cx<'_, S, T>,
    ) {
        match position {
            Position::Outside => {}
            Position::Immediate => self.proceed(waiting, cx),
            Position::Ahead => {
                self.counters.held += 1;
                if !self.held.push(cmd_sn, waiting) {
                    self.close(CloseReason::HeldTooMuch, cx.events);
                }
            }
            Position::Next => {
                self.window.advance();
                self.proceed(waiting, cx);
                self.release_held(cx);
            }
        }
    }

    /// Does what waited behind the number just taken, unless that ended the connection: nothing
    /// comes after [`Event::Close`](super::Event::Close).
    fn release_held<S: Site<Buf = B>, T: Transmit>(&mut self, cx: &mut Cx<'_, S, T>) {
        while self.phase != Phase::Closed {
            let Some(waiting) = self.held.take(self.window.expected()) else { return };
            self.window.advance();
            self.proceed(waiting, cx);
        }
    }

    /// Does what was waiting for its number.
    fn proceed<S: Site<Buf = B>, T: Transmit>(&mut self, waiting: Waiting, cx: &mut Cx<'_, S, T>) {
        match waiting {
            Waiting::Void => {}
            Waiting::Command(tag) => {
                self.tasks.set_ordered(tag);
                self.hand_up(tag, cx);
            }
            Waiting::Pdu(bhs, data) => self.numbered(&bhs, &data, cx),
        }
    }

    /// Hands a command up, or answers it if it failed already, once it is complete.
    pub(super) fn hand_up<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        tag: Tag,
        cx: &mut Cx<'_, S, T>,
    ) {
        let Some(task) = self.tasks.get_mut(tag) else { return };
        if !task.is_complete() {
            return;
        }
        task.kind = Kind::Running;
        match task.failure {
            Some(Failure::NoBuffer) => {
                self.counters.task_set_full += 1;
                let status = super::event::TASK_SET_FULL;
                self.respond(tag, Response { status, ..Response::default() }, cx.tx);
            }
            Some(Failure::Transfer(error)) => {
                self.counters.transfer_errors += 1;
                self.respond(tag, Response::transfer_error(error), cx.tx);
            }
            None => {
                let filled = task.filled as usize;
                let command = Command {
                    tag,
                    lun: task.lun,
                    cdb: task.cdb,
                    long_cdb: task.long_cdb.take(),
                    attribute: task.attribute,
                    expects_read: task.expects_read,
                    expects_write: task.expects_write,
                    data: task.data.take().filter(|_| filled > 0).map(|buf| (buf, filled)),
                    arrived: task.arrived,
                    answers: task.answers,
                };
                cx.events.push(Event::Command(command));
            }
        }
    }

    /// Holds a numbered PDU or does it now.
    pub(super) fn sequence<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        cmd_sn: u32,
        bhs: &Bhs,
        data: &[u8],
        cx: &mut Cx<'_, S, T>,
    ) {
        let position = self.position(cmd_sn, BasicHeader::from_bhs(bhs).immediate());
        match position {
            Position::Outside => self.counters.outside_window += 1,
            Position::Immediate => self.numbered(bhs, data, cx),
            Position::Next => {
                // The window moves first: the answer carries the new numbers.
                self.window.advance();
                self.numbered(bhs, data, cx);
                self.release_held(cx);
            }
            Position::Ahead => {
                let waiting = Waiting::Pdu(Box::new(*bhs), data.to_vec());
                self.take_number(position, cmd_sn, waiting, cx);
            }
        }
    }
}
