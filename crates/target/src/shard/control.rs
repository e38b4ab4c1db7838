//! Messages to the shard: from other shards, from the control socket, from the signal handler.

use std::sync::mpsc::SyncSender;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::Shard;
use crate::conn::{Conn, ConnId, Phase, Wire};
use crate::mail::{Mail, Owed};
use crate::stats::{RdmaPath, SessionInfo, ShardLoad, ShardStats};

/// How long the last flush may take before the shard gives it up.
pub const FLUSH_LIMIT: Duration = Duration::from_secs(30);

impl Shard {
    pub(super) fn read_mail(&mut self) {
        while let Some(mail) = self.mail.next() {
            match mail {
                Mail::Connection { entry, socket, peer, portal } => {
                    self.adopt(entry, portal, socket, peer);
                }
                Mail::Rdma(change) => self.change_rdma(change),
                Mail::RdmaRequest(request) => self.adopt_request(*request),
                Mail::End { connection, reply } => self.end_for(connection, reply),
                // Who asked may have stopped waiting.
                Mail::Sessions(reply) => drop(reply.try_send(self.sessions())),
                Mail::Stats(reply) => self.report(&reply),
                Mail::Drain(drain) => self.engine.exec.drain(&drain),
                Mail::Turn => self.look(),
                Mail::World(proposal) => self.propose(proposal),
                Mail::Owed(owed) => self.receive_owed(owed),
                Mail::EndSessions(handles) => self.end_sessions(&handles),
            }
        }
        if self.clearing {
            for slot in self.answer_cleared() {
                self.log_out(slot);
            }
        }
    }

    fn receive_owed(&mut self, owed: Owed) {
        match owed {
            Owed::Stop { grace } => self.stop(grace),
            Owed::Evict { connection } => self.evicted(connection),
            Owed::Clear(clear) => {
                self.clear_here(&clear, None);
                // Tells who waits.
                drop(clear.part);
            }
            Owed::Ended { waiter } => self.login_again(waiter),
            // Answered when all mail has been read.
            Owed::Cleared => {}
            Owed::Abort(preempted) => {
                self.abort_preempted(&preempted);
                // Tells who waits.
                drop(preempted.receipt);
            }
            Owed::Settled { ticket, done } => {
                self.engine.settled(&mut self.conns, ticket, done);
            }
            Owed::Kept { ticket, result } => {
                self.engine.reservation_kept(&mut self.conns, ticket, result);
            }
            Owed::Returned { ticket } => self.engine.returned(&mut self.conns, ticket),
            Owed::Rdma(change) => self.change_rdma(change),
        }
    }

    fn report(&self, reply: &SyncSender<ShardStats>) {
        let mut protocol = self.engine.protocol;
        for (_, conn) in self.conns.iter().filter(|(_, conn)| conn.phase != Phase::Closed) {
            protocol.add_counters(conn.proto.counters());
        }
        let load = self.load();
        let _ = reply.try_send(ShardStats { volumes: self.engine.volume_counts(), protocol, load });
    }

    fn load(&self) -> ShardLoad {
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        let (counters, arena) =
            (self.engine.exec.storage.ring.counters(), self.engine.exec.storage.ring.arena());
        ShardLoad {
            shard: self.number,
            cpu_us: cpu.tv_sec as u64 * 1_000_000 + cpu.tv_nsec as u64 / 1000,
            waits: counters.waits,
            operations: counters.operations,
            connections: self.engine.exec.storage.connections,
            commands_in_flight: self.engine.exec.operations.len(),
            buffer_used_bytes: arena.total_bytes() - arena.free_bytes(),
            buffer_bytes: arena.total_bytes(),
        }
    }

    pub(super) fn sessions(&self) -> Vec<SessionInfo> {
        let open = self.conns.iter().filter_map(|(_, conn)| Some((conn, conn.session.as_ref()?)));
        open.map(|(conn, session)| SessionInfo {
            initiator: session.nexus.initiator.clone(),
            target: session.target.as_ref().map(|target| target.name.clone()),
            user: session.proof.as_ref().map(|proof| proof.user.clone()),
            proof: session.proof.clone(),
            origin: conn.origin(),
            leaving: session.nexus.target.is_some() && session.target.is_none(),
            peer: conn.peer.to_string(),
            portal: conn.local.to_string(),
            transport: if conn.proto.is_rdma() { "iser" } else { "tcp" },
            rdma: self.path_of(conn),
            tcp: None,
            portal_index: conn.portal,
            isid: session.nexus.isid.map(|byte| format!("{byte:02x}")).concat(),
            tsih: session.tsih,
            shard: self.number,
            connected_seconds: self.engine.exec.storage.now.saturating_sub(session.since).as_secs(),
            commands_in_flight: conn.tasks.iter().flatten().count(),
            commands: conn.proto.counters().commands,
            read_bytes: conn.proto.counters().bytes_in,
            written_bytes: conn.proto.counters().bytes_out,
            keys: conn.proto.negotiated().pairs(),
        })
        .collect()
    }

    /// The way of a connection over RDMA.
    fn path_of(&self, conn: &Conn) -> Option<RdmaPath> {
        let Wire::Rdma(link) = &conn.wire else { return None };
        let counters = conn.proto.counters();
        Some(RdmaPath {
            device: link.facts.device.clone(),
            gid: link.facts.gid.clone(),
            path_mtu_bytes: link.facts.path_mtu,
            queue_depth: self.core.options.queue_depth,
            rdma_reads: counters.rdma_reads,
            rdma_writes: counters.rdma_writes,
        })
    }

    /// Stops accepting and asks every session to log out.
    fn stop(&mut self, grace: Duration) {
        if self.stopping.is_some() {
            return;
        }
        self.stopping = Some(self.engine.exec.storage.now + grace);
        self.engine.exec.storage.ring.stop_accepting();
        self.stop_rdma();
        let slots: Vec<ConnId> = self.conns.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            let conn = &mut self.conns[slot];
            let serves = conn.session.as_ref().is_some_and(|s| s.nexus.target.is_some());
            if serves {
                conn.proto.request_logout(self.engine.exec.storage.now, grace, &mut conn.out);
                self.touch(slot);
            } else {
                self.disconnect(slot);
            }
        }
        self.flush();
    }

    /// True once everything is closed and flushed.
    pub(super) fn stopped(&mut self) -> bool {
        let now = self.engine.exec.storage.now;
        if self.stopping.is_some_and(|deadline| now >= deadline) {
            let slots: Vec<ConnId> = self.conns.iter().map(|(slot, _)| slot).collect();
            for slot in slots {
                self.disconnect(slot);
            }
        }
        if !self.conns.is_empty() {
            return false;
        }
        // What was acknowledged is completed, so one flush covers it. Abandoned writes may go on.
        let limit = *self.flushing.get_or_insert_with(|| {
            self.engine.stop_sanitizing();
            self.engine.exec.flush_written();
            self.engine.settle(&mut self.conns);
            now + FLUSH_LIMIT
        });
        // Commands have had their time: what they have left at storage that hangs is not waited for.
        let over = self.stopping.is_some_and(|deadline| now >= deadline);
        self.engine.exec.operations.is_empty()
            || now >= limit
            || over && self.engine.exec.all_hangs(FLUSH_LIMIT)
    }
}
