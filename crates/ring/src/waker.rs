//! Waking an event loop from another thread.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A counter of the kernel that can be waited for.
#[derive(Debug)]
pub(crate) struct EventFd(File);

impl EventFd {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: makes a new descriptor and touches no memory. It is blocking: io_uring arms a
        // read of it only then, and nobody else reads it unless it is readable.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just made and belongs to nobody else.
        Ok(Self(unsafe { File::from_raw_fd(fd) }))
    }

    /// Makes the descriptor readable.
    pub(crate) fn signal(&self) {
        // The only possible failure is EAGAIN or EINTR at a counter near 2^64.
        let _ = (&self.0).write(&1u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable again. Only if it is readable: else it blocks.
    pub(crate) fn clear(&self) {
        let _ = (&self.0).read(&mut [0; 8]);
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[derive(Debug)]
struct Shared {
    event: EventFd,
    pending: AtomicBool,
    /// What the event loop of a simulated world waits for.
    #[cfg(feature = "simulated")]
    key: Option<lunet_os::simulated::Key>,
}

/// Wakes an event loop from any thread: the loop reports [`Event::Woken`](crate::Event::Woken).
/// What the waking thread did before is visible after that event.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Shared>);

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        let pending = AtomicBool::new(false);
        Ok(Self(Arc::new(Shared {
            event: EventFd::new()?,
            pending,
            #[cfg(feature = "simulated")]
            key: lunet_os::simulated::key(),
        })))
    }

    /// Wakes the event loop. Many calls before it wakes are one event, and only the first costs a
    /// system call. Without effect once the event loop is gone.
    pub fn wake(&self) {
        if !self.0.pending.swap(true, Ordering::AcqRel) {
            #[cfg(feature = "simulated")]
            if let Some(key) = self.0.key {
                return lunet_os::simulated::wake(key, true);
            }
            self.0.event.signal();
        }
    }

    /// What the event loop of a simulated world waits for; `None` outside of one.
    #[cfg(feature = "simulated")]
    pub(crate) fn key(&self) -> Option<lunet_os::simulated::Key> {
        self.0.key
    }

    /// Whether it was used since the last call.
    #[cfg(feature = "simulated")]
    pub(crate) fn take(&self) -> bool {
        self.0.pending.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn event(&self) -> &EventFd {
        &self.0.event
    }

    /// To be called after the descriptor was read and before the event is reported, so that a
    /// call of `wake` from now on makes it readable again.
    pub(crate) fn rearm(&self) {
        self.0.pending.swap(false, Ordering::AcqRel);
    }
}
