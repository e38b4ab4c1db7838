use super::*;
use crate::model::{Ceiling, CeilingKind, Pattern, Sync, Unit, Workload};

fn load(block_bytes: u64, depth: u32) -> Workload {
    Workload {
        name: "w".into(),
        block_bytes,
        read_percent: 100,
        pattern: Pattern::Random,
        depth,
        jobs: 1,
        sync: Sync::Cached,
        seconds: 1.0,
        ramp_seconds: 0.0,
        size_bytes: None,
        rate_mib_per_s: None,
    }
}

fn ceiling(kind: CeilingKind, value: f64, unit: Unit) -> Ceiling {
    Ceiling {
        kind,
        name: "a layer".into(),
        value,
        unit,
        how: "measured".into(),
        target: None,
        workload: None,
        outstanding: None,
        latency_us: None,
        generator_busy: None,
    }
}

/// A target that does `iops` with nothing near its ceiling.
fn idle(workload: &Workload, iops: f64) -> Evidence<'_> {
    let cpu = CpuUse { processors: 0.4, busiest_thread: 0.4, quota_throttled: 0.0, waited: None };
    Evidence {
        target: "t",
        workload,
        read_mib_per_s: iops * workload.block_bytes as f64 / f64::from(1 << 20),
        write_mib_per_s: 0.0,
        iops,
        latency_us: Some(workload.outstanding() as f64 / iops * 1e6),
        server_latency_us: None,
        client: Some(cpu),
        server: Some(cpu),
        machine_busy: Some(0.5),
        cpus: 8,
        others: (0.0, None),
        throttled: None,
        data_digest: false,
        ceilings: Vec::new(),
        extras: Extras::default(),
    }
}

fn busy(share: f64) -> Option<CpuUse> {
    Some(CpuUse { processors: share, busiest_thread: share, quota_throttled: 0.0, waited: None })
}

#[track_caller]
fn binds(evidence: &Evidence<'_>, bound: Bound, words: &str) {
    let told = verdict(evidence);
    assert_eq!(told.bound, Some(bound), "{told:#?}");
    assert!(told.sentence.contains(words), "{}", told.sentence);
    assert!(told.advice.ends_with('.'), "{}", told.advice);
}

#[test]
fn a_slow_drive_is_named() {
    let load = load(128 << 10, 32);
    let drive =
        Ceiling { outstanding: Some(128), ..ceiling(CeilingKind::Drive, 520.0, Unit::MibPerS) };
    let network = ceiling(CeilingKind::Network, 2000.0, Unit::MibPerS);
    let mut of = idle(&load, 4000.0);
    of.ceilings = vec![&network, &drive];
    binds(
        &of,
        Bound::Drive,
        "Bound by the drive at 96 % of its ceiling; next: the machine's processors at 50 %.",
    );
    let told = verdict(&of);
    assert_eq!(told.layers[0].bound, Bound::Drive);
    assert!(told.layers[0].how.contains("500 of 520 MiB/s"), "{}", told.layers[0].how);
}

/// As measured: a drive of 500 operations per second, beside programs that kept all processors busy.
#[test]
fn a_slow_drive_is_named_on_a_busy_machine() {
    let load = load(4096, 32);
    let drive =
        Ceiling { outstanding: Some(128), ..ceiling(CeilingKind::Drive, 533.0, Unit::Iops) };
    let mut of = idle(&load, 533.0);
    of.ceilings = vec![&drive];
    of.machine_busy = Some(1.0);
    of.client = Some(CpuUse { busiest_thread: 0.01, waited: Some(0.002), ..CpuUse::default() });
    of.server = None;
    binds(
        &of,
        Bound::Drive,
        "Bound by the drive at 100 % of its ceiling; next: the client's processor at 1 %.",
    );
}

#[test]
fn a_drive_that_answers_late_is_named_at_any_depth() {
    for depth in [1, 32] {
        let load = load(4096, depth);
        let mut of = idle(&load, f64::from(depth) / 5.2e-3);
        of.server_latency_us = Some(5000.0);
        binds(&of, Bound::DriveLatency, "96 % of the 5200 us of an operation are the drive's");
    }
}

#[test]
fn a_slow_network_is_named() {
    let load = load(128 << 10, 32);
    let network =
        Ceiling { latency_us: Some(90.0), ..ceiling(CeilingKind::Network, 112.0, Unit::MibPerS) };
    let null = ceiling(CeilingKind::Protocol, 111.0, Unit::MibPerS);
    let mut of = idle(&load, 876.0);
    of.ceilings = vec![&null, &network];
    // The null volume is as slow, because it is behind the same network.
    binds(&of, Bound::Network, "Bound by the network at 98 %");
}

#[test]
fn both_directions_of_a_network_count_alone() {
    let load = load(128 << 10, 32);
    let network = ceiling(CeilingKind::Network, 1000.0, Unit::MibPerS);
    let mut of = idle(&load, 8000.0);
    (of.read_mib_per_s, of.write_mib_per_s) = (500.0, 500.0);
    of.ceilings = vec![&network];
    assert_eq!(verdict(&of).bound, None, "each direction is half full");
}

#[test]
fn a_slow_processor_is_named_on_either_side() {
    let load = load(4096, 32);
    let mut of = idle(&load, 90_000.0);
    of.server = busy(0.99);
    binds(&of, Bound::ServerCpu, "the server's processor at 99 % of its ceiling");
    of.client = busy(1.0);
    of.server = busy(0.6);
    binds(&of, Bound::ClientCpu, "the client's processor at 100 %");
    of.throttled = Some(("cpu0 core".into(), 4));
    binds(&of, Bound::Throttling, "cpu0 core did so 4 times");
    of.throttled = None;
    of.client = busy(0.6);
    of.machine_busy = Some(0.99);
    of.others = (3.0, Some("cc1".into()));
    binds(
        &of,
        Bound::MachineCpu,
        "Bound by the machine's processors: 99 % of 8 are busy, 3.0 of them with other programs",
    );
    assert!(verdict(&of).layers[0].how.contains("most of it cc1"));
    // What the others do in the time that nobody else wants holds nobody back.
    of.client = Some(CpuUse { waited: Some(0.02), ..of.client.expect("it was seen") });
    of.server = Some(CpuUse { waited: Some(0.4), ..of.server.expect("it was seen") });
    binds(&of, Bound::MachineCpu, "other programs");
    of.server = Some(CpuUse { waited: Some(0.03), ..of.server.expect("it was seen") });
    assert_eq!(verdict(&of).bound, None);
}

/// A generator that is as busy when the ceiling is measured measures itself.
#[test]
fn a_ceiling_that_a_busy_generator_found_is_none() {
    let load = load(4096, 32);
    let drive = Ceiling {
        outstanding: Some(128),
        generator_busy: Some(0.88),
        ..ceiling(CeilingKind::Drive, 400_000.0, Unit::Iops)
    };
    let mut of = idle(&load, 400_000.0);
    (of.client, of.server) = (busy(0.97), None);
    of.ceilings = vec![&drive];
    binds(&of, Bound::ClientCpu, "the client's processor at 97 %");
    let idle = Ceiling { generator_busy: Some(0.5), ..drive.clone() };
    of.ceilings = vec![&idle];
    binds(&of, Bound::Drive, "the drive at 100 %");
}

/// All processors are busy with other programs, and client and server wait for one a fifth of the time.
#[test]
fn on_a_busy_machine_a_layer_that_costs_more_is_named() {
    let hurried = CpuUse { busiest_thread: 0.1, waited: Some(0.2), ..CpuUse::default() };
    let on_busy = |of: &mut Evidence<'_>| {
        (of.client, of.server, of.machine_busy) = (Some(hurried), Some(hurried), Some(1.0));
    };
    let small = load(4096, 32);
    let mut of = idle(&small, 32.0 / 4.3e-3);
    on_busy(&mut of);
    binds(&of, Bound::MachineCpu, "the machine's processors");
    of.server_latency_us = Some(4050.0);
    binds(&of, Bound::DriveLatency, "94 % of the 4300 us");
    // What waits for processors itself takes longer, but not most of the time.
    of.server_latency_us = Some(1500.0);
    binds(&of, Bound::MachineCpu, "the machine's processors");

    let large = load(128 << 10, 32);
    let network = ceiling(CeilingKind::Network, 46.0, Unit::MibPerS);
    let mut of = idle(&large, 364.0);
    on_busy(&mut of);
    of.ceilings = vec![&network];
    binds(&of, Bound::Network, "the network at 99 %");
    let longest = CpuUse { waited: Some(1.0), ..hurried };
    of.server = Some(longest);
    binds(&of, Bound::MachineCpu, "the machine's processors");
}

#[test]
fn a_quota_is_named() {
    let load = load(4096, 32);
    let mut of = idle(&load, 20_000.0);
    of.server =
        Some(CpuUse { processors: 0.25, busiest_thread: 0.25, quota_throttled: 0.9, waited: None });
    binds(&of, Bound::Quota, "used up in 90 % of its periods");
}

#[test]
fn a_small_queue_depth_is_named() {
    let load = load(4096, 1);
    let drive = Ceiling {
        outstanding: Some(128),
        latency_us: Some(30.0),
        ..ceiling(CeilingKind::Drive, 200_000.0, Unit::Iops)
    };
    let network =
        Ceiling { latency_us: Some(35.0), ..ceiling(CeilingKind::Network, 3000.0, Unit::MibPerS) };
    let null =
        Ceiling { outstanding: Some(1), ..ceiling(CeilingKind::Protocol, 15_000.0, Unit::Iops) };
    let mut of = idle(&load, 14_000.0);
    of.ceilings = vec![&drive, &network, &null];
    binds(&of, Bound::QueueDepth, "1 in flight and 71 us each make 14000 IOPS");
    // At depth 16 as well, if the drive does much more with more.
    let deep = super::tests::load(4096, 16);
    let mut of = idle(&deep, 90_000.0);
    of.ceilings = vec![&drive];
    binds(&of, Bound::QueueDepth, "16 in flight");
}

#[test]
fn a_far_network_is_named() {
    let load = load(4096, 8);
    let network = Ceiling {
        latency_us: Some(10_000.0),
        ..ceiling(CeilingKind::Network, 900.0, Unit::MibPerS)
    };
    let mut of = idle(&load, 780.0);
    of.ceilings = vec![&network];
    binds(&of, Bound::NetworkLatency, "98 % of the 10256 us");
    // More sessions that seem faster were lucky, unless the session lets few of the operations out.
    of.extras.more_sessions = Some((4, 3.8));
    binds(&of, Bound::NetworkLatency, "98 % of the 10256 us");
    (of.latency_us, of.iops) = (Some(10_256.0), 200.0);
    binds(&of, Bound::SingleSession, "4 sessions move 4 instead of 3 MiB/s");
    let one = super::tests::load(4096, 1);
    let mut of = idle(&one, 98.0);
    of.ceilings = vec![&network];
    binds(&of, Bound::NetworkLatency, "the network round trip");
}

#[test]
fn digests_are_named_where_they_cost() {
    let load = load(128 << 10, 32);
    let crc = ceiling(CeilingKind::Cpu, 4000.0, Unit::MibPerS);
    let mut of = idle(&load, 16_000.0);
    of.server = busy(0.98);
    of.data_digest = true;
    of.ceilings = vec![&crc];
    binds(&of, Bound::Digest, "it takes 50 % of a processor");
    of.extras.without_digest_mib_per_s = Some(3900.0);
    binds(&of, Bound::Digest, "without it 3900 instead of 2000 MiB/s");
    // What is exceeded without it is no ceiling.
    let memory = ceiling(CeilingKind::Memory, 4100.0, Unit::MibPerS);
    of.ceilings.push(&memory);
    binds(&of, Bound::Digest, "without it 3900");
    of.ceilings.pop();
    // Where it would be no faster without, the processor has other work.
    of.extras.without_digest_mib_per_s = Some(2050.0);
    binds(&of, Bound::ServerCpu, "the server's processor");
    of.data_digest = false;
    of.extras.without_digest_mib_per_s = None;
    binds(&of, Bound::ServerCpu, "the server's processor");
}

#[test]
fn the_protocol_is_named_when_a_null_volume_is_no_faster() {
    let load = load(4096, 32);
    let null =
        Ceiling { outstanding: Some(32), ..ceiling(CeilingKind::Protocol, 100_000.0, Unit::Iops) };
    let drive =
        Ceiling { outstanding: Some(32), ..ceiling(CeilingKind::Drive, 900_000.0, Unit::Iops) };
    let mut of = idle(&load, 97_000.0);
    of.ceilings = vec![&null, &drive];
    binds(&of, Bound::Protocol, "the protocol at 97 % of its ceiling");
}

#[test]
fn a_limit_comes_before_what_it_leads_to() {
    let load = load(128 << 10, 32);
    let limit = ceiling(CeilingKind::Limit, 100.0, Unit::MibPerS);
    let drive = ceiling(CeilingKind::Drive, 101.0, Unit::MibPerS);
    let mut of = idle(&load, 798.0);
    of.ceilings = vec![&limit, &drive];
    of.server_latency_us = Some(39_000.0);
    binds(&of, Bound::Limit, "a limit that was set at 100 %");
}

#[test]
fn a_single_session_is_named_when_several_are_faster() {
    let load = load(128 << 10, 32);
    let mut of = idle(&load, 16_000.0);
    of.server = busy(0.97);
    of.extras.more_sessions = Some((4, 5200.0));
    binds(&of, Bound::SingleSession, "4 sessions move 5200 instead of 2000 MiB/s");
    of.extras.more_sessions = Some((4, 2100.0));
    binds(&of, Bound::ServerCpu, "the server's processor");
}

#[test]
fn memory_is_named() {
    let load = load(1 << 20, 32);
    let memory = ceiling(CeilingKind::Memory, 18_000.0, Unit::MibPerS);
    let mut of = idle(&load, 8_500.0);
    of.ceilings = vec![&memory];
    binds(&of, Bound::Memory, "the memory bus at 94 % of its ceiling");
}

#[test]
fn what_cannot_be_told_is_said() {
    let load = load(4096, 32);
    let mut of = idle(&load, 50_000.0);
    let told = verdict(&of);
    assert_eq!(told.bound, None);
    assert!(told.sentence.starts_with("The bottleneck cannot be determined"), "{}", told.sentence);
    assert!(told.advice.starts_with("Measure the ceilings"), "{}", told.advice);
    // What a run exceeds by far was no ceiling: a cache answered.
    let drive = ceiling(CeilingKind::Drive, 100.0, Unit::MibPerS);
    of.ceilings = vec![&drive];
    assert_eq!(verdict(&of).bound, None);
    assert!(verdict(&of).layers.iter().all(|load| load.bound != Bound::Drive));
}

/// The evidence is taken from the runs, and the nearest of all layers has the word.
#[test]
fn evidence_comes_from_the_runs() {
    let text = include_str!("../../tests/data/small.json");
    let results = Results::from_json(text, "small.json").expect("it is right");
    let (target, workload) = (&results.targets[1], &results.workloads[0]);
    let evidence = Evidence::of(&results, target, workload, Extras::default()).expect("it ran");
    assert_eq!(evidence.iops, 8100.0);
    assert_eq!(evidence.latency_us, Some(100.0));
    assert!((evidence.client.expect("fio").busiest_thread - 0.7).abs() < 1e-9);
    assert_eq!((evidence.server, evidence.cpus), (None, 2));
    assert_eq!(evidence.ceilings.len(), 1);
    let all = verdicts(&results, &|_, _| Extras::default());
    assert_eq!(all.len(), 2);
    assert_eq!(all[1].bound, Some(Bound::Drive), "{all:?}");
}
