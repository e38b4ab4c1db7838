//! NVMe on a shard: how controllers and queues begin, work and end.

mod admin;
mod authenticate;
mod connect;
mod events;
mod front;
mod group;
mod identify;
mod layout;
mod messages;
mod report;
mod secure;
mod starve;
mod through;
mod view;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, Weak};

use lunet_nvme::controller::{self, Connection, Cx};
use lunet_nvme::fabrics::Transport;
use lunet_os::sync::Mutex;
use lunet_ring::Buf;
use lunet_server::places::Places;
use lunet_server::refusals::Refusals;
use lunet_server::{core, mail, shard};
use lunet_volume::reserve::Hearing;
use lunet_volume::{Face, Orders, SlowWork};

use crate::config::{Options, RDMA_CAPSULE_DATA};
use crate::connection::{Conn, NvmeConn, Pdus, Site};
use crate::engine::Engine;
use crate::generated::Generated;
use crate::notices;
use crate::registry::Registry;

/// A shard that serves NVMe.
pub type Shard<Fc> = shard::Shard<Engine<Fc>>;

/// A server that serves NVMe, as its shards see it.
pub type Core<Fc> = core::Core<Engine<Fc>>;

/// The way to a shard that serves NVMe.
pub type Mailbox<Fc> = mail::Mailbox<Engine<Fc>>;

/// What NVMe on all shards shares.
pub struct Shared {
    /// What is offered to hosts.
    pub options: Options,
    /// The controllers.
    pub registry: Registry,
    /// Discovery controllers.
    pub discovery: Places,
    /// Keys of TLS that authentications have made.
    pub generated: Generated,
    /// Hosts that were refused lately.
    pub refusals: Refusals,
    /// Paths have changed and no shard has looked since: many volumes change at once, and one look is for all.
    paths_changed: AtomicBool,
    /// Which volumes tell of lost reservations.
    hearing: Mutex<Hearing>,
    keeper: OnceLock<Orders>,
}

impl Shared {
    /// What shards share that serve nobody yet, with so many queues at the most.
    fn new(options: Options, queues: usize) -> Self {
        Self {
            registry: Registry::new(options.max_controllers, queues),
            discovery: Places::new(options.max_discovery),
            generated: Generated::default(),
            refusals: Refusals::default(),
            options,
            paths_changed: AtomicBool::new(false),
            hearing: Mutex::default(),
            keeper: OnceLock::new(),
        }
    }

    /// What connections offer.
    fn offer(&self, transport: Transport) -> controller::Options {
        controller::Options {
            capsule_data: match transport {
                Transport::Tcp => self.options.capsule_data,
                Transport::Rdma => RDMA_CAPSULE_DATA,
            },
            connect_timeout: self.options.connect_timeout,
            data_timeout: self.options.data_timeout,
            ..controller::Options::default()
        }
    }

    /// Makes the thread that keeps reservations known, and whom lost ones are told to.
    fn begin<Fc: Face>(&self, orders: Orders, core: &Arc<Core<Fc>>) {
        let fresh = self.keeper.set(orders).is_ok();
        debug_assert!(fresh, "there is one keeper");
        let mut hearing = self.hearing.lock().unwrap_or_else(PoisonError::into_inner);
        hearing.begin(notices::ears(Arc::downgrade(core)));
    }

    /// A path has changed. True if the shards are to be told: not if none has looked since they were told.
    pub fn paths_changed(&self) -> bool {
        !self.paths_changed.swap(true, Ordering::AcqRel)
    }

    /// A shard looks at its paths now: what changes from here on is to be told anew.
    fn looks_at_paths(&self) {
        self.paths_changed.swap(false, Ordering::AcqRel);
    }

    /// Hands the keeper work. False if it has too much to do.
    pub fn order(&self, work: SlowWork) -> bool {
        self.keeper.get().is_some_and(|orders| orders.give(work))
    }
}

/// A server that may have ended.
pub type WeakCore<Fc> = Weak<Core<Fc>>;

/// Lets the protocol of a connection work in the surroundings of its shard; what it asks for is in its `events`.
fn drive<Fc: Face>(
    conn: &mut Conn,
    engine: &Engine<Fc>,
    work: impl FnOnce(&mut Connection<Buf>, &mut Cx<'_, Site<'_>, Pdus<'_>>),
) {
    let NvmeConn { proto, events, .. } = &mut conn.front;
    let storage = &engine.exec.storage;
    let mut site = Site {
        arena: storage.ring.arena(),
        allowance: storage.allowance(&conn.account),
        account: &conn.account,
        reserve: conn.reserve.as_ref(),
    };
    let now = storage.now;
    work(proto, &mut Cx { now, site: &mut site, tx: &mut Pdus(&mut conn.out), events });
}
