//! What fio says: its JSON, in the form `json+`.

use std::collections::HashMap;

use serde::Deserialize;

use super::FioError;
use crate::model::{Flow, Latency, Run};

#[derive(Deserialize)]
struct Output {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    error: i64,
    #[serde(default)]
    total_err: u64,
    read: Direction,
    write: Direction,
    #[serde(default)]
    sync: Option<Synced>,
}

#[derive(Deserialize)]
struct Direction {
    io_bytes: u64,
    total_ios: u64,
    iops: f64,
    bw_bytes: f64,
    /// Milliseconds.
    runtime: u64,
    /// From handing over to the answer.
    #[serde(default)]
    lat_ns: Times,
}

#[derive(Deserialize)]
struct Synced {
    lat_ns: Times,
}

#[derive(Default, Deserialize)]
struct Times {
    #[serde(default)]
    min: f64,
    #[serde(default)]
    max: f64,
    #[serde(default)]
    mean: f64,
    #[serde(default)]
    bins: HashMap<String, u64>,
}

/// Reads what fio printed. It may say something before its JSON.
pub(super) fn results(told: &str) -> Result<Run, FioError> {
    let wrong = |what: &str| FioError::Output(what.to_owned());
    let json = told.find('{').map(|at| &told[at..]).ok_or_else(|| wrong("no JSON"))?;
    let output: Output =
        serde_json::from_str(json).map_err(|error| FioError::Output(error.to_string()))?;
    // With group_reporting all jobs are one.
    let [job] = &output.jobs[..] else { return Err(wrong("not one group of jobs")) };
    let runtime = job.read.runtime.max(job.write.runtime);
    if runtime == 0 {
        return Err(FioError::Failed("nothing was done in the time given".to_owned()));
    }
    Ok(Run {
        seconds: runtime as f64 / 1e3,
        read: flow(&job.read),
        write: flow(&job.write),
        sync: job.sync.as_ref().and_then(|sync| latency(&sync.lat_ns)),
        errors: job.total_err.max(u64::from(job.error != 0)),
        ..Run::default()
    })
}

/// The processor time of all jobs in the time that they measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct OwnTime {
    pub user_s: f64,
    pub system_s: f64,
    /// The part of one processor that a job used, 0 to 1: the mean of the jobs, which all do the same.
    pub job_share: f64,
}

/// What fio measured of itself. `None` if it does not say.
pub(super) fn own_time(told: &str) -> Option<OwnTime> {
    #[derive(Deserialize)]
    struct Cpu {
        usr_cpu: f64,
        sys_cpu: f64,
        /// Milliseconds, of all jobs together.
        job_runtime: f64,
    }
    #[derive(Deserialize)]
    struct Times {
        jobs: Vec<Cpu>,
    }
    let times: Times = serde_json::from_str(&told[told.find('{')?..]).ok()?;
    let cpu = times.jobs.first().filter(|cpu| cpu.job_runtime > 0.0)?;
    let seconds = cpu.job_runtime / 1e3;
    let (user_s, system_s) = (cpu.usr_cpu / 100.0 * seconds, cpu.sys_cpu / 100.0 * seconds);
    Some(OwnTime { user_s, system_s, job_share: (cpu.usr_cpu + cpu.sys_cpu) / 100.0 })
}

fn flow(direction: &Direction) -> Option<Flow> {
    (direction.total_ios > 0).then(|| Flow {
        bytes: direction.io_bytes,
        operations: direction.total_ios,
        mib_per_s: direction.bw_bytes / f64::from(1 << 20),
        iops: direction.iops,
        latency: latency(&direction.lat_ns),
    })
}

/// fio's own mean and ends are exact; its bins are 1.5 % wide.
fn latency(times: &Times) -> Option<Latency> {
    let bins = times.bins.iter().filter_map(|(ns, count)| Some((ns.parse().ok()?, *count)));
    let told = Latency::of(bins)?;
    let (mean_us, min_us, max_us) = (times.mean / 1e3, times.min / 1e3, times.max / 1e3);
    Some(Latency { mean_us, min_us, max_us, ..told })
}
