//! What all shards share: set up at start and not changed afterwards, apart from the world, the registry,
//! and a few counters that only logins touch.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use lunet_iscsi::target::Options;
use lunet_scsi::alua::PortGroups;
use lunet_volume::{Drain, Offload, Shards, Waiter};

use crate::config::{Config, Limits, Portal};
use crate::interfaces;
use crate::keeper::Order;
use crate::mail::{Mail, Mailbox};
use crate::places::Places;
use crate::portals::Portals;
use crate::ports::{Ports, groups};
use crate::rationed::Rations;
use crate::rdma::Status;
use crate::registry::{Place, Registry};
use crate::throttle::Throttle;
use crate::tokens::Tokens;
use crate::world::{Ways, World};

/// The server, as its shards see it.
pub struct Core {
    /// When it started: the zero of every time in the server.
    pub started: Instant,
    /// The portals of the start, in the first slots: those that are served over iSER, as long as they are
    /// there. All that there are now are in the world.
    pub first_portals: Vec<Portal>,
    /// The numbers of target ports.
    pub ports: Mutex<Ports>,
    /// What connections offer.
    pub options: Options,
    /// Bounds.
    pub limits: Limits,
    /// Who is logged in.
    pub registry: Registry,
    /// Failed logins.
    pub throttle: Throttle,
    /// Lines of the log that strangers can cause.
    pub rations: Rations,
    /// How iSER stands at the portals.
    pub iser: Status,
    /// Connections that have not finished their login.
    pub logins: Places,
    /// Discovery sessions.
    pub discovery: Places,
    /// Connections of each shard.
    pub loads: Vec<AtomicUsize>,
    /// Threads for what may block.
    pub offload: Offload,
    /// ROD tokens that are good.
    pub tokens: Tokens,
    /// One change of the world at a time.
    pub changing: Mutex<()>,
    world: Mutex<Arc<World>>,
    mailboxes: OnceLock<Vec<Mailbox>>,
    keeper: OnceLock<SyncSender<Order>>,
    serial: AtomicU64,
}

impl Core {
    /// The shared part of a server with this many shards.
    ///
    /// # Errors
    /// A plain sentence, if the reservations of a volume were kept and cannot be taken up.
    pub fn new(config: Config, portals: Vec<Portal>, shards: usize) -> Result<Self, String> {
        let throttle = Throttle::default();
        throttle.set_networks(interfaces::networks());
        let mut ports = Ports::new(config.port_numbers)?;
        let configured = config.portals.iter().map(|portal| portal.address);
        let all = Arc::new(Portals::new(portals.iter().cloned().zip(configured)));
        let groups = groups(&PortGroups::default(), &all, &config.layout.groups)?;
        ports.number(&config.layout.targets, &all)?;
        let ways = Ways { portals: all, groups };
        let (world, effects) = World::default().next(config.layout, ways, &ports)?;
        effects.publish();
        Ok(Self {
            started: Instant::now(),
            iser: Status::new(&portals),
            world: Mutex::new(Arc::new(world)),
            first_portals: portals,
            ports: Mutex::new(ports),
            options: config.iscsi,
            registry: Registry::new(config.limits.max_sessions, config.limits.max_discovery),
            logins: Places::new(config.limits.max_logins),
            discovery: Places::new(config.limits.max_discovery),
            limits: config.limits,
            throttle,
            rations: Rations::default(),
            loads: (0..shards).map(|_| AtomicUsize::new(0)).collect(),
            offload: Offload::default(),
            tokens: Tokens::default(),
            changing: Mutex::new(()),
            mailboxes: OnceLock::new(),
            keeper: OnceLock::new(),
            serial: AtomicU64::new(1),
        })
    }

    /// What is served now. Shards do not ask: they have theirs, and are told of the next one.
    pub fn world(&self) -> Arc<World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes this the world that is served.
    pub fn set_world(&self, world: Arc<World>) {
        *self.world.lock().unwrap_or_else(PoisonError::into_inner) = world;
    }

    /// Makes the shards' mailboxes known, once all of them stand.
    pub fn set_mailboxes(&self, mailboxes: Vec<Mailbox>) {
        let fresh = self.mailboxes.set(mailboxes).is_ok();
        debug_assert!(fresh, "mailboxes are set once");
    }

    /// The shards' mailboxes; none before the server has started.
    pub fn mailboxes(&self) -> &[Mailbox] {
        self.mailboxes.get().map_or(&[], Vec::as_slice)
    }

    /// Makes the way to the keeper known, once it stands.
    pub fn set_keeper(&self, orders: SyncSender<Order>) {
        let fresh = self.keeper.set(orders).is_ok();
        debug_assert!(fresh, "there is one keeper");
    }

    /// Tells the keeper. False if it has too much to do.
    pub fn order(&self, order: Order) -> bool {
        self.keeper.get().is_some_and(|orders| orders.try_send(order).is_ok())
    }

    /// A number that no connection or command had before.
    pub fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    /// A client has connected and begins to log in. The connection that has lost its place for it has to end.
    #[must_use]
    pub fn login_begins(&self, client: IpAddr, place: Place) -> Option<Place> {
        self.logins.enter(client, place)
    }

    /// A login that has begun is over.
    pub fn login_ends(&self, client: IpAddr, connection: u64) {
        self.logins.leave(client, connection);
    }

    /// The shard with the fewest connections; counts one more for it.
    pub fn least_loaded(&self) -> usize {
        let loads = self.loads.iter().map(|load| load.load(Ordering::Relaxed)).enumerate();
        let shard = loads.min_by_key(|(_, load)| *load).map_or(0, |(shard, _)| shard);
        self.loads[shard].fetch_add(1, Ordering::Relaxed);
        shard
    }
}

impl Shards for Core {
    fn count(&self) -> usize {
        self.mailboxes().len()
    }

    fn ask(&self, shard: usize, drain: Drain) -> bool {
        self.mailboxes()[shard].send(Mail::Drain(drain)).is_ok()
    }

    fn wake(&self, waiters: &[Waiter]) {
        for waiter in waiters {
            match waiter {
                Waiter::Shard(shard) => drop(self.mailboxes()[*shard].send(Mail::Turn)),
                Waiter::Thread(thread) => drop(thread.try_send(())),
            }
        }
    }
}
