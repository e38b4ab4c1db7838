//! What all shards share: set up at start and not changed afterwards, apart from the world and a few counters that
//! only logins touch.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use lunet_os::sync::{Mutex, MutexGuard};
use lunet_volume::{Drain, Offload, SlowWork, Ticket, VolumeId};
use socket2::SockRef;

use crate::fleet::{Member, OwnShards};
use crate::front::{Front, FrontError};
use crate::hosting::{Limits, Portal};
use crate::interfaces;
use crate::mail::{Mail, Mailbox, Owed};
use crate::places::{ConnRef, Places};
use crate::portals::Portals;
use crate::rationed::Rations;
use crate::rdma::Status;
use crate::served::World;
use crate::throttle::Throttle;

/// After this time without an answer a shard gets no new connections.
const LATE: Duration = Duration::from_millis(500);

/// After this time without an answer a shard is reported.
pub(crate) const SILENT: Duration = Duration::from_secs(2);

/// The server, as its shards see it.
pub struct Core<F: Front> {
    /// When it started: the zero of every time in the server.
    pub started: Instant,
    /// The portals of the start, in the first slots: those that are served over RDMA, as long as they are
    /// there. All that there are now are in the world.
    pub first_portals: Vec<Portal>,
    /// Its place among the servers that serve the same volumes.
    pub member: Member,
    /// Bounds.
    pub(crate) limits: Limits,
    /// How long a client may take nothing of what is sent to it; zero: for ever.
    pub(crate) data_timeout: Duration,
    /// Failed logins.
    pub throttle: Throttle<F::Aim>,
    /// Lines of the log that strangers can cause.
    pub rations: Rations,
    /// How the portals are served over RDMA.
    pub rdma: Status,
    /// Connections that have not finished their login.
    pub logins: Places,
    /// Connections of each shard.
    pub loads: Vec<AtomicUsize>,
    /// Threads for what may block.
    pub offload: Offload,
    /// Copies of the listeners of the shard that accepts, by the slots of their portals: for when it does not answer.
    listeners: Mutex<Vec<(usize, TcpListener)>>,
    /// One change of the world at a time.
    pub(crate) changing: Mutex<()>,
    /// What the protocol shares.
    pub front: F::Shared,
    world: Mutex<Arc<World<F>>>,
    mailboxes: OnceLock<Vec<Mailbox<F>>>,
    serial: AtomicU64,
    serving: AtomicBool,
}

impl<F: Front> Core<F> {
    /// The shared part of a server. The portals have their real port numbers.
    ///
    /// # Errors
    /// The protocol cannot serve what it is to serve.
    pub fn new(
        config: F::Config,
        portals: Vec<Portal>,
        member: Member,
    ) -> Result<Arc<Self>, FrontError> {
        let throttle = Throttle::default();
        throttle.set_networks(interfaces::networks());
        let hosting = F::hosting(&config);
        let configured = hosting.portals.iter().map(|portal| portal.address);
        let all = Arc::new(Portals::new(portals.iter().cloned().zip(configured)));
        let (limits, data_timeout) = (hosting.limits.clone(), hosting.data_timeout);
        let (front, world) = F::open(config, all)?;
        Ok(Arc::new(Self {
            started: lunet_os::time::now(),
            rdma: Status::new(&portals, F::NAMES).with_invalidation(limits.send_with_invalidate),
            world: Mutex::new(Arc::new(world)),
            first_portals: portals,
            logins: Places::new(limits.max_logins),
            limits,
            data_timeout,
            throttle,
            rations: Rations::default(),
            loads: (0..member.shards()).map(|_| AtomicUsize::new(0)).collect(),
            member,
            offload: Offload::default(),
            listeners: Mutex::default(),
            changing: Mutex::new(()),
            front,
            mailboxes: OnceLock::new(),
            serial: AtomicU64::new(1),
            serving: AtomicBool::new(false),
        }))
    }

    /// The server begins: its shards are asked when somebody wants a range for itself. Their mailboxes are known.
    pub(crate) fn join(self: &Arc<Self>) {
        let own: Weak<Self> = Arc::downgrade(self);
        self.member.join(own);
    }

    /// The shards are told to begin: from now on they answer.
    pub(crate) fn begin(&self) {
        self.serving.store(true, Ordering::Release);
    }

    /// What is served now. Shards do not ask: they have theirs, and are told of the next one.
    pub(crate) fn world(&self) -> Arc<World<F>> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes this the world that is served.
    pub(crate) fn set_world(&self, world: Arc<World<F>>) {
        *self.world.lock().unwrap_or_else(PoisonError::into_inner) = world;
    }

    /// Makes the shards' mailboxes known, once all of them stand.
    pub fn set_mailboxes(&self, mailboxes: Vec<Mailbox<F>>) {
        let fresh = self.mailboxes.set(mailboxes).is_ok();
        debug_assert!(fresh, "mailboxes are set once");
    }

    /// The shards' mailboxes; none before the server has started.
    pub fn mailboxes(&self) -> &[Mailbox<F>] {
        self.mailboxes.get().map_or(&[], Vec::as_slice)
    }

    /// A number that no connection or command had before.
    pub fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    /// A client has connected and begins to log in. The connection that has lost its place for it has to end.
    #[must_use]
    pub fn login_begins(&self, client: IpAddr, conn_ref: ConnRef) -> Option<ConnRef> {
        self.logins.enter(client, conn_ref)
    }

    /// A login that has begun is over.
    pub fn login_ends(&self, client: IpAddr, connection: u64) {
        self.logins.leave(client, connection);
    }

    /// The shard for a connection whose packets arrive on this processor, if that is known; counts one more for it.
    pub fn choose_shard(&self, arrives: Option<usize>) -> usize {
        let loads = self.loads.iter().map(|load| load.load(Ordering::Relaxed)).enumerate();
        let shards = loads.map(|(shard, connections)| {
            let near = arrives.is_some_and(|cpu| self.limits.processors.of(shard) == [cpu]);
            Candidate { shard, late: self.is_late(shard), near, connections }
        });
        let shard = choose(shards);
        self.loads[shard].fetch_add(1, Ordering::Relaxed);
        shard
    }
}

/// A shard that could have a new connection.
#[derive(Clone, Copy)]
struct Candidate {
    shard: usize,
    /// It has not answered for a while.
    late: bool,
    /// It runs on the processor that the connection's packets arrive on.
    near: bool,
    connections: usize,
}

/// The shard with the fewest connections of those that answer, or the one that is near, if that has at most twice as many and one
/// more. So the queues of a card may be uneven, and a queue that has all packets leaves other shards idle only where there are few
/// connections.
fn choose(shards: impl Iterator<Item = Candidate> + Clone) -> usize {
    let rank = |one: &Candidate| (one.late, one.connections);
    let Some(fewest) = shards.clone().min_by_key(rank) else { return 0 };
    let most = fewest.connections.saturating_mul(2).saturating_add(1);
    let near = shards.filter(|one| one.near && !one.late && one.connections <= most);
    near.min_by_key(rank).unwrap_or(fewest).shard
}

impl<F: Front> Core<F> {
    /// True for a shard that has been woken and has not looked for a while: it gets no new connections.
    pub(crate) fn is_late(&self, shard: usize) -> bool {
        self.mailboxes().get(shard).is_some_and(|mailbox| mailbox.silence() >= LATE)
    }

    /// The shards have begun.
    pub(crate) fn is_serving(&self) -> bool {
        self.serving.load(Ordering::Acquire)
    }

    /// The processor that the packets of a connection arrive on, if that is of any use.
    pub(crate) fn arrives(&self, socket: &impl AsFd) -> Option<usize> {
        let wanted = self.limits.processors.are_apart();
        wanted.then(|| SockRef::from(socket).cpu_affinity().ok()).flatten()
    }

    /// Copies of the listeners once more, to be used without the lock.
    pub(crate) fn copies_of_listeners(&self) -> Vec<(usize, TcpListener)> {
        let all = self.listeners();
        all.iter().filter_map(|(portal, one)| Some((*portal, one.try_clone().ok()?))).collect()
    }

    /// The copies of listeners.
    pub(crate) fn listeners(&self) -> MutexGuard<'_, Vec<(usize, TcpListener)>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shards that have not answered for long, by their number on the server, and for how long.
    pub(crate) fn silent(&self) -> Vec<(usize, Duration)> {
        let all = self.mailboxes().iter().map(Mailbox::silence).enumerate();
        all.filter(|(_, silence)| *silence >= SILENT).collect()
    }

    /// Finds a shard for a connection, on a thread that is none. It is lost if the mailbox of that is full.
    pub(crate) fn place(self: &Arc<Self>, portal: usize, socket: OwnedFd, peer: SocketAddr) {
        let (entry, victim) = crate::places::Entry::new(self, peer.ip(), self.arrives(&socket));
        if let Some(ConnRef { shard, connection }) = victim {
            self.mailboxes()[shard].deliver(Owed::Evict { connection });
        }
        let shard = entry.shard();
        let mail = Mail::Connection { entry, socket, peer, portal };
        if let Err(why) = self.mailboxes()[shard].send(mail) {
            tracing::debug!(%peer, ?why, "no event loop takes a connection in");
        }
    }
}

impl<F: Front> OwnShards for Core<F> {
    fn ask(&self, shard: usize, drain: Drain) -> bool {
        self.mailboxes().get(shard).is_some_and(|to| to.send(Mail::Drain(drain)).is_ok())
    }

    fn wake(&self, shard: usize) {
        // Whoever waits looks by itself as well.
        let _ = self.mailboxes().get(shard).map(|to| to.send(Mail::Turn));
    }

    fn send_away(
        &self,
        (shard, ticket): (usize, Ticket),
        volume: VolumeId,
        work: SlowWork,
    ) -> bool {
        let mailbox = self.mailboxes()[shard].clone();
        let work = move || {
            work();
            mailbox.deliver(Owed::Returned { ticket });
        };
        self.offload.give(Some(volume), Box::new(work))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shards with so many connections each, of which those named are near or late.
    fn chosen(connections: &[usize], near: &[usize], late: &[usize]) -> usize {
        choose(connections.iter().enumerate().map(|(shard, connections)| Candidate {
            shard,
            late: late.contains(&shard),
            near: near.contains(&shard),
            connections: *connections,
        }))
    }

    #[test]
    fn a_connection_goes_where_its_packets_arrive_while_that_is_fair() {
        assert_eq!(chosen(&[2, 1, 3], &[], &[]), 1, "nobody knows where they arrive");
        assert_eq!(chosen(&[2, 1, 3], &[2], &[]), 2);
        assert_eq!(chosen(&[3, 1, 1], &[0], &[]), 0, "at most twice as many and one more");
        assert_eq!(chosen(&[4, 1, 1], &[0], &[]), 1);
        assert_eq!(chosen(&[1, 0], &[0], &[]), 0);
        assert_eq!(chosen(&[2, 0], &[0], &[]), 1);
        assert_eq!(chosen(&[4, 3, 1, 2], &[0, 1], &[]), 1, "of two on one processor");
        assert_eq!(chosen(&[0, 1, 1], &[0], &[0]), 1, "one that does not answer gets none");
        assert_eq!(chosen(&[7, 9], &[], &[0, 1]), 0, "if none answers, as ever");
    }

    #[test]
    fn a_shard_runs_where_it_is_to_run() {
        use crate::hosting::Processors;
        let each = Processors::Each(vec![4, 6]);
        assert_eq!([0, 1, 2].map(|shard| each.of(shard)), [[4].as_slice(), &[6], &[4]]);
        assert_eq!(Processors::Among(vec![4, 6]).of(1), [4, 6]);
        assert!(Processors::Any.of(0).is_empty() && Processors::Each(Vec::new()).of(3).is_empty());
    }
}
