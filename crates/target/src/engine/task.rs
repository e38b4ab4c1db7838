//! A SCSI command at work: what it is doing, and how far it has come.

use std::sync::Arc;
use std::time::Duration;

use lunet_block::ByteRange;
use lunet_iscsi::target::Tag;
use lunet_ring::{Buf, Payload};
use lunet_scsi::reserve::{NexusId, Seat};
use lunet_scsi::{PowerChange, Sense, Transfer};
use lunet_volume::{Command, DEPTH, Face, Kind, Operation, OperationId};

use super::Engine;
use super::copy::Copy;
use super::exclusive::Exclusive;
use super::intake::{Intake, Piece};
use super::sanitize::Sanitizing;
use crate::conn::Conn;
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
    /// The first failure.
    pub sense: Option<Sense>,
    /// Data-In that it ends with, already cut to the allocation length.
    pub data: Vec<u8>,
    /// It ends with this status instead: BUSY if an abandoned write still holds its blocks, or
    /// RESERVATION CONFLICT.
    pub refused: Option<u8>,
    /// What it has written is on stable storage, as far as it must be.
    pub stable: bool,
    /// What becomes of its unit when it is done, and the nexus that wants it.
    pub power: Option<(PowerChange, Option<Seat>)>,
    /// Who is told if it fails after it was answered.
    pub deferred: Option<(Seat, Arc<NexusId>)>,
    /// The slot of the connection that it belongs to although its command has been answered.
    pub background: Option<u32>,
    /// State of [`Job::Copy`].
    pub copy: Option<Box<Copy>>,
    /// What it does.
    pub job: Job,
}

/// The command that a task belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The connection's slot.
    pub slot: u32,
    /// The command's name there.
    pub tag: Tag,
}

/// The work of a command.
pub enum Job {
    /// Volume to initiator (READ), or to nowhere (VERIFY without data, PRE-FETCH).
    Read(Read),
    /// Initiator to volume.
    Write(Write),
    /// Initiator's data or one block of it against the volume (VERIFY, WRITE AND VERIFY).
    Compare(Compare),
    /// A small Data-Out that is needed in full before the work is known.
    Collect(Collect),
    /// One block, again and again (WRITE SAME).
    Fill(Fill),
    /// Requests without data, one after the other (UNMAP, WRITE SAME of zeroes, a flush).
    Bare(Bare),
    /// A command that no other may come between (COMPARE AND WRITE, ORWRITE).
    Exclusive(Box<Exclusive>),
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

/// State of [`Job::Read`].
pub struct Read {
    /// Where on the volume.
    pub range: ByteRange,
    /// Bytes of one request.
    pub chunk: u64,
    /// How much of the range has been requested.
    pub requested: u64,
    /// How much has been handed to the connection.
    pub sent: u64,
    /// Bytes that go over the wire; the volume's blocks may reach beyond.
    pub wire: u64,
    /// The sequence number that is sent next.
    pub send_seq: u32,
    /// Chunks that came back, by sequence number modulo [`DEPTH`], with their lengths.
    pub ready: [Option<(Payload, u64)>; DEPTH],
    /// Read by reference.
    pub mapped: bool,
    /// The data is not sent.
    pub discard: bool,
}

/// State of [`Job::Write`].
pub struct Write {
    /// Offset on the volume.
    pub base: u64,
    /// The data on its way in.
    pub intake: Intake,
    /// Bytes written.
    pub written: u64,
    /// Each request is stable when it completes.
    pub fua: bool,
}

/// State of [`Job::Compare`].
pub struct Compare {
    /// Offset on the volume.
    pub base: u64,
    /// The data on its way in, unless there is a pattern.
    pub intake: Intake,
    /// Bytes compared.
    pub compared: u64,
    /// Write each piece before it is read back.
    pub write_first: bool,
    /// Compare what was read; else it is enough that it could be read.
    pub compares: bool,
    /// What to compare with.
    pub data: Data,
    /// Bytes to compare altogether.
    pub total: u64,
}

/// What [`Compare`] compares with.
pub enum Data {
    /// Nothing has come yet, or it is being written.
    None,
    /// A piece of the initiator's bytes, being compared.
    Piece(Piece),
    /// One block that every block must equal.
    Pattern(Buf),
}

/// State of [`Job::Collect`].
pub struct Collect {
    /// The data on its way in.
    pub intake: Intake,
    /// What to do with it.
    pub then: Then,
}

/// What follows a [`Collect`].
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

/// State of [`Job::Fill`].
pub struct Fill {
    /// Where.
    pub range: ByteRange,
    /// How much has been written.
    pub written: u64,
    /// The block repeated; `None` while a request has it.
    pub pattern: Option<Buf>,
}

/// State of [`Job::Bare`].
pub struct Bare {
    /// What to do with each range.
    pub op: lunet_block::Op,
    /// Where; for a flush one empty range.
    pub ranges: Vec<ByteRange>,
    /// The range that comes next.
    pub next: usize,
}

impl Read {
    /// A read of `range` in requests of `chunk` bytes, of which `wire` bytes are sent.
    pub fn new(range: ByteRange, chunk: u64, wire: u64, mapped: bool, discard: bool) -> Self {
        Self {
            range,
            chunk,
            requested: 0,
            sent: 0,
            wire,
            send_seq: 0,
            ready: [const { None }; DEPTH],
            mapped,
            discard,
        }
    }
}

/// An operation that has not begun, of no connection.
pub fn operation(volume: usize, kind: Kind, started: Duration, job: Job) -> Task {
    Operation::new(volume, kind, started, ScsiCommand::new(job))
}

impl Command for ScsiCommand {
    type Face = LogicalUnit;

    fn internal() -> Self {
        Self::new(Job::Bare(Bare::nothing()))
    }

    fn refuse(&mut self, face: &LogicalUnit) {
        if let Some(sense) = face.unit.state.sanitize_sense() {
            self.fail(sense);
        }
    }
}

impl Face for LogicalUnit {
    fn is_closed(&self) -> bool {
        self.unit.state.sanitation().is_under_way()
    }
}

impl ScsiCommand {
    fn new(job: Job) -> Self {
        Self {
            owner: None,
            lun: 0,
            transfer: Transfer::default(),
            sense: None,
            data: Vec::new(),
            refused: None,
            stable: false,
            power: None,
            deferred: None,
            background: None,
            copy: None,
            job,
        }
    }

    /// Gives back the memory that it holds itself, not what is in flight.
    pub fn drop_buffers(&mut self) {
        match &mut self.job {
            Job::Read(job) => job.ready = [const { None }; DEPTH],
            Job::Compare(job) => job.data = Data::None,
            Job::Fill(job) => job.pattern = None,
            Job::Exclusive(job) => job.drop_buffers(),
            Job::Write(_)
            | Job::Collect(_)
            | Job::Bare(_)
            | Job::Sanitize(_)
            | Job::Settle(_)
            | Job::Away(_)
            | Job::Copy => {}
        }
    }

    /// Remembers the first failure; the command stops after what is at work.
    pub fn fail(&mut self, sense: Sense) {
        self.sense.get_or_insert(sense);
    }

    /// The slot of the connection that it belongs to.
    pub fn slot(&self) -> Option<u32> {
        self.owner.map(|owner| owner.slot).or(self.background)
    }

    /// True if it belongs to a command of the connection in `slot`.
    pub fn owned_by(&self, slot: u32) -> bool {
        self.owner.is_some_and(|owner| owner.slot == slot)
    }

    /// Its data on the way in, if it is asked for as memory allows.
    pub fn intake(&mut self) -> Option<&mut Intake> {
        match &mut self.job {
            Job::Write(job) => Some(&mut job.intake),
            Job::Compare(job) => Some(&mut job.intake),
            Job::Collect(job) => Some(&mut job.intake),
            _ => None,
        }
    }
}
