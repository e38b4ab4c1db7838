//! What a connection asks of its surroundings.

use std::net::SocketAddr;
use std::sync::Arc;

use lunet_iscsi::pdu::LoginStatus;
use lunet_iscsi::target::{
    Credentials, LoginIdentity, LoginRefusal, SendTargets, Site, TargetInfo,
};
use lunet_ring::{Account, Arena, Buf};
use rustix::rand::GetRandomFlags;

use crate::core::Core;
use crate::world::World;

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
    /// How many more bytes the connection may hold.
    pub allowance: usize,
    /// The portal that it came in by.
    pub portal: usize,
    /// The server's address on the connection.
    pub local: SocketAddr,
}

impl Site for Surroundings<'_> {
    type Buf = Buf;

    fn alloc(&mut self, len: usize) -> Option<Buf> {
        if Arena::cost(len) > self.allowance {
            return None;
        }
        let buf = self.arena.alloc_for(len, self.account)?;
        self.allowance = self.allowance.saturating_sub(buf.occupies());
        Some(buf)
    }

    fn find_target(&self, id: &LoginIdentity) -> Result<TargetInfo, LoginRefusal> {
        let portal_group_tag = self.core.portals[self.portal].tag;
        let Some(name) = &id.target_name else {
            return Ok(TargetInfo { portal_group_tag, alias: None });
        };
        match self.world.find_target(name) {
            Some((_, target)) if target.portals[self.portal] => {
                Ok(TargetInfo { portal_group_tag, alias: target.alias.clone() })
            }
            _ => Err(LoginStatus::NotFound.into()),
        }
    }

    fn credentials(&self, _: &LoginIdentity) -> Result<Option<Arc<Credentials>>, LoginRefusal> {
        Ok(None)
    }

    fn random(&self, bytes: &mut [u8]) -> bool {
        // The kernel gives up to 256 bytes in one go, once it has collected enough at boot.
        rustix::rand::getrandom(&mut *bytes, GetRandomFlags::empty()) == Ok(bytes.len())
    }

    fn send_targets(&self, which: SendTargets<'_>, each: &mut dyn FnMut(&str, &str, u16)) {
        for (_, target) in self.world.targets() {
            match which {
                SendTargets::Named(name) if name != target.name => continue,
                SendTargets::Named(_) | SendTargets::All => {}
            }
            for (portal, _) in
                self.core.portals.iter().zip(&target.portals).filter(|(_, reached)| **reached)
            {
                // A wildcard address is no address to connect to: name the one that this
                // initiator has just reached.
                let mut address = portal.address;
                if address.ip().is_unspecified() {
                    address.set_ip(self.local.ip());
                }
                each(&target.name, &address.to_string(), portal.tag);
            }
        }
    }
}
