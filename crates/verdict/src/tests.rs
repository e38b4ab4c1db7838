use std::time::Duration;

use lunet_api::{
    AtLimit, BoundBy, LimitKind, LimitWaits, Operations, Part, PartKind, ShardLoad,
    ShardOperations, Stage, StageTime, Stats, Verdict, VolumeStats, VolumeTime,
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
    binds(volume("v", 3000, 9010, 1.0, &limited), &BoundBy::Queue, "by a limit that was set:");
    for (waits, words) in [
        (LimitWaits { volume: 9, share: 8, ..LimitWaits::default() }, "the volume's limit"),
        (LimitWaits { volume: 8, initiator: 9, ..LimitWaits::default() }, "for an initiator"),
        (LimitWaits { session: 1, ..LimitWaits::default() }, "for sessions"),
        (LimitWaits { share: 1, ..LimitWaits::default() }, "share of its storage"),
    ] {
        let mut one = volume("v", 3000, 9010, 1.0, &limited);
        one.time.limit_waits_of = waits;
        let told = binds(one, &BoundBy::Queue, words);
        assert!(!told.server.at_limit.expect("a limit").name.is_empty());
    }
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
fn commands_that_are_refused_for_want_of_memory_count() {
    let holds = [(Stage::Data, 30_000_000)];
    let mut of = server(vec![volume("v", 2, 30_000_000, 1.0, &holds)], 0.2, 0.0, 10_000);
    of.protocol.task_set_full = 2;
    assert_eq!(judged(&of).server.bound_by, BoundBy::NetworkIn, "as many were done");
    of.protocol.task_set_full = 500;
    of.loads[0].buffer_used_bytes = of.loads[0].buffer_bytes * 4 / 10;
    assert_eq!(judged(&of).server.bound_by, BoundBy::NetworkIn, "there is memory");
    of.loads[0].buffer_used_bytes = of.loads[0].buffer_bytes * 9 / 10;
    let told = judged(&of).server;
    assert_eq!(told.bound_by, BoundBy::BufferMemory);
    assert!(told.sentence.contains("90 % of it are in use, and 500 commands"), "{}", told.sentence);
    assert!(told.evidence.iter().any(|line| line.starts_with("500 commands")), "{told:#?}");
    // Nothing else was done, and it is no idle server.
    of.volumes = vec![volume("v", 0, 0, 0.0, &[])];
    assert_eq!(judged(&of).server.bound_by, BoundBy::BufferMemory);
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
    let told = judged(&server(vec![quick.clone()], 0.5, 0.0, 10_000));
    assert_eq!(told.server.bound_by, BoundBy::Storage);
    // One that uses its processor to look for work has none.
    let mut polls = server(vec![quick], 0.99, 0.0, 10_000);
    polls.loads[0].polled_us = 490_000;
    assert_eq!(judged(&polls).server.bound_by, BoundBy::Storage);
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

/// A drive that has read so many bytes, of a gigabyte a second that it could.
fn drive(name: &str, volumes: &[&str], read_bytes: u64) -> Part {
    Part {
        kind: PartKind::Drive,
        name: name.to_owned(),
        volumes: volumes.iter().map(ToString::to_string).collect(),
        reads_at_most: Some(1_000_000_000),
        writes_at_most: Some(500_000_000),
        why: "data sheet".to_owned(),
        read_bytes,
        ..Part::default()
    }
}

fn link(sent: u64, received: u64) -> Part {
    Part {
        kind: PartKind::Link,
        name: "eth0".to_owned(),
        reads_at_most: Some(125_000_000),
        writes_at_most: Some(125_000_000),
        why: "1 Gbit/s".to_owned(),
        read_bytes: sent,
        written_bytes: received,
        ..Part::default()
    }
}

/// The verdict of a second in which these parts carried this.
fn with_parts(volumes: Vec<VolumeStats>, parts: Vec<Part>) -> Verdict {
    let mut after = server(volumes, 0.2, 0.0, 10_000);
    let idle = after.volumes.iter().map(|one| volume(&one.name, 0, 0, 0.0, &[])).collect();
    let mut before = server(idle, 0.0, 0.0, 0);
    let nothing =
        |part: &Part| Part { read_bytes: 0, written_bytes: 0, busy_us: 0, ..part.clone() };
    before.parts = parts.iter().map(nothing).collect();
    after.parts = parts;
    verdict(&before, &after, SECOND).expect("it goes on")
}

fn limit(of: &Verdict) -> (LimitKind, String) {
    let AtLimit { kind, name, .. } = of.server.at_limit.clone().unwrap_or_default();
    (kind, name)
}

fn slow(name: &str, ops: u64) -> VolumeStats {
    volume(name, ops, 4000, 1.0, &[(Stage::Storage, 4000)])
}

#[test]
fn the_drive_at_its_limit_is_named() {
    let told = with_parts(vec![slow("v", 8000)], vec![drive("sda", &["v"], 930_000_000)]);
    assert_eq!(told.server.bound_by, BoundBy::Storage);
    assert_eq!(limit(&told), (LimitKind::Drive, "sda".to_owned()));
    assert!(told.server.sentence.ends_with("and sda is at its limit, 93 %."), "{told:#?}");
    let has = |evidence: &[String]| {
        evidence.iter().any(|line| line.contains("93 % of what it can (data sheet)"))
    };
    assert!(has(&told.server.evidence) && has(&told.volumes[0].binding.evidence), "{told:#?}");
    // What it writes takes its time, too.
    let mut half = drive("sda", &["v"], 400_000_000);
    half.written_bytes = 240_000_000;
    assert_eq!(limit(&with_parts(vec![slow("v", 8000)], vec![half.clone()])).0, LimitKind::Drive);
    half.written_bytes = 100_000_000;
    let told = with_parts(vec![slow("v", 8000)], vec![half.clone()]);
    assert_eq!((told.server.bound_by, told.server.at_limit), (BoundBy::Storage, None));
    // One that turns is busy with little, and the other volume's drive is no matter.
    (half.rotational, half.busy_us) = (true, 990_000);
    let other = drive("sdb", &["w"], 990_000_000);
    let told = with_parts(vec![slow("v", 8000), slow("w", 10)], vec![other, half]);
    let of = |at: usize| told.volumes[at].binding.at_limit.clone().unwrap_or_default().name;
    assert_eq!([of(0), of(1)], ["sda", "sdb"]);
}

#[test]
fn a_pool_is_as_fast_as_its_slowest_drive() {
    let pool = Part {
        kind: PartKind::Pool,
        name: "tank".to_owned(),
        volumes: vec!["v".to_owned()],
        ..Part::default()
    };
    let mut parts: Vec<Part> =
        (0..6).map(|at| drive(&format!("nvme{at}n1"), &[], 500_000_000)).collect();
    parts[4].read_bytes = 880_000_000;
    parts.iter_mut().for_each(|one| one.pool = Some("tank".to_owned()));
    parts.push(pool);
    let told = with_parts(vec![slow("v", 8000)], parts);
    assert_eq!(limit(&told), (LimitKind::Pool, "tank".to_owned()));
    let lines = &told.volumes[0].binding.evidence;
    assert!(lines.iter().any(|line| line.starts_with("nvme4n1 of tank:")), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("3 more drives")), "{lines:?}");
}

#[test]
fn a_full_link_is_no_slow_initiator() {
    // The kernel has taken the answers, so that nothing is at work for most of the time.
    let mut reads = volume("v", 28_000, 5, 0.1, &[(Stage::Storage, 5)]);
    reads.read.bytes = 115_000_000;
    let told = with_parts(vec![reads.clone()], vec![link(122_000_000, 2_000_000)]);
    assert_eq!(told.server.bound_by, BoundBy::NetworkOut);
    assert_eq!(limit(&told), (LimitKind::Link, "eth0".to_owned()));
    assert_eq!(told.server.sentence, "Bound by the link eth0: it sends 98 % of what it can.");
    assert_eq!(told.volumes[0].binding.bound_by, BoundBy::NetworkOut);
    let mut writes = volume("v", 0, 5, 0.1, &[(Stage::Storage, 5)]);
    writes.write = Operations { ops: 28_000, bytes: 115_000_000, ..Operations::default() };
    let told = with_parts(vec![writes], vec![link(2_000_000, 122_000_000)]);
    assert_eq!(told.server.bound_by, BoundBy::NetworkIn);
    // It is somebody else who fills it, or nobody.
    reads.read.bytes = 1_000_000;
    for sent in [122_000_000, 60_000_000] {
        let told = with_parts(vec![reads.clone()], vec![link(sent, 0)]);
        assert_eq!(told.server.bound_by, BoundBy::Initiator, "{sent}");
        assert_eq!(limit(&told).0, LimitKind::QueueDepth);
    }
    // Slow storage stays slow storage.
    let told = with_parts(vec![slow("v", 8000)], vec![link(122_000_000, 0)]);
    assert_eq!(told.server.bound_by, BoundBy::Storage);
}

#[test]
fn one_operation_at_a_time_leaves_storage_room() {
    let one = volume("v", 240, 4000, 0.96, &[(Stage::Storage, 4000)]);
    let told = with_parts(vec![one], vec![drive("sda", &["v"], 1_000_000)]);
    assert_eq!(
        (told.server.bound_by.clone(), limit(&told).0),
        (BoundBy::Storage, LimitKind::QueueDepth)
    );
    assert!(told.server.sentence.contains("had 1.0 at work on average"), "{told:#?}");
    // Many, or one that takes very long, wait for the storage itself.
    let stuck = volume("v", 9, 110_000, 1.0, &[(Stage::Storage, 110_000)]);
    for of in [slow("v", 8000), stuck] {
        assert_eq!(with_parts(vec![of], vec![]).server.at_limit, None);
    }
}

#[test]
fn operations_that_fail_are_told_of() {
    let mut fails = volume("v", 240, 40, 0.9, &[(Stage::Storage, 40)]);
    for (errors, words) in [(0, "more at a time"), (3, "Some operations"), (200, "Most operations")]
    {
        fails.errors = errors;
        let told = with_parts(vec![fails.clone()], vec![]);
        for binding in [&told.server, &told.volumes[0].binding] {
            assert!(binding.sentence.contains(words), "{binding:#?}");
            assert_eq!(binding.sentence.contains("more at a time"), errors == 0);
            let counted = binding
                .evidence
                .iter()
                .any(|line| line.starts_with(&format!("{errors} operations ended")));
            assert_eq!(counted, errors > 0);
        }
    }
}

#[test]
fn a_part_that_came_meanwhile_is_no_evidence() {
    let mut after = server(vec![slow("v", 8000)], 0.2, 0.0, 10_000);
    let mut before = server(vec![volume("v", 0, 0, 0.0, &[])], 0.0, 0.0, 0);
    after.parts = vec![drive("sda", &["v"], 930_000_000)];
    assert_eq!(verdict(&before, &after, SECOND).expect("it goes on").server.at_limit, None);
    // Nor is one that was taken out and put in again.
    before.parts = vec![drive("sda", &["v"], 2_000_000_000)];
    assert_eq!(verdict(&before, &after, SECOND).expect("it goes on").server.at_limit, None);
}
