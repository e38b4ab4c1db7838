//! All that is not a SCSI command: NOP, task management, logout, asynchronous messages, Reject.

use super::task::{CommandTask, Task};
use super::tx::Body;
use super::{
    AsyncNotice, Connection, Cx, Error, Event, Outcome, SubmitError, Tag, Transmit, reserved,
    sequence,
};
use crate::pdu::{
    AsyncEvent, AsyncMessage, BHS_LEN, BasicHeader, Bhs, FINAL, IMMEDIATE, LogoutResponse,
    LogoutResponsePdu, NopIn, NopOut, Opcode, RESERVED_TAG, Reject, RejectReason, TmfFunction,
    TmfRequest, TmfResponse, TmfResponsePdu, U24, Wire,
};
use alloc::vec::Vec;
use core::time::Duration;

impl<R: AsMut<[u8]>, W: AsRef<[u8]>> Connection<R, W> {
    /// Sends a task management function for immediate delivery. `referenced` is the command for
    /// ABORT TASK (and TASK REASSIGN); the other functions take none. The commands that the
    /// function ends come back as [`Outcome::Aborted`] with its answer.
    pub fn manage<T: Transmit<W>>(
        &mut self,
        function: TmfFunction,
        lun: u64,
        referenced: Option<Tag>,
        tx: &mut T,
    ) -> Result<Tag, SubmitError> {
        self.check_ready()?;
        self.check_credit(1)?;
        let cmd_sn = self.sequence.cmd_sn();
        let mut pdu = TmfRequest {
            opcode: Opcode::TmfRequest.code() | IMMEDIATE,
            flags: FINAL | function.code(),
            lun: lun.into(),
            referenced_itt: RESERVED_TAG.into(),
            cmd_sn: cmd_sn.into(),
            exp_stat_sn: self.sequence.exp_stat_sn().into(),
            ..Default::default()
        };
        if matches!(function, TmfFunction::AbortTask | TmfFunction::TaskReassign) {
            match referenced.and_then(|tag| self.tasks.get(tag).map(|task| (tag, task))) {
                Some((tag, Task::Command(task))) => {
                    pdu.referenced_itt = tag.itt();
                    pdu.ref_cmd_sn = task.cmd_sn.into();
                }
                _ => return Err(SubmitError::NoSuchTask),
            }
        }
        let tag = self.tasks.insert(Task::Management { function, lun, cmd_sn, referenced });
        pdu.itt = tag.itt();
        self.framing.header_only(&pdu, tx);
        Ok(tag)
    }

    /// Sends a ping with this data; [`Event::Pong`] answers it.
    pub fn ping<T: Transmit<W>>(&mut self, data: &[u8], tx: &mut T) -> Result<Tag, SubmitError> {
        self.check_ready()?;
        if data.len() > self.ping_limit() {
            return Err(SubmitError::TooLong);
        }
        self.check_credit(1)?;
        let tag = self.tasks.insert(Task::Ping { data: Some(data.to_vec()) });
        self.send_nop_out(tag.number(), RESERVED_TAG, 0, data, tx);
        Ok(tag)
    }

    /// Asks a silent target for a sign of life.
    pub(super) fn send_keep_alive<T: Transmit<W>>(&mut self, now: Duration, tx: &mut T) {
        let tag = self.tasks.insert(Task::Ping { data: None });
        self.keep_alive = Some((tag, now));
        self.send_nop_out(tag.number(), RESERVED_TAG, 0, &[], tx);
    }

    fn send_nop_out<T: Transmit<W>>(&self, itt: u32, ttt: u32, lun: u64, data: &[u8], tx: &mut T) {
        let pdu = NopOut {
            opcode: Opcode::NopOut.code() | IMMEDIATE,
            flags: FINAL,
            data_len: U24::new(data.len() as u32),
            lun: lun.into(),
            itt: itt.into(),
            ttt: ttt.into(),
            cmd_sn: self.sequence.cmd_sn().into(),
            exp_stat_sn: self.sequence.exp_stat_sn().into(),
            ..Default::default()
        };
        self.framing.pdu(pdu.as_bhs(), &[], Body::Bytes(data), tx);
    }

    pub(super) fn handle_nop_in<T: Transmit<W>>(
        &mut self,
        bhs: &Bhs,
        cx: &mut Cx<'_, R, W, T>,
    ) -> Result<(), Error> {
        let pdu = NopIn::from_bhs(bhs);
        let (itt, ttt) = (pdu.itt.get(), pdu.ttt.get());
        if reserved(itt) {
            // Sent by the target on its own account. Its StatSN is not used up.
            if !reserved(ttt) && self.is_ready() {
                self.send_nop_out(RESERVED_TAG, ttt, pdu.lun.get(), &[], cx.tx);
            }
            return Ok(());
        }
        self.sequence.take_status(bhs)?;
        let tag = self.tasks.find(itt)?;
        if !matches!(self.tasks.get(tag), Some(Task::Ping { .. })) {
            return Err(Error::NoSuchTask(itt));
        }
        let Some(Task::Ping { data }) = self.tasks.remove(tag) else { return Ok(()) };
        match data {
            None => self.keep_alive = None,
            Some(sent) => {
                // The target cuts what is longer than this side takes.
                let expected = &sent[..sent.len().min(self.receive_limit())];
                let intact = self.rx.collected == expected;
                cx.events.push(Event::Pong { tag, intact });
            }
        }
        Ok(())
    }

    pub(super) fn handle_tmf_response<T: Transmit<W>>(
        &mut self,
        bhs: &Bhs,
        cx: &mut Cx<'_, R, W, T>,
    ) -> Result<(), Error> {
        let pdu = TmfResponsePdu::from_bhs(bhs);
        self.sequence.take_status(bhs)?;
        let tag = self.tasks.find(pdu.itt.get())?;
        let Some(Task::Management { function, lun, cmd_sn, referenced }) = self.tasks.get(tag)
        else {
            return Err(Error::NoSuchTask(pdu.itt.get()));
        };
        let response = TmfResponse::from_code(pdu.response).ok_or(pdu.response);
        let ended = self.ended_by((tag, *function), *lun, *cmd_sn, *referenced, response);
        self.tasks.remove(tag);
        for ended in ended {
            self.finish(ended, Outcome::Aborted, cx.events);
        }
        cx.events.push(Event::Managed { tag, response: Some(response) });
        Ok(())
    }

    /// The commands that no answer will come for after this answer to a function.
    fn ended_by(
        &self,
        (tag, function): (Tag, TmfFunction),
        lun: u64,
        cmd_sn: u32,
        referenced: Option<Tag>,
        response: Result<TmfResponse, u8>,
    ) -> Vec<Tag> {
        let complete = response == Ok(TmfResponse::Complete);
        // An immediate command has the number of the next one: the function reaches those that came before it.
        let before = |own: Tag, task: &CommandTask<R, W>| match task.immediate {
            true => own.is_before(tag),
            false => sequence::before(task.cmd_sn, cmd_sn),
        };
        match function {
            // Answers keep their order: had the target answered the command, it would have come.
            TmfFunction::AbortTask if complete || response == Ok(TmfResponse::TaskDoesNotExist) => {
                referenced.into_iter().collect()
            }
            TmfFunction::AbortTaskSet
            | TmfFunction::ClearTaskSet
            | TmfFunction::LogicalUnitReset
                if complete =>
            {
                self.tasks.commands(|own, task| task.lun == lun && before(own, task))
            }
            TmfFunction::TargetWarmReset | TmfFunction::TargetColdReset if complete => {
                self.tasks.commands(before)
            }
            _ => Vec::new(),
        }
    }

    /// Ends a command, if it is still under way.
    fn finish(&mut self, tag: Tag, outcome: Outcome, events: &mut Vec<Event<R, W>>) {
        if let Some(task) = self.tasks.remove_command(tag) {
            events.push(task.finish(tag, outcome));
        }
    }

    pub(super) fn handle_logout_response<T: Transmit<W>>(
        &mut self,
        bhs: &Bhs,
        cx: &mut Cx<'_, R, W, T>,
    ) -> Result<(), Error> {
        let pdu = LogoutResponsePdu::from_bhs(bhs);
        self.sequence.take_status(bhs)?;
        let tag = self.tasks.find(pdu.itt.get())?;
        if !matches!(self.tasks.get(tag), Some(Task::Logout)) {
            return Err(Error::NoSuchTask(pdu.itt.get()));
        }
        self.end(cx.events);
        cx.events.push(Event::LoggedOut {
            response: LogoutResponse::from_code(pdu.response).ok_or(pdu.response),
            time2wait: pdu.time2wait.get(),
            time2retain: pdu.time2retain.get(),
        });
        Ok(())
    }

    pub(super) fn handle_async_message<T: Transmit<W>>(
        &mut self,
        bhs: &Bhs,
        cx: &mut Cx<'_, R, W, T>,
    ) -> Result<(), Error> {
        let pdu = AsyncMessage::from_bhs(bhs);
        self.sequence.take_status(bhs)?;
        cx.events.push(Event::Async(AsyncNotice {
            code: pdu.event,
            event: AsyncEvent::from_code(pdu.event),
            lun: pdu.lun.get(),
            vendor_code: pdu.vendor_code,
            parameters: [pdu.parameter1.get(), pdu.parameter2.get(), pdu.parameter3.get()],
            data: core::mem::take(&mut self.rx.collected),
        }));
        Ok(())
    }

    pub(super) fn handle_reject<T: Transmit<W>>(
        &mut self,
        bhs: &Bhs,
        cx: &mut Cx<'_, R, W, T>,
    ) -> Result<(), Error> {
        let reason = Reject::from_bhs(bhs).reason;
        self.sequence.take_status(bhs)?;
        let header = self.rx.collected.first_chunk::<BHS_LEN>().copied();
        cx.events.push(Event::Rejected { reason, header });
        let header = header.as_ref().map(BasicHeader::from_bhs);
        let data_out = header.is_some_and(|header| header.opcode() == Some(Opcode::DataOut));
        // A damaged data PDU ends its command with CHECK CONDITION, which is to come. Any other
        // damaged PDU left a gap that only a new session closes (RFC 7143 section 7.8).
        if reason == RejectReason::DataDigestError.code() && !data_out {
            return Err(Error::DataDigest);
        }
        if let Some(header) = header {
            self.end_rejected(header, reason, cx.events);
        }
        Ok(())
    }

    /// Ends the request whose PDU was rejected. A data PDU is not the end of its command.
    fn end_rejected(&mut self, header: &BasicHeader, reason: u8, events: &mut Vec<Event<R, W>>) {
        let Ok(tag) = self.tasks.find(header.itt.get()) else { return };
        match header.opcode() {
            Some(Opcode::ScsiCommand) => {
                self.finish(tag, Outcome::Rejected(reason), events);
            }
            Some(Opcode::TmfRequest) => {
                if let Some(Task::Management { .. }) = self.tasks.get(tag) {
                    self.tasks.remove(tag);
                    let response = Some(Ok(TmfResponse::Rejected));
                    events.push(Event::Managed { tag, response });
                }
            }
            Some(Opcode::TextRequest) => self.abandon_text(tag, events),
            _ => {}
        }
    }
}
