//! What a connection asks of its surroundings.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use lunet_iscsi::Through;
use lunet_iscsi::pdu::LoginStatus;
use lunet_iscsi::target::{
    Credentials, LoginIdentity, LoginRefusal, SendTargets, SessionType, Site, TargetInfo,
};
use lunet_ring::{Account, Arena, Buf, Reserve};
use lunet_volume::take;

use crate::group::{Groups, credentials};
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
    /// The failover groups.
    pub groups: &'a Groups,
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
    /// Where the initiator comes from: the gateway says it of one that it logs in for.
    fn origin(&self, id: &LoginIdentity) -> Origin {
        Origin::new(self.address(id), self.local.ip())
    }

    fn address(&self, id: &LoginIdentity) -> IpAddr {
        id.through.map_or(self.peer, |through| through.host)
    }

    /// What a gateway has to prove that logs in for an initiator.
    fn credentials_of(
        &self,
        id: &LoginIdentity,
        through: &Through,
    ) -> Result<Arc<Credentials>, LoginRefusal> {
        let name = id.target_name.as_ref().filter(|_| id.session_type == SessionType::Normal);
        let name = name.ok_or(LoginStatus::NotFound)?;
        let group = self.groups.of_target(name);
        let let_in = group.and_then(|group| group.lets_through(through));
        let (secret, _) = let_in.ok_or(LoginStatus::NotFound)?;
        Ok(credentials(secret, through, (&id.initiator_name, id.isid), name))
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
            .filter(|(_, target)| target.admits(self.portal, &id.initiator_name, self.origin(id)));
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
        if !access.admits(&id.initiator_name, self.address(id)) {
            return Err(LoginStatus::AuthorizationFailure.into());
        }
        if let Some(through) = &id.through {
            return self.credentials_of(id, through).map(Some);
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
            let origin = Origin::new(self.peer, self.local.ip());
            if !access.admits(initiator, self.peer) || access.is_closed_to(origin) {
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
