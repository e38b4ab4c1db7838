//! What becomes of an operation.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lunet_block::{ByteRange, Error, Op, Random};

use super::{ALWAYS, Effect, Shared, State, Which};

/// What a limited volume may catch up on after a pause: less would be lost to the timers, which are late by part of a
/// millisecond.
const BURST: Duration = Duration::from_millis(5);

/// How an operation is held up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wait {
    /// Until this layer is switched off.
    pub hang: Option<usize>,
    /// For so long, after that.
    pub delay: Option<Duration>,
    /// So much of that is for a limit.
    pub limited: Duration,
}

/// The layers as one channel, or one copy, sees them.
pub(super) struct Rules {
    pub shared: Arc<Shared>,
    random: Random,
}

impl Rules {
    pub fn new(shared: Arc<Shared>) -> Self {
        let seed = shared.seeds.fetch_add(1, Ordering::SeqCst) + 1;
        Self { shared, random: Random::new(seed) }
    }

    /// How an operation that comes in is held up.
    pub fn wait(&mut self, op: Op, range: ByteRange) -> Wait {
        let mut wait = Wait::default();
        let mut limited = Duration::ZERO;
        for index in 0..self.shared.layers.len() {
            // A copy, so that nothing is borrowed while the layer is asked.
            let effect = self.shared.layers[index].layer.effect;
            match effect {
                Effect::Delay { time, spread } if self.hits(index, op, range) => {
                    let spread = u64::try_from(spread.as_nanos()).unwrap_or(u64::MAX - 1);
                    let extra = Duration::from_nanos(self.random.below(spread + 1));
                    let delay = time.saturating_add(extra);
                    wait.delay = Some(wait.delay.unwrap_or_default().saturating_add(delay));
                }
                Effect::Hang if self.hits(index, op, range) => {
                    wait.hang = wait.hang.or(Some(index));
                }
                Effect::Limit(rate) if self.hits(index, op, range) => {
                    limited = limited.max(self.turn(index, rate.time(range.len)));
                }
                Effect::Delay { .. } | Effect::Hang | Effect::Fault(_) | Effect::Limit(_) => {}
            }
        }
        if !limited.is_zero() {
            wait.delay = Some(wait.delay.unwrap_or_default().saturating_add(limited));
            wait.limited = limited;
        }
        wait
    }

    /// Takes the next free stretch of a limit, of this length. Returns how long it is until it begins.
    fn turn(&self, index: usize, cost: Duration) -> Duration {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let now = nanos(lunet_os::time::since(self.shared.began));
        let begin = |free: u64| free.max(now.saturating_sub(nanos(BURST)));
        let taken = |free| Some(begin(free).saturating_add(nanos(cost)));
        let of = &self.shared.layers[index].free;
        let before = of.fetch_update(Ordering::SeqCst, Ordering::SeqCst, taken).unwrap_or_default();
        Duration::from_nanos(begin(before).saturating_sub(now))
    }

    /// How an operation fails that has waited long enough, if it does.
    pub fn fault(&mut self, op: Op, range: ByteRange) -> Option<Error> {
        let mut fault = None;
        for index in 0..self.shared.layers.len() {
            if let Effect::Fault(errno) = self.shared.layers[index].layer.effect {
                if self.hits(index, op, range) {
                    let error = match op {
                        Op::Flush => Error::NotStable(errno),
                        _ => Error::from_errno(errno),
                    };
                    fault = fault.or(Some(error));
                }
            }
        }
        fault
    }

    /// Counts an operation, and says whether the layer hits it.
    fn hits(&mut self, index: usize, op: Op, range: ByteRange) -> bool {
        let State { layer, on, matched, .. } = &self.shared.layers[index];
        let overlaps = |of: &Range<u64>| of.start < range.end() && range.offset < of.end;
        let here = op == Op::Flush || layer.range.as_ref().is_none_or(overlaps);
        if !layer.ops.has(op) || !here || !on.load(Ordering::SeqCst) {
            return false;
        }
        let number = matched.fetch_add(1, Ordering::SeqCst) + 1;
        match layer.which {
            Which::Nth(nth) => number == nth,
            Which::Share(ALWAYS..) => true,
            Which::Share(share) => self.random.below(u64::from(ALWAYS)) < u64::from(share),
        }
    }

    /// Whether anybody can still switch a layer off.
    pub fn may_change(&self) -> bool {
        self.shared.controls.strong_count() > 0
    }

    /// Whether a layer is on.
    pub fn is_on(&self, layer: usize) -> bool {
        self.shared.layers[layer].on.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::sync::Weak;

    use super::super::{Layer, Ops, Rate, State};
    use super::*;

    const HERE: ByteRange = ByteRange::new(8192, 4096);
    const WRITE: Op = Op::Write { fua: false };

    fn rules(layers: &[Layer]) -> Rules {
        let layers = layers.iter().cloned().map(State::new).collect();
        Rules::new(Arc::new(Shared {
            layers,
            controls: Weak::new(),
            held: 0.into(),
            seeds: 0.into(),
            began: lunet_os::time::now(),
        }))
    }

    fn fails(rules: &mut Rules, op: Op, range: ByteRange) -> bool {
        rules.fault(op, range).is_some()
    }

    #[test]
    fn only_the_operations_in_the_range_are_hit() {
        let mut layer = Layer::new(Effect::Fault(5), Ops { flush: true, ..Ops::WRITE });
        layer.range = Some(HERE.offset..HERE.end());
        let mut rules = rules(&[layer]);
        assert!(fails(&mut rules, WRITE, HERE));
        assert!(fails(&mut rules, Op::Write { fua: true }, ByteRange::new(0, 8193)));
        assert!(!fails(&mut rules, WRITE, ByteRange::new(0, 8192)));
        assert!(fails(&mut rules, Op::Flush, ByteRange::new(0, 0)));
        for op in [Op::Read, Op::ReadMapped, Op::Unmap, Op::WriteZeroes { may_unmap: true }] {
            assert!(!fails(&mut rules, op, HERE), "{op:?}");
        }
    }

    #[test]
    fn the_nth_is_hit_and_no_other() {
        let layer = Layer { which: Which::Nth(3), ..Layer::new(Effect::Fault(28), Ops::WRITE) };
        let mut rules = rules(&[layer]);
        let hits: Vec<bool> = (0..6)
            .map(|_| {
                rules.fault(Op::Read, HERE);
                rules.fault(WRITE, HERE) == Some(Error::OutOfSpace)
            })
            .collect();
        assert_eq!(hits, [false, false, true, false, false, false]);
    }

    #[test]
    fn a_share_is_hit() {
        for (share, expected) in [(0, 0..=0), (10_000, 50..=200), (ALWAYS, 10_000..=10_000)] {
            let which = Which::Share(share);
            let mut rules = rules(&[Layer { which, ..Layer::new(Effect::Fault(5), Ops::ALL) }]);
            let hits = (0..10_000).filter(|_| fails(&mut rules, Op::Read, HERE)).count();
            assert!(expected.contains(&hits), "{hits} of 10000 for {share} millionths");
        }
    }

    #[test]
    fn delays_add_up_and_the_first_fault_counts() {
        let millis = Duration::from_millis;
        let delay = |time, spread| Effect::Delay { time: millis(time), spread: millis(spread) };
        let effects =
            [delay(5, 10), Effect::Fault(5), delay(20, 0), Effect::Fault(28), Effect::Hang];
        let mut rules = rules(&effects.map(|effect| Layer::new(effect, Ops::ALL)));
        let mut seen = Vec::new();
        for _ in 0..100 {
            let Wait { hang, delay, .. } = rules.wait(Op::Flush, HERE);
            let fault = rules.fault(Op::Flush, HERE);
            assert_eq!((hang, fault), (Some(4), Some(Error::NotStable(5))));
            seen.push(delay.expect("a delay"));
        }
        assert!(seen.iter().all(|delay| (millis(25)..=millis(35)).contains(delay)));
        assert!(seen.iter().max() > seen.iter().min(), "it is random");
        rules.shared.layers[4].on.store(false, Ordering::SeqCst);
        assert_eq!(rules.wait(Op::Flush, HERE).hang, None);
        let most = Effect::Delay { time: Duration::MAX, spread: Duration::MAX };
        let mut rules = self::rules(&[Layer::new(most, Ops::ALL)]);
        assert_eq!(rules.wait(Op::Read, HERE).delay, Some(Duration::MAX));
    }

    /// The time that so many operations of a page wait for their turn, one after the other.
    fn waits(rules: &mut Rules, count: usize) -> Vec<Duration> {
        (0..count).map(|_| rules.wait(WRITE, HERE).delay.unwrap_or_default()).collect()
    }

    #[test]
    fn a_limit_gives_each_operation_its_time() {
        let rate = |rate| NonZeroU64::new(rate).expect("not 0");
        // A page takes 100 ms at either rate.
        for rate in [Rate::Bytes(rate(40_960)), Rate::Operations(rate(10))] {
            let mut rules = rules(&[Layer::new(Effect::Limit(rate), Ops::WRITE)]);
            let waits = waits(&mut rules, 20);
            assert_eq!(waits[0], Duration::ZERO, "the first one has all of it");
            // The last one begins when 19 have had their time, less what this test took and what may be caught up on.
            let (most, took) =
                (Duration::from_millis(1900), lunet_os::time::since(rules.shared.began));
            assert!(waits[19] <= most && waits[19] + took + BURST >= most, "{:?}", waits[19]);
            assert!(rules.wait(Op::Read, HERE).delay.is_none(), "reads are not limited");
        }
        let mut rules = rules(&[Layer::new(Effect::Limit(Rate::Bytes(rate(1))), Ops::ALL)]);
        waits(&mut rules, 1);
        let flush = rules.wait(Op::Flush, ByteRange::new(0, 0)).delay.expect("it has its turn");
        assert!(flush > Duration::from_secs(4000), "{flush:?}");
    }

    #[test]
    fn the_narrowest_limit_counts_and_delays_come_to_it() {
        let limit = |rate| Effect::Limit(Rate::Operations(NonZeroU64::new(rate).expect("not 0")));
        let time = Duration::from_secs(7);
        let delay = Effect::Delay { time, spread: Duration::ZERO };
        let mut rules = rules(&[limit(100), delay, limit(1)].map(|one| Layer::new(one, Ops::ALL)));
        let waits = waits(&mut rules, 3);
        let both = rules.wait(WRITE, HERE);
        assert!(!both.limited.is_zero());
        assert_eq!(both.delay, Some(both.limited + time), "the delay is the storage's");
        assert_eq!(waits[0], time);
        let (most, took) =
            (time + Duration::from_secs(2), lunet_os::time::since(rules.shared.began));
        assert!(waits[2] <= most && waits[2] + took + BURST >= most, "{:?}", waits[2]);
    }
}
