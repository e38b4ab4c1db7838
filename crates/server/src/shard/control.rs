//! Messages to the shard: from other shards, from the control socket, from the signal handler.

use std::time::Duration;

use lunet_os::sync::mpsc::SyncSender;
use rustix::time::{ClockId, clock_gettime};

use super::Shard;
use crate::conn::{ConnId, Phase};
use crate::front::{Front, FrontConn};
use crate::inherited;
use crate::mail::{Mail, Owed};
use crate::stats::{ShardLoad, ShardStats};

/// How long the last flush may take before the shard gives it up.
pub(crate) const FLUSH_LIMIT: Duration = Duration::from_secs(30);

impl<F: Front> Shard<F> {
    pub(super) fn read_mail(&mut self) {
        while let Some(mail) = self.mail.next() {
            lunet_os::met(&mail);
            // Who looks is not to count for what is looked at.
            let is_question = matches!(mail, Mail::Sessions(_) | Mail::Stats(_));
            self.messages += u64::from(!is_question);
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
                Mail::Drain(drain) => self.front.exec.drain(&drain),
                Mail::Turn => self.look(),
                Mail::World(proposal) => self.propose(proposal),
                Mail::Owed(owed) => self.receive_owed(owed),
                Mail::EndSessions(handles) => F::end_sessions(self, &handles),
            }
        }
        F::messages_read(self);
    }

    fn receive_owed(&mut self, owed: Owed<F::Message>) {
        lunet_os::met(&owed);
        match owed {
            Owed::Stop { grace } => self.stop(grace),
            Owed::Evict { connection } => self.evicted(connection),
            Owed::Ended { waiter } => F::place_is_free(self, waiter),
            Owed::Front(message) => F::message(self, message),
            Owed::Returned { ticket } => {
                let Some((id, step)) = self.front.exec.came_back(ticket) else { return };
                self.front.returned(&mut self.conns, id, step);
                self.front.take_answers(&mut self.conns);
            }
            Owed::Rdma(change) => self.change_rdma(change),
        }
    }

    fn report(&self, reply: &SyncSender<ShardStats<F::Counts>>) {
        let mut protocol = self.front.protocol;
        for (_, conn) in self.conns.iter().filter(|(_, conn)| conn.phase != Phase::Closed) {
            conn.front.add_counts(&mut protocol);
        }
        let load = self.load();
        let on_their_way = self.conns.iter().filter_map(|(_, conn)| conn.timed());
        let volumes = self.front.exec.counts(&on_their_way.collect::<Vec<_>>());
        let _ = reply.try_send(ShardStats { volumes, protocol, load });
    }

    fn load(&self) -> ShardLoad {
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        let (counters, arena) =
            (self.front.exec.storage.ring.counters(), self.front.exec.storage.ring.arena());
        ShardLoad {
            shard: self.core.member.first_shard() + self.number,
            time_us: lunet_os::time::since(self.core.started).as_micros() as u64,
            cpu_us: cpu.tv_sec as u64 * 1_000_000 + cpu.tv_nsec as u64 / 1000,
            polled_us: counters.looked_ns / 1000,
            ready_us: ready_time().map_or(0, |time| time.as_micros() as u64),
            waits: counters.waits,
            operations: counters.operations,
            messages: self.messages,
            zero_copy_bytes: counters.zero_copy_bytes,
            zero_copy_copied_bytes: counters.zero_copy_copied_bytes,
            passthrough_commands: counters.commands,
            passthrough_failed: counters.commands_failed,
            connections: self.front.exec.storage.connections,
            commands_in_flight: self.front.exec.operations.len(),
            buffer_used_bytes: arena.total_bytes() - arena.free_bytes(),
            buffer_resident_bytes: arena.resident_bytes(),
            buffer_bytes: arena.total_bytes(),
        }
    }

    /// The sessions of the shard.
    pub fn sessions(&self) -> Vec<F::Session> {
        F::sessions(self)
    }

    /// Stops accepting and asks every session to log out.
    fn stop(&mut self, grace: Duration) {
        if self.stopping.is_some() {
            return;
        }
        self.stopping = Some(self.front.exec.storage.now + grace);
        self.core.listeners().clear();
        // Where the next run gets the sockets, clients wait for it.
        match inherited::are_kept() {
            true => self.front.exec.storage.ring.leave_listeners(),
            false => self.front.exec.storage.ring.stop_accepting(),
        }
        self.stop_rdma();
        let slots: Vec<ConnId> = self.conns.iter().map(|(slot, _)| slot).collect();
        let mut slots = slots.into_iter();
        while let Some(slot) = self.conns.next_of(&mut slots) {
            let conn = &mut self.conns[slot];
            if conn.front.serves() {
                self.front.ask_to_leave(conn, grace);
                self.touch(slot);
            } else {
                self.disconnect(slot);
            }
        }
        self.flush();
    }

    /// True once everything is closed and flushed.
    pub(super) fn stopped(&mut self) -> bool {
        let now = self.front.exec.storage.now;
        if self.stopping.is_some_and(|deadline| now >= deadline) {
            let slots: Vec<ConnId> = self.conns.iter().map(|(slot, _)| slot).collect();
            let mut slots = slots.into_iter();
            while let Some(slot) = self.conns.next_of(&mut slots) {
                self.disconnect(slot);
            }
        }
        if !self.conns.is_empty() {
            return false;
        }
        // What was acknowledged is completed, so one flush covers it. Abandoned writes may go on.
        let limit = *self.flushing.get_or_insert_with(|| {
            self.front.end_background();
            self.front.exec.flush_written();
            self.front.take_answers(&mut self.conns);
            now + FLUSH_LIMIT
        });
        // Commands have had their time: what they have left at storage that hangs is not waited for.
        let over = self.stopping.is_some_and(|deadline| now >= deadline);
        self.front.exec.operations.is_empty()
            || now >= limit
            || over && self.front.exec.all_hangs(FLUSH_LIMIT)
    }
}

/// How long this thread was ready to run while another one had its processor. `None` if the system does not tell.
fn ready_time() -> Option<Duration> {
    // Time on a processor, time in a run queue, how often: both in nanoseconds.
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}
