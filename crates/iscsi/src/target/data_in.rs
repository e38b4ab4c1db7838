//! Data-In, SCSI Response and residuals (RFC 7143 sections 11.4 and 11.7).

use super::connection::{Connection, Phase};
use super::out::put_header;
use super::rx::{Pending, Sink};
use super::task::{Kind, Task};
use super::{Payload, Response, Tag, Transmit, Wanted};
use crate::digest::Crc32c;
use crate::pdu::{self, U24, U32, Wire};
use core::ops::Range;

/// Most sense data that is sent, in bytes (SPC-4).
const MAX_SENSE: usize = 252;

/// One residual: flag bits and count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Residual {
    over: bool,
    count: u32,
}

impl Residual {
    /// Compares what was expected with what was wanted or moved.
    const fn new(expected: u32, moved: u32) -> Self {
        Self { over: moved > expected, count: moved.abs_diff(expected) }
    }

    /// The flags, given the bits for overflow and underflow.
    const fn flags(self, over: u8, under: u8) -> u8 {
        match (self.count, self.over) {
            (0, _) => 0,
            (_, true) => over,
            (_, false) => under,
        }
    }
}

/// The residual of a task and, for a bidirectional one, of its read part.
fn residuals<B>(task: &Task<B>, wanted: Option<Wanted>) -> (Residual, Residual) {
    let wanted = wanted.unwrap_or(Wanted { read: task.sent, write: task.received });
    let read = Residual::new(task.expects_read, wanted.read);
    match (task.reads, task.writes) {
        (true, true) => (Residual::new(task.expects_write, wanted.write), read),
        (true, false) => (read, Residual::default()),
        (false, true) => (Residual::new(task.expects_write, wanted.write), Residual::default()),
        (false, false) => (Residual::new(0, wanted.read.max(wanted.write)), Residual::default()),
    }
}

/// One Data-In: how much, and whether its sequence ends with it.
#[derive(Clone, Copy)]
struct Segment {
    len: u32,
    is_final: bool,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Connection<B> {
    /// Sends the next part of the command's data: `range` of `payload`. What goes beyond the
    /// expected length is cut off. `last`: this is the end of the command, with status GOOD, which
    /// goes out with the last Data-In, or in a SCSI Response if no data is to be sent.
    pub fn send_data<T: Transmit>(
        &mut self,
        tag: Tag,
        payload: T::Payload,
        range: Range<usize>,
        last: Option<Wanted>,
        tx: &mut T,
    ) {
        let Some(task) = self.tasks.get(tag).filter(|task| task.kind == Kind::Running) else {
            return;
        };
        if self.phase == Phase::Closed {
            return;
        }
        let room = task.expects_read - task.sent;
        let len = u32::try_from(range.len()).unwrap_or(u32::MAX).min(room);
        if len == 0 {
            if let Some(wanted) = last {
                self.respond(tag, Response::good(wanted), tx);
            }
            return;
        }
        if self.mover.is_some() {
            return self.put_data(tag, payload, range.start..range.start + len as usize, last, tx);
        }
        let all = len == room || last.is_some();
        self.digest_segments(task.sequence, len, all, &payload, range.start);
        let id = tx.payload(payload);
        let (mut left, mut at, mut index) = (len, range.start, 0);
        while left > 0 {
            let Some(task) = self.tasks.get(tag) else { return };
            let segment = self.segment(task.sequence, left, all);
            left -= segment.len;
            let status = last.filter(|_| left == 0);
            self.send_segment(tag, segment, status, tx);
            let len = segment.len as usize;
            tx.slice(id, at..at + len);
            tx.bytes(&[0; 3][..pdu::padding(len)]);
            if let Some(crc) = self.crcs.get(index) {
                tx.bytes(crc);
            }
            at += len;
            index += 1;
        }
        if last.is_some() {
            self.forget(tag);
        }
    }

    /// The next Data-In of `left` bytes that continue a sequence; `all`: nothing follows them.
    fn segment(&self, sequence: u32, left: u32, all: bool) -> Segment {
        let n = &self.negotiated;
        let burst = n.max_burst_length - sequence;
        let len = left.min(n.initiator_max_recv).min(burst);
        Segment { len, is_final: len == burst || (all && len == left) }
    }

    /// Computes the data digests of the Data-Ins to come, while the payload is at hand.
    fn digest_segments(
        &mut self,
        mut sequence: u32,
        mut left: u32,
        all: bool,
        payload: &impl Payload,
        mut at: usize,
    ) {
        self.crcs.clear();
        while self.digests.data && left > 0 {
            let Segment { len, is_final } = self.segment(sequence, left, all);
            let mut crc = Crc32c::new();
            payload.crc32c(at..at + len as usize, &mut crc);
            crc.pad(len as usize);
            self.crcs.push(crc.finish());
            sequence = if is_final { 0 } else { sequence + len };
            left -= len;
            at += len as usize;
        }
    }

    /// Writes the header of one Data-In, with status GOOD if the command ends with it.
    fn send_segment<T: Transmit>(
        &mut self,
        tag: Tag,
        segment: Segment,
        last: Option<Wanted>,
        tx: &mut T,
    ) {
        if last.is_some() {
            // The place in the window is free with this PDU.
            self.tasks.leave_window(tag);
        }
        let n = self.numbers(last.is_some());
        let Some(task) = self.tasks.get_mut(tag) else { return };
        let mut pdu = pdu::DataIn {
            data_len: U24::new(segment.len),
            itt: U32::new(task.itt),
            ttt: U32::new(pdu::RESERVED_TAG),
            exp_cmd_sn: n.exp_cmd_sn,
            max_cmd_sn: n.max_cmd_sn,
            data_sn: U32::new(task.pdu_sn),
            offset: U32::new(task.sent),
            ..Default::default()
        };
        task.pdu_sn = task.pdu_sn.wrapping_add(1);
        task.sent += segment.len;
        task.sequence = if segment.is_final { 0 } else { task.sequence + segment.len };
        if segment.is_final {
            pdu.flags |= pdu::FINAL;
        }
        if last.is_some() {
            let (residual, _) = residuals(task, last);
            pdu.flags |= pdu::STATUS | residual.flags(pdu::OVERFLOW, pdu::UNDERFLOW);
            pdu.residual = U32::new(residual.count);
            pdu.stat_sn = n.stat_sn;
        }
        self.counters.pdus_out += 1;
        self.counters.bytes_in += u64::from(segment.len);
        put_header(self.digests, pdu.as_bhs(), tx);
    }

    /// Ends a command with a SCSI Response.
    pub fn respond<T: Transmit>(&mut self, tag: Tag, response: Response<'_>, tx: &mut T) {
        if self.tasks.get(tag).is_none_or(|task| task.kind != Kind::Running) {
            return;
        }
        if self.mover.is_some() && self.must_wait(tag, &response) {
            return;
        }
        let Some(task) = self.forget(tag) else { return };
        if self.phase == Phase::Closed {
            return;
        }
        let n = self.numbers(true);
        let (residual, read) = residuals(&task, response.wanted);
        let most = MAX_SENSE.min(self.send_limit() - 2);
        let sense = &response.sense[..response.sense.len().min(most)];
        let prefix = (sense.len() as u16).to_be_bytes();
        let prefix = if sense.is_empty() { &[][..] } else { &prefix[..] };
        let pdu = pdu::ScsiResponse {
            flags: pdu::FINAL
                | residual.flags(pdu::OVERFLOW, pdu::UNDERFLOW)
                | read.flags(pdu::BIDI_OVERFLOW, pdu::BIDI_UNDERFLOW),
            status: response.status,
            data_len: U24::new((prefix.len() + sense.len()) as u32),
            itt: U32::new(task.itt),
            stat_sn: n.stat_sn,
            exp_cmd_sn: n.exp_cmd_sn,
            max_cmd_sn: n.max_cmd_sn,
            exp_data_sn: U32::new(task.pdu_sn),
            bidi_residual: U32::new(read.count),
            residual: U32::new(residual.count),
            ..Default::default()
        };
        let stag = self.mover.as_ref().and_then(|mover| mover.takes_back(tag));
        self.send_back(&pdu, [prefix, sense], stag, tx);
    }

    /// Forgets a task: nothing is sent for it any more, its late data is swallowed.
    pub fn abort(&mut self, tag: Tag) {
        self.forget(tag);
    }

    /// Removes a task and all that belongs to it.
    pub(super) fn forget(&mut self, tag: Tag) -> Option<Task<B>> {
        let task = self.tasks.remove(tag)?;
        if task.r2ts > 0 || task.waiting.is_some() {
            let lent = self.transfers.remove_task(tag);
            if let Some(mover) = &mut self.mover {
                mover.gone(tag, lent);
            }
        }
        let receiving = match self.rx.pending {
            Pending::Command(current)
            | Pending::Unsolicited(current)
            | Pending::Solicited(current, _) => current == tag,
            Pending::Nothing | Pending::Reject(_) | Pending::Other => false,
        };
        if receiving {
            self.rx.sink = Sink::Discard;
        }
        Some(task)
    }
}
