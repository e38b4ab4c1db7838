//! Descriptors of others that are watched on io_uring.

use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::opcode;

use super::Uring;
use super::queue::{Handle, Kind};
use crate::slots::Key;
use crate::{Event, Token, WatchId};

pub(super) struct Watch {
    fd: OwnedFd,
    token: Token,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// An operation waits for it.
    Armed,
    /// Reported, and not asked for again.
    Idle,
    /// The last operation is on its way out.
    Leaving,
}

impl Uring {
    pub(crate) fn watch(&mut self, fd: OwnedFd, token: Token) -> std::io::Result<WatchId> {
        let key = self.watches.insert(Watch { fd, token, state: State::Idle });
        self.arm_watch(key);
        Ok(WatchId(key))
    }

    pub(crate) fn watch_again(&mut self, id: WatchId) {
        self.arm_watch(id.0);
    }

    fn arm_watch(&mut self, key: Key) {
        let Some(watch) = self.watches.get_mut(key).filter(|watch| watch.state == State::Idle)
        else {
            return;
        };
        watch.state = State::Armed;
        let handle = Handle::Fd(watch.fd.as_raw_fd());
        let entry = opcode::PollAdd::new(handle.number(), libc::POLLIN as u32).build();
        // SAFETY: the entry points to no memory.
        unsafe { self.queue.push(handle.finish(entry, Kind::Watch.user_data(key.index))) };
    }

    pub(crate) fn unwatch(&mut self, id: WatchId) {
        let Some(watch) = self.watches.get_mut(id.0) else { return };
        match watch.state {
            State::Idle => drop(self.watches.remove_at(id.0.index)),
            State::Armed => {
                watch.state = State::Leaving;
                self.queue.push_cancel(Kind::Watch.user_data(id.0.index));
            }
            State::Leaving => {}
        }
    }

    pub(super) fn end_all_watches(&mut self) {
        let mut armed = Vec::new();
        for (index, watch) in self.watches.iter_mut() {
            if watch.state == State::Armed {
                watch.state = State::Leaving;
                armed.push(index);
            }
        }
        for index in armed {
            self.queue.push_cancel(Kind::Watch.user_data(index));
        }
    }

    /// An operation on a watched descriptor has ended. An error is for whoever reads it to find.
    pub(super) fn watch_done(&mut self, index: u32, events: &mut Vec<Event>) {
        let Some(watch) = self.watches.at(index) else { return };
        if watch.state == State::Leaving {
            self.watches.remove_at(index);
            return;
        }
        watch.state = State::Idle;
        events.push(Event::Readable { token: watch.token });
    }
}
