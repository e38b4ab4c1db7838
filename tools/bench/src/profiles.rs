//! What is run: profiles, as data.

use crate::model::{Pattern, Sync, Workload};

/// What makes the system calls of fio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Linux's asynchronous I/O: works wherever fio does.
    Libaio,
    /// glibc's threads.
    PosixAio,
    /// io_uring: the cheapest, where it is not forbidden.
    IoUring,
}

impl Engine {
    /// As fio calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Libaio => "libaio",
            Self::PosixAio => "posixaio",
            Self::IoUring => "io_uring",
        }
    }
}

/// How fio runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// What makes the system calls.
    pub engine: Engine,
    /// Whether fio leaves out most looks at the clock, and with them the latencies.
    pub gtod_reduce: bool,
    /// Whether each write has data of its own: drives that compress do not see the same block again and again.
    pub refill: bool,
}

impl Default for Style {
    fn default() -> Self {
        Self { engine: Engine::Libaio, gtod_reduce: false, refill: true }
    }
}

/// Workloads that are run together.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// The word for it on the command line.
    pub name: &'static str,
    /// What it is for, in a sentence.
    pub about: &'static str,
    /// How often everything is repeated.
    pub rounds: u32,
    /// How fio runs.
    pub style: Style,
    /// What is run in each round.
    pub workloads: Vec<Workload>,
}

/// Starting fio, laying out a file's start and reading what it said take about this long, in seconds.
const OVERHEAD: f64 = 0.8;

impl Profile {
    /// How long it takes against so many targets, in seconds, without the filling of files.
    pub fn seconds(&self, targets: usize) -> f64 {
        let run = |load: &Workload| load.seconds + load.ramp_seconds + OVERHEAD;
        let round: f64 = self.workloads.iter().map(run).sum();
        round * f64::from(self.rounds) * targets as f64
    }

    /// All profiles.
    pub fn all() -> [Self; 3] {
        [quick(), recipe(), sweep()]
    }

    /// Finds a profile by the name that `--profile` takes.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|profile| profile.name == name)
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// What each job works on in `quick` and `sweep`.
const SIZE: u64 = 1 << 30;

fn load(block: u64, read_percent: u8, pattern: Pattern, depth: u32, seconds: f64) -> Workload {
    let mut load = Workload {
        name: String::new(),
        block_bytes: block,
        read_percent,
        pattern,
        depth,
        jobs: 1,
        sync: Sync::Cached,
        seconds,
        ramp_seconds: 0.0,
        size_bytes: Some(SIZE),
        rate_mib_per_s: None,
    };
    load.name = load.words();
    load
}

fn with(mut load: Workload, change: impl FnOnce(&mut Workload)) -> Workload {
    change(&mut load);
    load.name = load.words();
    load
}

/// Three loads that say most, in less than a minute for two targets.
fn quick() -> Profile {
    Profile {
        name: "quick",
        about: "Small reads, large mixed I/O and one at a time: a first look in under a minute.",
        rounds: 6,
        style: Style::default(),
        workloads: vec![
            load(4 * KIB, 100, Pattern::Random, 32, 0.7),
            load(128 * KIB, 50, Pattern::Random, 32, 0.7),
            load(4 * KIB, 100, Pattern::Random, 1, 0.7),
        ],
    }
}

/// The line of fio from which lunet set out: 128k, reads and writes half and half, at random, 12 jobs of depth 32 through
/// posixaio with a file of 256 MiB each, 60 s after 10 s of ramp.
fn recipe() -> Profile {
    let line = with(load(128 * KIB, 50, Pattern::Random, 32, 60.0), |load| {
        (load.jobs, load.ramp_seconds, load.size_bytes) = (12, 10.0, Some(256 * MIB));
    });
    Profile {
        name: "recipe",
        about: "The fio line of the how-to, parameter for parameter: throughput alone, no latency.",
        rounds: 6,
        style: Style { engine: Engine::PosixAio, gtod_reduce: true, refill: false },
        workloads: vec![line],
    }
}

/// From 4k to 1M, reads, writes and both, depth 1 to 128, stable writes, 1 to 8 jobs.
fn sweep() -> Profile {
    const SECONDS: f64 = 2.0;
    let mut workloads = Vec::new();
    for block in [4, 16, 64, 128, 256, 1024] {
        for reads in [100, 0, 70] {
            workloads.push(load(block * KIB, reads, Pattern::Random, 32, SECONDS));
        }
    }
    for depth in [1, 4, 8, 16, 64, 128] {
        workloads.push(load(4 * KIB, 100, Pattern::Random, depth, SECONDS));
    }
    for reads in [100, 0] {
        workloads.push(load(MIB, reads, Pattern::Sequential, 8, SECONDS));
    }
    for (block, depth) in [(4, 1), (4, 16), (128, 1)] {
        let stable = load(block * KIB, 0, Pattern::Random, depth, SECONDS);
        workloads.push(with(stable, |load| load.sync = Sync::EachWrite));
    }
    for jobs in [2, 4, 8] {
        for block in [4, 128] {
            let many = load(block * KIB, 100, Pattern::Random, 32, SECONDS);
            workloads.push(with(many, |load| {
                (load.jobs, load.size_bytes) = (jobs, Some(SIZE / u64::from(jobs)));
            }));
        }
    }
    Profile {
        name: "sweep",
        about: "Block sizes, directions, depths, stable writes and jobs: where the curve bends.",
        rounds: 6,
        style: Style::default(),
        workloads,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn quick_takes_less_than_a_minute_for_two_targets() {
        let quick = Profile::named("quick").expect("it is there");
        assert!(quick.seconds(2) < 60.0, "{}", quick.seconds(2));
        assert!(Profile::named("quickly").is_none());
    }

    #[test]
    fn every_profile_has_rounds_enough_for_an_interval() {
        for profile in Profile::all() {
            assert!(profile.rounds as usize >= crate::stats::FEWEST, "{}", profile.name);
            let names: HashSet<&str> =
                profile.workloads.iter().map(|load| load.name.as_str()).collect();
            assert_eq!(names.len(), profile.workloads.len(), "{}: names are unique", profile.name);
        }
    }

    #[test]
    fn the_sweep_covers_what_it_says() {
        let sweep = Profile::named("sweep").expect("it is there");
        let all =
            |of: fn(&Workload) -> u64| -> HashSet<u64> { sweep.workloads.iter().map(of).collect() };
        let blocks = all(|load| load.block_bytes);
        assert!([4 * KIB, 16 * KIB, 128 * KIB, MIB].iter().all(|block| blocks.contains(block)));
        let depths = all(|load| load.depth.into());
        assert!([1, 4, 32, 128].iter().all(|depth| depths.contains(depth)));
        assert!(sweep.workloads.iter().any(|load| load.sync == Sync::EachWrite));
        assert!(sweep.workloads.iter().any(|load| load.jobs == 8));
    }
}
