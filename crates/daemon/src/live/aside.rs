//! What is asked of file systems beside the answers.
//!
//! A file system may hang: a server of NFS that is gone, a FUSE program that is stopped, a pool without its drives. Who asks
//! lunet what it counts must not hang with it, for there are only a few threads that answer. So a thread of its own looks,
//! one at a time, and who has waited long enough takes what was found last.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a file system may take at most; then what it said last stands.
const PATIENCE: Duration = Duration::from_millis(500);

/// An answer that may take long. Clones are the same one.
pub(super) struct Aside<T>(Arc<Shared<T>>);

struct Shared<T> {
    known: Mutex<Known<T>>,
    ended: Condvar,
}

struct Known<T> {
    last: Option<T>,
    /// When the look that is under way began.
    since: Option<Instant>,
}

impl<T> Default for Aside<T> {
    fn default() -> Self {
        let known = Mutex::new(Known { last: None, since: None });
        Self(Arc::new(Shared { known, ended: Condvar::new() }))
    }
}

impl<T> Clone for Aside<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Clone + Send + 'static> Aside<T> {
    /// Starts to look, unless that is under way.
    pub fn begin(&self, look: impl FnOnce() -> T + Send + 'static) {
        let mut known = self.0.known();
        if known.since.is_some() {
            return;
        }
        let shared = Arc::clone(&self.0);
        let work = move || {
            let found = look();
            let mut known = shared.known();
            (known.last, known.since) = (Some(found), None);
            drop(known);
            shared.ended.notify_all();
        };
        match lunet_os::thread::spawn("looks", work) {
            Ok(_) => known.since = Some(Instant::now()),
            Err(error) => tracing::debug!("cannot start a thread that looks at files: {error}"),
        }
    }

    /// What was found: by the look that is under way if it ends in time, else by the last that did.
    pub fn found(&self) -> Option<T> {
        let known = self.0.known();
        let left = known.since.map_or(PATIENCE, |since| PATIENCE.saturating_sub(since.elapsed()));
        let waits = |known: &mut Known<T>| known.since.is_some();
        let known = self.0.ended.wait_timeout_while(known, left, waits);
        known.unwrap_or_else(PoisonError::into_inner).0.last.clone()
    }
}

impl<T> Shared<T> {
    fn known(&self) -> MutexGuard<'_, Known<T>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn who_hangs_is_not_waited_for() {
        let (aside, (go, goes)) = (Aside::default(), mpsc::channel::<()>());
        aside.begin(|| 1);
        assert_eq!(aside.found(), Some(1));
        aside.begin(move || goes.recv().map_or(0, |()| 2));
        assert_eq!(aside.found(), Some(1), "what was found last stands");
        // None is started beside it.
        aside.begin(|| 3);
        assert_eq!(aside.found(), Some(1));
        go.send(()).expect("it still looks");
        while aside.0.known().since.is_some() {
            std::thread::yield_now();
        }
        assert_eq!(aside.found(), Some(2));
        assert_eq!(Aside::<u8>::default().found(), None, "nobody has looked");
    }
}
