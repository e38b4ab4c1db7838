//! A port with what its connections receive into.
//!
//! # Why a shared queue does not run dry
//!
//! Where the device has a shared receive queue, all connections of a port take from one pool. It grows with
//! them, by what one may send without an answer (its command window, and as many immediate ones as are
//! declared in MaxOutstandingUnexpectedPDUs), up to a quarter of the shard's memory; from then on there is
//! less than all of them together might send at once. That is safe:
//! - A command holds no receive: its data is copied out or read by RDMA, and the receive is posted again
//!   in the same turn, with one call for all of them. So the pool is what may come during one turn.
//! - Nobody gets more of it in a turn than twice what it may send without an answer; who sends more is
//!   disconnected (`shard/rdma/work.rs`). So one that floods cannot make others wait for long.
//! - If it does run dry, the fabric has senders try again after 0.64 ms, without end. Nothing is lost.

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
    connections: u32,
}

impl Plug {
    /// A port without connections.
    pub fn new(port: Port, receives: Receives) -> Self {
        let most = port.shared_depth();
        Self { port, receives, most, connections: 0 }
    }

    /// Receives that so many connections need.
    fn wanted(&self, connections: u32) -> u32 {
        let all = self.receives.each.saturating_mul(connections);
        self.most.map_or(all, |most| all.min(most))
    }

    /// Arena memory that its connections take, and `more` of them, in bytes.
    pub fn memory(&self, more: u32) -> usize {
        let connections = self.connections + more;
        let receives = self.wanted(connections) as usize * Arena::cost(self.receives.len);
        receives + connections as usize * HEADS
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
        self.connections += 1;
        let Receives { len, each } = self.receives;
        let joined = match self.most {
            Some(most) => {
                self.port.set_receive_token(endpoint, token);
                self.top_up(arena);
                self.port.shared_receives() >= each.min(most)
            }
            None => (0..each).all(|_| {
                let buf = arena.alloc(len);
                buf.is_some_and(|buf| self.port.queue_receive(endpoint, buf, token).is_ok())
            }),
        };
        let joined = joined && !self.port.flush();
        if !joined {
            self.close(endpoint);
        }
        joined
    }

    /// Ends a connection that has [joined](Self::join): nothing of it comes later, and its memory is free.
    pub fn close(&mut self, endpoint: Endpoint) {
        self.port.close(endpoint);
        self.connections -= 1;
        if self.most.is_some() && self.connections == 0 {
            // What was never used comes back in no other way.
            self.port.renew_shared();
            self.most = self.port.shared_depth();
        }
    }

    /// Posts a receive again whose message was read.
    pub fn give_back(&mut self, endpoint: Endpoint, buf: Buf, token: u64) {
        // What refuses has failed, and says so.
        let _ = match self.most {
            None => self.port.queue_receive(endpoint, buf, token),
            Some(_) if self.port.shared_receives() < self.wanted(self.connections) => {
                self.port.queue_shared_receive(buf)
            }
            // Connections have gone.
            Some(_) => Ok(()),
        };
    }

    /// Replaces shared receives that were not given back: those of connections that have ended.
    pub fn top_up(&mut self, arena: &Arena) {
        if self.most.is_none() {
            return;
        }
        let wanted = self.wanted(self.connections);
        while self.port.shared_receives() < wanted {
            let Some(buf) = arena.alloc(self.receives.len) else { return };
            if self.port.queue_shared_receive(buf).is_err() {
                return;
            }
        }
    }
}
