//! fio's arguments.

use std::path::Path;

use super::Location;
use crate::model::{Pattern, Sync, TargetKind, Workload};
use crate::profiles::Style;

/// How often fio writes a line of a log, in milliseconds: each second, or ten times in a short run.
pub(super) fn log_ms(workload: &Workload) -> u64 {
    if workload.seconds >= 10.0 { 1000 } else { ((workload.seconds * 100.0) as u64).max(50) }
}

/// Where, for all kinds of runs.
fn location_args(workload: &Workload, location: &Location) -> Vec<String> {
    let mut args = vec![location.argument(), format!("--numjobs={}", workload.jobs)];
    let shared = location.kind() != TargetKind::Directory;
    let jobs = u64::from(workload.jobs.max(1));
    match workload.size_bytes {
        // Sequential jobs on one file get a part of it each, or all would read what the first one has just read.
        Some(size) if shared && jobs > 1 && workload.pattern == Pattern::Sequential => {
            args.push(format!("--size={size}"));
            args.push(format!("--offset_increment={size}"));
        }
        Some(size) if shared && location.made() => args.push(format!("--size={}", size * jobs)),
        Some(size) if !shared => args.push(format!("--size={size}")),
        _ => {}
    }
    args
}

/// The arguments of a workload; with the prefix of logs, if they are wanted.
pub fn arguments(
    workload: &Workload,
    location: &Location,
    style: Style,
    logs: Option<&Path>,
) -> Vec<String> {
    let direction = match (workload.pattern, workload.read_percent) {
        (Pattern::Sequential, 100) => "read",
        (Pattern::Sequential, 0) => "write",
        (Pattern::Sequential, _) => "rw",
        (Pattern::Random, 100) => "randread",
        (Pattern::Random, 0) => "randwrite",
        (Pattern::Random, _) => "randrw",
    };
    let seconds = |seconds: f64| format!("{}ms", (seconds * 1000.0).round() as u64);
    let mut args = vec![
        format!("--name={direction}"),
        format!("--rw={direction}"),
        format!("--bs={}", workload.block_bytes),
        format!("--iodepth={}", workload.depth),
        format!("--ioengine={}", style.engine.name()),
        format!("--direct={}", u8::from(location.direct())),
        "--group_reporting".to_owned(),
        "--time_based".to_owned(),
        format!("--runtime={}", seconds(workload.seconds)),
    ];
    args.extend(location_args(workload, location));
    // Half and half is what fio does by itself.
    if !matches!(workload.read_percent, 0 | 50 | 100) {
        args.push(format!("--rwmixread={}", workload.read_percent));
    }
    if workload.ramp_seconds > 0.0 {
        args.push(format!("--ramp_time={}", seconds(workload.ramp_seconds)));
    }
    if style.gtod_reduce {
        args.push("--gtod_reduce=1".to_owned());
    } else {
        // The whole time, from handing over to the answer: where the kernel blocks while it takes an operation, completion
        // alone would leave out most of it.
        args.extend(["--lat_percentiles=1".to_owned(), "--clat_percentiles=0".to_owned()]);
    }
    if workload.sync == Sync::EachWrite {
        args.push("--sync=dsync".to_owned());
    }
    if let Some(rate) = workload.rate_mib_per_s {
        let each = rate * f64::from(1 << 20) / f64::from(workload.jobs.max(1));
        args.push(format!("--rate={}", each.round() as u64));
    }
    // fio then refuses to write, whatever else is asked of it.
    if !workload.writes() {
        args.push("--readonly".to_owned());
    } else if style.refill {
        args.push("--refill_buffers".to_owned());
    }
    args.extend(logs.into_iter().flat_map(|prefix| log_args(workload, style, prefix)));
    args
}

fn log_args(workload: &Workload, style: Style, prefix: &Path) -> Vec<String> {
    let prefix = prefix.display();
    let mut args = vec![
        format!("--write_bw_log={prefix}"),
        format!("--write_iops_log={prefix}"),
        format!("--log_avg_msec={}", log_ms(workload)),
        "--per_job_logs=0".to_owned(),
    ];
    if !style.gtod_reduce {
        args.push(format!("--write_lat_log={prefix}"));
    }
    args
}

/// Fills what a workload reads, with data that does not compress.
pub(super) fn layout(workload: &Workload, location: &Location) -> Vec<String> {
    // The name is part of the files' names in a directory: it has to be the one of the runs.
    let mut same = workload.clone();
    (same.pattern, same.rate_mib_per_s) = (Pattern::Sequential, None);
    let name = arguments(workload, location, Style::default(), None).swap_remove(0);
    let mut args = fill(name, location);
    args.extend(location_args(&same, location));
    args
}

/// Fills what is named behind these arguments.
pub(super) fn fill(name: String, location: &Location) -> Vec<String> {
    vec![
        name,
        "--rw=write".to_owned(),
        format!("--bs={}", 1 << 20),
        "--ioengine=psync".to_owned(),
        format!("--direct={}", u8::from(location.direct())),
        "--refill_buffers".to_owned(),
        "--end_fsync=1".to_owned(),
        "--group_reporting".to_owned(),
        "--output-format=json".to_owned(),
    ]
}

/// A line for a shell.
pub fn shell(words: impl IntoIterator<Item = String>) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,:+@%".contains(c);
    let quoted = words.into_iter().map(|word| match !word.is_empty() && word.chars().all(plain) {
        true => word,
        false => format!("'{}'", word.replace('\'', r"'\''")),
    });
    quoted.collect::<Vec<_>>().join(" ")
}
