//! Completion queues and their descriptor.

use std::ffi::c_int;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::rc::Rc;

use crate::device::set_nonblocking;
use crate::ffi::{IbvCompChannel, IbvCq, IbvWc};
use crate::{Device, Error};

/// Notices are acknowledged by so many at a time: it takes a lock.
const ACKNOWLEDGED: u32 = 64;

/// The descriptor that tells of completions.
pub(super) struct Channel {
    raw: NonNull<IbvCompChannel>,
    device: Device,
}

impl Channel {
    pub(super) fn new(device: &Device) -> Result<Rc<Self>, Error> {
        // SAFETY: the context is open.
        let raw = unsafe { (device.library().verbs.ibv_create_comp_channel)(device.context()) };
        let raw =
            NonNull::new(raw).ok_or_else(|| Error::last("making an RDMA completion channel"))?;
        let channel = Self { raw, device: device.clone() };
        // SAFETY: the channel is alive, and its descriptor its own.
        unsafe { set_nonblocking(raw.as_ref().fd)? };
        Ok(Rc::new(channel))
    }

    /// Takes a notice, and tells of which queue it is. `None`: there is none.
    fn take_notice(&self) -> Result<Option<*mut IbvCq>, Error> {
        let get = self.device.library().verbs.ibv_get_cq_event;
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is alive, its descriptor does not block.
        let rc = unsafe { get(self.raw.as_ptr(), &mut queue, &mut context) };
        if rc == 0 {
            return Ok(Some(queue));
        }
        let source = std::io::Error::last_os_error();
        match source.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => Ok(None),
            _ => Err(Error::System { what: "reading RDMA completion notices", source }),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: its queues are gone.
        unsafe { (self.device.library().verbs.ibv_destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

/// A completion queue. Its places are given out to endpoints, so that it never overflows.
pub(super) struct CompletionQueue {
    raw: NonNull<IbvCq>,
    channel: Rc<Channel>,
    unacknowledged: u32,
    /// A notice was asked for, and not read.
    armed: bool,
    /// It should be there: completions have come since.
    fired: bool,
    places: u32,
    taken: u32,
    /// Places of endpoints that are gone, whose last completions may still be in the queue.
    leaving: u32,
}

impl CompletionQueue {
    pub(super) fn new(channel: &Rc<Channel>, places: u32, interrupt: u32) -> Result<Self, Error> {
        let (places, device) = (places.max(1), &channel.device);
        // SAFETY: the context is open, the channel is alive and goes after the queue.
        let raw = unsafe {
            let vectors = (*device.context()).num_comp_vectors.max(1) as u32;
            (device.library().verbs.ibv_create_cq)(
                device.context(),
                c_int::try_from(places).unwrap_or(c_int::MAX),
                ptr::null_mut(),
                channel.raw.as_ptr(),
                (interrupt % vectors) as c_int,
            )
        };
        let raw =
            NonNull::new(raw).ok_or_else(|| Error::last("making an RDMA completion queue"))?;
        Ok(Self {
            raw,
            channel: Rc::clone(channel),
            unacknowledged: 0,
            armed: false,
            fired: false,
            places,
            taken: 0,
            leaving: 0,
        })
    }

    pub(super) const fn raw(&self) -> *mut IbvCq {
        self.raw.as_ptr()
    }

    /// Takes places for an endpoint. False if there are not so many.
    pub(super) const fn take(&mut self, places: u32) -> bool {
        let free = self.places - self.taken;
        let enough = places <= free;
        if enough {
            self.taken += places;
        }
        enough
    }

    /// Places that are not taken.
    pub(super) const fn free(&self) -> u32 {
        self.places - self.taken
    }

    /// Gives places back that were never in use.
    pub(super) const fn give_back(&mut self, places: u32) {
        self.taken -= places;
    }

    /// Gives places back as soon as the queue was empty once.
    pub(super) const fn leave(&mut self, places: u32) {
        self.leaving += places;
    }

    /// Takes completions; fewer than there is room for if the queue is empty now.
    pub(super) fn poll(&mut self, into: &mut [IbvWc]) -> Result<usize, Error> {
        let room = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
        // SAFETY: the queue is alive, its context is that of an open device, and the function fills
        // in so many structures at most.
        let found = unsafe {
            let poll = (*self.raw.as_ref().context).ops.poll_cq;
            poll.map_or(-1, |poll| poll(self.raw(), room, into.as_mut_ptr()))
        };
        let found = usize::try_from(found)
            .map_err(|_| Error::Gone { device: self.channel.device.name().to_string() })?;
        self.fired |= found > 0;
        if found < into.len() {
            self.taken -= self.leaving;
            self.leaving = 0;
        }
        Ok(found)
    }

    /// Asks for one notice, when the next completion comes, unless one is still to come.
    fn arm(&mut self) -> Result<(), Error> {
        if self.armed {
            return Ok(());
        }
        // SAFETY: as in `poll`.
        let rc = unsafe {
            let arm = (*self.raw.as_ref().context).ops.req_notify_cq;
            arm.map_or(libc::EOPNOTSUPP, |arm| arm(self.raw(), 0))
        };
        (self.armed, self.fired) = (rc == 0, false);
        if rc == 0 { Ok(()) } else { Err(Error::number("asking for RDMA completions", rc)) }
    }

    /// True if a notice should be there.
    const fn has_fired(&self) -> bool {
        self.armed && self.fired
    }

    fn noticed(&mut self) {
        self.armed = false;
        self.unacknowledged += 1;
        if self.unacknowledged == ACKNOWLEDGED {
            self.acknowledge();
        }
    }

    fn acknowledge(&mut self) {
        if self.unacknowledged > 0 {
            let acknowledge = self.channel.device.library().verbs.ibv_ack_cq_events;
            // SAFETY: so many notices of this queue were got, and not acknowledged yet.
            unsafe { acknowledge(self.raw(), self.unacknowledged) };
            self.unacknowledged = 0;
        }
    }
}

/// The completion queues of a thread: one for receives, and one for sends, writes and reads.
///
/// A receive is always waited for. A send completion mostly returns memory and nothing waits for it, so its queue
/// notifies only when it is asked to.
pub(super) struct Queues {
    pub(super) receives: CompletionQueue,
    pub(super) sends: CompletionQueue,
}

impl Queues {
    /// Requests a notification of the next receive completion, and of the next send completion if `sends`, unless one
    /// is still pending. `notified`: the descriptor was readable.
    pub(super) fn arm(&mut self, notified: bool, sends: bool) -> Result<(), Error> {
        let fired = usize::from(self.receives.has_fired()) + usize::from(self.sends.has_fired());
        for _ in 0..fired.max(usize::from(notified)) {
            let Some(raw) = self.receives.channel.take_notice()? else { break };
            let receives = raw == self.receives.raw();
            if receives { self.receives.noticed() } else { self.sends.noticed() }
        }
        self.receives.arm()?;
        if sends { self.sends.arm() } else { Ok(()) }
    }
}

impl AsFd for Queues {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receives.channel.as_fd()
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.acknowledge();
        // SAFETY: all endpoints are gone; every notice is acknowledged, so this does not wait.
        unsafe { (self.channel.device.library().verbs.ibv_destroy_cq)(self.raw()) };
    }
}
