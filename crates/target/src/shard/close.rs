//! The end of a connection.
//!
//! A slot is freed by the last completion on it only: the kernel may still hold its buffers.

use std::sync::atomic::Ordering;
use std::time::Duration;

use lunet_iscsi::printable::printable;
use lunet_iscsi::target::{CloseReason, RdmaFault};

use super::Shard;
use crate::conn::{ConnId, Phase, Wire};
use crate::mail::Owed;
use crate::rationed::Topic;
use crate::registry::Place;

/// How long a client has to take what is left for it at the end of its connection.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

impl Shard {
    /// The protocol asks to close: what is queued is sent first, unless the client is gone.
    pub(super) fn close(&mut self, slot: ConnId, reason: CloseReason) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        match reason {
            CloseReason::LoggedOut
            | CloseReason::LogoutTimeout
            | CloseReason::Rdma(RdmaFault::Disconnected) => {}
            CloseReason::LoginRefused(status) => {
                self.refused(slot, status);
                return self.drain(slot);
            }
            _ => self.engine.protocol.dropped += 1,
        }
        if conn.session.as_ref().is_some_and(|session| session.logged) {
            tracing::info!(peer = %conn.peer, %reason, "connection closes");
        } else if let Some(unlogged) =
            self.core.rations.grants(Topic::Unfinished, self.engine.exec.storage.now)
        {
            // Strangers cannot fill the log.
            tracing::info!(peer = %conn.peer, %reason, unlogged, "connection closes");
        }
        let gone = matches!(
            reason,
            CloseReason::PingTimeout
                | CloseReason::DataTimeout
                | CloseReason::OutputTimeout
                | CloseReason::KeepsLockWaiting
                | CloseReason::Rdma(_)
        );
        if gone {
            // Nobody is there to take what is queued.
            return self.disconnect(slot);
        }
        self.drain(slot);
    }

    /// Sends what is queued, then closes.
    pub(super) fn drain(&mut self, slot: ConnId) {
        self.drain_within(slot, DRAIN_LIMIT);
    }

    /// Sends what is queued, then closes, after this time at the latest.
    pub(super) fn drain_within(&mut self, slot: ConnId, limit: Duration) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        if conn.phase == Phase::Open {
            conn.phase = Phase::Draining;
            let by = self.engine.exec.storage.now + limit;
            // The time to log out is the time to take what is queued, too: a client that takes nothing does
            // not get the one after the other.
            conn.drain_by = Some(conn.proto.log_out_by().map_or(by, |end| end.min(by)));
            self.end_tasks(slot);
            self.touch(slot);
        }
    }

    /// Closes the socket, or, if that has been done, frees the slot once nothing is in flight.
    pub(super) fn disconnect(&mut self, slot: ConnId) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        if conn.phase != Phase::Closed {
            conn.phase = Phase::Closed;
            match &conn.wire {
                Wire::Stream(socket) => self.engine.exec.storage.ring.close_socket(*socket),
                Wire::Rdma(_) => self.close_link(slot),
            }
            self.end_tasks(slot);
            self.end_session(slot);
        }
        let conn = &self.conns[slot];
        if !conn.receiving() && !conn.transmitting() {
            self.conns.remove(slot);
        }
    }

    fn end_tasks(&mut self, slot: ConnId) {
        self.engine.end_copies(slot);
        let conn = &mut self.conns[slot];
        for at in 0..conn.tasks.len() {
            if let Some(task) = conn.tasks[at].take() {
                self.engine.abandon(task);
            }
        }
    }

    /// Takes the connection off every list. It has no tasks any more, so a new session of the same
    /// nexus may begin: what it had in flight is fenced off.
    fn end_session(&mut self, slot: ConnId) {
        let number = self.number;
        let conn = &mut self.conns[slot];
        conn.reserve = None;
        let place = Place { shard: number, connection: conn.serial };
        match conn.session.take() {
            Some(session) => {
                for lun in &session.luns {
                    let core = &self.engine.exec.storage.volumes[lun.volume].core;
                    core.face.reservations.with(|state| state.detach(lun.seat));
                }
                self.core.registry.remove(&session.nexus, place);
                if session.nexus.target.is_none() {
                    self.core.discovery.leave(conn.peer.ip(), conn.serial);
                }
                if session.logged {
                    let initiator = printable(&session.nexus.initiator);
                    tracing::info!(?initiator, peer = %conn.peer, "session ended");
                }
            }
            None => self.core.login_ends(conn.peer.ip(), conn.serial),
        }
        self.engine.protocol.add_counters(conn.proto.counters());
        self.engine.exec.storage.connections -= 1;
        self.core.loads[number].fetch_sub(1, Ordering::Relaxed);
        for waiter in std::mem::take(&mut conn.waits_for_end) {
            self.tell_ended(waiter);
        }
    }

    /// Another connection of the same nexus has logged in: this one ends.
    pub(super) fn end_for(&mut self, serial: u64, reply: Place) {
        match self.find(serial) {
            Some(slot) if self.conns[slot].phase != Phase::Closed => {
                self.conns[slot].waits_for_end.push(reply);
                self.disconnect(slot);
            }
            // It has ended by itself meanwhile.
            _ => self.tell_ended(reply),
        }
    }

    fn tell_ended(&mut self, waiter: Place) {
        let owed = Owed::Ended { waiter: waiter.connection };
        self.core.mailboxes()[waiter.shard].deliver(owed);
    }
}
