//! Descriptors of others that are watched on epoll.

use std::os::fd::{AsRawFd, OwnedFd};

use super::{Epoll, Kind};
use crate::{Event, Token, WatchId};

/// One report, then nothing until it is asked for again.
const ONCE: i32 = libc::EPOLLIN | libc::EPOLLONESHOT;

pub(super) struct Watch {
    fd: OwnedFd,
    token: Token,
}

impl Epoll {
    pub(crate) fn watch(&mut self, fd: OwnedFd, token: Token) -> std::io::Result<WatchId> {
        let raw = fd.as_raw_fd();
        let key = self.watches.insert(Watch { fd, token });
        match self.poll.add(raw, ONCE, Kind::Watch.data(key.index)) {
            Ok(()) => Ok(WatchId(key)),
            Err(error) => {
                self.watches.remove_at(key.index);
                Err(error)
            }
        }
    }

    pub(crate) fn watch_again(&mut self, id: WatchId) {
        if let Some(watch) = self.watches.get_mut(id.0) {
            self.poll.modify(watch.fd.as_raw_fd(), ONCE, Kind::Watch.data(id.0.index));
        }
    }

    pub(crate) fn unwatch(&mut self, id: WatchId) {
        if self.watches.get_mut(id.0).is_some() {
            if let Some(watch) = self.watches.remove_at(id.0.index) {
                // Its owner may have another descriptor for the same thing, so closing is not enough.
                self.poll.remove(watch.fd.as_raw_fd());
            }
        }
    }

    pub(super) fn watch_ready(&mut self, index: u32, events: &mut Vec<Event>) {
        if let Some(watch) = self.watches.at(index) {
            events.push(Event::Readable { token: watch.token });
        }
    }
}
