//! Servers of one process that serve the same volumes, each with a protocol of its own.
//!
//! Their shards are numbered as one: those of the first server from 0, those of the next one after them. So a command or
//! a thread that wants a range of a volume for itself has every shard drained, whichever server it belongs to.
//! Everything else (connections, messages, places) is a server's own, and counts its shards from 0.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use lunet_volume::{Drain, Shards, SlowWork, Ticket, VolumeId, Waiter};

/// The shards of all servers. How many there are is known before the first of them serves: a lock that was queued
/// without a shard would not keep that away.
pub(crate) struct Fleet {
    servers: Vec<Seat>,
    /// Servers whose shards have not all ended with nothing left to do.
    serving: AtomicUsize,
}

/// What the fleet knows of a server.
struct Seat {
    /// Number of its first shard.
    first: usize,
    /// How many shards it has.
    count: usize,
    /// Not before it has started, and not after it has ended.
    server: OnceLock<Weak<dyn OwnShards>>,
}

/// The shards of one server, counted from 0.
pub(crate) trait OwnShards: Send + Sync {
    /// As [`Shards::ask`].
    fn ask(&self, shard: usize, drain: Drain) -> bool;

    /// Tells a shard that it is the turn of one that waits there.
    fn wake(&self, shard: usize);

    /// As [`Shards::send_away`].
    fn send_away(&self, asks: (usize, Ticket), volume: VolumeId, work: SlowWork) -> bool;
}

/// A server's place among those that serve the same volumes.
#[derive(Clone)]
pub struct Member {
    pub(crate) fleet: Arc<Fleet>,
    number: usize,
}

impl Member {
    /// The place of a server that shares its volumes with no other. `shards`: how many it has; `None` is one for each
    /// processor that the process may run on.
    pub fn alone(shards: Option<usize>) -> Self {
        let [member] = Self::of([shards]);
        member
    }

    /// The places of servers that share volumes, with the shards of each as for [`alone`](Self::alone). The first one
    /// opens the volumes, replaces and removes them, and looks after their storage; the others are given those that
    /// it has, in the same slots. All have to be started: until then locks on ranges wait.
    pub fn of<const N: usize>(shards: [Option<usize>; N]) -> [Self; N] {
        let mut first = 0;
        let seat = |count: Option<usize>| {
            let count = count.unwrap_or_else(processors).max(1);
            first += count;
            Seat { first: first - count, count, server: OnceLock::new() }
        };
        let servers = shards.into_iter().map(seat).collect();
        let fleet = Arc::new(Fleet { servers, serving: AtomicUsize::new(N) });
        std::array::from_fn(|number| Self { fleet: fleet.clone(), number })
    }

    fn seat(&self) -> &Seat {
        &self.fleet.servers[self.number]
    }

    /// How many shards the server has.
    pub fn shards(&self) -> usize {
        self.seat().count
    }

    /// The number of the server's first shard among those of all servers.
    pub fn first_shard(&self) -> usize {
        self.seat().first
    }

    /// True for the server that the volumes are of.
    pub fn owns_volumes(&self) -> bool {
        self.number == 0
    }

    /// The server's shards can be asked from now on.
    pub(crate) fn join(&self, server: Weak<dyn OwnShards>) {
        let fresh = self.seat().server.set(server).is_ok();
        debug_assert!(fresh, "a server starts once");
    }

    /// All shards of the server have ended, with nothing left to do. True if those of all other servers have, too.
    pub(crate) fn has_ended(&self) -> bool {
        self.fleet.serving.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

impl Fleet {
    /// Has something done by the server that has the shard of this number, which is there under another one.
    fn by<T>(&self, shard: usize, what: impl FnOnce(&dyn OwnShards, usize) -> T) -> Option<T> {
        let seat = self.servers.iter().rev().find(|seat| seat.first <= shard)?;
        let server = seat.server.get()?.upgrade()?;
        Some(what(&*server, shard - seat.first))
    }
}

impl Shards for Fleet {
    fn count(&self) -> usize {
        self.servers.iter().map(|seat| seat.count).sum()
    }

    fn ask(&self, shard: usize, drain: Drain) -> bool {
        self.by(shard, |server, shard| server.ask(shard, drain)).unwrap_or(false)
    }

    fn wake(&self, waiters: &[Waiter]) {
        for waiter in waiters {
            match waiter {
                Waiter::Shard(shard) => {
                    let _ = self.by(*shard, |server, shard| server.wake(shard));
                }
                Waiter::Thread(thread) => drop(thread.try_send(())),
            }
        }
    }

    fn send_away(
        &self,
        (shard, ticket): (usize, Ticket),
        volume: VolumeId,
        work: SlowWork,
    ) -> bool {
        let sent = self.by(shard, |server, shard| server.send_away((shard, ticket), volume, work));
        sent.unwrap_or(false)
    }
}

/// The processors that this process may run on.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_of_all_servers_are_numbered_as_one() {
        let [owner, other] = Member::of([Some(3), Some(0)]);
        assert_eq!((owner.first_shard(), owner.shards(), owner.owns_volumes()), (0, 3, true));
        assert_eq!((other.first_shard(), other.shards(), other.owns_volumes()), (3, 1, false));
        assert_eq!(owner.fleet.count(), 4);
        assert!(owner.fleet.by(3, |_, _| ()).is_none(), "it has not started");
        assert!(!other.has_ended());
        assert!(owner.has_ended(), "it was the last one");
    }
}
