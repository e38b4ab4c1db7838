//! What is queued on the event loop, and what comes back.

use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::{Buf, TxChain};

/// Names an operation. Chosen by the caller, handed back in the [`Event`] that ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// Names a socket of one event loop. A number that was closed is never valid again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketId(pub(crate) crate::slots::Key);

/// Names a file of one event loop. A number that was removed is never valid again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId(pub(crate) crate::slots::Key);

/// Names a watched descriptor of one event loop. A number that was let go is never valid again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WatchId(pub(crate) crate::slots::Key);

/// How the peer's system has taken in what was sent to it, whether or not anybody there reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Bytes acknowledged since the connection began.
    pub bytes: u64,
    /// How long ago it was last heard of.
    pub ago: Duration,
}

/// Where received bytes go: first into the range of the payload buffer, then into the scratch
/// bytes. Both together must have room for at least one byte.
#[derive(Debug)]
pub struct RxBufs {
    /// A buffer of the arena and the part of it to fill.
    pub payload: Option<(Buf, Range<usize>)>,
    /// Room for what follows the payload: headers, mostly.
    pub scratch: Box<[u8]>,
    /// How much of `scratch` may be filled, in bytes.
    pub scratch_limit: usize,
}

impl RxBufs {
    /// Bytes that the payload range takes before the scratch bytes are used.
    pub fn payload_len(&self) -> usize {
        self.payload.as_ref().map_or(0, |(_, range)| range.len())
    }

    /// No room at all: the buffers of a receive that throws away what comes.
    pub(crate) fn none() -> Self {
        Self { payload: None, scratch: Box::new([]), scratch_limit: 0 }
    }

    /// Bytes that fit in all.
    pub fn room(&self) -> usize {
        self.payload_len() + self.scratch_limit
    }

    /// True if the ranges lie within their buffers and at least one byte fits.
    pub(crate) fn is_valid(&self) -> bool {
        let in_payload = match &self.payload {
            Some((buf, range)) => range.start <= range.end && range.end <= buf.len(),
            None => true,
        };
        in_payload && self.scratch_limit <= self.scratch.len() && self.room() > 0
    }

    /// Fills the payload range, and then the scratch bytes. There is room.
    #[cfg(feature = "simulated")]
    pub(crate) fn fill(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(self.payload_len()));
        if let Some((buf, range)) = &mut self.payload {
            buf[range.start..range.start + first.len()].copy_from_slice(first);
        }
        self.scratch[..rest.len()].copy_from_slice(rest);
    }

    /// The one or two memory ranges to fill, in order. Valid while `self` stays where its buffers
    /// are not touched by anyone else; moving `self` is fine.
    pub(crate) fn vectors(&mut self) -> ([libc::iovec; 2], usize) {
        let scratch =
            libc::iovec { iov_base: self.scratch.as_mut_ptr().cast(), iov_len: self.scratch_limit };
        match &self.payload {
            Some((buf, range)) if !range.is_empty() => {
                // SAFETY: `is_valid` was checked: the range lies in the buffer.
                let base = unsafe { buf.start().add(range.start) };
                let first = libc::iovec { iov_base: base.as_ptr().cast(), iov_len: range.len() };
                ([first, scratch], 1 + usize::from(self.scratch_limit > 0))
            }
            _ => ([scratch, scratch], 1),
        }
    }
}

/// What the event loop reports. Errors are the operating system's error numbers.
///
/// Events of different operations come in no particular order. Every operation that was queued
/// ends in exactly one event, which hands its buffers back.
#[derive(Debug)]
pub enum Event {
    /// A connection came in. The listener goes on accepting.
    Accepted {
        /// The listener's token.
        token: Token,
        /// The accepted socket.
        socket: OwnedFd,
        /// Address of the client.
        peer: SocketAddr,
    },
    /// Accepting failed. The listener goes on: at once, or after a pause if the process or the
    /// system has no file descriptor or no memory left (EMFILE, ENFILE, ENOBUFS, ENOMEM).
    AcceptFailed {
        /// The listener's token.
        token: Token,
        /// Why.
        errno: i32,
    },
    /// A receive ended. `Ok(0)` means that the peer has closed its side.
    Received {
        /// The receive's token.
        token: Token,
        /// The buffers that the receive was given.
        bufs: RxBufs,
        /// Bytes received: the payload range first, then the scratch bytes. ECANCELED if the
        /// socket was closed by [`Ring::close_socket`](crate::Ring::close_socket), EINVAL if the
        /// buffers have no room, EBUSY if a receive was queued already, EBADF if the socket is
        /// not known (any more).
        result: Result<usize, i32>,
    },
    /// A send ended.
    Sent {
        /// The send's token.
        token: Token,
        /// Its chain, to be cleared and reused; an empty one instead while the kernel still refers to it, see
        /// [`Ring::held`](crate::Ring::held).
        chain: TxChain,
        /// Everything was taken by the socket, or why not (EPIPE, ECONNRESET, ... and the errors
        /// of [`Event::Received`]).
        result: Result<(), i32>,
    },
    /// A disk operation ended.
    Disk {
        /// The operation's token.
        token: Token,
        /// The buffer of a read or a write.
        buf: Option<Buf>,
        /// Bytes moved (0 for the operations without data), or why not. ECANCELED after
        /// [`Ring::cancel`](crate::Ring::cancel), if that came in time.
        result: Result<usize, i32>,
    },
    /// A [watched](crate::Ring::watch) descriptor is readable, has an error, or its other end is gone:
    /// to be read until there is nothing more, and then watched again.
    Readable {
        /// The watch's token.
        token: Token,
    },
    /// A [`Waker`](crate::Waker) was used, once or many times since the last such event.
    Woken,
}

/// A source of events that is polled in memory, such as the completion queue of a device. A
/// [watched](crate::Ring::watch) descriptor reports its events only after that was asked for.
///
/// To ask for a report, to read it and to watch the descriptor again are system calls. None of them is
/// needed while there is always something to do.
pub trait PollSource {
    /// Polls. True if something has come: then the loop does not sleep. Called over and over while the
    /// loop polls busily.
    fn poll(&mut self) -> bool;

    /// The loop is about to sleep: polls, asks for a report if there is nothing, and polls once more for
    /// what came just before. What it hands to `watch` is [watched again](crate::Ring::watch_again). True
    /// if something has come.
    fn before_sleep(&mut self, watch: &mut dyn FnMut(WatchId)) -> bool;
}

/// No source.
impl PollSource for () {
    fn poll(&mut self) -> bool {
        false
    }

    fn before_sleep(&mut self, _: &mut dyn FnMut(WatchId)) -> bool {
        false
    }
}
