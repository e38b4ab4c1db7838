//! What NVMe knows of a connection, which is a queue, and how its PDUs get into what is sent.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use lunet_nvme::Through;
use lunet_nvme::auth::chap::Responder;
use lunet_nvme::auth::psk::Identity;
use lunet_nvme::command::Completion;
use lunet_nvme::controller::{Command, Connection, Controller, Event, Kind, Tag};
use lunet_nvme::digest::Crc32c;
use lunet_nvme::fabrics::Connect;
use lunet_nvme::log::{AnaState, ReservationNotice};
use lunet_nvme::rdma::{self, ConnectRequest};
use lunet_nvme::transmit::{self, Transmit};
use lunet_reservations::Access;
use lunet_ring::{Account, Arena, Buf, Payload, Reserve};
use lunet_server::conn;
use lunet_server::part::Part;
use lunet_server::rdma::Remote;
use lunet_server::transmit::Outgoing;
use lunet_tls::server::Server;
use lunet_volume::{ClientLimits, OperationId, PathState, VolumeId, take};

use crate::config::CAPSULE_DATA;
use crate::group::Gated;
use crate::registry::Member;
use crate::world::Subsystem;

/// A connection that speaks NVMe.
pub type Conn = conn::Conn<NvmeConn>;

/// The connections of a shard, which speak NVMe.
pub type Conns = conn::Conns<NvmeConn>;

/// What NVMe knows of a connection.
pub struct NvmeConn {
    /// Protocol state.
    pub proto: Connection<Buf>,
    /// Events that the protocol raised and the shard has not handled; kept for its memory.
    pub events: Vec<Event<Buf>>,
    /// The queue, once the host has connected.
    pub queue: Option<Queue>,
    /// What an admin queue has besides.
    pub admin: Option<Box<Admin>>,
    /// Whether it is by TLS.
    pub tls: Channel,
    /// Data of a capsule that waits for memory.
    pub starved: Option<Starved>,
    /// Over RDMA: what the host has said of the queue when it connected.
    pub asked: Option<ConnectRequest>,
    /// The host has to prove itself, and has not yet.
    pub auth: Option<Box<Authentication>>,
    /// The host proves itself anew, on a queue that it uses meanwhile.
    pub again: Option<Box<Authentication>>,
    /// The Connect that waits for former controllers of its host to end.
    pub waiting: Option<Box<Connect>>,
    /// The first command of a fused pair, until the next event, which is the second.
    pub first: Option<Command<Buf>>,
    /// Of a queue of a failover group's controller: which epoch it belongs to.
    pub gated: Option<Box<Gated>>,
    /// It is a relay of another gateway of the group.
    pub through: Option<Through>,
    /// It was aborted with its failover group: dropped when it is closed.
    pub aborted: Vec<Part>,
    /// The server stops: the connection ends when nothing is at work for the host, and is looked at from this time on.
    pub leaves: Option<Duration>,
    /// Commands at work, indexed by the protocol's slot number.
    pub tasks: Vec<Option<OperationId>>,
}

/// What is between the bytes of a connection and its PDUs.
pub enum Channel {
    /// Nothing has come, of which the first byte tells.
    Unknown,
    /// Nothing: bytes are PDUs.
    Plain,
    /// A handshake of TLS is under way.
    Handshake(Box<Handshake>),
    /// TLS, of which the kernel makes and opens the records; and what the host has proved.
    Tls(Box<Secured>),
    /// The connection is to end, for this reason.
    Refused(Box<str>),
}

/// A handshake of TLS.
#[derive(Default)]
pub struct Handshake {
    /// The server's end.
    pub server: Server,
    /// The identity that the host has come with last, and why there is no key for it.
    pub unknown: Option<(String, &'static str)>,
}

/// What a host has proved by TLS.
pub struct Secured {
    /// Who it is, and for which subsystem.
    pub identity: Identity,
    /// The cipher suite.
    pub suite: &'static str,
    /// The whole identity, if the key is one that an authentication has made.
    pub generated: Option<Box<str>>,
}

impl Channel {
    /// The identity of the key that an authentication has made, by which the connection has come.
    pub fn generated(&self) -> Option<&str> {
        match self {
            Self::Tls(secured) => secured.generated.as_deref(),
            _ => None,
        }
    }
}

/// Data of a capsule that waits for memory.
pub struct Starved {
    /// Since when.
    pub since: Duration,
    /// When to look again, if nothing of the queue ends before.
    pub look_at: Duration,
    /// What has come behind it.
    pub unread: Vec<u8>,
}

/// A queue of a controller.
pub struct Queue {
    /// Its identifier; 0 is the admin queue.
    pub qid: u16,
    /// The controller.
    pub member: Arc<Member>,
    /// The subsystem; `None` for discovery.
    pub subsystem: Option<Arc<Subsystem>>,
    /// The namespaces that the host sees, ascending.
    pub namespaces: Vec<Seen>,
    /// When a sign of life of the host was written into [`Member`].
    pub told: Duration,
    /// When the host connected.
    pub since: Duration,
    /// Its Connect is in the log, and so will be its end.
    pub logged: bool,
    /// The host has proved who it is.
    pub proven: bool,
}

/// An authentication that is under way.
pub struct Authentication {
    /// The controller's end.
    pub responder: Responder,
    /// When it has taken too long.
    pub by: Duration,
}

/// A namespace as one queue sees it.
pub struct Seen {
    /// Namespace identifier.
    pub nsid: u32,
    /// The slot of its volume.
    pub volume: VolumeId,
    /// What reservations let the host do, and the news of the volume up to which that is known.
    pub access: (Access, u64),
    /// The state of the path, as it was found last.
    pub path: PathState,
    /// The buffers that the queue has at the volume's storage.
    pub at_storage: Option<Account>,
}

impl Seen {
    /// A namespace of which nothing is known yet.
    pub fn new(nsid: u32, volume: VolumeId) -> Self {
        let (access, path) = ((Access::NONE, 0), PathState::Optimized);
        Self { nsid, volume, access, path, at_storage: None }
    }
}

/// What a queue sees under an identifier.
pub fn find(namespaces: &mut [Seen], nsid: u32) -> Option<&mut Seen> {
    let at = namespaces.binary_search_by_key(&nsid, |seen| seen.nsid).ok()?;
    namespaces.get_mut(at)
}

/// What an admin queue has besides: the controller.
pub struct Admin {
    /// The controller.
    pub controller: Controller,
    /// What the host was told of paths: the state of each namespace.
    pub paths: Vec<(u32, AnaState)>,
    /// How often these have changed.
    pub path_changes: u64,
    /// What the host has lost and not read about, the oldest first.
    pub notices: VecDeque<(u32, ReservationNotice)>,
    /// How many there were.
    pub notice_count: u64,
    /// Flushes that a shutdown waits for, and the end of its queues.
    pub flushing: usize,
    /// It waits for that.
    pub ends_queues: bool,
}

impl NvmeConn {
    /// A connection that has just been accepted.
    pub fn new(proto: Connection<Buf>) -> Self {
        Self {
            proto,
            events: Vec::new(),
            tls: Channel::Unknown,
            starved: None,
            asked: None,
            queue: None,
            admin: None,
            auth: None,
            again: None,
            waiting: None,
            first: None,
            gated: None,
            through: None,
            aborted: Vec::new(),
            leaves: None,
            tasks: Vec::new(),
        }
    }

    /// A connection over RDMA that is about to be accepted.
    pub fn over_rdma(proto: Connection<Buf>, asked: ConnectRequest) -> Self {
        Self { tls: Channel::Plain, asked: Some(asked), ..Self::new(proto) }
    }

    /// True if data must lie in the arena while it is sent: a digest is in use, so it must not change, or an RDMA device
    /// fetches it, which knows the arena.
    pub fn needs_stable_data(&self) -> bool {
        self.proto.framing().data_digest || self.proto.is_rdma()
    }

    /// Bytes of what is set aside for its queue that are for data in capsules alone, which may be before data that was
    /// asked for. A queue with little has it for whatever comes first.
    pub fn keeps(&self, reserve: Option<&Reserve>) -> usize {
        let Some((reserve, queue)) = reserve.zip(self.queue.as_ref()) else { return 0 };
        let capsule = queue.member.capsule_data as usize;
        match reserve.bytes() {
            _ if self.proto.is_rdma() => 0,
            room if room >= 2 * capsule.max(2 * SHORT) => capsule,
            room if room >= 4 * SHORT => SHORT,
            _ => 0,
        }
    }

    /// What its host and its controller are limited to, if they are.
    #[inline]
    pub fn limits(&self) -> Option<Arc<ClientLimits>> {
        self.queue.as_ref()?.member.limits.of_operation()
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

    /// The authentication that is under way, be it the first one or another.
    pub fn exchange(&mut self) -> Option<&mut Authentication> {
        self.auth.as_deref_mut().or(self.again.as_deref_mut())
    }

    /// What the host is for.
    pub fn kind(&self) -> Option<Kind> {
        self.queue.as_ref().map(|queue| queue.member.kind)
    }
}

/// What the capsules of every controller may have, in bytes.
const SHORT: usize = CAPSULE_DATA as usize;

/// Bytes of pages that may wait to be sent on a connection: they are no buffers of the shard's, which are bounded.
const PAGES: usize = 2 << 20;

/// True if a page of this length may wait with what waits already. A host that asks for so many at once is to ask again.
pub fn has_room_for_page(conn: &Conn, len: usize) -> bool {
    conn.backlog() == 0 || conn.backlog() + len <= PAGES
}

/// Sends a page, and completes its command.
pub fn send_page(conn: &mut Conn, tag: Tag, page: Vec<u8>) {
    let (part, out) = (0..page.len(), &mut conn.out);
    let (data, done) = (Data(Payload::Bytes(page)), Some(Completion::SUCCESS));
    conn.front.proto.send_data(tag, data, part, done, &mut Pdus(out));
}

/// Completes a command.
pub fn complete(conn: &mut Conn, tag: Tag, completion: impl Into<Completion>) {
    conn.front.proto.complete(tag, completion.into(), &mut Pdus(&mut conn.out));
}

/// Where the data of hosts goes: buffers of the shard, charged to the connection.
pub struct Site<'a> {
    /// The shard's buffers.
    pub arena: &'a Arena,
    /// Who pays for them.
    pub account: &'a Account,
    /// How many more bytes the connection may hold of the memory that is for all.
    pub allowance: usize,
    /// What is set aside for its queue.
    pub reserve: Option<&'a Reserve>,
}

impl lunet_nvme::controller::Site for Site<'_> {
    type Buf = Buf;

    fn alloc(&mut self, len: usize) -> Option<Buf> {
        let buf = take((self.arena, self.allowance), self.reserve, self.account, len)?;
        self.allowance = self.allowance.saturating_sub(buf.occupies());
        Some(buf)
    }

    fn alloc_only(&mut self, len: usize) -> Option<Buf> {
        self.arena.alloc_for(len, self.account)
    }

    fn keep(&mut self, buf: &mut Buf) -> bool {
        let Some(left) = self.allowance.checked_sub(buf.occupies()) else { return false };
        self.allowance = left;
        buf.charge(self.account);
        true
    }
}

/// What a connection has to send, as its protocol writes it.
pub struct Pdus<'a>(pub &'a mut Outgoing);

/// A payload of the event loop, as the protocol sees it.
pub struct Data(pub Payload);

impl transmit::Payload for Data {
    fn crc32c(&self, range: Range<usize>, crc: &mut Crc32c) {
        self.0.for_each_chunk(range, |bytes| crc.update(bytes));
    }
}

impl Transmit for Pdus<'_> {
    type Payload = Data;

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.chain.bytes(bytes);
    }

    fn payload(&mut self, payload: Data, range: Range<usize>) {
        let id = self.0.chain.payload(payload.0);
        self.0.chain.slice(id, range);
    }

    fn end_send(&mut self, invalidate: Option<u32>) {
        self.0.end_send(invalidate);
    }

    fn write(&mut self, payload: Data, range: Range<usize>, to: rdma::Remote) {
        let id = self.0.chain.payload(payload.0);
        self.0.write(id, range, Remote { address: to.address, key: to.key });
    }
}
