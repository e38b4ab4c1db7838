//! What a connection is counted for, from its arrival until a shard has it.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::core::Core;
use crate::front::Front;
use crate::places::Place;

/// A place among the logins, and one on a shard. Dropping it gives both back, so it may be lost
/// anywhere on its way: refused, in a full mailbox, or in that of a shard that ends.
pub struct Entry<F: Front> {
    core: Arc<Core<F>>,
    client: IpAddr,
    place: Place,
    kept: bool,
}

impl<F: Front> Entry<F> {
    /// Counts a client that begins to log in, on the shard with the fewest connections. If there was no place
    /// left, another connection has lost its own, and has to end.
    pub fn new(core: &Arc<Core<F>>, client: IpAddr) -> (Self, Option<Place>) {
        let place = Place { shard: core.least_loaded(), connection: core.next_serial() };
        let victim = core.login_begins(client, place);
        (Self { core: core.clone(), client, place, kept: false }, victim)
    }

    /// The shard that it is counted on.
    pub(crate) fn shard(&self) -> usize {
        self.place.shard
    }

    /// The connection's number.
    pub fn serial(&self) -> u64 {
        self.place.connection
    }

    /// The connection stands on its shard: its end gives back what it is counted for.
    pub fn keep(mut self) {
        self.kept = true;
    }
}

impl<F: Front> Drop for Entry<F> {
    fn drop(&mut self) {
        if !self.kept {
            self.core.login_ends(self.client, self.place.connection);
            self.core.loads[self.place.shard].fetch_sub(1, Ordering::Relaxed);
        }
    }
}
