//! The reservations of a volume, as all shards and all protocols see them.

mod keep;
mod store;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use lunet_os::sync::Mutex;
use lunet_reservations::{Event, Reservations};

pub use keep::{Request, Unchanged};
pub use store::{Store, StoredRegistration};

/// A protocol that tells its clients what they lose.
pub trait Listener: Send + Sync {
    /// Registrants have lost something, those of other protocols among them. This comes while the reservations are
    /// locked: whoever sees the change sees what was told of it.
    fn tell(&self, events: &[Event]);
}

/// The reservations of one volume, with a number that says whether there is anything new.
///
/// A command looks at that number only. It is written when something changes, so every core keeps it in its own
/// cache; whoever finds it changed takes the lock and looks what is new.
pub struct Shared {
    news: AtomicU64,
    state: Mutex<Reservations>,
    listeners: Vec<Arc<dyn Listener>>,
}

impl Default for Shared {
    /// Nobody has reserved anything, nothing is kept through power loss, and nobody is told anything.
    fn default() -> Self {
        Self::new(Reservations::new(false), Vec::new())
    }
}

impl Shared {
    /// Shares the reservations of one volume. Every protocol that serves it is told of losses.
    pub fn new(state: Reservations, listeners: Vec<Arc<dyn Listener>>) -> Self {
        Self { news: AtomicU64::new(1), state: Mutex::new(state), listeners }
    }

    /// The number of the latest change, never 0. What a change did is seen by whoever has read its number here and takes
    /// the lock then.
    #[inline]
    pub fn news(&self) -> u64 {
        self.news.load(Ordering::Acquire)
    }

    /// Something has changed that a protocol keeps beside the reservations, and that commands have to look at. It
    /// is to be called while the lock is held that those take who look.
    pub fn announce(&self) {
        self.news.fetch_add(1, Ordering::Release);
    }

    /// Looks at the reservations.
    pub fn look<T>(&self, what: impl FnOnce(&Reservations) -> T) -> T {
        what(&self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Does something with the reservations, tells every protocol who has lost what, and lets every shard know if that
    /// changed anything.
    pub fn change<T>(
        &self,
        what: impl FnOnce(&mut Reservations) -> (T, Vec<Event>),
    ) -> (T, Vec<Event>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.changes();
        let (result, events) = what(&mut state);
        if !events.is_empty() {
            self.listeners.iter().for_each(|listener| listener.tell(&events));
        }
        if state.changes() != before {
            self.announce();
        }
        (result, events)
    }
}
