//! Operations that wait for a limit: of their volume, of their host, or of their session; or for their volume's
//! share of the storage.
//!
//! An operation asks before its requests have buffers, and before data is asked of its client. If it may not begin, it
//! takes its place in the line of its volume and holds nothing but what came with its command. Whoever comes later
//! stands behind it. A timer of the shard lets the line go on when the accounts say so; an operation that ends leaves it
//! at once.
//!
//! Whoever is the first to wait for a limit, of its line, pays at once and knows when its turn is: otherwise a shard that
//! looks more often than another one, because it has more to do, would always be the one that finds something left.

use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use crate::count::Whose;
use crate::executor::Executor;
use crate::limit::{Cost, Limit};
use crate::open::VolumeId;
use crate::operation::{Command, OperationId, Requests};
use crate::share::{Counted, Pool, Share};
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
    /// Its turn, which is paid for.
    turn: Option<Turn>,
}

/// When an operation that has paid may begin.
#[derive(Clone, Copy, Debug)]
struct Turn {
    due: Duration,
    /// The client's limit that is the reason, by its address; otherwise it is that of the volume.
    name: Option<usize>,
    whose: Whose,
    /// How often its limits had changed by then.
    changes: u32,
}

impl Turn {
    /// What is in the way of its operation until then, if anything is.
    fn obstacle(&self, now: Duration) -> Option<Obstacle> {
        let wait = self.due.checked_sub(now).filter(|wait| !wait.is_zero())?;
        Some(match self.name {
            Some(name) => Obstacle::Client(name, self.whose, wait),
            None => Obstacle::Volume(wait),
        })
    }
}

/// Who waits for a share is looked at as often as a shard can.
const SOON: Duration = Duration::from_millis(1);

/// Who has to stand behind a line.
#[derive(Debug)]
pub(crate) enum Behind {
    /// Those that have one of these limits, by their addresses, in order.
    These(Vec<usize>),
    /// Everybody: those in front wait for this.
    All(Whose),
}

impl Default for Behind {
    fn default() -> Self {
        Self::These(Vec::new())
    }
}

/// What an operation has to wait for.
enum Obstacle {
    /// The limit of its volume: all behind it wait as well.
    Volume(Duration),
    /// A limit of its client, by its address, which may be none for who stands behind it.
    Client(usize, Whose, Duration),
    /// A limit of its client that somebody in front of it waits for.
    Known(Whose),
    /// The share of its volume: all behind it wait as well.
    Share,
    /// Those in front of it, who wait for this.
    Line(Whose),
}

impl Obstacle {
    /// Whose limit it is.
    fn whose(&self) -> Whose {
        match self {
            Self::Volume(_) => Whose::Volume,
            Self::Client(_, whose, _) | Self::Known(whose) | Self::Line(whose) => *whose,
            Self::Share => Whose::Share,
        }
    }
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

    /// A request to the volume in a slot, which has this share, counts in its pool.
    #[cold]
    pub(crate) fn count(&mut self, (slot, seq): (VolumeId, u32), share: &Share, now: Duration) {
        let reserved = self.reserved.take_if(|(of, _)| *of == slot).map(|(_, counted)| counted);
        let counted = reserved.or_else(|| Some(share.begin(share.pool()?)));
        if let Some(request) = self.get_mut(seq) {
            request.counted = counted.map(|counted| (counted, now));
        }
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
        let free = free && !volume.core.limit.is_set() && volume.core.share.pool().is_none();
        free || self.pays(requests, slot, cost)
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
        let behind = std::mem::take(&mut self.volumes[slot].behind);
        let obstacle = match &behind {
            Behind::These(known) => self.obstacle(requests, slot, known),
            Behind::All(whose) => Some(Obstacle::Line(*whose)),
        };
        self.volumes[slot].behind = behind;
        let Some(obstacle) = obstacle else {
            self.pay_limits(requests, slot, cost);
            self.begin_paid(requests, slot, cost);
            return true;
        };
        self.meet(slot, &obstacle);
        let volume = &mut self.volumes[slot];
        volume.count.limit.count(obstacle.whose());
        if volume.line.is_empty() {
            self.lines.push(slot);
        }
        volume.line.push_back(requests.id());
        requests.place = Some(Place { slot, cost, since: self.now, turn: None });
        self.book(requests, &obstacle);
        false
    }

    /// An operation that stands in a line pays at once, if a limit is in its way and nobody in front of it waits for that.
    fn book(&mut self, requests: &mut Requests, obstacle: &Obstacle) {
        let Some(Place { slot, cost, turn: None, .. }) = requests.place else { return };
        let (name, whose, wait) = match obstacle {
            Obstacle::Volume(wait) => (None, Whose::Volume, *wait),
            Obstacle::Client(name, whose, wait) => (Some(*name), *whose, *wait),
            Obstacle::Known(_) | Obstacle::Share | Obstacle::Line(_) => return,
        };
        self.pay_limits(requests, slot, cost);
        let changes = self.changes(requests, slot);
        let turn = Turn { due: self.now + wait, name, whose, changes };
        requests.place.iter_mut().for_each(|place| place.turn = Some(turn));
    }

    /// How often the limits of an operation have changed.
    fn changes(&self, requests: &Requests, slot: VolumeId) -> u32 {
        let client = requests.client.iter().flat_map(|client| client.all());
        let all = client.map(Limit::changes).chain([self.volumes[slot].core.limit.changes()]);
        all.fold(0, u32::wrapping_add)
    }

    /// The turn that an operation has paid for, unless its limits are others since.
    fn turn(&self, requests: &Requests) -> Option<Turn> {
        let place = requests.place.as_ref()?;
        place.turn.filter(|turn| turn.changes == self.changes(requests, place.slot))
    }

    /// Something is in the way of an operation on the volume in a slot.
    fn meet(&mut self, slot: VolumeId, obstacle: &Obstacle) {
        let wait = match obstacle {
            Obstacle::Volume(wait) | Obstacle::Client(.., wait) => *wait,
            Obstacle::Share => SOON,
            Obstacle::Known(_) | Obstacle::Line(_) => LOOK,
        };
        self.look_in(wait);
        let behind = &mut self.volumes[slot].behind;
        match (obstacle, behind) {
            (Obstacle::Client(name, ..), Behind::These(known)) => {
                if let Err(at) = known.binary_search(name) {
                    known.insert(at, *name);
                }
            }
            (Obstacle::Client(..) | Obstacle::Known(_), _) => {}
            (obstacle, behind) => *behind = Behind::All(obstacle.whose()),
        }
        if matches!(obstacle, Obstacle::Share) {
            self.want_share(slot, true);
        }
    }

    /// What is in an operation's way now, if anything is. Some limits are known to be.
    fn obstacle(
        &mut self,
        requests: &mut Requests,
        slot: VolumeId,
        known: &[usize],
    ) -> Option<Obstacle> {
        let limit = match self.turn(requests) {
            Some(turn) => turn.obstacle(self.now),
            None => {
                requests.place.iter_mut().for_each(|place| place.turn = None);
                self.limit_in_the_way(requests, slot, known)
            }
        };
        if limit.is_some() {
            return limit;
        }
        let pool = self.volumes[slot].core.share.pool().cloned()?;
        let slowest = self.slowest(&pool);
        let lets = self.volumes[slot].core.share.lets(&pool, slowest);
        (!lets).then_some(Obstacle::Share)
    }

    /// The limit that an operation waits for the longest, or one that somebody in front of it waits for.
    fn limit_in_the_way(
        &self,
        requests: &Requests,
        slot: VolumeId,
        known: &[usize],
    ) -> Option<Obstacle> {
        let volume = self.volumes[slot].core.limit.wait(self.now);
        let mut longest = (volume, (!volume.is_zero()).then_some(Obstacle::Volume(volume)));
        if let Some(client) = &requests.client {
            for (limit, whose) in client.all().into_iter().zip([Whose::Host, Whose::Session]) {
                let name = ptr::from_ref(limit).addr();
                if known.binary_search(&name).is_ok() {
                    return Some(Obstacle::Known(whose));
                }
                let wait = limit.wait(self.now);
                if wait > longest.0 {
                    longest = (wait, Some(Obstacle::Client(name, whose, wait)));
                }
            }
        }
        longest.1
    }

    /// The slowest clock of the volumes of a pool that wait, as it was when this loop iteration needed it first.
    fn slowest(&mut self, pool: &Arc<Pool>) -> u64 {
        let name = Arc::as_ptr(pool) as usize;
        match self.slowest {
            Some((now, of, slowest)) if now == self.now && of == name => return slowest,
            _ => {}
        }
        let shares = self.volumes.iter().map(|(_, volume)| &volume.core.share);
        let ours = shares.filter(|share| share.pool().is_some_and(|of| Arc::ptr_eq(of, pool)));
        let slowest = ours.filter_map(|share| share.waits_at()).min().unwrap_or(u64::MAX);
        self.slowest = Some((self.now, name, slowest));
        slowest
    }

    /// Operations on the volume in a slot wait for its share, or do not any more.
    fn want_share(&mut self, slot: VolumeId, wants: bool) {
        let volume = &mut self.volumes[slot];
        if std::mem::replace(&mut volume.wants_share, wants) != wants {
            volume.core.share.wait(wants);
            // It is another one from now on.
            self.slowest = None;
        }
    }

    /// What an operation was counted for does not come now.
    pub(crate) fn unreserve(&mut self, requests: &mut Requests) {
        let Some((slot, counted)) = requests.reserved.take() else { return };
        self.volumes[slot].core.share.end(counted, None, self.now);
    }

    /// A request has left the storage, which counts in the pool of the volume in a slot.
    #[cold]
    pub(crate) fn leave_pool(&mut self, slot: VolumeId, counted: (Counted, Duration)) {
        let took = self.latest().saturating_sub(counted.1);
        self.volumes[slot].core.share.end(counted.0, Some(took), self.latest());
        if !self.lines.is_empty() {
            self.look_in(Duration::ZERO);
        }
    }

    fn pay_limits(&self, requests: &Requests, slot: VolumeId, cost: Cost) {
        self.volumes[slot].core.limit.pay(cost, self.now);
        for limit in requests.client.iter().flat_map(|client| client.all()) {
            limit.pay(cost, self.now);
        }
    }

    /// What is paid for begins, and has its share.
    fn begin_paid(&mut self, requests: &mut Requests, slot: VolumeId, cost: Cost) {
        if let Some(pool) = self.volumes[slot].core.share.pool().cloned() {
            let slowest = self.slowest(&pool);
            let share = &self.volumes[slot].core.share;
            share.pay(&pool, cost, slowest);
            let counted = share.begin(&pool);
            // None is left of what was paid for before.
            debug_assert!(requests.reserved.is_none(), "one request at a time");
            requests.reserved = Some((slot, counted));
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
        let has_paid = self.turn(requests).is_some();
        let Some(place) = requests.place.take() else { return };
        if has_paid {
            let client = requests.client.iter().flat_map(|client| client.all());
            let limits = client.chain([&*self.volumes[place.slot].core.limit]);
            limits.for_each(|limit| limit.pay_back(place.cost));
        }
        let volume = &mut self.volumes[place.slot];
        volume.count.limit.time += self.now.saturating_sub(place.since);
        volume.line.retain(|waiting| *waiting != requests.id());
        if volume.line.is_empty() {
            volume.behind = Behind::default();
            self.lines.retain(|slot| *slot != place.slot);
            self.want_share(place.slot, false);
        }
        if self.lines.is_empty() {
            // Nobody is to be woken for it.
            self.line_due = None;
        }
    }
}

impl<C: Command> Executor<C> {
    /// True if something has left the storage that others wait for.
    pub fn line_is_due(&self) -> bool {
        self.storage.line_due.is_some_and(|due| due <= self.storage.now)
    }

    /// Lets those go on that wait for a limit, as far as that allows: they are among the [queued](Self::queued).
    pub(crate) fn pass_lines(&mut self) {
        self.storage.line_due = None;
        let slots = std::mem::take(&mut self.storage.lines);
        for slot in &slots {
            let mut line = std::mem::take(&mut self.storage.volumes[*slot].line);
            self.pass_line(*slot, &mut line);
            self.storage.volumes[*slot].line = line;
        }
        let mut slots = slots;
        slots.retain(|slot| !self.storage.volumes[*slot].line.is_empty());
        if slots.len() > 1 {
            // Where a host's limit is for several volumes, each is the first in turn.
            slots.rotate_left(1);
        }
        self.storage.lines = slots;
    }

    fn pass_line(&mut self, slot: VolumeId, line: &mut VecDeque<OperationId>) {
        self.storage.volumes[slot].behind = Behind::default();
        let wanted_share = self.storage.volumes[slot].wants_share;
        let mut wants_share = false;
        let mut at = 0;
        while let Some(id) = line.get(at).copied() {
            let requests = &mut self.operations[id].requests;
            let behind = std::mem::take(&mut self.storage.volumes[slot].behind);
            let known = if let Behind::These(known) = &behind { &known[..] } else { &[] };
            let obstacle = self.storage.obstacle(requests, slot, known);
            self.storage.volumes[slot].behind = behind;
            match obstacle {
                Some(obstacle) => {
                    self.storage.meet(slot, &obstacle);
                    self.storage.book(requests, &obstacle);
                    wants_share = matches!(obstacle, Obstacle::Share);
                    if !matches!(obstacle, Obstacle::Client(..) | Obstacle::Known(_)) {
                        break;
                    }
                    at += 1;
                }
                None => {
                    line.remove(at);
                    let has_paid = self.storage.turn(requests).is_some();
                    let Some(place) = requests.place.take() else { continue };
                    if !has_paid {
                        self.storage.pay_limits(requests, slot, place.cost);
                    }
                    self.storage.begin_paid(requests, slot, place.cost);
                    let waited = self.storage.now.saturating_sub(place.since);
                    self.storage.volumes[slot].count.limit.time += waited;
                    self.storage.passed.push(id);
                }
            }
        }
        // Whoever waits for something else keeps nobody back.
        if wanted_share && !wants_share {
            self.storage.want_share(slot, false);
        }
    }

    /// An operation that nobody waits for any more does not wait for a limit either.
    pub(crate) fn leave_line(&mut self, id: OperationId) {
        self.storage.leave_line(&mut self.operations[id].requests);
    }
}
