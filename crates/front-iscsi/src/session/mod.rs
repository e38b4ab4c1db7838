//! iSCSI on a shard: how sessions begin, work and end.

mod admission;
mod events;
mod front;
mod group;
mod layout;
mod management;
mod preempt;
mod refusal;
mod report;
mod view;

use std::sync::{Arc, OnceLock, PoisonError};

use lunet_iscsi::target::{Connection, Cx, Options};
use lunet_os::sync::Mutex;
use lunet_ring::Buf;
use lunet_volume::reserve::Hearing;
use lunet_volume::{Orders, SlowWork};

#[cfg(test)]
pub use self::front::over_rdma;
pub use self::refusal::refusals;
pub use self::report::{Protocol, RdmaPath, SessionInfo, sanitations};
use crate::connection::{Conn, IscsiConn, Pdus, PendingClear, Session, SessionLun};
use crate::engine::Engine;
use crate::ports::Ports;
use crate::registry::Registry;
use crate::reservations;
use crate::site::Surroundings;
use crate::tokens::Tokens;
use crate::world::World;
use lunet_server::places::Places;
use lunet_server::refusals::Refusals;
use lunet_server::{core, mail, shard};

/// A shard that serves iSCSI.
pub type Shard = shard::Shard<Engine>;

/// A server that serves iSCSI, as its shards see it.
pub type Core = core::Core<Engine>;

/// The way to a shard that serves iSCSI.
pub type Mailbox = mail::Mailbox<Engine>;

/// What iSCSI on all shards shares.
pub struct Shared {
    /// What connections offer.
    pub options: Options,
    /// The numbers of target ports.
    pub ports: Mutex<Ports>,
    /// Who is logged in.
    pub registry: Registry,
    /// Discovery sessions.
    pub discovery: Places,
    /// Logins that were refused lately.
    refusals: Refusals,
    /// ROD tokens that are good.
    pub tokens: Tokens,
    /// Which volumes tell of commands to abort.
    hearing: Mutex<Hearing>,
    keeper: OnceLock<Orders>,
}

impl Shared {
    /// What shards share that serve nobody yet. At most so many sessions of targets, and for discovery.
    fn new(options: Options, (most, discovery): (usize, usize), ports: Ports) -> Self {
        Self {
            options,
            ports: Mutex::new(ports),
            registry: Registry::new(most, discovery),
            discovery: Places::new(discovery),
            refusals: Refusals::default(),
            tokens: Tokens::default(),
            hearing: Mutex::default(),
            keeper: OnceLock::new(),
        }
    }

    /// Makes the keeper known, and whose commands end that another protocol preempts.
    fn begin(&self, orders: Orders, core: &Arc<Core>) {
        let fresh = self.keeper.set(orders).is_ok();
        debug_assert!(fresh, "there is one keeper");
        let mut hearing = self.hearing.lock().unwrap_or_else(PoisonError::into_inner);
        hearing.begin(reservations::ears(Arc::downgrade(core)));
    }

    /// Hears of the volumes of this world.
    fn hear(&self, world: &World) {
        let volumes = world.volumes().map(|(slot, volume)| (slot, &volume.reservations));
        self.hearing.lock().unwrap_or_else(PoisonError::into_inner).hear(volumes);
    }

    /// Hands the keeper work. False if it has too much to do.
    pub fn order(&self, work: SlowWork) -> bool {
        self.keeper.get().is_some_and(|orders| orders.give(work))
    }
}

/// Lets the protocol of a connection work in the surroundings of its shard; what it asks for is in its `events`.
pub fn drive(
    conn: &mut Conn,
    engine: &Engine,
    work: impl FnOnce(&mut Connection<Buf>, &mut Cx<'_, Surroundings<'_>, Pdus<'_>>),
) {
    let IscsiConn { proto, events, session, .. } = &mut conn.front;
    let mut site = Surroundings {
        core: &engine.core,
        world: &engine.world,
        groups: &engine.groups,
        arena: engine.exec.storage.ring.arena(),
        allowance: engine.exec.storage.allowance(&conn.account),
        account: &conn.account,
        reserve: conn.reserve.as_ref(),
        now: engine.exec.storage.now,
        portal: conn.portal,
        peer: conn.peer.ip(),
        initiator: session.as_ref().map(|session| session.nexus.initiator.as_str()),
        local: conn.local,
    };
    let now = engine.exec.storage.now;
    work(proto, &mut Cx { now, site: &mut site, tx: &mut Pdus(&mut conn.out), events });
}
