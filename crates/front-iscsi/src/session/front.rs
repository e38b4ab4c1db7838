//! iSCSI as the front of a shard: what the shard asks for, and where it is done.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use lunet_iscsi::iser::ConnectData;
use lunet_iscsi::printable::printable;
use lunet_iscsi::target::{
    Body, CloseReason, Connection, Options, RdmaFault, RdmaOptions, ReadId, Received, RxTarget,
};
use lunet_ring::Buf;
use lunet_scsi::alua::PortGroup;
use lunet_verbs::Remote;
use lunet_volume::{Keeper, OperationId, Step, VolumeId};

use super::events::{close, handle_events, log_out};
use super::{
    Conn, Core, IscsiConn, Pdus, Protocol, SessionInfo, Shard, Shared, admission, drive, group,
    layout, management, preempt, report, view,
};
use crate::config::{Config, Layout};
use crate::connection::Conns;
use crate::engine::{Engine, ScsiCommand};
use crate::message::Message;
use crate::site::Aim;
use crate::world::{CoreTarget, Effects, LogicalUnit, Rules, ScsiVolume, World};
use lunet_server::change::{ApplyError, Next};
use lunet_server::conn::ConnId;
use lunet_server::front::{
    AcceptedRdma, Failing, Front, FrontConn, FrontError, Local, Names, Occasion, RdmaMessage,
    RdmaRequest, RejectedRdma,
};
use lunet_server::hosting::Hosting;
use lunet_server::places::ConnRef;
use lunet_server::portals::Portals;
use lunet_server::rdma::{Fault, Receives, RemoteRead};

/// How long an initiator whose discovery session has taken too long has to end it.
const FAREWELL: Duration = Duration::from_secs(2);

/// The data segments of Sends to this target, in bytes at most: what a login may need. Larger ones would
/// make every posted receive larger.
const SEGMENT: u32 = 8192;

/// A connection over RDMA as it begins. `invalidate`: responses may take back the initiator's keys.
///
/// Data that is neither in its command nor asked for would come in Sends of its own, more of them than
/// there are receives: the fabric makes an initiator wait for hundreds of milliseconds then. So all of it is
/// fetched by RDMA Reads, whatever the configuration says for TCP.
pub fn over_rdma(options: &Options, invalidate: bool, now: Duration) -> Connection<Buf> {
    let options = Options { initial_r2t: true, ..options.clone() };
    let rdma = RdmaOptions { recv_data_segment_length: SEGMENT, invalidate };
    Connection::over_rdma(options, rdma, now)
}

/// What the protocol is told of a connection that has broken.
fn told(fault: Fault) -> RdmaFault {
    match fault {
        Fault::RemoteAccess => RdmaFault::RemoteAccess,
        Fault::NoReceive => RdmaFault::NoReceive,
        Fault::TooLong => RdmaFault::TooLong,
        Fault::Flood => RdmaFault::Flood,
        Fault::Disconnected => RdmaFault::Disconnected,
        Fault::Device => RdmaFault::Device,
    }
}

impl FrontConn for IscsiConn {
    type Counts = Protocol;

    fn serves(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.nexus.target.is_some())
    }

    fn kind(&self) -> &'static str {
        if self.session.is_some() { "discovery sessions" } else { "logins" }
    }

    fn due(&self) -> Option<Duration> {
        let functions = self.functions.iter().map(|waiting| waiting.again);
        self.proto.poll_timeout().into_iter().chain(self.discovery_ends()).chain(functions).min()
    }

    fn leaves_by(&self) -> Option<Duration> {
        self.proto.log_out_by()
    }

    fn take_rx_buffer(&mut self) -> Option<(Buf, Range<usize>)> {
        self.proto.take_rx_target().map(|target| (target.buf, target.range))
    }

    fn delivered(&mut self, when: Duration) {
        self.proto.delivered(when);
    }

    fn add_counts(&self, counts: &mut Protocol) {
        counts.add_counters(self.proto.counters());
    }

    fn receives(&self) -> usize {
        self.proto.receives()
    }

    fn take_read(&mut self) -> Option<RemoteRead> {
        let read = self.proto.take_rdma_read()?;
        let from = Remote { address: read.from.offset, key: read.from.stag };
        Some(RemoteRead { id: read.id.to_bits(), buf: read.buf, len: read.len, from })
    }
}

impl Front for Engine {
    type Conn = IscsiConn;
    type Command = ScsiCommand;
    type Face = LogicalUnit;
    type Export = CoreTarget;
    type Rules = Rules;
    type Shared = Shared;
    type Message = Message;
    type Aim = Aim;
    type Counts = Protocol;
    type Session = SessionInfo;
    type Config = Config;
    type Layout = Layout;
    type Effects = Effects;
    type Groups = [PortGroup];
    type Helper = Keeper;

    const NAMES: Names = Names {
        rdma: "iSER",
        transport: "iser",
        client: "initiator",
        listing: "discovery sessions",
        fewer: "iscsi.queue-depth",
    };

    fn hosting(config: &Config) -> Hosting {
        Hosting {
            portals: config.portals.clone(),
            limits: config.limits.clone(),
            data_timeout: config.iscsi.data_timeout,
            shards: config.shards,
            driver: config.driver,
            busy_poll: config.busy_poll,
        }
    }

    fn open(config: Config, portals: Arc<Portals>) -> Result<(Shared, World), FrontError> {
        layout::open(config, portals)
    }

    fn start_helper(core: Arc<Core>) -> io::Result<Keeper> {
        let keeper = Keeper::start()?;
        core.front.begin(keeper.orders(), &core);
        Ok(keeper)
    }

    fn stop_helper(keeper: Keeper, limit: Duration) {
        keeper.stop(limit);
    }

    fn next_world(core: &Core, before: &World, next: Layout) -> Result<Next<Self>, ApplyError> {
        layout::next_world(core, before, next)
    }

    fn foresee(before: &World, portals: &Portals, groups: &[PortGroup]) -> Result<(), ApplyError> {
        layout::foresee(before, portals, groups)
    }

    fn publish(effects: Effects) {
        effects.publish();
    }

    fn begin_world(next: &World, before: &World) {
        layout::begin_world(next, before);
    }

    fn world_begun(next: &World, before: &World) {
        layout::world_begun(next, before);
    }

    fn is_absent(volume: &ScsiVolume) -> bool {
        volume.face.unit.absent
    }

    fn watches_room(volume: &ScsiVolume) -> bool {
        volume.face.unit.is_thin()
    }

    fn note_room(volume: &ScsiVolume) {
        layout::note_room(volume);
    }

    fn session_count(core: &Core) -> usize {
        core.front.registry.len()
    }

    fn complete_sessions(core: &Core, sessions: &mut [SessionInfo]) {
        report::complete(core, sessions);
    }

    fn new(local: Local<Self>) -> Self {
        Self::new(local)
    }

    fn accept(&mut self) -> IscsiConn {
        IscsiConn::new(Connection::new(self.core.front.options.clone(), self.exec.storage.now))
    }

    fn received(
        &mut self,
        conn: &mut Conn,
        payload: Option<(Buf, Range<usize>)>,
        filled: usize,
        bytes: &[u8],
    ) {
        drive(conn, self, |proto, cx| {
            if let Some((buf, range)) = payload {
                proto.rx_payload(RxTarget { buf, range }, filled, cx);
            }
            if !bytes.is_empty() {
                proto.rx_bytes(bytes, cx);
            }
        });
    }

    fn proceed(shard: &mut Shard, slot: ConnId) {
        handle_events(shard, slot);
    }

    fn tick(shard: &mut Shard, slot: ConnId) {
        let Some(conn) = shard.conns.get_mut(slot) else { return };
        let now = shard.front.exec.storage.now;
        if conn.front.session.as_ref().is_some_and(|session| session.target.is_some()) {
            shard.front.exec.storage.renew(&conn.account, &mut conn.reserve);
        }
        if conn.front.discovery_ends().is_some_and(|end| end <= now) {
            conn.front.proto.request_logout(now, FAREWELL, &mut Pdus(&mut conn.out));
        }
        drive(conn, &shard.front, |proto, cx| proto.handle_timeout(cx));
        management::try_again(shard, slot, false);
        handle_events(shard, slot);
    }

    fn fail(shard: &mut Shard, slot: ConnId, why: Failing) {
        match why {
            Failing::TakesNothing => close(shard, slot, CloseReason::OutputTimeout),
            Failing::KeepsLockWaiting => close(shard, slot, CloseReason::KeepsLockWaiting),
            Failing::Rdma(fault) => {
                let Some(conn) = shard.conns.get_mut(slot) else { return };
                conn.front.proto.rdma_failed(told(fault), &mut conn.front.events);
                handle_events(shard, slot);
            }
        }
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

    fn message(shard: &mut Shard, message: Message) {
        lunet_os::met(&message);
        match message {
            Message::Clear(clear) => {
                management::clear_here(shard, &clear, None);
                // Tells who waits.
                drop(clear.part);
            }
            // Answered when all messages have been read.
            Message::Cleared => {}
            Message::Abort(preempted) => {
                preempt::abort_preempted(shard, &preempted);
                // Tells who waits.
                drop(preempted.receipt);
            }
            Message::Finished { ticket, done } => {
                shard.front.ticket_done(&mut shard.conns, ticket, done);
            }
            Message::Kept { ticket, result } => {
                shard.front.reservation_kept(&mut shard.conns, ticket, result);
            }
            Message::Group(message) => group::carry_out(shard, message),
            Message::Relay(news) => group::relay_news(shard, news),
        }
    }

    fn messages_read(shard: &mut Shard) {
        if shard.front.clearing {
            for slot in management::answer_cleared(shard) {
                log_out(shard, slot);
            }
        }
    }

    fn place_is_free(shard: &mut Shard, serial: u64) {
        admission::login_again(shard, serial);
    }

    fn see(shard: &mut Shard, slot: ConnId, next: &World) {
        view::see(shard, slot, next);
    }

    fn end_sessions(shard: &mut Shard, handles: &[u16]) {
        view::end_sessions(shard, handles);
    }

    fn ask_to_leave(&mut self, conn: &mut Conn, grace: Duration) {
        conn.front.proto.request_logout(self.exec.storage.now, grace, &mut Pdus(&mut conn.out));
    }

    fn end_commands(&mut self, conn: &mut Conn, slot: ConnId) {
        self.end_copies(slot);
        for task in conn.front.tasks.iter_mut().filter_map(Option::take) {
            self.abandon(task);
        }
        self.held.retain(|held| held.slot != slot);
        if self.draining {
            self.look_drained();
        }
    }

    fn end_session(&mut self, conn: &mut Conn, conn_ref: ConnRef) -> bool {
        self.protocol.add_counters(conn.front.proto.counters());
        let Some(session) = conn.front.session.take() else { return false };
        self.close_relay(&session);
        session.luns.into_iter().for_each(|lun| lun.place.leave());
        self.core.front.registry.remove(&session.nexus, conn_ref);
        if session.nexus.target.is_none() {
            self.core.front.discovery.leave(conn.peer.ip(), conn.serial);
        }
        if session.logged {
            let initiator = printable(&session.nexus.initiator);
            tracing::info!(?initiator, peer = %conn.peer, "session ended");
        }
        true
    }

    fn end_background(&mut self) {
        self.stop_sanitizing();
    }

    fn sessions(shard: &Shard) -> Vec<SessionInfo> {
        report::sessions(shard)
    }

    fn receives(core: &Core) -> Receives {
        let connection = over_rdma(&core.front.options, false, Duration::ZERO);
        Receives { parts: connection.receive_parts(), each: connection.receives() as u32 }
    }

    fn queue_depth(core: &Core) -> u32 {
        core.front.options.queue_depth
    }

    fn accept_rdma(
        &mut self,
        request: RdmaRequest<'_>,
    ) -> Result<AcceptedRdma<IscsiConn>, RejectedRdma> {
        let reply = ConnectData::parse(request.private).reply(request.invalidates);
        let options = &self.core.front.options;
        let proto = over_rdma(options, reply.invalidate, self.exec.storage.now);
        let private = reply.to_bytes().into();
        Ok(AcceptedRdma { front: IscsiConn::new(proto), private })
    }

    fn received_message(&mut self, conn: &mut Conn, message: RdmaMessage<'_>) {
        let RdmaMessage { head, body, tail } = message;
        let body = body.map(|body| Body { buf: body.buf, len: body.len, spare: body.spare });
        drive(conn, self, |proto, cx| proto.rx_send(Received { head, body, tail }, cx));
    }

    fn read_done(&mut self, conn: &mut Conn, id: u64, buf: Buf) {
        let id = ReadId::from_bits(id);
        drive(conn, self, |proto, cx| proto.rdma_read_done(id, buf, cx));
    }
}
