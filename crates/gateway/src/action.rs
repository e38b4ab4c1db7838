//! What the state machine is told, and what it wants done.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::{Access, Contents, Epoch, Gate, GatewayId, Port, Portals, Record, Registered, Volume};

/// How long a blocklist entry lasts. The cluster's default of an hour is too short: a gateway that was stopped for
/// longer, as a suspended virtual machine is, would write over what its successor has written.
pub const TEN_YEARS: Duration = Duration::from_secs(315_360_000);

/// What an entry has to last at least to be trusted: nine years. Ceph keeps the end that an entry had when it is asked for
/// a later one, and says all the same that it is so.
pub const LONG_ENOUGH: Duration = Duration::from_secs(9 * 31_536_000);

/// An operation that the machine asked for. Results of operations that it has given up mean nothing to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// A notify as the watcher gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NotifyId(pub u64);

/// A RADOS client. A new one has another address: it contains a random number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientName {
    /// What is blocklisted: `192.0.2.7:0/2719412375`.
    pub address: String,
    /// How it is called as the owner of a lock: `client.4123`.
    pub lock: String,
}

/// Why an operation on the cluster failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// ECANCELED: the comparison of a compare-and-set failed.
    Lost,
    /// EROFS: another client has the lock.
    ReadOnly,
    /// ESHUTDOWN: this client is blocklisted.
    Blocklisted,
    /// ETIMEDOUT: it may still take effect.
    TimedOut,
    /// Of a record that is read: there is none. Of a client: its record is not there, or it is another one than this gateway's.
    NoRecord(Lost),
    /// Anything else; it may still take effect, too.
    Other(i32),
}

impl Failure {
    /// By the number of Linux.
    pub const fn from_errno(errno: i32) -> Self {
        match errno {
            125 => Self::Lost,
            30 => Self::ReadOnly,
            108 => Self::Blocklisted,
            110 => Self::TimedOut,
            other => Self::Other(other),
        }
    }

    /// True if it says that this gateway owns the group no more.
    pub const fn deposes(self) -> bool {
        matches!(self, Self::ReadOnly | Self::Blocklisted)
    }

    /// True if what failed may take effect later: the range of a write stays fenced.
    pub const fn may_take_effect(self) -> bool {
        matches!(self, Self::TimedOut | Self::Other(_))
    }
}

/// What has become of the record that a gateway knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// It was deleted.
    Gone,
    /// Another one is in its place: it was made anew.
    Anew,
}

/// How an operation ended.
pub type Result<T = Reply> = core::result::Result<T, Failure>;

/// What an operation gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is done.
    Done,
    /// Of [`Action::NewClient`].
    Client {
        /// How it is called.
        name: ClientName,
        /// The images that it has open, and with which size: those of the record as it was then, in its order.
        images: Vec<(String, u64)>,
    },
    /// Of [`Action::Look`]: the bytes of the record, and who holds the lock of each image.
    Seen {
        /// The record.
        record: Vec<u8>,
        /// Lock owners; images that nobody has locked are left out.
        locks: Vec<ClientName>,
    },
    /// Of [`Action::ReadRecord`].
    Record(Vec<u8>),
    /// Of [`Action::Blocklist`]: how long the entry lasts from now on, as the list itself has it, by the cluster's
    /// clock. Zero if it is not on the list.
    Listed(Duration),
    /// Of [`Action::Notify`], also when its time was over.
    Acks {
        /// Who has answered, and what.
        acks: Vec<Ack>,
        /// Every watcher has. Without watchers this is so, too.
        all: bool,
    },
}

/// The answer of a watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack(pub Vec<u8>);

/// An administrator's wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The group is to move to that gateway, in good order.
    MoveTo(GatewayId),
    /// This gateway is to take the group, whatever its owner does.
    TakeOver,
    /// The group is to have the gateways 1 to this number, each with a target port of its number, besides those that it has,
    /// whose ports stay what they are. Only an owner does that, by a move to itself.
    Gateways(u16),
}

/// Why an order is not carried out. What to do next is in [`Refusal::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The gateway is changing its part already.
    #[error("the gateway is not ready for it")]
    NotReady,
    /// The gateway has no connection to the cluster.
    #[error("the gateway has no connection to the cluster")]
    NoClient,
    /// The gateway has just started, and knows nothing of the group.
    #[error(
        "the gateway has not read the record of the group yet, as it still connects to the cluster"
    )]
    NoRecord,
    /// A client that may still write to the images cannot be shut out, or is not this group's.
    #[error("a client of the cluster is in the way")]
    InTheWay,
    /// It owns the group.
    #[error("the gateway owns the group already")]
    IsOwner,
    /// There is no such gateway in the record.
    #[error("the group has no such gateway")]
    Unknown,
    /// That gateway does not run, stands still, or does not reach the cluster.
    #[error("that gateway does not answer")]
    Absent,
    /// It does not own the group.
    #[error("the gateway does not own the group")]
    NotOwner,
    /// It has as many gateways, or cannot have so many.
    #[error(
        "the group has so many gateways already, or one of its ports has the number of another gateway"
    )]
    NoMore,
    /// Commands under way did not end in time: the gateway goes on as the owner.
    #[error("commands under way did not end in time, and the gateway goes on as the owner")]
    NotDrained,
    /// A [`Job`] is under way.
    #[error("a snapshot, a rollback or another change of a volume of the group is under way")]
    JobUnderWay,
    /// Its record is not there any more.
    #[error("the record of the group was deleted while lunet ran here")]
    Orphaned,
    /// Another gateway has taken the group over in the meantime, and keeps it.
    #[error("another gateway has taken the group over in the meantime")]
    Overtaken,
    /// There is nobody who would do a job.
    #[error("no gateway owns the group now")]
    NoOwner,
    /// The owner has too many jobs.
    #[error("too many changes of the group's volumes are under way")]
    Crowded,
}

impl Refusal {
    /// What an administrator is to do next, as the end of a sentence.
    pub const fn next(self) -> &'static str {
        match self {
            Self::NotReady => "try again in some seconds",
            Self::NoClient => "`lunet group list` there says why: try again when it has one",
            Self::NoRecord => {
                "try again in some seconds; `lunet group list` there says what holds it up"
            }
            Self::InTheWay => "`lunet group list` names it, and what to do about it",
            Self::IsOwner => {
                "nothing has to be done; `lunet group move` to another gateway has it leave"
            }
            Self::Unknown => {
                "`lunet group gateways` lists those that it has, and `lunet group grow` at its owner gives it more"
            }
            Self::Absent => {
                "see that lunet runs there, and that `lunet group list` there says that it is a standby"
            }
            Self::NotOwner => "run the command at its owner, which `lunet group list` shows",
            Self::NoMore => {
                "name more gateways than `lunet group gateways` lists, or make the group anew if its ports have other numbers"
            }
            Self::NotDrained => {
                "try again when what holds them up has ended, such as OSDs that are missing (`ceph -s`)"
            }
            Self::JobUnderWay => "try again when it has ended",
            Self::Orphaned => "restart lunet on this gateway when the group is there again",
            Self::Overtaken => {
                "`lunet group list` shows which: order it again if it is to come here all the same"
            }
            Self::NoOwner => {
                "try again when `lunet group list` shows an owner, or have a gateway `lunet group take-over` it"
            }
            Self::Crowded => "try again when one has ended",
        }
    }
}

/// What an administrator has to know, as nobody else can do something about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Notice {
    /// The group is not taken over, as its former owner could write to it again.
    #[error(
        "the group is not taken over: the client {address} may still write to it, as its blocklist entry ends in {} s, \
         and Ceph does not lengthen an entry: wait until then, or make sure that the client is gone (its machine is dead, or \
         lunet was restarted there since), then `ceph osd blocklist rm {address}`; it is tried again every {} s",
        lasts.as_secs(), again.as_secs()
    )]
    ShortEntry {
        /// The client that is to be fenced.
        address: String,
        /// How long its entry lasts.
        lasts: Duration,
        /// When the next takeover may begin by itself.
        again: Duration,
    },
    /// The group is not taken over, as somebody else uses an image of it.
    #[error(
        "the group is not taken over: the client {address}, which is no gateway of it, has an image of it locked: end that \
         (`rbd status` and `rbd lock ls` tell of which image), or, if its machine is dead for sure, `rbd lock rm`; it is \
         tried again every {} s", again.as_secs()
    )]
    InUse {
        /// Who has the lock.
        address: String,
        /// When the next takeover may begin by itself.
        again: Duration,
    },
    /// The group does not get the volumes that it is to have.
    #[error(
        "the group keeps its volumes as they are, as commands to some of them do not end: end what holds them up, such as OSDs of \
         their pool that are missing; it is tried again every {} s", again.as_secs()
    )]
    NotDrained {
        /// When that is.
        again: Duration,
    },
    /// The record that this gateway knew is not there any more: it does nothing for the group until it is started again.
    #[error(
        "the record of the group was deleted{} while lunet ran here, so this gateway serves nothing of the group: restart lunet on \
         this gateway{}",
        match .0 { Lost::Gone => "", Lost::Anew => " and made anew" },
        match .0 { Lost::Gone => ", when `lunet group create` has made the group again", Lost::Anew => "" }
    )]
    Orphaned(Lost),
    /// Another server says that it is this gateway.
    #[error(
        "another server that runs is gateway {0} of the group as well: give each its own number, and portals with that as their \
         tag"
    )]
    SameNumber(u16),
}

/// A request that changes the record, on reservations, mode pages or marks, by the caller's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request(pub u64);

/// Work of the owner on a volume, by its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Job(pub u64);

/// What became of a job that an administrator has ordered here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The owner has ended it, and says so.
    Answer(Vec<u8>),
    /// Nothing was done, and nothing will be.
    Refused(Refusal),
    /// Nobody has answered in time: it may have been done, and may be done yet.
    Unknown,
}

/// The answer to a request of an initiator here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// What the owner's execution gave.
    Body(Vec<u8>),
    /// Of a report: the record as it was after the request had come.
    Record(Box<Record>),
    /// Nothing was done, and nothing will be: BUSY.
    Busy,
}

/// A unit attention for every nexus of the group at this gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// ASYMMETRIC ACCESS STATE CHANGED, 2Ah/06h; over NVMe the ANA change event.
    AccessChanged,
    /// RESERVATIONS PREEMPTED, 2Ah/03h: they are not those that were known here.
    ReservationsChanged,
    /// I_T NEXUS LOSS OCCURRED, 29h/07h: commands of nexuses were lost.
    NexusLoss,
}

/// What happens to a gateway.
#[derive(Clone, Debug)]
pub enum Input {
    /// Time has passed; see [`Gateway::timeout`](crate::Gateway::timeout).
    Tick,
    /// An operation has ended.
    Done(OpId, Result),
    /// A notify came in; it is answered by [`Action::Acknowledge`].
    Notified(NotifyId, Vec<u8>),
    /// The watch of the client that this [`Action::NewClient`] made is broken.
    WatchFailed(OpId),
    /// I/O of that client failed.
    IoFailed(OpId, Failure),
    /// An administrator wants something.
    Order(Order),
    /// PERSISTENT RESERVE OUT, or mode pages or a mark that are to be kept. Its command is one that the
    /// [gate](crate::Gate::admits) and the [way](crate::Way::admits) of its host have let in, as any that changes something:
    /// a standby gets it from nobody, and answers BUSY.
    Reserve(u64, Vec<u8>),
    /// PERSISTENT RESERVE IN of an initiator here.
    Report(u64),
    /// [`Action::Execute`] was done on a copy: what the record is to contain, and the answer.
    Executed(Request, Box<Contents>, Vec<u8>),
    /// [`Action::Apply`] was done.
    Applied(Request),
    /// An administrator here wants work done on a volume, and waits for so long: [`Action::JobTold`] says what became of it,
    /// by this number.
    Job(u64, Vec<u8>, Duration),
    /// [`Action::Job`] has ended, with this answer.
    JobDone(Job, Vec<u8>),
    /// These are the volumes that the group is to have. What it knows of those that it has already, by their images, it keeps.
    /// Only an owner takes it up, when it may, and nobody repeats it for an owner that could not.
    Volumes(Vec<Volume>),
}

/// What a gateway is to do, in this order. Operations with an [`OpId`] end with [`Input::Done`], and may take for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make a RADOS client, open the images without their locks, watch the record.
    NewClient(OpId),
    /// Close the images and end the RADOS client: nothing that it has not sent is sent any more.
    DropClient {
        /// Locks that it holds are released first, if that is done within a second.
        release: bool,
    },
    /// Read the record.
    ReadRecord(OpId),
    /// Read the record, then the lock owner of each image.
    Look(OpId),
    /// Blocklist that address for so long, then read the list: [`Reply::Listed`] tells what the entry is like, not what
    /// was asked for.
    Blocklist(OpId, String, Duration),
    /// Have this client wait for the latest OSD map.
    WaitForMap(OpId),
    /// Break the locks of that client, and of no other. Images that it does not hold stay as they are.
    BreakLock(OpId, ClientName),
    /// Acquire the lock of each image, exclusively.
    Acquire(OpId),
    /// Read each image's header again.
    Refresh(OpId),
    /// Write the record if it has that epoch and revision.
    Swap {
        /// The operation.
        op: OpId,
        /// What it must have.
        expect: (Epoch, u64),
        /// The new record.
        record: Box<Record>,
    },
    /// Notify all watchers, and wait for so long for their answers.
    Notify(OpId, Vec<u8>, Duration),
    /// Answer a notify.
    Acknowledge(NotifyId, Vec<u8>),
    /// The gate has changed. When it opens, each connection is pinged.
    Gate(Gate),
    /// The gate is closed, and answers of commands under way are thrown away from here on.
    StopAnswering(Gate),
    /// Abort every connection of the group. Bytes that were not read stay unread, and nothing is answered.
    AbortConnections,
    /// Take up reservations, mode pages, marks and pending unit attentions. The gate opens next.
    Load(Box<Record>),
    /// Report the mode pages of the record from here on, and ask the owner about volumes that have a mark there: this gateway does
    /// not own the group.
    Modes(Box<Record>),
    /// Raise a unit attention.
    Attention(Attention),
    /// These registrations of volumes, by their NAA designators, are gone: their nexuses at this gateway, which does not own
    /// the group, are told so, RESERVATIONS PREEMPTED (2Ah/03h).
    Preempted(Vec<([u8; 16], Registered)>),
    /// The owner of this epoch is another gateway, or nobody. Commands that the gate lets [through](crate::Admission::Forward)
    /// go to these portals from here on; what was passed on in an earlier epoch and is not answered is answered no more.
    Reach(Epoch, Portals),
    /// Report these target ports of all gateways, and these access states of their groups, from here on.
    Access(Epoch, Vec<Port>, Access),
    /// Wait until no command of the group is under way.
    Drain(OpId),
    /// Flush each image.
    Flush(OpId),
    /// Release the lock of each image.
    Release(OpId),
    /// Execute PERSISTENT RESERVE OUT on a copy of the reservations, and hold back commands that they decide about until
    /// [`Self::Apply`] or [`Self::Abandon`].
    Execute(Request, Vec<u8>),
    /// The change is in the record: it takes effect. What it aborts has to end before [`Input::Applied`].
    Apply(Request),
    /// The change is given up, as this gateway has fenced itself.
    Abandon(Request),
    /// Answer an initiator's request on reservations.
    Answer(u64, Answer),
    /// Do this work on a volume, beside everything else, and report [`Input::JobDone`] in any case. The group is not given away
    /// meanwhile; it may be taken.
    Job(Job, Vec<u8>),
    /// Tell the administrator what became of a job that was ordered here.
    JobTold(u64, Outcome),
    /// Tell the administrator that an order is not carried out.
    Refuse(Order, Refusal),
    /// Tell the administrator.
    Notice(Notice),
    /// What hindered takeovers, as it was told, hinders nobody any more: the owner is there.
    Settled,
    /// These gateways have answered this one, which owns the group: the others, by their numbers. Two with one number are here twice.
    Present(Vec<GatewayId>),
}
