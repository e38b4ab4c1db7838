//! Data of commands: R2T and H2CData, C2HData; over RDMA, Reads and Writes.

use super::connection::{Connection, Phase};
use super::event::{CloseReason, Cx, Event, Site, Tag};
use super::rx::{Pending, Sink};
use super::task::Stage;
use crate::command::Completion;
use crate::pdu::{Data, FatalError, LAST_PDU, R2t, SUCCESS, Type, U16, U32};
use crate::transmit::{Transmit, put, put_payload};
use core::ops::Range;

impl<B: AsRef<[u8]> + AsMut<[u8]>> Connection<B> {
    /// Asks the host for `len` bytes (at least 1) of the command's data from `offset` on, within
    /// what it expects to write, to be put at the start of `buf`, which has at least `len` bytes.
    /// Completes as [`Event::Data`]. Each call is one R2T; they are sent in the order of the calls,
    /// as many at once as the host takes, so offsets must ascend: a Linux host appends. Over RDMA
    /// each call is a Read.
    pub fn solicit<T: Transmit>(&mut self, tag: Tag, offset: u32, len: u32, buf: B, tx: &mut T) {
        debug_assert!(len > 0 && buf.as_ref().len() >= len as usize);
        let Some(task) = self.tasks.running(tag).filter(|task| !task.damaged) else { return };
        let in_range = offset.checked_add(len).is_some_and(|end| end <= task.expects_write);
        debug_assert!(in_range, "a transfer beyond what the host expects to write");
        if self.phase == Phase::Closed {
            return;
        }
        self.queue_transfer(tag, offset, len, buf);
        if self.mover.is_none() {
            self.send_r2ts(tag, tx);
        }
    }

    /// Puts a transfer behind those of its command that wait.
    pub(super) fn queue_transfer(&mut self, tag: Tag, offset: u32, len: u32, buf: B) {
        let index = self.transfers.insert(tag, offset, len, buf);
        debug_assert!(index.is_some(), "too many transfers");
        let (Some(index), Some(task)) = (index, self.tasks.get_mut(tag)) else { return };
        let first = match task.waiting {
            None => index,
            Some((first, last)) => {
                if let Some(last) = self.transfers.0.get_mut(last) {
                    last.next = Some(index);
                }
                first
            }
        };
        task.waiting = Some((first, index));
        if let Some(mover) = &mut self.mover {
            mover.queue(tag);
        }
    }

    /// Starts the transfer of a command that waits for longest: its index.
    pub(super) fn start_transfer(&mut self, tag: Tag) -> Option<usize> {
        let task = self.tasks.get_mut(tag)?;
        let (first, last) = task.waiting?;
        let transfer = self.transfers.0.get_mut(first)?;
        task.waiting = transfer.next.take().map(|next| (next, last));
        task.r2ts += 1;
        (transfer.in_flight, transfer.order) = (true, self.started);
        self.started += 1;
        self.r2ts += 1;
        Some(first)
    }

    /// Sends R2Ts of transfers that wait, as many as may be outstanding.
    fn send_r2ts<T: Transmit>(&mut self, tag: Tag, tx: &mut T) {
        while let Some(task) = self.tasks.running(tag) {
            if task.r2ts >= self.max_r2t {
                return;
            }
            let cid = task.cid;
            let Some(index) = self.start_transfer(tag) else { return };
            let Some(transfer) = self.transfers.0.get_mut(index) else { return };
            let r2t = R2t {
                cccid: U16::new(cid),
                ttag: U16::new(index as u16),
                r2to: U32::new(transfer.offset),
                r2tl: U32::new(transfer.len),
                ..R2t::default()
            };
            put(self.outbound, Type::R2t, 0, r2t, tx);
            self.counters.pdus_out += 1;
            self.counters.r2ts += 1;
        }
    }

    /// Drops the transfers of a command that wait for their R2T or RDMA Read.
    pub(super) fn drop_waiting(&mut self, tag: Tag) {
        let waiting = self.tasks.get_mut(tag).and_then(|task| task.waiting.take());
        if let (Some(mover), Some(_)) = (&mut self.mover, waiting) {
            mover.forget(tag);
        }
        let mut next = waiting.map(|(first, _)| first);
        while let Some(index) = next {
            next = self.transfers.0.try_remove(index).and_then(|transfer| transfer.next);
        }
    }

    /// The header of an H2CData is there.
    pub(super) fn begin_data<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        len: usize,
        cx: &mut Cx<'_, S, T>,
    ) {
        let pdu: Data = self.rx.header();
        let index = usize::from(pdu.ttag.get());
        let transfer = self.transfers.0.get_mut(index).filter(|transfer| transfer.in_flight);
        let Some(transfer) = transfer else {
            return self.wrong_field(CloseReason::UnknownTransfer, 10, cx);
        };
        let task = self.tasks.get_mut(transfer.task);
        let Some(task) = task.filter(|task| task.cid == pdu.cccid.get()) else {
            return self.wrong_field(CloseReason::UnknownTransfer, 8, cx);
        };
        if pdu.datal.get() as usize != len || len == 0 {
            return self.wrong_field(CloseReason::DataLength, 16, cx);
        }
        let left = transfer.len - transfer.received;
        let next = transfer.offset + transfer.received;
        if pdu.datao.get() != next || pdu.datal.get() > left {
            let range = (FatalError::DataOutOfRange, 0);
            return self.terminate(CloseReason::DataRange, range, cx);
        }
        // The rest of the transfer would never come.
        if pdu.common.flags & LAST_PDU != 0 && pdu.datal.get() < left {
            return self.terminate(CloseReason::DataRange, (FatalError::Sequence, 0), cx);
        }
        let swallow = task.damaged || task.stage != Stage::Running;
        self.sink = match transfer.buf.take().filter(|_| !swallow) {
            Some(buf) => Sink::Buffer(Some(buf), transfer.received as usize),
            None => Sink::Discard,
        };
        self.pending = Pending::Data(index);
    }

    /// An H2CData is complete.
    pub(super) fn data_complete<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        index: usize,
        right: bool,
        cx: &mut Cx<'_, S, T>,
    ) {
        let pdu: Data = self.rx.header();
        let filled = self.take_filled();
        let Some(transfer) = self.transfers.0.get_mut(index) else { return };
        let tag = transfer.task;
        transfer.buf = filled;
        transfer.received += pdu.datal.get();
        let over = transfer.received == transfer.len;
        let Some(task) = self.tasks.get_mut(tag) else { return };
        task.damaged |= !right;
        if over {
            self.transfer_over(tag, index, cx);
        } else if task.damaged && task.stage == Stage::Running {
            self.drop_waiting(tag);
        }
    }

    /// All data of a transfer is here.
    pub(super) fn transfer_over<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        tag: Tag,
        index: usize,
        cx: &mut Cx<'_, S, T>,
    ) {
        let Some(transfer) = self.transfers.0.try_remove(index) else { return };
        self.r2ts -= 1;
        let Some(task) = self.tasks.get_mut(tag) else { return };
        task.r2ts -= 1;
        match (task.stage, task.damaged) {
            (Stage::Ending(completion), _) if task.r2ts == 0 => {
                self.finish(tag, completion, cx.tx);
            }
            (Stage::Running, true) => {
                let done = task.r2ts == 0;
                self.drop_waiting(tag);
                if done {
                    cx.events.push(Event::TransferFailed { tag });
                }
            }
            (Stage::Running, false) => {
                let (offset, len) = (transfer.offset, transfer.len);
                if let Some(buf) = transfer.buf {
                    cx.events.push(Event::Data { tag, offset, len, buf });
                }
                if self.mover.is_none() {
                    self.send_r2ts(tag, cx.tx);
                }
            }
            _ => {}
        }
    }

    /// Sends the next part of the command's data, `range` of `payload`, which is not empty; what
    /// goes beyond what the host expects is cut off. `last`: this is all, and how the command
    /// completes. Over RDMA it is an RDMA Write.
    pub fn send_data<T: Transmit>(
        &mut self,
        tag: Tag,
        payload: T::Payload,
        range: Range<usize>,
        last: Option<Completion>,
        tx: &mut T,
    ) {
        if self.phase == Phase::Closed {
            return;
        }
        let leave_out = self.may_leave_out() && last == Some(Completion::SUCCESS);
        let Some(task) = self.tasks.running(tag) else { return };
        let room = task.expects_read - task.sent;
        let len = u32::try_from(range.len()).unwrap_or(u32::MAX).min(room);
        let part = range.start..range.start + len as usize;
        if let Some(mover) = self.mover.as_ref().filter(|_| len > 0) {
            // A command that expects data has opened memory for it.
            if let Some(memory) = mover.memory(tag) {
                tx.write(payload, part, memory.at.at(task.sent));
            }
            task.sent += len;
            self.counters.rdma_writes += 1;
            self.counters.bytes_out += u64::from(len);
        } else if len > 0 {
            let header = Data {
                cccid: U16::new(task.cid),
                datao: U32::new(task.sent),
                datal: U32::new(len),
                ..Data::default()
            };
            task.sent += len;
            let flags = match (last.is_some(), leave_out) {
                (true, true) => LAST_PDU | SUCCESS,
                (true, false) => LAST_PDU,
                (false, _) => 0,
            };
            self.counters.pdus_out += 1;
            self.counters.bytes_out += u64::from(len);
            put_payload(self.outbound, Type::C2hData, flags, header, (payload, part), tx);
            if leave_out {
                self.tasks.remove(tag);
                return;
            }
        }
        if let Some(completion) = last {
            self.complete(tag, completion, tx);
        }
    }
}
