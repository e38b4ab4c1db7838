//! The load of one connection: what it sends, and what follows from the answers.

use std::rc::Rc;
use std::time::Duration;

use super::answer::Errors;
use super::data::{Buffers, Pattern};
use super::pacer::Pacer;
use super::slots::Slots;
use crate::front::{Connection, Cx, Event, StreamConnection};
use crate::layout::Picker;
use crate::outcome::Work;
use crate::verify::Ledger;
use crate::workload::OnError;

/// What all jobs of a run have in common.
pub struct Load {
    pub block_size: u32,
    pub depth: u32,
    /// The largest block in bytes.
    pub largest: u32,
    /// Reads are received into memory.
    pub keeps_data: bool,
    pub fua: bool,
    pub flush_every: Option<u32>,
    pub on_error: OnError,
    pub read_back: bool,
    pub command_timeout: Duration,
    /// Bytes that each job moves behind the ramp.
    pub size: Option<u64>,
}

/// How far a job has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It makes load.
    Load,
    /// It waits for the last commands to end.
    Draining,
    /// It reads back what it has written.
    ReadBack,
    /// It ends the connection, until this time at the latest.
    Leaving(Duration),
    /// The connection is over.
    Over,
}

/// Time for the answer to a logout.
const LEAVE: Duration = Duration::from_secs(2);

/// One connection that makes load. It moves no bytes itself.
pub struct Job<C: Connection> {
    pub(super) number: u32,
    pub(super) load: Rc<Load>,
    pub(super) connection: C,
    /// What the connection has reported and the job has not handled yet.
    pub(super) events: Vec<C::Raw>,
    pub(super) out: C::Out,
    pub(super) slots: Slots,
    pub(super) picker: Picker,
    pub(super) pattern: Pattern,
    pub(super) buffers: Buffers,
    pub(super) ledger: Option<Ledger>,
    pub(super) pacer: Option<Pacer>,
    pub(super) phase: Phase,
    /// Bytes asked for behind the ramp.
    pub(super) issued: u64,
    pub(super) writes: u32,
    /// In this second.
    pub(super) second: Work,
    /// Behind the ramp, without this second.
    pub(super) total: Work,
    pub(super) errors: Errors<C::Failure>,
    pub(super) failed: Option<String>,
    has_read_back: bool,
}

/// What a job is made of.
pub(super) struct Parts<C> {
    pub number: u32,
    pub load: Rc<Load>,
    pub connection: C,
    pub picker: Picker,
    pub pattern: Pattern,
    pub ledger: Option<Ledger>,
    pub pacer: Option<Pacer>,
}

impl<C: Connection> Job<C> {
    pub(super) fn new(parts: Parts<C>) -> Self {
        let Parts { number, load, connection, picker, pattern, ledger, pacer } = parts;
        Self {
            number,
            connection,
            events: Vec::with_capacity(load.depth as usize),
            out: C::Out::default(),
            slots: Slots::new(load.depth),
            picker,
            pattern,
            buffers: Buffers::new(load.largest as usize),
            ledger,
            pacer,
            phase: Phase::Load,
            issued: 0,
            writes: 0,
            second: Work::default(),
            total: Work::default(),
            errors: Errors::default(),
            failed: None,
            has_read_back: false,
            load,
        }
    }

    /// Ends the load, or the reading back.
    pub fn stop(&mut self) {
        match self.phase {
            Phase::Load => self.phase = Phase::Draining,
            Phase::ReadBack => {
                self.phase = Phase::Draining;
                if let Some(ledger) = &mut self.ledger {
                    ledger.outcome.incomplete = true;
                }
            }
            _ => {}
        }
    }

    /// Gives up, for a reason in one sentence. The first reason counts.
    pub fn fail(&mut self, reason: String) {
        self.failed.get_or_insert(reason);
        self.stop();
    }

    /// Gives something that has arrived to the connection, and does what follows.
    pub fn arrived(
        &mut self,
        now: Duration,
        take: impl FnOnce(&mut C, &mut Cx<'_, C::Raw, C::Out>),
    ) {
        let Self { connection, out, events, .. } = self;
        take(connection, &mut Cx { now, out, events });
        self.handle_events(now);
    }

    /// The transport was closed or failed.
    pub fn closed(&mut self, now: Duration) {
        self.connection.closed(&mut self.events);
        self.handle_events(now);
    }

    /// Does what follows from what the connection has reported.
    fn handle_events(&mut self, now: Duration) {
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..).filter_map(C::event) {
            match event {
                Event::Ended { token, data, ending } => self.ended(token, data, ending, now),
                Event::Left => self.phase = Phase::Over,
                Event::Failed(reason) => {
                    if !matches!(self.phase, Phase::Leaving(_) | Phase::Over) {
                        // It says more than the first command that was lost by it.
                        self.failed = Some(reason);
                    }
                    self.phase = Phase::Over;
                }
                Event::Stop(reason) => self.fail(reason),
            }
        }
        self.events = events;
    }

    /// Goes on to the next phase where nothing is left to do in this one.
    pub fn advance(&mut self, now: Duration) {
        if self.phase == Phase::Draining && self.slots.is_empty() {
            let fresh = self.ledger.as_ref().is_some_and(|ledger| !ledger.outcome.incomplete);
            if fresh && self.load.read_back && self.failed.is_none() && !self.has_read_back {
                self.has_read_back = true;
                self.phase = Phase::ReadBack;
            } else {
                self.phase = match self.connection.leave(now, &mut self.out) {
                    true => Phase::Leaving(now + LEAVE),
                    false => Phase::Over,
                };
            }
        }
        if matches!(self.phase, Phase::Leaving(limit) if now >= limit) {
            self.phase = Phase::Over;
        }
    }

    /// True while it makes load, or waits for the last commands of it.
    pub fn is_loading(&self) -> bool {
        matches!(self.phase, Phase::Load | Phase::Draining) && !self.has_read_back
    }

    /// Gives up if a command has not been answered for too long.
    pub fn check_timeout(&mut self, now: Duration) {
        let limit = self.load.command_timeout;
        if let Some(slot) = self.slots.oldest().filter(|slot| now > slot.sent + limit) {
            let what = slot.op.name();
            self.failed = Some(format!(
                "a {what} at LBA {} was not answered for {} s: look into the target's log",
                slot.lba,
                limit.as_secs()
            ));
            self.phase = Phase::Over;
        }
    }

    /// When it may go on by itself: the next operation of a limited rate, or a retry.
    pub fn due(&self) -> Option<Duration> {
        let pace = match (self.phase, &self.pacer) {
            (Phase::Load, Some(pacer)) => Some(pacer.next()),
            _ => None,
        };
        [pace, self.slots.next_retry()].into_iter().flatten().min()
    }

    /// Ends a second: its work, which counts for the job unless it belongs to the ramp.
    pub fn end_second(&mut self, ramp: bool, sum: &mut Work) {
        sum.add(&self.second);
        if !ramp {
            self.total.add(&self.second);
        }
        self.second.clear();
    }
}

impl<C: StreamConnection> Job<C> {
    /// True if the data of reads goes straight to its place or into nothing. Where it is thrown away
    /// but has a digest, all of it has to be looked at.
    pub fn reads_pass_by(&self) -> bool {
        self.load.keeps_data || !self.connection.has_data_digest()
    }
}
