//! Threads beside io_uring, for what it does not know on all kernels.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;

use io_uring::opcode;

use super::Uring;
use super::disk::Disk;
use super::queue::{Handle, Kind};
use crate::pool::{Call, Job, Outcome, Pool};
use crate::ring::Refused;
use crate::{Event, FileId, Token};

/// One that is held up by a slow device leaves another.
const THREADS: usize = 2;

/// The most jobs that the threads know of; more wait here.
const BOUND: usize = 256;

pub(super) struct Helpers {
    pool: Pool,
    staged: VecDeque<Job>,
    outcomes: Vec<(u32, Outcome)>,
    /// Where the kernel writes the counter of results.
    count: Box<u64>,
}

impl Helpers {
    fn new() -> io::Result<Self> {
        let pool = Pool::new(THREADS, BOUND)?;
        Ok(Self { pool, staged: VecDeque::new(), outcomes: Vec::new(), count: Box::new(0) })
    }

    /// Gives an operation up if no thread has begun it; its end is reported as any other. False
    /// if it is not to be found.
    pub(super) fn give_up(&self, index: u32) -> bool {
        self.pool.give_up(index)
    }
}

impl Uring {
    /// Has an operation carried out by a thread.
    pub(super) fn help(
        &mut self,
        id: FileId,
        fd: RawFd,
        call: Call,
        token: Token,
    ) -> Result<(), Refused> {
        if self.helpers.is_none() {
            let Ok(helpers) = Helpers::new() else {
                return Err(Refused { buf: None, errno: libc::EAGAIN });
            };
            self.helpers = Some(helpers);
            self.start_helpers();
        }
        let (Some(file), Some(helpers)) = (self.files.get_mut(id.0), &mut self.helpers) else {
            return Err(Refused { buf: None, errno: libc::EBADF });
        };
        file.in_flight += 1;
        let index = self.disks.insert(Disk::new(token, None, id)) as u32;
        helpers.staged.push_back(Job { index, fd, call });
        self.queue.counters.operations += helpers.pool.submit(&mut helpers.staged) as u64;
        Ok(())
    }

    /// Waits for results.
    fn start_helpers(&mut self) {
        let Some(helpers) = &mut self.helpers else { return };
        let handle = Handle::Fd(helpers.pool.event().raw());
        let to = (&raw mut *helpers.count).cast();
        let entry = opcode::Read::new(handle.number(), to, 8).build();
        // SAFETY: the box is not touched but here, after the read before has ended; the helpers
        // live as long as the driver.
        unsafe { self.queue.push(handle.finish(entry, Kind::Helpers.user_data(0))) };
    }

    /// Turns results into events, and hands over what had no room.
    pub(super) fn helpers_done(&mut self, events: &mut Vec<Event>) {
        if self.ending {
            return;
        }
        let Some(helpers) = &mut self.helpers else { return };
        let mut outcomes = std::mem::take(&mut helpers.outcomes);
        helpers.pool.fetch(&mut outcomes);
        for (index, result) in outcomes.drain(..) {
            self.disk_done(index, result, events);
        }
        if let Some(helpers) = &mut self.helpers {
            helpers.outcomes = outcomes;
            self.queue.counters.operations += helpers.pool.submit(&mut helpers.staged) as u64;
        }
        self.start_helpers();
    }
}
