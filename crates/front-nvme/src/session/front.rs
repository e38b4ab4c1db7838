//! NVMe as the front of a shard: what the shard asks for, and where it is done.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use lunet_nvme::controller::{Body, Connection, Kind, RdmaOptions, ReadId, Received};
use lunet_nvme::fabrics::Transport;
use lunet_nvme::rdma::{ConnectRequest, Rejected, Rejection};
use lunet_nvme::transmit::RxTarget;
use lunet_ring::Buf;
use lunet_server::change::{ApplyError, Next};
use lunet_server::conn::ConnId;
use lunet_server::front::{
    AcceptedRdma, Front, FrontConn, FrontError, Local, Names, Occasion, RdmaMessage, RdmaRequest,
    RejectedRdma,
};
use lunet_server::hosting::Hosting;
use lunet_server::places::ConnRef;
use lunet_server::portals::Portals;
use lunet_server::rdma::{Receives, Remote, RemoteRead};
use lunet_volume::{Face, Keeper, OperationId, Step, Volume, VolumeId};

use super::events::handle_events;
use super::{
    Conn, Core, Shard, Shared, authenticate, drive, layout, messages, report, secure, starve, view,
};
use crate::config::{Config, Layout, Options};
use crate::connection::{Authentication, Conns, NvmeConn};
use crate::engine::{Engine, NvmeCommand};
use crate::message::Message;
use crate::registry::{Left, Registry};
use crate::report::{Protocol, SessionInfo};
use crate::world::{Rules, Subsystem, World};

impl FrontConn for NvmeConn {
    type Counts = Protocol;

    fn serves(&self) -> bool {
        self.kind() == Some(Kind::Io) && self.proto.is_ready()
    }

    fn kind(&self) -> &'static str {
        match self.kind() {
            Some(Kind::Discovery) => "discovery controllers",
            _ => "Connects",
        }
    }

    fn due(&self) -> Option<Duration> {
        let silent = self.admin.as_ref().and_then(|admin| admin.controller.poll_timeout());
        let by = |auth: &Option<Box<Authentication>>| auth.as_ref().map(|auth| auth.by);
        let (first, again) = (by(&self.auth), by(&self.again));
        let starved = self.starved.as_ref().map(|starved| starved.look_at);
        let times = [self.proto.poll_timeout(), silent, self.leaves, first, again, starved];
        times.into_iter().flatten().min()
    }

    fn rx_limit(&self) -> Option<usize> {
        if self.proto.is_starved() { Some(0) } else { secure::rx_limit(self) }
    }

    fn holds_back(&self) -> bool {
        self.proto.is_starved()
    }

    fn take_rx_buffer(&mut self) -> Option<(Buf, Range<usize>)> {
        self.proto.take_rx_target().map(|target| (target.buf, target.range))
    }

    fn delivered(&mut self, when: Duration) {
        self.proto.delivered(when);
    }

    fn add_counts(&self, counts: &mut Protocol) {
        report::add_counts(self, counts);
    }

    fn receives(&self) -> usize {
        self.asked.map_or(0, |asked| usize::from(asked.sqsize) + 1)
    }

    fn take_read(&mut self) -> Option<RemoteRead> {
        let read = self.proto.take_rdma_read()?;
        let from = Remote { address: read.from.address, key: read.from.key };
        Some(RemoteRead { id: read.id.to_bits(), buf: read.buf, len: read.len, from })
    }
}

impl<Fc: Face> Front for Engine<Fc> {
    type Conn = NvmeConn;
    type Command = NvmeCommand<Fc>;
    type Face = Fc;
    type Export = Subsystem;
    type Rules = Rules;
    type Shared = Shared;
    type Message = Message;
    type Aim = usize;
    type Counts = Protocol;
    type Session = SessionInfo;
    type Config = Config<Fc>;
    type Layout = Layout<Fc>;
    type Effects = ();
    type Groups = ();
    type Helper = Keeper;

    const NAMES: Names = Names {
        rdma: "NVMe over RDMA",
        transport: "nvme-rdma",
        client: "host",
        listing: "discovery controllers",
        fewer: "the number of queues",
    };

    fn hosting(config: &Config<Fc>) -> Hosting {
        Hosting {
            portals: config.portals.clone(),
            limits: config.limits.clone(),
            data_timeout: config.options.data_timeout,
            shards: config.shards,
            driver: config.driver,
            busy_poll: config.busy_poll,
        }
    }

    fn open(config: Config<Fc>, portals: Arc<Portals>) -> Result<(Shared, World<Fc>), FrontError> {
        layout::open(config, portals)
    }

    fn start_helper(core: Arc<Core<Fc>>) -> io::Result<Keeper> {
        let keeper = Keeper::start()?;
        core.front.begin(keeper.orders(), &core);
        Ok(keeper)
    }

    fn stop_helper(keeper: Keeper, limit: Duration) {
        keeper.stop(limit);
    }

    fn next_world(
        core: &Core<Fc>,
        before: &World<Fc>,
        next: Layout<Fc>,
    ) -> Result<Next<Self>, ApplyError> {
        let next = layout::next_world(before, next)?;
        // Of a change that does not come about nobody has a host to tell.
        layout::hear(&core.front, &next.world);
        Ok(next)
    }

    fn publish((): ()) {}

    fn is_absent(volume: &Volume<Fc>) -> bool {
        volume.face.is_absent()
    }

    fn new(local: Local<Self>) -> Self {
        Self::new(local)
    }

    fn accept(&mut self) -> NvmeConn {
        let offer = self.core.front.offer(Transport::Tcp);
        NvmeConn::new(Connection::new(offer, self.exec.storage.now))
    }

    fn received(
        &mut self,
        conn: &mut Conn,
        payload: Option<(Buf, Range<usize>)>,
        filled: usize,
        bytes: &[u8],
    ) {
        if !secure::are_pdus(self, conn, bytes) {
            return;
        }
        if let Some(queue) = &mut conn.front.queue {
            // Whatever comes: a long write over a slow link is a sign of life before it is complete.
            queue.member.heard(self.exec.storage.now, &mut queue.told);
        }
        let mut taken = 0;
        drive(conn, self, |proto, cx| {
            if let Some((buf, range)) = payload {
                proto.rx_payload(RxTarget { buf, range }, filled, cx);
            }
            if !bytes.is_empty() {
                taken = proto.rx_bytes(bytes, cx);
            }
        });
        if conn.front.proto.is_starved() {
            starve::begin(self.exec.storage.now, conn, &bytes[taken..]);
        }
    }

    fn proceed(shard: &mut Shard<Fc>, slot: ConnId) {
        secure::look(shard, slot);
        starve::look(shard, slot);
        handle_events(shard, slot);
    }

    fn tick(shard: &mut Shard<Fc>, slot: ConnId) {
        let Some(conn) = shard.conns.get_mut(slot) else { return };
        let now = shard.front.exec.storage.now;
        if conn.front.serves() {
            shard.front.exec.storage.renew(&conn.account, &mut conn.reserve);
        }
        if conn.front.leaves.is_some() && is_done(conn, &shard.core.front.registry) {
            return shard.drain(slot);
        }
        if conn.front.auth.as_ref().is_some_and(|auth| auth.by <= now) {
            tracing::debug!(peer = %conn.peer, "a host has not authenticated in time");
            return shard.disconnect(slot);
        }
        if conn.front.again.as_ref().is_some_and(|again| again.by <= now) {
            return authenticate::overdue(shard, slot);
        }
        if is_silent(conn, now) {
            shard.front.protocol.keep_alive_expired += 1;
            if conn.front.queue.as_ref().is_some_and(|queue| queue.logged) {
                let peer = &conn.peer;
                tracing::warn!(%peer, "a host was silent for longer than its keep alive timeout");
            }
            return shard.disconnect(slot);
        }
        conn.front.proto.handle_timeout(now, &mut conn.front.events);
        starve::look(shard, slot);
        handle_events(shard, slot);
    }

    fn take_answers(&mut self, conns: &mut Conns) {
        self.take_answers(conns);
    }

    fn unblock(&mut self, conns: &mut Conns, slot: ConnId) {
        self.unblock(conns, slot);
    }

    fn resume(&mut self, conns: &mut Conns, id: OperationId, why: Occasion) {
        self.resume(conns, id, why);
    }

    fn returned(&mut self, conns: &mut Conns, id: OperationId, step: Step) {
        self.returned(conns, id, step);
    }

    fn storage_hangs(&mut self, conns: &Conns, volume: VolumeId) {
        self.storage_hangs(conns, volume);
    }

    fn message(shard: &mut Shard<Fc>, message: Message) {
        messages::message(shard, message);
    }

    fn see(shard: &mut Shard<Fc>, slot: ConnId, next: &World<Fc>) {
        view::see(shard, slot, next);
    }

    fn end_sessions(shard: &mut Shard<Fc>, handles: &[u16]) {
        view::end_sessions(shard, handles);
    }

    fn ask_to_leave(&mut self, conn: &mut Conn, _: Duration) {
        // There is no way to ask a host; it comes back elsewhere when the connection ends.
        conn.front.leaves = Some(self.exec.storage.now);
    }

    fn end_commands(&mut self, conn: &mut Conn, slot: ConnId) {
        conn.front.first = None;
        for id in conn.front.tasks.iter_mut().filter_map(Option::take) {
            self.abandon(id);
        }
        if conn.front.gated.is_some() {
            self.forget_held(slot);
            self.close_relay(conn);
        }
        if self.draining {
            self.look_drained();
        }
    }

    fn end_session(&mut self, conn: &mut Conn, _: ConnRef) -> bool {
        report::add_counts(&conn.front, &mut self.protocol);
        let registry = &self.core.front.registry;
        if conn.front.waiting.take().is_some() {
            registry.stop_waiting(conn.serial);
        }
        if let Some(key) = conn.front.tls.generated() {
            self.core.front.generated.end(key, conn.serial);
        }
        let Some(queue) = conn.front.queue.take() else { return false };
        let Left { end, retry, emptied } = registry.leave(&queue.member, queue.qid);
        let tell = |at: ConnRef, message: Message| self.core.mailboxes()[at.shard].tell(message);
        for at in end {
            tell(at, Message::EndQueue { connection: at.connection, aborted: conn.aborted });
        }
        for at in retry {
            tell(at, Message::Retry { connection: at.connection });
        }
        if let Some(at) = emptied {
            tell(at, Message::QueuesGone { connection: at.connection });
        }
        let established = conn.front.auth.take().is_none();
        if queue.member.kind == Kind::Discovery {
            self.core.front.discovery.leave(conn.peer.ip(), conn.serial);
        }
        if queue.logged {
            let host = &queue.member.host.nqn;
            tracing::info!(?host, peer = %conn.peer, cntlid = queue.member.cntlid, "controller ended");
        }
        established
    }

    fn session_count(core: &Core<Fc>) -> usize {
        core.front.registry.len()
    }

    fn complete_sessions(core: &Core<Fc>, sessions: &mut [SessionInfo]) {
        report::complete(core, sessions);
    }

    fn receives(core: &Core<Fc>) -> Receives {
        let offer = core.front.offer(Transport::Rdma);
        let each = u32::from(core.front.options.queue_entries);
        Receives { parts: Connection::<Buf>::receive_parts(&offer), each }
    }

    fn queue_depth(core: &Core<Fc>) -> u32 {
        u32::from(core.front.options.queue_entries)
    }

    fn accept_rdma(
        &mut self,
        request: RdmaRequest<'_>,
    ) -> Result<AcceptedRdma<NvmeConn>, RejectedRdma> {
        let front = &self.core.front;
        let asked = asked(&front.options, request).map_err(|Rejected { rejection, why }| {
            RejectedRdma { private: rejection.to_bytes().into(), why }
        })?;
        let rdma = RdmaOptions { invalidate: request.invalidates };
        let offer = front.offer(Transport::Rdma);
        let proto = Connection::over_rdma(offer, rdma, self.exec.storage.now);
        let private = asked.accept().into();
        Ok(AcceptedRdma { front: NvmeConn::over_rdma(proto, asked), private })
    }

    fn no_room_for_rdma() -> Vec<u8> {
        Rejection::Resources.to_bytes().into()
    }

    fn received_message(&mut self, conn: &mut Conn, message: RdmaMessage<'_>) {
        if let Some(queue) = &mut conn.front.queue {
            queue.member.heard(self.exec.storage.now, &mut queue.told);
        }
        let RdmaMessage { head, body, .. } = message;
        let body = body.map(|body| Body { buf: body.buf, len: body.len, spare: body.spare });
        drive(conn, self, |proto, cx| proto.rx_send(Received { head, body }, cx));
    }

    fn read_done(&mut self, conn: &mut Conn, id: u64, buf: Buf) {
        if let Some(queue) = &mut conn.front.queue {
            queue.member.heard(self.exec.storage.now, &mut queue.told);
        }
        drive(conn, self, |proto, cx| proto.rdma_read_done(ReadId::from_bits(id), buf, cx));
    }

    fn sessions(shard: &Shard<Fc>) -> Vec<SessionInfo> {
        report::sessions(shard)
    }
}

/// What a host asks for that wants to connect over RDMA.
///
/// # Errors
/// What it is rejected with.
fn asked(options: &Options, request: RdmaRequest<'_>) -> Result<ConnectRequest, Rejected> {
    if request.reads == 0 {
        let why = "its adapter serves no RDMA Reads, by which the data of writes comes";
        return Err(Rejected { rejection: Rejection::InboundReads, why });
    }
    ConnectRequest::parse(request.private, options.queue_entries, options.queues)
}

/// True if nothing is at work on a queue, nor, for an admin queue, on others of its controller.
fn is_done(conn: &Conn, registry: &Registry) -> bool {
    let idle = conn.front.tasks.iter().all(Option::is_none);
    let admin = conn.front.queue.as_ref().filter(|queue| queue.qid == 0);
    idle && admin.is_none_or(|admin| registry.queues(admin.member.cntlid).is_empty())
}

/// True if the host of an admin queue has given no sign of life on any queue for its keep alive timeout.
fn is_silent(conn: &mut Conn, now: Duration) -> bool {
    let (Some(queue), Some(admin)) = (&conn.front.queue, &mut conn.front.admin) else {
        return false;
    };
    admin.controller.heard(queue.member.last_heard());
    admin.controller.handle_timeout(now)
}
