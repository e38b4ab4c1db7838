//! One connection on its shard: what carries it, and what is on its way in and out. The rest of it is its protocol's.

use std::net::SocketAddr;
use std::ops::{Index, IndexMut};
use std::time::Duration;

use lunet_ring::{Account, Delivery, Reserve, RxBufs, Shrink, SocketId, TxChain};
use lunet_volume::{BACKLOG_HIGH, Budget, OperationId, Timed};
use slab::Slab;

use crate::front::FrontConn;
use crate::network::Origin;
use crate::rdma::QueuePair;
use crate::scratch::{self, Large, Scratch};
use crate::transmit::Outgoing;

/// A connection with this much waiting to be sent receives nothing, of bytes that no buffer of the shard's bounds: headers, and the answers to pings and texts.
const COPIED_HIGH: usize = 64 << 10;

/// Bytes of one receive of a connection that does not [serve](FrontConn::serves): what it asks for in them may come
/// back many times as long.
const UNSERVED_RECEIVE: usize = 512;

/// A client takes what is sent to it if it takes so much in the time that it has, or all. In bytes.
const LEAST_TAKEN: u64 = 64 << 10;

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

/// What carries a connection.
pub enum Wire {
    /// A TCP socket, in the event loop.
    Stream(SocketId),
    /// A queue pair.
    Rdma(Box<QueuePair>),
}

/// How a client takes what is sent to it.
#[derive(Debug, Default)]
struct Uptake {
    /// Something waits to be sent.
    waits: bool,
    /// Bytes that the client's system had taken in at the last look at the clock.
    delivered: u64,
    /// When it had taken in enough, or what waits began to wait, and how much it had taken in by then.
    taken_at: Duration,
    taken: u64,
    /// When was looked.
    looked: Duration,
}

impl Uptake {
    /// Something waits to be sent, or nothing does. The time for it begins when it begins to wait, not when the
    /// connection was made or looked at last.
    fn note(&mut self, waits: bool, now: Duration) {
        if waits && !self.waits {
            (self.taken_at, self.looked) = (now, now);
            self.taken = self.delivered;
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
        if !waits || bytes >= self.taken + LEAST_TAKEN {
            (self.taken_at, self.taken) = (now, bytes);
        }
        more.then(|| now.saturating_sub(ago))
    }
}

/// Names a connection on its shard. Another connection may get it when that one has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnId(u32);

impl ConnId {
    /// The connection that a token names in its lower half.
    pub(crate) const fn from_token(token: u64) -> Self {
        Self(token as u32)
    }

    /// Itself, as the lower half of a token.
    pub(crate) const fn token(self) -> u64 {
        self.0 as u64
    }
}

/// The connections of a shard. A wrong name is a mistake of lunet's, and stops it.
pub struct Conns<P> {
    slots: Slab<Conn<P>>,
    shrink: Shrink,
}

impl<P> Default for Conns<P> {
    fn default() -> Self {
        Self { slots: Slab::new(), shrink: Shrink::default() }
    }
}

impl<P> Index<ConnId> for Conns<P> {
    type Output = Conn<P>;

    fn index(&self, id: ConnId) -> &Conn<P> {
        &self.slots[id.0 as usize]
    }
}

impl<P> IndexMut<ConnId> for Conns<P> {
    fn index_mut(&mut self, id: ConnId) -> &mut Conn<P> {
        &mut self.slots[id.0 as usize]
    }
}

impl<P> Conns<P> {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (ConnId, &Conn<P>)> {
        self.slots.iter().map(|(slot, conn)| (ConnId(slot as u32), conn))
    }

    /// The next of these that has not ended meanwhile: to end one may end others.
    pub fn next_of(&self, slots: &mut impl Iterator<Item = ConnId>) -> Option<ConnId> {
        slots.find(|slot| self.get(*slot).is_some())
    }

    /// One that may have ended. Whoever goes through several has to ask by this: to end one may end another, as a connection that
    /// logs in anew ends those before it.
    pub fn get(&self, id: ConnId) -> Option<&Conn<P>> {
        self.slots.get(id.0 as usize)
    }

    /// One that may have ended, to change it.
    pub fn get_mut(&mut self, id: ConnId) -> Option<&mut Conn<P>> {
        self.slots.get_mut(id.0 as usize)
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The id that the next connection will have.
    pub(crate) fn next_id(&self) -> ConnId {
        ConnId(self.slots.vacant_key() as u32)
    }

    /// Takes one in.
    pub(crate) fn insert(&mut self, conn: Conn<P>) -> ConnId {
        ConnId(self.slots.insert(conn) as u32)
    }

    /// Lets one go.
    pub(crate) fn remove(&mut self, id: ConnId) -> Conn<P> {
        let conn = self.slots.remove(id.0 as usize);
        if self.shrink.is_due(self.slots.capacity(), self.slots.len()) {
            // Free places at the end are given up. The ids of connections that are there stay.
            self.slots.shrink_to_fit();
        }
        conn
    }
}

/// A connection. `P` is what its protocol knows of it.
pub struct Conn<P> {
    /// Unique in the server's life.
    pub serial: u64,
    /// The client's address.
    pub peer: SocketAddr,
    /// The server's address on this connection.
    pub local: SocketAddr,
    /// Index of the portal.
    pub portal: usize,
    /// What carries it.
    pub wire: Wire,
    /// What its protocol knows of it.
    pub front: P,
    /// What is to be sent next.
    pub out: Outgoing,
    /// An empty chain for the next loop iteration; `None` while a chain is on its way.
    pub(crate) spare: Option<TxChain>,
    /// Bytes that are on their way: in the chain, or over RDMA.
    pub sending: usize,
    /// Of these, the copied ones.
    copied: usize,
    /// Bytes that the socket has taken and that the kernel sends from here, at the last look.
    held: usize,
    /// Whose time it is that they take: that of an operation that was timed whose answer is among them, or of the volume
    /// of the last one.
    timed: Option<Timed>,
    /// The last operation that was timed.
    last_timed: Option<Timed>,
    /// How the client takes what is sent.
    uptake: Uptake,
    /// The arena memory that this connection holds.
    pub account: Account,
    /// The memory that is kept for its session.
    pub reserve: Option<Reserve>,
    /// Where it receives what has no buffer yet.
    pub(crate) scratch: Scratch,
    /// Where the connection is in its end.
    pub phase: Phase,
    /// It was [aborted](crate::shard::Shard::abort): nothing that it had to say is to be said, by whatever ends with it either.
    pub aborted: bool,
    /// When it is closed even if the client has not taken all that is left for it.
    pub(crate) drain_by: Option<Duration>,
    /// Queued for a flush at the end of this loop iteration.
    pub(crate) dirty: bool,
    /// Operations that wait until the backlog shrinks.
    pub blocked: Vec<OperationId>,
    /// Who is to be told when the connection has ended.
    pub(crate) waits_for_end: Vec<crate::places::ConnRef>,
}

impl<P: FrontConn> Conn<P> {
    /// A connection that has just been accepted.
    pub fn new(
        serial: u64,
        (peer, local, portal): (SocketAddr, SocketAddr, usize),
        wire: Wire,
        front: P,
    ) -> Self {
        // Over RDMA each receive has its own buffer.
        let scratch = if matches!(wire, Wire::Rdma(_)) { 0 } else { scratch::OWN };
        Self {
            serial,
            peer,
            local,
            portal,
            wire,
            front,
            out: Outgoing::default(),
            spare: Some(TxChain::new()),
            sending: 0,
            copied: 0,
            held: 0,
            timed: None,
            last_timed: None,
            uptake: Uptake::default(),
            account: Account::default(),
            reserve: None,
            scratch: Scratch::new(scratch),
            phase: Phase::Open,
            aborted: false,
            drain_by: None,
            dirty: false,
            blocked: Vec::new(),
            waits_for_end: Vec::new(),
        }
    }

    /// Where it comes from.
    pub fn origin(&self) -> Origin {
        Origin::new(self.peer.ip(), self.local.ip())
    }

    /// Tells the protocol if the client's system has taken in more of what was sent since the last
    /// look: a client that reads for minutes over a slow link may be silent all that time.
    pub(crate) fn note_delivery(&mut self, delivery: Option<Delivery>, now: Duration) {
        if let Some(news) = self.uptake.look(delivery, self.waits_for_client(), now) {
            self.front.delivered(news);
        }
    }

    /// Tells whether anything waits to be sent now.
    pub(crate) fn note_output(&mut self, now: Duration) {
        self.uptake.note(self.waits_for_client(), now);
    }

    /// Tells how much the kernel sends from here of what the socket has taken. Before the next chain is sent: the time
    /// for that does not begin with what was before, if nothing of it is left.
    pub(crate) fn note_held(&mut self, bytes: usize, now: Duration) {
        self.held = bytes;
        if bytes == 0 && self.sending == 0 {
            self.uptake.note(false, now);
        }
    }

    /// True if memory waits for the client to take what is in it.
    fn waits_for_client(&self) -> bool {
        self.backlog() > 0 || self.held > 0
    }

    /// When to look whether the client takes what waits to be sent.
    fn output_look(&self, timeout: Duration) -> Option<Duration> {
        let waits = self.waits_for_client() && !timeout.is_zero();
        (waits && matches!(self.wire, Wire::Stream(_))).then(|| self.uptake.looked + timeout / 4)
    }

    /// True if something has been waiting for so long and the client took nothing of it, or next to nothing.
    pub(crate) fn takes_nothing(&self, timeout: Duration, now: Duration) -> bool {
        self.output_look(timeout).is_some() && now >= self.uptake.taken_at + timeout
    }

    /// What pays for its buffers.
    pub fn budget(&self) -> Budget<'_> {
        Budget { account: &self.account, reserve: self.reserve.as_ref() }
    }

    /// Bytes that wait to be sent.
    pub fn backlog(&self) -> usize {
        self.sending + self.out.bytes()
    }

    /// When the shard has to look at it again, whatever happens.
    pub(crate) fn due(&self, data_timeout: Duration) -> Option<Duration> {
        let retry = match &self.wire {
            Wire::Stream(_) => None,
            Wire::Rdma(qp) => qp.retry.into_iter().chain(qp.poll_at).min(),
        };
        let times = [self.front.due(), self.drain_by, retry, self.output_look(data_timeout)];
        times.into_iter().flatten().min()
    }

    /// True if a receive is under way.
    pub(crate) fn receiving(&self) -> bool {
        self.scratch.is_lent()
    }

    /// True if something is on its way.
    pub(crate) fn transmitting(&self) -> bool {
        self.sending > 0
    }

    /// The buffers for the next receive, unless one is under way or the connection should not
    /// receive now.
    pub(crate) fn receive_buffers(&mut self, large: &mut Large) -> Option<RxBufs> {
        if self.receiving() || self.phase != Phase::Open || self.has_unread() {
            return None;
        }
        let most = self.front.rx_limit().unwrap_or(usize::MAX);
        if most == 0 {
            return None;
        }
        let payload = self.front.take_rx_buffer();
        let ahead = payload.as_ref().map_or(0, |(_, range)| range.len());
        let scratch = self.scratch.lend(ahead, large);
        let limit = match self.front.serves() {
            true => scratch.len(),
            false => scratch.len().min(UNSERVED_RECEIVE).min(most),
        };
        Some(RxBufs { payload, scratch_limit: limit, scratch })
    }

    /// True if so much waits for the client to take it that it should not be heard. One that does not
    /// [serve](FrontConn::serves) waits for each answer before it asks for more.
    fn has_unread(&self) -> bool {
        match self.front.serves() {
            true => {
                self.backlog() >= BACKLOG_HIGH
                    || self.copied + self.out.chain.plain().len() >= COPIED_HIGH
            }
            false => self.backlog() > 0,
        }
    }

    /// The chain to send now, if there is one and none is under way.
    pub(crate) fn next_chain(&mut self, now: Duration) -> Option<TxChain> {
        if self.phase == Phase::Closed || self.out.chain.is_empty() {
            return None;
        }
        let spare = self.spare.take()?;
        let full = std::mem::replace(&mut self.out.chain, spare);
        let again = || self.last_timed.map(|last| last.again(now));
        self.timed = self.out.timed.take().or_else(again);
        self.last_timed = self.timed;
        self.sending = full.len();
        self.copied = full.plain().len();
        Some(full)
    }

    /// Whose time it is that what is on its way takes.
    pub(crate) fn timed(&self) -> Option<Timed> {
        self.timed
    }

    /// Takes a sent chain back for reuse. Returns whose time it was that it took.
    pub(crate) fn chain_sent(&mut self, mut chain: TxChain) -> Option<Timed> {
        chain.clear();
        self.sending = 0;
        self.copied = 0;
        self.spare = Some(chain);
        self.timed.take()
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
        // A few bytes are not enough, however often; many are.
        assert_eq!(uptake.look(heard(49), true, at(9004)), Some(at(9004)));
        assert_eq!(uptake.look(heard(47 + LEAST_TAKEN), true, at(9005)), Some(at(9005)));
        assert_eq!(uptake.taken_at, at(9000));
        uptake.look(heard(48 + LEAST_TAKEN), true, at(9006));
        assert_eq!(uptake.taken_at, at(9006));
        // Where it cannot be told, nobody is held to it.
        uptake.look(None, true, at(9007));
        assert_eq!(uptake.taken_at, at(9007));
    }
}
