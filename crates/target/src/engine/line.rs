//! What the locks of a volume mean on one shard: requests are held back while a command has their range for
//! itself, and such a command waits until those before it have left the storage. See [`lunet_volume::Locks`].

use std::ops::{Bound, RangeInclusive};
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use lunet_block::{ByteRange, Error, Request};
use lunet_ring::{Payload, TxChain};
use lunet_scsi::Sense;
use lunet_volume::{Locks, Passage, Stage, Waiter};
use slab::Slab;

use super::Engine;
use super::requests::{request_tag, split_tag};
use super::task::{Bare, DEPTH, Job};
use super::volumes::{Volume, Way};
use crate::conn::{Conn, Phase, Wire};
use crate::mail::Mail;

/// How often a shard that waits for a lock looks by itself: a letter may find the mailbox full.
const LOOK: Duration = Duration::from_millis(10);

/// How long a lock waits for answers by reference that initiators do not take, or for `iscsi.data-timeout` if that is
/// shorter: less than what initiators give a COMPARE AND WRITE (ESXi: 8 s).
const LENT: Duration = Duration::from_secs(5);

/// A task's place in the line.
pub struct Claim {
    /// The place.
    id: u64,
    /// The range that it is for.
    range: ByteRange,
    /// Shards that have not been asked to hold requests back.
    unasked: Vec<usize>,
}

/// Where a request stands that waits for a lock to be given up: all of one place are together, by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held {
    /// The slot of its volume.
    volume: usize,
    /// The place in the line that it shares with others.
    place: u64,
    /// Its number among all.
    order: u64,
}

impl Held {
    /// Where all are that share a place.
    fn all_of(volume: usize, place: u64) -> RangeInclusive<Self> {
        Self { volume, place, order: 0 }..=Self { volume, place, order: u64::MAX }
    }
}

/// What a lock waits for: requests at the storage, and answers by reference.
pub struct Watch {
    /// The lock's place in the line.
    id: u64,
    /// The requests.
    tags: Vec<u64>,
    /// Since when it waits for nothing but answers by reference.
    lent_since: Option<Duration>,
}

/// True while answers by reference of a volume are on their way: half of them might show what is written
/// now.
fn lent(ways: &[Option<Way>], volume: &Volume) -> bool {
    ways.get(volume.channel).and_then(Option::as_ref).is_some_and(|way| way.lent() > 0)
}

impl Engine {
    /// Lets a request through to a volume that has locks, or holds it back.
    pub(super) fn submit_guarded(&mut self, slot: usize, request: Request<Payload>) {
        let (index, seq) = split_tag(request.tag);
        if self.tasks[index as usize].claim.is_some() || request.range.len == 0 {
            return self.send(slot, request);
        }
        let volume = &mut self.volumes[slot];
        match volume.core.locks.pass(self.number, request.range) {
            Passage::NoLine => volume.guarded = false,
            Passage::Free => {}
            Passage::Behind(place) => {
                let held = Held { volume: slot, place, order: self.holds };
                self.holds += 1;
                if let Some(flight) = self.tasks[index as usize].flight(seq) {
                    flight.held = Some(held);
                }
                self.held.insert(held, request);
                return;
            }
        }
        self.send(slot, request);
    }

    /// Takes a place in the line for a range. False if the line is full.
    pub(super) fn claim(&mut self, index: u32, range: ByteRange) -> bool {
        let shards = self.core.mailboxes().len();
        let task = &mut self.tasks[index as usize];
        let locks = &self.volumes[task.volume].core.locks;
        let Some(id) = locks.lock(range, Waiter::Shard(self.number), shards) else {
            return false;
        };
        task.claim = Some(Box::new(Claim { id, range, unasked: (0..shards).collect() }));
        self.in_line.push(index);
        true
    }

    /// True if the task has its range for itself. Asks the shards to hold others back, once it is first.
    pub(super) fn has_range(&mut self, index: u32) -> bool {
        let task = &mut self.tasks[index as usize];
        let slot = task.volume;
        let Some(claim) = &mut task.claim else { return false };
        let locks = self.volumes[slot].core.locks.clone();
        if locks.stage(claim.id) == Some(Stage::First) && !claim.unasked.is_empty() {
            let (id, range) = (claim.id, claim.range);
            let letter = |_: &usize| Mail::Drain { volume: slot, locks: locks.clone(), id, range };
            let own = self.number;
            let drains_own = claim.unasked.contains(&own);
            // Who cannot be asked now is asked at the next look.
            let asks = |shard: &usize| {
                *shard != own && self.core.mailboxes()[*shard].send(letter(shard)).is_err()
            };
            claim.unasked.retain(asks);
            if drains_own {
                self.drain(slot, &locks, id, range);
            }
        }
        let Some(claim) = &self.tasks[index as usize].claim else { return false };
        let had = locks.stage(claim.id) == Some(Stage::Had);
        if had {
            self.in_line.retain(|waiting| *waiting != index);
        }
        had
    }

    /// Gives a place in the line up.
    pub(super) fn release(&mut self, index: u32, slot: usize, claim: &Claim) {
        self.in_line.retain(|waiting| *waiting != index);
        let woken = self.volumes[slot].core.locks.leave(claim.id);
        self.core.wake(&woken);
    }

    /// From now on, requests that reach into a range are held back, as long as the lock is there. Says so when
    /// none is at the storage any more.
    pub fn drain(&mut self, slot: usize, locks: &Arc<Locks>, id: u64, range: ByteRange) {
        let mut tags = Vec::new();
        let volume = self.volumes.get_mut(slot).filter(|v| Arc::ptr_eq(&v.core.locks, locks));
        if let Some(volume) = volume {
            volume.guarded = true;
            volume.exclusive = true;
            volume.watches.retain(|watch| locks.stage(watch.id).is_some());
            for (index, task) in &self.tasks {
                let at_work = task.inflight.iter().filter(|flight| {
                    flight.slot == slot && flight.held.is_none() && flight.range.overlaps(range)
                });
                tags.extend(at_work.map(|flight| request_tag(index as u32, flight.seq)));
            }
            if !tags.is_empty() || lent(&self.ways, volume) {
                self.lending |= tags.is_empty();
                let lent_since = tags.is_empty().then_some(self.now);
                return volume.watches.push(Watch { id, tags, lent_since });
            }
        }
        self.core.wake(locks.drained(id).as_slice());
    }

    /// A request has left the storage.
    pub(super) fn left_storage(&mut self, slot: usize, tag: u64) {
        for watch in &mut self.volumes[slot].watches {
            watch.tags.retain(|waits_for| *waits_for != tag);
        }
        self.lending |= self.settle_watches(slot);
    }

    /// Tells locks whose range this shard is out of. True if one waits for nothing but answers by reference:
    /// after the first lock there are no new ones, so that is once at the most.
    fn settle_watches(&mut self, slot: usize) -> bool {
        let now = self.now;
        let volume = &mut self.volumes[slot];
        let lent = lent(&self.ways, volume);
        let locks = volume.core.locks.clone();
        let (mut woken, mut lending) = (Vec::new(), false);
        volume.watches.retain_mut(|watch| {
            let drained = watch.tags.is_empty() && !lent;
            if drained {
                woken.extend(locks.drained(watch.id));
            }
            if watch.tags.is_empty() && lent {
                watch.lent_since.get_or_insert(now);
                lending = true;
            }
            !drained
        });
        self.core.wake(&woken);
        lending
    }

    /// Looks whether answers by reference are gone. Who has not taken them in time is to be disconnected: their memory
    /// is in the hands of the kernel, and a client that takes a little now and then could keep a lock waiting for hours.
    fn look_at_lent(&mut self, conns: &Slab<Conn>) {
        if !std::mem::take(&mut self.lending) {
            return;
        }
        let watched = self.volumes.iter().filter(|(_, volume)| !volume.watches.is_empty());
        let slots: Vec<usize> = watched.map(|(slot, _)| slot).collect();
        let timeout = self.core.options.data_timeout;
        let patience = if timeout.is_zero() { LENT } else { timeout.min(LENT) };
        for slot in slots {
            self.lending |= self.settle_watches(slot);
            let volume = &self.volumes[slot];
            let since = volume.watches.iter().filter_map(|watch| watch.lent_since).min();
            if since.is_some_and(|since| self.now >= since + patience) {
                self.find_lenders(slot, conns);
            }
        }
    }

    /// The connections on which answers by reference of a volume wait to be taken.
    fn find_lenders(&mut self, slot: usize, conns: &Slab<Conn>) {
        let Some(Some(way)) = self.ways.get(self.volumes[slot].channel) else { return };
        for (number, conn) in conns {
            let Wire::Stream(socket) = conn.wire else { continue };
            let lends = |chain: &TxChain| chain.has(|payload| way.lends(payload));
            if conn.phase != Phase::Closed
                && (lends(&conn.out.chain) || self.ring.sending(socket).is_some_and(lends))
            {
                self.keep_waiting.push(number as u32);
            }
        }
    }

    /// The requests of an abandoned task that are held back never go to the storage.
    pub(super) fn drop_held(&mut self, index: u32) {
        if self.held.is_empty() {
            return;
        }
        let task = &mut self.tasks[index as usize];
        let held: ArrayVec<Held, DEPTH> = task.inflight.iter().filter_map(|f| f.held).collect();
        task.inflight.retain(|flight| flight.held.is_none());
        for held in held {
            let Some(request) = self.held.remove(&held) else { continue };
            if let Some(Payload::Buf(buf)) = request.complete(Err(Error::Cancelled)).buf {
                self.give_back(index, buf);
            }
            self.leave_if_empty(held.volume, held.place);
        }
    }

    /// Gives the place of held requests up when there are none any more.
    fn leave_if_empty(&mut self, slot: usize, place: u64) {
        if self.held.range(Held::all_of(slot, place)).next().is_some() {
            return;
        }
        let woken = self.volumes[slot].core.locks.leave(place);
        self.core.wake(&woken);
    }

    /// True if something waits for a lock: look again after [`next_look`](Self::next_look).
    pub fn stands_in_line(&self) -> bool {
        let waits = !self.held.is_empty() || !self.in_line.is_empty() || self.lending;
        waits || !self.unmarked.is_empty()
    }

    /// When to look, if something stands in line.
    pub fn next_look(&self) -> Option<Duration> {
        self.stands_in_line().then_some(self.looked + LOOK)
    }

    /// Something can be done in this turn of the loop.
    pub(super) fn look_soon(&mut self) {
        self.looked = Duration::ZERO;
    }

    /// Looks whose turn it is.
    pub fn look(&mut self, conns: &mut Slab<Conn>) {
        self.looked = self.now;
        self.look_at_lent(conns);
        self.let_held_pass();
        self.done.append(&mut self.unmarked);
        for index in self.in_line.clone() {
            // One may have ended because of another.
            if !self.tasks.contains(index as usize) {
                continue;
            }
            if matches!(self.tasks[index as usize].job, Job::Sanitize(_)) {
                self.step_sanitize(conns, index);
            } else if let Some(conn) = self.conn_of(conns, index) {
                self.give_way_to_sanitize(index);
                self.pump(conn, index);
            }
        }
        self.settle(conns);
    }

    /// The requests whose turn it is go to the storage.
    fn let_held_pass(&mut self) {
        let mut next = self.held.keys().next().copied();
        while let Some(Held { volume, place, .. }) = next {
            if let Some(refusal) = self.turn_of(volume, place) {
                self.let_pass(volume, place, refusal);
            }
            let behind = Held { volume, place, order: u64::MAX };
            let rest = (Bound::Excluded(behind), Bound::Unbounded);
            next = self.held.range(rest).next().map(|(held, _)| *held);
        }
    }

    /// Sends all requests of a place to the storage, or fails their commands.
    fn let_pass(&mut self, slot: usize, place: u64, refusal: Option<Sense>) {
        while let Some((held, _)) = self.held.range(Held::all_of(slot, place)).next() {
            let held = *held;
            let Some(request) = self.held.remove(&held) else { break };
            let (index, seq) = split_tag(request.tag);
            let task = &mut self.tasks[index as usize];
            if let Some(flight) = task.flight(seq) {
                flight.held = None;
            }
            match refusal {
                Some(sense) => {
                    task.fail(sense);
                    self.done.push(request.complete(Err(Error::Cancelled)));
                }
                None => self.send(slot, request),
            }
        }
        // All of them are at the storage: whoever comes next waits for them there.
        self.leave_if_empty(slot, place);
    }

    /// What becomes of held requests: nothing yet, the storage, or the sense data of a unit that is being
    /// sanitized or formatted, for which they would wait for hours.
    fn turn_of(&self, slot: usize, place: u64) -> Option<Option<Sense>> {
        let core = &self.volumes[slot].core;
        if core.face.unit.state.sanitation().is_under_way() {
            return Some(core.face.unit.state.sanitize_sense());
        }
        core.locks.may_pass(place).then_some(None)
    }

    /// A command that stands in line behind a sanitize operation is over.
    fn give_way_to_sanitize(&mut self, index: u32) {
        let task = &mut self.tasks[index as usize];
        let (core, Some(claim)) = (&self.volumes[task.volume].core, &task.claim) else { return };
        let waits = core.locks.stage(claim.id) == Some(Stage::Waiting);
        if waits && core.face.unit.state.sanitation().is_under_way() {
            if let Some(sense) = core.face.unit.state.sanitize_sense() {
                task.fail(sense);
                task.job = Job::Bare(Bare::nothing());
            }
        }
    }
}
