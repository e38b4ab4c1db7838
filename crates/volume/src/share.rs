//! Shares of storage that volumes have in common: weights, and latency goals.
//!
//! The volumes on one store share its [`Pool`]. As long as one of them has a weight or a goal, the pool bounds the
//! requests at the storage, and decides whose is next: each volume has a clock that advances by what it was served,
//! divided by its weight, and a volume whose clock is ahead of the slowest one that waits has to wait (start-time fair
//! queueing). Who does not wait is not waited for. A volume with a latency goal that takes longer has those without one
//! keep fewer requests at the storage. Nothing here looks at a clock.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::limit::Cost;

/// Requests of all volumes of a pool that may be at its storage.
pub const POOL_DEPTH: usize = 32;

/// The weight of a volume that has none, beside one that has.
pub const DEFAULT_WEIGHT: u32 = 100;

/// What an operation costs besides its bytes, in KiB.
const EACH: u64 = 16;

/// How far a clock may be ahead of the slowest one that waits: 16 operations of 4 KiB at the default weight. What two volumes get
/// in any time differs by about that from their shares.
const AHEAD: u64 = 16 * (EACH + 4) * SCALE / DEFAULT_WEIGHT as u64;

/// What the clock of a volume with weight 1 advances by for each KiB is this.
const SCALE: u64 = 1000;

/// How often the requests of volumes without a goal are counted anew.
const TICK: Duration = Duration::from_millis(100);

/// What volumes on one store have in common.
#[derive(Debug)]
pub struct Pool {
    /// Requests at the storage, and operations that are about to send one.
    under_way: AtomicUsize,
    /// Those of volumes that give way.
    giving_way: AtomicUsize,
    /// How many these may be.
    allowed: AtomicUsize,
    /// A volume has a goal.
    has_goal: AtomicBool,
    /// A volume with a goal has taken longer than that since the last tick.
    late: AtomicBool,
    /// When the next tick is, in nanoseconds.
    tick: AtomicU64,
    /// Where the slowest clock of those that waited was last.
    clock: AtomicU64,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            under_way: AtomicUsize::new(0),
            giving_way: AtomicUsize::new(0),
            allowed: AtomicUsize::new(POOL_DEPTH),
            has_goal: AtomicBool::new(false),
            late: AtomicBool::new(false),
            tick: AtomicU64::new(0),
            clock: AtomicU64::new(0),
        }
    }
}

impl Pool {
    /// Whether one of its volumes has a latency goal. If that is nothing new, those that give way go on doing so.
    pub fn expect_goal(&self, has_goal: bool) {
        if self.has_goal.swap(has_goal, Ordering::Relaxed) != has_goal {
            self.allowed.store(POOL_DEPTH, Ordering::Relaxed);
        }
    }

    /// Once in a while, those that give way have to do with fewer requests, or may have one more.
    fn look(&self, now: Duration) {
        let (now, tick) = (now.as_nanos() as u64, self.tick.load(Ordering::Relaxed));
        // An hour ahead is none: time was set back.
        let due = now >= tick || tick - now > 3600 * 1_000_000_000;
        let next = now + TICK.as_nanos() as u64;
        let order = Ordering::Relaxed;
        if !due || self.tick.compare_exchange(tick, next, order, order).is_err() {
            return;
        }
        let allowed = self.allowed.load(order);
        let allowed = match self.late.swap(false, order) {
            true => (allowed * 3 / 4).max(1),
            false => (allowed + 1).min(POOL_DEPTH),
        };
        self.allowed.store(allowed, order);
    }
}

/// What a volume is to have of a pool.
#[derive(Clone, Debug)]
pub struct PoolShare {
    /// The pool of its store.
    pub pool: Arc<Pool>,
    /// Its weight, if it is not the [default](DEFAULT_WEIGHT).
    pub weight: Option<NonZeroU32>,
    /// How long its requests may be at the storage, before others give way.
    pub goal: Option<Duration>,
}

/// A volume's share of its pool.
#[derive(Debug, Default)]
pub struct Share {
    /// Some volume of the pool has a weight or a goal.
    on: AtomicBool,
    pool: OnceLock<Arc<Pool>>,
    weight: AtomicU64,
    /// In nanoseconds; 0: none.
    goal: AtomicU64,
    /// What it was served, by weight.
    clock: AtomicU64,
    /// Shards on which operations wait for the share.
    waiting: AtomicUsize,
    /// Its requests at the storage, and operations that are about to send one.
    under_way: AtomicUsize,
    /// How long its requests are at the storage, smoothed, in nanoseconds.
    smoothed: AtomicU64,
}

/// A request that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    gives_way: bool,
}

impl Share {
    /// Has a share of a pool from now on, or with `None` none. The pool of a volume stays the same.
    pub fn set(&self, share: Option<PoolShare>) {
        let on = share.is_some();
        if let Some(PoolShare { pool, weight, goal }) = share {
            self.pool.get_or_init(|| pool);
            let weight = weight.map_or(DEFAULT_WEIGHT, NonZeroU32::get);
            self.weight.store(u64::from(weight), Ordering::Relaxed);
            let goal = goal.map_or(0, |goal| goal.as_nanos() as u64);
            self.goal.store(goal, Ordering::Relaxed);
        }
        self.on.store(on, Ordering::Relaxed);
    }

    /// The pool, while the volume shares it.
    #[inline]
    pub(crate) fn pool(&self) -> Option<&Arc<Pool>> {
        if self.on.load(Ordering::Relaxed) { self.pool.get() } else { None }
    }

    /// Where its clock is, if its operations wait somewhere.
    pub(crate) fn waits_at(&self) -> Option<u64> {
        let waits = self.waiting.load(Ordering::Relaxed) > 0;
        waits.then(|| self.clock.load(Ordering::Relaxed))
    }

    /// Operations begin to wait on a shard, or do not any more.
    pub(crate) fn wait(&self, begins: bool) {
        if !begins {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        if let Some(pool) = self.pool.get().filter(|_| self.waits_at().is_none()) {
            self.clock.fetch_max(Self::least(pool), Ordering::Relaxed);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// Where the clock of a volume is at least that has not waited: who asked for less than its share has saved up
    /// nothing of it.
    fn least(pool: &Pool) -> u64 {
        pool.clock.load(Ordering::Relaxed).saturating_sub(AHEAD)
    }

    fn gives_way(&self, pool: &Pool) -> bool {
        self.goal.load(Ordering::Relaxed) == 0 && pool.has_goal.load(Ordering::Relaxed)
    }

    /// True if an operation may begin, where the slowest clock of those that wait is at `slowest`.
    pub(crate) fn lets(&self, pool: &Pool, slowest: u64) -> bool {
        pool.under_way.load(Ordering::Relaxed) < POOL_DEPTH
            && self.clock.load(Ordering::Relaxed) <= slowest.saturating_add(AHEAD)
            && (!self.gives_way(pool)
                || pool.giving_way.load(Ordering::Relaxed) < pool.allowed.load(Ordering::Relaxed))
    }

    /// An operation begins that costs so much.
    pub(crate) fn pay(&self, pool: &Pool, cost: Cost, slowest: u64) {
        let weight = self.weight.load(Ordering::Relaxed).max(1);
        let kib = cost.operations.saturating_mul(EACH).saturating_add(cost.bytes >> 10);
        let cost = (kib.saturating_mul(SCALE) / weight).max(1);
        let least = if self.waits_at().is_none() { Self::least(pool) } else { 0 };
        let advance = |clock: u64| Some(clock.max(least).saturating_add(cost));
        let order = Ordering::Relaxed;
        let before = self.clock.fetch_update(order, order, advance).unwrap_or(0).max(least);
        pool.clock.fetch_max(before.min(slowest), order);
    }

    /// A request goes to the storage, or is about to.
    pub(crate) fn begin(&self, pool: &Pool) -> Counted {
        let gives_way = self.gives_way(pool);
        pool.under_way.fetch_add(1, Ordering::Relaxed);
        self.under_way.fetch_add(1, Ordering::Relaxed);
        if gives_way {
            pool.giving_way.fetch_add(1, Ordering::Relaxed);
        }
        Counted { gives_way }
    }

    /// A request that was counted has left the storage, after this time if it was there.
    pub(crate) fn end(&self, ticket: Counted, took: Option<Duration>, now: Duration) {
        let Some(pool) = self.pool.get() else { return };
        pool.under_way.fetch_sub(1, Ordering::Relaxed);
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        if ticket.gives_way {
            pool.giving_way.fetch_sub(1, Ordering::Relaxed);
        }
        let goal = self.goal.load(Ordering::Relaxed);
        if let Some(took) = took.filter(|_| goal > 0) {
            let took = took.as_nanos() as u64;
            // Shards that do this at the same time lose a sample.
            let smoothed = self.smoothed.load(Ordering::Relaxed);
            let smoothed = smoothed - smoothed / 8 + took / 8;
            self.smoothed.store(smoothed, Ordering::Relaxed);
            if smoothed > goal {
                pool.late.store(true, Ordering::Relaxed);
            }
        }
        if pool.has_goal.load(Ordering::Relaxed) {
            pool.look(now);
        }
    }

    /// True if nothing is counted: for the end of a server.
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) == 0 && self.waiting.load(Ordering::Relaxed) == 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn share(pool: &Arc<Pool>, weight: u32, goal: Option<Duration>) -> Share {
        let share = Share::default();
        let (pool, weight) = (pool.clone(), NonZeroU32::new(weight));
        share.set(Some(PoolShare { pool, weight, goal }));
        share
    }

    /// A store that takes so long for each request, one after the other, and volumes that always have so many operations of
    /// these bytes. Returns what each was served, in bytes.
    fn run(pool: &Pool, volumes: &[(&Share, usize, u64)], requests: usize) -> Vec<u64> {
        let (mut queue, mut served) = (VecDeque::new(), vec![0; volumes.len()]);
        let mut own = vec![0; volumes.len()];
        for (share, _, _) in volumes {
            share.wait(true);
        }
        for _ in 0..requests {
            loop {
                let slowest = volumes.iter().filter_map(|(share, ..)| share.waits_at()).min();
                let slowest = slowest.unwrap_or(u64::MAX);
                let next = volumes
                    .iter()
                    .enumerate()
                    .find(|(at, (share, depth, _))| own[*at] < *depth && share.lets(pool, slowest));
                let Some((at, (share, depth, bytes))) = next else { break };
                share.pay(pool, Cost::of(*bytes), slowest);
                own[at] += 1;
                // Who has as much there as it asks for waits for nothing.
                if own[at] == *depth {
                    share.wait(false);
                }
                queue.push_back((at, share.begin(pool)));
            }
            let Some((at, ticket)) = queue.pop_front() else { break };
            let (share, depth, bytes) = volumes[at];
            share.end(ticket, None, Duration::ZERO);
            served[at] += bytes;
            if own[at] == depth {
                share.wait(true);
            }
            own[at] -= 1;
        }
        served
    }

    #[test]
    fn weights_are_shares_whatever_the_depths_and_sizes() {
        for (depths, sizes) in
            [((256, 64), (4096, 4096)), ((256, 40), (4096, 4096)), ((64, 256), (262_144, 262_144))]
        {
            let pool = Arc::new(Pool::default());
            let (greedy, weighted) = (share(&pool, 100, None), share(&pool, 300, None));
            let volumes = [(&greedy, depths.0, sizes.0), (&weighted, depths.1, sizes.1)];
            let served = run(&pool, &volumes, 40_000);
            let part = served[1] as f64 / (served[0] + served[1]) as f64;
            assert!((0.7125..0.7875).contains(&part), "{part} of {depths:?}");
        }
    }

    #[test]
    fn who_asks_for_little_gets_that_and_does_not_keep_others_back() {
        let pool = Arc::new(Pool::default());
        let (greedy, little) = (share(&pool, 1, None), share(&pool, 1000, None));
        let served = run(&pool, &[(&greedy, 256, 4096), (&little, 1, 4096)], 40_000);
        // One of 32 at a time.
        assert!(served[1] * 34 > served[0] && served[1] * 30 < served[0], "{served:?}");
    }

    #[test]
    fn who_was_idle_has_saved_up_nothing() {
        let pool = Arc::new(Pool::default());
        let (one, other) = (share(&pool, 100, None), share(&pool, 100, None));
        run(&pool, &[(&one, 256, 4096)], 100_000);
        one.wait(false);
        while one.under_way.load(Ordering::Relaxed) > 0 {
            one.end(Counted { gives_way: false }, None, Duration::ZERO);
        }
        let served = run(&pool, &[(&one, 256, 4096), (&other, 256, 4096)], 20_000);
        let part = served[1] as f64 / (served[0] + served[1]) as f64;
        assert!((0.475..0.525).contains(&part), "{part}");
    }

    #[test]
    fn those_without_a_goal_give_way_and_recover() {
        let pool = Arc::new(Pool::default());
        pool.expect_goal(true);
        let goal = Duration::from_millis(1);
        let (greedy, quick) = (share(&pool, 100, None), share(&pool, 100, Some(goal)));
        let mut now = Duration::ZERO;
        let mut ticks = |count: usize, took: Duration| {
            for _ in 0..count * 10 {
                now += TICK / 10;
                let ticket = quick.begin(&pool);
                quick.end(ticket, Some(took), now);
            }
            pool.allowed.load(Ordering::Relaxed)
        };
        assert_eq!(ticks(50, 2 * goal), 1, "one always goes on");
        pool.expect_goal(true);
        assert_eq!(pool.allowed.load(Ordering::Relaxed), 1, "what is no change frees nobody");
        assert!(greedy.lets(&pool, 0), "so nobody starves");
        let ticket = greedy.begin(&pool);
        assert!(!greedy.lets(&pool, 0) && quick.lets(&pool, 0));
        assert!(ticks(20, goal / 2) >= 10, "one more at each tick, once it is well again");
        assert_eq!(ticks(50, goal / 2), POOL_DEPTH);
        greedy.end(ticket, None, now);
        assert!(greedy.is_idle() && quick.is_idle());
    }

    /// Storage that works on so many requests at once, each for this time, and has the others stand in a queue. One volume
    /// always has as many operations as it may; one with a goal has one after the other. Returns the latencies of the latter
    /// in the second half of the ticks, and how much of what the storage could have done it did then.
    fn queue(goal: Duration, at_once: usize, each: Duration, ticks: u32) -> (Vec<Duration>, f64) {
        let pool = Arc::new(Pool::default());
        pool.expect_goal(true);
        let (greedy, quick) = (share(&pool, 100, None), share(&pool, 100, Some(goal)));
        greedy.wait(true);
        let (mut free, mut queue) = (vec![Duration::ZERO; at_once], VecDeque::new());
        let (mut now, mut latencies, mut done) = (Duration::ZERO, Vec::new(), 0);
        let (mut is_busy, half) = (false, ticks / 2 * TICK);
        while now < 2 * half {
            loop {
                let slowest = [&greedy, &quick].iter().filter_map(|it| it.waits_at()).min();
                let slowest = slowest.unwrap_or(u64::MAX);
                let next = [&quick, &greedy][usize::from(is_busy)];
                if !next.lets(&pool, slowest) {
                    break;
                }
                next.pay(&pool, Cost::of(4096), slowest);
                let first = free.iter_mut().min().expect("it works");
                *first = now.max(*first) + each;
                queue.push_back((*first, now, next.begin(&pool), is_busy));
                is_busy = true;
            }
            let Some((end, began, ticket, is_greedy)) = queue.pop_front() else { break };
            now = end;
            let (from, took) = (if is_greedy { &greedy } else { &quick }, end - began);
            from.end(ticket, Some(took), now);
            done += u32::from(now >= half);
            if !is_greedy {
                latencies.extend((now >= half).then_some(took));
                is_busy = false;
            }
        }
        let possible = half.as_secs_f64() / each.as_secs_f64() * at_once as f64;
        (latencies, f64::from(done) / possible)
    }

    proptest! {
        #[test]
        fn a_goal_is_kept_where_others_are_the_reason_and_costs_no_throughput(
            at_once in 1_usize..5,
            each in 100_u32..5000,
            depth in 8_u32..24,
        ) {
            let each = Duration::from_micros(each.into());
            // What so many requests take that are there at once.
            let goal = each * depth / at_once as u32;
            let (mut latencies, used) = queue(goal, at_once, each, 400);
            latencies.sort();
            let [median, most] = [2, 1].map(|part| latencies[(latencies.len() - 1) / part]);
            prop_assert!(median <= goal, "{median:?} of {goal:?}");
            // Until it is noticed, there is one more at each tick.
            prop_assert!(most <= goal * 3 / 2, "{most:?} of {goal:?}");
            prop_assert!(median >= goal / 2, "{median:?} of {goal:?}: others give way for nothing");
            prop_assert!(used > 0.95, "{used} of what the storage can do");
        }

        #[test]
        fn everybody_gets_the_share_of_the_weight(weights in proptest::collection::vec(10_u32..1000, 2..5)) {
            let pool = Arc::new(Pool::default());
            let shares: Vec<Share> = weights.iter().map(|weight| share(&pool, *weight, None)).collect();
            let volumes: Vec<_> = shares.iter().map(|share| (share, 256, 4096)).collect();
            let served = run(&pool, &volumes, 100_000);
            let (all, sum) = (served.iter().sum::<u64>() as f64, f64::from(weights.iter().sum::<u32>()));
            for (served, weight) in served.iter().zip(&weights) {
                let (part, wanted) = (*served as f64 / all, f64::from(*weight) / sum);
                prop_assert!((part / wanted - 1.0).abs() < 0.05, "{part} instead of {wanted}");
            }
        }
    }
}
