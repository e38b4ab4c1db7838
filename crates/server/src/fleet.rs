//! Servers of one process that serve the same volumes, each with a protocol of its own.
//!
//! Their shards are numbered as one: those of the first server from 0, those of the next one after them. So a command or
//! a thread that wants a range of a volume for itself has every shard drained, whichever server it belongs to.
//! Everything else (connections, messages, places) is a server's own, and counts its shards from 0.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use lunet_volume::{Clients, Drain, Shards, SlowWork, Ticket, VolumeId, Waiter};

/// The shards of all servers. How many there may be is known before the first of them serves, so each lock counts on all
/// of them. For those of a server that has not begun the fleet answers: nothing of them is at the storage, and they find
/// the lock in its queue before their first request.
pub(crate) struct Fleet {
    servers: Vec<Seat>,
    /// The limits of hosts.
    clients: Clients,
    /// Servers that have begun and whose shards have not all ended with nothing left to do.
    serving: AtomicUsize,
    /// Connections that have ended.
    ended: AtomicU64,
}

/// What the fleet knows of a server.
struct Seat {
    /// Number of its first shard.
    first: usize,
    /// How many shards it has.
    count: usize,
    /// Not before it has begun; gone after it has ended.
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
    /// it has, in the same slots, and may begin whenever they are wanted, or never.
    pub fn of<const N: usize>(shards: [Option<usize>; N]) -> [Self; N] {
        let mut first = 0;
        let seat = |count: Option<usize>| {
            let count = count.unwrap_or_else(processors).max(1);
            first += count;
            Seat { first: first - count, count, server: OnceLock::new() }
        };
        let servers = shards.into_iter().map(seat).collect();
        let (clients, serving) = (Clients::default(), AtomicUsize::new(0));
        let fleet = Arc::new(Fleet { servers, clients, serving, ended: AtomicU64::new(0) });
        std::array::from_fn(|number| Self { fleet: fleet.clone(), number })
    }

    /// The limits of hosts, which all servers share.
    pub fn clients(&self) -> &Clients {
        &self.fleet.clients
    }

    /// A connection has ended.
    pub(crate) fn connection_ended(&self) {
        self.fleet.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// How many connections of all servers have ended.
    pub(crate) fn ended(&self) -> u64 {
        self.fleet.ended.load(Ordering::Relaxed)
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

    /// The server's shards are asked from now on. They have to be there, and none of them has done anything yet: a lock
    /// that was queued before found nothing of theirs at the storage, and they find it in its queue.
    pub(crate) fn join(&self, server: Weak<dyn OwnShards>) {
        self.fleet.serving.fetch_add(1, Ordering::AcqRel);
        let fresh = self.seat().server.set(server).is_ok();
        debug_assert!(fresh, "a server begins once");
    }

    /// All shards of the server have ended, with nothing left to do. True if those of all other servers have, too.
    pub(crate) fn has_ended(&self) -> bool {
        self.fleet.serving.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

impl Fleet {
    /// The server that has the shard of this number.
    fn seat_of(&self, shard: usize) -> Option<&Seat> {
        self.servers.iter().rev().find(|seat| seat.first <= shard)
    }

    /// Has something done by the server that has the shard of this number, which is there under another one.
    fn by<T>(&self, shard: usize, what: impl FnOnce(&dyn OwnShards, usize) -> T) -> Option<T> {
        let seat = self.seat_of(shard)?;
        let server = seat.server.get()?.upgrade()?;
        Some(what(&*server, shard - seat.first))
    }
}

impl Shards for Fleet {
    fn count(&self) -> usize {
        self.servers.iter().map(|seat| seat.count).sum()
    }

    fn ask(&self, shard: usize, drain: Drain) -> bool {
        // Whoever does not see a server here that begins has queued the lock before: the lock's queue is behind a mutex,
        // and the shards look there when they are joined.
        if self.seat_of(shard).is_some_and(|seat| seat.server.get().is_none()) {
            self.wake(drain.of_nothing().as_slice());
            return true;
        }
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

    struct Nobody;

    impl OwnShards for Nobody {
        fn ask(&self, _: usize, _: Drain) -> bool {
            false
        }

        fn wake(&self, _: usize) {}

        fn send_away(&self, _: (usize, Ticket), _: VolumeId, _: SlowWork) -> bool {
            false
        }
    }

    #[test]
    fn shards_of_all_servers_are_numbered_as_one() {
        let [owner, other] = Member::of([Some(3), Some(0)]);
        assert_eq!((owner.first_shard(), owner.shards(), owner.owns_volumes()), (0, 3, true));
        assert_eq!((other.first_shard(), other.shards(), other.owns_volumes()), (3, 1, false));
        assert_eq!(owner.fleet.count(), 4);
        assert!(owner.fleet.by(3, |_, _| ()).is_none(), "it has not begun");
        let server: Weak<Nobody> = Weak::new();
        owner.join(server.clone());
        other.join(server);
        assert!(!other.has_ended());
        assert!(owner.has_ended(), "it was the last one");
    }

    #[test]
    fn a_server_that_never_begins_is_not_waited_for() {
        let [owner, _] = Member::of([Some(1), Some(1)]);
        let server: Weak<Nobody> = Weak::new();
        owner.join(server);
        assert!(owner.has_ended(), "it was the only one");
    }
}
