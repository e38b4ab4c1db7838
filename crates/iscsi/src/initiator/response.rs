//! What a target sends to a command: Data-In, R2T, SCSI Response.

use super::tx::Burst;
use super::{Completion, Connection, Cx, Data, Error, Residual, Tag, Transmit};
use crate::pdu::{
    BasicHeader, Bhs, DataIn, FINAL, OVERFLOW, R2t, RESERVED_TAG, STATUS, ScsiResponse, UNDERFLOW,
    Wire,
};
use alloc::vec::Vec;

/// Response code 'command completed at target'.
const COMPLETED: u8 = 0;

/// The residual count that flags and count tell.
fn residual(flags: u8, count: u32) -> Residual {
    match flags & (OVERFLOW | UNDERFLOW) {
        OVERFLOW => Residual::Overflow(count),
        UNDERFLOW => Residual::Underflow(count),
        _ => Residual::None,
    }
}

impl<R: AsMut<[u8]>, W: AsRef<[u8]>> Connection<R, W> {
    /// Checks the header of a Data-In before its data comes: the data must be the next of its
    /// command. Returns where it goes.
    pub(super) fn begin_data_in(&mut self, bhs: &Bhs) -> Result<(Tag, usize), Error> {
        let pdu = DataIn::from_bhs(bhs);
        let max_burst = self.negotiated.max_burst_length;
        let (tag, task) = self.tasks.command(pdu.itt.get())?;
        let len = pdu.data_len.get();
        if !task.reads {
            return Err(Error::NoSuchTask(pdu.itt.get()));
        }
        if pdu.data_sn.get() != task.next_sn {
            return Err(Error::DataSn);
        }
        let offset = pdu.offset.get();
        if len > task.expected - task.moved || (len > 0 && offset != task.moved) {
            return Err(Error::DataRange);
        }
        if task.sequence.saturating_add(len) > max_burst {
            return Err(Error::DataRange);
        }
        task.next_sn = task.next_sn.wrapping_add(1);
        Ok((tag, task.moved as usize))
    }

    /// The data of a Data-In is complete and undamaged.
    pub(super) fn handle_data_in<T: Transmit<W>>(
        &mut self,
        bhs: &Bhs,
        cx: &mut Cx<'_, R, W, T>,
    ) -> Result<(), Error> {
        let pdu = DataIn::from_bhs(bhs);
        let (tag, task) = self.tasks.command(pdu.itt.get())?;
        task.moved += pdu.data_len.get();
        task.sequence += pdu.data_len.get();
        if pdu.flags & FINAL != 0 {
            task.sequence = 0;
        }
        if pdu.flags & STATUS == 0 {
            return Ok(());
        }
        self.sequence.take_status(bhs)?;
        let completion = Completion {
            response: COMPLETED,
            status: pdu.status,
            residual: residual(pdu.flags, pdu.residual.get()),
            received: 0,
            sense: Vec::new(),
        };
        self.complete(tag, completion, cx)
    }

    /// Answers a Ready To Transfer with its data.
    pub(super) fn handle_r2t<T: Transmit<W>>(
        &mut self,
        bhs: &Bhs,
        cx: &mut Cx<'_, R, W, T>,
    ) -> Result<(), Error> {
        let pdu = R2t::from_bhs(bhs);
        let (max_burst, segment) = (self.negotiated.max_burst_length, self.target_segment());
        let (tag, task) = self.tasks.command(pdu.itt.get())?;
        let Data::Write(data) = &task.data else {
            return Err(Error::NoSuchTask(pdu.itt.get()));
        };
        if pdu.r2t_sn.get() != task.next_sn {
            return Err(Error::DataSn);
        }
        let (offset, len) = (pdu.offset.get(), pdu.desired_len.get());
        let fits = len > 0 && len <= max_burst && len <= task.expected - task.moved;
        if !fits || offset != task.moved || pdu.ttt.get() == RESERVED_TAG {
            return Err(Error::DataRange);
        }
        task.next_sn = task.next_sn.wrapping_add(1);
        task.moved += len;
        let burst = Burst {
            lun: pdu.lun.get(),
            itt: tag.number(),
            ttt: pdu.ttt.get(),
            exp_stat_sn: self.sequence.exp_stat_sn(),
            segment,
        };
        let start = offset as usize;
        burst.send(self.framing, data, start..start + len as usize, cx.tx);
        Ok(())
    }

    /// Takes the end of a command.
    pub(super) fn handle_scsi_response<T: Transmit<W>>(
        &mut self,
        bhs: &Bhs,
        cx: &mut Cx<'_, R, W, T>,
    ) -> Result<(), Error> {
        let pdu = ScsiResponse::from_bhs(bhs);
        self.sequence.take_status(bhs)?;
        let (tag, task) = self.tasks.command(pdu.itt.get())?;
        // Some targets leave ExpDataSN zero, which RFC 7143 section 11.4.8 allows for commands
        // without Data-In; another value must be right.
        let exp_data_sn = pdu.exp_data_sn.get();
        if pdu.response == COMPLETED && exp_data_sn != 0 && exp_data_sn != task.next_sn {
            return Err(Error::DataSn);
        }
        let completion = Completion {
            response: pdu.response,
            status: pdu.status,
            residual: residual(pdu.flags, pdu.residual.get()),
            received: 0,
            sense: sense(&self.rx.collected),
        };
        self.complete(tag, completion, cx)
    }

    /// Ends a command with its answer. Status GOOD for data that never moved is not believed.
    fn complete<T: Transmit<W>>(
        &mut self,
        tag: Tag,
        mut completion: Completion,
        cx: &mut Cx<'_, R, W, T>,
    ) -> Result<(), Error> {
        let rdma = self.framing.rdma;
        let (_, task) = self.tasks.command(tag.number())?;
        if rdma {
            // The data moved by itself: the target's word is all there is.
            task.moved = match completion.residual {
                Residual::Underflow(count) => {
                    task.expected.checked_sub(count).ok_or(Error::DataRange)?
                }
                Residual::None | Residual::Overflow(_) => task.expected,
            };
        }
        let missing = task.expected - task.moved;
        let admitted = match completion.residual {
            Residual::Underflow(count) => count,
            Residual::None | Residual::Overflow(_) => 0,
        };
        let wrong = if task.reads { missing != admitted } else { missing > admitted };
        if completion.is_good() && wrong {
            return Err(Error::DataMissing);
        }
        if task.reads {
            completion.received = task.moved;
        }
        if let Some(task) = self.tasks.remove_command(tag) {
            cx.events.push(task.complete(tag, completion));
        }
        Ok(())
    }

    /// Longest data segment that a PDU may have now, in bytes.
    pub(super) fn receive_limit(&self) -> usize {
        match self.phase {
            super::Phase::Login(_) => super::options::DEFAULT_DATA_SEGMENT as usize,
            _ => self.negotiated.max_recv_data_segment_length as usize,
        }
    }

    /// Takes a complete PDU.
    pub(super) fn handle_pdu<T: Transmit<W>>(
        &mut self,
        bhs: &Bhs,
        cx: &mut Cx<'_, R, W, T>,
    ) -> Result<(), Error> {
        use crate::pdu::Opcode;
        let header = BasicHeader::from_bhs(bhs);
        let opcode = header.opcode().ok_or(Error::Unexpected(header.opcode))?;
        if matches!(self.phase, super::Phase::Login(_)) {
            return match opcode {
                Opcode::LoginResponse => self.handle_login_response(bhs, cx),
                _ => Err(Error::Unexpected(header.opcode)),
            };
        }
        self.sequence.update_window(bhs)?;
        match opcode {
            // Over RDMA the target does what these ask for, or bring, by itself.
            Opcode::DataIn | Opcode::R2t if self.framing.rdma => {
                Err(Error::Unexpected(header.opcode))
            }
            Opcode::DataIn => self.handle_data_in(bhs, cx),
            Opcode::R2t => self.handle_r2t(bhs, cx),
            Opcode::ScsiResponse => self.handle_scsi_response(bhs, cx),
            Opcode::NopIn => self.handle_nop_in(bhs, cx),
            Opcode::TmfResponse => self.handle_tmf_response(bhs, cx),
            Opcode::TextResponse => self.handle_text_response(bhs, cx),
            Opcode::LogoutResponse => self.handle_logout_response(bhs, cx),
            Opcode::AsyncMessage => self.handle_async_message(bhs, cx),
            Opcode::Reject => self.handle_reject(bhs, cx),
            _ => Err(Error::Unexpected(header.opcode)),
        }
    }
}

/// The sense data in the data segment of a SCSI Response, behind its 2-byte length.
fn sense(data: &[u8]) -> Vec<u8> {
    match data {
        [high, low, rest @ ..] => {
            let len = usize::from(u16::from_be_bytes([*high, *low]));
            rest[..len.min(rest.len())].to_vec()
        }
        _ => Vec::new(),
    }
}
