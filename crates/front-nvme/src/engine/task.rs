//! An NVMe command at work: what it is doing, and how far it has come.

use std::marker::PhantomData;

use lunet_block::{Error, Op};
use lunet_nvme::controller::Tag;
use lunet_nvme::status::Status;
use lunet_relay::Going;
use lunet_server::conn::ConnId;
use lunet_volume::reserve::Wanted;
use lunet_volume::{Command, Face, Failure, Operation, VolumeId};

use super::copy::Copy;
use super::forward::Forwarded;
use super::fused::Pair;
use super::relay::Relaying;

/// A command on its way to its answer, with its work on the storage.
pub type Task<Fc> = Operation<NvmeCommand<Fc>>;

/// What NVMe knows of an operation. By default it is that of no queue.
pub struct NvmeCommand<Fc> {
    /// Who waits for the answer; `None` once it was aborted, or where there was nobody.
    pub owner: Option<Owner>,
    /// The namespace.
    pub nsid: u32,
    /// Bytes that it moves between host and volume.
    pub bytes: u64,
    /// Why it has failed, if its operation does not [know](lunet_volume::Requests::failure).
    pub status: Option<Status>,
    /// What it has changed is to be stable before it is answered, and its requests do not see to that.
    pub flushes: bool,
    /// It is a change that goes by the way of a group's host.
    pub going: Option<Going>,
    /// What it does.
    pub job: Job,
    face: PhantomData<fn() -> Fc>,
}

/// The command that an operation belongs to, or the pair of fused ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The connection's slot.
    pub slot: ConnId,
    /// The command's name there.
    pub tag: Tag,
    /// The second command of the pair.
    pub second: Option<Tag>,
}

/// What a command does.
#[derive(Default)]
pub enum Job {
    /// The [work](Operation::work) of its operation, and nothing else.
    #[default]
    Storage,
    /// The same, on data that is needed in full before the rest of the work is known: so many bytes of it count.
    Collect(Then, usize),
    /// Compares and writes, once the data of both commands is here.
    Fused(Box<Pair>),
    /// Copies range by range.
    Copy(Box<Copy>),
    /// Flushes one volume, and then these.
    FlushAll(Vec<VolumeId>),
    /// Flushes a volume because a controller shuts down.
    ShutDown {
        /// The connection of its admin queue.
        connection: u64,
    },
    /// Nothing but to wait until others have done their part.
    Await(Awaited),
    /// Nothing but to wait for the owner of its failover group.
    Forwarded(Forwarded),
    /// The same, as the owner executes the command.
    Relayed(Box<Relaying>),
}

/// State of [`Job::Await`].
pub struct Awaited {
    /// What answers to it are told by.
    pub ticket: u64,
    /// How many answers are missing.
    pub left: usize,
    /// The change that it waits for; `None`: the command has taken effect.
    pub order: Option<Wanted>,
}

/// What follows a [`Job::Collect`].
#[derive(Clone, Copy)]
pub enum Then {
    /// The ranges that Dataset Management deallocates.
    Deallocate,
    /// The source ranges of a Copy to this block.
    Copy {
        /// The first block to write.
        lba: u64,
    },
    /// The keys of a reservation command.
    Reserve(crate::reservations::Wish),
}

impl<Fc> Default for NvmeCommand<Fc> {
    fn default() -> Self {
        Self {
            owner: None,
            nsid: 0,
            bytes: 0,
            status: None,
            flushes: false,
            going: None,
            job: Job::Storage,
            face: PhantomData,
        }
    }
}

impl<Fc: Face> Command for NvmeCommand<Fc> {
    type Face = Fc;

    fn clear(&mut self) {
        // Every field is named, so that none is forgotten.
        let Self { owner, nsid, bytes, status, flushes, going, job, face: PhantomData } = self;
        (*owner, *nsid, *bytes, *status, *flushes) = (None, 0, 0, None, false);
        (*going, *job) = (None, Job::Storage);
    }
}

impl<Fc> NvmeCommand<Fc> {
    /// True if it belongs to a command of the connection in `slot`.
    pub fn owned_by(&self, slot: ConnId) -> bool {
        self.owner.is_some_and(|owner| owner.slot == slot)
    }

    /// True if the command has taken effect already and only waits for its answer, or may have.
    pub fn has_taken_effect(&self) -> bool {
        match &self.job {
            Job::Await(awaited) => awaited.order.is_none(),
            Job::Forwarded(forwarded) => forwarded.is_change(),
            Job::Relayed(relaying) => relaying.is_sent(),
            _ => false,
        }
    }
}

/// A command fails for this reason, if it has not failed before, and stops after what is at work.
pub fn fail<Fc: Face>(task: &mut Task<Fc>, status: Status) {
    if task.fail() {
        task.command.status = Some(status);
    }
}

/// A Copy has more blocks, or more ranges, than the namespace allows: 'command size limit exceeded'.
pub const TOO_LARGE: Status = Status::from_bits(0x183).no_retry();

/// SANITIZE_IN_PROGRESS: the volume is worked on as a whole.
pub const WORKED_ON: Status = Status::from_bits(0x01d);

/// Something else is at work on these blocks, or at this volume: the host tries again soon.
pub const BUSY: Status = Status::INTERRUPTED.retry_after(1);

/// Why a command has failed.
pub fn status<Fc: Face>(task: &Task<Fc>) -> Option<Status> {
    Some(match task.requests.failure()? {
        Failure::Storage { error, op, .. } => of_storage(error, op),
        Failure::Differs { .. } => Status::COMPARE_FAILURE.no_retry(),
        Failure::Closed { .. } => WORKED_ON,
        Failure::Crowded => BUSY,
        Failure::Command => task.command.status.unwrap_or(Status::INTERNAL),
    })
}

/// What the failure of a request is told as. What will not go away by itself is not to be retried; what an administrator
/// can mend is, so that hosts that queue go on.
fn of_storage(error: Error, op: Op) -> Status {
    let reads = matches!(op, Op::Read | Op::ReadMapped);
    match error {
        Error::OutOfSpace => Status::CAPACITY,
        Error::ReadOnly => Status::WRITE_PROTECTED.no_retry(),
        Error::OutOfRange => Status::LBA_RANGE.no_retry(),
        Error::Io(_) if reads => Status::READ_ERROR,
        Error::Io(_) => Status::WRITE_FAULT,
        // Nobody may take it for stable: later flushes fail as well.
        Error::NotStable(_) => Status::WRITE_FAULT.no_retry(),
        Error::Gone => Status::NOT_READY,
        Error::Unsupported => Status::INTERNAL.no_retry(),
        Error::Cancelled => Status::ABORTED,
    }
}
