//! Listeners on epoll.

use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Instant;

use super::{Epoll, Kind};
use crate::sys;
use crate::{Event, Token};

/// Connections taken per listener and wait, so that a flood of them does not starve the sockets.
const MAX_ACCEPTS: usize = 64;

pub(super) struct Listener {
    socket: TcpListener,
    token: Token,
    /// Accepting failed for want of resources; it is tried again at this time.
    paused: Option<Instant>,
}

impl Epoll {
    pub(crate) fn add_listener(
        &mut self,
        socket: TcpListener,
        token: Token,
    ) -> std::io::Result<()> {
        socket.set_nonblocking(true)?;
        let fd = socket.as_raw_fd();
        let index = self.listeners.insert(Listener { socket, token, paused: None }).index;
        let data = Kind::Listener.data(index);
        self.poll.add(fd, libc::EPOLLIN, data).inspect_err(|_| {
            self.listeners.remove_at(index);
        })
    }

    /// Closes the listeners with these tokens; with `shut`, also for others who have a copy of the socket.
    pub(crate) fn stop_accepting(&mut self, which: impl Fn(Token) -> bool, shut: bool) {
        let all = self.listeners.iter_mut().filter(|(_, listener)| which(listener.token));
        let all: Vec<u32> = all.map(|(index, _)| index).collect();
        for index in all {
            if let Some(listener) = self.listeners.remove_at(index) {
                self.poll.remove(listener.socket.as_raw_fd());
                if shut {
                    sys::shutdown(listener.socket.as_raw_fd(), std::net::Shutdown::Both);
                }
            }
        }
    }

    pub(super) fn accept(&mut self, index: u32, events: &mut Vec<Event>) {
        let Some(listener) = self.listeners.at(index) else { return };
        let (fd, token) = (listener.socket.as_raw_fd(), listener.token);
        for _ in 0..MAX_ACCEPTS {
            self.counters.operations += 1;
            let nowhere = std::ptr::null_mut();
            // SAFETY: no address is asked for, so no memory is touched.
            let raw = unsafe { libc::accept4(fd, nowhere, nowhere.cast(), libc::SOCK_CLOEXEC) };
            if raw >= 0 {
                // SAFETY: `raw` is a new descriptor that belongs to nobody else.
                let socket = unsafe { OwnedFd::from_raw_fd(raw) };
                events.push(sys::accepted(socket, token));
                continue;
            }
            let errno = sys::last_errno();
            if errno == libc::EAGAIN {
                return;
            }
            if errno != libc::EINTR {
                events.push(Event::AcceptFailed { token, errno });
            }
            if sys::is_shortage(errno) || errno == libc::EINVAL {
                self.pause(index);
                return;
            }
        }
    }

    fn pause(&mut self, index: u32) {
        let Some(listener) = self.listeners.at(index) else { return };
        let at = Instant::now() + sys::ACCEPT_PAUSE;
        listener.paused = Some(at);
        self.poll.modify(listener.socket.as_raw_fd(), 0, Kind::Listener.data(index));
        self.retry_accept = Some(self.retry_accept.map_or(at, |other| other.min(at)));
    }

    /// Resumes the listeners whose pause is over.
    pub(super) fn resume_accept(&mut self) {
        let Some(due) = self.retry_accept else { return };
        let now = Instant::now();
        if due > now {
            return;
        }
        let mut next: Option<Instant> = None;
        for (index, listener) in self.listeners.iter_mut() {
            match listener.paused {
                Some(at) if at <= now => {
                    listener.paused = None;
                    let fd = listener.socket.as_raw_fd();
                    self.poll.modify(fd, libc::EPOLLIN, Kind::Listener.data(index));
                }
                Some(at) => next = Some(next.map_or(at, |other| other.min(at))),
                None => {}
            }
        }
        self.retry_accept = next;
    }
}
