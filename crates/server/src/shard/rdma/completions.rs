//! RDMA connections at work: completions, posted work, and how connections end.

use std::fmt::Display;
use std::time::Duration;

use lunet_ring::{Buf, PollSource};
use lunet_verbs::{CmEventKind, Operation, Status};

use super::super::Shard;
use crate::conn::{Conn, ConnId, Phase, Wire};
use crate::front::{Failing, Front, FrontConn};
use crate::rdma::{CONNECTION, Completion, Fault, fault, token};

/// A client is disconnected that sends more than so many times its command window in one batch of completions,
/// or lets so many responses wait. Twice leaves no doubt.
const WINDOW_FACTOR: usize = 2;

/// Responses are posted after so many completions: the device and the client have them while the next are
/// handled. Posting costs a system call with some devices (soft RoCE).
const RESPONSE_BATCH: usize = 8;

/// Send completions are polled this long after posting, if nothing else happens.
const SEND_POLL: Duration = Duration::from_millis(100);

impl<F: Front> Shard<F> {
    /// Handles connection manager events of this shard's connections.
    pub(super) fn rdma_events(&mut self) {
        loop {
            let channel = self.rdma.as_mut().and_then(|rdma| rdma.channel.as_mut());
            let Some((channel, id)) = channel else { return };
            let event = match channel.next_event() {
                Ok(Some(event)) => event,
                Ok(None) => return self.front.exec.storage.ring.watch_again(*id),
                Err(error) => return tracing::error!("{}: {error}", F::NAMES.rdma),
            };
            let Some(slot) = self.find(event.token & !CONNECTION) else { continue };
            let gone = Fault::Disconnected;
            match event.kind {
                CmEventKind::Established => self.established(slot),
                CmEventKind::Disconnected => {
                    let why = format!("the {} has closed the connection", F::NAMES.client);
                    self.rdma_ended(slot, gone, why);
                }
                CmEventKind::DeviceRemoval => {
                    let Wire::Rdma(qp) = &self.conns[slot].wire else { continue };
                    self.lose_device(qp.device, &"it goes away");
                }
                CmEventKind::AddressChange => {
                    self.rdma_ended(slot, gone, "the address has moved to another device");
                }
                CmEventKind::ConnectError | CmEventKind::Unreachable | CmEventKind::Rejected => {
                    self.rdma_ended(slot, gone, event.reason());
                }
                _ => {}
            }
        }
    }

    /// A connection has failed, or its client has closed it: logs that, fails its session and disconnects.
    pub(super) fn rdma_ended(&mut self, slot: ConnId, fault: Fault, why: impl Display) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        let Wire::Rdma(qp) = &mut conn.wire else { return };
        if conn.phase == Phase::Closed {
            return;
        }
        if !std::mem::replace(&mut qp.end_logged, true) && qp.logged {
            tracing::info!(
                "{}: disconnected {} at {}: {why}",
                F::NAMES.rdma,
                conn.peer,
                conn.local
            );
        }
        let serial = conn.serial;
        F::fail(self, slot, Failing::Rdma(fault));
        // The front may have removed it already.
        if self.conns.get(slot).is_some_and(|conn| conn.serial == serial) {
            self.disconnect(slot);
        }
    }

    /// Destroys the queue pair of a connection: the device has no work of it afterwards, and its memory is free.
    pub(in crate::shard) fn close_queue_pair(&mut self, slot: ConnId) {
        let conn = &mut self.conns[slot];
        let Wire::Rdma(qp) = &mut conn.wire else { return };
        if !std::mem::replace(&mut qp.end_logged, true) && qp.logged {
            tracing::info!(
                "{}: disconnected {} at {}: closed here",
                F::NAMES.rdma,
                conn.peer,
                conn.local
            );
        }
        if let Some(rdma) = &mut self.rdma {
            rdma.waiting -= usize::from(std::mem::take(&mut qp.waits));
            if let Some(pool) = rdma.pool(qp.device) {
                pool.close(qp.endpoint);
            }
        }
        conn.sending = 0;
        conn.out = Default::default();
    }

    /// A device has completions, or will have them in a moment.
    pub(super) fn completions_readable(&mut self, index: usize) {
        let device = self.rdma.as_mut().and_then(|rdma| rdma.device(index));
        device.into_iter().for_each(|device| device.notified = true);
    }

    /// Polls the devices and handles their completions.
    pub(in crate::shard) fn process_completions(&mut self) {
        let Some(rdma) = &mut self.rdma else { return };
        if !rdma.poll() {
            return;
        }
        let mut completions = std::mem::take(&mut rdma.completions);
        let failed = std::mem::take(&mut rdma.failed_devices);
        rdma.batch += 1;
        for (n, done) in completions.drain(..).enumerate() {
            if n > 0 && n % RESPONSE_BATCH == 0 {
                self.flush();
            }
            self.completed(done);
        }
        if let Some(rdma) = &mut self.rdma {
            rdma.completions = completions;
        }
        for (index, error) in failed {
            self.lose_device(index, &error);
        }
    }

    /// Handles one completion.
    fn completed(&mut self, done: Completion) {
        let slot = ConnId::from_token(done.token >> 32);
        let Some(conn) = self.conns.get_mut(slot) else { return };
        let Wire::Rdma(qp) = &mut conn.wire else { return };
        if qp.endpoint != done.endpoint || conn.phase == Phase::Closed {
            // Of a connection that has ended since.
            return;
        }
        if !done.status.is_success() {
            let device = qp.device;
            if done.operation == Operation::SendInvalidate && done.status.is_of_this_end() {
                self.invalidation_failed(device, done.status);
            }
            return self.rdma_ended(slot, fault(done.status), done.status);
        }
        match done.operation {
            Operation::Send | Operation::SendInvalidate | Operation::Write => {
                qp.sent(done.token as u32);
                conn.sending = qp.in_flight();
                conn.front.delivered(self.front.exec.storage.now);
                self.front.unblock(&mut self.conns, slot);
                self.touch(slot);
            }
            Operation::Receive => {
                let Some(head) = done.buf else { return };
                self.rdma_received(slot, (head, done.body), done.bytes as usize);
            }
            Operation::Read => {
                let (Some(id), Some(buf)) = (qp.read_done(done.token as u32), done.buf) else {
                    return;
                };
                self.front.read_done(conn, id, buf);
                F::proceed(self, slot);
            }
        }
    }

    /// A Send with Invalidate has failed at this end: the device is used without from now on.
    fn invalidation_failed(&self, index: usize, status: Status) {
        let Some(rdma) = &self.rdma else { return };
        let Some(device) = rdma.devices.get(index).and_then(Option::as_ref) else { return };
        if let Some(news) = self.core.rdma.invalidation.failed(device.name(), status) {
            tracing::warn!("{}: {news}", F::NAMES.rdma);
        }
    }

    /// A message has arrived.
    fn rdma_received(&mut self, slot: ConnId, memory: (Buf, Option<Buf>), bytes: usize) {
        let conn = &mut self.conns[slot];
        if conn.phase == Phase::Draining {
            // Too late for a command; responses to earlier ones still go out.
            return;
        }
        let Wire::Rdma(qp) = &conn.wire else { return };
        let Some(rdma) = &mut self.rdma else { return };
        let (batch, endpoint) = (rdma.batch, qp.endpoint);
        let Some(pool) = rdma.pool(qp.device) else { return };
        let mut received = pool.received(memory, bytes, self.front.exec.storage.ring.arena());
        self.front.received_message(conn, received.message());
        pool.repost(endpoint, received, token(slot, 0));
        let Wire::Rdma(qp) = &mut conn.wire else { return };
        if qp.batch != batch {
            (qp.batch, qp.taken) = (batch, 0);
        }
        qp.taken += 1;
        let (taken, may) = (qp.taken, WINDOW_FACTOR * conn.front.receives());
        if taken > may {
            let why = format!("the {} sends more than its command window allows", F::NAMES.client);
            return self.rdma_ended(slot, Fault::Flood, why);
        }
        F::proceed(self, slot);
        let waiting = |conn: &Conn<F::Conn>| conn.out.sends() > may;
        if self.conns.get(slot).is_some_and(waiting) {
            let why = format!("the {} takes no answers", F::NAMES.client);
            self.rdma_ended(slot, Fault::NoReceive, why);
        }
    }

    /// Posts what a connection has to send and to read, as far as the send queue and memory go.
    pub(in crate::shard) fn post(&mut self, slot: ConnId) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        let (Wire::Rdma(qp), Some(rdma)) = (&mut conn.wire, &mut self.rdma) else { return };
        if conn.phase == Phase::Closed {
            return;
        }
        let Some(device) = rdma.devices.get_mut(qp.device).and_then(Option::as_mut) else { return };
        let adapter = &mut device.pool.adapter;
        let mut accepted = true;
        while accepted && qp.takes_reads() && adapter.room(qp.endpoint) > 0 {
            let Some(read) = conn.front.take_read() else { break };
            accepted = qp.read(adapter, slot, read);
        }
        let memory = (self.front.exec.storage.ring.arena(), &conn.account);
        accepted &= qp.post(adapter, &mut conn.out, slot, memory, self.front.exec.storage.now);
        conn.sending = qp.in_flight();
        // Send completions raise no interrupt unless something waits for them: they are polled with the next
        // event, or after a while.
        qp.poll_at = (conn.sending > 0).then_some(self.front.exec.storage.now + SEND_POLL);
        let waits = qp.is_reading()
            || conn.phase != Phase::Open
            || !conn.out.posts.is_empty()
            || !conn.blocked.is_empty();
        if std::mem::replace(&mut qp.waits, waits) != waits {
            rdma.waiting = if waits { rdma.waiting + 1 } else { rdma.waiting - 1 };
        }
        if !accepted {
            rdma.failed_conns.push(slot);
        }
    }

    /// Hands queued work to the devices. True if connections have failed with it and others have something to
    /// send because of that. Work that a device has refused is reported by the next poll: to handle it here, in
    /// the middle of a batch, would let later completions overtake the rest of the batch.
    pub fn flush_adapters(&mut self) -> bool {
        let Some(rdma) = &mut self.rdma else { return false };
        for device in rdma.devices.iter_mut().flatten() {
            device.pool.replenish(self.front.exec.storage.ring.arena());
            device.pool.adapter.flush();
        }
        for slot in std::mem::take(&mut rdma.failed_conns) {
            self.rdma_ended(slot, Fault::Device, "the device takes no more work");
        }
        !self.dirty.is_empty()
    }
}
