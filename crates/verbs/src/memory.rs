//! Memory that a device may reach.

use std::ffi::c_int;
use std::fmt;
use std::io;
use std::mem;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use lunet_ring::{Arena, Region};

use crate::error::{locked_memory_limit, not_registered};
use crate::ffi::{ACCESS_LOCAL_WRITE, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, IbvMr, IbvPd};
use crate::{Device, Error, Remote};

/// What belongs together on a device: memory and connections of one thread.
pub(crate) struct Domain {
    raw: NonNull<IbvPd>,
    device: Device,
}

impl Domain {
    pub(crate) fn new(device: &Device) -> Result<Rc<Self>, Error> {
        // SAFETY: the context is open, and stays so as long as the device, which goes later.
        let raw = unsafe { (device.library().verbs.ibv_alloc_pd)(device.context()) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Rc::new(Self { raw, device: device.clone() })),
            None => Err(Error::last("making an RDMA protection domain")),
        }
    }

    pub(crate) const fn raw(&self) -> *mut IbvPd {
        self.raw.as_ptr()
    }

    pub(crate) const fn device(&self) -> &Device {
        &self.device
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: everything in the domain holds a reference to it, and is gone.
        unsafe { (self.device.library().verbs.ibv_dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// What a registration keeps mapped; never looked at.
#[allow(dead_code, reason = "held, not read")]
enum Keep {
    Arena(Arena),
    Region(Arc<Region>),
}

/// A registration. Its memory is let go after it.
pub(crate) struct Registration {
    raw: NonNull<IbvMr>,
    start: u64,
    len: u64,
    keep: Option<Keep>,
    domain: Rc<Domain>,
}

impl Registration {
    /// Registers an arena, to be read and written by this end's work.
    pub(crate) fn arena(domain: &Rc<Domain>, arena: &Arena) -> Result<Self, Error> {
        let keep = Keep::Arena(arena.clone());
        // SAFETY: the arena's memory stays mapped as long as its clone. Its buffers have one owner
        // each; the device touches those only that are in its work, which owns them.
        unsafe { Self::new(domain, arena.span(), keep, ACCESS_LOCAL_WRITE) }
    }

    /// Registers a region: no reference into one exists, so anybody may write to it at any time.
    fn region(domain: &Rc<Domain>, region: &Arc<Region>, access: c_int) -> Result<Self, Error> {
        let keep = Keep::Region(Arc::clone(region));
        region.pin();
        // SAFETY: the region's memory stays mapped as long as the region, and see above.
        unsafe { Self::new(domain, region.span(), keep, access) }
    }

    /// Registers a region to be read by this end's work. All of its pages are taken and locked.
    pub(crate) fn source(domain: &Rc<Domain>, region: &Arc<Region>) -> Result<Self, Error> {
        Self::region(domain, region, 0)
    }

    /// # Safety
    /// The span must be memory that stays mapped as long as `keep`, and that the device may access
    /// in these ways at any time.
    unsafe fn new(
        domain: &Rc<Domain>,
        (start, len): (NonNull<u8>, usize),
        keep: Keep,
        access: c_int,
    ) -> Result<Self, Error> {
        let verbs = &domain.device.library().verbs;
        // SAFETY: the caller's promise; the domain is alive.
        let raw = unsafe { (verbs.ibv_reg_mr)(domain.raw(), start.as_ptr().cast(), len, access) };
        let Some(raw) = NonNull::new(raw) else {
            let (source, limit) = (io::Error::last_os_error(), locked_memory_limit());
            return Err(not_registered(domain.device.name(), len as u64, source, limit));
        };
        Ok(Self {
            raw,
            start: start.as_ptr() as u64,
            len: len as u64,
            keep: Some(keep),
            domain: Rc::clone(domain),
        })
    }

    /// The key for local work, if this range lies within the registration.
    pub(crate) fn key_for(&self, start: u64, len: u64) -> Option<u32> {
        let offset = start.checked_sub(self.start)?;
        if offset > self.len || len > self.len - offset {
            return None;
        }
        // SAFETY: the registration is alive.
        Some(unsafe { self.raw.as_ref().lkey })
    }

    /// True if it is one of this region.
    pub(crate) fn is_of(&self, region: &Arc<Region>) -> bool {
        matches!(&self.keep, Some(Keep::Region(mine)) if Arc::ptr_eq(mine, region))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: the registration is alive and ends here. Work that still names it fails.
        let rc = unsafe { (self.domain.device.library().verbs.ibv_dereg_mr)(self.raw.as_ptr()) };
        if rc != 0 {
            // The device may still reach the memory, so it must stay.
            mem::forget(self.keep.take());
        }
    }
}

/// What the peer may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAccess {
    /// Read it.
    pub read: bool,
    /// Write to it.
    pub write: bool,
}

/// Memory that a peer may read or write who is told its key: an initiator's. The registration ends
/// with this value; then the key is worth nothing.
pub struct Exposed {
    registration: Registration,
    region: Arc<Region>,
}

impl Exposed {
    pub(crate) fn new(
        domain: &Rc<Domain>,
        region: &Arc<Region>,
        access: RemoteAccess,
    ) -> Result<Self, Error> {
        let mut flags = 0;
        if access.read {
            flags |= ACCESS_REMOTE_READ;
        }
        if access.write {
            // The specification wants the local right with the remote one.
            flags |= ACCESS_REMOTE_WRITE | ACCESS_LOCAL_WRITE;
        }
        let registration = Registration::region(domain, region, flags)?;
        Ok(Self { registration, region: Arc::clone(region) })
    }

    /// The exposed memory.
    pub const fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// What the peer has to know to reach a part of it; `None` if the range lies beyond its end.
    pub fn remote(&self, range: Range<u64>) -> Option<Remote> {
        if range.start > range.end || range.end > self.region.len() {
            return None;
        }
        // SAFETY: the registration is alive.
        let key = unsafe { self.registration.raw.as_ref().rkey };
        Some(Remote { address: self.registration.start + range.start, key })
    }
}

impl fmt::Debug for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exposed").field("region", &self.region).finish_non_exhaustive()
    }
}
