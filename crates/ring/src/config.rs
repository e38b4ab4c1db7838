//! What an event loop is made with.

use crate::BusyPoll;

/// Which driver to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DriverChoice {
    /// io_uring where the kernel allows it, else epoll with disk threads.
    #[default]
    Auto,
    /// io_uring, or an error.
    IoUring,
    /// epoll for sockets, a few threads for disks.
    Epoll,
}

/// Which driver is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// io_uring for sockets and disks.
    IoUring,
    /// epoll for sockets, a few threads for disks.
    Epoll,
}

/// The measures of one event loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Entries of the submission queue. More operations than that may be in flight; a full queue
    /// costs one more system call.
    pub entries: u32,
    /// Size of the arena in bytes, rounded up to whole MiB.
    pub arena_bytes: usize,
    /// Of these, bytes that are for reserves alone, rounded down to whole MiB.
    pub kept_bytes: usize,
    /// Threads for disk operations, at least 1; io_uring needs none.
    pub disk_threads: usize,
    /// Which driver to use.
    pub driver: DriverChoice,
    /// When to look for events without sleeping.
    pub busy_poll: BusyPoll,
    /// Whether io_uring sends large messages without a copy (Linux 6.2), on sockets where the kernel reports that it does
    /// so.
    pub zero_copy_send: bool,
    /// Rings for NVMe commands, which can be made at the beginning only.
    pub passthrough: PassthroughRings,
}

/// Which rings for NVMe commands a loop on io_uring has: see [`Ring::pass_through`](crate::Ring::pass_through).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassthroughRings {
    /// For commands whose ends interrupt.
    pub interrupt: bool,
    /// For commands whose ends are polled for.
    pub polled: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            entries: 1024,
            arena_bytes: 64 << 20,
            kept_bytes: 0,
            disk_threads: 4,
            driver: DriverChoice::Auto,
            busy_poll: BusyPoll::OFF,
            zero_copy_send: false,
            passthrough: PassthroughRings::default(),
        }
    }
}

/// What an event loop has done, to see how well it batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls of `io_uring_enter` or `epoll_wait`.
    pub waits: u64,
    /// Operations given to the kernel: submission queue entries, or system calls on sockets and
    /// jobs for disk threads. A receive tried in vain counts too.
    pub operations: u64,
    /// Receives that asked the kernel to wait for data before the first attempt, because the
    /// socket was known to be drained.
    pub polled_receives: u64,
    /// Sends that the socket took only a part of, and that were continued.
    pub partial_sends: u64,
    /// Bytes that were sent without a copy.
    pub zero_copy_bytes: u64,
    /// Bytes that were to be, and that the kernel has copied after all.
    pub zero_copy_copied_bytes: u64,
    /// Reads and writes that were NVMe commands past the block layer.
    pub commands: u64,
    /// Of these, those that have failed and were done again by the block layer.
    pub commands_failed: u64,
    /// How long it has polled without finding anything, in nanoseconds: time of the processor in which there was nothing to
    /// do.
    pub looked_ns: u64,
}
