//! What a run has shown.

use std::time::Duration;

use crate::front::Geometry;
use crate::latency::Latency;
use crate::usage::Usage;
use crate::verify::VerifyOutcome;

/// Operations of one kind that ended well.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// How many.
    pub operations: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// How long they took: from the loop iteration that sends the command to the one that receives its
    /// end, retries included. The clock is read once in a loop iteration, at its start.
    pub latency: Latency,
}

impl Tally {
    pub(crate) fn record(&mut self, bytes: u64, time: Duration) {
        self.operations += 1;
        self.bytes += bytes;
        self.latency.record(time);
    }

    /// Adds all of another one.
    pub fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.latency.add(&other.latency);
    }

    pub(crate) fn clear(&mut self) {
        (self.operations, self.bytes) = (0, 0);
        self.latency.clear();
    }
}

/// What was done, by kind.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// Reads.
    pub read: Tally,
    /// Writes.
    pub write: Tally,
    /// Flushes.
    pub flush: Tally,
    /// Operations that failed.
    pub errors: u64,
    /// Commands that were sent again, because the volume had something to tell first or was busy.
    pub retries: u64,
}

impl Work {
    /// Adds all of another one.
    pub fn add(&mut self, other: &Self) {
        self.read.add(&other.read);
        self.write.add(&other.write);
        self.flush.add(&other.flush);
        self.errors += other.errors;
        self.retries += other.retries;
    }

    pub(crate) fn clear(&mut self) {
        self.read.clear();
        self.write.clear();
        self.flush.clear();
        (self.errors, self.retries) = (0, 0);
    }

    /// Reads and writes.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.read.operations + self.write.operations
    }

    /// Bytes read and written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.read.bytes + self.write.bytes
    }
}

/// One second of a run, all jobs together.
#[derive(Clone, Debug)]
pub struct Second {
    /// When it began, since the start of the load, ramp included.
    pub at: Duration,
    /// How long it was; the last one may be shorter.
    pub length: Duration,
    /// It belongs to the ramp and is not counted.
    pub ramp: bool,
    /// What was done.
    pub work: Work,
}

/// Kinds of operation, for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Reads blocks.
    Read,
    /// Writes blocks.
    Write,
    /// Makes what was written stable.
    Flush,
}

/// Operations that failed alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorCount {
    /// What they did.
    pub kind: Kind,
    /// How they failed, in the protocol's words.
    pub failure: String,
    /// How many, the ramp included.
    pub count: u64,
    /// Where the first one was.
    pub first_lba: u64,
}

/// What one job has done.
#[derive(Clone, Debug)]
pub struct JobOutcome {
    /// Index of the job, from 0.
    pub job: u32,
    /// The thread that it ran on, from 0.
    pub thread: usize,
    /// What was done behind the ramp.
    pub work: Work,
    /// Errors by kind, at most 64 kinds.
    pub errors: Vec<ErrorCount>,
    /// Why it ended before its time, in one sentence.
    pub failed: Option<String>,
    /// What verification has shown.
    pub verify: Option<VerifyOutcome>,
}

/// What one thread has cost, behind the ramp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadOutcome {
    /// Index of the thread, from 0.
    pub thread: usize,
    /// CPU time and context switches, from the end of the ramp to the end of the last command.
    pub usage: Usage,
    /// System calls that wait for events.
    pub waits: u64,
    /// Receives and sends.
    pub transfers: u64,
}

/// What a run has shown.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Size and limits of the volume.
    pub geometry: Geometry,
    /// From the end of the ramp to the end of the load: what rates are counted by.
    pub elapsed: Duration,
    /// All jobs together.
    pub work: Work,
    /// Each job.
    pub jobs: Vec<JobOutcome>,
    /// Each second.
    pub timeline: Vec<Second>,
    /// Each thread.
    pub threads: Vec<ThreadOutcome>,
    /// All threads together.
    pub usage: Usage,
    /// What verification has shown, all jobs together.
    pub verify: Option<VerifyOutcome>,
    /// It was interrupted.
    pub interrupted: bool,
    /// What the event loop says about this system, in plain sentences.
    pub notes: Vec<String>,
}

impl Outcome {
    /// Reads and writes per second.
    #[must_use]
    pub fn operations_per_second(&self) -> f64 {
        self.work.operations() as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Bytes read and written per second.
    #[must_use]
    pub fn bytes_per_second(&self) -> f64 {
        self.work.bytes() as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Reads and writes per second of CPU time of the client's own threads.
    #[must_use]
    pub fn operations_per_cpu_second(&self) -> f64 {
        self.work.operations() as f64 / self.usage.cpu.as_secs_f64().max(1e-9)
    }

    /// The sentences of jobs that ended before their time, each once.
    #[must_use]
    pub fn failures(&self) -> Vec<&str> {
        let mut all: Vec<&str> = self.jobs.iter().filter_map(|job| job.failed.as_deref()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// What a run is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nothing is counted yet.
    Ramp,
    /// The load is running.
    Load,
    /// What was written is read back.
    ReadBack,
}

/// A report about a running load, once a second.
#[derive(Clone, Debug)]
pub struct Progress<'a> {
    /// What it is at.
    pub stage: Stage,
    /// Time since the start of the load.
    pub elapsed: Duration,
    /// The part of the stage that is done, 0 to 1, where it is known.
    pub done: Option<f64>,
    /// Figures of the last second.
    pub second: &'a Second,
}
