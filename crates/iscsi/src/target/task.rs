//! The tasks of a connection, by slot and by Initiator Task Tag.

use super::event::TransferError;
use crate::pdu::TaskAttribute;
use alloc::boxed::Box;
use core::time::Duration;
use hashbrown::HashMap;
use slab::Slab;

/// Names a task or a task management function of one connection: a slot, which is reused, and a
/// generation, which is not. A call with a stale tag does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag {
    slot: u32,
    generation: u32,
}

impl Tag {
    /// The tag of `slot` in its `generation`.
    pub(super) const fn new(slot: u32, generation: u32) -> Self {
        Self { slot, generation }
    }

    /// The slot: small and dense, so it can index a table. At most
    /// [`Options::queue_depth`](super::Options::queue_depth) plus
    /// [`MAX_IMMEDIATE`](super::options::MAX_IMMEDIATE) slots are in use.
    #[must_use]
    pub const fn slot(self) -> usize {
        self.slot as usize
    }

    /// The generation of the slot.
    #[must_use]
    pub const fn generation(self) -> u32 {
        self.generation
    }

    /// The tag as a number, for tokens.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        (self.generation as u64) << 32 | self.slot as u64
    }

    /// The tag from [`Tag::to_bits`].
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self { slot: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// What a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A command that was not handed up yet.
    Collecting,
    /// A command that the layer above has.
    Running,
    /// A task management function that the layer above has.
    Management,
    /// A command that is answered as soon as its RDMA Reads have come back.
    Answered,
}

/// Why a command cannot succeed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Its data transfer broke.
    Transfer(TransferError),
    /// There was no buffer for its unsolicited data.
    NoBuffer,
}

/// One task.
#[derive(Debug)]
pub(super) struct Task<B> {
    generation: u32,
    pub(super) kind: Kind,
    pub(super) itt: u32,
    pub(super) cmd_sn: u32,
    pub(super) immediate: bool,
    /// All commands with lower numbers were received.
    pub(super) ordered: bool,
    pub(super) lun: u64,
    pub(super) cdb: [u8; 16],
    pub(super) long_cdb: Option<Box<[u8]>>,
    pub(super) attribute: TaskAttribute,
    /// When the header was there.
    pub(super) arrived: Duration,
    /// How many questions had been answered then.
    pub(super) answers: u32,
    pub(super) reads: bool,
    pub(super) writes: bool,
    pub(super) expects_read: u32,
    pub(super) expects_write: u32,
    pub(super) failure: Option<Failure>,
    /// The layer above knows of the failure.
    pub(super) failure_told: bool,
    /// The unsolicited data: its buffer, how much came, how much may come, the next DataSN.
    pub(super) data: Option<B>,
    pub(super) filled: u32,
    pub(super) limit: u32,
    pub(super) data_sn: u32,
    /// No unsolicited data will follow.
    pub(super) burst_done: bool,
    /// DataSN of the next Data-In and R2TSN of the next R2T: they share their numbers.
    pub(super) pdu_sn: u32,
    /// Bytes of Data-In sent, and of them in the current sequence.
    pub(super) sent: u32,
    pub(super) sequence: u32,
    /// Bytes of write data received.
    pub(super) received: u32,
    /// R2Ts on the wire; over RDMA, RDMA Reads that have not come back.
    pub(super) r2ts: u32,
    /// Transfers that wait for an R2T, first and last; the first may have had some of its R2Ts.
    pub(super) waiting: Option<(usize, usize)>,
}

impl<B> Task<B> {
    /// A task of this kind; all else zero.
    pub(super) fn new(kind: Kind, itt: u32, cmd_sn: u32, lun: u64, immediate: bool) -> Self {
        Self {
            generation: 0,
            kind,
            itt,
            cmd_sn,
            immediate,
            ordered: false,
            lun,
            cdb: [0; 16],
            long_cdb: None,
            attribute: TaskAttribute::Untagged,
            arrived: Duration::ZERO,
            answers: 0,
            reads: false,
            writes: false,
            expects_read: 0,
            expects_write: 0,
            failure: None,
            failure_told: false,
            data: None,
            filled: 0,
            limit: 0,
            data_sn: 0,
            burst_done: true,
            pdu_sn: 0,
            sent: 0,
            sequence: 0,
            received: 0,
            r2ts: 0,
            waiting: None,
        }
    }

    /// Marks the task failed, unless it is already. True when this is new.
    pub(super) fn fail(&mut self, failure: Failure) -> bool {
        let new = self.failure.is_none();
        self.failure.get_or_insert(failure);
        new
    }

    /// True when nothing more of the command is to come before it is handed up.
    pub(super) fn is_complete(&self) -> bool {
        self.kind == Kind::Collecting && self.ordered && self.burst_done
    }
}

/// The tasks.
#[derive(Debug)]
pub(super) struct Tasks<B> {
    slots: Slab<Task<B>>,
    by_itt: HashMap<u32, u32>,
    generation: u32,
    immediate: u32,
    /// Numbered tasks that were taken from the window.
    ordered: u32,
}

impl<B> Tasks<B> {
    pub(super) fn new() -> Self {
        let by_itt = HashMap::new();
        Self { slots: Slab::new(), by_itt, generation: 0, immediate: 0, ordered: 0 }
    }

    /// Adds a task. The caller made sure that its ITT is not in use.
    pub(super) fn insert(&mut self, mut task: Task<B>) -> Tag {
        self.generation = self.generation.wrapping_add(1);
        task.generation = self.generation;
        self.immediate += u32::from(task.immediate);
        let itt = task.itt;
        let slot = self.slots.insert(task) as u32;
        self.by_itt.insert(itt, slot);
        Tag::new(slot, self.generation)
    }

    /// The task with this tag.
    pub(super) fn get(&self, tag: Tag) -> Option<&Task<B>> {
        self.slots.get(tag.slot()).filter(|task| task.generation == tag.generation())
    }

    /// The task with this tag.
    pub(super) fn get_mut(&mut self, tag: Tag) -> Option<&mut Task<B>> {
        self.slots.get_mut(tag.slot()).filter(|task| task.generation == tag.generation())
    }

    /// The task with this Initiator Task Tag.
    pub(super) fn find(&self, itt: u32) -> Option<Tag> {
        let slot = *self.by_itt.get(&itt)?;
        let task = self.slots.get(slot as usize)?;
        Some(Tag::new(slot, task.generation))
    }

    /// Removes a task.
    pub(super) fn remove(&mut self, tag: Tag) -> Option<Task<B>> {
        self.get(tag)?;
        let task = self.slots.try_remove(tag.slot())?;
        self.by_itt.remove(&task.itt);
        self.immediate -= u32::from(task.immediate);
        self.ordered -= u32::from(task.ordered && !task.immediate);
        Some(task)
    }

    /// Notes that the task was taken from the command window.
    pub(super) fn set_ordered(&mut self, tag: Tag) {
        if let Some(task) = self.get_mut(tag) {
            if !task.ordered {
                task.ordered = true;
                let numbered = !task.immediate;
                self.ordered += u32::from(numbered);
            }
        }
    }

    /// Gives the task's place in the command window back before the task ends.
    pub(super) fn leave_window(&mut self, tag: Tag) {
        if let Some(task) = self.get_mut(tag) {
            if task.ordered && !task.immediate {
                task.ordered = false;
                self.ordered -= 1;
            }
        }
    }

    /// All tasks.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Tag, &Task<B>)> {
        self.slots.iter().map(|(slot, task)| (Tag::new(slot as u32, task.generation), task))
    }

    /// The command that waits for unsolicited data the longest, and how much has come.
    pub(super) fn oldest_burst(&self) -> Option<(Tag, u32)> {
        let bursts = self.slots.iter().filter(|(_, task)| {
            task.kind == Kind::Collecting && !task.burst_done && task.failure.is_none()
        });
        // Generations are given out in turn.
        let age = |task: &Task<B>| self.generation.wrapping_sub(task.generation);
        let (slot, task) = bursts.max_by_key(|(_, task)| age(task))?;
        Some((Tag::new(slot as u32, task.generation), task.filled))
    }

    /// Number of tasks.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Number of immediate tasks.
    pub(super) const fn immediate(&self) -> u32 {
        self.immediate
    }

    /// Number of tasks that take a place in the command window.
    pub(super) const fn in_window(&self) -> u32 {
        self.ordered
    }
}
