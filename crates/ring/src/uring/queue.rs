//! The two rings shared with the kernel: nothing is lost if one is full.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use io_uring::squeue::{Entry, Flags};
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, Submitter, cqueue, opcode, squeue, types};

use crate::Counters;

/// The kernel's `IORING_ENTER_GETEVENTS`.
const ENTER_GETEVENTS: u32 = 1;

/// The longest sleep; a longer timeout is cut to it, and the wait goes on after it.
const LONGEST_SLEEP: Duration = Duration::from_secs(1 << 20);

/// What an operation is, in the top byte of its user data; the rest is its place in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Recv = 1,
    Send,
    Disk,
    Accept,
    Wake,
    Cancel,
    Helpers,
    Watch,
    ZeroCopy,
    Commands,
}

impl Kind {
    pub(super) const fn user_data(self, index: u32) -> u64 {
        ((self as u64) << 56) | index as u64
    }

    pub(super) const fn parse(user_data: u64) -> Option<(Self, u32)> {
        let kind = match user_data >> 56 {
            1 => Self::Recv,
            2 => Self::Send,
            3 => Self::Disk,
            4 => Self::Accept,
            5 => Self::Wake,
            6 => Self::Cancel,
            7 => Self::Helpers,
            8 => Self::Watch,
            9 => Self::ZeroCopy,
            10 => Self::Commands,
            _ => return None,
        };
        Some((kind, user_data as u32))
    }
}

/// How the kernel is told of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handle {
    /// A place in the table of registered files.
    Fixed(u32),
    /// A descriptor.
    Fd(RawFd),
}

impl Handle {
    /// The number for the entry's file field; [`Handle::finish`] says which kind it is.
    pub(super) const fn number(self) -> types::Fd {
        match self {
            Self::Fixed(place) => types::Fd(place as RawFd),
            Self::Fd(fd) => types::Fd(fd),
        }
    }

    pub(super) fn finish(self, entry: Entry, user_data: u64) -> Entry {
        entry.user_data(user_data).flags(self.flags())
    }

    /// What says which kind it is.
    pub(super) const fn flags(self) -> Flags {
        match self {
            Self::Fixed(_) => Flags::FIXED_FILE,
            Self::Fd(_) => Flags::empty(),
        }
    }
}

/// One completion.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) user_data: u64,
    pub(super) result: i32,
    pub(super) flags: u32,
}

/// How a call of `io_uring_enter` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    Normally,
    /// By a signal, or because the kernel was short of memory.
    Early,
}

/// With this many completions at hand there is no use in waiting for more.
const MANY: usize = 64;

pub(super) struct Queue<S: squeue::EntryMarker = Entry, C: cqueue::EntryMarker = cqueue::Entry> {
    ring: IoUring<S, C>,
    /// Entries that found the submission queue full, in order.
    backlog: VecDeque<S>,
    /// Operations whose last completion is still to come.
    in_flight: usize,
    taskrun_flag: bool,
    pub(super) counters: Counters,
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> Queue<S, C> {
    pub(super) fn new(ring: IoUring<S, C>, taskrun_flag: bool) -> Self {
        let counters = Counters::default();
        Self { ring, backlog: VecDeque::new(), in_flight: 0, taskrun_flag, counters }
    }

    /// The ring itself, for registering files and buffers.
    pub(super) fn submitter(&self) -> Submitter<'_> {
        self.ring.submitter()
    }

    /// The ring's descriptor: readable when there are completions.
    pub(super) fn fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    pub(super) const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Queues an operation.
    ///
    /// # Safety
    /// All memory that the entry points to stays valid, and untouched where the kernel writes,
    /// until the operation's last completion.
    pub(super) unsafe fn push(&mut self, entry: S) {
        self.in_flight += 1;
        self.counters.operations += 1;
        // SAFETY: the caller's promise.
        if self.backlog.is_empty() && unsafe { self.ring.submission().push(&entry) }.is_ok() {
            return;
        }
        self.backlog.push_back(entry);
        self.flush();
    }

    /// Moves the backlog to the submission queue, submitting whenever that is full. What the
    /// kernel does not take now stays for the next call.
    pub(super) fn flush(&mut self) {
        while !self.backlog.is_empty() {
            let mut submission = self.ring.submission();
            while let Some(entry) = self.backlog.front() {
                // SAFETY: promised by the caller of `push` for as long as it is in flight.
                if unsafe { submission.push(entry) }.is_err() {
                    break;
                }
                self.backlog.pop_front();
            }
            drop(submission);
            if self.backlog.is_empty() || self.ring.submit().is_err() {
                return;
            }
        }
    }

    /// Submits what is queued, if anything is. What the kernel does not take stays for the next call.
    pub(super) fn submit_some(&mut self) {
        if !self.ring.submission().is_empty() {
            let _ = self.ring.submit();
        }
    }

    /// Submits what is queued and waits for a completion: until `timeout` has passed, for ever
    /// (`None`), or not at all (zero).
    pub(super) fn enter(&mut self, timeout: Option<Duration>) -> io::Result<Entered> {
        self.counters.waits += 1;
        let submitter = self.ring.submitter();
        let entered = match timeout {
            None => submitter.submit_and_wait(1),
            Some(Duration::ZERO) => {
                let queued = self.ring.submission().len() as u32;
                let submitter = self.ring.submitter();
                // SAFETY: no argument is passed, and the entries were promised in `push`.
                unsafe { submitter.enter::<libc::sigset_t>(queued, 0, ENTER_GETEVENTS, None) }
            }
            Some(timeout) => {
                let time = Timespec::from(timeout.min(LONGEST_SLEEP));
                submitter.submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
        };
        match entered {
            Ok(_) => Ok(Entered::Normally),
            Err(error) => match error.raw_os_error() {
                // EBUSY: completions must be fetched first, which follows.
                Some(libc::ETIME | libc::EBUSY) => Ok(Entered::Normally),
                Some(libc::EINTR | libc::EAGAIN | libc::ENOMEM) => Ok(Entered::Early),
                _ => Err(error),
            },
        }
    }

    /// Submits what is queued and waits until `time` has passed or there are many completions. With
    /// completion work deferred, a receive then takes all that has come meanwhile.
    pub(super) fn gather(&mut self, time: Duration) -> io::Result<()> {
        self.counters.waits += 1;
        let time = Timespec::from(time);
        match self.ring.submitter().submit_with_args(MANY, &SubmitArgs::new().timespec(&time)) {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EBUSY | libc::EINTR | libc::EAGAIN | libc::ENOMEM) => {
                    Ok(())
                }
                _ => Err(error),
            },
        }
    }

    /// True if there is something to submit, or a call of [`enter`](Self::enter) may bring
    /// something, as far as can be seen without one.
    pub(super) fn needs_enter(&mut self) -> bool {
        !self.taskrun_flag || self.is_raised() || !self.ring.completion().is_empty()
    }

    /// True if there is something to submit, or the kernel wants to be called for what is not in the completion queue.
    pub(super) fn is_raised(&mut self) -> bool {
        let submission = self.ring.submission();
        let raised = submission.taskrun() || submission.cq_overflow() || !submission.is_empty();
        drop(submission);
        raised || !self.backlog.is_empty()
    }

    /// True if something waits to be fetched.
    pub(super) fn has_completions(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// Fetches all completions that there are.
    pub(super) fn fetch(&mut self, into: &mut Vec<Done>) {
        for entry in self.ring.completion() {
            let entry: cqueue::Entry = entry.into();
            let flags = entry.flags();
            if !io_uring::cqueue::more(flags) {
                self.in_flight -= 1;
            }
            into.push(Done { user_data: entry.user_data(), result: entry.result(), flags });
        }
    }
}

impl Queue {
    /// Asks for the cancellation of an operation.
    pub(super) fn push_cancel(&mut self, user_data: u64) {
        let entry = opcode::AsyncCancel::new(user_data).build();
        // SAFETY: the entry points to no memory.
        unsafe { self.push(entry.user_data(Kind::Cancel.user_data(0))) };
    }
}
