//! One thread: an event loop and the jobs that live on it.
//!
//! A loop iteration takes everything that has happened, lets each job concerned go on, and then sends
//! and receives for all of them in one system call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use lunet_ring::{Counters, Event, Ring};

use super::Note;
use super::job::{Job, Phase};
use super::transport::{Lane, Transport};
use crate::outcome::{JobOutcome, Second, Stage, ThreadOutcome, Work};
use crate::usage::Usage;

/// How often time limits and the interruption are checked, at least.
const TICK: Duration = Duration::from_millis(50);

/// How long data of large reads may gather before it is received.
const GATHER: Duration = Duration::from_micros(100);

/// The time that a report covers.
const SECOND: Duration = Duration::from_secs(1);

/// The ends of a run's stages, since its start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub ramp: Duration,
    /// The end of the load, ramp included.
    pub end: Option<Duration>,
}

/// What a thread leaves behind.
pub(super) struct End {
    pub jobs: Vec<JobOutcome>,
    pub thread: ThreadOutcome,
    /// When the load's last command ended, since the start.
    pub loaded: Duration,
    pub interrupted: bool,
    /// The event loop failed.
    pub failure: Option<std::io::Error>,
}

pub(super) struct Shard<'a, T: Transport> {
    number: usize,
    ring: Ring,
    transport: T,
    lanes: Vec<T::Lane>,
    times: Times,
    start: Instant,
    now: Duration,
    stop: &'a AtomicBool,
    notes: Sender<Note>,
    stage: Stage,
    /// When this second began, and ends at the latest.
    second: (Duration, Duration),
    /// What the thread had used at the end of the ramp.
    before: (Usage, Counters),
    used: Option<(Usage, Counters)>,
    loaded: Duration,
    next_look: Duration,
    interrupted: bool,
}

impl<'a, T: Transport> Shard<'a, T> {
    pub fn new(
        number: usize,
        ring: Ring,
        (transport, lanes): (T, Vec<T::Lane>),
        (times, start): (Times, Instant),
        stop: &'a AtomicBool,
        notes: Sender<Note>,
    ) -> Self {
        let stage = if times.ramp.is_zero() { Stage::Load } else { Stage::Ramp };
        let before = (Usage::of_this_thread(), ring.counters());
        let mut shard = Self {
            number,
            ring,
            transport,
            lanes,
            times,
            start,
            now: Duration::ZERO,
            stop,
            notes,
            stage,
            second: (Duration::ZERO, Duration::ZERO),
            before,
            used: None,
            loaded: Duration::ZERO,
            next_look: Duration::ZERO,
            interrupted: false,
        };
        shard.second.1 = shard.second_end();
        shard
    }

    /// Runs until every job is over.
    pub fn run(mut self) -> End {
        let mut events = Vec::with_capacity(256);
        let mut failure = None;
        while self.jobs().any(|job| job.phase != Phase::Over) {
            self.send_and_receive();
            if let Err(error) = self.gather().and_then(|()| self.wait(&mut events)) {
                failure = Some(error);
                break;
            }
            self.now = self.start.elapsed();
            for event in events.drain(..) {
                self.transport.handle(event, &mut self.lanes, self.now);
            }
            self.transport.deliver(&mut self.lanes, self.now);
            if self.now >= self.next_look {
                self.look();
            }
        }
        // The sockets that were closed last.
        self.send_and_receive();
        self.finish_load();
        self.end(failure)
    }

    fn jobs(&self) -> impl Iterator<Item = &Job<T::Connection>> {
        self.lanes.iter().map(Lane::job)
    }

    /// Lets data gather where all connections have plenty of it under way.
    fn gather(&mut self) -> std::io::Result<()> {
        match self.lanes.iter().all(Lane::may_gather) {
            true => self.ring.gather(GATHER),
            false => Ok(()),
        }
    }

    fn wait(&mut self, events: &mut Vec<Event>) -> std::io::Result<()> {
        let patience = self.patience();
        self.ring.wait_with(Some(patience), events, &mut self.transport)
    }

    /// Lets every job that something has happened to go on.
    fn send_and_receive(&mut self) {
        let counting = self.stage != Stage::Ramp;
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            if !std::mem::take(lane.dirty()) {
                continue;
            }
            let before = lane.job().phase;
            lane.job_mut().top_up(self.now, self.ring.arena(), counting);
            lane.advance(self.now, &mut self.ring);
            if lane.job().phase != before {
                // The next phase has something to send as well.
                lane.job_mut().top_up(self.now, self.ring.arena(), counting);
                lane.advance(self.now, &mut self.ring);
                self.next_look = self.now;
            }
            lane.flush(&mut self.ring, number as u64);
        }
        self.transport.flush();
    }

    /// How long the loop may sleep.
    fn patience(&self) -> Duration {
        self.next_look.saturating_sub(self.now)
    }

    /// Checks what does not come with events: time, rates, the interruption.
    fn look(&mut self) {
        if self.now >= self.second.1 {
            self.end_second();
        }
        let over = self.times.end.is_some_and(|end| self.now >= end);
        let stopped = self.stop.load(Ordering::Relaxed);
        for lane in &mut self.lanes {
            let job = lane.job_mut();
            if stopped || (over && job.phase == Phase::Load) {
                self.interrupted |= stopped && !matches!(job.phase, Phase::Over);
                job.stop();
            }
            job.check_timeout(self.now);
            *lane.dirty() = true;
        }
        if self.stage != Stage::ReadBack && !self.jobs().any(Job::is_loading) {
            self.finish_load();
        }
        let due = self.jobs().filter_map(Job::due).min();
        let times = [Some(self.second.1), self.times.end.filter(|&end| end > self.now), due];
        let next = times.into_iter().flatten().fold(self.now + TICK, Duration::min);
        // Waking more often costs more than the rate gains in evenness.
        self.next_look = next.max(self.now + Duration::from_micros(50));
    }

    /// The load's last command has ended.
    fn finish_load(&mut self) {
        if self.stage == Stage::ReadBack {
            return;
        }
        self.used = Some((Usage::of_this_thread(), self.ring.counters()));
        self.loaded = self.now;
        self.report();
        self.stage = Stage::ReadBack;
    }

    fn end_second(&mut self) {
        self.report();
        if self.stage == Stage::Ramp && self.now >= self.times.ramp {
            self.stage = Stage::Load;
            self.before = (Usage::of_this_thread(), self.ring.counters());
        }
        // The next second begins where this one should have ended, so that they stay in step.
        self.second.0 = self.second.1;
        self.second.1 = self.second_end();
    }

    /// A second ends after a second, and at the end of the ramp.
    fn second_end(&self) -> Duration {
        let (begin, ramp) = (self.second.0, self.times.ramp);
        if begin < ramp { (begin + SECOND).min(ramp) } else { begin + SECOND }
    }

    fn report(&mut self) {
        let ramp = self.stage == Stage::Ramp;
        let mut work = Work::default();
        for lane in &mut self.lanes {
            lane.job_mut().end_second(ramp, &mut work);
        }
        let at = self.second.0;
        let length = self.now.min(self.second.1).saturating_sub(at);
        let second = Second { at, length, ramp, work };
        let note = Note::Second(self.number, Box::new(second), self.stage, self.done());
        // Nobody listens any more only if the run was given up.
        let _ = self.notes.send(note);
    }

    /// The part of the stage that is done.
    fn done(&self) -> Option<f64> {
        let (now, ramp) = (self.now.as_secs_f64(), self.times.ramp.as_secs_f64());
        let count = self.lanes.len().max(1) as f64;
        let mean =
            |part: &dyn Fn(&Job<T::Connection>) -> f64| self.jobs().map(part).sum::<f64>() / count;
        match self.stage {
            Stage::Ramp => Some(now / ramp),
            Stage::Load => {
                let time = self.times.end.map(|end| (now - ramp) / (end.as_secs_f64() - ramp));
                let size = self.jobs().next().and_then(|job| job.load.size);
                let bytes = size.map(|size| mean(&|job| job.issued as f64 / size as f64));
                [time, bytes].into_iter().flatten().reduce(f64::max)
            }
            Stage::ReadBack => Some(mean(&|job| {
                job.ledger.as_ref().map_or(1.0, crate::verify::Ledger::checked_part)
            })),
        }
        .map(|done| done.clamp(0.0, 1.0))
    }

    fn end(self, failure: Option<std::io::Error>) -> End {
        let (before, counters) = self.before;
        let (used, last) = self.used.unwrap_or((before, counters));
        let thread = ThreadOutcome {
            thread: self.number,
            usage: used.since(before),
            waits: last.waits - counters.waits,
            transfers: last.operations - counters.operations,
        };
        let outcome = |job: Job<T::Connection>| JobOutcome {
            job: job.number,
            thread: self.number,
            work: job.total,
            errors: job.errors.into_counts(),
            verify: job.ledger.map(|ledger| {
                let mut verify = ledger.outcome;
                // A job that ends early has not read all of it back.
                verify.incomplete |= job.failed.is_some();
                verify
            }),
            failed: job.failed,
        };
        let jobs = self.lanes.into_iter().map(Lane::into_job).map(outcome).collect();
        let (loaded, interrupted) = (self.loaded, self.interrupted);
        End { jobs, thread, loaded, interrupted, failure }
    }
}
