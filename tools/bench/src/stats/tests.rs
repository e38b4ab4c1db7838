use lunet_block::Random;

use super::effect::{rank_sums, signed_ranks};
use super::*;

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

/// Random numbers from 0 to 1.
fn chance(seed: u64) -> impl FnMut() -> f64 {
    let mut random = Random::new(seed);
    move || (random.bits() >> 11) as f64 / (1u64 << 53) as f64
}

/// A run with the outliers of storage: mostly near 100, now and then at half of it.
fn run(chance: &mut impl FnMut() -> f64) -> f64 {
    let slow = if chance() < 0.15 { 0.5 } else { 1.0 };
    100.0 * slow * (0.95 + 0.1 * chance())
}

#[test]
fn medians_are_in_the_middle() {
    assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    assert_eq!(median(&[]), None);
}

#[test]
fn an_estimate_says_what_its_interval_is() {
    let few = Estimate::of(&[3.0, 1.0, 8.0]).expect("three");
    assert_eq!((few.median, few.low, few.high), (3.0, 1.0, 8.0));
    assert_eq!((few.interval, few.mad, few.rounds), (Interval::Range, 2.0, 3));
    // The textbook's table for the median: of 6 the 1st and 6th, of 9 the 2nd and 8th, of 20 the 6th and 15th.
    for (n, low) in [(6, 1.0), (8, 1.0), (9, 2.0), (12, 3.0), (15, 4.0), (20, 6.0), (25, 8.0)] {
        let figures: Vec<f64> = (1..=n).map(f64::from).collect();
        let estimate = Estimate::of(&figures).expect("some");
        assert_eq!(estimate.interval, Interval::Confidence95);
        assert_eq!((estimate.low, estimate.high), (low, f64::from(n) + 1.0 - low), "{n}");
    }
    assert_eq!(Estimate::of(&[]), None);
}

#[test]
fn the_interval_is_that_of_the_textbook() {
    let pairs: Vec<(f64, f64)> =
        [0.1_f64, 0.2, 0.3, 0.4, 0.5, 0.6].iter().map(|log| (100.0, 100.0 * log.exp())).collect();
    let effect = effect(&pairs).expect("six are enough");
    let is = |a: f64, log: f64| near(a, log.exp() - 1.0);
    assert!(is(effect.low, 0.1) && is(effect.mean, 0.35), "{effect:?}");
    assert!(is(effect.high, 0.6), "{effect:?}");
    assert_eq!(effect.judge(), Judgement::More);
    assert!(super::effect(&pairs[..5]).is_none());
    assert!(super::effect(&[(1.0, 0.0); 8]).is_none());
    // Wilcoxon's table for both ends at 5 %.
    let table = [(6, 0), (7, 2), (8, 3), (9, 5), (10, 8), (12, 13), (15, 25), (20, 52)];
    for (rounds, cut) in table {
        assert_eq!(signed_ranks(rounds), Some(cut), "{rounds}");
    }
    // The table of Mann and Whitney for both ends at 5 %.
    let table = [
        (4, 4, 0),
        (5, 5, 2),
        (5, 8, 6),
        (6, 6, 5),
        (7, 7, 8),
        (8, 8, 13),
        (10, 10, 23),
        (20, 20, 127),
    ];
    for (a, b, cut) in table {
        assert_eq!(rank_sums(a, b), Some(cut), "{a} {b}");
        assert_eq!(rank_sums(b, a), Some(cut), "{b} {a}");
    }
    assert_eq!(rank_sums(3, 3), None, "20 orders are too few");
}

#[test]
fn chance_is_that_of_the_textbook() {
    let pairs = |slower: usize| -> Vec<(f64, f64)> {
        // The ranks 1, 2, ... of the ratios; the first ones are slower with the change.
        let ratio = |rank: usize| (0.01 * rank as f64).exp();
        let pair = |rank: usize| match rank <= slower {
            true => (100.0 * ratio(rank), 100.0),
            false => (100.0, 100.0 * ratio(rank)),
        };
        (1..=10).map(pair).collect()
    };
    // Of 1024 ways 1 has the sum 0, 2 have at most 1, 5 at most 3.
    for (slower, ways) in [(0, 1.0), (1, 2.0), (2, 5.0)] {
        let chance = by_chance(&pairs(slower)).expect("ten");
        assert!(near(chance, ways / 1024.0), "{slower}: {chance}");
    }
    assert!(near(by_chance(&[(1.0, 1.0); 10]).expect("ten"), 1.0), "equal runs show nothing");
    assert_eq!(by_chance(&pairs(0)[..5]), None);
    // The example of Holm's paper in form: each by how many are left, and never less than one before.
    let told = corrected(&[0.01, 0.04, 0.03, 0.005]);
    for (told, right) in told.iter().zip([0.03, 0.06, 0.06, 0.02]) {
        assert!(near(*told, right), "{told} {right}");
    }
    assert_eq!(corrected(&[0.9, 0.8]), [1.0, 1.0]);
    assert!(corrected(&[]).is_empty());
}

#[test]
fn what_does_nothing_is_noise_in_19_of_20_experiments() {
    let mut chance = chance(7);
    let mut noise = [0; 2];
    for _ in 0..1000 {
        let pairs: Vec<(f64, f64)> =
            (0..10).map(|_| (run(&mut chance), run(&mut chance))).collect();
        let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
        let told = [effect(&pairs), unpaired(&a, &b)];
        for (noise, told) in noise.iter_mut().zip(told) {
            *noise += usize::from(told.expect("ten").judge() == Judgement::Noise);
        }
    }
    assert!(noise.iter().all(|noise| *noise >= 940), "{noise:?} of 1000");
}

#[test]
fn what_slows_a_whole_round_down_falls_out_of_pairs_only() {
    let mut chance = chance(3);
    let round = |chance: &mut dyn FnMut() -> f64| {
        let machine = 0.3 + chance();
        (100.0 * machine, 110.0 * machine * (0.99 + 0.02 * chance()))
    };
    let pairs: Vec<(f64, f64)> = (0..8).map(|_| round(&mut chance)).collect();
    let paired = effect(&pairs).expect("eight");
    assert_eq!(paired.judge(), Judgement::More);
    assert!((0.08..0.12).contains(&paired.mean), "{paired:?}");
    let (a, b): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
    assert_eq!(unpaired(&a, &b).expect("eight").judge(), Judgement::Noise);
}

#[test]
fn a_great_effect_is_seen_either_way() {
    let mut chance = chance(5);
    let a: Vec<f64> = (0..6).map(|_| run(&mut chance)).collect();
    let b: Vec<f64> = a.iter().map(|run| run * 5.0).collect();
    assert_eq!(unpaired(&a, &b).expect("six").judge(), Judgement::More);
    assert_eq!(unpaired(&b, &a).expect("six").judge(), Judgement::Less);
    assert!(unpaired(&a[..3], &b[..3]).is_none());
}

proptest::proptest! {
    #[test]
    fn estimates_hold_their_median(figures in proptest::collection::vec(0.0..1e12f64, 1..60)) {
        let one = Estimate::of(&figures).expect("some");
        proptest::prop_assert!(one.min <= one.low && one.low <= one.median);
        proptest::prop_assert!(one.median <= one.high && one.high <= one.max && one.mad >= 0.0);
    }

    /// Swapped, an effect turns round; with the same factor on all pairs, it grows by that.
    #[test]
    fn effects_turn_round(pairs in proptest::collection::vec((1.0..1e6f64, 1.0..1e6f64), 6..40)) {
        let there = effect(&pairs).expect("enough");
        let turned: Vec<(f64, f64)> = pairs.iter().map(|(a, b)| (*b, *a)).collect();
        let back = effect(&turned).expect("enough");
        let same = |a: f64, b: f64| ((a + 1.0) * (b + 1.0) - 1.0).abs() < 1e-6;
        proptest::prop_assert!(same(there.mean, back.mean) && same(there.low, back.high), "{there:?} {back:?}");
        proptest::prop_assert!(there.low <= there.mean && there.mean <= there.high);
    }
}
