//! What follows from the end of a job's commands.

use std::fmt;
use std::time::Duration;

use lunet_ring::Buf;

use super::job::{Job, Phase};
use super::slots::{Op, Waiting};
use crate::front::{Connection, Data, Ending};
use crate::outcome::{ErrorCount, Kind};
use crate::workload::OnError;

/// How long a busy target is given before a command is sent again.
const PAUSE: Duration = Duration::from_millis(10);

/// Most kinds of errors that are told apart.
const MOST_ERRORS: usize = 64;

/// How an operation failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failure<F> {
    /// A read returned less data than was asked for.
    Short,
    /// As the protocol says.
    Command(F),
}

impl<F: fmt::Display> fmt::Display for Failure<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short => f.write_str("less data was read than was asked for"),
            Self::Command(failure) => failure.fmt(f),
        }
    }
}

/// Operations of one kind that failed alike.
struct Alike<F> {
    kind: Kind,
    failure: Failure<F>,
    count: u64,
    first_lba: u64,
}

/// The errors of a job, by kind.
pub(super) struct Errors<F>(Vec<Alike<F>>);

impl<F> Default for Errors<F> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<F: Copy + Eq + fmt::Display> Errors<F> {
    fn count(&mut self, kind: Kind, failure: Failure<F>, lba: u64) {
        let same = |error: &&mut Alike<F>| error.kind == kind && error.failure == failure;
        if let Some(error) = self.0.iter_mut().find(same) {
            error.count += 1;
        } else if self.0.len() < MOST_ERRORS {
            self.0.push(Alike { kind, failure, count: 1, first_lba: lba });
        }
    }

    pub fn into_counts(self) -> Vec<ErrorCount> {
        let count = |error: Alike<F>| {
            let Alike { kind, failure, count, first_lba } = error;
            ErrorCount { kind, failure: failure.to_string(), count, first_lba }
        };
        self.0.into_iter().map(count).collect()
    }
}

impl<C: Connection> Job<C> {
    /// A command has ended.
    pub(super) fn ended(&mut self, at: u32, data: Data, ending: Ending<C::Failure>, now: Duration) {
        let slot = self.slots.get(at);
        let (op, blocks) = (slot.op, slot.blocks);
        let bytes = blocks * self.load.block_size;
        match ending {
            Ending::Done(received) if op.reads() && received < bytes => {
                self.bad(at, data, Failure::Short, now);
            }
            Ending::Done(_) => self.good(at, data, u64::from(bytes), now),
            Ending::Again => self.retry(at, data, now),
            Ending::Busy => self.retry(at, data, now + PAUSE),
            Ending::Failed(failure) => self.bad(at, data, Failure::Command(failure), now),
        }
    }

    fn retry(&mut self, at: u32, data: Data, due: Duration) {
        self.second.retries += 1;
        self.slots.waiting.push(Waiting { slot: at, due, data: Some(data) });
    }

    fn good(&mut self, at: u32, data: Data, bytes: u64, now: Duration) {
        let slot = self.slots.get(at);
        let (op, lba, blocks) = (slot.op, slot.lba, slot.blocks);
        let time = now.saturating_sub(slot.sent);
        match op {
            Op::Read => self.second.read.record(bytes, time),
            Op::Write => self.second.write.record(bytes, time),
            Op::Flush => self.second.flush.record(0, time),
            Op::Check | Op::Again => {}
        }
        if let Some(ledger) = &mut self.ledger {
            match (op, data) {
                (Op::Write, Data::Write(source)) => {
                    ledger.written(lba, blocks, Some(slot.generation));
                    self.buffers.give_back(source);
                }
                (Op::Again, Data::Read(buf)) => {
                    let second = ledger.look(lba, &buf);
                    if let Some(first) = self.slots.get_mut(at).first.take() {
                        ledger.judge(&first, Some(&second), now);
                    }
                }
                (Op::Read | Op::Check, Data::Read(buf)) if !ledger.is_right(lba, &buf) => {
                    return self.look_again(at, &buf, now);
                }
                _ => {}
            }
        }
        self.slots.remove(at);
    }

    /// What was read is wrong: it is read again, with all that belongs to it, before any write may
    /// change it.
    fn look_again(&mut self, at: u32, buf: &Buf, now: Duration) {
        let Some(ledger) = &self.ledger else { return };
        let slot = self.slots.get(at);
        let (lba, blocks) = (slot.lba, slot.blocks);
        let first = ledger.look(lba, buf);
        let core = lba..lba + u64::from(blocks);
        let range = self.slots.clip(ledger.extent(lba, blocks), core);
        let slot = self.slots.get_mut(at);
        slot.op = Op::Again;
        slot.lba = range.start;
        slot.blocks = (range.end - range.start) as u32;
        slot.sent = now;
        slot.first = Some(Box::new(first));
        self.slots.waiting.push(Waiting { slot: at, due: now, data: None });
    }

    fn bad(&mut self, at: u32, data: Data, failure: Failure<C::Failure>, now: Duration) {
        let slot = self.slots.get_mut(at);
        let (op, lba, blocks, first) = (slot.op, slot.lba, slot.blocks, slot.first.take());
        if let Some(ledger) = &mut self.ledger {
            match op {
                Op::Write => ledger.written(lba, blocks, None),
                Op::Again => {
                    if let Some(first) = first {
                        ledger.judge(&first, None, now);
                    }
                }
                Op::Check => ledger.outcome.incomplete = true,
                Op::Read | Op::Flush => {}
            }
            if let Data::Write(source) = data {
                self.buffers.give_back(source);
            }
        }
        self.slots.remove(at);
        self.second.errors += 1;
        self.errors.count(op.kind(), failure, lba);
        let over = matches!(self.phase, Phase::Over | Phase::Leaving(_));
        if self.load.on_error == OnError::Stop && !over {
            self.fail(format!("a {} at LBA {lba} failed: {failure}", op.name()));
        }
    }
}
