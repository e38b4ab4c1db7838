//! What else the thread of an event loop waits for.

use crate::WatchId;

/// A source of events that are seen in memory, and told by a [watched](crate::Ring::watch) descriptor only
/// after that was asked for: the completion queue of a device, for one.
///
/// To ask for a notice, to read it and to watch the descriptor again are system calls. As long as there is
/// always something to do, none of them is needed.
pub trait Beside {
    /// Looks. True if something has come: then the loop does not sleep. Asked over and over while the loop
    /// polls busily.
    fn look(&mut self) -> bool;

    /// The loop is about to sleep: looks, asks for a notice if there is nothing, and looks once more for
    /// what came just before. What it hands to `watch` is [watched again](crate::Ring::watch_again). True
    /// if something has come.
    fn rest(&mut self, watch: &mut dyn FnMut(WatchId)) -> bool;
}

/// Nothing else.
impl Beside for () {
    fn look(&mut self) -> bool {
        false
    }

    fn rest(&mut self, _: &mut dyn FnMut(WatchId)) -> bool {
        false
    }
}
