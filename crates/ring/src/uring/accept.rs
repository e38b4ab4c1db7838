//! Listeners on io_uring.

use std::net::{Shutdown, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Instant;

use io_uring::{cqueue, opcode};

use super::Uring;
use super::queue::{Handle, Kind};
use crate::sys;
use crate::{Event, Token};

pub(super) struct Listener {
    socket: TcpListener,
    token: Token,
    /// One operation accepts many connections (Linux 5.19).
    multishot: bool,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// An operation is in flight.
    Armed,
    /// Accepting failed for want of resources; it is tried again at this time.
    Paused(Instant),
    /// The last operation is on its way out.
    Stopped,
}

impl Uring {
    pub(crate) fn add_listener(
        &mut self,
        socket: TcpListener,
        token: Token,
    ) -> std::io::Result<()> {
        // As with sockets: a non-blocking one would not be waited for.
        socket.set_nonblocking(false)?;
        let listener = Listener { socket, token, multishot: true, state: State::Armed };
        let key = self.listeners.insert(listener);
        self.start_accept(key.index);
        Ok(())
    }

    /// Closes the listeners with these tokens; with `shut`, also for others who have a copy of the socket.
    pub(crate) fn stop_accepting(&mut self, which: impl Fn(Token) -> bool, shut: bool) {
        let mut gone = Vec::new();
        for (index, listener) in self.listeners.iter_mut() {
            if !which(listener.token) || listener.state == State::Stopped {
                continue;
            }
            if let State::Paused(_) = listener.state {
                gone.push(index);
                continue;
            }
            listener.state = State::Stopped;
            if shut {
                // Refuses new connections at once; the descriptor is closed after the cancellation.
                sys::shutdown(listener.socket.as_raw_fd(), Shutdown::Both);
            }
            self.queue.push_cancel(Kind::Accept.user_data(index));
        }
        for index in gone {
            self.listeners.remove_at(index);
        }
    }

    fn start_accept(&mut self, index: u32) {
        let Some(listener) = self.listeners.at(index) else { return };
        listener.state = State::Armed;
        let handle = Handle::Fd(listener.socket.as_raw_fd());
        let entry = if listener.multishot {
            opcode::AcceptMulti::new(handle.number()).flags(libc::SOCK_CLOEXEC).build()
        } else {
            let nowhere = std::ptr::null_mut();
            opcode::Accept::new(handle.number(), nowhere, nowhere.cast())
                .flags(libc::SOCK_CLOEXEC)
                .build()
        };
        let entry = handle.finish(entry, Kind::Accept.user_data(index));
        // SAFETY: the entry points to no memory.
        unsafe { self.queue.push(entry) };
    }

    pub(super) fn accept_done(
        &mut self,
        index: u32,
        result: i32,
        flags: u32,
        events: &mut Vec<Event>,
    ) {
        // Owned at once, so that it is closed on every way out.
        // SAFETY: a result that is not negative is a new descriptor that belongs to nobody else.
        let socket = (result >= 0).then(|| unsafe { OwnedFd::from_raw_fd(result) });
        let more = cqueue::more(flags);
        let Some(listener) = self.listeners.at(index) else { return };
        let token = listener.token;
        if listener.state == State::Stopped {
            if !more {
                self.listeners.remove_at(index);
            }
            return;
        }
        if let Some(socket) = socket {
            events.push(sys::accepted(socket, token));
        } else if result == -libc::EINVAL && listener.multishot {
            // An older kernel: it knows one connection per operation only.
            listener.multishot = false;
        } else {
            events.push(Event::AcceptFailed { token, errno: -result });
            if sys::is_shortage(-result) || result == -libc::EINVAL {
                let at = Instant::now() + sys::ACCEPT_PAUSE;
                listener.state = State::Paused(at);
                self.retry_accept = Some(self.retry_accept.map_or(at, |other| other.min(at)));
                return;
            }
        }
        if !more {
            self.start_accept(index);
        }
    }

    /// Resumes the listeners whose pause is over.
    pub(super) fn resume_accept(&mut self) {
        let Some(due) = self.retry_accept else { return };
        let now = Instant::now();
        if due > now {
            return;
        }
        let mut next: Option<Instant> = None;
        let mut ready = Vec::new();
        for (index, listener) in self.listeners.iter_mut() {
            match listener.state {
                State::Paused(at) if at <= now => ready.push(index),
                State::Paused(at) => next = Some(next.map_or(at, |other| other.min(at))),
                State::Armed | State::Stopped => {}
            }
        }
        self.retry_accept = next;
        for index in ready {
            self.start_accept(index);
        }
    }
}
