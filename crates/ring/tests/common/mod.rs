//! What the tests of both drivers share.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lunet_block::Random;
use lunet_ring::{
    Buf, BusyPoll, Config, DriverChoice, Event, FileId, PassthroughRings, Ring, RxBufs, SocketId,
    Token, Treatment, TxChain,
};

/// Makes a file known to an event loop.
pub fn add(ring: &mut Ring, file: Arc<File>) -> FileId {
    let treatment = Treatment::of(&file);
    ring.add_file(file, treatment)
}

/// Waits until nobody else holds it: what the loop lets go of ends on a thread of its own. False if that
/// does not happen.
pub fn is_given_back<T>(it: &Arc<T>) -> bool {
    let deadline = Instant::now() + Duration::from_secs(20);
    while Arc::strong_count(it) > 1 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    Arc::strong_count(it) == 1
}

/// Makes a test for each driver, and one more with busy polling, from functions of a `Config`.
#[macro_export]
macro_rules! for_each_driver {
    ($($name:ident),* $(,)?) => {
        mod io_uring {
            $(#[test]
            fn $name() {
                $crate::common::with(lunet_ring::DriverChoice::IoUring, 0, super::$name);
            })*
        }
        mod io_uring_busy_polling {
            $(#[test]
            fn $name() {
                $crate::common::with(lunet_ring::DriverChoice::IoUring, 100, super::$name);
            })*
        }
        mod epoll {
            $(#[test]
            fn $name() {
                $crate::common::with(lunet_ring::DriverChoice::Epoll, 0, super::$name);
            })*
        }
        mod epoll_busy_polling {
            $(#[test]
            fn $name() {
                $crate::common::with(lunet_ring::DriverChoice::Epoll, 100, super::$name);
            })*
        }
    };
}

/// Runs a test with one driver. Where the system denies io_uring there is nothing to test, which
/// is said.
pub fn with(driver: DriverChoice, busy_micros: u64, test: impl FnOnce(Config)) {
    let config = Config {
        entries: 64,
        arena_bytes: 8 << 20,
        kept_bytes: 0,
        disk_threads: 2,
        driver,
        busy_poll: BusyPoll::For(Duration::from_micros(busy_micros)),
        zero_copy_send: true,
        passthrough: PassthroughRings { interrupt: true, polled: true },
    };
    match Ring::new(&config) {
        Ok(_) => test(config),
        Err(error)
            if driver == DriverChoice::IoUring
                && matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) =>
        {
            eprintln!("not tested: io_uring is denied here ({error})");
        }
        Err(error) => panic!("no event loop: {error}"),
    }
}

/// An event loop that hands out one event at a time.
pub struct Loop {
    pub ring: Ring,
    pending: VecDeque<Event>,
    fresh: Vec<Event>,
}

impl Loop {
    pub fn new(config: &Config) -> Self {
        let ring = Ring::new(config).expect("an event loop");
        Self { ring, pending: VecDeque::new(), fresh: Vec::new() }
    }

    /// The next event. It must come within 20 seconds.
    pub fn next(&mut self) -> Event {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(event) = self.pending.pop_front() {
                return event;
            }
            assert!(Instant::now() < deadline, "no event came");
            self.iterate(Some(Duration::from_secs(1)));
        }
    }

    /// One wait, whatever comes of it.
    pub fn iterate(&mut self, timeout: Option<Duration>) {
        self.ring.wait(timeout, &mut self.fresh).expect("the kernel waits");
        self.pending.extend(self.fresh.drain(..));
    }

    /// The next event, if one is there at once.
    pub fn poll(&mut self) -> Option<Event> {
        self.iterate(Some(Duration::ZERO));
        self.pending.pop_front()
    }

    pub fn received(&mut self) -> (Token, RxBufs, Result<usize, i32>) {
        match self.next() {
            Event::Received { token, bufs, result } => (token, bufs, result),
            other => panic!("expected the end of a receive: {other:?}"),
        }
    }

    pub fn sent(&mut self) -> (Token, TxChain, Result<(), i32>) {
        match self.next() {
            Event::Sent { token, chain, result } => (token, chain, result),
            other => panic!("expected the end of a send: {other:?}"),
        }
    }

    pub fn disk(&mut self) -> (Token, Option<Buf>, Result<usize, i32>) {
        match self.next() {
            Event::Disk { token, buf, result } => (token, buf, result),
            other => panic!("expected the end of a disk operation: {other:?}"),
        }
    }

    pub fn add(&mut self, socket: impl Into<OwnedFd>) -> SocketId {
        self.ring.add_socket(socket.into())
    }

    pub fn buf(&self, bytes: &[u8]) -> Buf {
        let mut buf = self.ring.arena().alloc(bytes.len()).expect("room in the arena");
        buf.copy_from_slice(bytes);
        buf
    }

    pub fn blank(&self, len: usize) -> Buf {
        self.buf(&vec![0; len])
    }

    /// True if every buffer came back to the arena.
    pub fn all_free(&self) -> bool {
        self.ring.arena().free_bytes() == self.ring.arena().total_bytes()
    }
}

/// Receive buffers without a payload.
pub fn scratch(len: usize) -> RxBufs {
    RxBufs { payload: None, scratch: vec![0; len].into(), scratch_limit: len }
}

/// Receive buffers with both.
pub fn split(buf: Buf, range: Range<usize>, limit: usize) -> RxBufs {
    RxBufs { payload: Some((buf, range)), ..scratch(limit) }
}

/// A chain of plain bytes.
pub fn plain(bytes: &[u8]) -> TxChain {
    let mut chain = TxChain::new();
    chain.bytes(bytes);
    chain
}

/// Repeatable bytes without a short period.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Random::new(seed).fill(&mut bytes);
    bytes
}

/// True while this process has the socket or file with this link in `/proc/self/fd`.
pub fn is_open(link: &std::path::Path) -> bool {
    descriptors(link) > 0
}

/// How many descriptors of this process have this link.
pub fn descriptors(link: &std::path::Path) -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").expect("procfs").flatten();
    entries.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|l| l == link)).count()
}

/// The link of a descriptor, which names its socket.
pub fn link_of(fd: &impl std::os::fd::AsRawFd) -> std::path::PathBuf {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).expect("procfs")
}
