//! Operations that wait for a limit: of their volume, of their host, or of their session; or for their volume's
//! share of the storage.
//!
//! An operation asks before its requests have buffers, and before data is asked of its client. If it may not begin, it
//! takes its place in the line of its volume and holds nothing but what came with its command: behind those of its own
//! session, beside those of others. Sessions have turns, whatever their queue depths. A timer of the shard lets the line
//! go on when the accounts say so; an operation that ends leaves it at once.
//!
//! The first operation of each session that waits for a limit pays at once and knows when its turn is: so all sessions of
//! all shards have turns in one order, and a shard that looks more often than another one, because it has more to do, does
//! not always find what is left.

use std::collections::{BTreeMap, VecDeque};
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
    /// Whose limit is the reason.
    whose: Whose,
    /// How often its limits had changed by then.
    changes: u32,
}

impl Turn {
    /// What is in the way of its operation until then, if anything is.
    fn obstacle(&self, now: Duration) -> Option<Obstacle> {
        let wait = self.due.checked_sub(now).filter(|wait| !wait.is_zero())?;
        Some(Obstacle::Limit(self.whose, wait))
    }
}

/// Nobody pays for a turn that is further away: initiators give up before, and an account does not count without end.
const AHEAD: Duration = Duration::from_secs(60);

/// Queues whose memory is kept for later ones.
const SPARE: usize = 64;

/// Who waits for a share is looked at as often as a shard can.
const SOON: Duration = Duration::from_millis(1);

/// Operations that wait: those of a session in the order in which they came, and sessions in turn.
#[derive(Debug, Default)]
pub(crate) struct Line {
    /// By their sessions, and what the first of each waits for. None is empty.
    sessions: BTreeMap<usize, (VecDeque<OperationId>, Whose)>,
    /// The sessions, in the order of their turns.
    turns: VecDeque<usize>,
    spare: Vec<VecDeque<OperationId>>,
}

impl Line {
    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// What the first operation of a session waits for, if one does.
    fn first_waits_for(&self, session: usize) -> Option<Whose> {
        self.sessions.get(&session).map(|(_, whose)| *whose)
    }

    fn push(&mut self, session: usize, id: OperationId, whose: Whose) {
        let Self { sessions, turns, spare } = self;
        let (queue, _) = sessions.entry(session).or_insert_with(|| {
            turns.push_back(session);
            (spare.pop().unwrap_or_default(), whose)
        });
        queue.push_back(id);
    }

    /// The first operation of the session with that turn.
    fn first(&self, turn: usize) -> Option<OperationId> {
        let (queue, _) = self.sessions.get(self.turns.get(turn)?)?;
        queue.front().copied()
    }

    /// The first operation of the session with that turn waits for this.
    fn waits_for(&mut self, turn: usize, whose: Whose) {
        let session = self.turns.get(turn).and_then(|session| self.sessions.get_mut(session));
        session.into_iter().for_each(|(_, before)| *before = whose);
    }

    /// The first operation of the session with that turn goes on, and the session has the last turn.
    fn pass(&mut self, turn: usize) {
        let Some(session) = self.turns.remove(turn) else { return };
        let Some((queue, _)) = self.sessions.get_mut(&session) else { return };
        queue.pop_front();
        match queue.is_empty() {
            true => self.forget(session),
            false => self.turns.push_back(session),
        }
    }

    /// An operation of a session leaves.
    fn leave(&mut self, session: usize, id: OperationId) {
        let Some((queue, _)) = self.sessions.get_mut(&session) else { return };
        queue.retain(|waiting| *waiting != id);
        if queue.is_empty() {
            self.turns.retain(|other| *other != session);
            self.forget(session);
        }
    }

    fn forget(&mut self, session: usize) {
        let keeps = self.spare.len() < SPARE;
        let queue = self.sessions.remove(&session).map(|(queue, _)| queue);
        self.spare.extend(queue.filter(|_| keeps));
    }
}

/// What an operation has to wait for.
enum Obstacle {
    /// A limit.
    Limit(Whose, Duration),
    /// The share of its volume: all sessions wait as well.
    Share,
    /// Those in front of it, who wait for this.
    Line(Whose),
}

impl Obstacle {
    /// Whose limit it is.
    fn whose(&self) -> Whose {
        match self {
            Self::Limit(whose, _) | Self::Line(whose) => *whose,
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
        let volume = &self.volumes[slot];
        let front = volume.line.first_waits_for(requests.session);
        let obstacle = match front.or(volume.wants_share.then_some(Whose::Share)) {
            Some(whose) => Some(Obstacle::Line(whose)),
            None => self.obstacle(requests, slot),
        };
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
        volume.line.push(requests.session, requests.id(), obstacle.whose());
        requests.place = Some(Place { slot, cost, since: self.now, turn: None });
        self.book(requests, &obstacle);
        false
    }

    /// The first operation of a session that waits for a limit pays at once, if its turn is not too far away.
    fn book(&mut self, requests: &mut Requests, obstacle: &Obstacle) {
        let Some(Place { slot, cost, turn: None, .. }) = requests.place else { return };
        let Obstacle::Limit(whose, wait) = *obstacle else { return };
        if wait > AHEAD {
            return;
        }
        self.pay_limits(requests, slot, cost);
        let changes = self.changes(requests, slot);
        let turn = Turn { due: self.now + wait, whose, changes };
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
            Obstacle::Limit(_, wait) => *wait,
            Obstacle::Share => SOON,
            Obstacle::Line(_) => LOOK,
        };
        self.look_in(wait);
        if matches!(obstacle, Obstacle::Share) {
            self.want_share(slot, true);
        }
    }

    /// What is in an operation's way now, if anything is.
    fn obstacle(&mut self, requests: &mut Requests, slot: VolumeId) -> Option<Obstacle> {
        let limit = match self.turn(requests) {
            Some(turn) => turn.obstacle(self.now),
            None => {
                requests.place.iter_mut().for_each(|place| place.turn = None);
                self.limit_in_the_way(requests, slot)
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

    /// The limit that an operation waits for the longest.
    fn limit_in_the_way(&self, requests: &Requests, slot: VolumeId) -> Option<Obstacle> {
        let client = requests.client.iter();
        let client =
            client.flat_map(|client| client.all().into_iter().zip([Whose::Host, Whose::Session]));
        let own = (&*self.volumes[slot].core.limit, Whose::Volume);
        // Of equal ones the volume's.
        let all = client.chain([own]).map(|(limit, whose)| (limit.wait(self.now), whose));
        let (wait, whose) = all.max_by_key(|(wait, _)| *wait)?;
        (!wait.is_zero()).then_some(Obstacle::Limit(whose, wait))
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
        volume.line.leave(requests.session, requests.id());
        if volume.line.is_empty() {
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

    fn pass_line(&mut self, slot: VolumeId, line: &mut Line) {
        let mut wants_share = false;
        let mut turn = 0;
        while let Some(id) = line.first(turn) {
            let requests = &mut self.operations[id].requests;
            let Some(obstacle) = self.storage.obstacle(requests, slot) else {
                line.pass(turn);
                self.begins(id);
                continue;
            };
            line.waits_for(turn, obstacle.whose());
            self.storage.meet(slot, &obstacle);
            self.storage.book(requests, &obstacle);
            wants_share = matches!(obstacle, Obstacle::Share);
            if wants_share {
                break;
            }
            turn += 1;
        }
        // Whoever waits for something else keeps nobody back.
        if !wants_share {
            self.storage.want_share(slot, false);
        }
    }

    /// An operation is not in a line any more, and goes on.
    fn begins(&mut self, id: OperationId) {
        let requests = &mut self.operations[id].requests;
        let has_paid = self.storage.turn(requests).is_some();
        let Some(Place { slot, cost, since, .. }) = requests.place.take() else { return };
        if !has_paid {
            self.storage.pay_limits(requests, slot, cost);
        }
        self.storage.begin_paid(requests, slot, cost);
        let waited = self.storage.now.saturating_sub(since);
        self.storage.volumes[slot].count.limit.time += waited;
        self.storage.passed.push(id);
    }

    /// An operation that nobody waits for any more does not wait for a limit either.
    pub(crate) fn leave_line(&mut self, id: OperationId) {
        self.storage.leave_line(&mut self.operations[id].requests);
    }
}
