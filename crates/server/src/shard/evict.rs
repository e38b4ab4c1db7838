//! Connections that have proved nothing yet, and lose their places to others.

use std::net::IpAddr;

use super::Shard;
use crate::entry::Entry;
use crate::front::{Front, FrontConn};
use crate::mail::Owed;
use crate::places::Place;
use crate::rationed::Topic;
use crate::stats::Counts;

impl<F: Front> Shard<F> {
    /// Counts a connection that has just come, at the cost of another one if there is no place left.
    pub(super) fn enter(&mut self, client: IpAddr) -> Entry<F> {
        let (entry, victim) = Entry::new(&self.core, client);
        victim.into_iter().for_each(|victim| self.evict(victim));
        entry
    }

    /// Ends a connection that has lost its place, on whatever shard it is.
    pub fn evict(&mut self, Place { shard, connection }: Place) {
        if shard == self.number {
            return self.evicted(connection);
        }
        self.core.mailboxes()[shard].deliver(Owed::Evict { connection });
    }

    /// A connection of this shard has lost its place: it ends, if it still does not
    /// [serve](FrontConn::serves).
    pub(super) fn evicted(&mut self, connection: u64) {
        let Some(slot) = self.find(connection) else { return };
        let conn = &self.conns[slot];
        if conn.front.serves() {
            return;
        }
        self.front.protocol.turned_away();
        if let Some(unlogged) =
            self.core.rations.grants(Topic::TurnedAway, self.front.exec.storage.now)
        {
            let what = conn.front.kind();
            tracing::warn!(
                peer = %conn.peer,
                unlogged,
                "disconnected: too many {what} at one time, and its address has most of them"
            );
        }
        self.disconnect(slot);
    }
}
