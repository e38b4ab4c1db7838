//! A port with what its connections receive into.
//!
//! # Why a shared queue does not run dry
//!
//! Where the device has a shared receive queue, all connections of a port take from one pool. It grows with
//! them, by what one may send without an answer ([`FrontConn::receives`](crate::front::FrontConn::receives):
//! its command window, say, and what may come besides), up to a quarter of the shard's memory; from then on there is
//! less than all of them together might send at once. That is safe:
//! - A command holds no receive: its data is copied out or read by RDMA, and the receive is posted again
//!   in the same turn, with one call for all of them. So the pool is what may come during one turn.
//! - Nobody gets more of it in a turn than twice what it may send without an answer; who sends more is
//!   disconnected (`shard/rdma/work.rs`). So one that floods cannot make others wait for long.
//! - If it does run dry, the fabric has senders try again after 0.64 ms, without end. Nothing is lost.
//! - A connection that ends in the middle of a message may keep a receive, for as long as the queue lives. Others
//!   are posted in place of them ([`top_up`](Plug::top_up)), half as many as the queue has. If that is not
//!   enough, connections to come have receives of their own: what those keep ends with them. From then on
//!   the pool can lose one more for each of its connections, and no more than these have memory: it keeps
//!   three quarters.

use lunet_ring::{Arena, Buf};
use lunet_verbs::{CmId, HEAD_MAX};

use super::port::{Endpoint, NotOpened, Port};
use super::{COMPLETIONS, SENDS};

/// Arena memory that the heads of a connection's Sends take, in bytes.
const HEADS: usize = SENDS as usize * HEAD_MAX;

/// What a connection receives into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receives {
    /// The length of each, in bytes.
    pub len: usize,
    /// How many a connection may use before it has an answer.
    pub each: u32,
}

impl Receives {
    /// The size of a shared queue, in receives, for one of so many devices.
    pub fn shared(self, arena: &Arena, devices: usize) -> u32 {
        let quarter = arena.total_bytes() / 4 / devices.max(1) / Arena::cost(self.len);
        (quarter as u32).max(self.each).min(COMPLETIONS / 4)
    }
}

/// A port, and the receives of its connections.
pub struct Plug {
    /// The port.
    pub port: Port,
    receives: Receives,
    /// Receives that all connections share, at most; `None` if each has its own.
    most: Option<u32>,
    /// Connections that share them, and those that have their own.
    sharing: u32,
    alone: u32,
}

impl Plug {
    /// A port without connections.
    pub fn new(port: Port, receives: Receives) -> Self {
        let most = port.shared_depth();
        Self { port, receives, most, sharing: 0, alone: 0 }
    }

    /// Receives that so many connections need that share them.
    fn wanted(&self, sharing: u32) -> u32 {
        self.receives.each.saturating_mul(sharing).min(self.most.unwrap_or(0))
    }

    /// Arena memory that its connections take, in bytes.
    pub fn memory(&self) -> usize {
        let shared = self.wanted(self.sharing) + self.port.shared_lost();
        let receives = shared as usize + self.alone as usize * self.receives.each as usize;
        receives * Arena::cost(self.receives.len) + (self.sharing + self.alone) as usize * HEADS
    }

    /// Arena memory that a connection takes when it [joins](Self::join), in bytes.
    pub fn needed(&self, endpoint: Endpoint) -> usize {
        let receives = if self.port.shares_receives(endpoint) {
            self.wanted(self.sharing + 1) - self.wanted(self.sharing)
        } else {
            self.receives.each
        };
        receives as usize * Arena::cost(self.receives.len) + HEADS
    }

    /// Makes the queue pair of a connection.
    ///
    /// # Errors
    /// [`NotOpened`], with the connection.
    pub fn open(&mut self, id: CmId) -> Result<Endpoint, Box<NotOpened>> {
        self.port.open_endpoint(id, self.receives.each)
    }

    /// Gives a connection receives, which end with this token. False if there is no memory for them, or
    /// the device refuses them; it is closed then.
    pub fn join(&mut self, endpoint: Endpoint, token: u64, arena: &Arena) -> bool {
        let Receives { len, each } = self.receives;
        let joined = if self.port.shares_receives(endpoint) {
            self.sharing += 1;
            self.port.set_receive_token(endpoint, token);
            self.top_up(arena);
            self.port.shared_receives() >= self.wanted(1)
        } else {
            self.alone += 1;
            (0..each).all(|_| {
                let buf = arena.alloc(len);
                buf.is_some_and(|buf| self.port.queue_receive(endpoint, buf, token).is_ok())
            })
        };
        let joined = joined && !self.port.flush();
        if !joined {
            self.close(endpoint);
        }
        joined
    }

    /// Ends a connection that has [joined](Self::join): nothing of it comes later, and its memory is free.
    pub fn close(&mut self, endpoint: Endpoint) {
        let shared = self.port.shares_receives(endpoint);
        self.port.close(endpoint);
        if !shared {
            self.alone -= 1;
            return;
        }
        self.sharing -= 1;
        if self.sharing == 0 {
            // What was never used comes back in no other way.
            self.port.renew_shared();
            self.most = self.port.shared_depth();
        }
    }

    /// Posts a receive again whose message was read.
    pub fn give_back(&mut self, endpoint: Endpoint, buf: Buf, token: u64) {
        // What refuses has failed, and says so.
        let _ = if !self.port.shares_receives(endpoint) {
            self.port.queue_receive(endpoint, buf, token)
        } else if self.port.shared_receives() < self.wanted(self.sharing) {
            self.port.queue_shared_receive(buf)
        } else {
            // Connections have gone.
            Ok(())
        };
    }

    /// Replaces shared receives that were not given back: those of connections that have ended.
    pub fn top_up(&mut self, arena: &Arena) {
        let wanted = self.wanted(self.sharing);
        while self.port.shared_receives() < wanted && self.port.shared_room() > 0 {
            let Some(buf) = arena.alloc(self.receives.len) else { return };
            if self.port.queue_shared_receive(buf).is_err() {
                return;
            }
        }
    }
}
