//! One event loop's way to an image.

use std::ffi::c_void;
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lunet_ring::{Buf, DropElsewhere};

use crate::ffi::{CompletionPtr, ZEROES_THICK};
use crate::{Image, Library};

/// What is asked of an image. All ranges are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Fill the buffer.
    Read,
    /// Write the buffer. What is acknowledged is stable: there is no cache.
    Write,
    /// Make the range read as zeroes.
    Zero {
        /// Keep its space.
        thick: bool,
    },
    /// Wait for all writes before.
    Flush,
}

/// A request that has ended.
#[derive(Debug)]
pub struct Ended {
    /// What [`Lane::start`] had answered.
    pub seat: u32,
    /// The buffer that went with it.
    pub buf: Option<Buf>,
    /// Bytes that were read, or why not: the error number of librbd.
    pub result: Result<u64, i32>,
}

/// What librbd's threads know of a lane. It lives until the last of their callbacks.
struct Shared {
    library: Arc<Library>,
    /// Seats and return values of what has ended. As many as there are seats at most, and so much room.
    ended: Mutex<Vec<(u32, isize)>>,
    /// The descriptor was made readable, and what has ended since then was not taken yet.
    told: AtomicBool,
    event: File,
}

impl Shared {
    fn push(&self, seat: u32, returned: isize) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).push((seat, returned));
        if !self.told.swap(true, Ordering::AcqRel) {
            // The only possible failure is a counter near 2^64, which is readable all the same.
            let _ = (&self.event).write(&1u64.to_ne_bytes());
        }
    }
}

/// Has the event loop of a lane look at it, although nothing has ended.
#[derive(Clone)]
pub struct Waker(Arc<Shared>);

impl Waker {
    /// The lane's descriptor is readable.
    pub fn wake(&self) {
        // The only possible failure is a counter near 2^64, which is readable all the same.
        let _ = (&self.0.event).write(&1u64.to_ne_bytes());
    }
}

/// What a callback gets: who is to be told, and of what.
struct Ticket {
    shared: Arc<Shared>,
    seat: u32,
}

/// Runs on a thread of librbd.
unsafe extern "C" fn ended(completion: CompletionPtr, ticket: *mut c_void) {
    // SAFETY: it was made by `Box::into_raw` for this one call.
    let ticket = unsafe { Box::from_raw(ticket.cast::<Ticket>()) };
    let rbd = &ticket.shared.library.rbd;
    // SAFETY: the completion is whole while its callback runs, and is let go of once: librbd has a reference of its own.
    let returned = unsafe {
        let returned = (rbd.rbd_aio_get_return_value)(completion);
        (rbd.rbd_aio_release)(completion);
        returned
    };
    ticket.shared.push(ticket.seat, returned);
}

/// One event loop's way to an image. Stays on its thread.
pub struct Lane {
    image: DropElsewhere<Arc<Image>>,
    shared: Arc<Shared>,
    /// By seats: the buffers of what is in flight.
    buffers: Vec<Option<Buf>>,
    free: Vec<u32>,
    taken: Vec<(u32, isize)>,
}

impl Lane {
    /// A lane with room for so many requests in flight.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn new(image: Arc<Image>, seats: u32) -> io::Result<Self> {
        // SAFETY: makes a new descriptor and touches no memory.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just made and belongs to nobody else.
        let event = unsafe { File::from_raw_fd(fd) };
        let shared = Arc::new(Shared {
            library: image.library().clone(),
            ended: Mutex::new(Vec::with_capacity(seats as usize)),
            told: AtomicBool::new(false),
            event,
        });
        Ok(Self {
            image: DropElsewhere::new(image),
            shared,
            buffers: (0..seats).map(|_| None).collect(),
            free: (0..seats).rev().collect(),
            taken: Vec::with_capacity(seats as usize),
        })
    }

    /// The image.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// A descriptor that is readable when something has ended, to be waited for. It is read by [`take`](Self::take).
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        Ok(self.shared.event.try_clone()?.into())
    }

    /// What wakes the event loop, from any thread.
    pub fn waker(&self) -> Waker {
        Waker(self.shared.clone())
    }

    /// True if there is no seat for a request.
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Starts a request, and tells its seat, which [`Ended`] names. Does not block. A read or a write has a buffer of at least
    /// `len` bytes.
    ///
    /// # Errors
    /// The error number, and the buffer: librbd has not taken it. EBUSY if there is no seat, EROFS for a change without
    /// the image's lock, EINVAL for a buffer that is too short.
    pub fn start(
        &mut self,
        request: Request,
        offset: u64,
        len: usize,
        buf: Option<Buf>,
    ) -> Result<u32, (i32, Option<Buf>)> {
        let moves = matches!(request, Request::Read | Request::Write);
        if moves != buf.is_some() || buf.as_ref().is_some_and(|buf| buf.len() < len) {
            return Err((libc::EINVAL, buf));
        }
        // librbd would take a free lock by itself, and ask another client for its own.
        if matches!(request, Request::Write | Request::Zero { .. }) && !self.image.is_locked() {
            return Err((libc::EROFS, buf));
        }
        let Some(seat) = self.free.pop() else { return Err((libc::EBUSY, buf)) };
        match self.send(request, offset, len, buf.as_ref(), seat) {
            Ok(()) => {
                self.buffers[seat as usize] = buf;
                Ok(seat)
            }
            Err(errno) => {
                self.free.push(seat);
                Err((errno, buf))
            }
        }
    }

    fn send(
        &self,
        request: Request,
        offset: u64,
        len: usize,
        buf: Option<&Buf>,
        seat: u32,
    ) -> Result<(), i32> {
        let (rbd, handle) = (self.image.rbd(), self.image.handle());
        let ticket = Box::into_raw(Box::new(Ticket { shared: self.shared.clone(), seat }));
        let mut completion = std::ptr::null_mut();
        // SAFETY: writes the pointer; the ticket is for the one callback of this completion.
        let made =
            unsafe { (rbd.rbd_aio_create_completion)(ticket.cast(), ended, &mut completion) };
        if made < 0 {
            // SAFETY: there is no completion, so nobody else has the ticket.
            drop(unsafe { Box::from_raw(ticket) });
            return Err(-made);
        }
        let at = buf.map_or(std::ptr::null_mut(), |buf| buf.start().as_ptr());
        // SAFETY: the image is open. The buffer has `len` bytes (`start`), stays in place wherever the `Buf` is moved, and is
        // kept by this lane, untouched, until the callback has told its end; if the lane goes before, for ever.
        let sent = unsafe {
            match request {
                Request::Read => (rbd.rbd_aio_read)(handle, offset, len, at.cast(), completion),
                Request::Write => {
                    (rbd.rbd_aio_write)(handle, offset, len, at.cast_const().cast(), completion)
                }
                Request::Zero { thick } => {
                    let flags = if thick { ZEROES_THICK } else { 0 };
                    (rbd.rbd_aio_write_zeroes)(handle, offset, len, completion, flags, 0)
                }
                Request::Flush => (rbd.rbd_aio_flush)(handle, completion),
            }
        };
        if sent >= 0 {
            return Ok(());
        }
        // SAFETY: librbd refuses what it has not begun, and calls nobody back then: the completion and the ticket are ours.
        unsafe {
            (rbd.rbd_aio_release)(completion);
            drop(Box::from_raw(ticket));
        }
        Err(-sent)
    }

    /// Takes all that has ended. To be called when the [descriptor](Self::descriptor) is readable; it may be called at any
    /// time.
    pub fn take(&mut self, ended: &mut Vec<Ended>) {
        // It may not be readable, which is no error here.
        let _ = (&self.shared.event).read(&mut [0; 8]);
        // Before the list is taken: what ends later makes the descriptor readable again.
        self.shared.told.store(false, Ordering::SeqCst);
        {
            let mut list = self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner);
            mem::swap(&mut *list, &mut self.taken);
        }
        for (seat, returned) in self.taken.drain(..) {
            let buf = self.buffers[seat as usize].take();
            self.free.push(seat);
            let failed = || i32::try_from(-returned).unwrap_or(libc::EIO);
            let result = u64::try_from(returned).map_err(|_| failed());
            ended.push(Ended { seat, buf, result });
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // What is in flight is librbd's: a buffer that is never given back keeps its memory mapped.
        self.buffers.drain(..).flatten().for_each(mem::forget);
    }
}
