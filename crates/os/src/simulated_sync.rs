//! Locks and queues for threads of a simulated world, and for all others.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult, WaitTimeoutResult};
use std::time::{Duration, Instant};

use crate::simulated::{self, Key};

/// A key that is made when it is first needed: things are also made outside of a world.
#[derive(Debug, Default)]
struct Lazy(std::sync::OnceLock<Key>);

impl Lazy {
    /// `None` outside of a world.
    fn get(&self) -> Option<Key> {
        if !simulated::is_here() {
            return None;
        }
        self.0.get().copied().or_else(|| {
            let key = simulated::key()?;
            Some(*self.0.get_or_init(|| key))
        })
    }
}

/// As the standard library's.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized> {
    waits: Lazy,
    inner: std::sync::Mutex<T>,
}

/// As the standard library's.
#[derive(Debug)]
pub struct MutexGuard<'a, T: ?Sized> {
    of: &'a Mutex<T>,
    /// There until the drop, but for a moment in a wait.
    guard: Option<std::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// As the standard library's.
    pub const fn new(value: T) -> Self {
        Self { waits: Lazy(std::sync::OnceLock::new()), inner: std::sync::Mutex::new(value) }
    }

    /// As the standard library's.
    ///
    /// # Errors
    /// As the standard library's.
    pub fn into_inner(self) -> LockResult<T> {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// As the standard library's.
    ///
    /// # Errors
    /// As the standard library's.
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        simulated::maybe_yield();
        loop {
            match self.try_lock() {
                Ok(guard) => return Ok(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Err(poisoned),
                Err(TryLockError::WouldBlock) => {}
            }
            let Some(key) = self.waits.get() else { break };
            simulated::park(Some(key), None);
        }
        let guard = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(MutexGuard { of: self, guard: Some(guard) })
    }

    /// As the standard library's.
    ///
    /// # Errors
    /// As the standard library's.
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        match self.inner.try_lock() {
            Ok(guard) => Ok(MutexGuard { of: self, guard: Some(guard) }),
            Err(TryLockError::Poisoned(poisoned)) => {
                let guard = MutexGuard { of: self, guard: Some(poisoned.into_inner()) };
                Err(TryLockError::Poisoned(PoisonError::new(guard)))
            }
            Err(TryLockError::WouldBlock) => Err(TryLockError::WouldBlock),
        }
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().expect("it is locked")
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("it is locked")
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        if self.guard.take().is_some() {
            if let Some(key) = self.of.waits.get() {
                simulated::wake(key, false);
            }
        }
    }
}

/// As the standard library's.
#[derive(Debug, Default)]
pub struct Condvar {
    waits: Lazy,
    inner: std::sync::Condvar,
}

impl Condvar {
    /// As the standard library's.
    pub const fn new() -> Self {
        Self { waits: Lazy(std::sync::OnceLock::new()), inner: std::sync::Condvar::new() }
    }

    /// As the standard library's.
    pub fn notify_one(&self) {
        self.inner.notify_one();
        if let Some(key) = self.waits.get() {
            simulated::wake(key, false);
        }
    }

    /// As the standard library's.
    pub fn notify_all(&self) {
        self.inner.notify_all();
        if let Some(key) = self.waits.get() {
            simulated::wake(key, true);
        }
    }

    /// As the standard library's.
    ///
    /// # Errors
    /// As the standard library's.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        Ok(self.wait_for(guard, None).0)
    }

    /// As the standard library's.
    ///
    /// # Errors
    /// As the standard library's.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, TimedOut)> {
        let (guard, woken) = self.wait_for(guard, Some(limit));
        Ok((guard, TimedOut(!woken)))
    }

    fn wait_for<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        limit: Option<Duration>,
    ) -> (MutexGuard<'a, T>, bool) {
        let of = guard.of;
        if let Some(key) = self.waits.get() {
            drop(guard);
            let woken = simulated::park(Some(key), limit).unwrap_or(true);
            return (of.lock().unwrap_or_else(PoisonError::into_inner), woken);
        }
        let inner = guard.guard.take().expect("it is locked");
        let (inner, woken) = match limit {
            None => (self.inner.wait(inner).unwrap_or_else(PoisonError::into_inner), true),
            Some(limit) => {
                let waited = self.inner.wait_timeout(inner, limit);
                let (inner, end): (_, WaitTimeoutResult) =
                    waited.unwrap_or_else(PoisonError::into_inner);
                (inner, !end.timed_out())
            }
        };
        guard.guard = Some(inner);
        (guard, woken)
    }
}

/// Whether a wait has ended because its time was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedOut(bool);

impl TimedOut {
    /// As the standard library's.
    pub const fn timed_out(&self) -> bool {
        self.0
    }
}

/// As the standard library's, for what is used of it.
pub mod mpsc {
    use std::sync::Arc;
    pub use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};

    use super::{Condvar, Duration, Instant, Mutex, MutexGuard, PoisonError, VecDeque};

    #[derive(Debug)]
    struct Queue<T> {
        items: VecDeque<T>,
        bound: usize,
        senders: usize,
        receives: bool,
    }

    #[derive(Debug)]
    struct Shared<T> {
        queue: Mutex<Queue<T>>,
        news: Condvar,
        room: Condvar,
    }

    impl<T> Shared<T> {
        fn lock(&self) -> MutexGuard<'_, Queue<T>> {
            self.queue.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// As the standard library's. A queue for no message at all has room for one.
    #[derive(Debug)]
    pub struct SyncSender<T>(Arc<Shared<T>>);

    /// As the standard library's.
    pub type Sender<T> = SyncSender<T>;

    /// As the standard library's.
    #[derive(Debug)]
    pub struct Receiver<T>(Arc<Shared<T>>);

    /// As the standard library's.
    pub fn sync_channel<T>(bound: usize) -> (SyncSender<T>, Receiver<T>) {
        let items = VecDeque::new();
        let queue = Queue { items, bound: bound.max(1), senders: 1, receives: true };
        let (news, room) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { queue: Mutex::new(queue), news, room });
        (SyncSender(shared.clone()), Receiver(shared))
    }

    /// As the standard library's.
    pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
        sync_channel(usize::MAX)
    }

    impl<T> Clone for SyncSender<T> {
        fn clone(&self) -> Self {
            self.0.lock().senders += 1;
            Self(self.0.clone())
        }
    }

    impl<T> Drop for SyncSender<T> {
        fn drop(&mut self) {
            self.0.lock().senders -= 1;
            self.0.news.notify_all();
        }
    }

    impl<T> Drop for Receiver<T> {
        fn drop(&mut self) {
            let mut queue = self.0.lock();
            queue.receives = false;
            let items = std::mem::take(&mut queue.items);
            drop(queue);
            drop(items);
            self.0.room.notify_all();
        }
    }

    impl<T> SyncSender<T> {
        /// As the standard library's.
        ///
        /// # Errors
        /// As the standard library's.
        pub fn send(&self, item: T) -> Result<(), SendError<T>> {
            let mut queue = self.0.lock();
            while queue.receives && queue.items.len() >= queue.bound {
                queue = self.0.room.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            if !queue.receives {
                return Err(SendError(item));
            }
            queue.items.push_back(item);
            drop(queue);
            self.0.news.notify_one();
            Ok(())
        }

        /// As the standard library's.
        ///
        /// # Errors
        /// As the standard library's.
        pub fn try_send(&self, item: T) -> Result<(), TrySendError<T>> {
            let mut queue = self.0.lock();
            if !queue.receives {
                return Err(TrySendError::Disconnected(item));
            }
            if queue.items.len() >= queue.bound {
                return Err(TrySendError::Full(item));
            }
            queue.items.push_back(item);
            drop(queue);
            self.0.news.notify_one();
            Ok(())
        }
    }

    impl<T> Receiver<T> {
        /// As the standard library's.
        ///
        /// # Errors
        /// As the standard library's.
        pub fn try_recv(&self) -> Result<T, TryRecvError> {
            let mut queue = self.0.lock();
            match queue.items.pop_front() {
                Some(item) => {
                    drop(queue);
                    self.0.room.notify_one();
                    Ok(item)
                }
                None if queue.senders == 0 => Err(TryRecvError::Disconnected),
                None => Err(TryRecvError::Empty),
            }
        }

        /// As the standard library's.
        ///
        /// # Errors
        /// As the standard library's.
        pub fn recv(&self) -> Result<T, RecvError> {
            let mut queue = self.0.lock();
            loop {
                if let Some(item) = queue.items.pop_front() {
                    drop(queue);
                    self.0.room.notify_one();
                    return Ok(item);
                }
                if queue.senders == 0 {
                    return Err(RecvError);
                }
                queue = self.0.news.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }

        /// As the standard library's.
        ///
        /// # Errors
        /// As the standard library's.
        pub fn recv_timeout(&self, limit: Duration) -> Result<T, RecvTimeoutError> {
            let until: Option<Instant> = crate::time::now().checked_add(limit);
            let mut queue = self.0.lock();
            loop {
                if let Some(item) = queue.items.pop_front() {
                    drop(queue);
                    self.0.room.notify_one();
                    return Ok(item);
                }
                if queue.senders == 0 {
                    return Err(RecvTimeoutError::Disconnected);
                }
                let left = until
                    .map_or(limit, |until| until.saturating_duration_since(crate::time::now()));
                if left.is_zero() {
                    return Err(RecvTimeoutError::Timeout);
                }
                let waited = self.0.news.wait_timeout(queue, left);
                queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }

        /// As the standard library's.
        pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
            std::iter::from_fn(|| self.recv().ok())
        }
    }
}
