//! The controllers of a shard, as reports show them.

use std::cell::OnceCell;
use std::time::Duration;

use lunet_nvme::name::DISCOVERY_NQN;
use lunet_server::conn::{Phase, Wire};
use lunet_server::rdma::Sysfs;
use lunet_volume::Face;

use super::{Conn, Core, Shard};
use crate::connection::Channel;
use crate::report::{Protocol, QueueInfo, RdmaPath, SessionInfo};

/// The controllers whose admin queues are on this shard.
pub(super) fn sessions<Fc: Face>(shard: &Shard<Fc>) -> Vec<SessionInfo> {
    let open = shard.conns.iter().filter(|(_, conn)| conn.phase == Phase::Open);
    open.filter_map(|(_, conn)| session(shard, conn)).collect()
}

fn session<Fc: Face>(shard: &Shard<Fc>, conn: &Conn) -> Option<SessionInfo> {
    // An admin queue, or the relay of another gateway, which has none.
    let queue = conn.front.queue.as_ref().filter(|queue| queue.qid == 0)?;
    let admin = conn.front.admin.as_ref();
    let member = &queue.member;
    let own = QueueInfo { qid: 0, shard: shard.number };
    let others = shard.core.front.registry.queues(member.cntlid).into_iter();
    let others = others.map(|(qid, queue)| QueueInfo { qid, shard: queue.shard });
    let framing = conn.front.proto.framing();
    let subsystem = queue.subsystem.as_ref();
    Some(SessionInfo {
        cntlid: member.cntlid,
        subsystem: subsystem.map_or(DISCOVERY_NQN, |subsystem| &subsystem.nqn).to_owned(),
        host_nqn: member.host.nqn.clone(),
        host_id: member.host.id,
        authenticated: queue.proven,
        peer: conn.peer,
        local: conn.local,
        portal: conn.portal,
        transport: if conn.front.proto.is_rdma() { "rdma" } else { "tcp" },
        rdma: path_of(shard, conn),
        tcp: None,
        tls: match &conn.front.tls {
            Channel::Tls(secured) => Some(secured.suite),
            _ => None,
        },
        digests: (framing.header_digest, framing.data_digest),
        kato: admin.map_or(Duration::ZERO, |admin| admin.controller.keep_alive()),
        queues: std::iter::once(own).chain(others).collect(),
        namespaces: queue.namespaces.len(),
        age: shard.front.exec.storage.now.saturating_sub(queue.since),
    })
}

/// The way of a connection over RDMA.
fn path_of<Fc: Face>(shard: &Shard<Fc>, conn: &Conn) -> Option<RdmaPath> {
    let Wire::Rdma(link) = &conn.wire else { return None };
    Some(RdmaPath {
        device: link.facts.device.clone(),
        gid: link.facts.gid.clone(),
        path_mtu_bytes: link.facts.path_mtu,
        queue_depth: u32::from(shard.core.front.options.queue_entries),
    })
}

/// Adds why a controller is on TCP. The kernel is asked here, where nobody's I/O waits for its answer.
pub(super) fn complete<Fc: Face>(core: &Core<Fc>, sessions: &mut [SessionInfo]) {
    let ports = OnceCell::new();
    for session in sessions.iter_mut().filter(|session| session.rdma.is_none()) {
        let ports = ports.get_or_init(|| Sysfs::default().ports());
        session.tcp = Some(core.rdma.over_tcp(session.portal, session.local.ip(), ports));
    }
}

/// Adds what a connection has counted.
pub(super) fn add_counts(conn: &crate::connection::NvmeConn, counts: &mut Protocol) {
    let own = conn.proto.counters();
    counts.pdus_in += own.pdus_in;
    counts.pdus_out += own.pdus_out;
    counts.bytes_in += own.bytes_in;
    counts.bytes_out += own.bytes_out;
    counts.data_digest_errors += own.data_digest_errors;
    counts.rdma_reads += own.rdma_reads;
    counts.rdma_writes += own.rdma_writes;
}
