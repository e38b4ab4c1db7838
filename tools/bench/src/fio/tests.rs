//! With a real fio, on files in a directory of their own.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::*;
use crate::model::{Pattern, Sync, TargetKind};
use crate::profiles::{Engine, Profile};

fn load(read_percent: u8) -> Workload {
    Workload {
        name: "load".into(),
        block_bytes: 4096,
        read_percent,
        pattern: Pattern::Random,
        depth: 4,
        jobs: 2,
        sync: Sync::Cached,
        seconds: 0.6,
        ramp_seconds: 0.2,
        size_bytes: Some(4 << 20),
        rate_mib_per_s: None,
    }
}

fn quiet() -> impl FnMut(f64, f64) {
    |_, _| {}
}

/// A directory on a disk: in memory there is no direct I/O on older kernels.
fn scratch() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("bench").tempdir_in("/var/tmp").expect("a directory")
}

#[test]
fn a_directory_is_measured_and_left_as_it_was() {
    let folder = scratch();
    let stop = AtomicBool::new(false);
    let location = Location::new(folder.path()).expect("it is writable");
    assert_eq!(location.kind(), TargetKind::Directory);
    let fio = Fio::new(&location, Style::default(), Vec::new(), &stop).expect("fio is there");
    let load = load(70);
    fio.prepare(&load, &mut quiet()).expect("there is space");
    let laid_out: u64 = fs::read_dir(location.path())
        .expect("it was made")
        .map(|entry| entry.expect("it can be read").metadata().expect("so can this").len())
        .sum();
    assert_eq!(laid_out, 8 << 20, "two jobs have a file each");
    let mut last = 0.0;
    let run = fio.run(&load, &mut |passed, _| last = passed).expect("it runs");
    assert!(last > 0.5, "{last}");
    let (read, write) = (run.read.as_ref().expect("reads"), run.write.as_ref().expect("writes"));
    let share = read.operations as f64 / (read.operations + write.operations) as f64;
    assert!((0.6..0.8).contains(&share), "{share} are reads");
    assert!((0.55..1.5).contains(&run.seconds), "{} s", run.seconds);
    for flow in [read, write] {
        // What is on its way at the end of the ramp counts on one side only.
        let near = |a: u64, b: u64| a.abs_diff(b) <= load.outstanding();
        assert!(near(flow.bytes / 4096, flow.operations), "{} {}", flow.bytes, flow.operations);
        let latency = flow.latency.as_ref().expect("fio looks at the clock");
        assert!(near(latency.count, flow.operations), "{}", latency.count);
        assert!(latency.min_us <= latency.mean_us && latency.mean_us <= latency.max_us);
        assert!(
            latency.percentile_us(99.0).expect("many")
                >= latency.percentile_us(50.0).expect("many")
        );
    }
    assert!(run.timeline.len() >= 3, "{:?}", run.timeline);
    let fio = &run.processes[0];
    assert_eq!((fio.name.as_str(), fio.role), ("fio", Role::Client));
    assert!(fio.user_s + fio.system_s > 0.0, "{fio:?}");
    assert!(run.system.expect("it was watched").context_switches > 0);
    drop(location);
    assert_eq!(fs::read_dir(folder.path()).expect("it is there").count(), 0);
}

#[test]
fn reads_change_nothing_and_stable_writes_are_seen() {
    let folder = scratch();
    let stop = AtomicBool::new(false);
    let path = folder.path().join("a file: named oddly");
    fs::write(&path, vec![0x5a; 4 << 20]).expect("there is space");
    let location = Location::new(&path).expect("it is there");
    let fio = Fio::new(&location, Style::default(), Vec::new(), &stop).expect("fio is there");
    let reads = load(100);
    let run = fio.run(&reads, &mut quiet()).expect("it runs");
    assert!(run.write.is_none() && run.read.expect("reads").operations > 0);
    assert!(fs::read(&path).expect("it is there").iter().all(|byte| *byte == 0x5a));
    let mut stable = load(0);
    stable.sync = Sync::EachWrite;
    let run = fio.run(&stable, &mut quiet()).expect("it runs");
    assert!(run.read.is_none() && run.write.expect("writes").operations > 0);
    drop(location);
    assert!(path.exists(), "what was there stays");
}

#[test]
fn fio_can_be_stopped_and_says_what_is_wrong() {
    let folder = scratch();
    let stop = AtomicBool::new(false);
    let location = Location::new(&folder.path().join("new")).expect("it can be made");
    assert!(location.made());
    let fio = Fio::new(&location, Style::default(), Vec::new(), &stop).expect("fio is there");
    let mut long = load(0);
    long.seconds = 60.0;
    let began = Instant::now();
    let told = fio.run(&long, &mut |passed, _| stop.store(passed > 0.5, Ordering::Relaxed));
    assert!(matches!(told, Err(FioError::Stopped)), "{told:?}");
    assert!(began.elapsed().as_secs() < 30, "it does not wait for the end");
    stop.store(false, Ordering::Relaxed);
    let mut odd = load(100);
    odd.block_bytes = 0;
    let told = fio.run(&odd, &mut quiet()).expect_err("nothing can be read so").to_string();
    assert!(told.starts_with("fio: ") && !told.contains('\n'), "{told}");
}

/// The line of docs/performance.md and of the how-to, with the seconds that the how-to gives it.
#[test]
fn the_recipe_is_the_line_of_the_how_to() {
    let folder = scratch();
    let location = Location::new(folder.path()).expect("it is writable");
    let recipe = Profile::named("recipe").expect("it is there");
    let args = arguments(&recipe.workloads[0], &location, recipe.style, None);
    let mut expected = vec![
        "--bs=131072".to_owned(),
        "--direct=1".to_owned(),
        "--gtod_reduce=1".to_owned(),
        "--ioengine=posixaio".to_owned(),
        "--iodepth=32".to_owned(),
        "--group_reporting".to_owned(),
        "--name=randrw".to_owned(),
        "--numjobs=12".to_owned(),
        "--ramp_time=10000ms".to_owned(),
        "--runtime=60000ms".to_owned(),
        "--rw=randrw".to_owned(),
        "--size=268435456".to_owned(),
        "--time_based".to_owned(),
        format!("--directory={}", location.path().display()),
    ];
    let mut args = args;
    expected.sort();
    args.sort();
    assert_eq!(args, expected);
}

#[test]
fn the_recipe_runs_in_small_without_latencies() {
    let folder = scratch();
    let stop = AtomicBool::new(false);
    let location = Location::new(folder.path()).expect("it is writable");
    let recipe = Profile::named("recipe").expect("it is there");
    let fio = Fio::new(&location, recipe.style, Vec::new(), &stop).expect("fio is there");
    let mut load = recipe.workloads[0].clone();
    (load.jobs, load.seconds, load.ramp_seconds, load.size_bytes) = (2, 0.6, 0.1, Some(2 << 20));
    fio.prepare(&load, &mut quiet()).expect("there is space");
    let run = fio.run(&load, &mut quiet()).expect("it runs");
    assert!(run.latency().is_none(), "gtod_reduce leaves them out");
    assert!(run.mib_per_s() > 0.0 && run.read.is_some() && run.write.is_some());
}

#[test]
fn engines_and_words_are_for_a_shell() {
    let words = ["fio", "--name=a b", "it's", ""].map(str::to_owned);
    assert_eq!(shell(words), r"fio '--name=a b' 'it'\''s' ''");
    assert_eq!(Engine::IoUring.name(), "io_uring");
}

#[test]
fn processor_time_is_that_of_all_jobs() {
    let told = r#"note {"jobs": [{"usr_cpu": 2.5, "sys_cpu": 22.5, "job_runtime": 6000}]}"#;
    let own = parse::own_time(told).expect("it says");
    assert!((own.user_s - 0.15).abs() < 1e-9 && (own.system_s - 1.35).abs() < 1e-9, "{own:?}");
    assert!((own.job_share - 0.25).abs() < 1e-9, "{own:?}");
    assert_eq!(parse::own_time(r#"{"jobs": [{"usr_cpu": 2.5}]}"#), None);
}

#[test]
fn output_that_is_none_is_refused() {
    for told in ["", "fio: oops", "{\"jobs\": []}", "{\"jobs\": [{}]}"] {
        assert!(matches!(parse::results(told), Err(FioError::Output(_))), "{told}");
    }
}
