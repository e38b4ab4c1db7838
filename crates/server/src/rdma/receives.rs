//! The receives that are posted to an adapter for its connections.
//!
//! # Why a shared queue does not run dry
//!
//! Where the device has a shared receive queue, all connections of an adapter take from one pool. It grows
//! with them, by the messages that one may send without a response
//! ([`FrontConn::receives`](crate::front::FrontConn::receives): its command window and some more), up to a
//! quarter of the shard's memory; from then on there is less than all of them together might send at once.
//! That is safe:
//! - A command holds no receive: its data is read by RDMA, copied out, or kept with the buffer that it has come in,
//!   in whose place there is another one. The receive is posted again in the same loop iteration, with one call for all
//!   of them. So the pool has to cover one iteration.
//! - A client that sends more than twice its window in one iteration is disconnected
//!   (`shard/rdma/completions.rs`). So one that floods cannot make others wait for long.
//! - If it does run dry, senders retry after 0.64 ms, without limit (RNR retry). Nothing is lost.
//! - A connection that ends in the middle of a message may keep a receive, for as long as the queue lives. Others
//!   are posted in place of them ([`replenish`](ReceivePool::replenish)), half as many as the queue has. If that is
//!   not enough, new connections have receives of their own, which end with them. From then on the pool can
//!   lose one more for each of its connections, and no more than these have memory: it keeps three quarters.

//! # Buffers that commands keep
//!
//! A message is received into two buffers, if the device can: its headers into one, the data behind them to the
//! beginning of another one, its body. A command keeps the body with the data in it, and it is not copied. A body that is
//! kept is charged to its connection like a buffer for other data, and within the same limits. The one that takes its
//! place has to be there before: while half of the memory is in use, none is taken that the pool does not have, and
//! without one the data is copied. So whatever is kept, there are as many receives.
//!
//! Bodies are taken out of slabs of the arena. Otherwise those that took the place of others would end up wherever
//! something was free at that time, and stay there.

use lunet_ring::{Arena, Buf, MAX_RESERVE, Slab};
use lunet_verbs::{CmId, HEAD_MAX, Scatter};

use super::adapter::{Adapter, Endpoint, NotOpened};
use super::{COMPLETIONS, SENDS};
use crate::front::{RdmaBody, RdmaMessage};

/// Arena memory for the heads of a connection's Sends, in bytes.
const HEADS: usize = SENDS as usize * HEAD_MAX;

/// A slab for bodies is at most this part of the arena.
const SLABS: usize = 64;

/// The receives that a connection needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receives {
    /// Bytes of a message: those that come first, those behind them that come to the beginning of a buffer of their own
    /// if the device can, and the rest.
    pub parts: [usize; 3],
    /// Messages that a connection may send without a response.
    pub each: u32,
}

impl Receives {
    /// The size of the shared receive queue of one of so many devices, in receives.
    pub(crate) fn shared(self, arena: &Arena, devices: usize) -> u32 {
        let cost = self.cost(true).max(self.cost(false));
        let quarter = arena.total_bytes() / 4 / devices.max(1) / cost;
        (quarter as u32).max(self.each).min(COMPLETIONS / 4)
    }

    /// Arena memory of a receive, in bytes.
    fn cost(self, scatters: bool) -> usize {
        let [first, body, rest] = self.parts;
        match scatters && body > 0 {
            true => Arena::cost(first + rest) + Arena::cost(body),
            false => Arena::cost(first + body + rest),
        }
    }
}

/// The buffers for the bodies of messages.
struct Bodies {
    /// Length of each, in bytes; 0 if messages have none.
    len: usize,
    slabs: Vec<Slab>,
    /// The slab that had room last.
    at: usize,
    /// One that was not needed.
    spare: Option<Buf>,
}

impl Bodies {
    /// One for a receive.
    fn alloc(&mut self, arena: &Arena) -> Option<Buf> {
        let slab = |slabs: &mut Self| {
            let bytes = (arena.total_bytes() / SLABS).clamp(Arena::cost(slabs.len), MAX_RESERVE);
            let slab = arena.slab(1 << bytes.ilog2())?;
            let buf = slab.alloc(slabs.len);
            slabs.at = slabs.slabs.len();
            slabs.slabs.push(slab);
            buf
        };
        // Where there is no large piece, there may be a small one.
        self.take().or_else(|| slab(self)).or_else(|| arena.alloc(self.len))
    }

    /// One to take the place of another that a command keeps.
    fn spare(&mut self, arena: &Arena) -> Option<Buf> {
        if let Some(buf) = self.spare.take().or_else(|| self.take()) {
            return Some(buf);
        }
        let plenty = arena.shared_free() > arena.shared_bytes() / 2;
        plenty.then(|| self.alloc(arena)).flatten()
    }

    /// One out of the slabs that there are: of the first with room, so that the last ones become free.
    fn take(&mut self) -> Option<Buf> {
        if let Some(buf) = self.slabs.get(self.at).and_then(|slab| slab.alloc(self.len)) {
            return Some(buf);
        }
        self.slabs.retain(|slab| !slab.is_unused());
        self.slabs.iter().enumerate().find_map(|(at, slab)| {
            let buf = slab.alloc(self.len)?;
            self.at = at;
            Some(buf)
        })
    }

    /// Gives back what is not in use: all, if there are no receives.
    fn shrink(&mut self, all: bool) {
        self.spare = None;
        self.slabs.retain(|slab| !all && !slab.is_unused());
        self.at = 0;
    }
}

/// The memory of a receive with a message in it.
pub(crate) struct Received {
    memory: Scatter,
    bytes: usize,
    spare: Option<Buf>,
}

impl Received {
    /// The message.
    pub(crate) fn message(&mut self) -> RdmaMessage<'_> {
        let Self { memory: Scatter { head, split, body }, bytes, spare } = self;
        let Some(buf) = body else {
            let head = &head[..(*bytes).min(head.len())];
            return RdmaMessage { head, body: None, tail: &[] };
        };
        let (first, rest) = head.split_at(*split);
        let behind = bytes.saturating_sub(*split);
        let len = behind.min(buf.len());
        let tail = (behind - len).min(rest.len());
        let head = &first[..first.len().min(*bytes)];
        RdmaMessage { head, body: Some(RdmaBody { buf, len, spare }), tail: &rest[..tail] }
    }
}

/// An adapter, and the receives that are posted to it.
pub struct ReceivePool {
    /// The adapter. Endpoints that were attached are closed by [`ReceivePool::close`].
    pub(crate) adapter: Adapter,
    receives: Receives,
    bodies: Bodies,
    /// Depth of the shared receive queue; `None` if each connection has its own receives.
    most: Option<u32>,
    /// Connections that use the shared queue, and those that have their own receives.
    sharing: u32,
    own: u32,
}

impl ReceivePool {
    /// An adapter without connections.
    pub fn new(adapter: Adapter, receives: Receives) -> Self {
        let most = adapter.shared_depth();
        let len = if adapter.scatters() { receives.parts[1] } else { 0 };
        let bodies = Bodies { len, slabs: Vec::new(), at: 0, spare: None };
        Self { adapter, receives, bodies, most, sharing: 0, own: 0 }
    }

    /// Receives that so many connections need of the shared queue.
    fn wanted(&self, sharing: u32) -> u32 {
        self.receives.each.saturating_mul(sharing).min(self.most.unwrap_or(0))
    }

    /// Arena memory of its connections, in bytes.
    pub(crate) fn memory(&self) -> usize {
        let shared = self.wanted(self.sharing) + self.adapter.shared_lost();
        let receives = shared as usize + self.own as usize * self.receives.each as usize;
        receives * self.cost() + (self.sharing + self.own) as usize * HEADS
    }

    /// Arena memory that [`Self::attach`] takes for a connection, in bytes.
    pub(crate) fn needed(&self, endpoint: Endpoint) -> usize {
        let receives = if self.adapter.shares_receives(endpoint) {
            self.wanted(self.sharing + 1) - self.wanted(self.sharing)
        } else {
            self.receives.each
        };
        receives as usize * self.cost() + HEADS
    }

    /// Arena memory of a receive, in bytes.
    fn cost(&self) -> usize {
        self.receives.cost(self.adapter.scatters())
    }

    /// Memory for a receive.
    fn receive(&mut self, arena: &Arena) -> Option<Scatter> {
        let [split, body, rest] = self.receives.parts;
        if self.bodies.len == 0 {
            return arena.alloc(split + body + rest).map(Scatter::from);
        }
        let head = arena.alloc(split + rest)?;
        Some(Scatter { head, split, body: Some(self.bodies.alloc(arena)?) })
    }

    /// A message of so many bytes has come into this memory.
    pub(crate) fn received(
        &mut self,
        (head, body): (Buf, Option<Buf>),
        bytes: usize,
        arena: &Arena,
    ) -> Received {
        let split = self.receives.parts[0];
        // Little data is copied anyway.
        let worth = body.is_some() && bytes >= split + self.bodies.len / 2;
        let spare = worth.then(|| self.bodies.spare(arena)).flatten();
        Received { memory: Scatter { head, split, body }, bytes, spare }
    }

    /// Creates the queue pair of a connection.
    ///
    /// # Errors
    /// [`NotOpened`], with the connection.
    pub(crate) fn open(&mut self, id: CmId) -> Result<Endpoint, Box<NotOpened>> {
        self.adapter.open_endpoint(id, self.receives.each)
    }

    /// Posts the receives of a connection, whose completions carry this token. False if there is no memory for
    /// them or the device refuses them; the connection is closed then.
    pub(crate) fn attach(&mut self, endpoint: Endpoint, token: u64, arena: &Arena) -> bool {
        let attached = if self.adapter.shares_receives(endpoint) {
            self.sharing += 1;
            self.adapter.set_receive_token(endpoint, token);
            self.replenish(arena);
            self.adapter.shared_receives() >= self.wanted(1)
        } else {
            self.own += 1;
            (0..self.receives.each).all(|_| {
                let memory = self.receive(arena);
                memory.is_some_and(|it| self.adapter.queue_receive(endpoint, it, token).is_ok())
            })
        };
        let attached = attached && !self.adapter.flush();
        if !attached {
            self.close(endpoint);
        }
        attached
    }

    /// Closes a connection that was [attached](Self::attach): it has no completions later, and its memory is free.
    pub(crate) fn close(&mut self, endpoint: Endpoint) {
        let shared = self.adapter.shares_receives(endpoint);
        self.adapter.close(endpoint);
        let of = if shared { &mut self.sharing } else { &mut self.own };
        *of -= 1;
        if shared && self.sharing == 0 {
            // Nothing else returns receives that were never used.
            self.adapter.renew_shared();
            self.most = self.adapter.shared_depth();
        }
        self.bodies.shrink(self.sharing + self.own == 0);
    }

    /// Posts the memory of a receive again after its message was read.
    pub(crate) fn repost(&mut self, endpoint: Endpoint, received: Received, token: u64) {
        let Received { memory, spare, .. } = received;
        if spare.is_some() {
            self.bodies.spare = spare;
        }
        // A queue that refuses it has failed, and reports that by its completions.
        let _ = if !self.adapter.shares_receives(endpoint) {
            self.adapter.queue_receive(endpoint, memory, token)
        } else if self.adapter.shared_receives() < self.wanted(self.sharing) {
            self.adapter.queue_shared_receive(memory)
        } else {
            // Connections have ended: there are more than needed.
            Ok(())
        };
    }

    /// Replaces shared receives that were lost with connections that have ended.
    pub(crate) fn replenish(&mut self, arena: &Arena) {
        let wanted = self.wanted(self.sharing);
        while self.adapter.shared_receives() < wanted && self.adapter.shared_room() > 0 {
            let Some(memory) = self.receive(arena) else { return };
            if self.adapter.queue_shared_receive(memory).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fake::{self, Wire};
    use super::*;

    /// A short head, and a longer one, as protocols have them.
    const PARTS: [[usize; 3]; 2] = [[64, 4096, 0], [76, 8192, 1020]];
    const ONE: Endpoint = Endpoint::Fake(1);

    struct Bench {
        pool: ReceivePool,
        wire: Wire,
        arena: Arena,
    }

    impl Bench {
        /// One connection, with receives of its own or shared ones.
        fn new(parts: [usize; 3], shared: bool, one_piece: bool) -> Self {
            let (device, wire) = fake::device(64);
            wire.with(|state| {
                state.one_piece = one_piece;
                state.shared = shared.then(Vec::new);
            });
            let receives = Receives { parts, each: 16 };
            let mut pool = ReceivePool::new(Adapter::Fake(device), receives);
            let arena = Arena::new(4 << 20).expect("a small mapping");
            assert!(pool.attach(ONE, 7, &arena));
            Self { pool, wire, arena }
        }

        fn posted(&self) -> usize {
            let shared = self.wire.with(|state| state.shared.as_ref().map_or(0, Vec::len));
            shared + self.wire.receives(1)
        }

        /// A message comes. What is kept of it, if `keeps` and there is another buffer.
        fn send(&mut self, message: &[u8], keeps: bool) -> Option<Buf> {
            self.wire.send(1, message);
            let mut done = Vec::new();
            self.pool.adapter.poll(&mut done).expect("the device is there");
            let done = done.pop().expect("it has come");
            let memory = (done.buf.expect("its head"), done.body);
            let mut received = self.pool.received(memory, done.bytes as usize, &self.arena);
            let RdmaMessage { head, body, tail } = received.message();
            let (mut all, mut kept) = (head.to_vec(), None);
            if let Some(RdmaBody { buf, len, spare }) = body {
                assert_eq!(buf.start().as_ptr() as usize % 4096, 0, "it is aligned");
                all.extend_from_slice(&buf[..len]);
                kept = spare.take_if(|_| keeps).map(|spare| std::mem::replace(buf, spare));
            }
            all.extend_from_slice(tail);
            assert!(all == message, "another message");
            self.pool.repost(ONE, received, 7);
            kept
        }

        fn assert_all_comes_back(mut self, kept: Vec<Buf>) {
            self.pool.close(ONE);
            drop(kept);
            let (free, total) = (self.arena.free_bytes(), self.arena.total_bytes());
            assert_eq!(free, total);
        }
    }

    fn message(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i % 253) as u8 + 1).collect()
    }

    proptest! {
        #[test]
        fn messages_of_any_length_come_whole(
            parts in 0..PARTS.len(), shared: bool, one_piece: bool,
            sends in proptest::collection::vec((0..4usize, -2..3isize, any::<bool>()), 1..40),
        ) {
            let parts = PARTS[parts];
            let mut bench = Bench::new(parts, shared, one_piece);
            let (posted, mut kept) = (bench.posted(), Vec::new());
            for (place, off, keeps) in sends {
                // At each boundary, and beside it.
                let at: usize = parts[..place].iter().sum();
                let len = at.saturating_add_signed(off).min(parts.iter().sum());
                kept.extend(bench.send(&message(len), keeps));
                prop_assert_eq!(bench.posted(), posted, "as many as before");
            }
            prop_assert!(!one_piece || kept.is_empty());
            bench.assert_all_comes_back(kept);
        }
    }

    #[test]
    fn every_length_comes_whole() {
        for shared in [false, true] {
            let mut bench = Bench::new([64, 512, 100], shared, false);
            (0..=676).for_each(|len| drop(bench.send(&message(len), len % 2 == 0)));
            bench.assert_all_comes_back(Vec::new());
        }
    }

    #[test]
    fn what_is_kept_keeps_its_data_and_little_is_not_worth_it() {
        for parts in PARTS {
            let mut bench = Bench::new(parts, true, false);
            let [split, body, _] = parts;
            assert!(bench.send(&message(split + body / 2 - 1), true).is_none());
            let kept = bench.send(&message(split + body), true).expect("there is memory");
            assert_eq!(kept[..], message(split + body)[split..]);
            bench.wire.with(|state| {
                assert!(!state.bodies().contains(&(kept.start().as_ptr() as usize)));
            });
            bench.send(&vec![0; split + body], false);
            assert_eq!(kept[..], message(split + body)[split..], "nobody writes to it");
            bench.assert_all_comes_back(vec![kept]);
        }
    }

    #[test]
    fn a_flood_that_keeps_all_holds_no_receives_and_half_of_the_memory_at_most() {
        for parts in PARTS {
            let mut bench = Bench::new(parts, true, false);
            let (posted, mut kept) = (bench.posted(), Vec::new());
            for _ in 0..2000 {
                kept.extend(bench.send(&message(parts[0] + parts[1]), true));
                assert_eq!(bench.posted(), posted);
            }
            let slab = bench.arena.total_bytes() / SLABS;
            let least = bench.arena.total_bytes() / 2 - slab;
            assert!(bench.arena.shared_free() >= least && kept.len() > 100, "{}", kept.len());
            // What comes back is used again.
            kept.truncate(10);
            assert!(bench.send(&message(parts[0] + parts[1]), true).is_some());
            bench.assert_all_comes_back(kept);
        }
    }

    #[test]
    fn bodies_stay_together() {
        let mut bench = Bench::new(PARTS[0], true, false);
        let (mut kept, mut others) = (Vec::new(), Vec::new());
        for n in 0..600 {
            // Something else takes memory meanwhile, for a while.
            others.push(bench.arena.alloc(4096).expect("memory"));
            kept.extend(bench.send(&message(64 + 4096), true));
            if n % 20 == 19 {
                kept.clear();
                others.clear();
            }
        }
        let of_slabs = bench.pool.bodies.slabs.len() * (bench.arena.total_bytes() / SLABS);
        let heads = 16 * 4096;
        assert_eq!(bench.arena.free_bytes(), bench.arena.total_bytes() - of_slabs - heads);
        assert!(of_slabs <= 256 << 10, "{of_slabs}");
        bench.assert_all_comes_back(kept);
    }
}
