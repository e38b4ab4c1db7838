//! Operations that wait for a limit: of their volume, of their initiator, or of their session.
//!
//! An operation asks before its requests have buffers, and before data is asked of its client. If it may not begin, it
//! takes its place in the line of its volume and holds nothing but what came with its command. Whoever comes later
//! stands behind it. A timer of the shard lets the line go on when the accounts say so; an operation that ends leaves it
//! at once.

use std::collections::VecDeque;
use std::ptr;
use std::time::Duration;

use crate::executor::Executor;
use crate::limit::{Cost, Limit};
use crate::open::VolumeId;
use crate::operation::{Command, OperationId, Requests};
use crate::storage::Storage;

/// A line is looked at this often at least: somebody may have changed the limit.
const LOOK: Duration = Duration::from_millis(100);

/// An operation's place in a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Whose line it is.
    slot: VolumeId,
    /// What the operation wants to do.
    cost: Cost,
    /// Since when it waits.
    since: Duration,
}

/// What an operation has to wait for.
enum Obstacle {
    /// The limit of its volume: all behind it wait as well.
    Volume(Duration),
    /// A limit of its client, which may be none for who stands behind it.
    Client(*const Limit, Duration),
}

impl Requests {
    /// So many bytes of what was [paid for](Storage::lets) are under way.
    #[inline]
    pub(crate) fn spend(&mut self, bytes: u64) {
        self.credit = self.credit.saturating_sub(bytes);
    }

    /// All that was paid for is under way.
    pub(crate) fn spend_all(&mut self) {
        self.credit = 0;
    }

    /// True if they wait for a limit.
    pub(crate) fn stands_in_line(&self) -> bool {
        self.place.is_some()
    }
}

impl<F> Storage<F> {
    /// True if an operation may do something on the volume in a slot, which is paid for then until it is
    /// [spent](Requests::spend). If not, it waits, and is pumped when it may.
    #[inline]
    pub(crate) fn lets(&mut self, requests: &mut Requests, slot: VolumeId, cost: Cost) -> bool {
        let volume = &self.volumes[slot];
        let free = requests.client.is_none() && volume.line.is_empty();
        free && !volume.core.limit.is_set() || self.pays(requests, slot, cost)
    }

    #[cold]
    #[inline(never)]
    fn pays(&mut self, requests: &mut Requests, slot: VolumeId, cost: Cost) -> bool {
        if requests.credit > 0 {
            return true;
        }
        if requests.place.is_some() {
            return false;
        }
        if self.volumes[slot].line.is_empty() {
            match self.obstacle(requests, slot, &[]) {
                None => {
                    self.pay(requests, slot, cost);
                    return true;
                }
                Some(Obstacle::Volume(wait) | Obstacle::Client(_, wait)) => self.look_in(wait),
            }
        } else {
            self.look_in(LOOK);
        }
        let volume = &mut self.volumes[slot];
        volume.count.limit.0 += 1;
        if volume.line.is_empty() {
            self.lines.push(slot);
        }
        volume.line.push_back(requests.id());
        requests.place = Some(Place { slot, cost, since: self.now });
        false
    }

    /// What is in an operation's way now, if anything is. Some limits are known to be.
    fn obstacle(
        &self,
        requests: &Requests,
        slot: VolumeId,
        known: &[*const Limit],
    ) -> Option<Obstacle> {
        let wait = self.volumes[slot].core.limit.wait(self.now);
        if !wait.is_zero() {
            return Some(Obstacle::Volume(wait));
        }
        for limit in requests.client.iter().flat_map(|client| client.all()) {
            let name = ptr::from_ref(limit);
            if known.contains(&name) {
                return Some(Obstacle::Client(name, LOOK));
            }
            let wait = limit.wait(self.now);
            if !wait.is_zero() {
                return Some(Obstacle::Client(name, wait));
            }
        }
        None
    }

    fn pay(&self, requests: &mut Requests, slot: VolumeId, cost: Cost) {
        self.volumes[slot].core.limit.pay(cost, self.now);
        for limit in requests.client.iter().flat_map(|client| client.all()) {
            limit.pay(cost, self.now);
        }
        // What moves no data is paid for as well.
        requests.credit = cost.bytes.max(1);
    }

    /// A line is to be looked at after this time, or earlier.
    fn look_in(&mut self, wait: Duration) {
        let due = self.now + wait.min(LOOK);
        self.line_due = Some(self.line_due.map_or(due, |other| other.min(due)));
    }

    /// An operation waits for no limit any more.
    pub(crate) fn leave_line(&mut self, requests: &mut Requests) {
        let Some(place) = requests.place.take() else { return };
        let volume = &mut self.volumes[place.slot];
        volume.count.limit.1 += self.now.saturating_sub(place.since);
        volume.line.retain(|waiting| *waiting != requests.id());
        if volume.line.is_empty() {
            self.lines.retain(|slot| *slot != place.slot);
        }
    }
}

impl<C: Command> Executor<C> {
    /// Lets those go on that wait for a limit, as far as that allows: they are among the [queued](Self::queued).
    pub(crate) fn pass_lines(&mut self) {
        self.storage.line_due = None;
        let slots = std::mem::take(&mut self.storage.lines);
        let mut known = Vec::new();
        for slot in &slots {
            let mut line = std::mem::take(&mut self.storage.volumes[*slot].line);
            self.pass_line(*slot, &mut line, &mut known);
            self.storage.volumes[*slot].line = line;
        }
        let mut slots = slots;
        slots.retain(|slot| !self.storage.volumes[*slot].line.is_empty());
        if slots.len() > 1 {
            // Where an initiator's limit is for several volumes, each is the first in turn.
            slots.rotate_left(1);
        }
        self.storage.lines = slots;
    }

    fn pass_line(
        &mut self,
        slot: VolumeId,
        line: &mut VecDeque<OperationId>,
        known: &mut Vec<*const Limit>,
    ) {
        let mut at = 0;
        while let Some(id) = line.get(at).copied() {
            let requests = &mut self.operations[id].requests;
            match self.storage.obstacle(requests, slot, known) {
                Some(Obstacle::Volume(wait)) => return self.storage.look_in(wait),
                Some(Obstacle::Client(limit, wait)) => {
                    self.storage.look_in(wait);
                    if !known.contains(&limit) {
                        known.push(limit);
                    }
                    at += 1;
                }
                None => {
                    line.remove(at);
                    let Some(place) = requests.place.take() else { continue };
                    self.storage.pay(requests, slot, place.cost);
                    let waited = self.storage.now.saturating_sub(place.since);
                    self.storage.volumes[slot].count.limit.1 += waited;
                    self.storage.passed.push(id);
                }
            }
        }
    }

    /// An operation that nobody waits for any more does not wait for a limit either.
    pub(crate) fn leave_line(&mut self, id: OperationId) {
        self.storage.leave_line(&mut self.operations[id].requests);
    }
}
