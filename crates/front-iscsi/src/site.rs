//! What a connection asks of its surroundings.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use lunet_iscsi::pdu::LoginStatus;
use lunet_iscsi::target::{
    Credentials, LoginIdentity, LoginRefusal, SendTargets, SessionType, Site, TargetInfo,
};
use lunet_ring::{Account, Arena, Buf, Reserve};
use lunet_volume::take;

use crate::session::Core;
use crate::world::{Exports, World};
use lunet_server::network::Origin;

/// What a client tried to reach.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Aim {
    /// A target that it may see.
    Target(String),
    /// A target that is not there, or that it may not see.
    Unknown,
    /// The list of targets.
    Discovery,
}

impl Aim {
    /// What a login is for, if that is there.
    pub fn of(identity: &LoginIdentity) -> Self {
        match &identity.target_name {
            Some(name) if identity.session_type == SessionType::Normal => {
                Self::Target(name.clone())
            }
            _ => Self::Discovery,
        }
    }
}

/// The surroundings of one connection, for the time of one call.
pub struct Surroundings<'a> {
    /// The server.
    pub core: &'a Core,
    /// What it serves.
    pub world: &'a World,
    /// The shard's buffers.
    pub arena: &'a Arena,
    /// Who pays for them.
    pub account: &'a Account,
    /// How many more bytes the connection may hold of the memory that is for all.
    pub allowance: usize,
    /// What is set aside for its session.
    pub reserve: Option<&'a Reserve>,
    /// Time since the server's start.
    pub now: Duration,
    /// The portal that it came in by.
    pub portal: usize,
    /// The initiator's address.
    pub peer: IpAddr,
    /// The initiator's name, once its login is complete.
    pub initiator: Option<&'a str>,
    /// The server's address on the connection.
    pub local: SocketAddr,
}

impl Surroundings<'_> {
    /// Where the connection comes from.
    fn origin(&self) -> Origin {
        Origin::new(self.peer, self.local.ip())
    }

    /// Refuses a client that has failed too often at this.
    fn may_try(&self, aim: &Aim) -> Result<(), LoginRefusal> {
        match self.core.throttle.allows(self.peer, aim, self.now) {
            true => Ok(()),
            // Initiators come back after this, unlike after a failed authentication.
            false => Err(LoginStatus::ServiceUnavailable.into()),
        }
    }
}

impl Site for Surroundings<'_> {
    type Buf = Buf;

    fn alloc(&mut self, len: usize) -> Option<Buf> {
        let buf = take((self.arena, self.allowance), self.reserve, self.account, len)?;
        self.allowance = self.allowance.saturating_sub(buf.occupies());
        Some(buf)
    }

    fn keep(&mut self, buf: &mut Buf) -> bool {
        let Some(left) = self.allowance.checked_sub(buf.occupies()) else { return false };
        self.allowance = left;
        buf.charge(self.account);
        true
    }

    fn find_target(&self, id: &LoginIdentity) -> Result<TargetInfo, LoginRefusal> {
        // One that was removed meanwhile leads nowhere.
        let portal = self.world.portals.get(self.portal).ok_or(LoginStatus::NotFound)?;
        let portal_group_tag = portal.tag;
        let Some(name) = &id.target_name else {
            return Ok(TargetInfo { portal_group_tag, alias: None });
        };
        let found = self
            .world
            .find_target(name)
            .filter(|(_, target)| target.admits(self.portal, &id.initiator_name, self.origin()));
        match found {
            Some((_, target)) => Ok(TargetInfo { portal_group_tag, alias: target.alias.clone() }),
            // What is not for this initiator is not there for it: who may not reach a target shall
            // not learn its name by trying.
            None => {
                self.may_try(&Aim::Unknown)?;
                Err(LoginStatus::NotFound.into())
            }
        }
    }

    fn credentials(&self, id: &LoginIdentity) -> Result<Option<Arc<Credentials>>, LoginRefusal> {
        let aim = Aim::of(id);
        self.may_try(&aim)?;
        let access = match &id.target_name {
            Some(name) if id.session_type == SessionType::Normal => {
                let found = self.world.find_target(name).ok_or(LoginStatus::NotFound)?;
                &found.1.access
            }
            _ => &self.world.rules.discovery,
        };
        if !access.admits(&id.initiator_name, self.peer) {
            return Err(LoginStatus::AuthorizationFailure.into());
        }
        Ok(access.credentials(&id.initiator_name, self.peer))
    }

    fn random(&self, bytes: &mut [u8]) -> bool {
        lunet_os::random::fill(bytes).is_ok()
    }

    fn send_targets(&self, which: SendTargets<'_>, each: &mut dyn FnMut(&str, &str, u16)) {
        let listed = self.world.portals.listed(self.local);
        for (_, target) in self.world.exports() {
            let Some(initiator) = self.initiator else { return };
            let access = &target.access;
            if !access.admits(initiator, self.peer) || access.is_closed_to(self.origin()) {
                continue;
            }
            match which {
                SendTargets::Named(name) if name != target.name => continue,
                SendTargets::Named(_) | SendTargets::All => {}
            }
            let reached = |portal: usize| target.is_reached_through(portal);
            for portal in listed.iter().filter(|portal| reached(portal.slot)) {
                if !portal.same.is_some_and(reached) {
                    each(&target.name, &portal.address.to_string(), portal.tag);
                }
            }
        }
    }
}
