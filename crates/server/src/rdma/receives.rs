//! The receives that are posted to an adapter for its connections.
//!
//! # Why a shared queue does not run dry
//!
//! Where the device has a shared receive queue, all connections of an adapter take from one pool. It grows
//! with them, by the messages that one may send without a response
//! ([`FrontConn::receives`](crate::front::FrontConn::receives): its command window and some more), up to a
//! quarter of the shard's memory; from then on there is less than all of them together might send at once.
//! That is safe:
//! - A command holds no receive: its data is copied out or read by RDMA, and the receive is posted again
//!   in the same loop iteration, with one call for all of them. So the pool has to cover one iteration.
//! - A client that sends more than twice its window in one iteration is disconnected
//!   (`shard/rdma/completions.rs`). So one that floods cannot make others wait for long.
//! - If it does run dry, senders retry after 0.64 ms, without limit (RNR retry). Nothing is lost.
//! - A connection that ends in the middle of a message may keep a receive, for as long as the queue lives. Others
//!   are posted in place of them ([`replenish`](ReceivePool::replenish)), half as many as the queue has. If that is
//!   not enough, new connections have receives of their own, which end with them. From then on the pool can
//!   lose one more for each of its connections, and no more than these have memory: it keeps three quarters.

use lunet_ring::{Arena, Buf};
use lunet_verbs::{CmId, HEAD_MAX};

use super::adapter::{Adapter, Endpoint, NotOpened};
use super::{COMPLETIONS, SENDS};

/// Arena memory for the heads of a connection's Sends, in bytes.
const HEADS: usize = SENDS as usize * HEAD_MAX;

/// The receives that a connection needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receives {
    /// Length of each buffer, in bytes.
    pub len: usize,
    /// Messages that a connection may send without a response.
    pub each: u32,
}

impl Receives {
    /// The size of the shared receive queue of one of so many devices, in receives.
    pub(crate) fn shared(self, arena: &Arena, devices: usize) -> u32 {
        let quarter = arena.total_bytes() / 4 / devices.max(1) / Arena::cost(self.len);
        (quarter as u32).max(self.each).min(COMPLETIONS / 4)
    }
}

/// An adapter, and the receives that are posted to it.
pub struct ReceivePool {
    /// The adapter. Endpoints that were attached are closed by [`ReceivePool::close`].
    pub(crate) adapter: Adapter,
    receives: Receives,
    /// Depth of the shared receive queue; `None` if each connection has its own receives.
    most: Option<u32>,
    /// Connections that use the shared queue, and those that have their own receives.
    sharing: u32,
    own: u32,
}

impl ReceivePool {
    /// An adapter without connections.
    pub fn new(adapter: Adapter, receives: Receives) -> Self {
        let most = adapter.shared_depth();
        Self { adapter, receives, most, sharing: 0, own: 0 }
    }

    /// Receives that so many connections need of the shared queue.
    fn wanted(&self, sharing: u32) -> u32 {
        self.receives.each.saturating_mul(sharing).min(self.most.unwrap_or(0))
    }

    /// Arena memory of its connections, in bytes.
    pub(crate) fn memory(&self) -> usize {
        let shared = self.wanted(self.sharing) + self.adapter.shared_lost();
        let receives = shared as usize + self.own as usize * self.receives.each as usize;
        receives * Arena::cost(self.receives.len) + (self.sharing + self.own) as usize * HEADS
    }

    /// Arena memory that [`Self::attach`] takes for a connection, in bytes.
    pub(crate) fn needed(&self, endpoint: Endpoint) -> usize {
        let receives = if self.adapter.shares_receives(endpoint) {
            self.wanted(self.sharing + 1) - self.wanted(self.sharing)
        } else {
            self.receives.each
        };
        receives as usize * Arena::cost(self.receives.len) + HEADS
    }

    /// Creates the queue pair of a connection.
    ///
    /// # Errors
    /// [`NotOpened`], with the connection.
    pub(crate) fn open(&mut self, id: CmId) -> Result<Endpoint, Box<NotOpened>> {
        self.adapter.open_endpoint(id, self.receives.each)
    }

    /// Posts the receives of a connection, whose completions carry this token. False if there is no memory for
    /// them or the device refuses them; the connection is closed then.
    pub(crate) fn attach(&mut self, endpoint: Endpoint, token: u64, arena: &Arena) -> bool {
        let Receives { len, each } = self.receives;
        let attached = if self.adapter.shares_receives(endpoint) {
            self.sharing += 1;
            self.adapter.set_receive_token(endpoint, token);
            self.replenish(arena);
            self.adapter.shared_receives() >= self.wanted(1)
        } else {
            self.own += 1;
            (0..each).all(|_| {
                let buf = arena.alloc(len);
                buf.is_some_and(|buf| self.adapter.queue_receive(endpoint, buf, token).is_ok())
            })
        };
        let attached = attached && !self.adapter.flush();
        if !attached {
            self.close(endpoint);
        }
        attached
    }

    /// Closes a connection that was [attached](Self::attach): it has no completions later, and its memory is free.
    pub(crate) fn close(&mut self, endpoint: Endpoint) {
        let shared = self.adapter.shares_receives(endpoint);
        self.adapter.close(endpoint);
        if !shared {
            self.own -= 1;
            return;
        }
        self.sharing -= 1;
        if self.sharing == 0 {
            // Nothing else returns receives that were never used.
            self.adapter.renew_shared();
            self.most = self.adapter.shared_depth();
        }
    }

    /// Posts the buffer of a receive again after its message was read.
    pub(crate) fn repost(&mut self, endpoint: Endpoint, buf: Buf, token: u64) {
        // A queue that refuses it has failed, and reports that by its completions.
        let _ = if !self.adapter.shares_receives(endpoint) {
            self.adapter.queue_receive(endpoint, buf, token)
        } else if self.adapter.shared_receives() < self.wanted(self.sharing) {
            self.adapter.queue_shared_receive(buf)
        } else {
            // Connections have ended: there are more than needed.
            Ok(())
        };
    }

    /// Replaces shared receives that were lost with connections that have ended.
    pub(crate) fn replenish(&mut self, arena: &Arena) {
        let wanted = self.wanted(self.sharing);
        while self.adapter.shared_receives() < wanted && self.adapter.shared_room() > 0 {
            let Some(buf) = arena.alloc(self.receives.len) else { return };
            if self.adapter.queue_shared_receive(buf).is_err() {
                return;
            }
        }
    }
}
