//! What load to make.

use std::ops::Range;
use std::time::Duration;

use lunet_ring::DriverChoice;

use crate::front::{Error, Geometry};
use crate::layout::Layout;

/// Where the next operation goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Anywhere, in whole blocks of the chosen size. Places repeat, as they do with dice.
    #[default]
    Random,
    /// One behind the other. Each job begins at its own place, and goes round at the end.
    Sequential,
}

/// What becomes of the data of reads that are not verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadData {
    /// Thrown away, large reads in the kernel without a copy: the client costs least.
    #[default]
    Discard,
    /// Received into memory, as by a client that has a use for it.
    Receive,
}

/// What a failed operation does to the run. A volume that is busy or has something to tell first (in
/// SCSI: a unit attention, BUSY, TASK SET FULL) is no failure: the command is sent again, and counted
/// as a retry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// The job stops, and the run goes on with the others.
    #[default]
    Stop,
    /// It is counted.
    Continue,
}

/// A block size and how often it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSize {
    /// Bytes; whole logical blocks, at most [`MAX_BLOCK`].
    pub bytes: u32,
    /// Its share, against the sum of all.
    pub weight: u32,
}

/// The largest block, in bytes.
pub const MAX_BLOCK: u32 = 16 << 20;

/// The largest block whose data is received or verified, in bytes.
pub const MAX_KEPT_BLOCK: u32 = 1 << 20;

/// The largest queue depth of a job.
pub const MAX_DEPTH: u32 = 4096;

/// Upper bound of `jobs`.
pub const MAX_JOBS: u32 = 1024;

/// An upper limit for all jobs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Operations per second.
    pub operations: Option<u64>,
    /// Bytes per second.
    pub bytes: Option<u64>,
}

/// Checking what is read. See [`verify`](crate::verify).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verify {
    /// At the end, everything that was written is read once more.
    pub read_back: bool,
    /// Most memory for what is expected where, in bytes: 4 for each block of the smallest size.
    pub memory: u64,
}

impl Default for Verify {
    fn default() -> Self {
        Self { read_back: true, memory: 1 << 30 }
    }
}

/// A load: what fio calls a job file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Block sizes.
    pub blocks: Vec<BlockSize>,
    /// Share of reads in percent of operations; the rest are writes.
    pub reads_percent: u8,
    /// Where operations go.
    pub order: Order,
    /// Byte ranges of the volume to work in; empty: all of it. They must not overlap.
    pub regions: Vec<Range<u64>>,
    /// Operations that each job keeps under way.
    pub depth: u32,
    /// Connections, each of which has its own session.
    pub jobs: u32,
    /// How long to run, behind `ramp`.
    pub runtime: Option<Duration>,
    /// How many bytes to move, all jobs together, behind `ramp`. With `runtime` too, what comes
    /// first ends the run.
    pub size: Option<u64>,
    /// Runs before anything is counted.
    pub ramp: Duration,
    /// Upper limit.
    pub rate: Option<Rate>,
    /// Writes with FUA: each is stable when it is answered.
    pub fua: bool,
    /// A flush after so many writes of a job. It counts for the depth, and is sent
    /// without waiting for the writes under way, which it does not cover.
    pub flush_every: Option<u32>,
    /// Checks what is read. Each job then has a part of the regions for itself.
    pub verify: Option<Verify>,
    /// Of all random choices: the same seed makes the same operations.
    pub seed: u64,
    /// What becomes of the data of reads.
    pub read_data: ReadData,
    /// What a failed operation does.
    pub on_error: OnError,
}

impl Workload {
    /// Random reads of `block` bytes at a depth of 32 in one job, for ten seconds.
    #[must_use]
    pub fn new(block: u32) -> Self {
        Self {
            blocks: vec![BlockSize { bytes: block, weight: 1 }],
            reads_percent: 100,
            order: Order::Random,
            regions: Vec::new(),
            depth: 32,
            jobs: 1,
            runtime: Some(Duration::from_secs(10)),
            size: None,
            ramp: Duration::ZERO,
            rate: None,
            fua: false,
            flush_every: None,
            verify: None,
            seed: 1,
            read_data: ReadData::Discard,
            on_error: OnError::Stop,
        }
    }

    /// Works in this byte range of the volume too; without any, in all of it.
    #[must_use]
    pub fn within(mut self, region: Range<u64>) -> Self {
        self.regions.push(region);
        self
    }

    /// The largest block in bytes.
    pub(crate) fn largest(&self) -> u32 {
        self.blocks.iter().map(|block| block.bytes).max().unwrap_or(0)
    }

    /// True if the data of reads has to be in memory.
    pub(crate) fn keeps_data(&self) -> bool {
        self.verify.is_some() || self.read_data == ReadData::Receive
    }

    /// Whether it can be run on this volume.
    pub(crate) fn check(&self, geometry: &Geometry) -> Result<(), Error> {
        let wrong = |text: String| Err(Error::Plan(text));
        if self.blocks.is_empty() || self.blocks.iter().all(|block| block.weight == 0) {
            return wrong("the load has no block size: give one, as in 4096".into());
        }
        for BlockSize { bytes, .. } in &self.blocks {
            self.check_block(*bytes, geometry)?;
        }
        if self.reads_percent > 100 {
            return wrong(format!("{} % reads is more than all: 0 to 100", self.reads_percent));
        }
        if !(1..=MAX_DEPTH).contains(&self.depth) || !(1..=MAX_JOBS).contains(&self.jobs) {
            return wrong(format!(
                "depth {} and {} jobs: the depth is 1 to {MAX_DEPTH}, jobs are 1 to {MAX_JOBS}",
                self.depth, self.jobs
            ));
        }
        if self.runtime.is_none() && self.size.is_none() {
            return wrong("the load has no end: give a runtime or a size".into());
        }
        if self.runtime.is_some_and(|time| time.is_zero()) || self.size == Some(0) {
            return wrong("a runtime or size of 0 leaves nothing to run".into());
        }
        if self.flush_every == Some(0) {
            return wrong("a flush after 0 writes: it is 1 or more".into());
        }
        let zero = |limit: Option<u64>| limit == Some(0);
        if self.rate.is_some_and(|rate| zero(rate.operations) || zero(rate.bytes)) {
            return wrong("a rate of 0 would never begin: leave the limit out, or raise it".into());
        }
        if geometry.read_only && self.reads_percent < 100 {
            return wrong("the volume takes no writes: use 100 % reads".into());
        }
        Layout::new(self, geometry).map(drop)
    }

    fn check_block(&self, bytes: u32, geometry: &Geometry) -> Result<(), Error> {
        let wrong = |text: String| Err(Error::Plan(text));
        if bytes == 0 || bytes % geometry.block_size != 0 {
            let size = geometry.block_size;
            return wrong(format!(
                "a block of {bytes} bytes is not made of whole logical blocks, which have {size} \
                 bytes here"
            ));
        }
        let most = if self.keeps_data() { MAX_KEPT_BLOCK } else { MAX_BLOCK };
        if bytes > most {
            return wrong(format!("a block of {bytes} bytes is too large: {most} at the most"));
        }
        match geometry.max_transfer {
            Some(limit) if u64::from(bytes) > limit => wrong(format!(
                "the target takes at most {limit} bytes in one command, and the block has \
                 {bytes}: choose a smaller one"
            )),
            _ => Ok(()),
        }
    }
}

/// What to run, on what, and how. `F` is the protocol: see [`Front`](crate::front::Front).
#[derive(Clone, Debug)]
pub struct Plan<F> {
    /// The volume, and how to reach it.
    pub front: F,
    /// Block size, queue depth, mix and duration of the load.
    pub workload: Workload,
    /// Threads that the jobs are spread over; `None`: one for each processor, and no more than
    /// jobs.
    pub threads: Option<usize>,
    /// Processors to keep the threads on, in turn; empty: the system's choice.
    pub processors: Vec<usize>,
    /// The event loop's driver.
    pub driver: DriverChoice,
    /// How long to poll for completions before sleeping. Polling lowers the latency and costs a
    /// processor; zero: not at all.
    pub busy_poll: Duration,
    /// A job ends when a command has not been answered for so long.
    pub command_timeout: Duration,
}

impl<F> Plan<F> {
    /// A plan with the defaults for everything else.
    #[must_use]
    pub fn new(front: F, workload: Workload) -> Self {
        Self {
            front,
            workload,
            threads: None,
            processors: Vec::new(),
            driver: DriverChoice::Auto,
            busy_poll: Duration::ZERO,
            command_timeout: Duration::from_secs(30),
        }
    }
}
