//! What a protocol brings to the server, and what the shards ask it for.
//!
//! A shard owns the event loop, the connections and the way of bytes in and out. What the bytes mean, who may log in,
//! and what becomes of a command is its front's business. There is one front for each shard, chosen when the server
//! is built: every call is a direct one.

use std::error::Error;
use std::hash::Hash;
use std::io;
use std::ops::{DerefMut, Range};
use std::sync::Arc;
use std::time::Duration;

use lunet_ring::{Buf, Ring};
use lunet_volume::{
    Command, Executor, Face, NoChannel, OperationId, ShardConfig, Step, Volume, VolumeId,
};

use crate::change::{ApplyError, Next};
use crate::conn::{Conn, ConnId, Conns};
use crate::core::Core;
use crate::hosting::Hosting;
use crate::places::ConnRef;
use crate::portals::Portals;
use crate::rdma::{Fault, Receives, RemoteRead};
use crate::served::World;
use crate::shard::Shard;
use crate::stats::Counts;

/// Why a protocol cannot serve what it is to serve: an error of its own.
pub type FrontError = Box<dyn Error + Send + Sync>;

/// How log lines and reports name what they speak of, in the words of the front's protocol.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// The protocol over RDMA.
    pub rdma: &'static str,
    /// The same in a portal's `transport` setting.
    pub transport: &'static str,
    /// The other end of a connection.
    pub client: &'static str,
    /// Sessions that only ask what there is.
    pub listing: &'static str,
    /// The setting that reduces a connection's memory.
    pub fewer: &'static str,
}

impl Names {
    /// Without a protocol.
    pub const PLAIN: Self = Self {
        rdma: "RDMA",
        transport: "rdma",
        client: "client",
        listing: "sessions that only ask what there is",
        fewer: "the queue depth",
    };
}

/// What a shard and its front share: the volumes with their operations, and what is served.
pub struct Local<F: Front> {
    /// Which shard of its server this is.
    pub number: usize,
    /// What all shards share.
    pub core: Arc<Core<F>>,
    /// What is served.
    pub world: Arc<World<F>>,
    /// Work on the storage.
    pub exec: Executor<F::Command>,
    /// Counts of the protocol.
    pub protocol: F::Counts,
    /// Connections on which commands have made progress.
    pub touched: Vec<ConnId>,
}

impl<F: Front> Local<F> {
    /// What the shard of this number has, over its event loop.
    ///
    /// # Errors
    /// A volume cannot be opened on this loop.
    pub(crate) fn new(number: usize, ring: Ring, core: Arc<Core<F>>) -> Result<Self, NoChannel> {
        let world = core.world();
        let (member, max_sessions) = (&core.member, core.limits.max_sessions);
        let shard = member.first_shard() + number;
        let (shards, began) = (member.fleet.clone(), core.started);
        let config = ShardConfig { shard, shards, max_sessions, began };
        let mut local = Self {
            number,
            core,
            world: Arc::default(),
            exec: Executor::new(ring, config),
            protocol: F::Counts::default(),
            touched: Vec::with_capacity(256),
        };
        local.prepare(&world)?;
        local.adopt(world);
        Ok(local)
    }

    /// Opens channels to all that is new in the next world, so that [`adopt`](Self::adopt) cannot fail.
    ///
    /// # Errors
    /// A volume cannot be opened on this loop. Nothing has changed then.
    pub(crate) fn prepare(&mut self, next: &World<F>) -> Result<(), NoChannel> {
        self.exec.prepare(next.volumes())
    }

    /// Works by the next world from now on. Its new volumes are [prepared](Self::prepare). Sessions have
    /// no commands any more on what was removed.
    pub(crate) fn adopt(&mut self, next: Arc<World<F>>) {
        self.exec.adopt(|slot| next.volume(slot));
        self.world = next;
    }
}

/// What a protocol knows of a connection, as the connection and its shard ask for it.
pub trait FrontConn {
    /// What its protocol counts.
    type Counts;

    /// True for a session that reads and writes: it may have several requests under way, and no other connection
    /// takes its place.
    fn serves(&self) -> bool;

    /// What it is, if it does not serve: a word for the log, in the plural.
    fn kind(&self) -> &'static str {
        "connections"
    }

    /// When the protocol has to look at it again, whatever happens.
    fn due(&self) -> Option<Duration> {
        None
    }

    /// When it ends if its client, which was asked to leave, does not.
    fn leaves_by(&self) -> Option<Duration> {
        None
    }

    /// The part of a buffer that the next bytes from the client belong into, if they are data.
    fn take_rx_buffer(&mut self) -> Option<(Buf, Range<usize>)> {
        None
    }

    /// How many bytes the next receive may take at the most; `None`: as many as there are. For a protocol that must
    /// not take what belongs to somebody else. None are taken while it is zero.
    fn rx_limit(&self) -> Option<usize> {
        None
    }

    /// True if what has come waits for something that the connection itself may have given back in this loop iteration:
    /// [`Front::proceed`] is called again then.
    fn holds_back(&self) -> bool {
        false
    }

    /// The client's system has taken in, at this time, more of what was sent.
    fn delivered(&mut self, when: Duration) {
        let _ = when;
    }

    /// Adds what it has counted.
    fn add_counts(&self, counts: &mut Self::Counts) {
        let _ = counts;
    }

    /// Over RDMA: messages that the client may send without an answer.
    fn receives(&self) -> usize {
        0
    }

    /// Over RDMA: a read of the client's memory that is to be posted.
    fn take_read(&mut self) -> Option<RemoteRead> {
        None
    }
}

/// Why a shard ends a connection whose client may not know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failing {
    /// The client takes nothing of what is sent to it.
    TakesNothing,
    /// The client has not taken answers by reference that a lock waits for.
    KeepsLockWaiting,
    /// The queue pair has failed, or the client has closed it.
    Rdma(Fault),
}

/// Why an operation may get on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// Memory has come back, for which it waited.
    Memory,
    /// The shard looks whose turn it is at locks, and the operation is [queued](Executor::queued).
    Look,
}

/// Somebody wants to connect over RDMA.
#[derive(Clone, Copy, Debug)]
pub struct RdmaRequest<'a> {
    /// What it says of itself.
    pub private: &'a [u8],
    /// What is sent may take back its keys.
    pub invalidates: bool,
    /// RDMA Reads that it serves at a time.
    pub reads: u8,
}

/// Why a front does not accept a connection over RDMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedRdma {
    /// What the client is told with the rejection.
    pub private: Vec<u8>,
    /// What the log says.
    pub why: &'static str,
}

/// A connection over RDMA that a front accepts.
pub struct AcceptedRdma<P> {
    /// What the protocol knows of it.
    pub front: P,
    /// What the client is told with the acceptance.
    pub private: Vec<u8>,
}

/// A message over RDMA, as its receive has it.
pub struct RdmaMessage<'a> {
    /// The first bytes.
    pub head: &'a [u8],
    /// Those behind them, which are in a buffer of their own.
    pub body: Option<RdmaBody<'a>>,
    /// The rest.
    pub tail: &'a [u8],
}

/// Bytes of a message in a buffer that a command may keep.
pub struct RdmaBody<'a> {
    /// The buffer. If it is kept, the spare one takes its place.
    pub buf: &'a mut Buf,
    /// How many bytes have come.
    pub len: usize,
    /// A buffer of the same length, if there is memory.
    pub spare: &'a mut Option<Buf>,
}

/// A protocol on one shard. What reaches beyond a connection is given the shard: the front is part of it.
pub trait Front: DerefMut<Target = Local<Self>> + Sized + 'static {
    /// What it knows of a connection.
    type Conn: FrontConn<Counts = Self::Counts>;
    /// What it knows of an operation.
    type Command: Command<Face = Self::Face>;
    /// How it shows a volume.
    type Face: Face;
    /// What clients log in to.
    type Export: Send + Sync + 'static;
    /// What else it knows of what is served.
    type Rules: Default + Send + Sync + 'static;
    /// What the fronts of all shards share.
    type Shared: Send + Sync + 'static;
    /// What one says to itself on another shard.
    type Message: Send + 'static;
    /// What a client that logs in is after: who fails too often at it has to wait.
    type Aim: Clone + Eq + Hash + Send + Sync + 'static;
    /// What it counts.
    type Counts: Counts;
    /// A session, as a report shows it.
    type Session: Send + 'static;
    /// What a server is started with.
    type Config;
    /// What is to be served next.
    type Layout;
    /// What the next world changes of the state that it shares with the one before.
    type Effects;
    /// Groups of portals.
    type Groups: ?Sized;
    /// A thread of its own, for what takes as long as it takes.
    type Helper;

    /// What log lines and reports call it.
    const NAMES: Names = Names::PLAIN;

    /// How the server is hosted.
    fn hosting(config: &Self::Config) -> Hosting;

    /// What the fronts share, and the first world.
    ///
    /// # Errors
    /// Why it cannot serve what it is to serve.
    fn open(
        config: Self::Config,
        portals: Arc<Portals>,
    ) -> Result<(Self::Shared, World<Self>), FrontError>;

    /// Starts its thread.
    ///
    /// # Errors
    /// The operating system's.
    fn start_helper(core: Arc<Core<Self>>) -> io::Result<Self::Helper>;

    /// Ends the thread, once it has done what it was told before, or after `limit`.
    fn stop_helper(helper: Self::Helper, limit: Duration);

    /// The world after this one.
    ///
    /// # Errors
    /// [`ApplyError`]; nothing has changed then.
    fn next_world(
        core: &Core<Self>,
        before: &World<Self>,
        layout: Self::Layout,
    ) -> Result<Next<Self>, ApplyError>;

    /// Says whether these groups would do with these portals.
    ///
    /// # Errors
    /// As for [`next_world`](Self::next_world).
    fn foresee(
        before: &World<Self>,
        portals: &Portals,
        groups: &Self::Groups,
    ) -> Result<(), ApplyError> {
        let _ = (before, portals, groups);
        Ok(())
    }

    /// Changes what both worlds share: the next one is served from now on.
    fn publish(effects: Self::Effects);

    /// Makes ready what counts as soon as somebody comes by a way that is new.
    fn begin_world(next: &World<Self>, before: &World<Self>) {
        let _ = (next, before);
    }

    /// The shards work by the next world.
    fn world_begun(next: &World<Self>, before: &World<Self>) {
        let _ = (next, before);
    }

    /// True for a volume that has no storage now.
    fn is_absent(volume: &Volume<Self::Face>) -> bool {
        let _ = volume;
        false
    }

    /// True for a volume of which clients hear how much room there is.
    fn watches_room(volume: &Volume<Self::Face>) -> bool {
        let _ = volume;
        false
    }

    /// Asks the storage how much room there is. Blocks.
    fn note_room(volume: &Volume<Self::Face>) {
        unreachable!("nobody watches the room of {}", volume.name);
    }

    /// How many sessions there are.
    fn session_count(core: &Core<Self>) -> usize {
        let _ = core;
        0
    }

    /// Adds to a report what no shard should be asked for.
    fn complete_sessions(core: &Core<Self>, sessions: &mut [Self::Session]) {
        let _ = (core, sessions);
    }

    /// Creates the front of a shard.
    fn new(local: Local<Self>) -> Self;

    /// Somebody has connected over a stream.
    fn accept(&mut self) -> Self::Conn;

    /// Bytes have come: `filled` bytes of data into the part of a buffer that the connection
    /// [had given](FrontConn::take_rx_buffer), and others behind them.
    fn received(
        &mut self,
        conn: &mut Conn<Self::Conn>,
        payload: Option<(Buf, Range<usize>)>,
        filled: usize,
        bytes: &[u8],
    );

    /// Does what came of the bytes.
    fn proceed(shard: &mut Shard<Self>, slot: ConnId);

    /// A time has come for which a connection is looked at, be it that for which [`FrontConn::due`] asked.
    fn tick(shard: &mut Shard<Self>, slot: ConnId) {
        let due = shard.conns.get(slot).and_then(|conn| conn.front.due());
        debug_assert!(due.is_none(), "who asks for a time does something then");
    }

    /// A connection has to end.
    fn fail(shard: &mut Shard<Self>, slot: ConnId, why: Failing) {
        let _ = why;
        shard.disconnect(slot);
    }

    /// Works off every answer of the storage that has come.
    fn take_answers(&mut self, conns: &mut Conns<Self::Conn>);

    /// The backlog of a connection has shrunk: its reads go on.
    fn unblock(&mut self, conns: &mut Conns<Self::Conn>, slot: ConnId);

    /// An operation may get on, if it has not ended: it is to be [pumped](Executor::pump). The shard takes the answers
    /// that come of it.
    fn resume(&mut self, conns: &mut Conns<Self::Conn>, id: OperationId, why: Occasion);

    /// Work of another thread for an operation [has come back](Executor::came_back). The shard takes the answers that
    /// come of it.
    fn returned(&mut self, conns: &mut Conns<Self::Conn>, id: OperationId, step: Step);

    /// A volume hangs: what is at its storage counts for the volume alone from now on. By default all of that does
    /// anyway.
    fn storage_hangs(&mut self, conns: &Conns<Self::Conn>, volume: VolumeId) {
        let _ = (conns, volume);
    }

    /// A message from the front of another shard, or of this one.
    fn message(shard: &mut Shard<Self>, message: Self::Message);

    /// All messages have been read.
    fn messages_read(shard: &mut Shard<Self>) {
        let _ = shard;
    }

    /// The connection that stood in the way of this one has ended: this one has asked for it by
    /// [`Mail::End`](crate::mail::Mail::End).
    fn place_is_free(shard: &mut Shard<Self>, serial: u64) {
        unreachable!("connection {serial} of shard {} waits for no other", shard.number);
    }

    /// Shows a connection the next world.
    fn see(shard: &mut Shard<Self>, slot: ConnId, next: &World<Self>);

    /// Ends the sessions with these handles, as if what they use had been removed.
    fn end_sessions(shard: &mut Shard<Self>, handles: &[u16]);

    /// Asks a client to leave within this time. By default its connection ends when that is over.
    fn ask_to_leave(&mut self, conn: &mut Conn<Self::Conn>, grace: Duration) {
        let _ = (conn, grace);
    }

    /// Ends the commands of a connection that ends.
    fn end_commands(&mut self, conn: &mut Conn<Self::Conn>, slot: ConnId);

    /// A connection has ended, and has no commands any more. False if it had no session: its login has not ended.
    fn end_session(&mut self, conn: &mut Conn<Self::Conn>, conn_ref: ConnRef) -> bool {
        let _ = (conn, conn_ref);
        false
    }

    /// Ends what goes on without a client: the server stops.
    fn end_background(&mut self) {}

    /// The sessions of the shard.
    fn sessions(shard: &Shard<Self>) -> Vec<Self::Session> {
        let _ = shard;
        Vec::new()
    }

    /// What connections over RDMA receive into.
    fn receives(core: &Core<Self>) -> Receives {
        let _ = core;
        Receives { parts: [0; 3], each: 0 }
    }

    /// Requests that the client of a connection over RDMA may have outstanding.
    fn queue_depth(core: &Core<Self>) -> u32 {
        let _ = core;
        0
    }

    /// Somebody wants to connect over RDMA.
    ///
    /// # Errors
    /// What the client is told instead.
    fn accept_rdma(
        &mut self,
        request: RdmaRequest<'_>,
    ) -> Result<AcceptedRdma<Self::Conn>, RejectedRdma> {
        let _ = request;
        Err(RejectedRdma { private: Vec::new(), why: "the protocol is not served over RDMA" })
    }

    /// What a client is told when there are no resources for its connection over RDMA.
    fn no_room_for_rdma() -> Vec<u8> {
        Vec::new()
    }

    /// A message has come over RDMA.
    fn received_message(&mut self, conn: &mut Conn<Self::Conn>, message: RdmaMessage<'_>) {
        let _ = (conn, message);
        unreachable!("no connection over RDMA was accepted");
    }

    /// A read of the client's memory has come back.
    fn read_done(&mut self, conn: &mut Conn<Self::Conn>, id: u64, buf: Buf) {
        let _ = (conn, id, buf);
        unreachable!("no connection over RDMA was accepted");
    }
}
