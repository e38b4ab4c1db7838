//! A bounded number of places for connections that have proved nothing yet, shared between addresses.
//!
//! Nobody is kept out by others who hold places for nothing: when all are taken, the next connection gets
//! one all the same, and the oldest connection of the client that holds the most gives up its own. So a
//! client keeps its place as long as others hold more than it does. Of IPv6 that is first the /64 with the
//! most, all addresses of which one client may have, and then the address. Touched by logins only, so a lock
//! is enough.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use lunet_os::sync::{Mutex, MutexGuard};

use crate::core::Core;
use crate::front::Front;
use crate::network::Network;

/// Names a connection on the whole server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnRef {
    /// Number of the shard that it lives on.
    pub shard: usize,
    /// Serial number of the connection, unique while the server runs.
    pub connection: u64,
}

#[derive(Debug, Default)]
struct Inner {
    /// The connections of each address, the oldest first. None is empty.
    clients: HashMap<IpAddr, VecDeque<ConnRef>>,
    taken: usize,
}

/// Places of one kind: for logins that have not finished, or for sessions that only ask what there is.
#[derive(Debug)]
pub struct Places {
    inner: Mutex<Inner>,
    most: usize,
}

impl Places {
    /// So many places, at least one.
    pub fn new(most: usize) -> Self {
        Self { inner: Mutex::default(), most: most.max(1) }
    }

    /// Gives a connection of a client a place. Another one, which may be of the same client, has to end if
    /// it is returned: it has lost its own.
    #[must_use]
    pub fn enter(&self, client: IpAddr, conn_ref: ConnRef) -> Option<ConnRef> {
        let mut inner = self.lock();
        inner.clients.entry(client).or_default().push_back(conn_ref);
        inner.taken += 1;
        if inner.taken <= self.most {
            return None;
        }
        let heaviest = inner.heaviest()?;
        let victim = inner.clients.get_mut(&heaviest)?.pop_front();
        inner.left(heaviest);
        victim
    }

    /// A connection gives its place back. Nothing happens if it has lost it before.
    pub fn leave(&self, client: IpAddr, connection: u64) {
        let mut inner = self.lock();
        let Some(held) = inner.clients.get_mut(&client) else { return };
        let Some(at) = held.iter().position(|conn_ref| conn_ref.connection == connection) else {
            return;
        };
        held.remove(at);
        inner.left(client);
    }

    /// Places that are taken.
    #[cfg(any(test, feature = "fake", debug_assertions))]
    pub fn taken(&self) -> usize {
        self.lock().taken
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// The address that holds the most places, of the /64 with the most; of several with as many, that with the
    /// oldest connection.
    fn heaviest(&self) -> Option<IpAddr> {
        let mut groups: HashMap<Network, usize> = HashMap::new();
        for (client, held) in &self.clients {
            *groups.entry(Network::of_client(*client)).or_default() += held.len();
        }
        let rank = |client: &IpAddr, held: &VecDeque<ConnRef>| {
            let group = groups.get(&Network::of_client(*client)).copied();
            (group, held.len(), held.front().map(|conn_ref| Reverse(conn_ref.connection)))
        };
        let heaviest = self.clients.iter().max_by_key(|(client, held)| rank(client, held));
        heaviest.map(|(client, _)| *client)
    }

    /// A client has one connection less.
    fn left(&mut self, client: IpAddr) {
        self.taken -= 1;
        if self.clients.get(&client).is_some_and(VecDeque::is_empty) {
            self.clients.remove(&client);
        }
    }
}

/// Who asks for a place of a [`Quota`].
#[derive(Clone, Copy, Debug)]
pub struct Applicant {
    /// Where it comes from.
    pub client: Network,
    /// It has proved who it is.
    pub proven: bool,
}

/// A server with at least so many places keeps an eighth of them for who has proved who it is.
const MANY: usize = 64;

/// A bounded number of places that are kept until they are given back.
///
/// Who has proved nothing cannot take all of them: an address gets no more than are left for others, and the last ones
/// are for those who have proved who they are.
#[derive(Debug, Default)]
pub struct Quota {
    most: usize,
    taken: usize,
    /// Places for which nothing had to be proved, by address.
    unproven: HashMap<Network, usize>,
}

impl Quota {
    /// So many places.
    pub fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    /// Takes a place, if there is one. An address may have `always` of them, however few are left.
    #[must_use]
    pub fn take(&mut self, Applicant { client, proven }: Applicant, always: usize) -> bool {
        let left = self.most.saturating_sub(self.taken);
        if proven {
            self.taken += usize::from(left > 0);
            return left > 0;
        }
        let reserve = if self.most < MANY { 0 } else { self.most / 8 };
        let left = left.saturating_sub(reserve);
        let held = self.unproven.get(&client).copied().unwrap_or(0);
        let granted = left > 0 && (held < always || held < left);
        if granted {
            self.taken += 1;
            *self.unproven.entry(client).or_default() += 1;
        }
        granted
    }

    /// Gives a place back that was taken so.
    pub fn give_back(&mut self, Applicant { client, proven }: Applicant) {
        self.taken -= 1;
        let Some(held) = self.unproven.get_mut(&client).filter(|_| !proven) else { return };
        *held -= 1;
        if *held == 0 {
            self.unproven.remove(&client);
        }
    }
}

/// A place among the logins, and one on a shard. Dropping it gives both back, so it may be lost
/// anywhere on its way: refused, in a full mailbox, or in that of a shard that ends.
pub struct Entry<F: Front> {
    core: Arc<Core<F>>,
    client: IpAddr,
    conn_ref: ConnRef,
    kept: bool,
}

impl<F: Front> Entry<F> {
    /// Counts a client that begins to log in, on the shard that [suits it](Core::choose_shard) by where its packets arrive. If
    /// there was no place left, another connection has lost its own, and has to end.
    pub fn new(
        core: &Arc<Core<F>>,
        client: IpAddr,
        arrives: Option<usize>,
    ) -> (Self, Option<ConnRef>) {
        let shard = core.choose_shard(arrives);
        let conn_ref = ConnRef { shard, connection: core.next_serial() };
        let victim = core.login_begins(client, conn_ref);
        (Self { core: core.clone(), client, conn_ref, kept: false }, victim)
    }

    /// The shard that it is counted on.
    pub(crate) fn shard(&self) -> usize {
        self.conn_ref.shard
    }

    /// The connection's number.
    pub fn serial(&self) -> u64 {
        self.conn_ref.connection
    }

    /// The connection stands on its shard: its end gives back what it is counted for.
    pub fn keep(mut self) {
        self.kept = true;
    }
}

impl<F: Front> Drop for Entry<F> {
    fn drop(&mut self) {
        if !self.kept {
            self.core.login_ends(self.client, self.conn_ref.connection);
            self.core.loads[self.conn_ref.shard].fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    fn conn_ref(connection: u64) -> ConnRef {
        ConnRef { shard: 0, connection }
    }

    #[test]
    fn the_oldest_of_the_client_with_the_most_goes() {
        let places = Places::new(8);
        for n in 0..8 {
            assert_eq!(places.enter(client(1), conn_ref(n)), None);
        }
        // Others get in, as many as leave each its share.
        for n in 8..12 {
            assert_eq!(places.enter(client(2), conn_ref(n)), Some(conn_ref(n - 8)));
        }
        // Both hold four: the older one's oldest goes.
        assert_eq!(places.enter(client(3), conn_ref(12)), Some(conn_ref(4)));
        // Whoever wants more than its share pays for it.
        assert_eq!(places.enter(client(1), conn_ref(13)), Some(conn_ref(5)));
        assert_eq!(places.enter(client(1), conn_ref(14)), Some(conn_ref(6)));
        assert_eq!(places.enter(client(2), conn_ref(15)), Some(conn_ref(8)));
        assert_eq!(places.taken(), 8);
        // The one of the third is safe from all of them.
        for n in 16..100 {
            let victim = places.enter(client(n as u32 % 2 + 1), conn_ref(n));
            assert!(victim.is_some_and(|victim| victim != conn_ref(12)), "{victim:?}");
        }
    }

    #[test]
    fn a_client_with_all_addresses_of_a_64_is_one() {
        let places = Places::new(4);
        let host = |n: u128| IpAddr::V6(std::net::Ipv6Addr::from_bits((0x2001_0db8 << 96) + n));
        assert_eq!(places.enter(client(1), conn_ref(1)), None);
        for n in 2..5 {
            assert_eq!(places.enter(host(n.into()), conn_ref(n)), None);
        }
        for n in 5..50 {
            let victim = places.enter(host(n.into()), conn_ref(n));
            assert_eq!(victim, Some(conn_ref(n - 3)), "one of its own");
        }
        assert_eq!(places.enter(client(2), conn_ref(50)), Some(conn_ref(47)));
    }

    #[test]
    fn places_come_back_once() {
        let places = Places::new(2);
        assert_eq!((places.enter(client(1), conn_ref(1)), places.taken()), (None, 1));
        assert_eq!((places.enter(client(1), conn_ref(2)), places.taken()), (None, 2));
        assert_eq!(places.enter(client(2), conn_ref(3)), Some(conn_ref(1)));
        places.leave(client(1), 1);
        places.leave(client(9), 2);
        assert_eq!(places.taken(), 2, "it had lost its place");
        places.leave(client(1), 2);
        places.leave(client(2), 3);
        assert_eq!(places.taken(), 0);
        assert!(places.lock().clients.is_empty(), "the table is bounded by the places");
    }
}
