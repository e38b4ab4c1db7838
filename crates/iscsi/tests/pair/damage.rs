//! A flipped bit on the way: with digests on it is always noticed.

use std::time::Duration;

use lunet_iscsi::initiator::{self, DigestOffer};
use lunet_iscsi::target;
use proptest::prelude::*;

use crate::driver::{Allowed, Driver, action};
use crate::settings;
use crate::wire::Flip;
use crate::world::World;

fn with_digests(options: initiator::Options) -> initiator::Options {
    initiator::Options {
        header_digest: DigestOffer::Crc32c,
        data_digest: DigestOffer::Crc32c,
        // A damaged length may make an end wait for bytes that only the next PDU brings.
        ping_interval: Some(Duration::from_secs(5)),
        ..options
    }
}

fn allow_digests(options: target::Options) -> target::Options {
    target::Options {
        header_digest: target::DigestPolicy::Allow,
        data_digest: target::DigestPolicy::Allow,
        ping_interval: Duration::from_secs(5),
        ..options
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_flipped_bit_is_always_noticed(
        from in settings::initiator().prop_map(with_digests),
        to in settings::target().prop_map(allow_digests),
        actions in proptest::collection::vec(action(false), 1..12),
        seed: u64,
        byte in prop_oneof![0u64..500, 0u64..20_000],
        bit in 0u8..8,
        towards_target: bool,
    ) {
        let mut world = World::connected(from, to, seed);
        let flip = Some(Flip { byte, bit });
        let wire = match towards_target {
            true => &mut world.to_target,
            false => &mut world.to_initiator,
        };
        (wire.flip, wire.armed) = (flip, true);
        let mut driver = Driver::new(&world, actions, Allowed { no_memory: false, damage: true });
        driver.run(&mut world);
        let counters = world.target.counters();
        let wrong_digests = counters.header_digest_errors + counters.data_digest_errors;
        let ended = world.initiator.is_over() || world.target.is_closed();
        prop_assert!(wrong_digests == 0 || world.to_target.flipped);
        let flipped = world.to_target.flipped || world.to_initiator.flipped;
        prop_assert_eq!(wrong_digests > 0 || ended, flipped);
    }
}
