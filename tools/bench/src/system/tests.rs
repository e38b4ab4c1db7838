use std::path::Path;
use std::time::{Duration, Instant};

use super::machine::counters;
use super::*;
use crate::model::Role;

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("it has one")).expect("it can be made");
    fs::write(path, text).expect("it can be written");
}

#[test]
fn names_of_processes_may_hold_brackets() {
    let text = "42 (a) R 7 (x) S 1 42 42 0 -1 4194304 1 0 0 0 11 22 3 4 20 0 1 0 900 1 1";
    let stat = process::stat(text).expect("it is one");
    assert_eq!((stat.name.as_str(), stat.parent), ("a) R 7 (x", 1));
    assert_eq!((stat.user, stat.system, stat.began), (11, 22, 900));
    assert_eq!(stat.children, (3, 4));
    assert_eq!(process::stat("42 (short) S 1"), None);
    let status = "Name:\tx\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t7\n";
    assert_eq!(process::switches(status), (5, 7));
}

#[test]
fn sensors_and_throttling_are_read_where_they_are() {
    let folder = tempfile::tempdir().expect("a directory");
    let root = Root::new(folder.path());
    put(folder.path(), "sys/class/thermal/thermal_zone0/type", "acpitz\n");
    put(folder.path(), "sys/class/thermal/thermal_zone0/temp", "41000\n");
    assert_eq!(counters(&root).temperatures, [("acpitz".to_owned(), 41_000)]);
    put(folder.path(), "sys/class/hwmon/hwmon0/name", "nvme\n");
    put(folder.path(), "sys/class/hwmon/hwmon0/temp1_input", "52850\n");
    put(folder.path(), "sys/class/hwmon/hwmon0/temp1_label", "Composite\n");
    put(folder.path(), "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "3\n");
    let counters = counters(&root);
    assert_eq!(counters.temperatures, [("nvme Composite".to_owned(), 52_850)]);
    assert_eq!(counters.throttles, [("cpu0 core".to_owned(), 3)]);
}

#[test]
fn throttling_and_heat_during_a_run_are_told() {
    let folder = tempfile::tempdir().expect("a directory");
    let root = Root::new(folder.path());
    let throttle = "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count";
    put(
        folder.path(),
        "proc/stat",
        "cpu  10 0 10 80 0 0 0 0 0 0\ncpu0 10 0 10 80 0 0 0 0 0 0\nctxt 5\n",
    );
    put(folder.path(), "sys/class/hwmon/hwmon0/name", "k10temp\n");
    put(folder.path(), "sys/class/hwmon/hwmon0/temp1_input", "50000\n");
    put(folder.path(), throttle, "1\n");
    put(folder.path(), "proc/9/stat", "9 (srv) S 1 9 9 0 -1 0 0 0 0 0 100 50 0 0 20 0 1 0 7 0 0");
    put(folder.path(), "proc/9/cgroup", "0::/a/b\n");
    put(folder.path(), "sys/fs/cgroup/a/cpu.stat", "usage_usec 1\nnr_periods 10\nnr_throttled 2\n");
    put(
        folder.path(),
        "proc/9/task/9/stat",
        "9 (srv) S 1 9 9 0 -1 0 0 0 0 0 100 50 0 0 20 0 1 0 7 0 0",
    );
    put(folder.path(), "proc/9/task/9/schedstat", "1500000000 40000000 77\n");
    let watch = Watch::start(&root, &[(9, Role::Server)]);
    std::thread::sleep(Duration::from_millis(400));
    put(folder.path(), "proc/9/task/9/schedstat", "1600000000 140000000 99\n");
    put(
        folder.path(),
        "proc/stat",
        "cpu  60 0 20 100 0 0 0 20 0 0\ncpu0 60 0 20 100 0 0 0 20 0 0\nctxt 105\n",
    );
    put(folder.path(), "sys/class/hwmon/hwmon0/temp1_input", "71500\n");
    put(folder.path(), throttle, "4\n");
    put(folder.path(), "proc/9/stat", "9 (srv) S 1 9 9 0 -1 0 0 0 0 0 150 60 0 0 20 0 1 0 7 0 0");
    put(folder.path(), "sys/fs/cgroup/a/cpu.stat", "usage_usec 9\nnr_periods 20\nnr_throttled 7\n");
    let usage = watch.finish();
    let system = &usage.system;
    assert_eq!((system.cpus, system.context_switches), (1, 100));
    assert!((system.busy - 0.6).abs() < 1e-9 && (system.stolen - 0.2).abs() < 1e-9, "{system:?}");
    assert_eq!((system.sensors[0].before_c, system.sensors[0].after_c), (50.0, 71.5));
    assert_eq!((system.throttled[0].name.as_str(), system.throttled[0].times), ("cpu0 package", 3));
    let process = &usage.processes[0];
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    assert!((process.user_s - 50.0 / ticks).abs() < 1e-9, "{process:?}");
    // A tenth of a second of a little more than 0.4 s.
    let waited = process.waited.expect("the kernel says");
    assert!((0.01..0.26).contains(&waited), "{waited}");
    assert_eq!((process.name.as_str(), process.quota_throttled), ("srv", Some(0.5)));
}

/// This test's own thread is busy on a real machine, and seen as such.
#[test]
fn a_busy_thread_is_seen_on_this_machine() {
    let own = i32::try_from(std::process::id()).expect("it is small");
    let watch = Watch::start(&Root::default(), &[(own, Role::Client)]);
    let began = Instant::now();
    let mut sum = 0u64;
    while began.elapsed() < Duration::from_millis(900) {
        sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(1));
    }
    let usage = watch.finish();
    let process = &usage.processes[0];
    assert!(process.user_s + process.system_s > 0.05, "{process:?}");
    assert!(process.busiest_thread > 0.05 && process.busiest_thread < 1.5, "{process:?}");
    assert!(usage.system.cpus > 0 && usage.system.busy > 0.0 && usage.system.busy <= 1.0);
    let watched = usage.system.watched_s;
    assert!((0.9..5.0).contains(&watched), "{watched}");
    assert!(usage.others.iter().all(|other| other.pid != own));
}

#[test]
fn this_machine_has_facts() {
    let sections = facts(&Root::default());
    let titles: Vec<&str> = sections.iter().map(|section| section.title.as_str()).collect();
    assert!(titles.contains(&"memory") && titles.contains(&"system"), "{titles:?}");
    assert!(facts(&Root::new("/nowhere")).is_empty());
}
