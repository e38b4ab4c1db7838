//! What connections over RDMA do in a turn, and how they end.

use std::fmt::Display;
use std::time::Duration;

use lunet_ring::{Buf, PollSource};
use lunet_verbs::{CmEventKind, Operation};

use super::super::Shard;
use crate::conn::{Conn, ConnId, Phase, Wire};
use crate::front::{Failing, Front, FrontConn};
use crate::rdma::{CONNECTION, Done, Fault, fault, token};

/// A client is disconnected that sends more than so many times what it may send without an answer,
/// or lets so many answers wait. Once might be a matter of opinion, twice is none.
const OVERDRAFT: usize = 2;

/// After so many ends of work their answers leave: the device and the client have them while the next are
/// worked off. To hand them over costs a system call with some devices (soft RoCE).
const AT_A_TIME: usize = 8;

/// How soon the end of what was sent is looked for, if nothing else happens.
const LOOK: Duration = Duration::from_millis(100);

impl<F: Front> Shard<F> {
    /// What has happened to this shard's connections.
    pub(super) fn rdma_events(&mut self) {
        loop {
            let channel = self.rdma.as_mut().and_then(|rdma| rdma.channel.as_mut());
            let Some((channel, id)) = channel else { return };
            let event = match channel.next_event() {
                Ok(Some(event)) => event,
                Ok(None) => return self.front.exec.storage.ring.watch_again(*id),
                Err(error) => return tracing::error!("{}: {error}", F::WORDS.rdma),
            };
            let Some(slot) = self.find(event.token & !CONNECTION) else { continue };
            let gone = Fault::Disconnected;
            match event.kind {
                CmEventKind::Established => self.established(slot),
                CmEventKind::Disconnected => {
                    let why = format!("the {} has closed the connection", F::WORDS.client);
                    self.rdma_ended(slot, gone, why);
                }
                CmEventKind::DeviceRemoval => {
                    let Wire::Rdma(link) = &self.conns[slot].wire else { continue };
                    self.lose_device(link.port, &"it goes away");
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

    /// A connection is over, whoever has ended it.
    pub(super) fn rdma_ended(&mut self, slot: ConnId, fault: Fault, why: impl Display) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        let Wire::Rdma(link) = &mut conn.wire else { return };
        if conn.phase == Phase::Closed {
            return;
        }
        if !std::mem::replace(&mut link.told, true) && link.logged {
            tracing::info!(
                "{}: disconnected {} at {}: {why}",
                F::WORDS.rdma,
                conn.peer,
                conn.local
            );
        }
        let serial = conn.serial;
        F::fail(self, slot, Failing::Rdma(fault));
        // It may have gone with its events.
        if self.conns.get(slot).is_some_and(|conn| conn.serial == serial) {
            self.disconnect(slot);
        }
    }

    /// Ends the queue pair of a connection: nothing is under way afterwards, and its memory is free.
    pub(in crate::shard) fn close_link(&mut self, slot: ConnId) {
        let conn = &mut self.conns[slot];
        let Wire::Rdma(link) = &mut conn.wire else { return };
        if !std::mem::replace(&mut link.told, true) && link.logged {
            tracing::info!(
                "{}: disconnected {} at {}: closed here",
                F::WORDS.rdma,
                conn.peer,
                conn.local
            );
        }
        if let Some(rdma) = &mut self.rdma {
            rdma.waiting -= usize::from(std::mem::take(&mut link.waits));
            if let Some(plug) = rdma.plug(link.port) {
                plug.close(link.endpoint);
            }
        }
        conn.sending = 0;
        conn.out = Default::default();
    }

    /// A port has ends of work, or will have them in a moment.
    pub(super) fn port_readable(&mut self, index: usize) {
        let place = self.rdma.as_mut().and_then(|rdma| rdma.place(index));
        place.into_iter().for_each(|place| place.told = true);
    }

    /// Works off what has ended at the ports.
    pub(in crate::shard) fn work_off_ports(&mut self) {
        let Some(rdma) = &mut self.rdma else { return };
        if !rdma.poll() {
            return;
        }
        let (mut done, ill) = (std::mem::take(&mut rdma.done), std::mem::take(&mut rdma.ill));
        rdma.turn += 1;
        for (n, done) in done.drain(..).enumerate() {
            if n > 0 && n % AT_A_TIME == 0 {
                self.flush();
            }
            self.completed(done);
        }
        if let Some(rdma) = &mut self.rdma {
            rdma.done = done;
        }
        for (index, error) in ill {
            self.lose_device(index, &error);
        }
    }

    /// One piece of work has ended.
    fn completed(&mut self, done: Done) {
        let slot = ConnId::from_token(done.token >> 32);
        let Some(conn) = self.conns.get_mut(slot) else { return };
        let Wire::Rdma(link) = &mut conn.wire else { return };
        if link.endpoint != done.endpoint || conn.phase == Phase::Closed {
            // One that has gone since.
            return;
        }
        if !done.status.is_success() {
            return self.rdma_ended(slot, fault(done.status), done.status);
        }
        match done.operation {
            Operation::Send | Operation::Write => {
                link.sent(done.token as u32);
                conn.sending = link.in_flight();
                conn.front.delivered(self.front.exec.storage.now);
                self.front.unblock(&mut self.conns, slot);
                self.touch(slot);
            }
            Operation::Receive => {
                let Some(buf) = done.buf else { return };
                self.rdma_received(slot, buf, done.bytes as usize);
            }
            Operation::Read => {
                let (Some(id), Some(buf)) = (link.read_done(done.token as u32), done.buf) else {
                    return;
                };
                self.front.read_done(conn, id, buf);
                F::proceed(self, slot);
            }
        }
    }

    /// A Send has come.
    fn rdma_received(&mut self, slot: ConnId, buf: Buf, bytes: usize) {
        let conn = &mut self.conns[slot];
        if conn.phase == Phase::Draining {
            // Too late to be heard; what was said before still goes out.
            return;
        }
        self.front.received_message(conn, &buf[..bytes.min(buf.len())]);
        let Wire::Rdma(link) = &mut conn.wire else { return };
        let Some(rdma) = &mut self.rdma else { return };
        let turn = rdma.turn;
        if let Some(plug) = rdma.plug(link.port) {
            plug.give_back(link.endpoint, buf, token(slot, 0));
        }
        if link.turn != turn {
            (link.turn, link.taken) = (turn, 0);
        }
        link.taken += 1;
        let (taken, may) = (link.taken, OVERDRAFT * conn.front.receives());
        if taken > may {
            let why = format!("the {} sends more than its command window allows", F::WORDS.client);
            return self.rdma_ended(slot, Fault::Flood, why);
        }
        F::proceed(self, slot);
        let waiting = |conn: &Conn<F::Conn>| conn.out.sends() > may;
        if self.conns.get(slot).is_some_and(waiting) {
            let why = format!("the {} takes no answers", F::WORDS.client);
            self.rdma_ended(slot, Fault::NoReceive, why);
        }
    }

    /// Queues what a connection has to send and to read.
    pub(in crate::shard) fn post(&mut self, slot: ConnId) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        let (Wire::Rdma(link), Some(rdma)) = (&mut conn.wire, &mut self.rdma) else { return };
        if conn.phase == Phase::Closed {
            return;
        }
        let Some(place) = rdma.ports.get_mut(link.port).and_then(Option::as_mut) else { return };
        let port = &mut place.plug.port;
        let mut well = true;
        while well && link.takes_reads() && port.room(link.endpoint) > 0 {
            let Some(read) = conn.front.take_read() else { break };
            well = link.read(port, slot, read);
        }
        let memory = (self.front.exec.storage.ring.arena(), &conn.account);
        well &= link.post(port, &mut conn.out, slot, memory, self.front.exec.storage.now);
        conn.sending = link.in_flight();
        // The end of an answer concerns nobody, unless something waits for it. So nobody is woken for it,
        // and it is found with the next thing that happens, or in a while.
        link.look = (conn.sending > 0).then_some(self.front.exec.storage.now + LOOK);
        let waits = link.is_reading()
            || conn.phase != Phase::Open
            || !conn.out.posts.is_empty()
            || !conn.blocked.is_empty();
        if std::mem::replace(&mut link.waits, waits) != waits {
            rdma.waiting = if waits { rdma.waiting + 1 } else { rdma.waiting - 1 };
        }
        if !well {
            rdma.failed.push(slot);
        }
    }

    /// Hands the work of this turn to the devices. True if connections have failed with it, and others
    /// have something to say about that. What a device has refused is found by the next look: to work it
    /// off here, in the middle of a batch, would let what came later overtake the rest of it.
    pub fn flush_ports(&mut self) -> bool {
        let Some(rdma) = &mut self.rdma else { return false };
        for place in rdma.ports.iter_mut().flatten() {
            place.plug.top_up(self.front.exec.storage.ring.arena());
            place.plug.port.flush();
        }
        for slot in std::mem::take(&mut rdma.failed) {
            self.rdma_ended(slot, Fault::Device, "the device takes no more work");
        }
        !self.dirty.is_empty()
    }
}
