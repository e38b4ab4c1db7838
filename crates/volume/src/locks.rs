//! The queue for ranges of a volume that a command, or a thread, wants for itself.
//!
//! A lock is granted in three steps. [`Locks::lock`] adds an entry to the queue: it is *first* once nothing that came
//! before it reaches into its range. Then every shard is asked to hold requests of others back, and to say
//! ([`Locks::drained`]) when none of its own is at the storage any more. When all have, the range is *granted*, until
//! [`Locks::leave`].
//!
//! A shard that holds requests back adds an entry for them, as a *guest*. So neither do locks
//! keep requests away for ever, nor the other way round: all goes by the order of arrival. Whoever waits is told by
//! a message that may be lost, and looks by itself as well.

use std::sync::PoisonError;

use lunet_block::ByteRange;
use lunet_os::sync::mpsc::SyncSender;
use lunet_os::sync::{Mutex, MutexGuard};

/// How many locks of one volume may wait. Commands beyond are answered BUSY.
const MOST: usize = 256;

/// Who waits.
#[derive(Clone, Debug)]
pub enum Waiter {
    /// A shard, which knows for what.
    Shard(usize),
    /// A thread.
    Thread(SyncSender<()>),
}

impl PartialEq for Waiter {
    fn eq(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Shard(a), Self::Shard(b)) if a == b)
    }
}

/// How far a lock has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Others come first.
    Waiting,
    /// It is the next, but requests of others are still under way, or shards have not been asked.
    First,
    /// Nobody else touches the range.
    Granted,
}

/// What a request of a shard finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passage {
    /// There is no queue at all.
    NoQueue,
    /// Its way is free.
    Free,
    /// It waits, with this entry in the queue.
    Behind(u64),
}

/// The locks of one volume, from all shards.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    next: u64,
    entries: Vec<Entry>,
}

/// An entry of the queue.
#[derive(Debug)]
struct Entry {
    id: u64,
    range: ByteRange,
    waiter: Waiter,
    kind: Kind,
    first: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A lock, and how many shards have not said that they are drained.
    Lock(usize),
    /// The requests of a shard that the lock with this number was in the way of.
    Guests(u64),
}

impl Locks {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if nobody has or waits for a range.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue().entries.is_empty()
    }

    /// Queues a lock on a range that each of `shards` shards must be drained of. `None` if the queue is full.
    pub(crate) fn lock(&self, range: ByteRange, waiter: Waiter, shards: usize) -> Option<u64> {
        let mut queue = self.queue();
        let locks = queue.entries.iter().filter(|entry| matches!(entry.kind, Kind::Lock(_)));
        if locks.count() >= MOST {
            return None;
        }
        Some(queue.push(range, waiter, Kind::Lock(shards)))
    }

    /// How far a lock has come; `None` if it was given up.
    pub(crate) fn stage(&self, id: u64) -> Option<Stage> {
        let queue = self.queue();
        queue.find(id).map(|entry| match entry.kind {
            Kind::Lock(0) if entry.first => Stage::Granted,
            _ if entry.first => Stage::First,
            _ => Stage::Waiting,
        })
    }

    /// A shard holds back what reaches into the range of a lock, and has nothing of it at the storage. Returns
    /// whom to tell if it was the last.
    pub(crate) fn drained(&self, id: u64) -> Option<Waiter> {
        let mut queue = self.queue();
        let entry = queue.entries.iter_mut().find(|entry| entry.id == id)?;
        let Kind::Lock(left) = &mut entry.kind else { return None };
        *left = left.saturating_sub(1);
        (*left == 0).then(|| entry.waiter.clone())
    }

    /// Whether a request of a shard may go to the storage. It waits for those locks only that are first: what
    /// comes later waits for it.
    pub(crate) fn pass(&self, shard: usize, range: ByteRange) -> Passage {
        let mut queue = self.queue();
        if queue.entries.is_empty() {
            return Passage::NoQueue;
        }
        let in_the_way = |entry: &&Entry| {
            entry.first && matches!(entry.kind, Kind::Lock(_)) && entry.range.overlaps(range)
        };
        let Some(lock) = queue.entries.iter().rev().find(in_the_way).map(|entry| entry.id) else {
            return Passage::Free;
        };
        let same = |entry: &&mut Entry| {
            entry.kind == Kind::Guests(lock) && entry.waiter == Waiter::Shard(shard)
        };
        if let Some(entry) = queue.entries.iter_mut().find(same) {
            // Both reach into the range of the lock, so there is no gap between them.
            let end = entry.range.end().max(range.end());
            entry.range.offset = entry.range.offset.min(range.offset);
            entry.range.len = end - entry.range.offset;
            return Passage::Behind(entry.id);
        }
        Passage::Behind(queue.push(range, Waiter::Shard(shard), Kind::Guests(lock)))
    }

    /// True if no lock is in the way of a request: it may go to the storage at once.
    pub(crate) fn is_free(&self, range: ByteRange) -> bool {
        let queue = self.queue();
        !queue.entries.iter().any(|entry| {
            entry.first && matches!(entry.kind, Kind::Lock(_)) && entry.range.overlaps(range)
        })
    }

    /// True if it is the turn of the requests with this entry. They must go to the storage, all of them,
    /// before the entry is removed.
    pub(crate) fn may_pass(&self, id: u64) -> bool {
        self.queue().find(id).is_some_and(|entry| entry.first)
    }

    /// Removes an entry. Returns whose turn it is now.
    #[must_use]
    pub(crate) fn leave(&self, id: u64) -> Vec<Waiter> {
        let mut queue = self.queue();
        queue.entries.retain(|entry| entry.id != id);
        queue.advance()
    }
}

impl Queue {
    fn find(&self, id: u64) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.id == id)
    }

    fn push(&mut self, range: ByteRange, waiter: Waiter, kind: Kind) -> u64 {
        let id = self.next;
        self.next += 1;
        self.entries.push(Entry { id, range, waiter, kind, first: false });
        // The caller asks for the stage of its entry.
        let _ = self.advance();
        id
    }

    /// Finds out who has become first.
    fn advance(&mut self) -> Vec<Waiter> {
        let mut woken: Vec<Waiter> = Vec::new();
        for at in 0..self.entries.len() {
            let (before, rest) = self.entries.split_at_mut(at);
            let entry = &mut rest[0];
            // Guests pass beside guests.
            let in_the_way = |other: &Entry| {
                other.range.overlaps(entry.range)
                    && matches!((other.kind, entry.kind), (Kind::Lock(_), _) | (_, Kind::Lock(_)))
            };
            if !entry.first && !before.iter().any(in_the_way) {
                entry.first = true;
                if !woken.contains(&entry.waiter) {
                    woken.push(entry.waiter.clone());
                }
            }
        }
        woken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHARD: Waiter = Waiter::Shard(0);

    fn range(from: u64, to: u64) -> ByteRange {
        ByteRange::new(from, to - from)
    }

    #[test]
    fn a_lock_is_granted_when_it_is_first_and_every_shard_is_drained() {
        let locks = Locks::default();
        let a = locks.lock(range(0, 8), SHARD, 2).expect("room");
        let b = locks.lock(range(4, 12), Waiter::Shard(1), 1).expect("room");
        let c = locks.lock(range(12, 16), SHARD, 1).expect("room");
        let stages = || [a, b, c].map(|id| locks.stage(id));
        use Stage::{First, Granted, Waiting};
        assert_eq!(stages(), [Some(First), Some(Waiting), Some(First)]);
        assert_eq!(locks.drained(a), None);
        assert_eq!(locks.drained(a), Some(SHARD));
        assert_eq!(locks.drained(c), Some(SHARD));
        assert_eq!(stages(), [Some(Granted), Some(Waiting), Some(Granted)]);
        assert_eq!(locks.leave(c), []);
        assert_eq!(locks.leave(a), [Waiter::Shard(1)]);
        assert_eq!(stages(), [None, Some(First), None]);
        assert_eq!(locks.drained(a), None, "it was given up");
    }

    #[test]
    fn requests_and_locks_take_turns() {
        let locks = Locks::default();
        assert_eq!(locks.pass(0, range(0, 8)), Passage::NoQueue);
        let a = locks.lock(range(0, 8), SHARD, 1).expect("room");
        assert_eq!(locks.pass(0, range(8, 16)), Passage::Free);
        let Passage::Behind(guests) = locks.pass(0, range(7, 10)) else { panic!("it waits") };
        assert_eq!(locks.pass(0, range(2, 5)), Passage::Behind(guests), "one place for both");
        assert_ne!(locks.pass(1, range(2, 5)), Passage::Behind(guests), "another shard");
        // Behind the requests, on their part beside the first lock.
        let b = locks.lock(range(9, 10), SHARD, 1).expect("room");
        assert_eq!(locks.stage(b), Some(Stage::Waiting));
        assert!(!locks.may_pass(guests));
        assert_eq!(locks.leave(a), [SHARD, Waiter::Shard(1)]);
        assert!(locks.may_pass(guests));
        assert_eq!(locks.stage(b), Some(Stage::Waiting), "they have not passed yet");
        assert_eq!(locks.leave(guests), [SHARD]);
        assert_eq!(locks.stage(b), Some(Stage::First));
    }

    #[test]
    fn the_queue_is_bounded() {
        let locks = Locks::default();
        let taken = (0..2000).filter(|_| locks.lock(range(0, 1), SHARD, 1).is_some()).count();
        assert_eq!(taken, MOST);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Lock(u64, u64),
        Pass(usize, u64, u64),
        Leave(prop::sample::Index),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let ends = || (0..20_u64, 1..6_u64);
        let step = prop_oneof![
            3 => ends().prop_map(|(from, len)| Step::Lock(from, len)),
            3 => (0..3_usize, ends()).prop_map(|(shard, (from, len))| Step::Pass(shard, from, len)),
            4 => any::<prop::sample::Index>().prop_map(Step::Leave),
        ];
        prop::collection::vec(step, 1..80)
    }

    /// An entry that the model knows of. Guests have all their requests.
    struct Known {
        id: u64,
        lock: bool,
        ranges: Vec<ByteRange>,
    }

    /// What must hold at any time, for entries in the order of arrival.
    fn check(locks: &Locks, known: &[Known]) {
        let first = |entry: &Known| match entry.lock {
            true => locks.stage(entry.id) != Some(Stage::Waiting),
            false => locks.may_pass(entry.id),
        };
        let meet =
            |a: &Known, b: &Known| a.ranges.iter().any(|a| b.ranges.iter().any(|b| a.overlaps(*b)));
        for (at, entry) in known.iter().enumerate() {
            let mut others = known.iter().enumerate().filter(|(other, _)| *other != at);
            let beside = others.find(|(_, other)| {
                (entry.lock || other.lock) && first(entry) && first(other) && meet(entry, other)
            });
            assert!(beside.is_none(), "two are first that meet");
        }
        if let Some(head) = known.first() {
            assert!(first(head), "the queue does not move");
        }
    }

    proptest! {
        #[test]
        fn locks_exclude_each_other_and_everybody_gets_a_turn(steps in steps()) {
            let locks = Locks::default();
            let mut known: Vec<Known> = Vec::new();
            let leave = |known: &mut Vec<Known>, at: usize| {
                let entry = known.remove(at);
                let waiting: Vec<u64> = known.iter().map(|p| p.id).filter(|id| !locks.may_pass(*id)).collect();
                let woken = locks.leave(entry.id);
                let turned = waiting.iter().any(|id| locks.may_pass(*id));
                assert_eq!(turned, !woken.is_empty(), "who is first is told");
            };
            for step in steps {
                match step {
                    Step::Lock(from, len) => {
                        let range = ByteRange::new(from, len);
                        let id = locks.lock(range, SHARD, 1).expect("room");
                        known.push(Known { id, lock: true, ranges: vec![range] });
                    }
                    Step::Pass(shard, from, len) => {
                        let range = ByteRange::new(from, len);
                        match locks.pass(shard, range) {
                            Passage::NoQueue => prop_assert!(known.is_empty()),
                            Passage::Free => {
                                let meets = known.iter().any(|entry| {
                                    entry.lock && locks.may_pass(entry.id) && entry.ranges[0].overlaps(range)
                                });
                                prop_assert!(!meets, "a request passes a lock");
                            }
                            Passage::Behind(id) => match known.iter_mut().find(|p| p.id == id) {
                                Some(entry) => entry.ranges.push(range),
                                None => known.push(Known { id, lock: false, ranges: vec![range] }),
                            },
                        }
                    }
                    // Whoever waits may give up, and whoever is first ends.
                    Step::Leave(index) if !known.is_empty() => {
                        let at = index.index(known.len());
                        leave(&mut known, at);
                    }
                    Step::Leave(_) => {}
                }
                check(&locks, &known);
            }
            while !known.is_empty() {
                leave(&mut known, 0);
                check(&locks, &known);
            }
            prop_assert_eq!(locks.pass(0, range(0, 30)), Passage::NoQueue);
        }
    }
}
