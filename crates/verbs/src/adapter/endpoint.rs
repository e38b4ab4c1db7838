//! One connection's queue pair, and what its work holds.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::fmt;
use std::mem;
use std::ptr::{self, NonNull};
use std::rc::Rc;

use arrayvec::ArrayVec;
use lunet_ring::{Buf, Key};

use super::receive::{ReceiveList, first_refused};
use super::work::{HEAD_MAX, Pieces, Remote, SGES, WorkId};
use crate::Operation;
use crate::cm::CmId;
use crate::ffi::{
    IbvQp, IbvSendWr, IbvSge, SEND_INLINE, SEND_SIGNALED, WR_RDMA_READ, WR_RDMA_WRITE, WR_SEND,
    WR_SEND_WITH_INV,
};
use crate::memory::Domain;

/// Memory that work holds until its end.
pub(super) enum Held {
    /// What is sent or written.
    Pieces(#[allow(dead_code, reason = "held, not read")] Pieces),
    /// What is read into.
    Into(Buf, u32),
}

/// A send, write or read in flight.
pub(super) struct SendOp {
    pub(super) token: u64,
    pub(super) operation: Operation,
    /// True if its success is to be reported.
    pub(super) signaled: bool,
    pub(super) held: Held,
}

/// What the device is to do.
pub(super) enum Order {
    Send { invalidate: Option<u32> },
    Write(Remote),
    Read(Remote),
}

/// A queue pair, and everything that it may touch.
pub(super) struct Endpoint {
    pub(super) qp: NonNull<IbvQp>,
    pub(super) id: CmId,
    pub(super) domain: Rc<Domain>,
    /// In the order in which they were queued, which is that in which they end.
    pub(super) sends: VecDeque<SendOp>,
    /// Those of them that were not handed over yet.
    work: Vec<IbvSendWr>,
    pieces: Vec<[IbvSge; SGES]>,
    /// The number of the next one.
    next: u32,
    depth: u32,
    /// Sends without a signal since the last one with it.
    unsignaled: u32,
    /// Room for one head for each send in flight.
    heads: Buf,
    heads_key: u32,
    /// So many bytes may be sent by copying them into the queue itself.
    inline: u32,
    /// `None` with a shared queue.
    pub(super) receives: Option<ReceiveList>,
    /// The device has refused work: nothing more is queued.
    pub(super) broken: bool,
    /// The token of receives that it takes from the shared queue.
    pub(super) token: u64,
    /// The order behind the newest of them: what it takes now comes later, and it takes one at a time.
    pub(super) reached: u64,
    /// The peer may have sent something.
    pub(super) begun: bool,
}

/// What an [`Endpoint`] is made of.
pub(super) struct Parts {
    pub(super) qp: NonNull<IbvQp>,
    pub(super) id: CmId,
    pub(super) domain: Rc<Domain>,
    pub(super) depth: u32,
    pub(super) heads: Buf,
    pub(super) heads_key: u32,
    pub(super) inline: u32,
    pub(super) receives: Option<ReceiveList>,
}

impl Endpoint {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { qp, id, domain, depth, heads, heads_key, inline, receives } = parts;
        let room = depth as usize;
        Self {
            qp,
            id,
            domain,
            sends: VecDeque::with_capacity(room),
            work: Vec::with_capacity(room),
            pieces: Vec::with_capacity(room),
            next: 0,
            depth,
            unsignaled: 0,
            heads,
            heads_key,
            inline,
            receives,
            broken: false,
            token: 0,
            reached: 0,
            begun: false,
        }
    }

    /// The device's number of the queue pair.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: the queue pair is alive.
        unsafe { self.qp.as_ref().qp_num }
    }

    /// How many more sends, writes and reads fit.
    pub(super) fn room(&self) -> usize {
        if self.broken { 0 } else { self.depth as usize - self.sends.len() }
    }

    /// Places that it has in the queues of completions: for what it sends, and for what comes.
    pub(super) fn places(&self) -> (u32, u32) {
        (self.depth, self.receives.as_ref().map_or(0, ReceiveList::depth))
    }

    /// True if something waits to be handed over.
    pub(super) fn is_dirty(&self) -> bool {
        !self.work.is_empty() || self.receives.as_ref().is_some_and(|list| !list.is_empty())
    }

    /// Copies a head to the place of the next send.
    pub(super) fn place_head(&mut self, head: &[u8]) -> Option<IbvSge> {
        debug_assert!(head.len() <= HEAD_MAX && self.room() > 0);
        if head.is_empty() {
            return None;
        }
        let place = (self.next % self.depth) as usize * HEAD_MAX;
        // SAFETY: the buffer has `depth` places of this length, and the head is no longer. The send
        // that had this place before has ended: less than `depth` are in flight. No reference into
        // the buffer exists, as the device reads the other places meanwhile.
        let to = unsafe {
            let to = self.heads.start().as_ptr().add(place);
            ptr::copy_nonoverlapping(head.as_ptr(), to, head.len());
            to
        };
        Some(IbvSge { addr: to as u64, length: head.len() as u32, lkey: self.heads_key })
    }

    /// Puts work on the list. There must be [room](Self::room).
    pub(super) fn push(&mut self, key: Key, sges: &[IbvSge], order: &Order, op: SendOp) {
        let (opcode, invalidate, remote) = match *order {
            Order::Send { invalidate: None } => (WR_SEND, 0, None),
            Order::Send { invalidate: Some(rkey) } => (WR_SEND_WITH_INV, rkey, None),
            Order::Write(remote) => (WR_RDMA_WRITE, 0, Some(remote)),
            Order::Read(remote) => (WR_RDMA_READ, 0, Some(remote)),
        };
        // What has no signal is freed by the next one that has: so there is always one to come.
        self.unsignaled += 1;
        let mut flags = 0;
        if op.signaled || self.unsignaled * 2 >= self.depth {
            flags |= SEND_SIGNALED;
            self.unsignaled = 0;
        }
        let bytes: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
        if opcode != WR_RDMA_READ && bytes > 0 && bytes <= u64::from(self.inline) {
            flags |= SEND_INLINE;
        }
        let mut pieces = [IbvSge::default(); SGES];
        pieces[..sges.len()].copy_from_slice(sges);
        self.pieces.push(pieces);
        self.work.push(IbvSendWr {
            wr_id: WorkId::Send(key, self.next).to_number(),
            num_sge: sges.len() as c_int,
            opcode,
            send_flags: flags,
            invalidate_rkey: invalidate,
            remote_addr: remote.map_or(0, |remote| remote.address),
            rkey: remote.map_or(0, |remote| remote.key),
            ..IbvSendWr::EMPTY
        });
        self.next = self.next.wrapping_add(1);
        self.sends.push_back(op);
    }

    /// Hands the list over in one call. What was refused comes back, in order.
    pub(super) fn post_sends(&mut self) -> Option<(i32, Vec<SendOp>)> {
        let count = self.work.len();
        if count == 0 {
            return None;
        }
        let first = self.work.as_mut_ptr();
        for (i, work) in self.work.iter_mut().enumerate() {
            work.sg_list = self.pieces[i].as_mut_ptr();
            work.next = if i + 1 < count { first.wrapping_add(i + 1) } else { ptr::null_mut() };
        }
        let (qp, mut bad) = (self.qp.as_ptr(), ptr::null_mut());
        // SAFETY: the queue pair is alive; the list and its pieces are read during the call. The
        // memory they name is held by `sends` (or is `heads`) until the device has reported the end
        // of the work or the queue pair is gone, and lies within a registration.
        let rc = unsafe {
            let post = (*(*qp).context).ops.post_send;
            post.map_or(libc::EOPNOTSUPP, |post| post(qp, first, &mut bad))
        };
        let refused = (rc != 0).then(|| {
            self.broken = true;
            let refused = count - first_refused(first, bad, count);
            self.next = self.next.wrapping_sub(refused as u32);
            let keep = self.sends.len() - refused;
            (rc, self.sends.drain(keep..).collect())
        });
        self.work.clear();
        self.pieces.clear();
        refused
    }

    /// Hands the receives over in one call.
    pub(super) fn post_receives(&mut self) -> Option<(i32, Vec<u64>)> {
        let qp = self.qp.as_ptr();
        let list = self.receives.as_mut()?;
        let refused = list.post(|first, bad| {
            // SAFETY: as in `post_sends`; the buffers are in `Adapter::receives`.
            unsafe {
                let post = (*(*qp).context).ops.post_recv;
                post.map_or(libc::EOPNOTSUPP, |post| post(qp, first, bad))
            }
        });
        if let Some((_, numbers)) = &refused {
            list.held -= numbers.len() as u32;
            self.broken = true;
        }
        refused
    }

    /// Takes out everything up to the work of this number, which has ended; nothing if it is not in
    /// flight.
    pub(super) fn ended(&mut self, number: u32) -> impl Iterator<Item = SendOp> + '_ {
        let first = self.next.wrapping_sub(self.sends.len() as u32);
        let place = number.wrapping_sub(first) as usize;
        let posted = self.sends.len() - self.work.len();
        let count = if place < posted { place + 1 } else { 0 };
        self.sends.drain(..count)
    }

    /// Ends the queue pair and frees what it held. False if the device did not let go: then its memory
    /// stays taken for ever.
    pub(super) fn destroy(self) -> bool {
        // SAFETY: the queue pair is alive. Afterwards the id does not know it any more, as
        // `rdma_destroy_qp` would have it, which does not tell whether it worked.
        let gone = unsafe {
            let rc = (self.domain.device().library().verbs.ibv_destroy_qp)(self.qp.as_ptr());
            (*self.id.raw()).qp = ptr::null_mut();
            rc == 0
        };
        if !gone {
            mem::forget((self.sends, self.heads));
        }
        gone
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The pieces of one work request.
pub(super) type Sges = ArrayVec<IbvSge, SGES>;
