//! A SCSI command at work: what it is doing, and how far it has come.

use std::sync::Arc;

use lunet_block::{ByteRange, Op};
use lunet_iscsi::target::Tag;
use lunet_scsi::alua::AccessState;
use lunet_scsi::copy::Side;
use lunet_scsi::reserve::{LiveNexus, Seat};
use lunet_scsi::{Code, Key, PowerChange, Sense, Transfer};
use lunet_volume::reserve::Wanted;
use lunet_volume::{Command, Face, Failure, Names, OpenVolumes, Operation, OperationId, PathState};

use super::Engine;
use super::copy::Copy;
use super::forward::Forwarded;
use super::relay::Relaying;
use super::sanitize::Sanitizing;
use crate::connection::Conn;
use crate::group::{Going, naa_of};
use crate::names::names;
use crate::world::LogicalUnit;
use lunet_server::conn::ConnId;

/// A command on its way to its answer, with its work on the storage.
pub type Task = Operation<ScsiCommand>;

/// What SCSI knows of an operation. By default it is that of no connection.
#[derive(Default)]
pub struct ScsiCommand {
    /// Who waits for the answer; `None` once it was aborted, or answered before it was done.
    pub owner: Option<Owner>,
    /// Logical unit number that the command names.
    pub lun: u16,
    /// What the command block asks for, in bytes.
    pub transfer: Transfer,
    /// Why it has failed, if its operation does not [know](lunet_volume::Requests::failure).
    pub sense: Option<Sense>,
    /// Data-In that it ends with, already cut to the allocation length.
    pub data: Vec<u8>,
    /// It ends with this status instead: BUSY if an abandoned write still holds its blocks, or
    /// RESERVATION CONFLICT.
    pub refused: Option<u8>,
    /// What becomes of its unit when it is done, and the nexus that wants it.
    pub power: Option<Box<(PowerChange, Option<Seat>)>>,
    /// Who is told if it fails after it was answered.
    pub deferred: Option<Box<(Seat, Arc<LiveNexus>)>>,
    /// The slot of the connection that it belongs to although its command has been answered.
    pub background: Option<ConnId>,
    /// It changes something, and goes its host's way.
    pub going: Option<Going>,
    /// What it does.
    pub job: Job,
}

/// The command that a task belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The connection's slot.
    pub slot: ConnId,
    /// The command's name there.
    pub tag: Tag,
}

/// What a command does.
#[derive(Default)]
pub enum Job {
    /// The [work](Operation::work) of its operation, and nothing else.
    #[default]
    Storage,
    /// The same, on a small Data-Out that is needed in full before the rest of the work is known.
    Collect(Then),
    /// A sanitize operation, on behalf of no connection.
    Sanitize(Box<Sanitizing>),
    /// Nothing but to wait until the rest of the server has done its part.
    Await(Awaited),
    /// Nothing but to wait for work that another thread does, and then to go on with this.
    Away(Continue),
    /// Nothing but to wait for the owner of its failover group.
    Forwarded(Forwarded),
    /// Nothing but to wait for the owner of its failover group, which executes it.
    Relayed(Relaying),
    /// Volume to volume (EXTENDED COPY, WRITE USING TOKEN).
    Copy(Box<Copy>),
}

/// The next step of a command, given its connection and its number.
pub type Continue = Box<dyn FnOnce(&mut Engine, &mut Conn, OperationId)>;

/// State of [`Job::Await`].
pub struct Awaited {
    /// What answers to it are told by.
    pub ticket: u64,
    /// How many answers are missing.
    pub left: usize,
    /// The order that it waits for; `None`: the command has taken effect.
    pub order: Option<Wanted>,
}

/// What follows a [`Job::Collect`].
#[derive(Clone, Copy)]
pub enum Then {
    /// The device server looks at the parameter list.
    Parameters(lunet_scsi::Parameters),
    /// Fill the range with the block.
    Fill {
        /// Where.
        range: ByteRange,
        /// A block of zeroes may be unmapped instead of written.
        unmap: bool,
    },
    /// Compare every block of the range with the block.
    Pattern(ByteRange),
}

/// A command fails for this reason, if it has not failed before, and stops after what is at work.
pub fn fail(task: &mut Task, sense: Sense) {
    if task.fail() {
        task.command.sense = Some(sense);
    }
}

/// Why a command has failed.
pub fn sense(task: &Task, volumes: &OpenVolumes<LogicalUnit>) -> Option<Sense> {
    match task.requests.failure()? {
        Failure::Storage { error, op, range } => {
            let own = task.requests.volume;
            let (side, slot) = match task.requests.parties() {
                Some(parties) if op == Op::Read => (Side::Source, parties.source),
                parties => (Side::Destination, parties.map_or(own, |parties| parties.destination)),
            };
            let mut sense = Sense::from_block(error, op);
            if range.len > 0 {
                let block = u64::from(volumes[slot].core.caps.block_size);
                sense = sense.with_information(range.offset / block);
            }
            Some(match &task.command.job {
                Job::Copy(copy) => copy.request_failure(task, side, sense, volumes),
                _ => sense,
            })
        }
        Failure::Differs { offset } => Some(Sense::miscompare(offset)),
        Failure::Closed { slot } => {
            let state = volumes.get(slot).map(|volume| &volume.core.face.unit.state);
            let sense = state.and_then(|state| state.sanitize_sense());
            // That may be over by now: the initiator tries again.
            let over = Sense::new(Key::AbortedCommand, Code::NO_ADDITIONAL_SENSE);
            Some(sense.unwrap_or(over))
        }
        Failure::Crowded | Failure::Command => task.command.sense,
    }
}

impl Command for ScsiCommand {
    type Face = LogicalUnit;

    fn clear(&mut self) {
        // Every field is named, so that none is forgotten.
        let Self {
            owner,
            lun,
            transfer,
            sense,
            data,
            refused,
            power,
            deferred,
            background,
            going,
            job,
        } = self;
        (*owner, *background, *refused, *sense) = (None, None, None, None);
        (*lun, *transfer) = (0, Transfer::default());
        (*power, *deferred, *going) = (None, None, None);
        (*data, *job) = (Vec::new(), Job::Storage);
    }
}

impl Face for LogicalUnit {
    fn is_closed(&self) -> bool {
        self.unit.state.sanitation().is_under_way()
    }

    fn writes_through(&self) -> bool {
        self.unit.write_through()
    }

    fn names(&self) -> Option<Names> {
        Some(names(&self.unit.identity))
    }

    fn designator(&self) -> Option<[u8; 16]> {
        Some(naa_of(&self.unit))
    }

    fn used(&self) -> Option<u64> {
        self.unit.state.space().map(|space| space.used)
    }

    fn is_absent(&self) -> bool {
        self.unit.absent
    }

    fn is_read_only(&self) -> bool {
        self.unit.read_only()
    }

    fn access(&self, group: usize) -> PathState {
        match self.unit.state.access.get(group) {
            AccessState::Optimized => PathState::Optimized,
            AccessState::NonOptimized => PathState::NonOptimized,
            AccessState::Standby | AccessState::Unavailable => PathState::Inaccessible,
        }
    }
}

impl ScsiCommand {
    /// The slot of the connection that it belongs to.
    pub fn slot(&self) -> Option<ConnId> {
        self.owner.map(|owner| owner.slot).or(self.background)
    }

    /// True if it belongs to a command of the connection in `slot`.
    pub fn owned_by(&self, slot: ConnId) -> bool {
        self.owner.is_some_and(|owner| owner.slot == slot)
    }
}
