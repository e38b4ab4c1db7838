//! Random commands of four nexuses, against the model.

use proptest::prelude::*;

use crate::cluster::Cluster;
use crate::reserve_model::{Model, NODES, Step, carry_out, compare};

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let who = 0..NODES;
    let key = || prop_oneof![1 => Just(0_u64), 4 => 1..4_u64];
    let kind = || prop::sample::select(vec![1_u8, 3, 5, 6, 7, 8]);
    let step = prop_oneof![
        4 => (who.clone(), any::<bool>(), key(), key(), any::<bool>()).prop_map(
            |(who, ignore, key, new, aptpl)| Step::Register { who, ignore, key, new, aptpl }
        ),
        4 => (who.clone(), key(), kind()).prop_map(|(who, key, kind)| Step::Reserve { who, key, kind }),
        2 => (who.clone(), key(), kind()).prop_map(|(who, key, kind)| Step::Release { who, key, kind }),
        1 => (who.clone(), key()).prop_map(|(who, key)| Step::Clear { who, key }),
        4 => (who.clone(), key(), key(), kind(), any::<bool>()).prop_map(
            |(who, key, victim, kind, abort)| Step::Preempt { who, key, victim, kind, abort }
        ),
        3 => (who.clone(), key(), key(), who.clone(), any::<bool>()).prop_map(
            |(who, key, new, to, unregister)| Step::Move { who, key, new, to, unregister }
        ),
        1 => who.clone().prop_map(Step::LegacyReserve),
        2 => who.clone().prop_map(Step::LegacyRelease),
        1 => Just(Step::Reset),
        1 => Just(Step::PowerLoss),
        1 => who.prop_map(Step::LogInAgain),
    ];
    prop::collection::vec(step, 1..60)
}

/// Sends the sender's real key three times out of four: with random keys alone, most commands end
/// in a conflict.
fn aim(model: &Model, step: Step, honest: bool) -> Step {
    let real = |who: usize, key: u64| if honest { model.keys[who].unwrap_or(0) } else { key };
    match step {
        Step::Register { who, ignore, key, new, aptpl } => {
            Step::Register { who, ignore, key: real(who, key), new, aptpl }
        }
        Step::Reserve { who, key, kind } => Step::Reserve { who, key: real(who, key), kind },
        Step::Release { who, key, kind } => Step::Release { who, key: real(who, key), kind },
        Step::Clear { who, key } => Step::Clear { who, key: real(who, key) },
        Step::Preempt { who, key, victim, kind, abort } => {
            Step::Preempt { who, key: real(who, key), victim, kind, abort }
        }
        Step::Move { who, key, new, to, unregister } => {
            Step::Move { who, key: real(who, key), new, to, unregister }
        }
        other => other,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn the_reservations_are_those_of_the_model(
        steps in steps(),
        honest in prop::collection::vec(prop::bool::weighted(0.75), 60),
    ) {
        let (mut cluster, mut model) = (Cluster::new(), Model::default());
        for (step, honest) in steps.into_iter().zip(honest) {
            let step = aim(&model, step, honest);
            let expected = model.step(step);
            prop_assert_eq!(carry_out(&mut cluster, step), expected, "{:?}", step);
            compare(&mut cluster, &mut model, step);
        }
    }
}
