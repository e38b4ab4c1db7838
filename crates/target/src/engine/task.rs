//! A SCSI command at work: what it is doing, and how far it has come.

use std::sync::Arc;
use std::time::Duration;

use lunet_block::{ByteRange, Op};
use lunet_iscsi::target::Tag;
use lunet_scsi::reserve::{NexusId, Seat};
use lunet_scsi::{Code, Key, PowerChange, Sense, Transfer};
use lunet_volume::{Command, Face, Failure, Kind, OpenVolumes, Operation, OperationId, VolumeId};

use super::Engine;
use super::copy::Copy;
use super::sanitize::Sanitizing;
use crate::conn::{Conn, ConnId};
use crate::world::LogicalUnit;

/// A command on its way to its answer, with its work on the storage.
pub type Task = Operation<ScsiCommand>;

/// What SCSI knows of an operation.
pub struct ScsiCommand {
    /// Who waits for the answer; `None` once it was aborted, or answered before it was done.
    pub owner: Option<Owner>,
    /// Its logical unit number.
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
    pub deferred: Option<Box<(Seat, Arc<NexusId>)>>,
    /// The slot of the connection that it belongs to although its command has been answered.
    pub background: Option<ConnId>,
    /// State of [`Job::Copy`].
    pub copy: Option<Box<Copy>>,
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
pub enum Job {
    /// The [work](Operation::work) of its operation, and nothing else.
    Storage,
    /// The same, on a small Data-Out that is needed in full before the rest of the work is known.
    Collect(Then),
    /// A sanitize operation, on behalf of no connection.
    Sanitize(Box<Sanitizing>),
    /// Nothing but to wait until the rest of the server has done its part.
    Settle(Settle),
    /// Nothing but to wait for work that another thread does.
    Away(Away),
    /// Volume to volume (EXTENDED COPY, WRITE USING TOKEN).
    Copy,
}

/// State of [`Job::Away`].
pub struct Away {
    /// What the return of the work is told by.
    pub ticket: u64,
    /// How the command goes on then.
    pub then: Continue,
}

/// The next step of a command, given its connection and its number.
pub type Continue = Box<dyn FnOnce(&mut Engine, &mut Conn, OperationId)>;

/// State of [`Job::Settle`]. The command has taken effect.
pub struct Settle {
    /// What answers to it are told by.
    pub ticket: u64,
    /// How many answers are missing.
    pub left: usize,
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

/// An operation that has not begun, of no connection.
#[inline]
pub fn operation(volume: VolumeId, kind: Kind, started: Duration, job: Job) -> Task {
    Operation::new(volume, kind, started, ScsiCommand::new(job))
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
        Failure::Storage { error, op: Op::Flush, .. } => Some(Sense::from_block(error, Op::Flush)),
        Failure::Storage { error, op, range } => {
            let block = u64::from(volumes[task.requests.volume].core.caps.block_size);
            Some(Sense::from_block(error, op).with_information(range.offset / block))
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

    fn internal() -> Self {
        Self::new(Job::Storage)
    }
}

impl Face for LogicalUnit {
    fn is_closed(&self) -> bool {
        self.unit.state.sanitation().is_under_way()
    }

    fn writes_through(&self) -> bool {
        self.unit.write_through()
    }
}

impl ScsiCommand {
    #[inline]
    fn new(job: Job) -> Self {
        Self {
            owner: None,
            lun: 0,
            transfer: Transfer::default(),
            sense: None,
            data: Vec::new(),
            refused: None,
            power: None,
            deferred: None,
            background: None,
            copy: None,
            job,
        }
    }

    /// The slot of the connection that it belongs to.
    pub fn slot(&self) -> Option<ConnId> {
        self.owner.map(|owner| owner.slot).or(self.background)
    }

    /// True if it belongs to a command of the connection in `slot`.
    pub fn owned_by(&self, slot: ConnId) -> bool {
        self.owner.is_some_and(|owner| owner.slot == slot)
    }
}
