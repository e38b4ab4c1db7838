//! Connections that have proved nothing yet, and lose their places to others.

use std::net::IpAddr;

use super::Shard;
use crate::entry::Entry;
use crate::mail::Owed;
use crate::rationed::Topic;
use crate::registry::Place;

impl Shard {
    /// Counts a connection that has just come, at the cost of another one if there is no place left.
    pub(super) fn enter(&mut self, client: IpAddr) -> Entry {
        let (entry, victim) = Entry::new(&self.core, client);
        victim.into_iter().for_each(|victim| self.evict(victim));
        entry
    }

    /// Ends a connection that has lost its place, on whatever shard it is.
    pub(super) fn evict(&mut self, Place { shard, connection }: Place) {
        if shard == self.number {
            return self.evicted(connection);
        }
        self.core.mailboxes()[shard].deliver(Owed::Evict { connection });
    }

    /// A connection of this shard has lost its place: it ends, if it still does nothing but to log in or to
    /// discover.
    pub(super) fn evicted(&mut self, connection: u64) {
        let Some(slot) = self.find(connection) else { return };
        let conn = &self.conns[slot];
        if conn.session.as_ref().is_some_and(|session| session.nexus.target.is_some()) {
            return;
        }
        self.engine.protocol.turned_away += 1;
        if let Some(unlogged) =
            self.core.rations.grants(Topic::TurnedAway, self.engine.exec.storage.now)
        {
            let what = if conn.session.is_some() { "discovery sessions" } else { "logins" };
            tracing::warn!(
                peer = %conn.peer,
                unlogged,
                "disconnected: too many {what} at one time, and its address has most of them"
            );
        }
        self.disconnect(slot);
    }
}
