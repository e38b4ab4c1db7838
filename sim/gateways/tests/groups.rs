//! Worlds of failover groups.

use lunet_sim_gateways::plan::Plan;
use lunet_sim_gateways::world::run;

#[test]
fn a_seed_is_a_world() {
    for seed in 1..30 {
        let (one, two) = (run(seed, None, true, true), run(seed, None, true, true));
        assert_eq!(one.story, two.story, "seed {seed}");
        assert!(one.operations > 0);
    }
}

#[test]
fn groups_lose_nothing_and_come_back() {
    let (mut epochs, mut fenced) = (0, 0);
    for seed in 1..=1500 {
        let report = run(seed, None, false, true);
        assert_eq!(report.wrong, None, "seed {seed}");
        epochs += report.epochs;
        fenced += report.fenced;
    }
    assert!(epochs > 3000 && fenced > 500, "{epochs} changes of the owner, {fenced} fenced");
}

#[test]
fn a_group_without_faults_moves_within_two_seconds() {
    let plan =
        Plan { gateways: 3, hosts: 2, operations: 60, seconds: 6, moves: 8, ..Plan::default() };
    let mut longest = 0;
    for seed in 1..=100 {
        let report = run(seed, Some(plan.clone()), false, true);
        assert_eq!(report.wrong, None, "seed {seed}");
        assert_eq!(report.fenced, 0, "seed {seed}: a planned move fences nobody");
        longest = longest.max(report.longest_move);
    }
    assert!(longest > 0, "nothing has moved");
}
