//! Open images are counted, so that a process can wait until the last one is closed: a lock that was not let go of is in the
//! way of the next server for half a minute.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

static OPEN: Mutex<usize> = Mutex::new(0);
static CLOSED: Condvar = Condvar::new();

/// Counts an open image as long as it lives.
#[derive(Debug)]
pub(crate) struct Counted;

impl Counted {
    pub fn new() -> Self {
        *OPEN.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        *OPEN.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        CLOSED.notify_all();
    }
}

/// Waits until every image is closed and its lock let go of, at most for `limit`. False if the time is over: the cluster does
/// not answer. To be called when nobody uses them any more.
pub fn wait_until_closed(limit: Duration) -> bool {
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = CLOSED.wait_timeout_while(open, limit, |open| *open > 0);
    !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
}
