//! The reservations of a volume, as all shards and all protocols see them.

mod hearing;
mod keep;
mod order;
mod store;

use std::any::Any;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use lunet_os::sync::Mutex;
use lunet_reservations::{Event, Registrant, Reservations};

pub use hearing::Hearing;
pub use keep::{Request, Unchanged};
pub use order::{Order, Wanted};
pub use store::{PASSING_FILE, Store, StoredRegistration};

/// A protocol that tells its clients what they lose.
pub trait Listener: Send + Sync {
    /// Registrants have lost something, those of other protocols among them. This comes while the reservations are
    /// locked: whoever sees the change sees what was told of it.
    fn tell(&self, events: &[Event]);

    /// Commands of these registrants are to be aborted, because of a request over another protocol: none of them is
    /// of the protocol that asks. `done` is dropped when those that this protocol knows have none any more.
    fn abort(&self, whose: &Arc<[Registrant]>, done: &Done) {
        let _ = (whose, done);
    }

    /// What the volume lets its clients do by some of their ways to it is another than before.
    fn paths_changed(&self) {}

    /// True if there is nobody any more to be told.
    fn has_ended(&self) -> bool {
        false
    }
}

/// Tells somebody that something is done, when the last of its clones is dropped.
pub type Done = Arc<dyn Any + Send + Sync>;

/// The reservations of one volume, with a number that says whether there is anything new.
///
/// A command looks at that number only. It is written when something changes, so every core keeps it in its own
/// cache; whoever finds it changed takes the lock and looks what is new.
pub struct Shared {
    news: AtomicU64,
    state: Mutex<Reservations>,
    listeners: Mutex<Vec<Arc<dyn Listener>>>,
    /// Held while a change is being kept: there is one at a time.
    keeps: Mutex<()>,
    /// How many changes are on their way to be kept.
    keeping: AtomicUsize,
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
        let (news, keeping) = (AtomicU64::new(1), AtomicUsize::new(0));
        let (state, listeners) = (Mutex::new(state), Mutex::new(listeners));
        Self { news, state, listeners, keeps: Mutex::new(()), keeping }
    }

    /// One more protocol serves the volume, and is told of losses.
    pub fn listen(&self, listener: Arc<dyn Listener>) {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        // A server whose start was undone has left its own.
        listeners.retain(|listener| !listener.has_ended());
        listeners.push(listener);
    }

    /// Has the other protocols abort the commands of registrants of theirs that were preempted. `done` is dropped then.
    pub fn abort(&self, whose: &Arc<[Registrant]>, done: Done) {
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.iter().for_each(|listener| listener.abort(whose, &done));
    }

    /// Tells the protocols that the volume lets its clients do something else by some of their ways to it.
    pub fn paths_changed(&self) {
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.iter().for_each(|listener| listener.paths_changed());
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
            let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
            listeners.iter().for_each(|listener| listener.tell(&events));
        }
        if state.changes() != before {
            self.announce();
        }
        (result, events)
    }
}
