//! What the locks of a volume mean on one shard: requests are held back while a command has their range for
//! itself, and such a command waits until those before it have left the storage. See [`crate::locks`].

use std::sync::Arc;
use std::time::Duration;

use lunet_block::{ByteRange, Error, Request};
use lunet_ring::Payload;
use lunet_scsi::{Sanitation, Sense};
use slab::Slab;

use super::Engine;
use super::requests::{request_tag, split_tag};
use super::task::{Bare, Job};
use crate::conn::Conn;
use crate::locks::{Locks, Passage, Stage, Waiter};
use crate::mail::Mail;

/// How often a shard that waits for a lock looks by itself: a letter may find the mailbox full.
const LOOK: Duration = Duration::from_millis(10);

/// A task's place in the line.
pub struct Claim {
    /// The place.
    id: u64,
    /// The range that it is for.
    range: ByteRange,
    /// Shards that have not been asked to hold requests back.
    unasked: Vec<usize>,
}

/// A request that waits for a lock to be given up.
pub struct Held {
    /// The slot of its volume.
    volume: usize,
    /// Its place in the line.
    place: u64,
    request: Request<Payload>,
}

/// Requests at the storage that a lock waits for.
pub struct Watch {
    /// The lock's place in the line.
    id: u64,
    /// The requests.
    tags: Vec<u64>,
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
                if let Some(flight) = self.tasks[index as usize].flight(seq) {
                    flight.held = true;
                }
                return self.held.push(Held { volume: slot, place, request });
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
                    flight.slot == slot && !flight.held && flight.range.overlaps(range)
                });
                tags.extend(at_work.map(|flight| request_tag(index as u32, flight.seq)));
            }
            if !tags.is_empty() {
                return volume.watches.push(Watch { id, tags });
            }
        }
        self.core.wake(locks.drained(id).as_slice());
    }

    /// A request has left the storage.
    pub(super) fn left_storage(&mut self, slot: usize, tag: u64) {
        let volume = &mut self.volumes[slot];
        for watch in &mut volume.watches {
            watch.tags.retain(|waits_for| *waits_for != tag);
        }
        let locks = volume.core.locks.clone();
        let mut woken = Vec::new();
        volume.watches.retain(|watch| {
            if watch.tags.is_empty() {
                woken.extend(locks.drained(watch.id));
            }
            !watch.tags.is_empty()
        });
        self.core.wake(&woken);
    }

    /// The requests of an abandoned task that are held back never go to the storage.
    pub(super) fn drop_held(&mut self, index: u32) {
        if self.held.is_empty() {
            return;
        }
        let (own, rest): (Vec<Held>, Vec<Held>) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(|held| split_tag(held.request.tag).0 == index);
        self.held = rest;
        for Held { volume, place, request } in own {
            let done = request.complete(Err(Error::Cancelled));
            let (_, seq) = split_tag(done.tag);
            self.tasks[index as usize].inflight.retain(|flight| flight.seq != seq);
            if let Some(Payload::Buf(buf)) = done.buf {
                self.give_back(index, buf);
            }
            self.leave_if_empty(volume, place);
        }
    }

    /// Gives the place of held requests up when there are none any more.
    fn leave_if_empty(&mut self, slot: usize, place: u64) {
        if self.held.iter().any(|held| (held.volume, held.place) == (slot, place)) {
            return;
        }
        let woken = self.volumes[slot].core.locks.leave(place);
        self.core.wake(&woken);
    }

    /// True if something waits for a lock: look again after [`next_look`](Self::next_look).
    pub fn stands_in_line(&self) -> bool {
        !self.held.is_empty() || !self.in_line.is_empty()
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
        self.let_held_pass();
        for index in self.in_line.clone() {
            // One that has just ended has left the line.
            if !self.in_line.contains(&index) {
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
        let mut places: Vec<(usize, u64)> =
            self.held.iter().map(|held| (held.volume, held.place)).collect();
        places.sort_unstable();
        places.dedup();
        for (slot, place) in places {
            let Some(refusal) = self.turn_of(slot, place) else { continue };
            let (own, rest): (Vec<Held>, Vec<Held>) = std::mem::take(&mut self.held)
                .into_iter()
                .partition(|held| (held.volume, held.place) == (slot, place));
            self.held = rest;
            for Held { request, .. } in own {
                let (index, seq) = split_tag(request.tag);
                let task = &mut self.tasks[index as usize];
                match &refusal {
                    Some(sense) => {
                        task.fail(*sense);
                        self.done.push(request.complete(Err(Error::Cancelled)));
                    }
                    None => {
                        if let Some(flight) = task.flight(seq) {
                            flight.held = false;
                        }
                        self.send(slot, request);
                    }
                }
            }
            // All of them are at the storage: whoever comes next waits for them there.
            self.leave_if_empty(slot, place);
        }
    }

    /// What becomes of held requests: nothing yet, the storage, or the sense data of a unit that is being
    /// sanitized, for which they would wait for hours.
    fn turn_of(&self, slot: usize, place: u64) -> Option<Option<Sense>> {
        let core = &self.volumes[slot].core;
        if core.unit.state.sanitation() == Sanitation::Running {
            return Some(core.unit.state.sanitize_sense());
        }
        core.locks.may_pass(place).then_some(None)
    }

    /// A command that stands in line behind a sanitize operation is over.
    fn give_way_to_sanitize(&mut self, index: u32) {
        let task = &mut self.tasks[index as usize];
        let (core, Some(claim)) = (&self.volumes[task.volume].core, &task.claim) else { return };
        let waits = core.locks.stage(claim.id) == Some(Stage::Waiting);
        if waits && core.unit.state.sanitation() == Sanitation::Running {
            if let Some(sense) = core.unit.state.sanitize_sense() {
                task.fail(sense);
                task.job = Job::Bare(Bare::nothing());
            }
        }
    }
}
