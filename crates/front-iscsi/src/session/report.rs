//! What `lunet sessions` shows, and what iSCSI counts.

use std::cell::OnceCell;
use std::net::SocketAddr;

use lunet_iscsi::chap::Proof;
use lunet_scsi::Sanitation;
use lunet_verbs::Sysfs;

use super::admission::origin_of;
use super::{Conn, Core, Shard};
use crate::engine::Engine;
use lunet_server::conn::Wire;
use lunet_server::network::Origin;
use lunet_server::rdma::OverTcp;
use lunet_server::server::Handle;
use lunet_server::stats::Counts;

/// Counts of the protocol: what went wrong, and how often.
#[derive(Clone, Copy, Debug, Default)]
pub struct Protocol {
    /// Connections accepted.
    pub connections: u64,
    /// Connections turned away because a limit was reached.
    pub turned_away: u64,
    /// Logins that came to full feature phase.
    pub logins: u64,
    /// Logins refused, for whatever reason.
    pub login_failures: u64,
    /// Of these: the initiator could not prove who it is (status 0201).
    pub login_auth_failures: u64,
    /// Of these: discovery that is not for this initiator (status 0202).
    pub login_forbidden: u64,
    /// Of these: a target that is not there, or not for this initiator (status 0203).
    pub login_not_found: u64,
    /// Of these: the client had failed too often shortly before (status 0301).
    pub login_throttled: u64,
    /// Connections that were closed for a protocol error, a wrong digest or a missed time limit.
    pub dropped: u64,
    /// Protocol data units received.
    pub pdus: u64,
    /// Reject PDUs sent.
    pub rejects: u64,
    /// Header and data digests that did not match.
    pub digest_errors: u64,
    /// Commands answered TASK SET FULL for want of buffer memory.
    pub task_set_full: u64,
    /// Commands answered BUSY because an abandoned write still held their blocks.
    pub busy: u64,
    /// Commands aborted by task management or by the end of their session.
    pub aborted: u64,
}

impl Protocol {
    /// Adds what a connection has counted.
    pub fn add_counters(&mut self, counters: &lunet_iscsi::target::Counters) {
        self.pdus += counters.pdus_in;
        self.rejects += counters.rejects();
        self.digest_errors += counters.header_digest_errors + counters.data_digest_errors;
        self.task_set_full += counters.task_set_full;
    }
}

impl Counts for Protocol {
    fn connected(&mut self) {
        self.connections += 1;
    }

    fn turned_away(&mut self) {
        self.turned_away += 1;
    }

    fn add(&mut self, other: &Self) {
        self.connections += other.connections;
        self.turned_away += other.turned_away;
        self.logins += other.logins;
        self.login_failures += other.login_failures;
        self.login_auth_failures += other.login_auth_failures;
        self.login_forbidden += other.login_forbidden;
        self.login_not_found += other.login_not_found;
        self.login_throttled += other.login_throttled;
        self.dropped += other.dropped;
        self.pdus += other.pdus;
        self.rejects += other.rejects;
        self.digest_errors += other.digest_errors;
        self.task_set_full += other.task_set_full;
        self.busy += other.busy;
        self.aborted += other.aborted;
    }
}

/// The way of a session over RDMA.
#[derive(Clone, Debug)]
pub struct RdmaPath {
    /// The device's name.
    pub device: String,
    /// This end's GID.
    pub gid: String,
    /// The largest payload of a packet, in bytes.
    pub path_mtu_bytes: u32,
    /// Commands that the initiator may have outstanding.
    pub queue_depth: u32,
    /// RDMA Reads so far: data of writes.
    pub rdma_reads: u64,
    /// RDMA Writes so far: data of reads.
    pub rdma_writes: u64,
}

/// One session, as `lunet sessions` shows it.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// The initiator's iSCSI name.
    pub initiator: String,
    /// The target's name; `None` is a discovery session.
    pub target: Option<String>,
    /// The CHAP name that it has logged in with; `None` if nothing had to be proved.
    pub user: Option<String>,
    /// The initiator's address.
    pub peer: String,
    /// The portal that it came in by.
    pub portal: String,
    /// `tcp` or `iser`.
    pub transport: &'static str,
    /// With `iser`: the way that it takes.
    pub rdma: Option<RdmaPath>,
    /// With `tcp`: why not `iser`.
    pub tcp: Option<OverTcp>,
    /// The portal's place in the configuration.
    pub portal_index: usize,
    /// The gateway that passes its commands on; [`peer`](Self::peer) is that one's address.
    pub through: Option<u16>,
    /// How it has proved who it is.
    pub proof: Option<Proof>,
    /// Where it comes from.
    pub origin: Origin,
    /// It has lost its target, and is to log out.
    pub leaving: bool,
    /// The initiator's session identifier, in hexadecimal.
    pub isid: String,
    /// The target session identifying handle.
    pub tsih: u16,
    /// Number of the shard that serves it.
    pub shard: usize,
    /// Seconds since the login.
    pub connected_seconds: u64,
    /// Commands at work right now.
    pub commands_in_flight: usize,
    /// SCSI commands received so far.
    pub commands: u64,
    /// Bytes of data sent to the initiator so far.
    pub read_bytes: u64,
    /// Bytes of data received from it so far.
    pub written_bytes: u64,
    /// Every negotiated key with its value, digests among them.
    pub keys: Vec<(&'static str, String)>,
}

/// The sessions of a shard.
pub(super) fn sessions(shard: &Shard) -> Vec<SessionInfo> {
    let open =
        shard.conns.iter().filter_map(|(_, conn)| Some((conn, conn.front.session.as_ref()?)));
    open.map(|(conn, session)| SessionInfo {
        initiator: session.nexus.initiator.clone(),
        target: session.target.as_ref().map(|target| target.name.clone()),
        user: session.proof.as_ref().map(|proof| proof.user.clone()),
        proof: session.proof.clone(),
        through: session.through.map(|through| through.gateway),
        origin: origin_of(conn, session.through.as_ref()),
        leaving: session.nexus.target.is_some() && session.target.is_none(),
        peer: conn.peer.to_string(),
        portal: conn.local.to_string(),
        transport: if conn.front.proto.is_rdma() { "iser" } else { "tcp" },
        rdma: path_of(shard, conn),
        tcp: None,
        portal_index: conn.portal,
        isid: session.nexus.isid.map(|byte| format!("{byte:02x}")).concat(),
        tsih: session.tsih,
        shard: shard.number,
        connected_seconds: shard.front.exec.storage.now.saturating_sub(session.since).as_secs(),
        commands_in_flight: conn.front.tasks.iter().flatten().count(),
        commands: conn.front.proto.counters().commands,
        read_bytes: conn.front.proto.counters().bytes_in,
        written_bytes: conn.front.proto.counters().bytes_out,
        keys: conn.front.proto.negotiated().pairs(),
    })
    .collect()
}

/// The way of a connection over RDMA.
fn path_of(shard: &Shard, conn: &Conn) -> Option<RdmaPath> {
    let Wire::Rdma(link) = &conn.wire else { return None };
    let counters = conn.front.proto.counters();
    Some(RdmaPath {
        device: link.facts.device.clone(),
        gid: link.facts.gid.clone(),
        path_mtu_bytes: link.facts.path_mtu,
        queue_depth: shard.core.front.options.queue_depth,
        rdma_reads: counters.rdma_reads,
        rdma_writes: counters.rdma_writes,
    })
}

/// Adds why a session is on TCP. The kernel is asked here, where nobody's I/O waits for its answer.
pub(super) fn complete(core: &Core, sessions: &mut [SessionInfo]) {
    let ports = OnceCell::new();
    for session in sessions.iter_mut().filter(|session| session.rdma.is_none()) {
        let Ok(local) = session.portal.parse::<SocketAddr>() else { continue };
        let ports = ports.get_or_init(|| Sysfs::default().ports());
        session.tcp = Some(core.rdma.over_tcp(session.portal_index, local.ip(), ports));
    }
}

/// The volumes that are being sanitized or formatted, with the progress in 65,536ths, or should be because that
/// was cut off or has failed.
pub fn sanitations(handle: &Handle<Engine>) -> Vec<(String, Sanitation, Option<u16>)> {
    let world = handle.world();
    let stands = world.volumes().map(|(_, volume)| {
        let state = &volume.face.unit.state;
        let progress = state.sanitize_sense().and_then(|sense| sense.progress);
        (volume.name.clone(), state.sanitation(), progress)
    });
    stands.filter(|(_, stands, _)| *stands != Sanitation::None).collect()
}
