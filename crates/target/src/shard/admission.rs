//! From a finished negotiation to a session, or not.

use std::sync::atomic::Ordering;

use lunet_iscsi::pdu::LoginStatus;
use lunet_iscsi::target::LoginIdentity;
use lunet_scsi::Attention;

use super::Shard;
use crate::conn::{Phase, Session};
use crate::mail::Mail;
use crate::registry::{Admission, Nexus, Place};
use crate::reservations::nexus_id;

impl Shard {
    /// A connection has negotiated: is there a place for it?
    pub(super) fn login(&mut self, slot: u32, identity: Box<LoginIdentity>) {
        let number = self.number;
        let Some(conn) = self.conns.get_mut(slot as usize) else { return };
        if conn.phase != Phase::Open {
            // It has gone while it waited: nobody would end its session.
            return;
        }
        let place = Place { shard: number, connection: conn.serial };
        let target = match &identity.target_name {
            None => None,
            Some(name) => match self.core.targets.iter().position(|t| t.name == *name) {
                Some(target) => Some(target),
                None => return self.turn_away(slot, LoginStatus::NotFound),
            },
        };
        let nexus = Nexus {
            initiator: identity.initiator_name.clone(),
            isid: identity.isid,
            target,
            portal_group: self.core.portals[conn.portal].tag,
            // Discovery sessions do not replace each other: nothing hangs on them.
            discovery: if target.is_none() { conn.serial } else { 0 },
        };
        match self.core.registry.admit(&nexus, place) {
            Admission::Granted(tsih) => self.admit(slot, nexus, tsih, &identity),
            Admission::Full => self.turn_away(slot, LoginStatus::OutOfResources),
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
        if let Some(identity) = self.conns[slot as usize].waiting.take() {
            self.login(slot, identity);
            self.touch(slot);
        }
    }

    fn admit(&mut self, slot: u32, nexus: Nexus, tsih: u16, identity: &LoginIdentity) {
        let conn = &mut self.conns[slot as usize];
        let units = nexus.target.map_or(0, |target| self.core.targets[target].volumes.len());
        let mut fresh = lunet_scsi::Nexus::new();
        // What an initiator knew of the unit before, it should ask again (SAM-5 5.14).
        fresh.establish(Attention::PowerOn);
        let target = identity.target_name.as_deref().unwrap_or("discovery");
        tracing::info!(initiator = %identity.initiator_name, %target, peer = %conn.peer, tsih, "logged in");
        let id = nexus_id(&nexus, target);
        let mut session = Session {
            nexus,
            id,
            tsih,
            units: vec![fresh; units],
            seats: Vec::with_capacity(units),
            since: self.engine.now,
        };
        session.join(&self.core);
        conn.session = Some(session);
        conn.proto.admit(tsih, &mut conn.out);
        self.engine.protocol.logins += 1;
        self.core.logins.fetch_sub(1, Ordering::Relaxed);
    }

    fn turn_away(&mut self, slot: u32, status: LoginStatus) {
        let conn = &mut self.conns[slot as usize];
        tracing::info!(peer = %conn.peer, ?status, "login refused");
        conn.proto.refuse(status, &mut conn.out);
        self.engine.protocol.login_failures += 1;
        self.drain(slot);
    }

    /// The slot of a connection.
    pub(super) fn find(&self, serial: u64) -> Option<u32> {
        self.conns.iter().find(|(_, conn)| conn.serial == serial).map(|(slot, _)| slot as u32)
    }
}
