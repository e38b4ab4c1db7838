//! Reads and writes under all kinds of settings.

use lunet_iscsi::initiator;
use lunet_iscsi::target;
use proptest::prelude::*;

use crate::driver::{Allowed, Driver, action};
use crate::settings;
use crate::world::World;

/// Runs the actions in a new world, if its ends can agree on digests.
fn run(
    from: initiator::Options,
    to: target::Options,
    actions: Vec<crate::driver::Action>,
    seed: u64,
    failing: u64,
) {
    let digests = (
        settings::digest(from.header_digest, to.header_digest),
        settings::digest(from.data_digest, to.data_digest),
    );
    let mut world = World::new(from, to, seed);
    let (Some(header), Some(data)) = digests else {
        world.settle();
        assert!(world.initiator.is_over());
        return;
    };
    world.settle();
    let events = std::mem::take(&mut world.events);
    assert!(matches!(events[..], [initiator::Event::LoggedIn(_)]), "{events:?}");
    check_agreement(&world);
    assert_eq!(world.initiator.negotiated().header_digest, header);
    assert_eq!(world.initiator.negotiated().data_digest, data);
    world.site.failing = failing;
    let count = actions.len();
    let allowed = Allowed { no_memory: failing > 0, damage: false };
    let mut driver = Driver::new(&world, actions, allowed);
    driver.run(&mut world);
    assert_eq!(driver.answers.iter().sum::<usize>(), count);
    assert_eq!(world.target.outstanding(), 0);
    assert_eq!(world.disk.jobs(), 0);
}

/// Both ends hold the same view of what was agreed on.
fn check_agreement(world: &World) {
    let (i, t) = (world.initiator.negotiated(), world.target.negotiated());
    assert_eq!(i.header_digest, t.header_digest);
    assert_eq!(i.data_digest, t.data_digest);
    assert_eq!(i.initial_r2t, t.initial_r2t);
    assert_eq!(i.immediate_data, t.immediate_data);
    assert_eq!(i.max_recv_data_segment_length, t.initiator_max_recv);
    assert_eq!(i.target_max_recv_data_segment_length, t.target_max_recv);
    assert_eq!(i.max_burst_length, t.max_burst_length);
    assert_eq!(i.first_burst_length, t.first_burst_length);
    assert_eq!(i.max_outstanding_r2t, t.max_outstanding_r2t);
    assert_eq!(i.time2wait, t.time2wait);
    assert_eq!(i.time2retain, t.time2retain);
}

fn actions(aborts: bool) -> impl Strategy<Value = Vec<crate::driver::Action>> {
    proptest::collection::vec(action(aborts), 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_data_is_right(
        from in settings::initiator(),
        to in settings::target(),
        actions in actions(false),
        seed: u64,
    ) {
        run(from, to, actions, seed, 0);
    }

    #[test]
    fn aborted_commands_end_once(
        from in settings::initiator(),
        to in settings::target(),
        actions in actions(true),
        seed: u64,
    ) {
        run(from, to, actions, seed, 0);
    }

    #[test]
    fn memory_may_run_out(
        from in settings::initiator(),
        to in settings::target(),
        actions in actions(true),
        seed: u64,
        failing in 1u64..=100,
    ) {
        run(from, to, actions, seed, failing);
    }
}
