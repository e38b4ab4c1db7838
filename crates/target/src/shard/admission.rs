//! From a finished negotiation to a session, or not.

use lunet_iscsi::pdu::LoginStatus;
use lunet_iscsi::printable::printable;
use lunet_iscsi::target::LoginIdentity;
use lunet_verbs::Sysfs;

use super::Shard;
use crate::conn::{Conn, ConnId, Phase, Session, SessionLun, Wire};
use crate::mail::Mail;
use crate::rationed::Topic;
use crate::rdma::Status;
use crate::registry::{Admission, Applicant, Nexus, Place, Request};
use crate::reservations::nexus_id;

impl Shard {
    /// A connection has negotiated, and proved who it is: is there a place for it?
    pub(super) fn login(&mut self, slot: ConnId, identity: Box<LoginIdentity>) {
        self.ask_for_place(slot, identity, false);
    }

    /// `replaced`: the session that stood in the way has ended.
    fn ask_for_place(&mut self, slot: ConnId, identity: Box<LoginIdentity>, replaced: bool) {
        let number = self.number;
        let Some(conn) = self.conns.get_mut(slot) else { return };
        if conn.phase != Phase::Open {
            // It has gone while it waited: nobody would end its session.
            return;
        }
        let place = Place { shard: number, connection: conn.serial };
        // The world may have changed since the login began.
        let target = match self.engine.world.entrance(conn.portal, &identity, conn.origin()) {
            Ok(target) => target,
            Err(status) => return self.turn_away(slot, status),
        };
        let tag = self.engine.world.ways.portals.known(conn.portal).map_or(0, |portal| portal.tag);
        let nexus = Nexus {
            initiator: identity.initiator_name.clone(),
            isid: identity.isid,
            target,
            portal_group: tag,
            // Discovery sessions do not replace each other: nothing hangs on them.
            discovery: if target.is_none() { conn.serial } else { 0 },
        };
        let client = self.core.throttle.client(conn.peer.ip());
        let applicant = Applicant { client, proven: identity.proof.is_some() };
        let request = Request { tsih: identity.tsih, cid: identity.cid, replaced };
        match self.core.registry.admit(&nexus, place, applicant, request) {
            Admission::Granted(tsih) => self.admit(slot, nexus, tsih, &identity),
            Admission::Full => self.turn_away(slot, LoginStatus::OutOfResources),
            Admission::TooManyConnections => {
                self.turn_away(slot, LoginStatus::TooManyConnections);
            }
            Admission::NoSession => self.turn_away(slot, LoginStatus::SessionDoesNotExist),
            Admission::Replaces(old) => {
                conn.waiting = Some(identity);
                let mail = Mail::End { connection: old.connection, reply: place };
                if self.core.mailboxes()[old.shard].send(mail).is_err() {
                    self.turn_away(slot, LoginStatus::OutOfResources);
                }
            }
        }
    }

    /// The session that stood in the way has ended: once more.
    pub(super) fn login_again(&mut self, serial: u64) {
        let Some(slot) = self.find(serial) else { return };
        if let Some(identity) = self.conns[slot].waiting.take() {
            self.ask_for_place(slot, identity, true);
            self.touch(slot);
        }
    }

    fn admit(&mut self, slot: ConnId, nexus: Nexus, tsih: u16, identity: &LoginIdentity) {
        let conn = &mut self.conns[slot];
        let name = identity.target_name.as_deref().unwrap_or("discovery");
        let initiator = printable(&identity.initiator_name);
        let topic = match (nexus.target, &identity.proof) {
            (None, _) => Topic::Discovery,
            (Some(_), None) => Topic::Open,
            (Some(_), Some(_)) => Topic::Proven,
        };
        let ration = self.core.rations.grants(topic, self.engine.exec.storage.now);
        if let Some(unlogged) = ration {
            let peer = &conn.peer;
            tracing::info!(?initiator, target = %name, %peer, tsih, unlogged, "logged in");
        }
        let (logged, discovery) = (ration.is_some(), nexus.target.is_none());
        let world = &self.engine.world;
        let target = nexus.target.and_then(|target| world.target(target)).cloned();
        let id = nexus_id(&nexus, name);
        let view = target.as_ref().map(|t| t.view(&nexus.initiator, conn.peer.ip()));
        let luns = view.unwrap_or_default().into_iter().filter_map(|(lun, volume)| {
            Some(SessionLun::join(lun, volume, world.volume(volume)?, &id))
        });
        let luns: Vec<SessionLun> = luns.collect();
        let numbers = luns.iter().map(|lun| lun.lun).collect();
        let scsi = target.as_ref().map(|target| target.seen(conn.portal, numbers));
        let since = self.engine.exec.storage.now;
        let proof = identity.proof.clone();
        let scsi = scsi.unwrap_or_default();
        // Discovery needs no buffers.
        if target.is_some() {
            self.engine.exec.storage.renew(&mut conn.reserve);
        }
        conn.session = Some(Session { nexus, id, tsih, target, proof, scsi, luns, logged, since });
        conn.proto.admit(tsih, &mut conn.out);
        self.engine.protocol.logins += 1;
        let (client, serial) = (conn.peer.ip(), conn.serial);
        self.core.login_ends(client, serial);
        if discovery {
            let place = Place { shard: self.number, connection: serial };
            let victim = self.core.discovery.enter(client, place);
            victim.into_iter().for_each(|victim| self.evict(victim));
        }
        if logged {
            self.log_session(slot);
        }
        self.tell_of_tcp(slot);
    }

    /// A line in the log for a session that could have come by iSER. The kernel is asked elsewhere: it may
    /// take its time.
    fn tell_of_tcp(&self, slot: ConnId) {
        let Conn { peer, local, portal, session, .. } = &self.conns[slot];
        let (peer, local, portal, now) = (*peer, *local, *portal, self.engine.exec.storage.now);
        let serves = session.as_ref().is_some_and(|session| session.target.is_some());
        let by_tcp = matches!(self.conns[slot].wire, Wire::Stream(_));
        if !(serves && by_tcp && self.core.iser.is_served(portal)) {
            return;
        }
        let core = self.core.clone();
        let look = move || {
            let way = core.iser.over_tcp(portal, local.ip(), &Sysfs::default().ports());
            Status::tell((peer, local), &way, || core.rations.grants(Topic::OverTcp, now));
        };
        // With too much to do there, the line is missing, and `lunet sessions` has it.
        let _ = self.core.offload.give(None, Box::new(look));
    }

    fn turn_away(&mut self, slot: ConnId, status: LoginStatus) {
        self.refused(slot, status.code());
        let conn = &mut self.conns[slot];
        conn.proto.refuse(status, &mut conn.out);
        self.drain(slot);
    }

    /// The slot of a connection.
    pub(super) fn find(&self, serial: u64) -> Option<ConnId> {
        self.conns.iter().find(|(_, conn)| conn.serial == serial).map(|(slot, _)| slot)
    }
}
