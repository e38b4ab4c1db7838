//! From a finished negotiation to a session, or not.

use lunet_iscsi::Through;
use lunet_iscsi::pdu::LoginStatus;
use lunet_iscsi::printable::printable;
use lunet_iscsi::target::LoginIdentity;
use lunet_verbs::Sysfs;

use super::refusal::refused;
use super::{Conn, Pdus, Session, SessionLun, Shard};
use crate::group::Groups;
use crate::registry::{Admission, Nexus, Request};
use crate::reservations::nexus_id;
use crate::world::Exports;
use lunet_server::conn::{ConnId, Phase, Wire};
use lunet_server::mail::Mail;
use lunet_server::network::Origin;
use lunet_server::places::{Applicant, ConnRef};
use lunet_server::rationed::Topic;

/// A connection has negotiated, and proved who it is: is there a place for it?
pub(super) fn login(shard: &mut Shard, slot: ConnId, identity: Box<LoginIdentity>) {
    ask_for_place(shard, slot, identity, false);
}

/// `replaced`: the session that stood in the way has ended.
fn ask_for_place(shard: &mut Shard, slot: ConnId, identity: Box<LoginIdentity>, replaced: bool) {
    let number = shard.number;
    let Some(conn) = shard.conns.get_mut(slot) else { return };
    if conn.phase != Phase::Open {
        // It has gone while it waited: nobody would end its session.
        return;
    }
    let conn_ref = ConnRef { shard: number, connection: conn.serial };
    // The world may have changed since the login began.
    let origin = origin_of(conn, identity.through.as_ref());
    let target = match shard.front.world.entrance(conn.portal, &identity, origin) {
        Ok(target) => target,
        Err(status) => return turn_away(shard, slot, status),
    };
    let own = shard.front.world.portals.known(conn.portal).map_or(0, |portal| portal.tag);
    let tag = match (&identity.through, &identity.target_name) {
        (None, _) => own,
        (Some(through), Some(name)) => {
            let group = shard.front.groups.of_target(name);
            match group.and_then(|group| group.lets_through(through)) {
                // A session of the other gateway's port.
                Some((_, tag)) if tag != own => tag,
                _ => return turn_away(shard, slot, LoginStatus::NotFound),
            }
        }
        (Some(_), None) => return turn_away(shard, slot, LoginStatus::NotFound),
    };
    if identity.through.is_some_and(|through| through.renews)
        && !replaced
        && !lose(&shard.front.groups, &identity)
    {
        // What it has lost before is at work.
        return turn_away(shard, slot, LoginStatus::ServiceUnavailable);
    }
    let nexus = Nexus {
        initiator: identity.initiator_name.clone(),
        isid: identity.isid,
        target,
        portal_group: tag,
        // Discovery sessions do not replace each other: nothing hangs on them.
        discovery: if target.is_none() { conn.serial } else { 0 },
    };
    let client = shard.core.throttle.client(conn.peer.ip());
    let applicant = Applicant { client, proven: identity.proof.is_some() };
    let request = Request { tsih: identity.tsih, cid: identity.cid, replaced };
    match shard.core.front.registry.admit(&nexus, conn_ref, applicant, request) {
        Admission::Granted(tsih) => admit(shard, slot, nexus, tsih, &identity),
        Admission::Full => turn_away(shard, slot, LoginStatus::OutOfResources),
        Admission::TooManyConnections => {
            turn_away(shard, slot, LoginStatus::TooManyConnections);
        }
        Admission::NoSession => turn_away(shard, slot, LoginStatus::SessionDoesNotExist),
        Admission::Replaces(old) => {
            conn.front.waiting = Some(identity);
            let mail = Mail::End { connection: old.connection, reply: conn_ref };
            if shard.core.mailboxes()[old.shard].send(mail).is_err() {
                turn_away(shard, slot, LoginStatus::OutOfResources);
            }
        }
    }
}

/// A gateway has lost commands of an initiator that may still come by other sessions: a new turn of its way begins.
fn lose(groups: &Groups, identity: &LoginIdentity) -> bool {
    let name = identity.target_name.as_deref().unwrap_or_default();
    let group = groups.of_target(name);
    group.is_some_and(|group| group.ways.of(&identity.initiator_name).lose())
}

/// Where an initiator comes from: the gateway says it of one that it logs in for.
pub(super) fn origin_of(conn: &Conn, through: Option<&Through>) -> Origin {
    through.map_or_else(|| conn.origin(), |through| Origin::new(through.host, conn.local.ip()))
}

/// The session that stood in the way has ended: once more.
pub(super) fn login_again(shard: &mut Shard, serial: u64) {
    let Some(slot) = shard.find(serial) else { return };
    if let Some(identity) = shard.conns[slot].front.waiting.take() {
        ask_for_place(shard, slot, identity, true);
        shard.touch(slot);
    }
}

fn admit(shard: &mut Shard, slot: ConnId, nexus: Nexus, tsih: u16, identity: &LoginIdentity) {
    let conn = &mut shard.conns[slot];
    let name = identity.target_name.as_deref().unwrap_or("discovery");
    let initiator = printable(&identity.initiator_name);
    let topic = match (nexus.target, &identity.proof) {
        (None, _) => Topic::Listing,
        (Some(_), None) => Topic::Open,
        (Some(_), Some(_)) => Topic::Proven,
    };
    let ration = shard.core.rations.grants(topic, shard.front.exec.storage.now);
    if let Some(unlogged) = ration {
        let peer = &conn.peer;
        tracing::info!(?initiator, target = %name, %peer, tsih, unlogged, "logged in");
    }
    let (logged, discovery) = (ration.is_some(), nexus.target.is_none());
    let world = &shard.front.world;
    let target = nexus.target.and_then(|target| world.export(target)).cloned();
    let id = nexus_id(&nexus, name);
    let origin = origin_of(conn, identity.through.as_ref());
    let view = target.as_ref().map(|t| t.view(&nexus.initiator, origin.address));
    let through = identity.through.is_some();
    let luns = view.unwrap_or_default().into_iter().filter_map(|(lun, volume)| {
        Some(SessionLun::join(lun, (volume, world.volume(volume)?), &id, through))
    });
    // With no room to spare: thousands of sessions may be idle, with hundreds each.
    let luns = luns.collect::<Box<[SessionLun]>>().into_vec();
    let numbers = luns.iter().map(|lun| lun.lun).collect();
    let scsi = target.as_ref().map(|target| target.seen(conn.portal, numbers));
    let since = shard.front.exec.storage.now;
    let proof = identity.proof.clone();
    let mut scsi = scsi.unwrap_or_default();
    let through = identity.through;
    if through.is_some() {
        scsi.portal_group_tag = nexus.portal_group;
    }
    // Before the answer: the initiator sends nothing before it has that.
    let groups = &shard.front.groups;
    let gated = target.as_ref().and_then(|target| groups.connected(&target.name, &nexus));
    if gated.is_some() {
        shard.front.groups.show(&mut scsi);
    }
    // Discovery needs no buffers.
    if target.is_some() {
        shard.front.exec.storage.join_host(&conn.account, &nexus.initiator);
        shard.front.exec.storage.renew(&conn.account, &mut conn.reserve);
    }
    let limits = shard.core.member.clients().enter(&nexus.initiator);
    conn.front.session = Some(Session {
        nexus,
        id,
        tsih,
        target,
        through,
        proof,
        scsi,
        luns,
        gated,
        limits,
        logged,
        since,
    });
    conn.front.proto.admit(tsih, &mut Pdus(&mut conn.out));
    shard.front.protocol.logins += 1;
    let (client, serial) = (conn.peer.ip(), conn.serial);
    shard.core.login_ends(client, serial);
    if discovery {
        let conn_ref = ConnRef { shard: shard.number, connection: serial };
        let victim = shard.core.front.discovery.enter(client, conn_ref);
        victim.into_iter().for_each(|victim| shard.evict(victim));
    }
    if logged {
        shard.log_session(slot);
    }
    tell_of_tcp(shard, slot);
}

/// A line in the log for a session that could have come by iSER. The kernel is asked elsewhere: it may
/// take its time.
fn tell_of_tcp(shard: &Shard, slot: ConnId) {
    let Conn { peer, local, portal, front, .. } = &shard.conns[slot];
    let (peer, local, portal, now) = (*peer, *local, *portal, shard.front.exec.storage.now);
    let session = front.session.as_ref();
    let serves = session.is_some_and(|session| session.target.is_some());
    let by_tcp = matches!(shard.conns[slot].wire, Wire::Stream(_));
    if !(serves && by_tcp && shard.core.rdma.is_served(portal)) {
        return;
    }
    let core = shard.core.clone();
    let look = move || {
        let way = core.rdma.over_tcp(portal, local.ip(), &Sysfs::default().ports());
        core.rdma.log_over_tcp((peer, local), &way, || core.rations.grants(Topic::OverTcp, now));
    };
    // With too much to do there, the line is missing, and `lunet sessions` has it.
    let _ = shard.core.offload.give(None, Box::new(look));
}

fn turn_away(shard: &mut Shard, slot: ConnId, status: LoginStatus) {
    refused(shard, slot, status.code());
    let conn = &mut shard.conns[slot];
    conn.front.proto.refuse(status, &mut Pdus(&mut conn.out));
    shard.drain(slot);
}
