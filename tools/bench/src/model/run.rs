//! One measurement.

use serde::{Deserialize, Serialize};

use super::Latency;

/// One target, one workload, one round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The round, from 1. In every round each target runs each workload once.
    pub round: u32,
    /// The place in the whole benchmark, from 1: who begins changes with the rounds.
    pub order: u32,
    /// Name of the target.
    pub target: String,
    /// Name of the workload.
    pub workload: String,
    /// When it began, in seconds since the start of the benchmark.
    pub began_s: f64,
    /// How long was measured, in seconds.
    pub seconds: f64,
    /// What was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<Flow>,
    /// What was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<Flow>,
    /// How long it took to make writes stable, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<Latency>,
    /// What an operation took inside the server on average, in microseconds: from the arrival of a command to its answer. Where
    /// the server tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_latency_us: Option<f64>,
    /// Operations that failed.
    #[serde(default)]
    pub errors: u64,
    /// How it went on: a moment for each second, or less in short runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<Moment>,
    /// The processes that took part: the load generator, and the server where it can be seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<Process>,
    /// What else ran, busiest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Process>,
    /// Load of the whole machine during the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<System>,
}

/// One direction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// Bytes that were moved.
    pub bytes: u64,
    /// Operations that were done.
    pub operations: u64,
    /// 2^20 bytes for each second.
    pub mib_per_s: f64,
    /// Operations for each second.
    pub iops: f64,
    /// How long operations took; absent if the tool was told not to look at the clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
}

/// A stretch of a run: from the moment before to this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Its end, in seconds since the measurement began.
    pub at_s: f64,
    /// MiB/s that were read.
    pub read_mib_per_s: f64,
    /// MiB/s that were written.
    pub write_mib_per_s: f64,
    /// Operations that read.
    pub read_iops: f64,
    /// Operations that wrote.
    pub write_iops: f64,
    /// The mean latency of its operations, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<f64>,
}

/// What a process has to do with the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// It generates the load.
    Client,
    /// It serves it.
    Server,
    /// Nothing: it runs besides.
    Bystander,
}

/// What a process used while it was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Its name, as the kernel keeps it.
    pub name: String,
    /// Process ID.
    pub pid: i32,
    /// What it has to do with the measurement.
    pub role: Role,
    /// Processor time in user space, in seconds: all threads and children.
    pub user_s: f64,
    /// Processor time in the kernel, in seconds.
    pub system_s: f64,
    /// The busiest thread's share of one processor, 0 to 1.
    #[serde(default)]
    pub busiest_thread: f64,
    /// The part of the time in which it was ready and got no processor, 0 to 1: of the thread that waited most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited: Option<f64>,
    /// Times it gave up the processor to wait.
    #[serde(default)]
    pub voluntary_switches: u64,
    /// Times the processor was taken from it.
    #[serde(default)]
    pub involuntary_switches: u64,
    /// The part of the periods in which its control group had used up its quota, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_throttled: Option<f64>,
}

/// The machine while it was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct System {
    /// How long it and the processes were watched, in seconds: processor times are of this time.
    pub watched_s: f64,
    /// Number of processors.
    pub cpus: u32,
    /// Busy processor time of all that there was, 0 to 1.
    pub busy: f64,
    /// Of the busiest processor, 0 to 1.
    pub busiest_cpu: f64,
    /// What the hypervisor took, 0 to 1.
    pub stolen: f64,
    /// Context switches.
    pub context_switches: u64,
    /// Temperatures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sensors: Vec<Sensor>,
    /// What slowed itself down: only what did.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub throttled: Vec<Throttle>,
    /// What could not be read here: `temperatures`, `throttling`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<String>,
}

/// A temperature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sensor {
    /// Name of the sensor.
    pub name: String,
    /// Degrees Celsius before the run.
    pub before_c: f64,
    /// And after it.
    pub after_c: f64,
}

/// A counter of throttling that rose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Throttle {
    /// What slowed itself down.
    pub name: String,
    /// How often.
    pub times: u64,
}

impl Run {
    fn flows(&self) -> impl Iterator<Item = &Flow> {
        self.read.iter().chain(&self.write)
    }

    /// MiB/s in both directions together.
    pub fn mib_per_s(&self) -> f64 {
        self.flows().map(|flow| flow.mib_per_s).sum()
    }

    /// Operations per second in both directions together.
    pub fn iops(&self) -> f64 {
        self.flows().map(|flow| flow.iops).sum()
    }

    /// How long the processes were watched, in seconds.
    pub fn watched_s(&self) -> f64 {
        let watched = self.system.as_ref().map_or(self.seconds, |system| system.watched_s);
        watched.max(1e-3)
    }

    /// GiB that were moved in both directions together.
    pub fn gib(&self) -> f64 {
        self.flows().map(|flow| flow.bytes as f64).sum::<f64>() / f64::from(1 << 30)
    }

    /// The latencies of both directions together.
    pub fn latency(&self) -> Option<Latency> {
        let mut parts = self.flows().filter_map(|flow| flow.latency.as_ref());
        match (parts.next(), parts.next()) {
            (Some(only), None) => Some(only.clone()),
            (Some(read), Some(write)) => Latency::merged([read, write]),
            (None, _) => None,
        }
    }

    /// The part of the time in which a thread of the load generator had a processor or was ready for one, 0 to 1; `None` if it
    /// was not seen.
    pub fn generator_busy(&self) -> Option<f64> {
        let own = self.processes.iter().filter(|process| process.role == Role::Client);
        let busy = |one: &Process| (one.busiest_thread + one.waited.unwrap_or(0.0)).min(1.0);
        own.map(busy).max_by(f64::total_cmp)
    }

    /// Processor seconds of a role for each GiB; `None` if none was seen or nothing was moved.
    pub fn cpu_per_gib(&self, role: Role) -> Option<f64> {
        let mut seen = self.processes.iter().filter(|process| process.role == role).peekable();
        seen.peek()?;
        let seconds: f64 = seen.map(|process| process.user_s + process.system_s).sum();
        (self.gib() > 0.0).then(|| seconds / self.gib())
    }
}
