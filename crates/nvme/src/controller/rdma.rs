//! The controller's end over RDMA: capsules are Sends, data is moved by RDMA Writes and Reads.
//!
//! Commands, pairs, and who waits for what are the same as over TCP. What differs is the seam of
//! three calls: a capsule comes whole ([`Connection::rx_send`]), `send_data` is an RDMA Write, and
//! `solicit` is an RDMA Read, whose buffer is lent out by [`Connection::take_rdma_read`].

use super::connection::{Connection, Options, Phase};
use super::event::{CloseReason, Cx, Site, Tag};
use super::rx::{Pending, Sink};
use super::task::{Stage, Transfer};
use crate::command::{FABRICS, Sqe};
use crate::pdu::ADMIN_CAPSULE_DATA;
use crate::rdma::Remote;
use crate::status::Status;
use crate::transmit::Transmit;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;
use zerocopy::FromBytes;

/// What a connection over RDMA has besides its [`Options`].
#[derive(Clone, Copy, Debug)]
pub struct RdmaOptions {
    /// The device can take back keys of hosts (Send with Invalidate).
    pub invalidate: bool,
}

/// A Send as its receive has it: the first bytes, and those behind them in a buffer of its own.
#[derive(Debug)]
pub struct Received<'a, B> {
    /// The first bytes: at least the submission queue entry, unless the Send ends before.
    pub head: &'a [u8],
    /// What is behind them.
    pub body: Option<Body<'a, B>>,
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
        Self { head, body: None }
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
    index: u32,
    number: u32,
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

/// The memory of a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub at: Remote,
    /// The host asks for its key to be taken back with the completion.
    pub invalidate: bool,
}

/// What a connection over RDMA keeps.
#[derive(Debug)]
pub(super) struct Mover<B> {
    /// The device can take keys back.
    invalidate: bool,
    /// The memory of the commands, by the slots of their tags. Not in the tasks, which would grow
    /// for streams as well.
    memory: Vec<Option<Memory>>,
    /// A command for each RDMA Read that may be posted, in order. It may have ended since.
    reads: VecDeque<Tag>,
    /// Commands whose data is read before the layer above has them.
    fetches: Vec<(Tag, Sqe)>,
    /// The buffer with the data of the capsule that is looked at, which its command may keep.
    offered: Option<B>,
}

impl<B> Mover<B> {
    /// The buffer with the data of this capsule, for its command to keep.
    pub fn keep<S: Site<Buf = B>>(&mut self, site: &mut S) -> Option<B> {
        let keeps = site.keep(self.offered.as_mut()?);
        self.offered.take_if(|_| keeps)
    }

    /// Keeps what a command has opened.
    pub fn remember(&mut self, tag: Tag, memory: Option<Memory>) {
        let slot = tag.slot();
        if self.memory.len() <= slot {
            self.memory.resize(slot + 1, None);
        }
        self.memory[slot] = memory;
    }

    /// What a command has opened.
    pub fn memory(&self, tag: Tag) -> Option<Memory> {
        self.memory.get(tag.slot()).copied().flatten()
    }

    /// The key that the completion of a command takes back: the one for which the host asked.
    pub fn takes_back(&self, tag: Tag) -> Option<u32> {
        let memory = self.memory(tag).filter(|memory| memory.invalidate && self.invalidate)?;
        Some(memory.at.key)
    }

    /// A transfer of this command waits for its RDMA Read.
    pub fn queue(&mut self, tag: Tag) {
        self.reads.push_back(tag);
    }

    /// No transfer of this command waits any more.
    pub fn forget(&mut self, tag: Tag) {
        self.reads.retain(|waiting| *waiting != tag);
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Connection<B> {
    /// A connection over RDMA on which nothing was received yet. Of `options`, those about R2Ts and
    /// H2CData mean nothing.
    #[must_use]
    pub fn over_rdma(options: Options, rdma: RdmaOptions, now: Duration) -> Self {
        let mut connection = Self::new(options, now);
        connection.phase = Phase::Connect;
        connection.mover = Some(Box::new(Mover {
            invalidate: rdma.invalidate,
            memory: Vec::new(),
            reads: VecDeque::new(),
            fetches: Vec::new(),
            offered: None,
        }));
        connection
    }

    /// True over RDMA.
    #[must_use]
    pub const fn is_rdma(&self) -> bool {
        self.mover.is_some()
    }

    /// How long each receive must be over RDMA, in bytes: the first part, which is a submission queue entry, and the
    /// data of a capsule behind it. There is nothing else.
    #[must_use]
    pub const fn receive_parts(options: &Options) -> [usize; 3] {
        [size_of::<Sqe>(), options.capsule_data as usize, 0]
    }

    /// A Send has come, which is a command capsule. Its buffers can be posted again after the call.
    pub fn rx_send<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        message: Received<'_, B>,
        cx: &mut Cx<'_, S, T>,
    ) {
        if self.phase == Phase::Closed {
            return;
        }
        self.counters.pdus_in += 1;
        let Received { head, mut body } = message;
        let Ok((sqe, first)) = Sqe::read_from_prefix(head) else {
            return self.close(CloseReason::ShortCapsule, cx.events);
        };
        // What is longer than a capsule may be is not looked at: an SGL that names it is refused.
        let behind = body.as_ref().map_or(0, |body| body.len);
        let len = (first.len() + behind).min(self.options.capsule_data as usize);
        (self.sink, self.pending) = (Sink::Discard, Pending::Nothing);
        let whole = body.as_mut().filter(|_| first.is_empty());
        let offered = whole.and_then(|body| body.offer(len));
        let mut kept = offered.is_some();
        if let Some(mover) = &mut self.mover {
            mover.offered = offered;
        }
        self.begin_capsule(&sqe, len, cx);
        let left = self.mover.as_mut().and_then(|mover| mover.offered.take());
        if let (Some(body), Some(buf)) = (&mut body, left) {
            body.take_back(buf);
            kept = false;
        }
        if self.phase == Phase::Closed {
            return;
        }
        if kept {
            self.counters.bytes_in += len as u64;
        } else {
            let first = &first[..first.len().min(len)];
            self.fill(first);
            let behind = body.as_ref().map_or(&[][..], |body| body.buf.as_ref());
            self.fill(&behind[..len - first.len()]);
        }
        self.pdu_complete(true, cx);
    }

    /// True if the data of a command is read before the layer above has the command. Over TCP the
    /// capsules of these commands carry their data.
    fn is_fetched(&self, sqe: &Sqe) -> bool {
        self.is_admin || sqe.opcode == FABRICS
    }

    /// Reads the data of a command from the host's memory, if it has some there that the layer
    /// above is to have with the command. True if the command waits for that.
    pub(super) fn fetch<S: Site<Buf = B>>(
        &mut self,
        tag: Tag,
        sqe: &Sqe,
        site: &mut S,
    ) -> Result<bool, Status> {
        let Some(task) = self.tasks.get_mut(tag) else { return Ok(false) };
        let len = task.expects_write;
        // Data in the capsule has a place where it arrives.
        if self.mover.is_none() || len == 0 || !task.arrives.is_empty() || !self.is_fetched(sqe) {
            return Ok(false);
        }
        if len > ADMIN_CAPSULE_DATA {
            return Err(Status::DATA_LENGTH.no_retry());
        }
        let buf = site.alloc(len as usize).ok_or(Status::INTERRUPTED.retry_after(1))?;
        self.queue_transfer(tag, 0, len, buf);
        if let Some(mover) = &mut self.mover {
            mover.fetches.push((tag, *sqe));
        }
        Ok(true)
    }

    /// The next RDMA Read to post. The caller may leave some for later when its send queue is full,
    /// or the host serves no more at a time. None after the connection is over.
    pub fn take_rdma_read(&mut self) -> Option<RdmaRead<B>> {
        if self.phase == Phase::Closed {
            return None;
        }
        loop {
            let mover = self.mover.as_mut()?;
            let tag = mover.reads.pop_front()?;
            let memory = mover.memory(tag);
            let (Some(memory), Some(index)) = (memory, self.start_transfer(tag)) else { continue };
            let Some(transfer) = self.transfers.0.get_mut(index) else { continue };
            let Some(buf) = transfer.buf.take() else { continue };
            self.counters.rdma_reads += 1;
            let id = ReadId { index: index as u32, number: transfer.order as u32 };
            let (len, from) = (transfer.len, memory.at.at(transfer.offset));
            return Some(RdmaRead { id, buf, len, from });
        }
    }

    /// An RDMA Read has filled its buffer. Reads may complete in any order. If one failed, the
    /// connection is broken: it is dropped then.
    pub fn rdma_read_done<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        id: ReadId,
        buf: B,
        cx: &mut Cx<'_, S, T>,
    ) {
        let index = id.index as usize;
        let known = |transfer: &&mut Transfer<B>| transfer.order as u32 == id.number;
        let Some(transfer) = self.transfers.0.get_mut(index).filter(known) else { return };
        if self.phase == Phase::Closed {
            return;
        }
        let tag = transfer.task;
        transfer.received = transfer.len;
        transfer.buf = Some(buf);
        self.counters.bytes_in += u64::from(transfer.len);
        let arrives = self.tasks.get_mut(tag).is_some_and(|task| task.stage == Stage::Arriving);
        match arrives {
            true => self.fetched(tag, index, cx),
            false => self.transfer_over(tag, index, cx),
        }
    }

    /// The data that a command waited for is here.
    fn fetched<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        tag: Tag,
        index: usize,
        cx: &mut Cx<'_, S, T>,
    ) {
        let transfer = self.transfers.0.try_remove(index);
        self.r2ts -= 1;
        let Some(mover) = &mut self.mover else { return };
        let Some(at) = mover.fetches.iter().position(|(fetched, _)| *fetched == tag) else {
            return;
        };
        let (_, sqe) = mover.fetches.swap_remove(at);
        let Some(task) = self.tasks.get_mut(tag) else { return };
        task.r2ts -= 1;
        let (len, buf) =
            transfer.map_or((0, None), |transfer| (transfer.len as usize, transfer.buf));
        if self.phase == Phase::Admission(tag) {
            self.small.clear();
            self.small.extend_from_slice(&buf.as_ref().map_or(&[][..], B::as_ref)[..len]);
            return self.connect_complete(tag, &sqe, true, cx);
        }
        task.data = buf.map(|buf| (buf, 0..len));
        self.command_complete(tag, &sqe, true, cx);
    }
}
