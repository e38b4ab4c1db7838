//! A bounded number of places for connections that have proved nothing yet, shared between addresses.
//!
//! Nobody is kept out by others who hold places for nothing: when all are taken, the next connection gets
//! one all the same, and the oldest connection of the client that holds the most gives up its own. So a
//! client keeps its place as long as others hold more than it does. Touched by logins only, so a lock is
//! enough.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::access::Network;
use crate::registry::Place;

#[derive(Debug, Default)]
struct Inner {
    /// The connections of each client, the oldest first. None is empty.
    clients: HashMap<Network, VecDeque<Place>>,
    taken: usize,
}

/// Places of one kind: for logins that have not finished, or for discovery sessions.
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
    pub fn enter(&self, client: Network, place: Place) -> Option<Place> {
        let mut inner = self.lock();
        inner.clients.entry(client).or_default().push_back(place);
        inner.taken += 1;
        if inner.taken <= self.most {
            return None;
        }
        let oldest = |held: &VecDeque<Place>| held.front().map(|place| place.connection);
        // Of clients with as many, that with the oldest connection.
        let rank = |held: &VecDeque<Place>| (held.len(), oldest(held).map(std::cmp::Reverse));
        let heaviest = inner.clients.iter().max_by_key(|(_, held)| rank(held));
        let heaviest = heaviest.map(|(client, _)| *client)?;
        let victim = inner.clients.get_mut(&heaviest)?.pop_front();
        inner.left(heaviest);
        victim
    }

    /// A connection gives its place back. Nothing happens if it has lost it before.
    pub fn leave(&self, client: Network, connection: u64) {
        let mut inner = self.lock();
        let Some(held) = inner.clients.get_mut(&client) else { return };
        let Some(at) = held.iter().position(|place| place.connection == connection) else { return };
        held.remove(at);
        inner.left(client);
    }

    /// Places that are taken.
    #[cfg(test)]
    pub fn taken(&self) -> usize {
        self.lock().taken
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// A client has one connection less.
    fn left(&mut self, client: Network) {
        self.taken -= 1;
        if self.clients.get(&client).is_some_and(VecDeque::is_empty) {
            self.clients.remove(&client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    fn client(n: u32) -> Network {
        Network::host(IpAddr::V4(n.into()))
    }

    fn place(connection: u64) -> Place {
        Place { shard: 0, connection }
    }

    #[test]
    fn the_oldest_of_the_client_with_the_most_goes() {
        let places = Places::new(8);
        for n in 0..8 {
            assert_eq!(places.enter(client(1), place(n)), None);
        }
        // Others get in, as many as leave each its share.
        for n in 8..12 {
            assert_eq!(places.enter(client(2), place(n)), Some(place(n - 8)));
        }
        // Both hold four: the older one's oldest goes.
        assert_eq!(places.enter(client(3), place(12)), Some(place(4)));
        // Whoever wants more than its share pays for it.
        assert_eq!(places.enter(client(1), place(13)), Some(place(5)));
        assert_eq!(places.enter(client(1), place(14)), Some(place(6)));
        assert_eq!(places.enter(client(2), place(15)), Some(place(8)));
        assert_eq!(places.taken(), 8);
        // The one of the third is safe from all of them.
        for n in 16..100 {
            let victim = places.enter(client(n as u32 % 2 + 1), place(n));
            assert!(victim.is_some_and(|victim| victim != place(12)), "{victim:?}");
        }
    }

    #[test]
    fn places_come_back_once() {
        let places = Places::new(2);
        assert_eq!((places.enter(client(1), place(1)), places.taken()), (None, 1));
        assert_eq!((places.enter(client(1), place(2)), places.taken()), (None, 2));
        assert_eq!(places.enter(client(2), place(3)), Some(place(1)));
        places.leave(client(1), 1);
        places.leave(client(9), 2);
        assert_eq!(places.taken(), 2, "it had lost its place");
        places.leave(client(1), 2);
        places.leave(client(2), 3);
        assert_eq!(places.taken(), 0);
        assert!(places.lock().clients.is_empty(), "the table is bounded by the places");
    }
}
