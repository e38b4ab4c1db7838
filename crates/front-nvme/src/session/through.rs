//! The relay of another gateway: a queue on behalf of a host that is connected there, see [`lunet_nvme::Through`].

use lunet_gateway::GatewayId;
use lunet_nvme::Through;
use lunet_nvme::auth::chap::{Concatenation, Responder, Terms};
use lunet_nvme::controller::Kind;
use lunet_nvme::fabrics::{Authentication as Asked, Connect, Connected};
use lunet_nvme::status::Status;
use lunet_server::conn::ConnId;
use lunet_server::network::Origin;
use lunet_server::places::ConnRef;
use lunet_server::rationed::Topic;
use lunet_volume::Face;

use super::connect::{Refusal, applicant, reached, seen, transport};
use super::{Conn, Shard};
use crate::connection::{Authentication, Pdus, Queue};
use crate::group::{EXCHANGE, HASH, names, secrets};
use crate::registry::{Admission, Wish};

/// Where a host is, be it behind another gateway.
pub(super) fn origin_of(conn: &Conn) -> Origin {
    let behind = |through: Through| Origin::new(through.host, conn.local.ip());
    conn.front.through.map_or_else(|| conn.origin(), behind)
}

/// The subsystem in the world, if the host may have it, and what the gateway has to prove.
fn find<Fc: Face>(
    shard: &Shard<Fc>,
    slot: ConnId,
    (connect, through): (&Connect, &Through),
) -> Result<(usize, Terms), Refusal> {
    let conn = &shard.conns[slot];
    let (number, subsystem) = reached(shard, conn, connect)?;
    let group = shard.front.groups.of(&subsystem.nqn);
    let secret = group.and_then(|group| group.lets_through(through));
    let secrets = secret.and_then(|secret| secrets(secret, through, connect));
    let Some([host, controller]) = secrets else {
        let why =
            "another gateway passes commands on, and the group is not this one's in that epoch";
        return Err(Refusal(Status::CONNECT_BUSY.into(), why));
    };
    let origin = Origin::new(through.host, conn.local.ip());
    if subsystem.is_closed_to(origin) || !subsystem.admits(&connect.hostnqn, origin) {
        let why = "the subsystem is not for this host, which comes through another gateway";
        return Err(Refusal(Status::CONNECT_HOST.into(), why));
    }
    let now = shard.front.exec.storage.now;
    if !shard.core.throttle.allows(conn.peer.ip(), &number, now) {
        let why = "too many failed authentications from this address: it has to wait";
        return Err(Refusal(Status::CONNECT_BUSY.into(), why));
    }
    let terms = Terms {
        names: names(connect),
        host,
        controller: Some(controller),
        hashes: vec![HASH],
        groups: vec![EXCHANGE],
        concatenation: Concatenation::Refused,
    };
    Ok((number, terms))
}

/// A gateway makes a queue for a host. False if it has to wait.
pub(super) fn queue<Fc: Face>(
    shard: &mut Shard<Fc>,
    slot: ConnId,
    (connect, through): (&Connect, &Through),
) -> Result<bool, Refusal> {
    let now = shard.front.exec.storage.now;
    let (number, terms) = find(shard, slot, (connect, through))?;
    let own = ConnRef { shard: shard.number, connection: shard.conns[slot].serial };
    let transport = transport(&shard.conns[slot]);
    let plenty = shard.front.exec.storage.plenty();
    let reserve = shard.front.exec.storage.foreseen_reserve(1);
    let wish = Wish {
        kind: Kind::Io,
        subsystem: Some(number),
        connect,
        admin: own,
        applicant: applicant(shard, slot),
        key: None,
        transport,
        capsule_data: shard.core.front.options.capsule_data(transport, plenty, reserve),
        identifiers: shard.front.groups.identifiers(&connect.subnqn),
        limits: shard.core.member.clients().enter(&connect.hostnqn),
    };
    let member = match shard.core.front.registry.admit(&wish, now) {
        Admission::Granted(member) => member,
        Admission::Wait => return Ok(false),
        Admission::Full => {
            let why = "there are too many controllers or queues";
            return Err(Refusal(Status::CONNECT_BUSY.into(), why));
        }
    };
    let ration = shard.core.rations.grants(Topic::Open, now);
    let subsystem = shard.front.world.export(number).cloned();
    let namespaces = seen(&shard.front.world, subsystem.as_deref());
    let (sequence, by) = (shard.core.next_serial(), now + shard.core.front.options.connect_timeout);
    let conn = &mut shard.conns[slot];
    if let Some(unlogged) = ration {
        let (host, gateway, peer) = (&connect.hostnqn, through.gateway, &conn.peer);
        tracing::info!(?host, gateway, %peer, unlogged, "host connects through another gateway");
    }
    let (cntlid, capsule_data) = (member.cntlid, member.capsule_data);
    let (qid, logged, proven) = (0, ration.is_some(), false);
    let (told, since) = (now, now);
    let queue = Queue { qid, member, subsystem, namespaces, told, since, logged, proven };
    let gateway = Some(GatewayId(through.gateway));
    let front = &mut conn.front;
    front.queue = Some(queue);
    front.through = Some(*through);
    front.gated = shard.front.groups.connected(&connect.subnqn, &connect.hostnqn, gateway);
    let responder = Responder::new(terms, sequence as u32);
    front.auth = Some(Box::new(Authentication { responder, by }));
    front.proto.limit_capsules(capsule_data);
    let connected = Connected { cntlid, authentication: Asked::Required };
    front.proto.accept(connected, &mut Pdus(&mut conn.out));
    Ok(true)
}

/// A gateway has proved that it is one, if this is a relay: what comes by it is of the present turn of the host's way. False if
/// it has to come again.
pub(super) fn is_renewed(conn: &mut Conn) -> bool {
    let (Some(through), Some(gated)) = (conn.front.through, &mut conn.front.gated) else {
        return true;
    };
    if through.renews && !gated.way.lose() {
        return false;
    }
    gated.renewed();
    true
}
