//! How much may be done in a time: limits of operations and bytes each second, with bursts.
//!
//! A limit is two accounts, one of operations and one of bytes. An account is one number: the time until which all that
//! was let through has been paid for at its rate (GCRA, the generic cell rate algorithm). Something may begin while that
//! is no further in the future than the burst; then it is paid for, whatever it costs, so that something larger than the
//! burst passes as well, and what comes after it waits for longer. Any number of threads share an account without a
//! lock. Nothing here looks at a clock: time is nanoseconds since the server's start.
//!
//! In any time t, no more is let through than the rate times (t + burst), and one operation of each thread.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use lunet_block::Op;

/// What counts as one operation, in bytes: a longer one counts as one for each of these that it begins.
pub const UNIT: u64 = 256 << 10;

/// What storage does by itself, such as giving space back, counts as one operation for each of these that it begins. In
/// bytes.
const FREE_UNIT: u64 = 16 << 20;

/// As how many operations it counts at the most.
const FREE_MOST: u64 = 64;

/// The burst that a limit has if none is given.
pub const DEFAULT_BURST: Duration = Duration::from_millis(100);

/// The longest that anything waits for one operation before it to be paid for, in nanoseconds. An account that says more
/// has a time that lies behind us: the clock was set back.
const LONGEST: u64 = 600 * SECOND;

const SECOND: u64 = 1_000_000_000;

/// What may be done each second. Without a rate there is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// Operations each second.
    pub iops: Option<NonZeroU64>,
    /// Bytes each second.
    pub bandwidth: Option<NonZeroU64>,
    /// What was not used of so long a time may be used at once.
    pub burst: Duration,
}

impl Default for Rates {
    fn default() -> Self {
        Self { iops: None, bandwidth: None, burst: DEFAULT_BURST }
    }
}

impl Rates {
    /// True if they limit anything.
    pub fn is_limit(&self) -> bool {
        self.iops.is_some() || self.bandwidth.is_some()
    }
}

/// What something costs the storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// As how many operations it counts.
    pub operations: u64,
    /// Bytes that are read or written.
    pub bytes: u64,
}

impl Cost {
    /// That of so many bytes that are moved.
    pub const fn of(bytes: u64) -> Self {
        let operations = bytes.div_ceil(UNIT);
        Self { operations: if operations == 0 { 1 } else { operations }, bytes }
    }

    /// That of a request for a range of this length. What makes data stable is free: it waits for what was paid for.
    pub fn of_request(op: Op, bytes: u64) -> Self {
        match op {
            Op::Read | Op::ReadMapped | Op::Write { .. } => Self::of(bytes),
            Op::Unmap | Op::WriteZeroes { .. } => {
                Self { operations: bytes.div_ceil(FREE_UNIT).clamp(1, FREE_MOST), bytes: 0 }
            }
            Op::Flush => Self::default(),
        }
    }
}

/// What was let through at one rate.
#[derive(Debug, Default)]
struct Account {
    /// Parts each second; 0: as many as there are.
    rate: AtomicU64,
    /// Until when what was let through is paid for, in nanoseconds.
    paid_until: AtomicU64,
}

impl Account {
    /// How long nothing may begin, in nanoseconds.
    fn wait(&self, now: u64, burst: u64) -> u64 {
        if self.rate.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let paid_until = self.paid_until.load(Ordering::Relaxed);
        let wait = paid_until.saturating_sub(burst).saturating_sub(now);
        if wait > LONGEST { 0 } else { wait }
    }

    /// How long something that consists of so many parts takes at this rate, in nanoseconds.
    fn cost(parts: u64, rate: NonZeroU64) -> u64 {
        let cost = (u128::from(parts) * u128::from(SECOND)).div_ceil(u128::from(rate.get()));
        u64::try_from(cost).unwrap_or(LONGEST).min(LONGEST)
    }

    /// Something begins that consists of so many parts.
    fn pay(&self, parts: u64, now: u64, burst: u64) {
        let Some(rate) = NonZeroU64::new(self.rate.load(Ordering::Relaxed)) else { return };
        let cost = Self::cost(parts, rate);
        let most = now.saturating_add(burst).saturating_add(LONGEST);
        let paid = |until: u64| {
            let from = if until > most { now } else { until.max(now) };
            Some(from.saturating_add(cost).min(most))
        };
        // It never fails: there is always a next value.
        let _ = self.paid_until.fetch_update(Ordering::AcqRel, Ordering::Relaxed, paid);
        // What a rate costs that is no longer in force is forgotten, as if it had been paid before the change.
        if self.rate.load(Ordering::Relaxed) != rate.get() {
            self.paid_until.store(0, Ordering::Relaxed);
        }
    }

    /// What was paid for will not begin.
    fn pay_back(&self, parts: u64) {
        let Some(rate) = NonZeroU64::new(self.rate.load(Ordering::Relaxed)) else { return };
        let cost = Self::cost(parts, rate);
        let paid = |until: u64| Some(until.saturating_sub(cost));
        let _ = self.paid_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, paid);
    }

    fn set(&self, rate: Option<NonZeroU64>) {
        self.rate.store(rate.map_or(0, NonZeroU64::get), Ordering::Relaxed);
        // Whoever pays behind this sees the new rate.
        self.paid_until.store(0, Ordering::Release);
    }
}

/// A limit that any number of threads share, and that can be changed at any time.
#[derive(Debug, Default)]
pub struct Limit {
    /// There is a rate.
    set: AtomicBool,
    operations: Account,
    bytes: Account,
    /// In nanoseconds.
    burst: AtomicU64,
    /// How often it has become another one.
    changes: AtomicU32,
}

impl Limit {
    /// A limit with these rates.
    pub fn new(rates: Rates) -> Self {
        let limit = Self::default();
        limit.set(rates);
        limit
    }

    /// Has these rates from now on. What was let through before is forgotten, so that nobody waits for what a lower rate
    /// had made expensive. Rates that are in force already change nothing.
    pub fn set(&self, rates: Rates) {
        if self.rates() == rates {
            return;
        }
        let burst = u64::try_from(rates.burst.as_nanos()).unwrap_or(LONGEST).min(LONGEST);
        self.burst.store(burst, Ordering::Relaxed);
        self.operations.set(rates.iops);
        self.bytes.set(rates.bandwidth);
        self.set.store(rates.is_limit(), Ordering::Relaxed);
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// How often it has become another one, which makes void what was paid for and has not begun.
    pub(crate) fn changes(&self) -> u32 {
        self.changes.load(Ordering::Relaxed)
    }

    /// The rates.
    pub fn rates(&self) -> Rates {
        let rate = |account: &Account| NonZeroU64::new(account.rate.load(Ordering::Relaxed));
        Rates {
            iops: rate(&self.operations),
            bandwidth: rate(&self.bytes),
            burst: Duration::from_nanos(self.burst.load(Ordering::Relaxed)),
        }
    }

    /// True if it limits anything.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.set.load(Ordering::Relaxed)
    }

    /// How long nothing may begin.
    pub fn wait(&self, now: Duration) -> Duration {
        if !self.is_set() {
            return Duration::ZERO;
        }
        let (now, burst) = (nanos(now), self.burst.load(Ordering::Relaxed));
        Duration::from_nanos(self.operations.wait(now, burst).max(self.bytes.wait(now, burst)))
    }

    /// Something begins that costs so much.
    pub fn pay(&self, cost: Cost, now: Duration) {
        if !self.is_set() {
            return;
        }
        let (now, burst) = (nanos(now), self.burst.load(Ordering::Relaxed));
        self.operations.pay(cost.operations, now, burst);
        self.bytes.pay(cost.bytes, now, burst);
    }

    /// Something that was paid for will not begin.
    pub(crate) fn pay_back(&self, cost: Cost) {
        self.operations.pay_back(cost.operations);
        self.bytes.pay_back(cost.bytes);
    }
}

/// Five hundred years fit.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn rates(iops: u64, bandwidth: u64, burst: Duration) -> Rates {
        Rates { iops: NonZeroU64::new(iops), bandwidth: NonZeroU64::new(bandwidth), burst }
    }

    /// Lets operations of these bytes through as soon as they may begin, looking every so often. Returns when each began.
    fn run(limit: &Limit, sizes: &[u64], step: Duration, from: Duration) -> Vec<Duration> {
        let (mut now, mut began) = (from, Vec::new());
        for size in sizes {
            while !limit.wait(now).is_zero() {
                now += step;
            }
            limit.pay(Cost::of(*size), now);
            began.push(now);
        }
        began
    }

    #[test]
    fn what_a_request_costs() {
        let cost = |operations, bytes| Cost { operations, bytes };
        assert_eq!(Cost::of(0), cost(1, 0));
        assert_eq!(Cost::of(UNIT), cost(1, UNIT));
        assert_eq!(Cost::of(UNIT + 1), cost(2, UNIT + 1));
        assert_eq!(Cost::of_request(Op::Flush, 0), cost(0, 0));
        assert_eq!(Cost::of_request(Op::Unmap, 17 << 20), cost(2, 0));
        let all = Op::WriteZeroes { may_unmap: false };
        assert_eq!(Cost::of_request(all, u64::MAX), cost(64, 0));
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let limit = Limit::default();
        limit.pay(Cost::of(u64::MAX), MS);
        assert!(!limit.is_set() && limit.wait(MS).is_zero());
    }

    #[test]
    fn what_is_larger_than_the_burst_passes_and_the_next_waits() {
        let limit = Limit::new(rates(0, 1 << 20, MS));
        let began = run(&limit, &[4 << 20, 4096, 4096], MS, Duration::ZERO);
        assert_eq!(began[0], Duration::ZERO);
        assert!(began[1] >= 3999 * MS && began[1] <= 4001 * MS, "{began:?}");
    }

    #[test]
    fn a_clock_that_was_set_back_or_stood_still_stops_nobody() {
        let hours = Duration::from_secs(8 * 3600);
        let limit = Limit::new(rates(10, 0, Duration::ZERO));
        run(&limit, &[1; 20], MS, hours);
        // Eight hours back: at the rate from there on.
        let began = run(&limit, &[1; 20], MS, MS);
        assert!(began[19] <= 2000 * MS, "{began:?}");
        // And eight hours on, no more than the burst has been saved up.
        let began = run(&limit, &[1; 20], MS, hours);
        assert!(began[19] >= hours + 1800 * MS, "{began:?}");
    }

    #[test]
    fn the_largest_numbers_do_no_harm() {
        let limit = Limit::new(rates(1, 1, Duration::MAX));
        let end = Duration::from_nanos(u64::MAX);
        for now in [Duration::ZERO, MS, end, MS] {
            limit.pay(Cost { operations: u64::MAX, bytes: u64::MAX }, now);
            assert!(limit.wait(now) <= Duration::from_nanos(LONGEST));
        }
    }

    #[test]
    fn another_rate_frees_who_waits_for_the_old_one() {
        let limit = Limit::new(rates(1, 0, Duration::ZERO));
        run(&limit, &[100 * UNIT], MS, MS);
        assert!(limit.wait(2 * MS) > 90_000 * MS);
        limit.set(rates(1, 0, Duration::ZERO));
        assert!(limit.wait(2 * MS) > 90_000 * MS, "the same rate is no change");
        limit.set(rates(1000, 0, Duration::ZERO));
        assert!(limit.wait(2 * MS).is_zero());
        limit.set(Rates::default());
        assert!(!limit.is_set());
    }

    #[test]
    fn what_is_paid_while_the_rate_changes_is_not_paid_at_the_old_rate_under_the_new_one() {
        let limit = Limit::new(rates(1, 0, Duration::ZERO));
        let (paid, over) = (AtomicU64::new(0), AtomicBool::new(false));
        let later = |many: u64| {
            let until = paid.load(Ordering::SeqCst) + many;
            while paid.load(Ordering::SeqCst) < until {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    limit.pay(Cost { operations: 1, bytes: 0 }, MS);
                    paid.fetch_add(1, Ordering::SeqCst);
                }
            });
            let mut longest = Duration::ZERO;
            for n in 0..200 {
                limit.set(rates(1, 0, Duration::ZERO));
                later(n % 3);
                // A second each before, and nothing that counts from now on.
                limit.set(rates(1_000_000_000, 0, Duration::ZERO));
                later(2);
                longest = longest.max(limit.wait(MS));
            }
            over.store(true, Ordering::SeqCst);
            assert!(longest < Duration::from_millis(900), "{longest:?}");
        });
    }

    proptest! {
        #[test]
        fn no_more_than_the_rate_and_the_burst_and_no_less_than_the_rate(
            iops in 1_u64..100_000,
            bandwidth in 65_536_u64..1 << 34,
            burst in 1_u32..2_000,
            late in 1_u32..20,
            sizes in proptest::collection::vec(512_u64..2 << 20, 1..400),
        ) {
            let (burst, late) = (burst * MS, late * MS);
            let limit = Limit::new(rates(iops, bandwidth, burst));
            let began = run(&limit, &sizes, late, MS);
            let costs: Vec<Cost> = sizes.iter().map(|size| Cost::of(*size)).collect();
            let times = |cost: &Cost| (cost.operations as f64 / iops as f64, cost.bytes as f64 / bandwidth as f64);
            // From any operation on to any other: what lies before the last one is at most what the time allows.
            for (from, to) in [(0, sizes.len() - 1), (sizes.len() / 2, sizes.len() - 1), (0, sizes.len() / 2)] {
                let sums = costs[from..to].iter().map(times).fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
                let took = (began[to] - began[from]).as_secs_f64();
                prop_assert!(sums.0.max(sums.1) <= took + burst.as_secs_f64() + 1e-5);
            }
            // Whoever always has something to do is never behind the rate by more than a look, if the burst makes up for
            // late looks: all that began before the last one, at the scarcer of the two rates at each step.
            if burst >= late {
                let most: f64 = costs.iter().map(times).map(|(a, b)| a.max(b)).sum();
                let took = (*began.last().unwrap() - MS).as_secs_f64();
                prop_assert!(took <= most + late.as_secs_f64() + 1e-3, "{took} of {most}");
            }
        }

        #[test]
        fn threads_together_keep_to_the_rate(iops in 100_u64..10_000, threads in 1_usize..5) {
            let limit = Limit::new(rates(iops, 0, 10 * MS));
            let (mut now, mut passed) = (Duration::ZERO, 0);
            while now < Duration::from_secs(1) {
                // All look before any of them pays.
                let free = (0..threads).filter(|_| limit.wait(now).is_zero()).count();
                (0..free).for_each(|_| limit.pay(Cost::of(512), now));
                passed += free as u64;
                now += MS / 10;
            }
            prop_assert!(passed <= iops + iops / 100 + threads as u64 + 1, "{passed} of {iops}");
        }
    }
}
