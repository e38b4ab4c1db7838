//! One thread: an event loop and the jobs that live on it.
//!
//! A turn of the loop takes everything that has happened, lets each session concerned answer it, and
//! then sends and receives for all of them in one system call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use lunet_ring::{Counters, Event, Ring, Token};

use super::Note;
use super::job::{Job, Phase};
use crate::outcome::{JobOutcome, Second, Stage, ThreadOutcome, Work};
use crate::usage::Usage;

/// The kinds of tokens, in their top byte.
const RECEIVE: u64 = 1 << 56;
const SEND: u64 = 2 << 56;
const KIND: u64 = 0xFF << 56;

/// How often time limits and the interruption are looked at, at least.
const TICK: Duration = Duration::from_millis(50);

/// Data of large reads may gather so long before it is taken in.
const GATHER: Duration = Duration::from_micros(100);

/// A report covers so much.
const SECOND: Duration = Duration::from_secs(1);

/// When a run is at what, since its start.
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
    /// The last answer of the load, since the start.
    pub loaded: Duration,
    pub interrupted: bool,
    /// The event loop failed.
    pub failure: Option<std::io::Error>,
}

pub(super) struct Shard<'a> {
    number: usize,
    ring: Ring,
    jobs: Vec<Job>,
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

impl<'a> Shard<'a> {
    pub fn new(
        number: usize,
        ring: Ring,
        jobs: Vec<Job>,
        (times, start): (Times, Instant),
        stop: &'a AtomicBool,
        notes: Sender<Note>,
    ) -> Self {
        let stage = if times.ramp.is_zero() { Stage::Load } else { Stage::Ramp };
        let before = (Usage::of_this_thread(), ring.counters());
        let mut shard = Self {
            number,
            ring,
            jobs,
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
        while self.jobs.iter().any(|job| job.phase != Phase::Over) {
            self.send_and_receive();
            if let Err(error) =
                self.gather().and_then(|()| self.ring.wait(Some(self.patience()), &mut events))
            {
                failure = Some(error);
                break;
            }
            self.now = self.start.elapsed();
            for event in events.drain(..) {
                self.handle(event);
            }
            if self.now >= self.next_look {
                self.look();
            }
        }
        // The sockets that were closed last.
        self.send_and_receive();
        self.finish_load();
        self.end(failure)
    }

    /// Lets data gather where all sessions have plenty of it under way.
    fn gather(&mut self) -> std::io::Result<()> {
        match self.jobs.iter().all(Job::may_gather) {
            true => self.ring.gather(GATHER),
            false => Ok(()),
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Received { token, bufs, result } => {
                if let Some(job) = self.jobs.get_mut((token.0 & !KIND) as usize) {
                    job.received(bufs, result, self.now);
                    job.dirty = true;
                }
            }
            Event::Sent { token, chain, result } => {
                if let Some(job) = self.jobs.get_mut((token.0 & !KIND) as usize) {
                    job.sent(chain, result.is_ok(), self.now);
                    job.dirty = true;
                }
            }
            _ => {}
        }
    }

    /// Lets every session that was touched in this turn go on.
    fn send_and_receive(&mut self) {
        let counting = self.stage != Stage::Ramp;
        for (number, job) in self.jobs.iter_mut().enumerate() {
            if !std::mem::take(&mut job.dirty) {
                continue;
            }
            let before = job.phase;
            job.top_up(self.now, self.ring.arena(), counting);
            job.advance(self.now, &mut self.ring);
            if job.phase != before {
                // The next phase has something to send as well.
                job.top_up(self.now, self.ring.arena(), counting);
                job.advance(self.now, &mut self.ring);
                self.next_look = self.now;
            }
            let number = number as u64;
            job.flush(&mut self.ring, Token(SEND | number), Token(RECEIVE | number));
        }
    }

    /// How long the loop may sleep.
    fn patience(&self) -> Duration {
        self.next_look.saturating_sub(self.now)
    }

    /// Looks at what does not come with events: time, rates, the interruption.
    fn look(&mut self) {
        if self.now >= self.second.1 {
            self.end_second();
        }
        let over = self.times.end.is_some_and(|end| self.now >= end);
        let stopped = self.stop.load(Ordering::Relaxed);
        for job in &mut self.jobs {
            if stopped || (over && job.phase == Phase::Load) {
                self.interrupted |= stopped && !matches!(job.phase, Phase::Over);
                job.stop();
            }
            job.look_at_the_clock(self.now);
            job.dirty = true;
        }
        if self.stage != Stage::ReadBack && !self.jobs.iter().any(Job::is_loading) {
            self.finish_load();
        }
        let due = self.jobs.iter().filter_map(Job::due).min();
        let times = [Some(self.second.1), self.times.end.filter(|&end| end > self.now), due];
        let next = times.into_iter().flatten().fold(self.now + TICK, Duration::min);
        // Waking more often costs more than the rate gains in evenness.
        self.next_look = next.max(self.now + Duration::from_micros(50));
    }

    /// The last answer of the load has come.
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
        for job in &mut self.jobs {
            job.end_second(ramp, &mut work);
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
        let count = self.jobs.len().max(1) as f64;
        let mean = |part: &dyn Fn(&Job) -> f64| self.jobs.iter().map(part).sum::<f64>() / count;
        match self.stage {
            Stage::Ramp => Some(now / ramp),
            Stage::Load => {
                let time = self.times.end.map(|end| (now - ramp) / (end.as_secs_f64() - ramp));
                let size = self.jobs.first().and_then(|job| job.load.size);
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
        let outcome = |job: Job| JobOutcome {
            job: job.number,
            thread: self.number,
            work: job.total,
            errors: job.errors,
            verify: job.ledger.map(|ledger| {
                let mut verify = ledger.outcome;
                // Who ends early has not read all of it back.
                verify.incomplete |= job.failed.is_some();
                verify
            }),
            failed: job.failed,
            negotiated: job.info.negotiated,
        };
        let jobs = self.jobs.into_iter().map(outcome).collect();
        let (loaded, interrupted) = (self.loaded, self.interrupted);
        End { jobs, thread, loaded, interrupted, failure }
    }
}
