//! Commands under way, and the transfers of their data.

use super::event::Tag;
use crate::command::Completion;
use crate::status::Status;
use core::ops::Range;
use core::time::Duration;
use slab::Slab;

/// Most slots: a slot number has 16 bits.
const MAX_SLOTS: usize = 1 << 16;

/// How far a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its capsule is being received, or it waits for the other command of its pair.
    Arriving,
    /// The layer above has it.
    Running,
    /// It is over for the layer above, and is answered when the host has sent what it was asked
    /// for: a host would go on sending from memory that it has given back.
    Ending(Completion),
}

/// A command.
#[derive(Debug)]
pub(super) struct Task<B> {
    pub tag: Tag,
    pub cid: u16,
    pub stage: Stage,
    /// When the entry was there.
    pub arrived: Duration,
    pub expects_read: u32,
    pub expects_write: u32,
    /// Bytes sent to the host.
    pub sent: u32,
    /// The data of the capsule: the buffer and which part of it.
    pub data: Option<(B, Range<usize>)>,
    /// Which part of the capsule's data is to come.
    pub arrives: Range<usize>,
    /// The data of the capsule has a buffer, wherever that is.
    pub has_buffer: bool,
    /// It is answered with this instead of being executed, once its capsule is complete.
    pub refused: Option<Status>,
    /// R2Ts that the host has not answered; RDMA Reads that are under way.
    pub r2ts: u32,
    /// The first and the last of the transfers that wait for their R2T or RDMA Read.
    pub waiting: Option<(usize, usize)>,
    /// Data was damaged.
    pub damaged: bool,
}

/// Data that the layer above has asked for.
#[derive(Debug)]
pub(super) struct Transfer<B> {
    pub task: Tag,
    pub offset: u32,
    pub len: u32,
    pub received: u32,
    /// Its R2T was sent, or its RDMA Read was handed out.
    pub in_flight: bool,
    /// Its number among those that were started.
    pub order: u64,
    /// The buffer; away while it is lent.
    pub buf: Option<B>,
    /// The next transfer of the same command that waits.
    pub next: Option<usize>,
}

/// The commands of a connection.
#[derive(Debug)]
pub(super) struct Tasks<B> {
    slots: Slab<Task<B>>,
    uses: u16,
}

impl<B> Tasks<B> {
    pub fn new() -> Self {
        Self { slots: Slab::new(), uses: 0 }
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Adds a command whose entry is there; none if there are too many by far.
    pub fn insert(&mut self, cid: u16, arrived: Duration) -> Option<Tag> {
        if self.slots.len() >= MAX_SLOTS {
            return None;
        }
        self.uses = self.uses.wrapping_add(1);
        let entry = self.slots.vacant_entry();
        let tag = Tag(u32::from(self.uses) << 16 | entry.key() as u32);
        entry.insert(Task {
            tag,
            cid,
            stage: Stage::Arriving,
            arrived,
            expects_read: 0,
            expects_write: 0,
            sent: 0,
            data: None,
            arrives: 0..0,
            has_buffer: false,
            refused: None,
            r2ts: 0,
            waiting: None,
            damaged: false,
        });
        Some(tag)
    }

    pub fn get_mut(&mut self, tag: Tag) -> Option<&mut Task<B>> {
        self.slots.get_mut(tag.slot()).filter(|task| task.tag == tag)
    }

    /// A command that the layer above has.
    pub fn running(&mut self, tag: Tag) -> Option<&mut Task<B>> {
        self.get_mut(tag).filter(|task| task.stage == Stage::Running)
    }

    pub fn remove(&mut self, tag: Tag) -> Option<Task<B>> {
        self.get_mut(tag)?;
        self.slots.try_remove(tag.slot())
    }

    /// The command with this identifier that the layer above has.
    pub fn find(&self, cid: u16) -> Option<Tag> {
        let running = |task: &&Task<B>| task.cid == cid && task.stage == Stage::Running;
        self.slots.iter().map(|(_, task)| task).find(running).map(|task| task.tag)
    }
}

/// The transfers of a connection. Their slots are their TTAGs.
#[derive(Debug)]
pub(super) struct Transfers<B>(pub Slab<Transfer<B>>);

impl<B> Transfers<B> {
    /// The one whose R2T was sent first, and its index. It looks at all of them.
    pub fn oldest(&self) -> Option<(usize, &Transfer<B>)> {
        let asked = self.0.iter().filter(|(_, transfer)| transfer.in_flight);
        asked.min_by_key(|(_, transfer)| transfer.order)
    }

    pub fn insert(&mut self, task: Tag, offset: u32, len: u32, buf: B) -> Option<usize> {
        (self.0.len() < MAX_SLOTS).then(|| {
            self.0.insert(Transfer {
                task,
                offset,
                len,
                received: 0,
                in_flight: false,
                order: 0,
                buf: Some(buf),
                next: None,
            })
        })
    }
}
