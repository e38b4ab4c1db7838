//! A completion queue and its descriptor.

use std::ffi::c_int;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};

use crate::device::set_nonblocking;
use crate::ffi::{IbvCompChannel, IbvCq, IbvWc};
use crate::{Device, Error};

/// Notices are acknowledged by so many at a time: it takes a lock.
const ACKNOWLEDGED: u32 = 64;

struct Channel {
    raw: NonNull<IbvCompChannel>,
    device: Device,
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: its only queue is gone.
        unsafe { (self.device.library().verbs.ibv_destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

/// A completion queue. Its places are given out to endpoints, so that it never overflows.
pub(super) struct CompletionQueue {
    raw: NonNull<IbvCq>,
    channel: Channel,
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
    pub(super) fn new(device: &Device, places: u32, interrupt: u32) -> Result<Self, Error> {
        let verbs = &device.library().verbs;
        // SAFETY: the context is open.
        let raw = unsafe { (verbs.ibv_create_comp_channel)(device.context()) };
        let raw =
            NonNull::new(raw).ok_or_else(|| Error::last("making an RDMA completion channel"))?;
        let channel = Channel { raw, device: device.clone() };
        let places = places.max(1);
        // SAFETY: the channel is alive, and goes after the queue.
        let raw = unsafe {
            set_nonblocking(raw.as_ref().fd)?;
            let vectors = (*device.context()).num_comp_vectors.max(1) as u32;
            (verbs.ibv_create_cq)(
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
            channel,
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

    /// Asks for one notice, when the next completion comes, unless one is still to come. `told`: the
    /// descriptor was readable.
    pub(super) fn arm(&mut self, told: bool) -> Result<(), Error> {
        if self.armed && (told || self.fired) {
            self.armed = !self.take_notice()?;
        }
        if self.armed {
            return Ok(());
        }
        self.fired = false;
        // SAFETY: as in `poll`.
        let rc = unsafe {
            let arm = (*self.raw.as_ref().context).ops.req_notify_cq;
            arm.map_or(libc::EOPNOTSUPP, |arm| arm(self.raw(), 0))
        };
        self.armed = rc == 0;
        if rc == 0 { Ok(()) } else { Err(Error::number("asking for RDMA completions", rc)) }
    }

    /// Takes the notice that was asked for: then the descriptor is not readable any more. False if it has
    /// not come.
    fn take_notice(&mut self) -> Result<bool, Error> {
        let get = self.channel.device.library().verbs.ibv_get_cq_event;
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is alive, its descriptor does not block.
        let rc = unsafe { get(self.channel.raw.as_ptr(), &mut queue, &mut context) };
        if rc != 0 {
            let source = std::io::Error::last_os_error();
            return match source.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(false),
                _ => Err(Error::System { what: "reading RDMA completion notices", source }),
            };
        }
        self.unacknowledged += 1;
        if self.unacknowledged == ACKNOWLEDGED {
            self.acknowledge();
        }
        Ok(true)
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

impl AsFd for CompletionQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel, and with it the descriptor, is open as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.channel.raw.as_ref().fd) }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.acknowledge();
        // SAFETY: all endpoints are gone; every notice is acknowledged, so this does not wait.
        unsafe { (self.channel.device.library().verbs.ibv_destroy_cq)(self.raw()) };
    }
}
