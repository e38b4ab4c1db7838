//! The portals of the server, in slots.
//!
//! Connections, what clients log in to, and the state of RDMA know a portal by its slot. So a slot is never given to another
//! portal: that of one that was removed stays empty, and one that comes gets a new one.

use std::collections::HashMap;
use std::net::SocketAddr;

use crate::hosting::Portal;

/// How many portals may have come since the server was started, with those of the start and those that were
/// removed.
pub const MOST: usize = 1024;

/// The slots. Never changed, but replaced, with the world that they are part of.
#[derive(Clone, Debug, Default)]
pub struct Portals(Vec<Slot>);

#[derive(Clone, Debug)]
struct Slot {
    /// With its real port number.
    portal: Portal,
    /// The address as it is configured: its port may be 0.
    configured: SocketAddr,
    /// False once it was removed.
    there: bool,
}

/// There is no slot left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// How many slots are taken, by portals that were removed as well.
    pub(crate) taken: usize,
    /// How many portals are new.
    pub(crate) fresh: usize,
}

/// A portal as a client that asks what there is hears of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its slot.
    pub slot: usize,
    /// Where that client reaches it.
    pub address: SocketAddr,
    /// By what its protocol groups portals.
    pub tag: u16,
    /// The slot of another one with this very address and tag, for another transport.
    pub same: Option<usize>,
}

/// The portals after a change.
pub struct Next {
    /// All of them. Those that are new have no real port numbers yet.
    pub(crate) portals: Portals,
    /// The slot of each that was asked for.
    pub(crate) slots: Vec<usize>,
    /// The slots of those that are new.
    pub(crate) fresh: Vec<usize>,
}

impl Portals {
    /// The portals of the start: with real port numbers, each with the address that was configured.
    pub fn new(portals: impl IntoIterator<Item = (Portal, SocketAddr)>) -> Self {
        let slot = |(portal, configured)| Slot { portal, configured, there: true };
        Self(portals.into_iter().map(slot).collect())
    }

    /// The portal in a slot, if it is there.
    pub fn get(&self, slot: usize) -> Option<&Portal> {
        self.0.get(slot).filter(|slot| slot.there).map(|slot| &slot.portal)
    }

    /// The portal in a slot, be it that it was removed.
    pub fn known(&self, slot: usize) -> Option<&Portal> {
        self.0.get(slot).map(|slot| &slot.portal)
    }

    /// All slots in their order, with those of portals that were removed.
    pub fn slots(&self) -> impl ExactSizeIterator<Item = &Portal> {
        self.0.iter().map(|slot| &slot.portal)
    }

    /// The portals that are there, with their slots.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Portal)> {
        let there = self.0.iter().enumerate().filter(|(_, slot)| slot.there);
        there.map(|(number, slot)| (number, &slot.portal))
    }

    /// The portals, with the addresses by which a client can reach them that has come to `local`.
    pub fn listed(&self, local: SocketAddr) -> Vec<Listed> {
        let named: HashMap<_, _> =
            self.iter().map(|(slot, portal)| ((portal.address, portal.tag), slot)).collect();
        let listed = |(slot, portal): (usize, &Portal)| {
            let (mut address, tag) = (portal.address, portal.tag);
            let mut same = None;
            // A wildcard address is no address to connect to: name the one that this client has just
            // reached. It stands for the addresses of its own family (IPV6_V6ONLY is set), and which of the
            // other one the client could reach is not known.
            if address.ip().is_unspecified() {
                if address.is_ipv4() != local.is_ipv4() {
                    return None;
                }
                address.set_ip(local.ip());
                same = named.get(&(address, tag)).copied();
            }
            Some(Listed { slot, address, tag, same })
        };
        self.iter().filter_map(listed).collect()
    }

    /// The slots that configured portals have now: with the same address, tag and transports. None for
    /// those that are not there.
    pub(crate) fn claims(&self, wanted: &[Portal]) -> Vec<Option<usize>> {
        let mut taken = vec![false; self.0.len()];
        let mut claim = |portal: &Portal| {
            let same = |(number, slot): &(usize, &Slot)| {
                slot.there
                    && !taken[*number]
                    && slot.configured == portal.address
                    && (slot.portal.tag, slot.portal.transports) == (portal.tag, portal.transports)
            };
            let found = self.0.iter().enumerate().find(same).map(|(number, _)| number)?;
            taken[found] = true;
            Some(found)
        };
        wanted.iter().map(&mut claim).collect()
    }

    /// The slot of the portal by which a session is reached that came by this one: the same; or, if that was
    /// removed, the slot that one at its address has now. None if nothing is there.
    pub fn home(&self, slot: usize) -> Option<usize> {
        if self.get(slot).is_some() {
            return Some(slot);
        }
        let address = self.known(slot)?.address;
        self.iter().find(|(_, portal)| portal.address == address).map(|(slot, _)| slot)
    }

    /// The slots whose sessions each of `wanted` would have, if they are configured: its own, and those of
    /// portals that were at its address before. What [`home`](Self::home) says then, told beforehand.
    pub(crate) fn homes(&self, wanted: &[Portal]) -> Vec<Vec<usize>> {
        let claims = self.claims(wanted);
        let of = |(claim, portal): (&Option<usize>, &Portal)| {
            // The real port number, if it has one already.
            let address = claim.and_then(|slot| self.known(slot)).unwrap_or(portal).address;
            let left = |slot: &usize| {
                !claims.contains(&Some(*slot)) && self.0[*slot].portal.address == address
            };
            claim.iter().copied().chain((0..self.0.len()).filter(left)).collect()
        };
        claims.iter().zip(wanted).map(of).collect()
    }

    /// The address that is configured for the portal that listens at `real`; they differ if its port is 0.
    pub(crate) fn configured(&self, real: SocketAddr) -> Option<SocketAddr> {
        let found = self.0.iter().find(|slot| slot.there && slot.portal.address == real)?;
        Some(found.configured)
    }

    /// The portals after these, if `wanted` are configured.
    ///
    /// # Errors
    /// There is no slot left for one that is new.
    pub(crate) fn next(&self, wanted: &[Portal]) -> Result<Next, Full> {
        let claims = self.claims(wanted);
        let mut next = self.0.clone();
        for (number, slot) in next.iter_mut().enumerate() {
            slot.there &= claims.contains(&Some(number));
        }
        let mut fresh = Vec::new();
        let mut place = |(claim, portal): (Option<usize>, &Portal)| {
            claim.unwrap_or_else(|| {
                next.push(Slot { portal: portal.clone(), configured: portal.address, there: true });
                fresh.push(next.len() - 1);
                next.len() - 1
            })
        };
        let slots = claims.into_iter().zip(wanted).map(&mut place).collect();
        // However many the server was started with, changes of something else stay possible.
        if !fresh.is_empty() && next.len() > MOST {
            return Err(Full { taken: self.0.len(), fresh: fresh.len() });
        }
        Ok(Next { portals: Self(next), slots, fresh })
    }

    /// A portal that is new listens at this address.
    pub(crate) fn set_address(&mut self, slot: usize, address: SocketAddr) {
        self.0[slot].portal.address = address;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosting::Transports;

    fn portal(port: u16, tag: u16) -> Portal {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        Portal { address, tag, transports: Transports::Any }
    }

    #[test]
    fn a_portal_keeps_its_slot_and_nobody_gets_that_of_another() {
        let start = Portals::new([
            (portal(4000, 1), portal(0, 1).address),
            (portal(4001, 1), portal(0, 1).address),
            (portal(5, 2), portal(5, 2).address),
        ]);
        let same = start.next(&[portal(5, 2), portal(0, 1), portal(0, 1)]).expect("there is room");
        assert_eq!((same.slots, same.fresh), (vec![2, 0, 1], vec![]));
        // Another tag is another portal.
        let next = start.next(&[portal(0, 1), portal(5, 3), portal(6, 1)]).expect("there is room");
        assert_eq!((next.slots, &next.fresh), (vec![0, 3, 4], &vec![3, 4]));
        let mut portals = next.portals;
        assert!(portals.get(1).is_none() && portals.known(1).is_some());
        portals.set_address(4, portal(7, 1).address);
        let there: Vec<_> = portals.iter().map(|(slot, p)| (slot, p.address.port())).collect();
        assert_eq!(there, [(0, 4000), (3, 5), (4, 7)]);
        let back = portals.next(&[portal(5, 2)]).expect("there is room");
        assert_eq!((back.slots, back.fresh), (vec![5], vec![5]), "it has left its slot for good");
        assert_eq!(portals.claims(&[portal(6, 1), portal(9, 1)]), [Some(4), None]);
        let configured = |port| portals.configured(portal(port, 1).address).map(|a| a.port());
        assert_eq!((configured(4000), configured(4001), configured(0)), (Some(0), None, None));
    }

    #[test]
    fn a_portal_that_comes_back_has_the_sessions_that_it_had() {
        let start = Portals::new([
            (portal(4000, 1), portal(0, 1).address),
            (portal(4001, 1), portal(0, 1).address),
            (portal(5, 2), portal(5, 2).address),
        ]);
        let at = |portals: &Portals| [0, 1, 2].map(|slot| portals.home(slot));
        assert_eq!(at(&start), [Some(0), Some(1), Some(2)]);
        let without = start.next(&[portal(0, 1)]).expect("there is room").portals;
        assert_eq!(at(&without), [Some(0), None, None]);
        assert_eq!(start.homes(&[portal(0, 1)]), [vec![0]]);
        // With the same tag or another one.
        for tag in [2, 3] {
            let wanted = [portal(0, 1), portal(5, tag)];
            assert_eq!(without.homes(&wanted), [vec![0], vec![2]]);
            let back = without.next(&wanted).expect("there is room").portals;
            assert_eq!((at(&back), back.home(9)), ([Some(0), None, Some(3)], None));
            assert_eq!(back.homes(&wanted), [vec![0], vec![3, 2]]);
        }
    }

    #[test]
    fn slots_are_bounded() {
        let mut portals = Portals::new([(portal(1, 1), portal(1, 1).address)]);
        for n in 1..MOST {
            portals = portals.next(&[portal(1 + n as u16 % 2, 1)]).expect("there is room").portals;
        }
        let other = 1 + MOST as u16 % 2;
        let full = portals.next(&[portal(other, 1)]).err();
        assert_eq!(full, Some(Full { taken: MOST, fresh: 1 }));
        assert!(portals.next(&[portal(3 - other, 1)]).is_ok(), "what is there goes on");
    }

    #[test]
    fn an_address_of_a_wildcard_and_of_another_portal_is_listed_once() {
        let at = |address: &str, tag, transports| {
            let address = address.parse().expect("an address");
            (Portal { address, tag, transports }, address)
        };
        let portals = Portals::new([
            at("0.0.0.0:3260", 1, Transports::Tcp),
            at("[::]:3260", 1, Transports::Tcp),
            at("192.0.2.1:3260", 1, Transports::Rdma),
            at("192.0.2.2:3260", 2, Transports::Rdma),
        ]);
        let told = |local: &str| {
            let all = portals.listed(local.parse().expect("an address")).into_iter();
            all.map(|l| (l.slot, l.address.to_string(), l.tag, l.same)).collect::<Vec<_>>()
        };
        let (one, two) = ("192.0.2.1:3260", "192.0.2.2:3260");
        let (first, second) = ((2, one.into(), 1, None), (3, two.into(), 2, None));
        assert_eq!(told(one), [(0, one.into(), 1, Some(2)), first.clone(), second.clone()]);
        // Another tag is another portal group.
        assert_eq!(told(two), [(0, two.into(), 1, None), first.clone(), second.clone()]);
        let v6 = "[2001:db8::1]:3260";
        assert_eq!(told(v6), [(1, v6.into(), 1, None), first, second]);
    }
}
