//! Command capsules and their answers.

use super::connection::{Connection, Phase};
use super::event::{CloseReason, Command, Cx, Event, Site, Tag};
use super::rdma::Memory;
use super::rx::{Pending, Sink};
use super::task::{Stage, Task};
use crate::command::{Completion, Cqe, Direction, FABRICS, Fuse, Placement, Sqe};
use crate::fabrics::{CONNECT_DATA_LEN, Connect, ConnectData, FabricsType};
use crate::pdu::{CapsuleResp, FatalError, Type, U16, U64};
use crate::status::Status;
use crate::transmit::{Transmit, put};
use alloc::boxed::Box;
use zerocopy::{FromBytes, IntoBytes};

/// True for the commands of an authentication.
fn authenticates(sqe: &Sqe) -> bool {
    let send = FabricsType::AuthenticationSend.code();
    let receive = FabricsType::AuthenticationReceive.code();
    sqe.opcode == FABRICS && [send, receive].contains(&sqe.fctype())
}

/// A buffer for the data of a capsule, of which the queue has so many.
pub(super) fn alloc<S: Site>(capsules: u32, site: &mut S, len: usize) -> Option<S::Buf> {
    match (site.alloc(len), capsules) {
        (None, 0) => site.alloc_only(len),
        (buf, _) => buf,
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Connection<B> {
    /// A submission queue entry is there, and `data` bytes behind it in its capsule are to come.
    pub(super) fn begin_capsule<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        sqe: &Sqe,
        data: usize,
        cx: &mut Cx<'_, S, T>,
    ) {
        if self.is_full() && self.phase != Phase::Connect {
            let sequence = (FatalError::Sequence, 0);
            return self.terminate(CloseReason::QueueOverrun, sequence, cx);
        }
        let Some(tag) = self.tasks.insert(sqe.cid.get(), cx.now) else { return };
        if let Some(mover) = &mut self.mover {
            mover.remember(tag, None);
        }
        if self.phase == Phase::Connect {
            return self.begin_connect(tag, sqe, data, cx);
        }
        let stranger = self.phase == Phase::Authenticate && !authenticates(sqe);
        let refused = stranger.then_some(Status::AUTHENTICATION_REQUIRED);
        self.pending = Pending::Command(tag, *sqe);
        let transport = self.transport();
        let placed = refused.map_or_else(|| sqe.placement(data as u32, transport), Err);
        let placed = placed.and_then(|placement| self.place(tag, sqe, placement, data, cx.site));
        match placed.and_then(|()| self.fetch(tag, sqe, cx.site)) {
            Ok(false) => {}
            Ok(true) => self.pending = Pending::Nothing,
            Err(status) => {
                if let Some(task) = self.tasks.get_mut(tag) {
                    task.refused = Some(status);
                }
            }
        }
    }

    /// Decides where the data of a command goes.
    fn place<S: Site<Buf = B>>(
        &mut self,
        tag: Tag,
        sqe: &Sqe,
        placement: Placement,
        data: usize,
        site: &mut S,
    ) -> Result<(), Status> {
        let is_read = sqe.direction() == Some(Direction::Read);
        let Some(task) = self.tasks.get_mut(tag) else { return Ok(()) };
        match placement {
            Placement::None | Placement::Capsule { len: 0, .. } => {}
            Placement::Capsule { offset, len } => {
                task.expects_write = len;
                // Only which part of the buffer it is; the buffer comes when it is filled.
                let start = offset as usize;
                task.arrives = start..start + len as usize;
                // Over RDMA it may be in a buffer already.
                let kept = self.mover.as_mut().and_then(|mover| mover.keep(site));
                if let Some(buf) = kept {
                    self.sink = Sink::Buffer(Some(buf), data);
                    return Ok(());
                }
                if self.mover.is_some() {
                    let buf = site.alloc(data).ok_or(Status::INTERRUPTED.retry_after(1))?;
                    self.sink = Sink::Buffer(Some(buf), 0);
                    return Ok(());
                }
                match alloc(self.capsules, site, data) {
                    Some(buf) => {
                        self.sink = Sink::Buffer(Some(buf), 0);
                        self.has_buffer(tag);
                    }
                    None if self.refuses && self.r2ts > 0 => {
                        return Err(Status::INTERRUPTED.retry_after(2));
                    }
                    None => self.sink = Sink::Wanted(tag, data),
                }
            }
            Placement::Transport { len } | Placement::Keyed { len, .. } if is_read => {
                task.expects_read = len;
            }
            Placement::Transport { len } | Placement::Keyed { len, .. } => task.expects_write = len,
        }
        if let (Some(mover), Placement::Keyed { at, invalidate, .. }) = (&mut self.mover, placement)
        {
            mover.remember(tag, Some(Memory { at, invalidate }));
        }
        Ok(())
    }

    /// The data of a command's capsule has a buffer.
    pub(super) fn has_buffer(&mut self, tag: Tag) {
        if let Some(task) = self.tasks.get_mut(tag) {
            task.has_buffer = true;
            self.capsules += 1;
            self.refuses = false;
        }
    }

    fn begin_connect<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        tag: Tag,
        sqe: &Sqe,
        data: usize,
        cx: &mut Cx<'_, S, T>,
    ) {
        let connects = sqe.opcode == FABRICS && sqe.fctype() == FabricsType::Connect.code();
        if !connects {
            // Nothing but a Connect makes sense, and nothing else has ever been seen.
            let sequence = (FatalError::Sequence, 0);
            return self.terminate(CloseReason::NotConnected, sequence, cx);
        }
        let len = CONNECT_DATA_LEN as u32;
        let placed = match sqe.placement(data as u32, self.transport()) {
            Ok(Placement::Capsule { offset: 0, len: have }) if have == len => Ok(false),
            Ok(memory @ Placement::Keyed { len: have, .. }) if have == len => self
                .place(tag, sqe, memory, data, cx.site)
                .and_then(|()| self.fetch(tag, sqe, cx.site)),
            Ok(_) => Err(Status::DATA_LENGTH.no_retry()),
            Err(status) => Err(status),
        };
        self.pending = Pending::Connect(tag, *sqe);
        match placed {
            Ok(false) => {
                self.small.clear();
                self.sink = Sink::Small;
            }
            Ok(true) => {
                self.pending = Pending::Nothing;
                // Nothing else may come meanwhile: the queue has one entry until it is made.
                self.phase = Phase::Admission(tag);
            }
            Err(status) => {
                if let Some(task) = self.tasks.get_mut(tag) {
                    task.refused = Some(status);
                }
            }
        }
    }

    /// A Connect is complete.
    pub(super) fn connect_complete<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        tag: Tag,
        sqe: &Sqe,
        right: bool,
        cx: &mut Cx<'_, S, T>,
    ) {
        let small = core::mem::take(&mut self.small);
        let refused = self.tasks.get_mut(tag).and_then(|task| task.refused);
        let connect = match (refused, right, ConnectData::read_from_prefix(&small)) {
            (Some(status), _, _) => Err(status.into()),
            (None, true, Ok((data, _))) => Connect::decode(sqe, &data),
            _ => Err(Status::TRANSPORT.into()),
        };
        if let Some(task) = self.tasks.get_mut(tag) {
            task.stage = Stage::Running;
        }
        self.phase = Phase::Admission(tag);
        match connect {
            Ok(connect) => {
                self.asked = (connect.sqsize, connect.no_sq_flow);
                self.is_admin = connect.qid == 0;
                cx.events.push(Event::Connect(Box::new(connect)));
            }
            Err(why) => {
                self.counters.refused += 1;
                self.complete(tag, why, cx.tx);
                self.close(CloseReason::NotConnected, cx.events);
            }
        }
    }

    /// A command capsule is complete.
    pub(super) fn command_complete<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        tag: Tag,
        sqe: &Sqe,
        right: bool,
        cx: &mut Cx<'_, S, T>,
    ) {
        let Some(task) = self.tasks.get_mut(tag) else { return };
        if !right {
            task.refused = task.refused.or(Some(Status::TRANSPORT));
        }
        match sqe.fuse() {
            Ok(fuse) => self.fuse(tag, sqe, fuse, cx),
            Err(status) => {
                task.refused = Some(status);
                self.fuse(tag, sqe, Fuse::Normal, cx);
            }
        }
    }

    /// Pairs the commands of fused operations: by the order of their capsules.
    fn fuse<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        tag: Tag,
        sqe: &Sqe,
        fuse: Fuse,
        cx: &mut Cx<'_, S, T>,
    ) {
        match (self.first.take(), fuse) {
            (None, Fuse::Normal) => self.hand_up(tag, sqe, fuse, cx),
            (None, Fuse::First) => self.first = Some((tag, *sqe)),
            (None, Fuse::Second) => self.answer(tag, Status::MISSING_FUSED, cx.tx),
            (Some((first, other)), Fuse::Second) => {
                self.hand_up_pair((first, other), (tag, *sqe), cx)
            }
            (Some((first, _)), fuse) => {
                self.answer(first, Status::MISSING_FUSED, cx.tx);
                self.fuse(tag, sqe, fuse, cx);
            }
        }
    }

    /// Hands up both commands of a fused operation, or none.
    fn hand_up_pair<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        first: (Tag, Sqe),
        second: (Tag, Sqe),
        cx: &mut Cx<'_, S, T>,
    ) {
        let mut refused = |tag: Tag| self.tasks.get_mut(tag).and_then(|task| task.refused);
        let (one, other) = (refused(first.0), refused(second.0));
        if one.is_none() && other.is_none() {
            self.hand_up(first.0, &first.1, Fuse::First, cx);
            return self.hand_up(second.0, &second.1, Fuse::Second, cx);
        }
        self.answer(first.0, one.unwrap_or(Status::FAILED_FUSED), cx.tx);
        self.answer(second.0, other.unwrap_or(Status::FAILED_FUSED), cx.tx);
    }

    /// Gives a command to the layer above, unless it is refused.
    fn hand_up<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        tag: Tag,
        sqe: &Sqe,
        fuse: Fuse,
        cx: &mut Cx<'_, S, T>,
    ) {
        let Some(task) = self.tasks.get_mut(tag) else { return };
        if let Some(status) = task.refused {
            return self.answer(tag, status, cx.tx);
        }
        task.stage = Stage::Running;
        cx.events.push(Event::Command(Command {
            tag,
            sqe: *sqe,
            fuse,
            expects_read: task.expects_read,
            expects_write: task.expects_write,
            data: task.data.take(),
            arrived: task.arrived,
        }));
    }

    /// Aborts the first command of a fused operation that waits for the second, if it has this identifier. What comes then
    /// is the second of nothing.
    pub fn abort_first<T: Transmit>(&mut self, cid: u16, tx: &mut T) -> bool {
        let of = |(tag, sqe): (Tag, Sqe)| (sqe.cid.get() == cid).then_some(tag);
        let Some(tag) = self.first.and_then(of) else { return false };
        self.first = None;
        self.answer(tag, Status::ABORTED, tx);
        true
    }

    /// Answers a command that the layer above has never seen.
    fn answer<T: Transmit>(&mut self, tag: Tag, status: Status, tx: &mut T) {
        self.counters.refused += 1;
        self.finish(tag, status.into(), tx);
    }

    /// Completes a command. The answer waits until the host has sent all that it was asked for.
    pub fn complete<T: Transmit>(&mut self, tag: Tag, completion: Completion, tx: &mut T) {
        if self.phase == Phase::Closed {
            return;
        }
        let Some(task) = self.tasks.running(tag) else { return };
        if task.r2ts > 0 {
            task.stage = Stage::Ending(completion);
            return self.drop_waiting(tag);
        }
        self.drop_waiting(tag);
        self.finish(tag, completion, tx);
    }

    /// Forgets a command, and sends its completion queue entry.
    pub(super) fn finish<T: Transmit>(&mut self, tag: Tag, completion: Completion, tx: &mut T) {
        let Some(Task { cid, has_buffer, .. }) = self.tasks.remove(tag) else { return };
        self.capsules -= u32::from(has_buffer);
        let cqe = Cqe {
            result: U64::new(completion.result),
            sqhd: U16::new(self.next_sqhd()),
            sqid: U16::new(0),
            cid: U16::new(cid),
            status: U16::new(completion.status.bits() << 1),
        };
        self.counters.pdus_out += 1;
        if let Some(mover) = &self.mover {
            tx.bytes(cqe.as_bytes());
            return tx.end_send(mover.takes_back(tag));
        }
        let mut capsule = CapsuleResp::default();
        capsule.cqe.copy_from_slice(cqe.as_bytes());
        put(self.outbound, Type::CapsuleResp, 0, capsule, tx);
    }
}
