//! Damage on the way: with digests it is never taken for data.

use lunet_block::Random;
use proptest::prelude::*;

use crate::load::Load;
use crate::world::{Settings, World};

/// Runs a load in which a bit is flipped, in one of the directions.
fn flip(seed: u64, to_host: bool) {
    let mut random = Random::new(seed);
    let settings = Settings {
        header_digest: true,
        data_digest: true,
        // What fills up to aligned data has no digest.
        alignment: 0,
        ..Settings::random(&mut random)
    };
    let mut world = World::connected(settings, random.bits());
    let mut load = Load::new(&world);
    let bit = random.below(400_000);
    match to_host {
        true => world.to_host.flip = Some(bit),
        false => world.to_controller.flip = Some(bit),
    }
    let mut failed = None;
    for _ in 0..80 {
        load.submit(&mut world);
        world.step();
        failed = failed.or(load.check(&mut world));
    }
    world.settle();
    failed = failed.or(load.check(&mut world));
    let waits = world.controller.poll_timeout().is_some();
    let flipped = world.to_host.flipped || world.to_controller.flipped;
    let over = failed.is_some() || world.closed.is_some();
    // A damaged length may be waited for until the end of the patience.
    assert!(flipped || !over, "without damage: {failed:?}, {:?}", world.closed);
    let all = world.host.outstanding() == 0;
    assert!(all || over || waits || to_host, "commands are lost");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn damage_to_the_controller_is_seen(seed: u64) {
        flip(seed, false);
    }

    #[test]
    fn damage_to_the_host_is_seen(seed: u64) {
        flip(seed, true);
    }
}
