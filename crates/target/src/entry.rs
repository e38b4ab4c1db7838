//! What a connection is counted for, from its arrival until a shard has it.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::core::Core;

/// A place among the logins, and one on a shard. Dropping it gives both back, so it may be lost
/// anywhere on its way: refused, in a full mailbox, or in that of a shard that ends.
pub struct Entry {
    core: Arc<Core>,
    client: IpAddr,
    shard: usize,
    kept: bool,
}

impl Entry {
    /// Counts a client that begins to log in, on the shard with the fewest connections. `None` if there is
    /// no place for it.
    pub fn new(core: &Arc<Core>, client: IpAddr) -> Option<Self> {
        let enters = core.login_begins(client);
        enters.then(|| Self { shard: core.least_loaded(), core: core.clone(), client, kept: false })
    }

    /// The shard that it is counted on.
    pub fn shard(&self) -> usize {
        self.shard
    }

    /// The connection stands on its shard: its end gives back what it is counted for.
    pub fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if !self.kept {
            self.core.login_ends(self.client);
            self.core.loads[self.shard].fetch_sub(1, Ordering::Relaxed);
        }
    }
}
