//! A descriptor on which connections report what happens to them.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{CmEvent, CmId};
use crate::device::set_nonblocking;
use crate::ffi::{RdmaCmEvent, RdmaEventChannel};
use crate::{Error, Library};

/// What an [`EventChannel`] and the ids on it share: it is closed when the last of them is gone.
pub(super) struct Inner {
    pub(super) library: Arc<Library>,
    pub(super) raw: NonNull<RdmaEventChannel>,
    /// Held while an event is read, which may change the id that it is about, and while an id is
    /// looked at.
    reading: Mutex<()>,
}

impl Inner {
    pub(super) fn still(&self) -> MutexGuard<'_, ()> {
        // It guards nothing of ours that a panic could leave half done.
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: the structure holds a descriptor, which nobody changes, and librdmacm locks what it must.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: no id is left on it, each holds a reference; every event was acknowledged where it
        // was read.
        unsafe { (self.library.cm.rdma_destroy_event_channel)(self.raw.as_ptr()) };
    }
}

/// Reports what happens to listeners and connections. Its descriptor ([`AsFd`]) is readable when
/// there is something; nothing here waits.
pub struct EventChannel {
    pub(super) inner: Arc<Inner>,
}

impl EventChannel {
    /// A channel without connections.
    ///
    /// # Errors
    /// The kernel's side of rdma_cm is missing, or there are no descriptors left.
    pub fn new(library: &Arc<Library>) -> Result<Self, Error> {
        // SAFETY: makes a new channel, or returns null and says why.
        let raw = unsafe { (library.cm.rdma_create_event_channel)() };
        let Some(raw) = NonNull::new(raw) else {
            let source = io::Error::last_os_error();
            return Err(match source.raw_os_error() {
                Some(libc::EMFILE | libc::ENFILE) => {
                    Error::System { what: "opening an RDMA event channel", source }
                }
                _ => Error::NoConnectionManager { source },
            });
        };
        let inner = Arc::new(Inner { library: Arc::clone(library), raw, reading: Mutex::new(()) });
        // SAFETY: the descriptor is open as long as the channel.
        unsafe { set_nonblocking(raw.as_ref().fd)? };
        Ok(Self { inner })
    }

    /// The next thing that happened; `None` if there is nothing new.
    ///
    /// # Errors
    /// The kernel refuses, for a reason that will not pass.
    pub fn next_event(&mut self) -> Result<Option<CmEvent>, Error> {
        let cm = &self.inner.library.cm;
        let mut raw: *mut RdmaCmEvent = ptr::null_mut();
        let still = self.inner.still();
        // SAFETY: the channel is open and its descriptor does not block.
        if unsafe { (cm.rdma_get_cm_event)(self.inner.raw.as_ptr(), &mut raw) } != 0 {
            return match io::Error::last_os_error() {
                e if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => Ok(None),
                source => Err(Error::System { what: "reading RDMA connection events", source }),
            };
        }
        drop(still);
        let Some(raw) = NonNull::new(raw) else { return Ok(None) };
        let unacknowledged = Unacknowledged { library: &self.inner.library, raw };
        let adopt = |id| CmId::adopt(id, &self.inner);
        // SAFETY: the event was just got and is not acknowledged before `unacknowledged` is dropped.
        // So its ids are alive: whoever destroys one waits for that.
        let event = unsafe { CmEvent::copy(raw.as_ref(), adopt) };
        drop(unacknowledged);
        Ok(event)
    }
}

/// An event that was got: acknowledged once, when it is dropped.
struct Unacknowledged<'a> {
    library: &'a Library,
    raw: NonNull<RdmaCmEvent>,
}

impl Drop for Unacknowledged<'_> {
    fn drop(&mut self) {
        // SAFETY: the event was got and not acknowledged yet; nothing of it is used any more.
        unsafe { (self.library.cm.rdma_ack_cm_event)(self.raw.as_ptr()) };
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel, and with it the descriptor, is open as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.inner.raw.as_ref().fd) }
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventChannel").finish_non_exhaustive()
    }
}
