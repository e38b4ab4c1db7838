//! Changes that are on their way to be kept: who waits for one, and what may not overtake it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Shared;

/// A change that is on its way to be kept, for whoever carries it out: until it is dropped, and what is kept is what is in
/// force again, [`Shared::is_keeping`].
pub struct Order {
    shared: Arc<Shared>,
    wanted: Arc<AtomicBool>,
}

/// The same for whoever has asked for it. Once this is dropped the change does not take effect any more: whoever has aborted a
/// command does not see it take effect later, over what was answered meanwhile.
pub struct Wanted {
    shared: Arc<Shared>,
    wanted: Arc<AtomicBool>,
}

impl Shared {
    /// True while a change is on its way to be kept. Any other one has to go the same way then, behind it: until the file is
    /// written and the change made, a power loss would leave the one without the other.
    pub fn is_keeping(&self) -> bool {
        self.keeping.load(Ordering::Acquire) > 0
    }

    /// A change goes on its way to be kept.
    pub fn order(self: &Arc<Self>) -> (Order, Wanted) {
        self.keeping.fetch_add(1, Ordering::AcqRel);
        let wanted = Arc::new(AtomicBool::new(true));
        let order = Order { shared: self.clone(), wanted: wanted.clone() };
        (order, Wanted { shared: self.clone(), wanted })
    }
}

impl Order {
    /// True while somebody waits for it. It stays so as long as the reservations are locked.
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }
}

impl Drop for Order {
    fn drop(&mut self) {
        self.shared.keeping.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        // Under the lock under which it takes effect: it has done so before, or does not.
        self.shared.look(|_| self.wanted.store(false, Ordering::Release));
    }
}
