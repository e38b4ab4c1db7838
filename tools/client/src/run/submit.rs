//! What a job sends.

use std::time::Duration;

use lunet_ring::Arena;

use super::job::{Job, Phase};
use super::slots::{Op, Waiting};
use crate::front::{Action, Command, Connection, Data};
use crate::layout::Direction;

/// How often other blocks are picked when a write under way covers those that were picked.
const TRIES: usize = 16;

/// How a read back is cut into pieces, in bytes.
const CHECK: u32 = 256 << 10;

/// What to send next.
struct Next {
    op: Op,
    lba: u64,
    blocks: u32,
}

impl<C: Connection> Job<C> {
    /// Sends as much as depth, window, rate and memory allow.
    pub fn top_up(&mut self, now: Duration, arena: &Arena, counting: bool) {
        while self.connection.window() > 0 {
            let sent = match self.take_waiting(now) {
                Some(waiting) => self.send_waiting(waiting, arena),
                None => self.send_next(now, arena, counting),
            };
            if !sent {
                return;
            }
        }
    }

    /// A command that waits and is due.
    fn take_waiting(&mut self, now: Duration) -> Option<Waiting> {
        let waiting = &mut self.slots.waiting;
        let at = waiting.iter().position(|waiting| waiting.due <= now)?;
        Some(waiting.swap_remove(at))
    }

    fn send_waiting(&mut self, mut waiting: Waiting, arena: &Arena) -> bool {
        let at = waiting.slot;
        let data = match waiting.data.take() {
            Some(data) => Some(data),
            None => self.room(self.slots.get(at).blocks, arena, true),
        };
        match data {
            Some(data) => self.submit(at, data),
            None => {
                self.slots.waiting.push(waiting);
                false
            }
        }
    }

    /// Begins an operation. False if there is none to begin now.
    fn send_next(&mut self, now: Duration, arena: &Arena, counting: bool) -> bool {
        if !self.slots.has_room() {
            return false;
        }
        let next = match self.phase {
            Phase::Load => self.next_load(now, counting),
            Phase::ReadBack => self.next_check(),
            _ => None,
        };
        let Some(Next { op, lba, blocks }) = next else { return false };
        let at = self.slots.insert(op, lba, blocks, now);
        match self.data(at, arena) {
            Some(data) => self.submit(at, data),
            None => {
                // No memory: it is the first one when there is some.
                self.slots.waiting.push(Waiting { slot: at, due: now, data: None });
                false
            }
        }
    }

    fn next_load(&mut self, now: Duration, counting: bool) -> Option<Next> {
        if counting && self.load.size.is_some_and(|size| self.issued >= size) {
            self.stop();
            return None;
        }
        if self.pacer.as_ref().is_some_and(|pacer| !pacer.allows(now)) {
            return None;
        }
        if self.load.flush_every.is_some_and(|every| self.writes >= every) {
            self.writes = 0;
            return Some(Next { op: Op::Flush, lba: 0, blocks: 0 });
        }
        let verify = self.ledger.is_some();
        let mut pick = self.picker.pick();
        for _ in 0..TRIES {
            let op = op(pick.direction);
            if !verify || self.slots.allow(op, pick.lba, pick.blocks) {
                let bytes = u64::from(pick.blocks) * u64::from(self.load.block_size);
                if let Some(pacer) = &mut self.pacer {
                    pacer.take(now, bytes);
                }
                if counting {
                    self.issued += bytes;
                }
                self.writes += u32::from(op == Op::Write);
                return Some(Next { op, lba: pick.lba, blocks: pick.blocks });
            }
            pick = self.picker.pick();
        }
        None
    }

    fn next_check(&mut self) -> Option<Next> {
        let most = CHECK.max(self.load.block_size) / self.load.block_size;
        match self.ledger.as_mut().and_then(|ledger| ledger.next_check(most)) {
            Some((lba, blocks)) => Some(Next { op: Op::Check, lba, blocks }),
            None => {
                self.phase = Phase::Draining;
                None
            }
        }
    }

    /// What an operation moves. `None`: there is no memory for it now.
    fn data(&mut self, at: u32, arena: &Arena) -> Option<Data> {
        let slot = self.slots.get(at);
        let (op, lba, blocks) = (slot.op, slot.lba, slot.blocks);
        let len = blocks as usize * self.load.block_size as usize;
        match op {
            Op::Flush => Some(Data::None),
            Op::Read => self.room(blocks, arena, self.load.keeps_data),
            Op::Check | Op::Again => self.room(blocks, arena, true),
            Op::Write => Some(Data::Write(match &mut self.ledger {
                None => self.pattern.take(len),
                Some(ledger) => match ledger.next_generation() {
                    Some(generation) => {
                        self.slots.get_mut(at).generation = generation;
                        self.buffers.take(len, |bytes| ledger.fill(bytes, lba, generation))
                    }
                    None => {
                        self.fail("all numbers of verified writes are used up (2^32)".into());
                        self.pattern.take(0)
                    }
                },
            })),
        }
    }

    fn room(&self, blocks: u32, arena: &Arena, keep: bool) -> Option<Data> {
        let len = blocks * self.load.block_size;
        match keep {
            true => arena.alloc(len as usize).map(Data::Read),
            false => Some(Data::Discard(len)),
        }
    }

    fn submit(&mut self, at: u32, data: Data) -> bool {
        let slot = self.slots.get(at);
        let action = match slot.op {
            Op::Flush => Action::Flush,
            Op::Write => Action::Write { fua: self.load.fua },
            Op::Read | Op::Check | Op::Again => Action::Read,
        };
        let command = Command { token: at, action, lba: slot.lba, blocks: slot.blocks, data };
        match self.connection.submit(command, &mut self.out) {
            Ok(()) => true,
            Err(reason) => {
                self.slots.remove(at);
                self.fail(format!("a command could not be sent: {reason}"));
                false
            }
        }
    }
}

fn op(direction: Direction) -> Op {
    match direction {
        Direction::Read => Op::Read,
        Direction::Write => Op::Write,
    }
}
