//! Failed logins: who fails too often has to wait.
//!
//! A failure counts for the client's address and for what it tried to reach. So a client that guesses
//! slows itself down, there and only there: neither other addresses nor what else it tries to reach notice.
//! Of IPv6 a client elsewhere is its /64, all addresses of which it may have. On networks that this machine
//! is on, many hosts share one, so each address counts for itself. Touched by logins only, so a lock is enough.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use lunet_os::sync::Mutex;

use crate::network::Network;
use crate::rationed::Level;

/// Failures that are free before the client has to wait.
const FREE: u32 = 5;
/// A failure is forgotten after this time.
const FORGET: Duration = Duration::from_secs(12);
/// Clients that are remembered. When more fail, those are forgotten that have waited longest, of the /64 with the
/// most of them.
const CLIENTS: usize = 4096;

#[derive(Debug)]
struct Inner<A> {
    clients: HashMap<(Network, A), Level>,
}

/// The failed logins of a server. `A` is what they were for.
#[derive(Debug)]
pub struct Throttle<A> {
    inner: Mutex<Inner<A>>,
    /// The IPv6 networks that this machine is on.
    networks: RwLock<Vec<Network>>,
}

impl<A> Default for Throttle<A> {
    fn default() -> Self {
        let inner = Mutex::new(Inner { clients: HashMap::new() });
        Self { inner, networks: RwLock::default() }
    }
}

impl<A: Clone + Eq + Hash> Throttle<A> {
    /// Takes in which IPv6 networks this machine is on now.
    pub(crate) fn set_networks(&self, networks: Vec<Network>) {
        *self.networks.write().unwrap_or_else(PoisonError::into_inner) = networks;
    }

    /// The client behind an address: what counts as one.
    pub fn client(&self, address: IpAddr) -> Network {
        let address = address.to_canonical();
        let networks = self.networks.read().unwrap_or_else(PoisonError::into_inner);
        match networks.iter().any(|network| network.has(address)) {
            true => Network::host(address),
            false => Network::of_client(address),
        }
    }

    /// True if the client may try now.
    pub fn allows(&self, client: IpAddr, aim: &A, now: Duration) -> bool {
        let key = (self.client(client), aim.clone());
        let level = self.lock().clients.get(&key).copied().unwrap_or_default();
        level.has_room(now, FREE, FORGET)
    }

    /// The client tried, and failed.
    pub fn failed(&self, client: IpAddr, aim: A, now: Duration) {
        let key = (self.client(client), aim);
        let mut inner = self.lock();
        if inner.clients.len() >= CLIENTS && !inner.clients.contains_key(&key) {
            inner.forget(now);
        }
        inner.clients.entry(key).or_default().raise(now, FREE, FORGET);
    }

    fn lock(&self) -> lunet_os::sync::MutexGuard<'_, Inner<A>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<A: Clone + Eq + Hash> Inner<A> {
    /// Makes room: forgets all who need not wait any more, else half of the /64 (or IPv4 address) with the
    /// most entries. So a host that takes one address after the other does not have others forgotten.
    fn forget(&mut self, now: Duration) {
        self.clients.retain(|_, level| level.0 > now);
        if self.clients.len() < CLIENTS {
            return;
        }
        let mut groups: HashMap<Network, Vec<Duration>> = HashMap::new();
        for ((client, _), level) in &self.clients {
            groups.entry(client.around()).or_default().push(level.0);
        }
        let largest = groups.into_iter().max_by_key(|(_, levels)| levels.len());
        let Some((group, levels)) = largest else { return };
        // Where each has one entry there is nobody to blame.
        let (group, mut levels) = match levels.len() {
            1 => (None, self.clients.values().map(|level| level.0).collect()),
            _ => (Some(group), levels),
        };
        let half = levels.len() / 2;
        let middle = *levels.select_nth_unstable(half).1;
        let mut left = half + 1;
        self.clients.retain(|(client, _), level| {
            let concerned = group.is_none_or(|group| client.around() == group);
            let goes = left > 0 && concerned && level.0 <= middle;
            left -= usize::from(goes);
            !goes
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    enum Aim {
        Export(String),
        Unknown,
        Listing,
    }

    fn ip(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    fn export(name: &str) -> Aim {
        Aim::Export(name.into())
    }

    const START: Duration = Duration::from_secs(1000);

    #[test]
    fn who_fails_too_often_waits_and_nobody_else() {
        let throttle = Throttle::default();
        for _ in 0..FREE {
            assert!(throttle.allows(ip(1), &export("a"), START));
            throttle.failed(ip(1), export("a"), START);
        }
        assert!(!throttle.allows(ip(1), &export("a"), START));
        assert!(throttle.allows(ip(2), &export("a"), START), "a neighbour");
        assert!(throttle.allows(ip(1), &export("b"), START), "another export");
        assert!(throttle.allows(ip(1), &Aim::Listing, START));
        let later = START + FORGET;
        assert!(!throttle.allows(ip(1), &export("a"), later - Duration::from_millis(1)));
        assert!(throttle.allows(ip(1), &export("a"), later));
        throttle.failed(ip(1), export("a"), later);
        assert!(!throttle.allows(ip(1), &export("a"), later), "one more, and it waits again");
        assert!(throttle.allows(ip(1), &export("a"), later + FORGET * FREE));
    }

    #[test]
    fn a_neighbour_on_ipv6_is_not_held_to_account_for_others() {
        let throttle = Throttle::default();
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        throttle.set_networks(Network::new(address("fd00::2"), 64).into_iter().collect());
        let fails = |client: &str| {
            (0..FREE).for_each(|_| throttle.failed(address(client), export("a"), START));
        };
        let may = |client: &str| throttle.allows(address(client), &export("a"), START);
        // On this machine's network each address counts for itself.
        fails("fd00::66");
        assert!(!may("fd00::66") && may("fd00::77"));
        // Elsewhere a client has a whole /64.
        fails("2001:db8::66");
        assert!(!may("2001:db8::77") && may("2001:db8:0:1::77"));
        // An IPv4 address is one, over whatever socket it comes.
        fails("192.0.2.1");
        assert!(!may("::ffff:192.0.2.1") && may("::ffff:192.0.2.2"));
    }

    #[test]
    fn who_takes_address_after_address_has_nobody_else_forgotten() {
        let throttle = Throttle::default();
        let network = Ipv6Addr::from_bits(0xfd00 << 112);
        throttle.set_networks(Network::new(network.into(), 64).into_iter().collect());
        for _ in 0..FREE {
            throttle.failed(ip(7), export("a"), START);
        }
        for n in 0..3 * CLIENTS as u128 {
            let address = Ipv6Addr::from_bits(network.to_bits() + n + 1).into();
            // Each tries twice, so that it waits longer than those before.
            (0..FREE + 1).for_each(|_| throttle.failed(address, export("a"), START));
            assert!(throttle.lock().clients.len() <= CLIENTS);
        }
        assert!(!throttle.allows(ip(7), &export("a"), START), "it has to wait still");
    }

    #[test]
    fn rare_failures_are_forgotten() {
        let throttle = Throttle::default();
        for n in 0..1000 {
            let now = START + FORGET * n;
            assert!(throttle.allows(ip(1), &Aim::Unknown, now));
            throttle.failed(ip(1), Aim::Unknown, now);
        }
    }

    #[test]
    fn the_table_has_a_bound_and_keeps_the_worst() {
        let throttle = Throttle::default();
        for _ in 0..50 {
            throttle.failed(ip(7), export("a"), START);
        }
        for n in 0..3 * CLIENTS as u32 {
            throttle.failed(ip(1000 + n), export("a"), START);
            assert!(throttle.lock().clients.len() <= CLIENTS);
        }
        assert!(!throttle.allows(ip(7), &export("a"), START));
        // Who has waited long enough goes first.
        throttle.failed(ip(8), export("a"), START + FORGET * 2);
        throttle.lock().forget(START + FORGET * 2);
        assert_eq!(throttle.lock().clients.len(), 2);
    }
}
