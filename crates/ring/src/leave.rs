//! Letting go of what may take long to let go of: closing a file writes back what a network file system has
//! not sent yet, and unmapping a large memory frees its pages one by one. No event loop waits for that.

use std::ops::Deref;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// Something that is dropped on the helper thread.
type Leaving = Box<dyn Send>;

/// What waits for the helper thread. As much as was open, so there is no more of it than of open files and
/// volumes.
#[derive(Default)]
struct Queue {
    leaving: Mutex<Vec<Leaving>>,
    news: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Vec<Leaving>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut leaving = self.lock();
        loop {
            let batch = std::mem::take(&mut *leaving);
            if batch.is_empty() {
                leaving = self.news.wait(leaving).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            drop(leaving);
            drop(batch);
            leaving = self.lock();
        }
    }
}

/// The queue of the helper thread, which starts with the first use; `None` if it cannot be started.
fn queue() -> Option<&'static Queue> {
    static QUEUE: OnceLock<Option<&'static Queue>> = OnceLock::new();
    *QUEUE.get_or_init(|| {
        let queue: &'static Queue = Box::leak(Box::default());
        let thread = std::thread::Builder::new().name("lunet-close".into());
        // Never joined: it may hang in the storage below, and holds nothing that must be stable.
        let work = || {
            lunet_os::cpus::roam();
            queue.work();
        };
        thread.spawn(work).is_ok().then_some(queue)
    })
}

/// Drops something on a thread of its own, soon. Does not block.
pub fn leave<T: Send + 'static>(it: T) {
    #[cfg(feature = "simulated")]
    if lunet_os::simulated::is_here() {
        return drop(it);
    }
    let Some(queue) = queue() else { return drop(it) };
    queue.lock().push(Box::new(it));
    queue.news.notify_one();
}

/// Something that is dropped on the helper thread, wherever its owner is. If every owner of an `Arc` has it in
/// one of these, what is shared ends there, whoever was last.
#[derive(Debug)]
pub struct DropElsewhere<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> DropElsewhere<T> {
    /// Takes it over.
    pub const fn new(it: T) -> Self {
        Self(Some(it))
    }
}

impl<T: Send + 'static> Deref for DropElsewhere<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is there until the drop")
    }
}

impl<T: Send + 'static> Drop for DropElsewhere<T> {
    fn drop(&mut self) {
        // Moved, not cloned: this owner must not be the last one after all.
        self.0.take().into_iter().for_each(leave);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::{SyncSender, sync_channel};
    use std::thread::ThreadId;
    use std::time::Duration;

    /// Says on which thread it was dropped.
    struct Says(SyncSender<ThreadId>);

    impl Drop for Says {
        fn drop(&mut self) {
            self.0.send(std::thread::current().id()).expect("somebody listens");
        }
    }

    #[test]
    fn what_is_shared_ends_on_another_thread_whoever_is_last() {
        const ROUNDS: usize = 1000;
        let (says, hears) = sync_channel(ROUNDS);
        for _ in 0..ROUNDS {
            let shared = Arc::new(Says(says.clone()));
            drop([DropElsewhere::new(shared.clone()), DropElsewhere::new(shared)]);
        }
        for _ in 0..ROUNDS {
            let thread = hears.recv_timeout(Duration::from_secs(20)).expect("it ends");
            assert_ne!(thread, std::thread::current().id());
        }
    }
}
