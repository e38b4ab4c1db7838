use std::time::Duration;

use lunet_api::{
    BoundBy, Operations, ShardLoad, ShardOperations, Stage, StageTime, Stats, Verdict, VolumeStats,
    VolumeTime,
};

use super::verdict;

const SECOND: Duration = Duration::from_secs(1);

/// A volume that has done this in a second: reads, how long each took in microseconds, the part of the time that there was
/// one, and what each waited for, in microseconds.
fn volume(name: &str, ops: u64, each_us: u64, busy: f64, waited: &[(Stage, u64)]) -> VolumeStats {
    let timed = ops.div_ceil(64);
    let stage = |stage: &Stage| {
        let us = waited.iter().find(|one| one.0 == *stage).map_or(0, |one| one.1);
        StageTime { stage: stage.clone(), ns: us * 1000 * timed }
    };
    VolumeStats {
        name: name.to_owned(),
        read: Operations { ops, bytes: ops * 4096, ..Operations::default() },
        time: VolumeTime {
            operations_us: ops * each_us,
            busy_us: (busy * 1e6) as u64,
            timed,
            stages: Stage::KNOWN.iter().take(7).map(stage).collect(),
            shards: vec![ShardOperations { shard: 0, operations: ops }],
            ..VolumeTime::default()
        },
        ..VolumeStats::default()
    }
}

/// A server with these volumes, whose shard used so much of a processor, in so many loop iterations.
fn server(volumes: Vec<VolumeStats>, used: f64, ready: f64, waits: u64) -> Stats {
    let load = ShardLoad {
        cpu_us: (used * 1e6) as u64,
        ready_us: (ready * 1e6) as u64,
        waits,
        buffer_bytes: 64 << 20,
        ..ShardLoad::default()
    };
    Stats { uptime_seconds: 1, loads: vec![load], volumes, ..Stats::default() }
}

fn judged(after: &Stats) -> Verdict {
    let idle: Vec<VolumeStats> =
        after.volumes.iter().map(|one| volume(&one.name, 0, 0, 0.0, &[])).collect();
    verdict(&server(idle, 0.0, 0.0, 0), after, SECOND).expect("it was not started anew")
}

#[track_caller]
fn binds(of: VolumeStats, bound: &BoundBy, words: &str) -> Verdict {
    let told = judged(&server(vec![of], 0.2, 0.0, 10_000));
    let volume = &told.volumes[0].binding;
    assert_eq!(volume.bound_by, *bound, "{told:#?}");
    assert!(volume.sentence.contains(words), "{}", volume.sentence);
    assert_eq!(told.server.bound_by, *bound, "of one volume: {told:#?}");
    let sum: f64 = volume.stages.iter().map(|one| one.share).sum();
    assert!((sum - 1.0).abs() < 1e-9 || *bound == BoundBy::Idle, "{:?}", volume.stages);
    told
}

#[test]
fn the_largest_part_of_the_time_binds() {
    binds(volume("v", 0, 0, 0.0, &[]), &BoundBy::Idle, "no operation");
    let slow = [(Stage::Storage, 4000), (Stage::Queue, 10)];
    let told = binds(volume("v", 8000, 4010, 1.0, &slow), &BoundBy::Storage, "100 % of the time");
    assert!(told.server.evidence[0].contains("32.1 at work"), "{:?}", told.server.evidence);
    let limited = [(Stage::Storage, 10), (Stage::Limit, 9000)];
    binds(volume("v", 3000, 9010, 1.0, &limited), &BoundBy::Queue, "a limit that was set");
    let locked = [(Stage::Storage, 10), (Stage::Queue, 9000)];
    binds(volume("v", 3000, 9010, 1.0, &locked), &BoundBy::Queue, "ranges that others had");
    let asked = [(Stage::Storage, 30), (Stage::Data, 900)];
    binds(volume("v", 1000, 930, 0.93, &asked), &BoundBy::NetworkIn, "data from the initiator");
}

#[test]
fn buffer_memory_binds_if_it_is_short() {
    let starved = [(Stage::Data, 300), (Stage::BufferMemory, 900)];
    let volumes = vec![volume("v", 3000, 1200, 1.0, &starved)];
    let mut of = server(volumes, 0.2, 0.0, 10_000);
    // What a connection may hold is all of what it waits for.
    assert_eq!(judged(&of).volumes[0].binding.bound_by, BoundBy::NetworkIn);
    of.loads[0].buffer_used_bytes = of.loads[0].buffer_bytes * 9 / 10;
    let told = judged(&of);
    assert_eq!(told.volumes[0].binding.bound_by, BoundBy::BufferMemory);
    assert!(told.server.sentence.contains("75 % of the time"), "{}", told.server.sentence);
}

#[test]
fn who_asks_for_little_is_not_bound_by_the_server() {
    let quick = [(Stage::Storage, 30)];
    let told = binds(volume("v", 50, 30, 0.0015, &quick), &BoundBy::Initiator, "100 % of the time");
    assert!(told.server.sentence.starts_with("Not bound by this server"));
    // One at a time, at slow storage, waits for that.
    binds(volume("v", 50, 19_000, 0.95, &[(Stage::Storage, 19_000)]), &BoundBy::Storage, "95 %");
}

#[test]
fn what_comes_before_and_after_an_operation_is_no_idleness() {
    let arrives = [(Stage::NetworkIn, 950), (Stage::Storage, 20)];
    binds(volume("v", 1000, 20, 0.02, &arrives), &BoundBy::NetworkIn, "the way in");
    let mut leaves = volume("v", 1000, 20, 0.02, &[(Stage::Storage, 20)]);
    (leaves.time.sent, leaves.time.sent_ns) = (10, 10 * 30_000_000);
    binds(leaves, &BoundBy::NetworkOut, "the way out");
    // A loop iteration takes 20 us: that an answer is out is known in the next one.
    let mut quick = volume("v", 100_000, 5, 0.2, &[(Stage::Storage, 5)]);
    (quick.time.sent, quick.time.sent_ns) = (1000, 1000 * 40_000);
    binds(quick, &BoundBy::Initiator, "80 % of the time");
    // They had ended before, and their answers are on their way still.
    let mut queued = volume("v", 0, 0, 0.0, &[]);
    queued.time.sent_ns = 1_000_000_000;
    binds(queued, &BoundBy::NetworkOut, "100 %");
}

#[test]
fn a_shard_without_idle_time_binds_what_does_not_wait_for_slow_storage() {
    let quick = volume("quick", 200_000, 100, 1.0, &[(Stage::Storage, 95)]);
    let slow = volume("slow", 100, 100_000, 1.0, &[(Stage::Storage, 100_000)]);
    for (used, ready) in [(0.97, 0.0), (0.5, 0.45)] {
        let told = judged(&server(vec![quick.clone(), slow.clone()], used, ready, 10_000));
        let words: Vec<&BoundBy> = told.volumes.iter().map(|one| &one.binding.bound_by).collect();
        assert_eq!(words, [&BoundBy::ShardCpu, &BoundBy::Storage], "{told:#?}");
        assert_eq!(told.server.bound_by, BoundBy::ShardCpu);
        assert!(told.server.sentence.contains("shard 0"), "{}", told.server.sentence);
    }
    let told = judged(&server(vec![quick], 0.5, 0.0, 10_000));
    assert_eq!(told.server.bound_by, BoundBy::Storage);
}

#[test]
fn a_shard_that_answers_late_is_judged_by_its_own_clock() {
    let quick = volume("v", 200_000, 100, 1.0, &[(Stage::Storage, 95)]);
    let mut late = server(vec![quick], 0.97, 0.0, 10_000);
    // It was asked for 1.2 seconds, and has counted for one.
    late.loads[0].time_us = 1_000_000;
    let before = server(vec![volume("v", 0, 0, 0.0, &[])], 0.0, 0.0, 0);
    let told = verdict(&before, &late, SECOND * 6 / 5).expect("it goes on");
    assert_eq!(told.server.bound_by, BoundBy::ShardCpu, "{told:#?}");
}

#[test]
fn volumes_count_by_the_time_of_their_operations() {
    let busy = volume("busy", 100_000, 300, 1.0, &[(Stage::Storage, 300)]);
    // All of these were timed, and together they have waited for less.
    let mut few = volume("few", 64, 1000, 0.1, &[(Stage::Limit, 1000)]);
    few.time.timed = 64;
    few.time.stages.iter_mut().for_each(|one| one.ns *= 64);
    let told = judged(&server(vec![few, busy], 0.3, 0.0, 10_000));
    assert_eq!(told.server.bound_by, BoundBy::Storage, "{told:#?}");
}

#[test]
fn an_operation_that_does_not_end_is_seen() {
    let mut hangs = volume("v", 0, 0, 1.0, &[]);
    hangs.commands_in_flight = 1;
    let storage = hangs.time.stages.iter_mut().find(|one| one.stage == Stage::Storage);
    storage.expect("it is there").ns = 1_000_000_000;
    let told = binds(hangs, &BoundBy::Storage, "100 %");
    assert!(told.server.evidence[0].contains("1 at the end"), "{:?}", told.server.evidence);
}

#[test]
fn an_older_server_does_not_tell() {
    let mut old = volume("v", 1000, 100, 0.5, &[]);
    old.time = VolumeTime::default();
    let told = judged(&server(vec![old], 0.1, 0.0, 100));
    assert_eq!(told.server.bound_by, BoundBy::default());
    assert!(told.volumes[0].binding.sentence.contains("older version"));
}

#[test]
fn a_server_that_was_started_anew_is_not_judged_and_a_new_volume_counts_from_zero() {
    let some = server(vec![volume("v", 100, 10, 0.1, &[(Stage::Storage, 10)])], 0.5, 0.0, 10);
    let mut fresh = some.clone();
    fresh.loads[0].cpu_us = 1;
    assert_eq!(verdict(&some, &fresh, SECOND), None);
    assert_eq!(verdict(&some, &some, Duration::ZERO), None);
    let mut anew = some.clone();
    anew.volumes[0] = volume("v", 50, 9000, 0.9, &[(Stage::Storage, 9000)]);
    let told = verdict(&some, &anew, SECOND).expect("it goes on");
    assert_eq!(told.volumes[0].binding.bound_by, BoundBy::Storage, "{told:#?}");
}
