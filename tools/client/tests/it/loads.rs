//! Loads do what they were asked for, and end as they should.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lunet_backends::layers::{Effect, Layer, Ops, Which, wrap};
use lunet_client::iscsi::{Initiator, Link, Login};
use lunet_client::{
    DriverChoice, Error, Kind, OnError, Order, Plan, Rate, ReadData, Stage, Verify, Workload, run,
};

use crate::support::{NAME, Served, memory};

const MIB: u64 = 1 << 20;

/// Moves so many bytes.
fn sized(size: u64, block: u32) -> Workload {
    Workload { runtime: None, size: Some(size), ..Workload::new(block) }
}

#[test]
fn every_kind_of_load_moves_what_it_should() {
    let served = Served::volumes(vec![memory(16)]);
    for driver in [DriverChoice::Auto, DriverChoice::Epoll] {
        for (reads_percent, block) in
            [(100, 4096), (0, 4096), (50, 512), (100, 1 << 20), (0, 1 << 20)]
        {
            for read_data in [ReadData::Discard, ReadData::Receive] {
                for digest in ["", "?header_digest=crc32c&data_digest=crc32c"] {
                    let size = 32 * u64::from(block).max(64 << 10);
                    let jobs = 2;
                    let workload =
                        Workload { reads_percent, read_data, jobs, ..sized(size, block) };
                    let target = served.at("", &format!("/{NAME}/0{digest}"));
                    let link = Link::log_into(&target, &Login::default(), Some(NAME));
                    let link = link.expect("a login");
                    let digests = link.info().negotiated.data_digest;
                    link.close();
                    let mut plan = Plan::new(Initiator::from(target), workload);
                    plan.driver = driver;
                    let outcome = run(&plan, &AtomicBool::new(false), |_| {}).expect("it runs");
                    let at = format!("{driver:?} {reads_percent} {block} {read_data:?} {digest}");
                    assert_eq!(outcome.failures(), Vec::<&str>::new(), "{at}");
                    assert_eq!(outcome.work.bytes(), size, "{at}");
                    assert_eq!(outcome.work.operations(), size / u64::from(block), "{at}");
                    assert_eq!((outcome.jobs.len(), digests), (2, !digest.is_empty()), "{at}");
                    let counted =
                        outcome.work.read.latency.count() + outcome.work.write.latency.count();
                    assert_eq!(counted, outcome.work.operations(), "{at}");
                    let seconds: u64 = outcome.timeline.iter().map(|s| s.work.bytes()).sum();
                    assert_eq!(seconds, size, "{at}: the timeline has all of it");
                    assert!(!outcome.usage.cpu.is_zero() && !outcome.elapsed.is_zero(), "{at}");
                }
            }
        }
    }
}

#[test]
fn a_run_ends_after_its_time_and_the_ramp_is_not_counted() {
    let served = Served::volumes(vec![memory(16)]);
    let workload = Workload {
        runtime: Some(Duration::from_millis(1200)),
        ramp: Duration::from_millis(500),
        rate: Some(Rate { operations: Some(1000), bytes: None }),
        ..Workload::new(4096)
    };
    let plan = served.plan(workload);
    let mut stages = Vec::new();
    let outcome = run(&plan, &AtomicBool::new(false), |progress| stages.push(progress.stage));
    let outcome = outcome.expect("it runs");
    assert_eq!(stages.first(), Some(&Stage::Ramp));
    assert_eq!(stages.last(), Some(&Stage::Load));
    let ramp: u64 = outcome.timeline.iter().filter(|s| s.ramp).map(|s| s.work.operations()).sum();
    assert!(ramp > 0, "the ramp makes load");
    let operations = outcome.work.operations();
    // The rate is an upper limit, whatever the machine; 10 ms may be made up for.
    assert!((1..=1230).contains(&operations), "{operations} operations");
    assert!(outcome.elapsed >= Duration::from_millis(1190), "{:?}", outcome.elapsed);
    assert!(!outcome.interrupted);
}

#[test]
fn an_interruption_ends_it_cleanly() {
    let served = Served::volumes(vec![memory(16)]);
    let workload = Workload {
        runtime: Some(Duration::from_secs(600)),
        reads_percent: 50,
        verify: Some(Verify::default()),
        jobs: 3,
        ..Workload::new(4096)
    };
    let plan = served.plan(workload);
    let stop = AtomicBool::new(false);
    let outcome = run(&plan, &stop, |_| stop.store(true, Ordering::SeqCst)).expect("it runs");
    assert!(outcome.interrupted && outcome.failures().is_empty(), "{:?}", outcome.failures());
    assert!(outcome.work.operations() > 0);
    assert_eq!(outcome.verify.expect("it was checked").wrong(), 0);
    assert!(matches!(run(&plan, &stop, |_| {}), Err(Error::Interrupted)));
}

#[test]
fn errors_are_named_and_counted() {
    let layer = Layer { which: Which::Nth(10), ..Layer::new(Effect::Fault(5), Ops::READ) };
    let broken = || wrap(memory(16), std::slice::from_ref(&layer));
    let (volume, _controls) = broken();
    let outcome = Served::volumes(vec![volume]).run(sized(MIB, 4096));
    let text = outcome.failures().join("; ");
    assert!(text.contains("read at LBA") && text.contains("MEDIUM ERROR"), "{text}");
    assert!(outcome.work.bytes() < MIB, "it has stopped");

    let (volume, _controls) = broken();
    let on_error = OnError::Continue;
    let outcome = Served::volumes(vec![volume]).run(Workload { on_error, ..sized(MIB, 4096) });
    assert_eq!((outcome.failures().len(), outcome.work.errors), (0, 1));
    assert_eq!(outcome.work.operations(), 255);
    let error = &outcome.jobs[0].errors[0];
    assert_eq!((error.kind, error.count), (Kind::Read, 1));
    assert!(error.failure.starts_with("MEDIUM ERROR"), "{}", error.failure);
}

#[test]
fn a_failed_write_is_no_fault_of_what_is_read() {
    let layer = Layer { which: Which::Share(100_000), ..Layer::new(Effect::Fault(5), Ops::WRITE) };
    let (volume, _controls) = wrap(memory(4), &[layer]);
    let workload = Workload {
        on_error: OnError::Continue,
        reads_percent: 30,
        verify: Some(Verify::default()),
        ..sized(8 * MIB, 8192)
    };
    let outcome = Served::volumes(vec![volume]).run(workload);
    assert!(outcome.work.errors > 10, "{}", outcome.work.errors);
    assert_eq!(outcome.verify.expect("it was checked").wrong(), 0);
}

#[test]
fn a_target_that_hangs_is_given_up() {
    let (volume, _controls) = wrap(memory(16), &[Layer::new(Effect::Hang, Ops::READ)]);
    let served = Served::volumes(vec![volume]);
    let mut plan = served.plan(Workload::new(4096));
    plan.command_timeout = Duration::from_millis(300);
    let outcome = run(&plan, &AtomicBool::new(false), |_| {}).expect("it begins");
    let text = outcome.failures().join("; ");
    assert!(text.contains("was not answered"), "{text}");
    assert_eq!(outcome.work.operations(), 0);
    _controls.switch(0, false);
}

#[test]
fn a_target_that_goes_away_is_noticed() {
    let mut served = Served::volumes(vec![memory(16)]);
    let workload = Workload {
        runtime: Some(Duration::from_secs(60)),
        verify: Some(Verify::default()),
        reads_percent: 50,
        ..Workload::new(4096)
    };
    let plan = served.plan(workload);
    let begun = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        let never = AtomicBool::new(false);
        let begun = &begun;
        let load = scope.spawn(move || run(&plan, &never, |_| begun.store(true, Ordering::SeqCst)));
        let deadline = Instant::now() + Duration::from_secs(30);
        while !begun.load(Ordering::SeqCst) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        served.stop();
        load.join().expect("it ends").expect("it has begun")
    });
    assert!(!outcome.failures().is_empty());
    assert!(outcome.work.operations() > 0);
    let verify = outcome.verify.expect("it was checked");
    assert_eq!((verify.wrong(), verify.incomplete), (0, true), "{:?}", verify.findings);
}

#[test]
fn what_cannot_be_run_is_refused_before_it_begins() {
    let served = Served::volumes(vec![memory(16)]);
    let says = |workload: Workload| {
        let plan = served.plan(workload);
        run(&plan, &AtomicBool::new(false), |_| {}).expect_err("it cannot be run").to_string()
    };
    assert!(says(Workload::new(100)).contains("whole logical blocks"));
    let verify = Some(Verify { memory: 1000, ..Verify::default() });
    let text = says(Workload { verify, ..Workload::new(4096) });
    assert!(text.contains("choose smaller regions"), "{text}");
    assert!(says(Workload::new(4096).within(0..1 << 40)).contains("volume"));
    let mut plan = served.plan(Workload::new(4096));
    plan.processors = vec![5000];
    let error = run(&plan, &AtomicBool::new(false), |_| {}).expect_err("no such processor");
    assert!(error.to_string().contains("processor 5000"), "{error}");
}

#[test]
fn the_same_seed_makes_the_same_load() {
    let served = Served::volumes(vec![memory(16)]);
    let mix = |seed| {
        let workload =
            Workload { reads_percent: 37, seed, order: Order::Random, ..sized(MIB, 512) };
        served.run(workload).work.read.operations
    };
    assert_eq!(mix(5), mix(5));
    assert_ne!(mix(5), mix(6));
}
