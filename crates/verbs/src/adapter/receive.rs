//! Receives: their memory, lists of them, and the queue that connections share.
//!
//! # Receives that are missing
//!
//! A queue pair takes a receive from the shared queue with the first packet of a message. If it ends before the
//! last, the receive should come back flushed (InfiniBand Architecture Specification, volume 1, 10.3.1), but not
//! every driver sees to that: soft RoCE of newer kernels forgets it, cards report it a moment after the
//! queue pair has failed, and of one that was destroyed before that nothing is reported at all. Nor do all of
//! them tell of the last receive (`IBV_EVENT_QP_LAST_WQE_REACHED`), which would say no more than that nothing
//! else is to come.
//!
//! So two questions are kept apart:
//! - Whose memory is it? The device's, until it reports the receive's end or its queue is destroyed. Nothing is
//!   guessed here: a receive that is given up for lost stays in [`Adapter::receives`] all the same.
//! - How many can still take a message? Of those that were posted, all but the [lost](SharedQueue::lost): one for
//!   each connection that has ended, as a queue pair is in the middle of one message at most, until it is clear
//!   which ones are missing. It is clear when receives have ended on all connections that were posted
//!   later: a queue is taken from in order. If a device does otherwise, this number is wrong for a while, and
//!   nothing else.
//!
//! The owner of the adapter posts others for the lost ones; the queue has room for half as many more. If more
//! are lost, connections to come have a queue of their own, which gives all back when it is destroyed, and a
//! new shared one begins when the last connection of the old one is gone.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::mem;
use std::ptr::{self, NonNull};
use std::rc::Rc;

use arrayvec::ArrayVec;
use lunet_ring::{Buf, Key, Slots};

use super::poll::span;
use super::work::WorkId;
use super::{Adapter, EndpointId, NotQueued, Why};
use crate::ffi::{IbvRecvWr, IbvSge, IbvSrq, IbvSrqInitAttr};
use crate::memory::{Domain, Registration};
use crate::{Completion, Error, Operation, Status};

/// Pieces of memory in one receive: the two parts of its head, and its body.
pub(super) const RECEIVE_SGES: u32 = 3;

type Sges = ArrayVec<IbvSge, { RECEIVE_SGES as usize }>;

/// The memory that one message is received into. So the data of a message comes to the beginning of a buffer of its own,
/// which whoever wants the data can keep.
#[derive(Debug)]
pub struct Scatter {
    /// Takes the first [`split`](Self::split) bytes, and behind these what is beyond the body. Without a body it takes
    /// the whole message.
    pub head: Buf,
    /// So many bytes go in front of the body.
    pub split: usize,
    /// Takes what is behind the first `split` bytes, as much as it has room for.
    pub body: Option<Buf>,
}

impl From<Buf> for Scatter {
    /// One piece.
    fn from(head: Buf) -> Self {
        Self { head, split: 0, body: None }
    }
}

impl Scatter {
    /// The pieces as the device has them, in the order in which it fills them.
    fn sges(&self, memory: &[Registration]) -> Result<Sges, Why> {
        let mut sges = Sges::new();
        let Self { head, split, body: Some(body) } = self else {
            sges.push(span(memory, &self.head, &(0..self.head.len()))?);
            return Ok(sges);
        };
        sges.push(span(memory, head, &(0..*split))?);
        sges.push(span(memory, body, &(0..body.len()))?);
        sges.push(span(memory, head, &(*split..head.len()))?);
        sges.retain(|sge| sge.length > 0);
        Ok(sges)
    }
}

/// A receive in flight.
pub(super) struct Receive {
    pub(super) token: u64,
    pub(super) memory: Scatter,
    /// The endpoint whose queue it is in; `None` for the shared queue.
    pub(super) owner: Option<Key>,
    /// Which one it was of all that were put into the shared queue.
    pub(super) order: u64,
    /// It should have ended: whoever took it is gone.
    pub(super) missing: bool,
}

/// Receives that wait to be handed over, as a list.
pub(super) struct ReceiveList {
    work: Vec<IbvRecvWr>,
    pieces: Vec<Sges>,
    depth: u32,
    /// In flight or waiting here.
    pub(super) held: u32,
}

impl ReceiveList {
    pub(super) fn new(depth: u32) -> Self {
        let room = depth as usize;
        let (work, pieces) = (Vec::with_capacity(room), Vec::with_capacity(room));
        Self { work, pieces, depth, held: 0 }
    }

    /// Receives that may be in flight.
    pub(super) const fn depth(&self) -> u32 {
        self.depth
    }

    pub(super) const fn is_full(&self) -> bool {
        self.held >= self.depth
    }

    pub(super) fn is_empty(&self) -> bool {
        self.work.is_empty()
    }

    fn push(&mut self, number: u64, pieces: Sges) {
        let (next, sg_list) = (ptr::null_mut(), ptr::null_mut());
        let num_sge = pieces.len() as c_int;
        self.work.push(IbvRecvWr { wr_id: number, next, sg_list, num_sge });
        self.pieces.push(pieces);
        self.held += 1;
    }

    /// Hands the list over in one call. What was refused comes back: an error number, and the
    /// numbers of the work.
    pub(super) fn post(
        &mut self,
        call: impl FnOnce(*mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int,
    ) -> Option<(i32, Vec<u64>)> {
        let (count, first) = (self.work.len(), self.work.as_mut_ptr());
        for (i, work) in self.work.iter_mut().enumerate() {
            work.sg_list = self.pieces[i].as_mut_ptr();
            // The address only: nothing is read through it here.
            work.next = if i + 1 < count { first.wrapping_add(i + 1) } else { ptr::null_mut() };
        }
        let mut bad = ptr::null_mut();
        let rc = if count > 0 { call(first, &mut bad) } else { 0 };
        let refused = (rc != 0).then(|| {
            let from = first_refused(first, bad, count);
            (rc, self.work[from..].iter().map(|work| work.wr_id).collect())
        });
        self.work.clear();
        self.pieces.clear();
        refused
    }
}

/// From which place on a list was refused. If the answer makes no sense, nothing was: then the memory
/// of all of it is kept until the queue ends.
pub(super) fn first_refused<T>(first: *const T, bad: *const T, count: usize) -> usize {
    let distance = (bad as usize).wrapping_sub(first as usize);
    let place = distance / size_of::<T>();
    if distance % size_of::<T>() == 0 { place.min(count) } else { count }
}

/// Receives that all endpoints take from.
pub(super) struct SharedQueue {
    raw: NonNull<IbvSrq>,
    pub(super) list: ReceiveList,
    /// Receives that are to take messages, at most: the list holds `spare` more, in place of lost ones.
    depth: u32,
    spare: u32,
    /// Pieces of memory that each may have.
    sges: u32,
    /// The order of the next receive.
    next: u64,
    /// The order behind the newest receive that has ended: all before it have been taken.
    pub(super) reached: u64,
    /// For each connection that has ended, behind which order there is none that it may have taken.
    leavers: VecDeque<u64>,
    /// Receives in flight that are [missing](Receive::missing).
    pub(super) missing: u32,
    domain: Rc<Domain>,
}

impl SharedQueue {
    pub(super) fn new(domain: &Rc<Domain>, depth: u32, sges: u32) -> Result<Self, Error> {
        let context = ptr::null_mut();
        let limit = domain.device().limits().shared_receives;
        let spare = (depth / 2).min(limit.saturating_sub(depth));
        let max_wr = depth + spare;
        let mut attr = IbvSrqInitAttr { srq_context: context, max_wr, max_sge: sges, srq_limit: 0 };
        // SAFETY: the domain is alive; the attributes are read during the call.
        let raw =
            unsafe { (domain.device().library().verbs.ibv_create_srq)(domain.raw(), &mut attr) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Self {
                raw,
                list: ReceiveList::new(max_wr),
                depth,
                spare,
                sges,
                next: 0,
                reached: 0,
                leavers: VecDeque::new(),
                missing: 0,
                domain: Rc::clone(domain),
            }),
            None => Err(Error::last("making a shared RDMA receive queue")),
        }
    }

    /// Places that it needs in the queue of completions: the lost ones may end late.
    pub(super) const fn places(&self) -> u32 {
        self.list.depth()
    }

    /// Receives that were posted and may take no message any more, at most.
    fn lost(&self) -> u32 {
        self.missing + self.leavers.len() as u32
    }

    /// Receives that can take a message, at least.
    fn ready(&self) -> u32 {
        self.list.held.saturating_sub(self.lost())
    }

    /// Receives that may be put into it.
    fn room(&self) -> u32 {
        self.depth.saturating_sub(self.ready()).min(self.list.depth() - self.list.held)
    }

    /// More are lost than there is room for others.
    pub(super) fn is_worn(&self) -> bool {
        self.lost() > self.spare
    }

    pub(super) const fn raw(&self) -> *mut IbvSrq {
        self.raw.as_ptr()
    }

    fn post(&mut self) -> Option<(i32, Vec<u64>)> {
        let raw = self.raw();
        self.list.post(|first, bad| {
            // SAFETY: the queue is alive; list and pieces are read during the call. The memory they
            // name is that of buffers in `Adapter::receives`, which stay there until the device has
            // reported their end or the queue is gone.
            unsafe {
                let post = (*(*raw).context).ops.post_srq_recv;
                post.map_or(libc::EOPNOTSUPP, |post| post(raw, first, bad))
            }
        })
    }

    /// Ends the queue. False if the device did not let go of it.
    pub(super) fn destroy(self) -> bool {
        // SAFETY: no endpoint is left that takes from it.
        unsafe { (self.domain.device().library().verbs.ibv_destroy_srq)(self.raw()) == 0 }
    }
}

/// Puts memory among the receives in flight, and into a list.
fn queue(
    receives: &mut Slots<Receive>,
    list: &mut ReceiveList,
    memory: &[Registration],
    receive: Receive,
) -> Result<(), Box<NotQueued<Scatter>>> {
    let refuse = |why, back| Err(Box::new(NotQueued { why, back }));
    if list.is_full() {
        return refuse(Why::Full, receive.memory);
    }
    match receive.memory.sges(memory) {
        Ok(sges) => {
            let key = receives.insert(receive);
            list.push(WorkId::Receive(key).to_number(), sges);
            Ok(())
        }
        Err(why) => refuse(why, receive.memory),
    }
}

impl Adapter {
    /// True if endpoints take their receives from one queue.
    pub const fn has_shared_receives(&self) -> bool {
        self.shared.is_some()
    }

    /// Receives of the shared queue that can take a message, at most.
    pub fn shared_depth(&self) -> Option<u32> {
        self.shared.as_ref().map(|shared| shared.depth)
    }

    /// Receives in the shared queue that can take a message, at least: in flight, or queued and not flushed.
    pub fn shared_receives(&self) -> u32 {
        self.shared.as_ref().map_or(0, SharedQueue::ready)
    }

    /// Receives that the shared queue takes now.
    pub fn shared_room(&self) -> u32 {
        self.shared.as_ref().map_or(0, SharedQueue::room)
    }

    /// Receives of the shared queue that connections may have kept when they ended, at most. Their memory
    /// comes back when the device reports them, or with [`renew_shared`](Self::renew_shared).
    pub fn shared_lost(&self) -> u32 {
        self.shared.as_ref().map_or(0, SharedQueue::lost)
    }

    /// True if an endpoint takes its receives from the shared queue.
    pub fn shares_receives(&self, id: EndpointId) -> bool {
        self.endpoints.get(id.0).is_some_and(|endpoint| endpoint.receives.is_none())
    }

    /// Queues a receive of one message, for one endpoint. Ends in a [`Completion`]. Only a device that
    /// [scatters](Self::scatters) takes one with a body.
    ///
    /// # Errors
    /// [`NotQueued`], with the memory.
    pub fn queue_receive(
        &mut self,
        id: EndpointId,
        memory: impl Into<Scatter>,
        token: u64,
    ) -> Result<(), Box<NotQueued<Scatter>>> {
        let memory = self.check_scatter(memory.into())?;
        let endpoint = self.endpoints.get_mut(id.0).filter(|endpoint| !endpoint.broken);
        let Some((was_clean, list)) =
            endpoint.and_then(|endpoint| Some((!endpoint.is_dirty(), endpoint.receives.as_mut()?)))
        else {
            return Err(Box::new(NotQueued { why: Why::Ended, back: memory }));
        };
        let receive = Receive { token, memory, owner: Some(id.0), order: 0, missing: false };
        queue(&mut self.receives, list, &self.memory, receive)?;
        if was_clean {
            self.dirty.push(id.0);
        }
        Ok(())
    }

    /// Queues a receive for whichever endpoint the next message comes to. Ends in a [`Completion`] with the
    /// token that the endpoint was [given](Self::set_receive_token).
    ///
    /// # Errors
    /// [`NotQueued`], with the memory; [`Why::Ended`] if there is no shared queue.
    pub fn queue_shared_receive(
        &mut self,
        memory: impl Into<Scatter>,
    ) -> Result<(), Box<NotQueued<Scatter>>> {
        let memory = self.check_scatter(memory.into())?;
        let Some(shared) = &mut self.shared else {
            return Err(Box::new(NotQueued { why: Why::Ended, back: memory }));
        };
        if shared.room() == 0 {
            return Err(Box::new(NotQueued { why: Why::Full, back: memory }));
        }
        let receive = Receive { token: 0, memory, owner: None, order: shared.next, missing: false };
        queue(&mut self.receives, &mut shared.list, &self.memory, receive)?;
        shared.next += 1;
        Ok(())
    }

    /// Gives back what has more pieces than the device takes.
    fn check_scatter(&self, memory: Scatter) -> Result<Scatter, Box<NotQueued<Scatter>>> {
        if memory.body.is_some() && !self.scatters() {
            return Err(Box::new(NotQueued { why: Why::TooLong, back: memory }));
        }
        Ok(memory)
    }

    /// A queue pair is gone that may have been in the middle of a message.
    pub(super) fn left_shared(&mut self) {
        if let Some(shared) = &mut self.shared {
            shared.leavers.push_back(shared.next);
        }
        self.settle_shared();
    }

    /// Finds out which receives are missing, as far as that is clear.
    pub(super) fn settle_shared(&mut self) {
        let Some(shared) = &mut self.shared else { return };
        if shared.leavers.is_empty() {
            return;
        }
        let ids = self.by_number.values().filter_map(|id| self.endpoints.get(id.0));
        let reached = ids.filter(|endpoint| endpoint.receives.is_none()).map(|e| e.reached);
        // What came before this was taken, and by none that is there still.
        let reached = reached.fold(shared.reached, u64::min);
        let missing = |receive: &Receive| {
            receive.owner.is_none() && !receive.missing && receive.order < reached
        };
        for key in self.receives.keys(missing) {
            if let Some(receive) = self.receives.get_mut(key) {
                receive.missing = true;
                shared.missing += 1;
            }
        }
        while shared.leavers.front().is_some_and(|order| *order <= reached) {
            shared.leavers.pop_front();
        }
    }

    /// The token of receives that an endpoint takes from the shared queue; 0 until it is given.
    pub fn set_receive_token(&mut self, id: EndpointId, token: u64) {
        if let Some(endpoint) = self.endpoints.get_mut(id.0) {
            endpoint.token = token;
        }
    }

    /// Ends the shared queue and makes a new one, if no endpoint takes from it: only so its receives come back
    /// that nobody used. They are freed. If the device refuses, each endpoint to come has a queue of its
    /// own.
    pub fn renew_shared(&mut self) {
        if !self.endpoints.keys(|endpoint| endpoint.receives.is_none()).is_empty() {
            return;
        }
        let Some(old) = self.shared.take() else { return };
        let (depth, places, sges) = (old.depth, old.places(), old.sges);
        let gone = old.destroy();
        for place in self.receives.keys(|receive| receive.owner.is_none()) {
            let receive = self.receives.remove(place);
            if !gone {
                mem::forget(receive);
            }
        }
        self.shared = SharedQueue::new(&self.domain, depth, sges).ok();
        if self.shared.is_none() {
            self.queues.receives.leave(places);
        }
    }

    /// Hands the shared queue's receives over.
    pub(super) fn flush_shared(&mut self) {
        let Some(shared) = &mut self.shared else { return };
        let Some((errno, numbers)) = shared.post() else { return };
        shared.list.held -= numbers.len() as u32;
        // Nobody waits for them: whoever keeps the queue filled sees that it is not.
        let _ = errno;
        for number in numbers {
            if let WorkId::Receive(key) = WorkId::from_number(number) {
                self.receives.remove(key);
            }
        }
    }

    /// Hands an endpoint's receives over.
    pub(super) fn flush_receives(&mut self, key: Key) {
        let Some(endpoint) = self.endpoints.get_mut(key) else { return };
        let Some((errno, numbers)) = endpoint.post_receives() else { return };
        for number in numbers {
            let WorkId::Receive(place) = WorkId::from_number(number) else { continue };
            let Some(receive) = self.receives.remove(place) else { continue };
            self.refused.push(Completion {
                endpoint: EndpointId(key),
                token: receive.token,
                operation: Operation::Receive,
                status: Status::NotPosted(errno),
                bytes: 0,
                invalidated: None,
                buf: Some(receive.memory.head),
                body: receive.memory.body,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(count: u64) -> ReceiveList {
        let mut list = ReceiveList::new(8);
        for number in 0..count {
            list.push(number, Sges::from_iter([IbvSge { addr: number, length: 1, lkey: 2 }]));
        }
        list
    }

    #[test]
    fn a_list_is_linked_in_order_and_handed_over_once() {
        let mut list = list(3);
        let mut seen = Vec::new();
        let refused = list.post(|mut work, _| {
            while !work.is_null() {
                // SAFETY: the list is alive during the call, and each of its pieces.
                let (this, piece) = unsafe { (*work, *(*work).sg_list) };
                seen.push((this.wr_id, piece.addr, this.num_sge));
                work = this.next;
            }
            0
        });
        assert_eq!((seen, refused), (vec![(0, 0, 1), (1, 1, 1), (2, 2, 1)], None));
        assert_eq!((list.held, list.is_empty()), (3, true));
        assert_eq!(list.post(|_, _| unreachable!("nothing to hand over")), None);
    }

    #[test]
    fn what_is_refused_comes_back() {
        let mut list = list(4);
        let refused = list.post(|first, bad| {
            // SAFETY: the list has four entries, and the place for the answer is alive.
            unsafe { *bad = first.add(2) };
            libc::ENOMEM
        });
        assert_eq!(refused, Some((libc::ENOMEM, vec![2, 3])));
    }

    #[test]
    fn an_answer_without_sense_keeps_the_memory() {
        for answer in [ptr::null_mut(), ptr::dangling_mut::<IbvRecvWr>()] {
            let mut list = list(2);
            let refused = list.post(|_, bad| {
                // SAFETY: the place for the answer is alive.
                unsafe { *bad = answer };
                libc::EINVAL
            });
            assert_eq!(refused, Some((libc::EINVAL, vec![])));
        }
    }
}
