//! What the world, the server and its hosts share.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use lunet_os::simulated;
use lunet_os::sync::mpsc::SyncSender;

use crate::cluster::Cluster;
use crate::copies::{Copies, Extent};
use crate::model::{Model, Value};
use crate::server::Asking;

/// The target that every host knows.
pub const TARGET: &str = "iqn.2026-11.local.lunet:sim";

/// How many lines of the story are kept.
const LINES: usize = 4000;

/// What is known of everything.
#[derive(Debug, Default)]
pub struct Known {
    /// Where the server listens, while it does.
    pub address: Option<SocketAddr>,
    /// Where it listens for NVMe, while it does.
    pub nvme_address: Option<SocketAddr>,
    /// The server's process, while it serves; 0 while it does not.
    pub process: u32,
    /// Where it is asked, by each administrator. To clone a sender itself gives a turn away.
    pub doors: Vec<Arc<SyncSender<Asking>>>,
    /// An administrator has ended sessions of hosts.
    pub sessions_end: bool,
    /// What may be read, volume by volume.
    pub models: Vec<Model>,
    /// The NAA names of volumes that somebody has asked for.
    pub names: BTreeMap<usize, [u8; 16]>,
    /// The NGUIDs of namespaces that somebody has asked for.
    pub nguids: BTreeMap<usize, [u8; 16]>,
    /// What was found wrong first.
    pub wrong: Option<String>,
    /// Hosts that have not finished.
    pub busy: usize,
    /// Operations that were answered.
    pub operations: u64,
    /// Hosts come to their end.
    pub over: bool,
    /// What the nodes of a cluster know.
    pub cluster: Cluster,
    /// When the server was killed last.
    pub last_kill: Duration,
    copies: Copies,
    story: Vec<String>,
}

impl Known {
    /// The server serves no more. Where it was asked.
    pub fn closed(&mut self) -> Vec<Arc<SyncSender<Asking>>> {
        (self.address, self.nvme_address, self.process) = (None, None, 0);
        std::mem::take(&mut self.doors)
    }

    /// A copy is sent: its name at the destination.
    pub fn begin_copy(&mut self, extents: (Extent, Extent), sectors: u64) -> Value {
        self.copies.begin(&mut self.models, extents, sectors, now())
    }

    /// A copy of several ranges to one is sent: its name at the destination.
    pub fn begin_copies(&mut self, sources: &[(Extent, u64)], to: Extent) -> Value {
        self.copies.begin_many(&mut self.models, sources, to, now())
    }

    /// Whether a write of this name is a copy that is under way.
    pub fn is_copy(&self, name: Value) -> bool {
        self.copies.is(name)
    }

    /// Notes what copies may have read until now.
    pub fn look_at_copies(&mut self) {
        self.copies.look(&mut self.models);
    }

    /// A copy reads no more, if this was one.
    pub fn end_copy(&mut self, name: Value) {
        self.copies.end(&mut self.models, name);
    }

    /// The server was killed: what it had not done it does no more.
    pub fn killed(&mut self) {
        self.copies.killed(&mut self.models);
        self.last_kill = now();
        self.cluster.restarted();
        self.models.iter_mut().for_each(|model| model.killed(now()));
    }
}

thread_local! {
    /// Who has looked last. All threads of a world are on one of the operating system's.
    static HOLDER: Cell<Option<&'static Location<'static>>> = const { Cell::new(None) };
}

/// The way to it.
#[derive(Clone, Debug, Default)]
pub struct Site(Arc<Mutex<Known>>);

impl Site {
    /// Looks at it, or changes it. Nobody gives a turn away meanwhile: the world would wait for itself for ever.
    ///
    /// # Panics
    /// If somebody does.
    #[track_caller]
    pub fn known(&self) -> MutexGuard<'_, Known> {
        let known = match self.0.try_lock() {
            Ok(known) => known,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let holder = HOLDER.get().map_or_else(String::new, ToString::to_string);
                panic!("a turn was given away by who has looked at the site in {holder}");
            }
        };
        HOLDER.set(Some(Location::caller()));
        known
    }

    /// A line of the story.
    pub fn tell(&self, who: &str, what: &str) {
        let line = format!("{:>12.6} s  {who}: {what}", now().as_secs_f64());
        let story = &mut self.known().story;
        if story.len() < LINES {
            story.push(line);
        }
    }

    /// Something is wrong.
    pub fn wrong(&self, who: &str, what: &str) {
        self.tell(who, &format!("WRONG: {what}"));
        self.known().wrong.get_or_insert(format!("{who}: {what}"));
    }

    /// The story so far.
    pub fn story(&self) -> Vec<String> {
        self.known().story.clone()
    }
}

/// The time of the world.
pub fn now() -> Duration {
    simulated::elapsed().unwrap_or_default()
}
