//! Running a load: threads, and what they report.

mod answer;
mod data;
mod job;
mod messages;
mod pacer;
mod shard;
mod slots;
mod stream;
mod submit;
#[cfg(test)]
mod tests;
mod transport;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use lunet_ring::{Config as RingConfig, Ring};

use self::data::Pattern;
use self::job::{Job, Load, Parts};
use self::pacer::Pacer;
use self::shard::{End, Shard, Times};
use crate::front::{Error, Front, Geometry};
use crate::layout::{Layout, Picker};
use crate::outcome::{Outcome, Progress, Second, Stage, Work};
use crate::rdma::Needs;
use crate::usage::Usage;
use crate::verify::{self, Ledger, VerifyOutcome};
use crate::workload::{MAX_KEPT_BLOCK, Plan, Workload};

pub use self::messages::Messages;
pub use self::stream::Streams;
pub use self::transport::Transport;

/// What a thread tells the one that waits.
enum Note {
    /// Its event loop is there and all its jobs are connected, or it has failed.
    Ready(Result<Vec<String>, Error>),
    /// A second is over.
    Second(usize, Box<Second>, Stage, Option<f64>),
    /// It has ended.
    Ended(usize, Box<End>),
}

/// Arena for what does not come from the depth: second looks.
const SPARE_ARENA: usize = 8 << 20;

/// The most memory of a thread for the data of reads. It is pinned.
const MOST_ARENA: usize = 2 << 30;

/// Entries of a submission queue: a receive and a send for each job, and more would only take
/// another call.
const ENTRIES: u32 = 256;

/// Runs a load until it is done or `stop` is set. `progress` is called about once a second.
///
/// # Errors
/// The volume cannot be reached, or the load cannot be run on it. What goes wrong later is in the
/// [`Outcome`].
pub fn run<F: Front>(
    plan: &Plan<F>,
    stop: &AtomicBool,
    mut progress: impl FnMut(&Progress<'_>),
) -> Result<Outcome, Error> {
    let (volume, geometry) = plan.front.inspect()?;
    plan.workload.check(&geometry)?;
    let layout = Layout::new(&plan.workload, &geometry)?;
    check_memory(&plan.workload, &geometry, &layout)?;
    let jobs = plan.workload.jobs as usize;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = plan.threads.unwrap_or(processors).clamp(1, jobs);
    // Data of an earlier run is not taken for data of this one.
    let key = RandomState::new().build_hasher().finish();
    let common = Common { plan, volume, geometry, layout, key, stop };
    std::thread::scope(|scope| {
        let (notes, heard) = channel();
        let mut go = Vec::new();
        for number in 0..threads {
            let (start, begin) = channel::<Instant>();
            let (notes, common) = (notes.clone(), &common);
            std::thread::Builder::new()
                .name(format!("lunet-load-{number}"))
                .spawn_scoped(scope, move || common.thread(number, threads, &notes, &begin))
                .map_err(Error::Start)?;
            go.push(start);
        }
        drop(notes);
        let remarks = wait_ready(&heard, threads)?;
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        let start = Instant::now();
        for go in &go {
            // A thread that is gone is noticed by the end of its notes.
            let _ = go.send(start);
        }
        let mut gathering = Gathering::new(threads);
        for note in heard {
            match note {
                Note::Second(thread, second, stage, done) => {
                    gathering.second(thread, *second, stage, done, &mut progress);
                }
                Note::Ended(thread, end) => gathering.ended(thread, *end, &mut progress),
                Note::Ready(_) => {}
            }
        }
        gathering.outcome(plan.workload.ramp, geometry, remarks)
    })
}

/// Waits until all threads are ready.
fn wait_ready(heard: &Receiver<Note>, threads: usize) -> Result<Vec<String>, Error> {
    let mut remarks = Vec::new();
    for _ in 0..threads {
        match heard.recv() {
            Ok(Note::Ready(ready)) => remarks = ready?,
            _ => return Err(Error::Start(std::io::Error::other("a thread has ended"))),
        }
    }
    Ok(remarks)
}

fn check_memory(workload: &Workload, geometry: &Geometry, layout: &Layout) -> Result<(), Error> {
    let Some(verify) = workload.verify else { return Ok(()) };
    let blocks = layout.jobs.iter().map(|parts| parts.total()).sum();
    let needed = verify::memory(blocks, entry(workload, geometry));
    if needed <= verify.memory {
        return Ok(());
    }
    Err(Error::Plan(format!(
        "to verify {} MiB in these blocks takes {} MiB of memory, and {} MiB are allowed: choose \
         smaller regions, larger blocks, or allow more",
        (blocks * u64::from(geometry.block_size)) >> 20,
        needed >> 20,
        verify.memory >> 20
    )))
}

/// The most logical blocks that are never written one without the other.
fn entry(workload: &Workload, geometry: &Geometry) -> u32 {
    fn gcd(a: u32, b: u32) -> u32 {
        if b == 0 { a } else { gcd(b, a % b) }
    }
    let sizes = workload.blocks.iter().filter(|block| block.weight > 0);
    sizes.fold(0, |all, block| gcd(all, block.bytes / geometry.block_size)).max(1)
}

/// The connections of a thread, with what moves what they send and receive.
type Lanes<F> = (<F as Front>::Transport, Vec<<<F as Front>::Transport as Transport>::Lane>);

/// What all threads know.
struct Common<'a, F: Front> {
    plan: &'a Plan<F>,
    volume: F::Volume,
    geometry: Geometry,
    layout: Layout,
    key: u64,
    stop: &'a AtomicBool,
}

impl<F: Front> Common<'_, F> {
    fn thread(
        &self,
        number: usize,
        threads: usize,
        notes: &Sender<Note>,
        begin: &Receiver<Instant>,
    ) {
        let (ring, lanes) = match self.prepare(number, threads) {
            Ok(ready) => ready,
            Err(error) => {
                let _ = notes.send(Note::Ready(Err(error)));
                return;
            }
        };
        let _ = notes.send(Note::Ready(Ok(ring.notes().to_vec())));
        // Without a start, another thread has failed: the sockets are closed.
        let Ok(start) = begin.recv() else { return };
        let workload = &self.plan.workload;
        let end = workload.runtime.map(|time| workload.ramp + time);
        let times = Times { ramp: workload.ramp, end };
        let shard = Shard::new(number, ring, lanes, (times, start), self.stop, notes.clone());
        let _ = notes.send(Note::Ended(number, Box::new(shard.run())));
    }

    /// Makes the event loop and connects.
    fn prepare(&self, number: usize, threads: usize) -> Result<(Ring, Lanes<F>), Error> {
        let (plan, workload) = (self.plan, &self.plan.workload);
        if let Some(&processor) = plan.processors.get(number % plan.processors.len().max(1)) {
            lunet_os::cpus::bind(&[processor]).map_err(|error| {
                Error::Plan(format!("processor {processor} cannot be used ({error})"))
            })?;
        }
        let mine = (0..workload.jobs).skip(number).step_by(threads);
        let largest = workload.largest() as usize;
        let buffers = match workload.keeps_data() {
            true => mine.len() * workload.depth as usize * lunet_ring::Arena::cost(largest),
            false => 0,
        };
        if buffers > MOST_ARENA {
            return Err(Error::Plan(format!(
                "the data of reads takes {} MiB of memory in each thread, and {} MiB are the most: \
                 use a smaller depth, smaller blocks, or more threads",
                buffers >> 20,
                MOST_ARENA >> 20
            )));
        }
        let config = RingConfig {
            entries: ENTRIES,
            arena_bytes: buffers + SPARE_ARENA,
            kept_bytes: 0,
            disk_threads: 1,
            driver: plan.driver,
            busy_poll: lunet_ring::BusyPoll::For(plan.busy_poll),
            zero_copy_send: false,
            passthrough: lunet_ring::PassthroughRings::default(),
        };
        let mut ring = Ring::new(&config).map_err(Error::Start)?;
        let load = Rc::new(self.load());
        let pattern = Pattern::new(largest, workload.seed);
        let mut transport = F::Transport::new(&self.needs(mine.len()))?;
        let lanes = mine
            .map(|job| self.lane(job, (&mut ring, &mut transport), load.clone(), pattern.clone()));
        let lanes = lanes.collect::<Result<_, _>>()?;
        transport.begin(&mut ring).map_err(Error::Start)?;
        Ok((ring, (transport, lanes)))
    }

    /// What a thread with so many jobs needs of its transport.
    fn needs(&self, jobs: usize) -> Needs {
        let workload = &self.plan.workload;
        let (largest, verifies) = (workload.largest(), workload.verify.is_some());
        let widest = if verifies { largest.max(MAX_KEPT_BLOCK) } else { largest };
        let lines = jobs as u32;
        Needs { lines, depth: workload.depth, largest, widest, constant: !verifies }
    }

    fn load(&self) -> Load {
        let (plan, workload) = (self.plan, &self.plan.workload);
        Load {
            block_size: self.geometry.block_size,
            depth: workload.depth,
            largest: workload.largest(),
            keeps_data: workload.keeps_data(),
            fua: workload.fua,
            flush_every: workload.flush_every,
            on_error: workload.on_error,
            read_back: workload.verify.is_some_and(|verify| verify.read_back),
            command_timeout: plan.command_timeout,
            size: workload.size.map(|size| size.div_ceil(workload.jobs.into())),
        }
    }

    fn lane(
        &self,
        number: u32,
        (ring, transport): (&mut Ring, &mut F::Transport),
        load: Rc<Load>,
        pattern: Pattern,
    ) -> Result<<F::Transport as Transport>::Lane, Error> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        let (workload, block_size) = (&self.plan.workload, self.geometry.block_size);
        let (opened, connection) = self.plan.front.connect(&self.volume, transport)?;
        let parts = self.layout.jobs[number as usize].clone();
        let entry = entry(workload, &self.geometry);
        let ledger = workload.verify;
        let ledger = ledger.map(|_| Ledger::new(parts.clone(), self.key, block_size, entry));
        let job = Job::new(Parts {
            number,
            load,
            connection,
            picker: Picker::new(workload, block_size, parts, number),
            pattern,
            ledger,
            pacer: workload.rate.map(|rate| Pacer::new(rate, workload.jobs)),
        });
        Ok(transport.lane(job, opened, ring))
    }
}

/// What the threads have told so far.
struct Gathering {
    /// Seconds that each thread has told.
    told: Vec<usize>,
    ended: Vec<Option<End>>,
    seconds: Vec<Second>,
    /// The stage and the part of it that is done, as last told.
    stage: Stage,
    done: Option<f64>,
    /// Seconds that were passed on.
    shown: usize,
}

impl Gathering {
    fn new(threads: usize) -> Self {
        Self {
            told: vec![0; threads],
            ended: (0..threads).map(|_| None).collect(),
            seconds: Vec::new(),
            stage: Stage::Ramp,
            done: None,
            shown: 0,
        }
    }

    fn second(
        &mut self,
        thread: usize,
        second: Second,
        stage: Stage,
        done: Option<f64>,
        progress: &mut impl FnMut(&Progress<'_>),
    ) {
        let index = self.told[thread];
        self.told[thread] += 1;
        (self.stage, self.done) = (stage, done);
        if stage == Stage::ReadBack {
            if thread == 0 {
                let elapsed = second.at + second.length;
                progress(&Progress { stage, elapsed, done, second: &second });
            }
            return;
        }
        match self.seconds.get_mut(index) {
            Some(sum) => {
                sum.work.add(&second.work);
                sum.length = sum.length.max(second.length);
            }
            None => self.seconds.push(second),
        }
        self.show(progress);
    }

    fn ended(&mut self, thread: usize, end: End, progress: &mut impl FnMut(&Progress<'_>)) {
        self.ended[thread] = Some(end);
        self.show(progress);
    }

    /// Passes on what all threads have told.
    fn show(&mut self, progress: &mut impl FnMut(&Progress<'_>)) {
        let running = self.told.iter().zip(&self.ended).filter(|(_, ended)| ended.is_none());
        let complete = running.map(|(&told, _)| told).min().unwrap_or(usize::MAX);
        while self.shown < complete.min(self.seconds.len()) {
            let second = &self.seconds[self.shown];
            let stage = if second.ramp { Stage::Ramp } else { Stage::Load };
            let elapsed = second.at + second.length;
            progress(&Progress { stage, elapsed, done: self.done, second });
            self.shown += 1;
        }
    }

    fn outcome(
        self,
        ramp: Duration,
        geometry: Geometry,
        notes: Vec<String>,
    ) -> Result<Outcome, Error> {
        let mut outcome = Outcome {
            geometry,
            elapsed: Duration::ZERO,
            work: Work::default(),
            jobs: Vec::new(),
            timeline: self.seconds,
            threads: Vec::new(),
            usage: Usage::default(),
            verify: None,
            interrupted: false,
            notes,
        };
        for end in self.ended {
            let Some(end) = end else {
                return Err(Error::Start(std::io::Error::other("a thread has ended by itself")));
            };
            if let Some(error) = end.failure {
                return Err(Error::Start(error));
            }
            outcome.elapsed = outcome.elapsed.max(end.loaded.saturating_sub(ramp));
            outcome.interrupted |= end.interrupted;
            outcome.usage += end.thread.usage;
            outcome.threads.push(end.thread);
            outcome.jobs.extend(end.jobs);
        }
        outcome.jobs.sort_by_key(|job| job.job);
        for job in &outcome.jobs {
            outcome.work.add(&job.work);
            if let Some(verify) = &job.verify {
                outcome.verify.get_or_insert_with(VerifyOutcome::default).add(verify);
            }
        }
        outcome.timeline.retain(|second| !second.length.is_zero());
        Ok(outcome)
    }
}
