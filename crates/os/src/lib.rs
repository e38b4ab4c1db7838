//! The clock, the threads, the processors, the locks, the files and the random numbers that the server uses, and the programs
//! that it and the commands run.
//!
//! They are the standard library's. With the feature `simulated` (`sim/` alone asks for it) a thread of a simulated
//! world sees that world's clock, runs only when the world's scheduler lets it, and waits for locks and messages by
//! giving the turn to another thread. Then the same seed gives the same order of everything. Its files lose in a power
//! loss what was not synced.
//!
//! What may block, or looks at the time, in the crates of the server goes through this crate: a lock that is held while
//! its thread waits for something else would stop a simulated world for ever.

pub mod cpus;
pub mod fs;
pub mod process;
pub mod program;
#[cfg(feature = "simulated")]
pub mod simulated;
#[cfg(feature = "simulated")]
mod simulated_fs;
#[cfg(feature = "simulated")]
mod simulated_sync;
pub mod systemd;

/// Locks, and queues between threads.
pub mod sync {
    #[cfg(feature = "simulated")]
    pub use crate::simulated_sync::{Condvar, Mutex, MutexGuard, mpsc};
    #[cfg(not(feature = "simulated"))]
    pub use std::sync::{Condvar, Mutex, MutexGuard, mpsc};
}

/// Threads.
pub mod thread {
    use std::io;
    use std::time::Duration;

    #[cfg(feature = "simulated")]
    pub use crate::simulated::JoinHandle;
    #[cfg(not(feature = "simulated"))]
    pub use std::thread::JoinHandle;

    /// Lets others run that wait for this processor. Nobody is waited for.
    pub fn yield_now() {
        #[cfg(not(feature = "simulated"))]
        std::thread::yield_now();
    }

    /// Starts a thread with a name.
    ///
    /// # Errors
    /// The system has no thread to give.
    #[cfg(not(feature = "simulated"))]
    pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
        let work = || {
            crate::cpus::roam();
            work();
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(work)
    }

    /// Starts a thread with a name.
    ///
    /// # Errors
    /// The system has no thread to give.
    #[cfg(feature = "simulated")]
    pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
        crate::simulated::spawn(name, work)
    }

    /// Lets time pass.
    pub fn sleep(time: Duration) {
        #[cfg(feature = "simulated")]
        if crate::simulated::sleep(time) {
            return;
        }
        std::thread::sleep(time);
    }
}

/// What a thread does, told to whoever limits it to that.
pub mod role {
    use std::sync::OnceLock;

    /// The work of a thread.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Role {
        /// Serves connections. Its event loop is made, and so is its listener.
        Shard,
        /// Reads and writes files that are open, and nothing else.
        Disk,
        /// Writes the log.
        Log,
    }

    static LIMIT: OnceLock<fn(Role)> = OnceLock::new();

    /// Has threads limited by this function when they begin with their work. The first of a process counts.
    pub fn limit_with(limit: fn(Role)) {
        let _ = LIMIT.set(limit);
    }

    /// This thread begins with its work. What it starts has the same limits.
    pub fn enter(role: Role) {
        if let Some(limit) = LIMIT.get() {
            limit(role);
        }
    }
}

/// Random numbers.
pub mod random {
    use std::io;

    /// Fills at most 256 bytes with what nobody can guess.
    ///
    /// # Errors
    /// The system's: it has not collected enough since it was started.
    pub fn fill(bytes: &mut [u8]) -> io::Result<()> {
        #[cfg(feature = "simulated")]
        if crate::simulated::is_here() {
            bytes.fill_with(|| crate::simulated::below(256) as u8);
            return Ok(());
        }
        // The kernel gives so many in one go, or none.
        match rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty())? {
            n if n == bytes.len() => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Counts that this variant of an enum was met, for the simulator's report of what its worlds have reached. Nothing
/// outside of a world.
#[inline(always)]
pub fn met<T>(value: &T) {
    #[cfg(feature = "simulated")]
    crate::simulated::met(value);
    let _ = value;
}

/// True now and then in a simulated world: what may be refused is to be refused here, such as a message for a full
/// queue. Never outside of one.
#[inline(always)]
pub fn misfortune() -> bool {
    #[cfg(feature = "simulated")]
    return crate::simulated::misfortune();
    #[cfg(not(feature = "simulated"))]
    false
}

/// The time.
pub mod time {
    use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

    /// The monotonic clock.
    #[inline]
    pub fn now() -> Instant {
        #[cfg(feature = "simulated")]
        if let Some(now) = crate::simulated::now() {
            return now;
        }
        Instant::now()
    }

    /// How much time has passed since then.
    #[inline]
    pub fn since(then: Instant) -> Duration {
        now().saturating_duration_since(then)
    }

    /// A moment of a machine that has not been started anew since.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct SinceBoot {
        /// Another one after each start of the machine.
        pub boot: String,
        /// The time since then, that in which it slept included.
        pub up: Duration,
    }

    /// Now; `None` if the system does not tell. Simulated worlds do not.
    pub fn since_boot() -> Option<SinceBoot> {
        #[cfg(feature = "simulated")]
        if crate::simulated::now().is_some() {
            return None;
        }
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let (seconds, nanos) = (u64::try_from(up.tv_sec).ok()?, u32::try_from(up.tv_nsec).ok()?);
        Some(SinceBoot { boot: boot.trim().to_owned(), up: Duration::new(seconds, nanos) })
    }

    /// The system's clock: time since 1970. Zero if it is set before that.
    pub fn unix() -> Duration {
        #[cfg(feature = "simulated")]
        if let Some(now) = crate::simulated::unix() {
            return now;
        }
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }
}
