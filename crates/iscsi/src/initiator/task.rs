//! The requests that wait for an answer.

use super::{Completion, Data, Error, Event, Finished, Outcome};
use crate::pdu::{TmfFunction, U32};
use alloc::vec::Vec;
use slab::Slab;

/// Most requests: a slot number stays below 0xffff, so that no tag is the reserved tag.
const MAX_TASKS: usize = 0xfff0;

/// Names a request: its Initiator Task Tag. A slot and a count of its uses, so that a tag comes
/// back late only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(u32);

impl Tag {
    /// The number on the wire.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }

    pub(super) fn itt(self) -> U32 {
        U32::new(self.0)
    }

    fn slot(self) -> usize {
        (self.0 & 0xffff) as usize
    }

    /// True if the request was sent before the other one; both are under way.
    pub(super) fn is_before(self, other: Self) -> bool {
        let uses = |tag: Self| (tag.0 >> 16) as u16;
        (uses(self).wrapping_sub(uses(other)) as i16) < 0
    }
}

/// A SCSI command under way.
#[derive(Debug)]
pub(super) struct CommandTask<R, W> {
    pub token: u64,
    pub lun: u64,
    pub cmd_sn: u32,
    /// It has the CmdSN of the next command that is not immediate.
    pub immediate: bool,
    /// Data-In is expected (else Data-Out, if `expected` is not 0).
    pub reads: bool,
    /// Expected Data Transfer Length in bytes.
    pub expected: u32,
    /// `None` for a moment while the caller receives into the buffer.
    pub data: Data<R, W>,
    /// Bytes moved so far: received, or sent and solicited. Always from offset 0 on.
    pub moved: u32,
    /// Bytes of the current Data-In sequence.
    pub sequence: u32,
    /// The next DataSN or R2TSN.
    pub next_sn: u32,
    /// Over RDMA: the steering tag that the target may take back.
    pub stag: Option<u32>,
    /// Unannounced PDUs that the command consists of: itself if it is immediate, and Data-Out.
    pub unexpected: u32,
}

impl<R, W> CommandTask<R, W> {
    pub fn finish(self, tag: Tag, outcome: Outcome) -> Event<R, W> {
        Event::Finished(Finished { tag, token: self.token, outcome, data: self.data })
    }

    pub fn complete(self, tag: Tag, completion: Completion) -> Event<R, W> {
        self.finish(tag, Outcome::Completed(completion))
    }
}

/// A request under way.
#[derive(Debug)]
pub(super) enum Task<R, W> {
    Command(CommandTask<R, W>),
    Management {
        function: TmfFunction,
        lun: u64,
        /// CmdSN at the time of sending: commands before it are affected.
        cmd_sn: u32,
        referenced: Option<Tag>,
    },
    Ping {
        /// What was sent; `None` for the keep-alive.
        data: Option<Vec<u8>>,
    },
    Text,
    Logout,
}

impl<R, W> Task<R, W> {
    /// Unannounced PDUs that the request consists of (RFC 7145 section 8.1.1).
    fn unexpected(&self) -> u32 {
        match self {
            Self::Command(task) => task.unexpected,
            Self::Management { .. } | Self::Ping { .. } | Self::Text | Self::Logout => 1,
        }
    }
}

/// The requests by tag.
#[derive(Debug)]
pub(super) struct Table<R, W> {
    slots: Slab<(Tag, Task<R, W>)>,
    limit: usize,
    uses: u16,
    /// Unannounced PDUs whose requests are not answered.
    unexpected: u32,
}

impl<R, W> Table<R, W> {
    pub fn new(limit: u16) -> Self {
        Self {
            slots: Slab::new(),
            limit: usize::from(limit).min(MAX_TASKS),
            uses: 0,
            unexpected: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_full(&self) -> bool {
        self.slots.len() >= self.limit
    }

    /// Adds a request. The caller asks [`is_full`](Self::is_full) first; the keep-alive and the
    /// logout, of which there is one each, always fit.
    pub fn insert(&mut self, task: Task<R, W>) -> Tag {
        self.uses = self.uses.wrapping_add(1);
        self.unexpected += task.unexpected();
        let entry = self.slots.vacant_entry();
        let tag = Tag(u32::from(self.uses) << 16 | entry.key() as u32);
        entry.insert((tag, task));
        tag
    }

    /// The tag of a request under way that has this number.
    pub fn find(&self, itt: u32) -> Result<Tag, Error> {
        let tag = Tag(itt);
        match self.slots.get(tag.slot()) {
            Some((own, _)) if *own == tag => Ok(tag),
            _ => Err(Error::NoSuchTask(itt)),
        }
    }

    pub fn get(&self, tag: Tag) -> Option<&Task<R, W>> {
        self.slots.get(tag.slot()).filter(|(own, _)| *own == tag).map(|(_, task)| task)
    }

    /// The command with this number.
    pub fn command(&mut self, itt: u32) -> Result<(Tag, &mut CommandTask<R, W>), Error> {
        let tag = Tag(itt);
        match self.slots.get_mut(tag.slot()) {
            Some((own, Task::Command(task))) if *own == tag => Ok((tag, task)),
            _ => Err(Error::NoSuchTask(itt)),
        }
    }

    pub fn remove(&mut self, tag: Tag) -> Option<Task<R, W>> {
        self.get(tag)?;
        let (_, task) = self.slots.try_remove(tag.slot())?;
        self.unexpected -= task.unexpected();
        Some(task)
    }

    /// Unannounced PDUs that the target may still hold a receive buffer for.
    pub fn unexpected(&self) -> u32 {
        self.unexpected
    }

    /// Takes a command out.
    pub fn remove_command(&mut self, tag: Tag) -> Option<CommandTask<R, W>> {
        match self.get(tag) {
            Some(Task::Command(_)) => match self.remove(tag) {
                Some(Task::Command(task)) => Some(task),
                _ => None,
            },
            _ => None,
        }
    }

    /// Tags of the commands for which `chosen` says yes.
    pub fn commands(&self, mut chosen: impl FnMut(Tag, &CommandTask<R, W>) -> bool) -> Vec<Tag> {
        let command = |(_, (tag, task)): (usize, &(Tag, Task<R, W>))| match task {
            Task::Command(task) if chosen(*tag, task) => Some(*tag),
            _ => None,
        };
        self.slots.iter().filter_map(command).collect()
    }

    /// Takes all out.
    pub fn drain(&mut self) -> impl Iterator<Item = (Tag, Task<R, W>)> + '_ {
        self.unexpected = 0;
        self.slots.drain()
    }
}
