//! The shard: one thread, one event loop, and the connections that live on it.
//!
//! A loop iteration takes everything that has happened, lets every state machine concerned run,
//! and then submits all that came of it in one system call; many operations on storage begin before that, some at a time.

mod change;
mod close;
mod control;
mod rdma;

use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use lunet_ring::{Event as RingEvent, Payload, RESIDENT_LEAST, Ring, RxBufs, Token, TxChain};
use lunet_volume::NoChannel;
use rustix::io::Errno;

pub(crate) use self::control::FLUSH_LIMIT;
pub use self::rdma::Rdma;
use crate::change::Proposal;
use crate::conn::{Conn, ConnId, Conns, Phase, Wire};
use crate::core::Core;
use crate::front::{Failing, Front, FrontConn, Local, Occasion};
use crate::mail::{Inbox, Mail};
use crate::places::Entry;
use crate::rationed::Topic;
use crate::scratch::Large;
use crate::stats::Counts;

/// The kinds of tokens, in their top byte. Volumes use another, see `lunet_backends`.
const RECEIVE: u64 = 1 << 56;
const SEND: u64 = 2 << 56;
const LISTEN: u64 = 3 << 56;
const RDMA: u64 = 4 << 56;
const KIND: u64 = 0xFF << 56;

/// How long a lock waits for answers by reference that clients do not take, or for the data timeout if that is shorter:
/// less than what clients give a command that compares and writes (ESXi: 8 s).
const LENT: Duration = Duration::from_secs(5);

/// Buffer memory that was not needed for so long goes back to the system.
const SHRINK: Duration = Duration::from_secs(30);

/// An event loop that has looked so often in a row without sleeping, and has met nothing, burns a processor: a time that is over has
/// been forgotten somewhere. Operations that wait for memory have some hundred tries.
const TURNS: u32 = 10_000;

/// How often time limits are looked at, at the most.
const TICK: Duration = Duration::from_millis(100);

/// One shard.
pub struct Shard<F: Front> {
    /// Which one of its server.
    pub number: usize,
    /// What all shards share.
    pub core: Arc<Core<F>>,
    /// The protocol, and what the shard shares with it.
    pub front: F,
    /// Its connections.
    pub conns: Conns<F::Conn>,
    mail: Inbox<F>,
    /// Messages that it has read, without questions for reports.
    messages: u64,
    /// A change that it is ready for.
    proposal: Option<Arc<Proposal<F>>>,
    /// Its part of the server's RDMA devices, if there are any.
    pub rdma: Option<Box<Rdma>>,
    /// Connections that have something to send or may receive again.
    dirty: Vec<ConnId>,
    /// For connections that send much.
    large: Large,
    /// When time limits are looked at next.
    timer: Option<Duration>,
    /// When it is looked next whether buffer memory is needed still, while there is more than what stays anyway.
    shrink: Option<Duration>,
    /// Set once the server stops: when sessions that are left are ended.
    stopping: Option<Duration>,
    /// Set once the last flush is under way: when it is given up.
    flushing: Option<Duration>,
}

impl<F: Front> Shard<F> {
    /// A shard over its event loop.
    ///
    /// # Errors
    /// A volume cannot be opened on this loop.
    pub fn new(
        number: usize,
        core: Arc<Core<F>>,
        ring: Ring,
        mail: Inbox<F>,
    ) -> Result<Self, NoChannel> {
        Ok(Self {
            number,
            front: F::new(Local::new(number, ring, core.clone())?),
            core,
            conns: Conns::default(),
            mail,
            messages: 0,
            proposal: None,
            rdma: None,
            dirty: Vec::new(),
            large: Large::default(),
            timer: None,
            shrink: None,
            stopping: None,
            flushing: None,
        })
    }

    /// Starts accepting at the portal in a slot.
    pub(crate) fn listen(&mut self, portal: usize, listener: std::net::TcpListener) {
        if let Ok(copy) = listener.try_clone() {
            self.core.listeners().push((portal, copy));
        }
        self.front.exec.storage.ring.add_listener(listener, Token(LISTEN | portal as u64));
    }

    /// Accepts at a portal no more.
    fn end_listener(&mut self, portal: usize) {
        self.core.listeners().retain(|(slot, _)| *slot != portal);
        self.front.exec.storage.ring.remove_listener(Token(LISTEN | portal as u64));
    }

    /// Serves until the server stops. False if the last flush did not end in time. That one has failed is in
    /// the health of its volume.
    ///
    /// # Errors
    /// The event loop has failed; every session of the shard is lost.
    pub(crate) fn run(&mut self) -> std::io::Result<bool> {
        let mut events = Vec::with_capacity(256);
        let mut turns = 0;
        loop {
            let patience = self.patience();
            self.wait(patience, &mut events)?;
            // What RDMA devices have done is no event.
            let idles =
                patience == Some(Duration::ZERO) && events.is_empty() && self.rdma.is_none();
            turns = if idles { turns + 1 } else { 0 };
            debug_assert!(turns < TURNS, "an event loop without anything to do does not sleep");
            self.iterate(&mut events);
            if self.stopping.is_some() && self.stopped() {
                return Ok(self.front.exec.is_done());
            }
        }
    }

    /// Waits for something to do.
    pub fn wait(
        &mut self,
        patience: Option<Duration>,
        events: &mut Vec<RingEvent>,
    ) -> std::io::Result<()> {
        match &mut self.rdma {
            Some(rdma) => {
                rdma.expect_memory(self.front.exec.is_starved());
                self.front.exec.storage.ring.wait_with(patience, events, &mut **rdma)
            }
            None => self.front.exec.storage.ring.wait(patience, events),
        }
    }

    /// Works off what has happened, and queues all that comes of it.
    pub fn iterate(&mut self, events: &mut Vec<RingEvent>) {
        self.front.exec.storage.now = lunet_os::time::since(self.core.started);
        self.decide();
        // First, because an event may be that a device is lost, and what was found is of one that was in use.
        self.process_completions();
        for event in events.drain(..) {
            self.handle(event);
        }
        if self.front.exec.next_watch().is_some_and(|due| due <= self.front.exec.storage.now) {
            for volume in self.front.exec.watch_storage() {
                self.front.storage_hangs(&self.conns, volume);
            }
        }
        self.feed();
        if self.front.exec.next_look().is_some_and(|due| due <= self.front.exec.storage.now) {
            self.look();
        }
        self.look_at_the_clock();
        self.flush();
        self.shrink();
    }

    /// Gives buffer memory back that was not needed for a while.
    fn shrink(&mut self) {
        let (now, ring) = (self.front.exec.storage.now, &mut self.front.exec.storage.ring);
        if self.shrink.is_some_and(|due| due <= now) {
            ring.shrink();
            self.shrink = None;
        }
        if self.shrink.is_none() && ring.arena().resident_bytes() > RESIDENT_LEAST {
            self.shrink = Some(now + SHRINK);
        }
    }

    /// Gives operations that wait for memory another try.
    fn feed(&mut self) {
        for _ in 0..self.front.exec.begin_feeding() {
            let Some(id) = self.front.exec.next_starved() else { break };
            self.front.resume(&mut self.conns, id, Occasion::Memory);
        }
        self.front.take_answers(&mut self.conns);
    }

    /// Looks whose turn it is at locks, and ends the connections that keep one waiting.
    fn look(&mut self) {
        let lenders = self.late_lenders();
        self.front.exec.look();
        for id in self.front.exec.queued() {
            self.front.resume(&mut self.conns, id, Occasion::Look);
        }
        self.front.take_answers(&mut self.conns);
        let mut lenders = lenders.into_iter();
        while let Some(slot) = self.conns.next_of(&mut lenders) {
            F::fail(self, slot, Failing::KeepsLockWaiting);
        }
    }

    /// The connections whose clients have not taken answers by reference in the time that a lock waits for that.
    fn late_lenders(&mut self) -> Vec<ConnId> {
        let timeout = self.core.data_timeout;
        let patience = if timeout.is_zero() { LENT } else { timeout.min(LENT) };
        let mut lenders = Vec::new();
        for volume in self.front.exec.look_at_lent(patience) {
            self.front.exec.storage.reset_closed_lenders(volume);
            for (slot, conn) in self.conns.iter() {
                let Wire::Stream(socket) = conn.wire else { continue };
                let storage = &mut self.front.exec.storage;
                if conn.phase != Phase::Closed && storage.is_lender(volume, &conn.out.chain, socket)
                {
                    lenders.push(slot);
                }
            }
        }
        lenders
    }

    /// How long the loop may sleep.
    pub fn patience(&self) -> Option<Duration> {
        // The start of this iteration is close enough, and costs no look at the clock.
        let now = self.front.exec.storage.now;
        if self.front.exec.feeds() || self.front.exec.line_is_due() {
            return Some(Duration::ZERO);
        }
        let looks = [self.front.exec.next_look(), self.front.exec.next_watch(), self.shrink];
        let times = looks.into_iter().chain([self.timer, self.stopping, self.flushing]);
        let next = times.flatten().min()?;
        // Rounded up to the tick, so that a shard never spins on a time limit.
        Some(next.saturating_sub(now).max(Duration::from_millis(1)))
    }

    fn handle(&mut self, event: RingEvent) {
        lunet_os::met(&event);
        match event {
            RingEvent::Received { token, bufs, result } => {
                self.received(ConnId::from_token(token.0), bufs, result);
            }
            RingEvent::Sent { token, chain, result } => {
                self.sent(ConnId::from_token(token.0), chain, result.is_ok());
            }
            RingEvent::Disk { token, buf, result } => {
                if let Some(io) = lunet_backends::parse_disk_token(token) {
                    self.front.exec.disk_done(io, buf.map(Payload::Buf), result);
                    self.front.take_answers(&mut self.conns);
                }
            }
            RingEvent::Accepted { token, socket, peer } => {
                self.accepted((token.0 & !KIND) as usize, socket, peer);
            }
            RingEvent::AcceptFailed { errno, .. } => self.not_accepted(errno),
            RingEvent::Woken => self.read_mail(),
            RingEvent::Readable { token } => match lunet_backends::parse_disk_token(token) {
                Some(io) => {
                    self.front.exec.disk_done(io, None, Ok(0));
                    self.front.take_answers(&mut self.conns);
                }
                None => self.rdma_readable(token.0 & !KIND),
            },
        }
    }

    /// A connection came in and could not be taken.
    fn not_accepted(&self, errno: i32) {
        let now = self.front.exec.storage.now;
        let Some(unlogged) = self.core.rations.grants(Topic::TurnedAway, now) else { return };
        let error = std::io::Error::from_raw_os_error(errno);
        let next = match Errno::from_raw_os_error(errno) {
            Errno::MFILE => {
                ": raise the limit of descriptors (`LimitNOFILE=` of the service, `ulimit -n` before `lunet serve`) and \
                 restart lunet"
            }
            Errno::NFILE => ": raise the limit of all programs by `sysctl fs.file-max`",
            _ => "",
        };
        tracing::warn!(%error, unlogged, "a connection could not be accepted{next}");
    }

    /// A connection came in: it goes to the shard that suits it.
    fn accepted(&mut self, portal: usize, socket: OwnedFd, peer: SocketAddr) {
        if self.front.world.portals.get(portal).is_none() {
            // It came before the portal was removed.
            return;
        }
        self.front.protocol.connected();
        let entry = self.enter(peer.ip(), self.core.arrives(&socket));
        let shard = entry.shard();
        if shard == self.number {
            return self.adopt(entry, portal, socket, peer);
        }
        let mail = Mail::Connection { entry, socket, peer, portal };
        if self.core.mailboxes()[shard].send(mail).is_err() {
            self.front.protocol.turned_away();
        }
    }

    /// Takes a connection in.
    fn adopt(&mut self, entry: Entry<F>, portal: usize, socket: OwnedFd, peer: SocketAddr) {
        self.attach_stream(entry.serial(), portal, socket, peer);
        entry.keep();
    }

    /// Adds a connection over a stream, which is counted, to the shard's connections.
    pub fn attach_stream(
        &mut self,
        serial: u64,
        portal: usize,
        socket: OwnedFd,
        peer: SocketAddr,
    ) -> ConnId {
        let stream = TcpStream::from(socket);
        let local = stream.local_addr().unwrap_or(peer);
        // Without it, answers wait for acknowledgements of those before (Nagle's algorithm).
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY could not be set");
        }
        let front = self.front.accept();
        let wire = Wire::Stream(self.front.exec.storage.ring.add_socket(stream.into()));
        let conn = Conn::new(serial, (peer, local, portal), wire, front);
        self.front.exec.storage.connections += 1;
        let slot = self.conns.insert(conn);
        self.touch(slot);
        slot
    }

    /// Bytes have come, or the other side is gone.
    fn received(&mut self, slot: ConnId, bufs: RxBufs, result: Result<usize, i32>) {
        let Some(conn) = self.conns.get_mut(slot) else { return self.large.take_back(bufs) };
        let (RxBufs { payload, scratch, .. }, taken) = (bufs, result.unwrap_or(0));
        let filled = payload.as_ref().map_or(0, |(_, range)| range.len().min(taken));
        let phase = conn.phase;
        if taken > 0 && phase == Phase::Open {
            self.front.received(conn, payload, filled, &scratch[..taken - filled]);
        }
        if let Some(large) = conn.scratch.ended(scratch, taken - filled) {
            self.large.give_back(large);
        }
        match phase {
            _ if taken == 0 => self.disconnect(slot),
            Phase::Closed => self.disconnect(slot),
            // Too late to be heard; what was said before still goes out.
            Phase::Draining => {}
            Phase::Open => F::proceed(self, slot),
        }
    }

    /// A chain is out.
    fn sent(&mut self, slot: ConnId, chain: TxChain, ok: bool) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        if let Some(timed) = conn.chain_sent(chain) {
            self.front.exec.storage.answer_sent(timed);
        }
        if !ok || conn.phase == Phase::Closed {
            return self.disconnect(slot);
        }
        self.front.unblock(&mut self.conns, slot);
        self.touch(slot);
    }

    /// The connection of this number, if it is there.
    pub fn find(&self, serial: u64) -> Option<ConnId> {
        self.conns.iter().find(|(_, conn)| conn.serial == serial).map(|(slot, _)| slot)
    }

    /// Queues a connection for the flush at the end of this loop iteration.
    pub fn touch(&mut self, slot: ConnId) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        if !conn.dirty {
            conn.dirty = true;
            self.dirty.push(slot);
        }
    }

    /// Queues the connections on which commands have made progress.
    fn collect_dirty(&mut self) {
        while let Some(slot) = self.front.touched.pop() {
            self.touch(slot);
        }
    }

    /// Sends and receives on every connection that was touched in this loop iteration.
    fn flush(&mut self) {
        self.proceed_held_back();
        self.flush_dirty();
        while self.flush_adapters() {
            self.flush_dirty();
        }
    }

    /// Lets connections get on whose bytes have waited for what has come back in this loop iteration.
    fn proceed_held_back(&mut self) {
        self.collect_dirty();
        let mut at = 0;
        while let Some(slot) = self.dirty.get(at).copied() {
            if self.conns.get(slot).is_some_and(|conn| conn.front.holds_back()) {
                F::proceed(self, slot);
                self.collect_dirty();
            }
            at += 1;
        }
    }

    fn flush_dirty(&mut self) {
        self.collect_dirty();
        for at in 0..self.dirty.len() {
            let slot = self.dirty[at];
            let Some(conn) = self.conns.get_mut(slot) else { continue };
            conn.dirty = false;
            match conn.wire {
                Wire::Stream(socket) => {
                    let storage = &mut self.front.exec.storage;
                    conn.note_held(storage.ring.held(socket), storage.now);
                    if let Some(chain) = conn.next_chain(self.front.exec.storage.now) {
                        let token = Token(SEND | slot.token());
                        self.front.exec.storage.ring.send(socket, chain, token);
                    }
                    if let Some(bufs) = conn.receive_buffers(&mut self.large) {
                        let token = Token(RECEIVE | slot.token());
                        self.front.exec.storage.ring.recv(socket, bufs, token);
                    }
                }
                Wire::Rdma(_) => self.post(slot),
            }
            let conn = &mut self.conns[slot];
            conn.note_output(self.front.exec.storage.now);
            if let Some(due) = conn.due(self.core.data_timeout) {
                self.timer = Some(self.timer.map_or(due, |timer| timer.min(due)));
            }
            if conn.phase == Phase::Draining && !conn.transmitting() && conn.backlog() == 0 {
                self.disconnect(slot);
            }
        }
        self.dirty.clear();
    }

    /// Lets the connections whose time has come act on it.
    fn look_at_the_clock(&mut self) {
        let now = self.front.exec.storage.now;
        if self.timer.is_none_or(|timer| now < timer) {
            return;
        }
        self.timer = None;
        let mut next: Option<Duration> = None;
        let mut due = Vec::new();
        for (slot, conn) in self.conns.iter() {
            match conn.due(self.core.data_timeout) {
                Some(time) if time <= now => due.push(slot),
                Some(time) => next = Some(next.map_or(time, |next| next.min(time))),
                None => {}
            }
        }
        let mut due = due.into_iter();
        while let Some(slot) = self.conns.next_of(&mut due) {
            self.tick(slot);
        }
        // Time limits are seconds: a look ten times a second is close enough, and keeps a busy
        // shard from walking over all its connections in every iteration.
        self.timer = next.map(|next| next.max(now + TICK));
    }

    /// A time limit of a connection has passed.
    fn tick(&mut self, slot: ConnId) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        if conn.drain_by.is_some_and(|limit| limit <= self.front.exec.storage.now) {
            return self.disconnect(slot);
        }
        if let Wire::Stream(socket) = conn.wire {
            let storage = &mut self.front.exec.storage;
            conn.note_held(storage.ring.held(socket), storage.now);
            conn.note_delivery(storage.ring.delivery(socket), storage.now);
            if conn.takes_nothing(self.core.data_timeout, self.front.exec.storage.now) {
                return F::fail(self, slot, Failing::TakesNothing);
            }
        }
        F::tick(self, slot);
    }
}
