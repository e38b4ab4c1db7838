//! What becomes of the answers to a job's commands.

use std::time::Duration;

use lunet_iscsi::initiator::{Data, Finished};
use lunet_ring::Buf;

use super::data::Source;
use super::job::{Job, Phase};
use super::slots::{Op, Waiting};
use crate::outcome::ErrorCount;
use crate::sense::Failure;
use crate::workload::OnError;

/// A target that is busy is left alone so long.
const PAUSE: Duration = Duration::from_millis(10);

/// Most kinds of errors that are told apart.
const MOST_ERRORS: usize = 64;

impl Job {
    /// A command has ended.
    pub(super) fn finished(&mut self, finished: Finished<Buf, Source>, now: Duration) {
        let at = finished.token as u32;
        let slot = self.slots.get(at);
        let (op, blocks) = (slot.op, slot.blocks);
        let bytes = blocks * self.load.block_size;
        let expected = if op.reads() { bytes } else { 0 };
        match Failure::of(&finished.outcome, expected) {
            None => self.good(at, finished.data, u64::from(bytes), now),
            Some(failure) if failure.is_attention() || failure.is_busy() => {
                self.second.retries += 1;
                let due = if failure.is_busy() { now + PAUSE } else { now };
                let data = Some(finished.data);
                self.slots.waiting.push(Waiting { slot: at, due, data });
            }
            Some(failure) => self.bad(at, finished.data, failure, now),
        }
    }

    fn good(&mut self, at: u32, data: Data<Buf, Source>, bytes: u64, now: Duration) {
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

    fn bad(&mut self, at: u32, data: Data<Buf, Source>, failure: Failure, now: Duration) {
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
        self.count_error(op, failure, lba);
        let over = matches!(self.phase, Phase::Over | Phase::Leaving(_));
        if self.load.on_error == OnError::Stop && !over {
            self.fail(format!("a {} at LBA {lba} failed: {failure}", op.name()));
        }
    }

    fn count_error(&mut self, op: Op, failure: Failure, lba: u64) {
        let kind = op.kind();
        let same = |error: &&mut ErrorCount| error.kind == kind && error.failure == failure;
        if let Some(error) = self.errors.iter_mut().find(same) {
            error.count += 1;
        } else if self.errors.len() < MOST_ERRORS {
            self.errors.push(ErrorCount { kind, failure, count: 1, first_lba: lba });
        }
    }
}
