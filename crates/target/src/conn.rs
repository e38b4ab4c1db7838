//! One connection on its shard: socket, protocol state, and what is on its way in and out.

use std::net::SocketAddr;
use std::ops::{Index, IndexMut, Range};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use lunet_iscsi::chap::Proof;
use lunet_iscsi::target::{Connection, Cx, Event, LoginIdentity, Tag};
use lunet_ring::{Account, Buf, Delivery, Reserve, RxBufs, SocketId, TxChain};
use lunet_scsi::Attention;
use lunet_scsi::reserve::{NexusId, Seat};
use lunet_volume::{BACKLOG_HIGH, Budget, OperationId, VolumeId};
use slab::Slab;

use crate::access::Origin;
use crate::engine::Engine;
use crate::rdma::Link;
use crate::registry::Nexus;
use crate::site::Surroundings;
use crate::transmit::Outgoing;
use crate::world::{CoreTarget, ScsiVolume};

/// Room for headers and small data in one receive. One fill holds 340 command headers.
const SCRATCH: usize = 16 << 10;

/// A connection with this much waiting to be sent receives nothing, of bytes that no buffer of the shard's bounds: headers, and the answers to pings and texts.
const COPIED_HIGH: usize = 64 << 10;

/// Bytes of one receive of a discovery session: what it asks for in them may come back many times as long.
const DISCOVERY_RECEIVE: usize = 512;

/// How long a discovery session may last: asking for the targets takes a moment.
const DISCOVERY: Duration = Duration::from_secs(60);

/// A session in full feature phase.
pub struct Session {
    /// Its key in the registry.
    pub nexus: Nexus,
    /// The same, as reservations know it.
    pub id: Arc<NexusId>,
    /// Target session identifying handle.
    pub tsih: u16,
    /// The target that it is a session of; `None` for a discovery session.
    pub target: Option<Arc<CoreTarget>>,
    /// How it has proved who it is.
    pub proof: Option<Proof>,
    /// How that target looks to this initiator.
    pub scsi: lunet_scsi::Target,
    /// The LUNs that it sees, ascending.
    pub luns: Vec<SessionLun>,
    /// Its login is in the log, and so will be its end.
    pub logged: bool,
    /// When it was admitted.
    pub since: Duration,
}

/// A logical unit as one session sees it.
pub struct SessionLun {
    /// Its number.
    pub lun: u16,
    /// The slot of its volume.
    pub volume: VolumeId,
    /// What pends for the initiator there, and what it may do.
    pub nexus: lunet_scsi::Nexus,
    /// The seat at the volume's reservations.
    pub seat: Seat,
    /// The buffers that the session has at the volume's storage.
    pub at_storage: Option<Account>,
}

impl SessionLun {
    /// Takes a seat at the reservations of a volume. What an initiator knew of the unit before, it should ask
    /// again (SAM-5 5.14).
    pub fn join(lun: u16, slot: VolumeId, volume: &ScsiVolume, id: &Arc<NexusId>) -> Self {
        let seat = volume.face.reservations.with(|state| state.attach(id.clone()));
        let mut nexus = lunet_scsi::Nexus::new();
        nexus.establish(Attention::PowerOn);
        Self { lun, volume: slot, nexus, seat, at_storage: None }
    }
}

/// What a session sees under a number.
pub fn find_lun(luns: &mut [SessionLun], lun: u16) -> Option<&mut SessionLun> {
    let at = luns.binary_search_by_key(&lun, |seen| seen.lun).ok()?;
    luns.get_mut(at)
}

/// How far the end of a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Serving.
    Open,
    /// Close the socket when all that is queued has been sent.
    Draining,
    /// The socket is closed; the slot is free when the last operation on it has completed.
    Closed,
}

/// A task management function that waits for other shards.
pub struct PendingClear {
    /// The function's tag, for the response.
    pub tag: Tag,
    /// Shards that have not done their part.
    pub left: Arc<AtomicUsize>,
    /// What it does.
    pub cause: crate::mail::Cause,
}

/// What carries a connection.
pub enum Wire {
    /// A TCP socket, in the event loop.
    Stream(SocketId),
    /// A queue pair.
    Rdma(Box<Link>),
}

/// How a client takes what is sent to it.
#[derive(Debug, Default)]
struct Uptake {
    /// Something waits to be sent.
    waits: bool,
    /// Bytes that the client's system had taken in at the last look at the clock.
    delivered: u64,
    /// When it had taken in more than at the look before, or what waits began to wait.
    taken_at: Duration,
    /// When was looked.
    looked: Duration,
}

impl Uptake {
    /// Something waits to be sent, or nothing does. The time for it begins when it begins to wait, not when the
    /// connection was made or looked at last.
    fn note(&mut self, waits: bool, now: Duration) {
        if waits && !self.waits {
            (self.taken_at, self.looked) = (now, now);
        }
        self.waits = waits;
    }

    /// A look at what the client's system has taken in. When it took the last of that, if it is more than before.
    fn look(&mut self, delivery: Option<Delivery>, waits: bool, now: Duration) -> Option<Duration> {
        self.note(waits, now);
        self.looked = now;
        let Some(Delivery { bytes, ago }) = delivery else {
            // That cannot be told.
            self.taken_at = now;
            return None;
        };
        let more = bytes > self.delivered;
        self.delivered = bytes;
        if more || !waits {
            self.taken_at = now;
        }
        more.then(|| now.saturating_sub(ago))
    }
}

/// Names a connection on its shard. Another connection may get it when that one has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnId(u32);

impl ConnId {
    /// The connection that a token names in its lower half.
    pub const fn from_token(token: u64) -> Self {
        Self(token as u32)
    }

    /// Itself, as the lower half of a token.
    pub const fn token(self) -> u64 {
        self.0 as u64
    }
}

/// The connections of a shard. A wrong name is a mistake of lunet's, and stops it.
#[derive(Default)]
pub struct Conns(Slab<Conn>);

impl Index<ConnId> for Conns {
    type Output = Conn;

    fn index(&self, id: ConnId) -> &Conn {
        &self.0[id.0 as usize]
    }
}

impl IndexMut<ConnId> for Conns {
    fn index_mut(&mut self, id: ConnId) -> &mut Conn {
        &mut self.0[id.0 as usize]
    }
}

impl Conns {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (ConnId, &Conn)> {
        self.0.iter().map(|(slot, conn)| (ConnId(slot as u32), conn))
    }

    /// One that may have ended.
    pub fn get(&self, id: ConnId) -> Option<&Conn> {
        self.0.get(id.0 as usize)
    }

    /// One that may have ended, to change it.
    pub fn get_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.0.get_mut(id.0 as usize)
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The name of the next one.
    pub fn next_id(&self) -> ConnId {
        ConnId(self.0.vacant_key() as u32)
    }

    /// Takes one in.
    pub fn insert(&mut self, conn: Conn) -> ConnId {
        ConnId(self.0.insert(conn) as u32)
    }

    /// Lets one go.
    pub fn remove(&mut self, id: ConnId) -> Conn {
        self.0.remove(id.0 as usize)
    }
}

/// A connection.
pub struct Conn {
    /// Unique in the server's life.
    pub serial: u64,
    /// The initiator's address.
    pub peer: SocketAddr,
    /// The server's address on this connection.
    pub local: SocketAddr,
    /// Index of the portal.
    pub portal: usize,
    /// What carries it.
    pub wire: Wire,
    /// Protocol state.
    pub proto: Connection<Buf>,
    /// Events that the protocol raised and the shard has not handled; kept for its memory.
    pub events: Vec<Event<Buf>>,
    /// What is to be sent next.
    pub out: Outgoing,
    /// An empty chain for the next turn; `None` while a chain is on its way.
    pub spare: Option<TxChain>,
    /// Bytes that are on their way: in the chain, or over RDMA.
    pub sending: usize,
    /// Of these, the copied ones.
    copied: usize,
    /// How the client takes what is sent.
    uptake: Uptake,
    /// The arena memory that this connection holds.
    pub account: Account,
    /// The memory that is kept for its session.
    pub reserve: Option<Reserve>,
    /// The scratch buffer, while no receive has it.
    pub scratch: Option<Box<[u8]>>,
    /// The session, once admitted.
    pub session: Option<Session>,
    /// The identity that waits for admission: an older session of the nexus is being ended.
    pub waiting: Option<Box<LoginIdentity>>,
    /// Where the connection is in its end.
    pub phase: Phase,
    /// When it is closed even if the client has not taken all that is left for it.
    pub drain_by: Option<Duration>,
    /// Queued for a flush at the end of this turn of the loop.
    pub dirty: bool,
    /// Tasks at work, indexed by the protocol's slot number.
    pub tasks: Vec<Option<OperationId>>,
    /// Tasks that wait until the backlog shrinks.
    pub blocked: Vec<OperationId>,
    /// Functions that wait for other shards.
    pub clears: Vec<PendingClear>,
    /// Who is to be told when the connection has ended.
    pub waits_for_end: Vec<crate::registry::Place>,
}

impl Conn {
    /// A connection that has just been accepted.
    pub fn new(
        serial: u64,
        (peer, local, portal): (SocketAddr, SocketAddr, usize),
        wire: Wire,
        proto: Connection<Buf>,
    ) -> Self {
        // Over RDMA each receive has its own buffer.
        let scratch = if proto.is_rdma() { 0 } else { SCRATCH };
        Self {
            serial,
            peer,
            local,
            portal,
            wire,
            proto,
            events: Vec::new(),
            out: Outgoing::default(),
            spare: Some(TxChain::new()),
            sending: 0,
            copied: 0,
            uptake: Uptake::default(),
            account: Account::default(),
            reserve: None,
            scratch: Some(vec![0; scratch].into_boxed_slice()),
            session: None,
            waiting: None,
            phase: Phase::Open,
            drain_by: None,
            dirty: false,
            tasks: Vec::new(),
            blocked: Vec::new(),
            clears: Vec::new(),
            waits_for_end: Vec::new(),
        }
    }

    /// Where it comes from.
    pub fn origin(&self) -> Origin {
        Origin::new(self.peer.ip(), self.local.ip())
    }

    /// Lets the protocol work in the surroundings of its shard; what it asks for is in `events`.
    pub fn drive(
        &mut self,
        engine: &Engine,
        work: impl FnOnce(&mut Connection<Buf>, &mut Cx<'_, Surroundings<'_>, Outgoing>),
    ) {
        let mut site = Surroundings {
            core: &engine.core,
            world: &engine.world,
            arena: engine.exec.storage.ring.arena(),
            allowance: engine.exec.storage.allowance(&self.account),
            account: &self.account,
            reserve: self.reserve.as_ref(),
            now: engine.exec.storage.now,
            portal: self.portal,
            peer: self.peer.ip(),
            initiator: self.session.as_ref().map(|session| session.nexus.initiator.as_str()),
            local: self.local,
        };
        let mut cx = Cx {
            now: engine.exec.storage.now,
            site: &mut site,
            tx: &mut self.out,
            events: &mut self.events,
        };
        work(&mut self.proto, &mut cx);
    }

    /// Tells the protocol if the client's system has taken in more of what was sent since the last
    /// look: a client that reads for minutes over a slow link may be silent all that time.
    pub fn note_delivery(&mut self, delivery: Option<Delivery>, now: Duration) {
        if let Some(news) = self.uptake.look(delivery, self.backlog() > 0, now) {
            self.proto.delivered(news);
        }
    }

    /// Tells whether anything waits to be sent now.
    pub fn note_output(&mut self, now: Duration) {
        self.uptake.note(self.backlog() > 0, now);
    }

    /// When to look whether the client takes what waits to be sent.
    fn output_look(&self, timeout: Duration) -> Option<Duration> {
        let waits = self.backlog() > 0 && !timeout.is_zero();
        (waits && matches!(self.wire, Wire::Stream(_))).then(|| self.uptake.looked + timeout / 4)
    }

    /// True if something has been waiting for so long that the client took nothing of it.
    pub fn takes_nothing(&self, timeout: Duration, now: Duration) -> bool {
        self.output_look(timeout).is_some() && now >= self.uptake.taken_at + timeout
    }

    /// What pays for its buffers.
    pub fn budget(&self) -> Budget<'_> {
        Budget { account: &self.account, reserve: self.reserve.as_ref() }
    }

    /// Bytes that wait to be sent.
    pub fn backlog(&self) -> usize {
        self.sending + self.out.len()
    }

    /// When the shard has to look at it again, whatever happens.
    pub fn due(&self, data_timeout: Duration) -> Option<Duration> {
        let retry = match &self.wire {
            Wire::Stream(_) => None,
            Wire::Rdma(link) => link.retry.into_iter().chain(link.look).min(),
        };
        let (end, look) = (self.discovery_ends(), self.output_look(data_timeout));
        let times = [self.proto.poll_timeout(), self.drain_by, retry, end, look];
        times.into_iter().flatten().min()
    }

    /// When a discovery session has taken long enough, unless it was asked to end already.
    pub fn discovery_ends(&self) -> Option<Duration> {
        let session = self.session.as_ref().filter(|session| session.nexus.target.is_none())?;
        (!self.proto.is_asked_to_log_out()).then_some(session.since + DISCOVERY)
    }

    /// True if a receive is under way.
    pub fn receiving(&self) -> bool {
        self.scratch.is_none()
    }

    /// True if something is on its way.
    pub fn transmitting(&self) -> bool {
        self.sending > 0
    }

    /// The buffers for the next receive, unless one is under way or the connection should not
    /// receive now.
    pub fn receive_buffers(&mut self) -> Option<RxBufs> {
        if self.phase != Phase::Open || self.has_unread() {
            return None;
        }
        let scratch = self.scratch.take()?;
        let limit = match self.serves() {
            true => scratch.len(),
            false => scratch.len().min(DISCOVERY_RECEIVE),
        };
        let payload: Option<(Buf, Range<usize>)> =
            self.proto.take_rx_target().map(|target| (target.buf, target.range));
        Some(RxBufs { payload, scratch_limit: limit, scratch })
    }

    /// True for a session at a target.
    fn serves(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.nexus.target.is_some())
    }

    /// True if so much waits for the client to take it that it should not be heard. Before it has logged in,
    /// and in a discovery session, it waits for each answer before it asks for more.
    fn has_unread(&self) -> bool {
        match self.serves() {
            true => {
                self.backlog() >= BACKLOG_HIGH
                    || self.copied + self.out.chain.plain().len() >= COPIED_HIGH
            }
            false => self.backlog() > 0,
        }
    }

    /// The chain to send now, if there is one and none is under way.
    pub fn next_chain(&mut self) -> Option<TxChain> {
        if self.phase == Phase::Closed || self.out.chain.is_empty() {
            return None;
        }
        let spare = self.spare.take()?;
        let full = std::mem::replace(&mut self.out.chain, spare);
        self.sending = full.len();
        self.copied = full.plain().len();
        Some(full)
    }

    /// Takes a sent chain back for reuse.
    pub fn chain_sent(&mut self, mut chain: TxChain) {
        chain.clear();
        self.sending = 0;
        self.copied = 0;
        self.spare = Some(chain);
    }

    /// The session's seat at the reservations of a logical unit.
    pub fn seat(&self, lun: u16) -> Option<Seat> {
        let luns = &self.session.as_ref()?.luns;
        luns.iter().find(|seen| seen.lun == lun).map(|seen| seen.seat)
    }

    /// The task behind a tag.
    pub fn task(&self, tag: Tag) -> Option<OperationId> {
        self.tasks.get(tag.slot()).copied().flatten()
    }

    /// Remembers the task behind a tag; `None` forgets it.
    pub fn set_task(&mut self, tag: Tag, task: Option<OperationId>) {
        let slot = tag.slot();
        if self.tasks.len() <= slot {
            self.tasks.resize(slot + 1, None);
        }
        self.tasks[slot] = task;
    }

    /// True if data must lie in the arena while it is sent: a digest is in use, so it must not change, or
    /// an RDMA device fetches it, which knows the arena.
    pub fn needs_stable_data(&self) -> bool {
        self.proto.negotiated().data_digest || self.proto.is_rdma()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_for_an_answer_begins_with_the_answer() {
        let at = Duration::from_secs;
        let heard = |bytes| Some(Delivery { bytes, ago: Duration::ZERO });
        // A connection that is made when the server is an hour old, and its first answer.
        let mut uptake = Uptake::default();
        uptake.note(true, at(3600));
        assert_eq!(uptake.look(heard(0), true, at(3601)), None);
        assert_eq!(uptake.taken_at, at(3600));
        // It was taken, and nothing was sent for an hour; then something is, and no time has passed yet.
        uptake.note(false, at(3602));
        uptake.note(true, at(7200));
        assert_eq!(uptake.look(heard(48), true, at(7200)), Some(at(7200)));
        uptake.note(false, at(7201));
        uptake.note(true, at(9000));
        assert_eq!(uptake.look(heard(48), true, at(9001)), None);
        assert_eq!((uptake.taken_at, uptake.looked), (at(9000), at(9001)));
        // What waits on and is not taken stays due.
        uptake.note(true, at(9002));
        assert_eq!(uptake.look(heard(48), true, at(9003)), None);
        assert_eq!(uptake.taken_at, at(9000));
        // Where it cannot be told, nobody is held to it.
        uptake.look(None, true, at(9004));
        assert_eq!(uptake.taken_at, at(9004));
    }
}
