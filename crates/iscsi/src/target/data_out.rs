//! R2T and Data-Out (RFC 7143 sections 11.7 and 11.8).

use super::connection::{Connection, Phase};
use super::event::{CloseReason, Event, TransferError};
use super::rx::{Pending, Sink};
use super::task::{Failure, Kind};
use super::{Cx, Site, Tag, Transmit};
use crate::pdu::{self, BasicHeader, Bhs, DataOut, RejectReason, U32, U64, Wire};

impl<B: AsRef<[u8]> + AsMut<[u8]>> Connection<B> {
    /// Asks the initiator for `len` bytes (at least 1) of write data from `offset` of the command's
    /// transfer, within what the initiator expects to write, to be put at the start of `buf`, which
    /// has at least `len` bytes. Completes as [`Event::Data`]. Transfers of a task are asked for in
    /// the order of the calls, so their offsets must ascend. A transfer longer than MaxBurstLength
    /// takes several R2Ts, one after the other; shorter ones can be outstanding side by side. Over
    /// RDMA each transfer is one RDMA Read, and they may complete in any order.
    pub fn solicit<T: Transmit>(&mut self, tag: Tag, offset: u32, len: u32, buf: B, tx: &mut T) {
        debug_assert!(len > 0 && buf.as_ref().len() >= len as usize);
        let Some(task) = self.tasks.get_mut(tag) else { return };
        let in_range = offset.checked_add(len).is_some_and(|end| end <= task.expects_write);
        debug_assert!(in_range, "a transfer beyond what the initiator expects to write");
        if task.kind != Kind::Running || task.failure.is_some() || self.phase == Phase::Closed {
            return;
        }
        let index = self.transfers.insert(tag, offset, len, buf);
        if self.mover.is_some() {
            return self.get_data(tag, index);
        }
        let first = match task.waiting {
            None => index,
            Some((first, last)) => {
                if let Some(last) = self.transfers.get_mut(last) {
                    last.next = Some(index);
                }
                first
            }
        };
        task.waiting = Some((first, index));
        self.send_r2ts(tag, tx);
    }

    /// Sends R2Ts for waiting transfers, as many as may be outstanding, in the order of their
    /// offsets (DataSequenceInOrder).
    fn send_r2ts<T: Transmit>(&mut self, tag: Tag, tx: &mut T) {
        let limit = u32::from(self.negotiated.max_outstanding_r2t);
        while let Some(task) = self.tasks.get_mut(tag) {
            let Some((first, last)) = task.waiting.filter(|_| task.r2ts < limit) else { return };
            let Some(transfer) = self.transfers.get_mut(first).filter(|t| !t.in_flight) else {
                return;
            };
            if transfer.len - transfer.received <= self.negotiated.max_burst_length {
                task.waiting = transfer.next.take().map(|next| (next, last));
            }
            task.r2ts += 1;
            self.send_r2t(tag, first, tx);
        }
    }

    /// Sends the next R2T of a transfer, for at most one burst.
    fn send_r2t<T: Transmit>(&mut self, tag: Tag, index: usize, tx: &mut T) {
        let ttt = self.transfers.new_ttt(index);
        let n = self.numbers(false);
        let (Some(task), Some(transfer)) = (self.tasks.get_mut(tag), self.transfers.get_mut(index))
        else {
            return;
        };
        let burst = (transfer.len - transfer.received).min(self.negotiated.max_burst_length);
        transfer.asked = transfer.received + burst;
        transfer.in_flight = true;
        transfer.data_sn = 0;
        let r2t = pdu::R2t {
            flags: pdu::FINAL,
            lun: U64::new(task.lun),
            itt: U32::new(task.itt),
            ttt: U32::new(ttt),
            stat_sn: n.stat_sn,
            exp_cmd_sn: n.exp_cmd_sn,
            max_cmd_sn: n.max_cmd_sn,
            r2t_sn: U32::new(task.pdu_sn),
            offset: U32::new(transfer.offset + transfer.received),
            desired_len: U32::new(burst),
            ..Default::default()
        };
        task.pdu_sn = task.pdu_sn.wrapping_add(1);
        self.counters.r2ts += 1;
        self.send(&r2t, &[], tx);
    }

    /// The header of a Data-Out is there.
    pub(super) fn begin_data_out<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        bhs: &Bhs,
        cx: &mut Cx<'_, S, T>,
    ) -> (Sink<B>, Pending) {
        let pdu = DataOut::from_bhs(bhs);
        let task = self.tasks.find(pdu.itt.get());
        let chosen = match task {
            // The task ended already: what is still under way is swallowed.
            None => (Sink::Discard, Pending::Nothing),
            Some(tag) if pdu.ttt.get() == pdu::RESERVED_TAG => self.begin_unsolicited(tag, pdu),
            Some(tag) => self.begin_solicited(tag, pdu, cx),
        };
        if matches!(chosen.0, Sink::Discard) {
            self.counters.swallowed_bytes += u64::from(pdu.data_len.get());
        } else {
            self.counters.bytes_out += u64::from(pdu.data_len.get());
        }
        chosen
    }

    fn begin_unsolicited(&mut self, tag: Tag, pdu: &DataOut) -> (Sink<B>, Pending) {
        let Some(task) = self.tasks.get_mut(tag).filter(|task| task.kind != Kind::Management)
        else {
            return (Sink::Discard, Pending::Nothing);
        };
        let len = pdu.data_len.get();
        let end = task.filled.checked_add(len);
        let error = if task.burst_done {
            Some(TransferError::UnexpectedUnsolicitedData)
        } else if pdu.data_sn.get() != task.data_sn
            || pdu.offset.get() != task.filled
            || end.is_none_or(|end| end > task.limit)
        {
            Some(TransferError::IncorrectAmountOfData)
        } else {
            None
        };
        if let Some(error) = error.filter(|_| task.failure.is_none()) {
            task.fail(Failure::Transfer(error));
            self.counters.protocol_errors += 1;
        }
        match task.data.take().filter(|_| task.failure.is_none()) {
            Some(buf) => {
                (Sink::Payload(Some(buf), task.filled as usize), Pending::Unsolicited(tag))
            }
            None => (Sink::Discard, Pending::Unsolicited(tag)),
        }
    }

    fn begin_solicited<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        tag: Tag,
        pdu: &DataOut,
        cx: &mut Cx<'_, S, T>,
    ) -> (Sink<B>, Pending) {
        let Some(task) = self.tasks.get_mut(tag) else { return (Sink::Discard, Pending::Nothing) };
        let index = self.transfers.find(pdu.ttt.get());
        let transfer = index.and_then(|index| self.transfers.get_mut(index));
        let (Some(index), Some(transfer)) = (index, transfer.filter(|t| t.task == tag)) else {
            if task.failure.is_some() {
                // The sequence that broke may be longer than what was asked for.
                return (Sink::Discard, Pending::Nothing);
            }
            self.counters.protocol_errors += 1;
            self.close(CloseReason::UnknownTransfer, cx.events);
            return (Sink::Discard, Pending::Nothing);
        };
        let end = transfer.received.checked_add(pdu.data_len.get());
        let in_order = pdu.data_sn.get() == transfer.data_sn
            && pdu.offset.get() == transfer.offset + transfer.received
            && end.is_some_and(|end| end <= transfer.asked);
        if !in_order && task.failure.is_none() {
            task.fail(Failure::Transfer(TransferError::IncorrectAmountOfData));
            self.counters.protocol_errors += 1;
        }
        match transfer.buf.take().filter(|_| task.failure.is_none()) {
            Some(buf) => (
                Sink::Payload(Some(buf), transfer.received as usize),
                Pending::Solicited(tag, index),
            ),
            None => (Sink::Discard, Pending::Solicited(tag, index)),
        }
    }

    /// An unsolicited Data-Out is complete.
    pub(super) fn unsolicited_complete<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        tag: Tag,
        bhs: &Bhs,
        right: bool,
        cx: &mut Cx<'_, S, T>,
    ) {
        let buf = self.rx.take_payload();
        if !right {
            self.reject(RejectReason::DataDigestError, bhs, cx.tx);
        }
        let header = BasicHeader::from_bhs(bhs);
        let Some(task) = self.tasks.get_mut(tag) else { return };
        if !right {
            task.fail(Failure::Transfer(TransferError::ProtocolServiceCrcError));
        }
        if task.failure.is_none() {
            task.data = buf;
            task.filled += header.data_len.get();
            task.received = task.filled;
            task.data_sn = task.data_sn.wrapping_add(1);
            // The burst ends with the Final bit, there and nowhere else.
            if header.is_final() != (task.filled == task.limit) {
                task.fail(Failure::Transfer(TransferError::IncorrectAmountOfData));
                self.counters.protocol_errors += 1;
            }
        }
        if task.kind == Kind::Running {
            if header.is_final() {
                self.transfer_failed(tag, None, cx);
            }
        } else {
            task.burst_done |= header.is_final() || task.filled >= task.limit;
            self.hand_up(tag, cx);
        }
    }

    /// A Data-Out that answers an R2T is complete.
    pub(super) fn solicited_complete<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        tag: Tag,
        index: usize,
        bhs: &Bhs,
        right: bool,
        cx: &mut Cx<'_, S, T>,
    ) {
        let buf = self.rx.take_payload();
        if !right {
            self.reject(RejectReason::DataDigestError, bhs, cx.tx);
        }
        let header = BasicHeader::from_bhs(bhs);
        let (Some(task), Some(transfer)) = (self.tasks.get_mut(tag), self.transfers.get_mut(index))
        else {
            return;
        };
        transfer.received = transfer.received.saturating_add(header.data_len.get());
        transfer.data_sn = transfer.data_sn.wrapping_add(1);
        let burst_over = transfer.received >= transfer.asked;
        if !right {
            task.fail(Failure::Transfer(TransferError::ProtocolServiceCrcError));
        } else if task.failure.is_none() && burst_over != header.is_final() {
            task.fail(Failure::Transfer(TransferError::IncorrectAmountOfData));
            self.counters.protocol_errors += 1;
        }
        if task.failure.is_some() {
            let over = header.is_final() || burst_over;
            task.r2ts -= u32::from(over);
            self.transfer_failed(tag, over.then_some(index), cx);
            return;
        }
        transfer.buf = buf;
        task.received = task.received.saturating_add(header.data_len.get());
        if !burst_over {
            return;
        }
        task.r2ts -= 1;
        transfer.in_flight = false;
        if transfer.received < transfer.len {
            return self.send_r2ts(tag, cx.tx);
        }
        let done = self.transfers.remove(index).and_then(|t| Some((t.offset, t.len, t.buf?)));
        if let Some((offset, len, buf)) = done {
            cx.events.push(Event::Data { tag, offset, len, buf });
        }
        self.send_r2ts(tag, cx.tx);
    }

    /// Drops what a failed task still wanted and the transfer that is `over`; says that the task
    /// failed, once no data is to come any more.
    pub(super) fn transfer_failed<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        tag: Tag,
        over: Option<usize>,
        cx: &mut Cx<'_, S, T>,
    ) {
        let Some(task) = self.tasks.get_mut(tag) else { return };
        let mut waiting = task.waiting.take().map(|(first, _)| first);
        while let Some(index) = waiting {
            let Some(transfer) = self.transfers.get_mut(index) else { break };
            waiting = transfer.next.take();
            // The data that an R2T asked for is under way: the transfer is needed to swallow it.
            if !transfer.in_flight {
                self.transfers.remove(index);
            }
        }
        if let Some(index) = over {
            self.transfers.remove(index);
        }
        let Some(Failure::Transfer(error)) = task.failure else { return };
        if task.r2ts == 0 && task.kind == Kind::Running && !task.failure_told {
            task.failure_told = true;
            self.counters.transfer_errors += 1;
            cx.events.push(Event::TransferFailed { tag, error });
        }
    }
}
