//! The epoll driver: for systems that deny io_uring. Sockets are tried and watched by the loop's
//! own thread, disk operations go to a few threads.

mod accept;
mod disk;
mod socket;
mod watch;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use slab::Slab;

use self::accept::Listener;
use self::disk::Disk;
use self::socket::{Attempt, Socket};
use self::watch::Watch;
use crate::files::Files;
use crate::polling::Polling;
use crate::pool::{Job, Outcome, Pool};
use crate::shrink::Shrink;
use crate::slots::Slots;
use crate::sys;
use crate::{Config, Counters, Event, PollSource, Waker};

/// Reports taken from the kernel at a time.
const BATCH: usize = 256;

/// What a report is about, in the top byte of its data; the rest is a place in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Socket = 1,
    Listener,
    Waker,
    Disks,
    Watch,
}

impl Kind {
    const fn data(self, index: u32) -> u64 {
        ((self as u64) << 56) | index as u64
    }
}

/// The kernel's list of watched descriptors.
struct Poll(OwnedFd);

impl Poll {
    fn new() -> io::Result<Self> {
        // SAFETY: makes a new descriptor and touches no memory.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just made and belongs to nobody else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn control(&self, op: i32, fd: RawFd, what: i32, data: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: what as u32, u64: data };
        // SAFETY: the kernel reads one `epoll_event`.
        if unsafe { libc::epoll_ctl(self.0.as_raw_fd(), op, fd, &raw mut event) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    fn add(&self, fd: RawFd, what: i32, data: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, what, data)
    }

    /// Changes what is watched. It fails only for a descriptor that is not watched at all.
    fn modify(&self, fd: RawFd, what: i32, data: u64) {
        let _ = self.control(libc::EPOLL_CTL_MOD, fd, what, data);
    }

    /// Stops watching. It fails only for a descriptor that is not watched.
    fn remove(&self, fd: RawFd) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    fn wait(&self, into: &mut [libc::epoll_event; BATCH], millis: i32) -> Result<usize, i32> {
        let fd = self.0.as_raw_fd();
        // SAFETY: the kernel writes at most BATCH entries.
        let n = unsafe { libc::epoll_wait(fd, into.as_mut_ptr(), BATCH as i32, millis) };
        usize::try_from(n).map_err(|_| sys::last_errno())
    }
}

pub(crate) struct Epoll {
    /// First, so that the threads have ended before the memory they write to is freed.
    pool: Pool,
    poll: Poll,
    sockets: Slots<Socket>,
    shrink_sockets: Shrink,
    listeners: Slots<Listener>,
    watches: Slots<Watch>,
    files: Files,
    disks: Slab<Disk>,
    /// Operations on sockets to be tried by the next wait.
    attempts: Vec<(Attempt, u32)>,
    /// Disk operations to be handed to the threads by the next wait.
    staged: VecDeque<Job>,
    /// Ends of operations that were cancelled on the spot.
    ended: Vec<Event>,
    outcomes: Vec<(u32, Outcome)>,
    reports: Box<[libc::epoll_event; BATCH]>,
    polling: Polling,
    /// When the next paused listener is due.
    retry_accept: Option<Instant>,
    waker: Waker,
    counters: Counters,
}

impl Epoll {
    pub(crate) fn new(config: &Config, waker: Waker) -> io::Result<Self> {
        let poll = Poll::new()?;
        sys::sleep_exactly();
        let bound = config.entries.max(8) as usize;
        let pool = Pool::new(config.disk_threads, bound)?;
        poll.add(waker.event().raw(), libc::EPOLLIN, Kind::Waker.data(0))?;
        poll.add(pool.event().raw(), libc::EPOLLIN, Kind::Disks.data(0))?;
        Ok(Self {
            pool,
            poll,
            sockets: Slots::new(),
            shrink_sockets: Shrink::default(),
            listeners: Slots::new(),
            watches: Slots::new(),
            files: Files::new(),
            disks: Slab::with_capacity(bound),
            attempts: Vec::with_capacity(bound),
            staged: VecDeque::with_capacity(bound),
            ended: Vec::new(),
            outcomes: Vec::with_capacity(bound),
            reports: Box::new([libc::epoll_event { events: 0, u64: 0 }; BATCH]),
            polling: Polling::new(config.busy_poll),
            retry_accept: None,
            waker,
            counters: Counters::default(),
        })
    }

    pub(crate) const fn counters(&self) -> Counters {
        let looked_ns = self.polling.looked().as_nanos() as u64;
        Counters { looked_ns, ..self.counters }
    }

    pub(crate) fn wait(
        &mut self,
        timeout: Option<Duration>,
        events: &mut Vec<Event>,
        source: &mut dyn PollSource,
    ) -> io::Result<()> {
        let before = events.len();
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        let mut look_until =
            if timeout == Some(Duration::ZERO) { None } else { self.polling.begin() };
        events.append(&mut self.ended);
        let mut found = false;
        let mut rested = false;
        loop {
            self.resume_accept();
            self.counters.operations += self.pool.submit(&mut self.staged) as u64;
            self.try_queued(events);
            let now = Instant::now();
            let due = match (deadline, self.retry_accept) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            let mut look_only = events.len() > before || timeout == Some(Duration::ZERO);
            if look_until.is_some_and(|end| now >= end) {
                look_until = None;
                self.polling.in_vain();
            }
            if !look_only && look_until.is_some() {
                self.polling.nothing_yet(now);
                found = source.poll();
                look_only = true;
            } else if !look_only && !std::mem::replace(&mut rested, true) {
                found = source.before_sleep(&mut |id| self.watch_again(id));
                look_only = found;
            }
            let millis = match due {
                _ if look_only => 0,
                None => -1,
                Some(at) => millis(at.saturating_duration_since(now)),
            };
            let interrupted = self.collect(millis, events)?;
            let came = (events.len() - before).max(usize::from(found));
            let over =
                timeout == Some(Duration::ZERO) || deadline.is_some_and(|at| at <= Instant::now());
            if came > 0 || interrupted || over {
                self.polling.ended(came);
                return Ok(());
            }
        }
    }

    pub(crate) fn gather(&mut self, time: Duration) -> io::Result<()> {
        self.counters.operations += self.pool.submit(&mut self.staged) as u64;
        let mut ended = std::mem::take(&mut self.ended);
        self.try_queued(&mut ended);
        self.ended = ended;
        std::thread::sleep(time);
        Ok(())
    }

    /// Asks the kernel once and works off its reports. True if a signal came in between.
    fn collect(&mut self, millis: i32, events: &mut Vec<Event>) -> io::Result<bool> {
        self.counters.waits += 1;
        let count = match self.poll.wait(&mut self.reports, millis) {
            Ok(count) => count,
            Err(libc::EINTR) => return Ok(true),
            Err(errno) => return Err(io::Error::from_raw_os_error(errno)),
        };
        for at in 0..count {
            let libc::epoll_event { events: what, u64: data } = self.reports[at];
            let index = data as u32;
            match (data >> 56) as u8 {
                k if k == Kind::Socket as u8 => self.socket_ready(index, what as i32, events),
                k if k == Kind::Listener as u8 => self.accept(index, events),
                k if k == Kind::Disks as u8 => self.disks_done(events),
                k if k == Kind::Watch as u8 => self.watch_ready(index, events),
                _ => {
                    self.waker.event().clear();
                    self.waker.rearm();
                    events.push(Event::Woken);
                }
            }
        }
        Ok(false)
    }
}

/// Rounded up, so that a wait does not end just before its time.
fn millis(time: Duration) -> i32 {
    i32::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
}
