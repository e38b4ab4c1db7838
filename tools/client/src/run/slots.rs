//! The operations of a job that are under way.

use std::time::Duration;

use crate::front::Data;
use crate::outcome::Kind;
use crate::verify::Look;

/// What an operation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Read,
    Write,
    Flush,
    /// Reads back what was written.
    Check,
    /// Looks again at what was wrong.
    Again,
}

impl Op {
    /// For sentences.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Check | Self::Again => "read for verification",
        }
    }

    pub fn kind(self) -> Kind {
        match self {
            Self::Write => Kind::Write,
            Self::Flush => Kind::Flush,
            Self::Read | Self::Check | Self::Again => Kind::Read,
        }
    }

    /// True for those that data comes back from.
    pub fn reads(self) -> bool {
        self.kind() == Kind::Read
    }
}

/// An operation under way.
#[derive(Debug)]
pub(super) struct Slot {
    pub op: Op,
    pub lba: u64,
    pub blocks: u32,
    /// Of a verified write.
    pub generation: u32,
    /// When it was sent first.
    pub sent: Duration,
    /// The first look at what is looked at again.
    pub first: Option<Box<Look>>,
    busy: bool,
}

/// A command that is to be sent again, or for the first time in place of others.
pub(super) struct Waiting {
    pub slot: u32,
    pub due: Duration,
    /// What it moves; `None`: a new read.
    pub data: Option<Data>,
}

/// The operations of a job, by number. It allocates only to grow beyond the depth.
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    depth: usize,
    /// Commands that wait.
    pub waiting: Vec<Waiting>,
}

impl Slots {
    pub fn new(depth: u32) -> Self {
        let depth = depth as usize;
        Self {
            slots: Vec::with_capacity(depth + 1),
            free: Vec::with_capacity(depth + 1),
            depth,
            waiting: Vec::new(),
        }
    }

    /// Operations under way.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if there is room for another one.
    pub fn has_room(&self) -> bool {
        self.len() < self.depth
    }

    /// Begins an operation.
    pub fn insert(&mut self, op: Op, lba: u64, blocks: u32, sent: Duration) -> u32 {
        let slot = Slot { op, lba, blocks, generation: 0, sent, first: None, busy: true };
        if let Some(at) = self.free.pop() {
            self.slots[at as usize] = slot;
            return at;
        }
        self.slots.push(slot);
        self.slots.len() as u32 - 1
    }

    pub fn get(&self, at: u32) -> &Slot {
        &self.slots[at as usize]
    }

    pub fn get_mut(&mut self, at: u32) -> &mut Slot {
        &mut self.slots[at as usize]
    }

    /// Ends an operation.
    pub fn remove(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        slot.busy = false;
        slot.first = None;
        self.free.push(at);
    }

    fn busy(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| slot.busy)
    }

    /// The operation that is under way longest.
    pub fn oldest(&self) -> Option<&Slot> {
        self.busy().min_by_key(|slot| slot.sent)
    }

    /// When the next waiting command is due.
    pub fn next_retry(&self) -> Option<Duration> {
        self.waiting.iter().map(|waiting| waiting.due).min()
    }

    /// True if nothing under way is in the way of this: a write keeps everything else off, and what
    /// is looked at again keeps writes off.
    pub fn allow(&self, op: Op, lba: u64, blocks: u32) -> bool {
        let end = lba + u64::from(blocks);
        self.busy().all(|slot| {
            let apart =
                slot.op == Op::Flush || slot.lba >= end || lba >= slot.lba + u64::from(slot.blocks);
            apart || (op != Op::Write && slot.op != Op::Write)
        })
    }

    /// What is left of a range without the writes under way. None of them reaches into `core`.
    pub fn clip(
        &self,
        range: std::ops::Range<u64>,
        core: std::ops::Range<u64>,
    ) -> std::ops::Range<u64> {
        let writes = self.busy().filter(|slot| slot.op == Op::Write);
        writes.fold(range, |range, slot| {
            let end = slot.lba + u64::from(slot.blocks);
            if end <= core.start {
                range.start.max(end)..range.end
            } else {
                range.start..range.end.min(slot.lba)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_keep_everything_off() {
        let mut slots = Slots::new(4);
        slots.insert(Op::Write, 8, 8, Duration::ZERO);
        let read = slots.insert(Op::Read, 32, 8, Duration::ZERO);
        slots.insert(Op::Flush, 0, 0, Duration::ZERO);
        assert!(slots.allow(Op::Read, 0, 8) && slots.allow(Op::Read, 16, 8));
        assert!(!slots.allow(Op::Read, 15, 1) && !slots.allow(Op::Write, 0, 9));
        assert!(slots.allow(Op::Read, 32, 8) && !slots.allow(Op::Write, 39, 1));
        slots.remove(read);
        assert!(slots.allow(Op::Write, 39, 1) && slots.has_room());
        assert_eq!(slots.len(), 2);
    }

    #[test]
    fn a_range_is_cut_at_writes() {
        let mut slots = Slots::new(4);
        slots.insert(Op::Write, 8, 8, Duration::ZERO);
        slots.insert(Op::Write, 64, 8, Duration::ZERO);
        assert_eq!(slots.clip(0..100, 20..30), 16..64);
        assert_eq!(slots.clip(18..40, 20..30), 18..40);
    }
}
