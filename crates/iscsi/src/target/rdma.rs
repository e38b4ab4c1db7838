//! The target's datamover over RDMA (RFC 7145 section 7, RFC 5047 section 6).

use super::connection::{Connection, Phase};
use super::event::{CloseReason, Event, Response, Wanted};
use super::login::MAX_LOGIN_SEGMENT;
use super::mover::{Answer, Mover};
use super::options::{DigestPolicy, MAX_IMMEDIATE, Options};
use super::task::{Kind, Task};
use super::{Cx, Site, Tag, Transmit};
use crate::iser::{self, HEADER_LEN, Header, HeaderError, Kind as SendKind, Remote, SMALL_SEGMENT};
use crate::pdu::{self, BHS_LEN, BasicHeader, Bhs};
use crate::target::negotiation::RdmaTerms;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use core::time::Duration;
use thiserror::Error;

/// What a connection over RDMA has besides its [`Options`].
#[derive(Clone, Copy, Debug)]
pub struct RdmaOptions {
    /// Longest data segment of a Send to this target, in bytes: TargetRecvDataSegmentLength. At
    /// least 8192, which a login may need, whatever is said here.
    pub recv_data_segment_length: u32,
    /// Whether SCSI Responses take back the steering tags of their commands: what the reply to the
    /// connect request said, see [`ConnectData::reply`](crate::iser::ConnectData::reply).
    pub invalidate: bool,
}

/// What is wrong with a Send of the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SendFault {
    /// The iSER header.
    #[error("{0}")]
    Header(#[from] HeaderError),
    /// An iSER Hello or HelloReply; this target expects none.
    #[error("it is an iSER Hello, and logins come without one here")]
    Hello,
    /// The PDU ends before its header says so.
    #[error("it ends before its PDU does")]
    Truncated,
}

/// Why an RDMA connection broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RdmaFault {
    /// The initiator's memory cannot be reached with the steering tag and address that it gave.
    #[error("the initiator's memory cannot be reached with the key that it gave")]
    RemoteAccess,
    /// The initiator had posted no receive for a Send.
    #[error("the initiator had no receive buffer for a Send")]
    NoReceive,
    /// A Send did not fit into the receive buffer, at this end or at the other.
    #[error("a Send was longer than the receive buffer")]
    TooLong,
    /// More Sends came than the initiator may have without an answer.
    #[error("the initiator sends more than its command window allows")]
    Flood,
    /// The initiator closed the connection, or cannot be reached.
    #[error("the initiator is gone")]
    Disconnected,
    /// The device failed.
    #[error("the RDMA device failed")]
    Device,
}

/// A Send as its receive has it: the first bytes, those behind them in a buffer of its own, and the rest.
#[derive(Debug)]
pub struct Received<'a, B> {
    /// The first bytes: at least the iSER header and the basic header segment, unless the Send ends before.
    pub head: &'a [u8],
    /// What is behind them.
    pub body: Option<Body<'a, B>>,
    /// What is behind the body.
    pub tail: &'a [u8],
}

/// Bytes of a Send in a buffer that a command may keep.
#[derive(Debug)]
pub struct Body<'a, B> {
    /// The buffer, in which another one is after the call if a command has kept it.
    pub buf: &'a mut B,
    /// How many bytes have come, from its first on.
    pub len: usize,
    /// A buffer to take its place, of the same length. Without one nothing is kept.
    pub spare: &'a mut Option<B>,
}

impl<'a, B> From<&'a [u8]> for Received<'a, B> {
    fn from(head: &'a [u8]) -> Self {
        Self { head, body: None, tail: &[] }
    }
}

impl<B: AsRef<[u8]>> Body<'_, B> {
    /// Takes the buffer out, to be kept for this much data. None if there is no other, or if it is more than twice as
    /// long: small data is copied rather than that much memory held for it.
    fn offer(&mut self, data: usize) -> Option<B> {
        if self.len < data || data * 2 < self.buf.as_ref().len() {
            return None;
        }
        let spare = self.spare.take()?;
        Some(core::mem::replace(self.buf, spare))
    }

    /// Puts the buffer back, which nobody has kept.
    fn take_back(&mut self, buf: B) {
        *self.spare = Some(core::mem::replace(self.buf, buf));
    }
}

/// Names an RDMA Read of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadId {
    pub(super) index: u32,
    pub(super) number: u32,
}

impl ReadId {
    /// The name as a number, for tokens.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        (self.number as u64) << 32 | self.index as u64
    }

    /// The name from [`ReadId::to_bits`].
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self { index: bits as u32, number: (bits >> 32) as u32 }
    }
}

/// An RDMA Read to post. Its buffer comes back with
/// [`rdma_read_done`](Connection::rdma_read_done), or is dropped when the connection is over.
#[derive(Debug)]
pub struct RdmaRead<B> {
    /// Names it.
    pub id: ReadId,
    /// Takes the data, from its first byte on.
    pub buf: B,
    /// How much to read, in bytes.
    pub len: u32,
    /// Where from.
    pub from: Remote,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Connection<B> {
    /// A connection over RDMA on which nothing was received yet. Digests are off, whatever
    /// `options` say.
    #[must_use]
    pub fn over_rdma(options: Options, rdma: RdmaOptions, now: Duration) -> Self {
        let segment = rdma.recv_data_segment_length.max(MAX_LOGIN_SEGMENT as u32);
        let options = Options {
            max_recv_data_segment_length: segment,
            header_digest: DigestPolicy::Forbid,
            data_digest: DigestPolicy::Forbid,
            ..options
        };
        let mut connection = Self::new(options, now);
        connection.negotiated.rdma = Some(RdmaTerms::default());
        connection.mover = Some(Box::new(Mover::new(rdma.invalidate)));
        connection
    }

    /// True over RDMA.
    #[must_use]
    pub fn is_rdma(&self) -> bool {
        self.mover.is_some()
    }

    /// How long each receive must be over RDMA, in bytes: the first part, which both headers fill, the one behind it,
    /// where the data of a PDU without additional header segments comes, and the rest.
    #[must_use]
    pub fn receive_parts(&self) -> [usize; 3] {
        let segment = self.options.max_recv_data_segment_length as usize;
        let first = HEADER_LEN + BHS_LEN;
        [first, segment, iser::receive_len(segment) - first - segment]
    }

    /// How many receives to keep posted over RDMA: for the commands that the window allows, the
    /// immediate ones, and for what comes without being announced. With InitialR2T=No each
    /// command may send more of that; the fabric makes the initiator wait then.
    #[must_use]
    pub fn receives(&self) -> usize {
        (self.options.window() + MAX_IMMEDIATE) as usize
    }

    /// Most bytes of data in a PDU that is no Data-In.
    pub(super) fn send_limit(&self) -> usize {
        let declared = self.negotiated.initiator_max_recv as usize;
        match (&self.mover, self.discovery) {
            (None, _) => declared,
            (Some(_), true) => declared.min(MAX_LOGIN_SEGMENT),
            (Some(_), false) => declared.min(SMALL_SEGMENT),
        }
    }

    /// A Send has come. Its buffers can be posted again after the call.
    pub fn rx_send<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        message: Received<'_, B>,
        cx: &mut Cx<'_, S, T>,
    ) {
        if self.phase == Phase::Closed {
            return;
        }
        self.heard(cx.now);
        let Received { head, mut body, tail } = message;
        let behind = body.as_ref().map_or(0, |body| body.len);
        let Parts { header, pdu, len, data } = match take_apart(head, behind + tail.len()) {
            Ok(parts) => parts,
            Err(fault) => {
                self.counters.format_errors += 1;
                return self.close(CloseReason::Send(fault), cx.events);
            }
        };
        let Some(mover) = &mut self.mover else {
            debug_assert!(false, "a Send on a stream");
            return;
        };
        mover.opened = header;
        // Without additional header segments the body begins with the data segment.
        let whole = body.as_mut().filter(|_| data > 0 && pdu.len() == len - data);
        mover.offered = whole.and_then(|body| body.offer(data));
        let mut kept = mover.offered.is_some();
        // A Send is a whole PDU, so the receiver of the stream stands at a header again behind it.
        self.rx_bytes(pdu, cx);
        let left = self.mover.as_mut().and_then(|mover| mover.offered.take());
        if let (Some(body), Some(buf)) = (&mut body, left) {
            body.take_back(buf);
            kept = false;
        }
        if kept && self.phase != Phase::Closed {
            self.data_arrived(data, cx);
        } else if !kept {
            let body = body.as_ref().map_or(&[][..], |body| &body.buf.as_ref()[..body.len]);
            let mut left = len - pdu.len();
            for part in [body, tail] {
                let part = &part[..part.len().min(left)];
                left -= part.len();
                self.rx_bytes(part, cx);
            }
        }
        self.rx_bytes(&[0; 3][..pdu::padding(len)], cx);
    }

    /// The RDMA connection is over: it broke, or the initiator closed it.
    pub fn rdma_failed(&mut self, fault: RdmaFault, events: &mut Vec<Event<B>>) {
        self.close(CloseReason::Rdma(fault), events);
    }

    /// Put_Data: moves a part of a read's data into the initiator's memory.
    pub(super) fn put_data<T: Transmit>(
        &mut self,
        tag: Tag,
        payload: T::Payload,
        range: Range<usize>,
        last: Option<Wanted>,
        tx: &mut T,
    ) {
        let (Some(mover), Some(task)) = (&self.mover, self.tasks.get_mut(tag)) else { return };
        // A command that expects data has opened its memory, or it would have been rejected.
        let Some(memory) = mover.memory(tag).read else { return };
        let (to, len) = (memory.at(task.sent), range.len() as u32);
        task.sent += len;
        self.counters.bytes_in += u64::from(len);
        self.counters.rdma_writes += 1;
        let id = tx.payload(payload);
        tx.write(id, range, to);
        if let Some(wanted) = last {
            self.respond(tag, Response::good(wanted), tx);
        }
    }

    /// Get_Data: queues the RDMA Read of a transfer.
    pub(super) fn get_data(&mut self, tag: Tag, index: usize) {
        let (Some(mover), Some(task), Some(transfer)) =
            (&mut self.mover, self.tasks.get_mut(tag), self.transfers.get_mut(index))
        else {
            return;
        };
        let Some(memory) = mover.memory(tag).write else { return };
        // The memory begins with the command's data, or behind what came without being asked for.
        let only = self.negotiated.rdma.is_none_or(|terms| terms.solicited_only);
        let skipped = if only { task.filled } else { 0 };
        debug_assert!(transfer.offset >= skipped, "data that came already");
        mover.next_read = mover.next_read.wrapping_add(1);
        transfer.read = mover.next_read;
        task.r2ts += 1;
        let id = ReadId { index: index as u32, number: transfer.read };
        mover.reads.push_back((id, memory.at(transfer.offset.saturating_sub(skipped))));
    }

    /// The next RDMA Read to post. The caller may leave some for later when its send queue is
    /// full. None after the connection is over.
    pub fn take_rdma_read(&mut self) -> Option<RdmaRead<B>> {
        let mover = self.mover.as_mut().filter(|_| self.phase != Phase::Closed)?;
        while let Some((id, from)) = mover.reads.pop_front() {
            // Not there any more: the task was aborted or answered in the meantime.
            let transfer = self.transfers.get_mut(id.index as usize);
            let Some(transfer) = transfer.filter(|transfer| transfer.read == id.number) else {
                continue;
            };
            let Some(buf) = transfer.buf.take() else { continue };
            transfer.in_flight = true;
            self.counters.rdma_reads += 1;
            return Some(RdmaRead { id, buf, len: transfer.len, from });
        }
        None
    }

    /// An RDMA Read has filled its buffer. Reads may complete in any order. If it failed, the
    /// connection is broken: call [`rdma_failed`](Self::rdma_failed) instead.
    pub fn rdma_read_done<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        id: ReadId,
        buf: B,
        cx: &mut Cx<'_, S, T>,
    ) {
        if self.phase == Phase::Closed {
            return;
        }
        let index = id.index as usize;
        let own = self.transfers.get_mut(index).filter(|transfer| transfer.read == id.number);
        if own.is_none() {
            return self.orphan_came_back(cx.tx);
        }
        let Some(transfer) = self.transfers.remove(index) else { return };
        let tag = transfer.task;
        let Some(task) = self.tasks.get_mut(tag) else { return };
        task.r2ts -= 1;
        self.counters.bytes_out += u64::from(transfer.len);
        if task.kind == Kind::Answered {
            return self.answer_late(tag, cx.tx);
        }
        if task.failure.is_some() {
            return self.transfer_failed(tag, None, cx);
        }
        task.received = task.received.saturating_add(transfer.len);
        cx.events.push(Event::Data { tag, offset: transfer.offset, len: transfer.len, buf });
    }

    /// True if an answer has to wait for RDMA Reads of its command, whose memory the initiator
    /// takes back with it. It is sent when the last of them is back.
    pub(super) fn must_wait(&mut self, tag: Tag, response: &Response<'_>) -> bool {
        let Some(task) = self.tasks.get_mut(tag).filter(|task| task.r2ts > 0) else { return false };
        task.r2ts -= self.transfers.remove_unlent(tag);
        if task.r2ts == 0 {
            return false;
        }
        task.kind = Kind::Answered;
        let (status, wanted) = (response.status, response.wanted);
        if let Some(mover) = &mut self.mover {
            let sense = response.sense.to_vec();
            mover.late.push((tag, Answer { status, sense, wanted }));
        }
        true
    }

    /// Sends an answer that has waited, when no RDMA Read of the task is under way any more.
    fn answer_late<T: Transmit>(&mut self, tag: Tag, tx: &mut T) {
        let ready = |task: &&mut Task<B>| task.r2ts == 0;
        let (Some(mover), Some(task)) = (&mut self.mover, self.tasks.get_mut(tag).filter(ready))
        else {
            return;
        };
        let Some(index) = mover.late.iter().position(|(late, _)| *late == tag) else { return };
        task.kind = Kind::Running;
        let (_, Answer { status, sense, wanted }) = mover.late.swap_remove(index);
        self.respond(tag, Response { status, sense: &sense, wanted }, tx);
        self.send_held(tx);
    }

    /// An RDMA Read of a task that is gone came back.
    fn orphan_came_back<T: Transmit>(&mut self, tx: &mut T) {
        if let Some(mover) = &mut self.mover {
            mover.orphans = mover.orphans.saturating_sub(1);
        }
        self.send_held(tx);
    }

    /// Sends the answers to task management functions that have waited, when nothing is in their
    /// way any more.
    fn send_held<T: Transmit>(&mut self, tx: &mut T) {
        let Some(mover) = self.mover.as_mut().filter(|mover| !mover.is_busy()) else { return };
        for (itt, response) in core::mem::take(&mut mover.held) {
            self.answer_tmf(itt, response, tx);
        }
    }
}

/// A Send, taken apart.
struct Parts<'a> {
    header: Header,
    /// What its first bytes have of the PDU.
    pdu: &'a [u8],
    /// Length of the PDU without padding, and of its data segment.
    len: usize,
    data: usize,
}

/// The iSER header of a Send and its PDU, without what may follow it. `behind`: bytes behind its first ones.
fn take_apart(head: &[u8], behind: usize) -> Result<Parts<'_>, SendFault> {
    let (kind, pdu) = Header::split(head)?;
    let SendKind::Control(header) = kind else { return Err(SendFault::Hello) };
    let Some(bhs) = pdu.first_chunk::<BHS_LEN>() else { return Err(SendFault::Truncated) };
    let bhs: &Bhs = bhs;
    let basic = BasicHeader::from_bhs(bhs);
    let data = basic.data_len();
    let len = BHS_LEN + basic.ahs_len() + data;
    if len > pdu.len() + behind {
        return Err(SendFault::Truncated);
    }
    Ok(Parts { header, pdu: &pdu[..pdu.len().min(len)], len, data })
}
