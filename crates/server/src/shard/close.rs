//! The end of a connection, be it that it has lost its place to another one.
//!
//! A slot is freed by the last completion on it only: the kernel may still hold its buffers.

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Shard;
use crate::conn::{ConnId, Phase, Wire};
use crate::front::{Front, FrontConn};
use crate::mail::Owed;
use crate::places::{ConnRef, Entry};
use crate::rationed::Topic;
use crate::stats::Counts;

/// How long a client has to take what is left for it at the end of its connection.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

impl<F: Front> Shard<F> {
    /// Sends what is queued, then closes.
    pub fn drain(&mut self, slot: ConnId) {
        self.drain_within(slot, DRAIN_LIMIT);
    }

    /// Sends what is queued, then closes, after this time at the latest.
    pub fn drain_within(&mut self, slot: ConnId, limit: Duration) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        if conn.phase == Phase::Open {
            conn.phase = Phase::Draining;
            let by = self.front.exec.storage.now + limit;
            // The time to log out is the time to take what is queued, too: a client that takes nothing does
            // not get the one after the other.
            conn.drain_by = Some(conn.front.leaves_by().map_or(by, |end| end.min(by)));
            self.end_commands(slot);
            self.touch(slot);
        }
    }

    /// Closes the socket, or, if that has been done, frees the slot once nothing is in flight.
    pub fn disconnect(&mut self, slot: ConnId) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        if conn.phase != Phase::Closed {
            conn.phase = Phase::Closed;
            match &conn.wire {
                Wire::Stream(socket) => self.front.exec.storage.ring.close_socket(*socket),
                Wire::Rdma(_) => self.close_queue_pair(slot),
            }
            self.end_commands(slot);
            self.end_session(slot);
        }
        let conn = &self.conns[slot];
        if !conn.receiving() && !conn.transmitting() {
            self.conns.remove(slot);
            self.front.exec.storage.leave_host();
        }
    }

    /// Ends a connection at once. Its client sees a reset: what was queued for it is thrown away, and what it has sent
    /// stays unread. Over RDMA the queue pair is destroyed.
    pub fn abort(&mut self, slot: ConnId) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        if conn.phase != Phase::Closed {
            conn.aborted = true;
            if let Wire::Stream(socket) = &conn.wire {
                self.front.exec.storage.ring.abort_socket(*socket);
            }
        }
        self.disconnect(slot);
    }

    fn end_commands(&mut self, slot: ConnId) {
        self.front.end_commands(&mut self.conns[slot], slot);
    }

    /// Takes the connection off every list. It has no commands any more, so a new session of the same
    /// client may begin: what it had in flight is fenced off.
    fn end_session(&mut self, slot: ConnId) {
        let conn = &mut self.conns[slot];
        conn.reserve = None;
        let conn_ref = ConnRef { shard: self.number, connection: conn.serial };
        if !self.front.end_session(conn, conn_ref) {
            self.core.login_ends(conn.peer.ip(), conn.serial);
        }
        self.front.exec.storage.connections -= 1;
        self.core.member.connection_ended();
        self.core.loads[self.number].fetch_sub(1, Ordering::Relaxed);
        for waiter in std::mem::take(&mut conn.waits_for_end) {
            self.tell_ended(waiter);
        }
    }

    /// Another connection of the same client takes the place of this one, which ends.
    pub(super) fn end_for(&mut self, serial: u64, reply: ConnRef) {
        match self.find(serial) {
            Some(slot) if self.conns[slot].phase != Phase::Closed => {
                self.conns[slot].waits_for_end.push(reply);
                self.disconnect(slot);
            }
            // It has ended by itself meanwhile.
            _ => self.tell_ended(reply),
        }
    }

    fn tell_ended(&mut self, waiter: ConnRef) {
        let owed = Owed::Ended { waiter: waiter.connection };
        self.core.mailboxes()[waiter.shard].deliver(owed);
    }

    /// Counts a connection that has just come, its packets on this processor if that is known, at the cost of another one if there is no place left.
    pub(super) fn enter(&mut self, client: IpAddr, arrives: Option<usize>) -> Entry<F> {
        let (entry, victim) = Entry::new(&self.core, client, arrives);
        victim.into_iter().for_each(|victim| self.evict(victim));
        entry
    }

    /// Ends a connection that has lost its place, on whatever shard it is.
    pub fn evict(&mut self, ConnRef { shard, connection }: ConnRef) {
        if shard == self.number {
            return self.evicted(connection);
        }
        self.core.mailboxes()[shard].deliver(Owed::Evict { connection });
    }

    /// A connection of this shard has lost its place: it ends, if it still does not
    /// [serve](FrontConn::serves).
    pub(super) fn evicted(&mut self, connection: u64) {
        let Some(slot) = self.find(connection) else { return };
        let conn = &self.conns[slot];
        if conn.front.serves() {
            return;
        }
        self.front.protocol.turned_away();
        if let Some(unlogged) =
            self.core.rations.grants(Topic::TurnedAway, self.front.exec.storage.now)
        {
            let what = conn.front.kind();
            tracing::warn!(
                peer = %conn.peer,
                unlogged,
                "disconnected: too many {what} at one time, and its address has most of them"
            );
        }
        self.disconnect(slot);
    }
}
