//! What iSCSI knows of a connection and its session, and how its protocol's PDUs get into what is sent.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use lunet_iscsi::Through;
use lunet_iscsi::chap::Proof;
use lunet_iscsi::digest::Crc32c;
use lunet_iscsi::iser;
use lunet_iscsi::pdu::TmfFunction;
use lunet_iscsi::target::{self as iscsi, Connection, Event, LoginIdentity, Tag, Transmit};
use lunet_ring::{Account, Buf, Payload};
use lunet_scsi::Attention;
use lunet_scsi::reserve::{LiveNexus, Seat};
use lunet_server::conn;
use lunet_server::part::Part;
use lunet_server::transmit::Outgoing;
use lunet_verbs::Remote;
use lunet_volume::{ClientLimits, OperationId, VolumeId};

use crate::group::Gated;
use crate::message::Cause;
use crate::registry::Nexus;
use crate::reservations::Place;
use crate::world::{CoreTarget, ScsiVolume};

/// How long a discovery session may last: asking for the targets takes a moment.
const DISCOVERY: Duration = Duration::from_secs(60);

/// A connection that speaks iSCSI.
pub type Conn = conn::Conn<IscsiConn>;

/// The connections of a shard, which speak iSCSI.
pub type Conns = conn::Conns<IscsiConn>;

/// What iSCSI knows of a connection.
pub struct IscsiConn {
    /// Protocol state.
    pub proto: Connection<Buf>,
    /// Events that the protocol raised and the shard has not handled; kept for its memory.
    pub events: Vec<Event<Buf>>,
    /// The session, once admitted.
    pub session: Option<Session>,
    /// The identity that waits for admission: an older session of the nexus is being ended.
    pub waiting: Option<Box<LoginIdentity>>,
    /// Commands at work, indexed by the protocol's slot number.
    pub tasks: Vec<Option<OperationId>>,
    /// Functions that wait for other shards.
    pub clears: Vec<PendingClear>,
    /// Functions that wait until the owner of the failover group is reached.
    pub functions: Vec<WaitingFunction>,
    /// It was aborted with its failover group: dropped when it is closed.
    pub aborted: Option<Part>,
}

/// A session in full feature phase.
pub struct Session {
    /// I_T nexus: the key of the session in the registry.
    pub nexus: Nexus,
    /// The same, as reservations know it.
    pub id: Arc<LiveNexus>,
    /// Target session identifying handle.
    pub tsih: u16,
    /// The target that it is a session of; `None` for a discovery session.
    pub target: Option<Arc<CoreTarget>>,
    /// The gateway that passes its commands on, which has logged in for the initiator.
    pub through: Option<Through>,
    /// How it has proved who it is.
    pub proof: Option<Proof>,
    /// How that target looks to this initiator.
    pub scsi: lunet_scsi::Target,
    /// The LUNs that it sees, ascending.
    pub luns: Vec<SessionLun>,
    /// For a session of a failover group: the epoch that its connection belongs to.
    pub gated: Option<Box<Gated>>,
    /// What it and its initiator are limited to.
    pub limits: Arc<ClientLimits>,
    /// Its login is in the log, and so will be its end.
    pub logged: bool,
    /// When it was admitted.
    pub since: Duration,
}

/// A logical unit as one session sees it.
pub struct SessionLun {
    /// Logical unit number.
    pub lun: u16,
    /// The slot of its volume.
    pub volume: VolumeId,
    /// What pends for the initiator there, and what it may do.
    pub nexus: lunet_scsi::Nexus,
    /// Where it sits at the unit.
    pub place: Place,
    /// The buffers that the session has at the volume's storage.
    pub at_storage: Option<Account>,
}

impl SessionLun {
    /// Takes a seat at the unit of a volume. What an initiator knew of the unit before, it should ask
    /// again (SAM-5 5.14), but for one that comes `through` another gateway: that has told it.
    pub fn join(
        lun: u16,
        (slot, volume): (VolumeId, &ScsiVolume),
        id: &Arc<LiveNexus>,
        through: bool,
    ) -> Self {
        let place = Place::take(volume, id);
        let mut nexus = lunet_scsi::Nexus::new();
        if !through {
            nexus.establish(Attention::PowerOn);
        }
        Self { lun, volume: slot, nexus, place, at_storage: None }
    }
}

/// What a session sees under a number.
pub fn find_lun(luns: &mut [SessionLun], lun: u16) -> Option<&mut SessionLun> {
    let at = luns.binary_search_by_key(&lun, |seen| seen.lun).ok()?;
    luns.get_mut(at)
}

/// A task management function that waits for other shards.
pub struct PendingClear {
    /// The function's tag, for the response.
    pub tag: Tag,
    /// Shards that have not done their part.
    pub left: Arc<AtomicUsize>,
    /// What it does.
    pub cause: Cause,
    /// By which relay the owner of the failover group does its part.
    pub relay: Option<u64>,
}

/// A task management function as it arrived.
#[derive(Clone, Copy)]
pub struct Function {
    /// Its name at the connection, for the response.
    pub tag: Tag,
    /// What to do.
    pub function: TmfFunction,
    /// To which logical unit.
    pub lun: u64,
    /// To which command.
    pub referenced: Option<Tag>,
}

/// A function that concerns commands at the owner of a failover group, and waits for the way there.
pub struct WaitingFunction {
    /// Which.
    pub function: Function,
    /// When it is tried again.
    pub again: Duration,
    /// Until when it waits.
    pub until: Duration,
}

impl IscsiConn {
    /// A connection that has just been accepted.
    pub fn new(proto: Connection<Buf>) -> Self {
        Self {
            proto,
            events: Vec::new(),
            session: None,
            waiting: None,
            tasks: Vec::new(),
            clears: Vec::new(),
            functions: Vec::new(),
            aborted: None,
        }
    }

    /// When a discovery session has taken long enough, unless it was asked to end already.
    pub fn discovery_ends(&self) -> Option<Duration> {
        let session = self.session.as_ref().filter(|session| session.nexus.target.is_none())?;
        (!self.proto.is_asked_to_log_out()).then_some(session.since + DISCOVERY)
    }

    /// What its session and its initiator are limited to, if they are.
    #[inline]
    pub fn limits(&self) -> Option<Arc<ClientLimits>> {
        self.session.as_ref()?.limits.of_operation()
    }

    /// The session's seat at a logical unit.
    pub fn seat(&self, lun: u16) -> Option<Seat> {
        let luns = &self.session.as_ref()?.luns;
        luns.iter().find(|seen| seen.lun == lun).map(|seen| seen.place.seat)
    }

    /// The operation of the command behind a tag.
    pub fn task(&self, tag: Tag) -> Option<OperationId> {
        self.tasks.get(tag.slot()).copied().flatten()
    }

    /// Remembers the operation of the command behind a tag; `None` forgets it.
    pub fn set_task(&mut self, tag: Tag, task: Option<OperationId>) {
        let slot = tag.slot();
        if self.tasks.len() <= slot {
            self.tasks.resize(slot + 1, None);
        }
        self.tasks[slot] = task;
    }

    /// True if data must lie in the arena while it is sent: a digest is in use, so it must not change, or
    /// an RDMA device fetches it, which knows the arena.
    pub fn needs_stable_data(&self) -> bool {
        self.proto.negotiated().data_digest || self.proto.is_rdma()
    }
}

/// What a connection has to send, as its protocol writes it.
pub struct Pdus<'a>(pub &'a mut Outgoing);

/// A payload of the event loop, as the protocol sees it.
pub struct Data(pub Payload);

impl iscsi::Payload for Data {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn crc32c(&self, range: Range<usize>, crc: &mut Crc32c) {
        self.0.for_each_chunk(range, |bytes| crc.update(bytes));
    }
}

impl Transmit for Pdus<'_> {
    type Payload = Data;

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.chain.bytes(bytes);
    }

    fn payload(&mut self, payload: Data) -> usize {
        self.0.chain.payload(payload.0)
    }

    fn slice(&mut self, id: usize, range: Range<usize>) {
        self.0.chain.slice(id, range);
    }

    fn end_send(&mut self, invalidate: Option<u32>) {
        self.0.end_send(invalidate);
    }

    fn write(&mut self, id: usize, range: Range<usize>, to: iser::Remote) {
        self.0.write(id, range, Remote { address: to.offset, key: to.stag });
    }
}
