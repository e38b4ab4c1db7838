//! A watch over worlds of which a thread never gives its turn away: nothing within the world can end those.

use std::io;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Processor time that no world needs: the longest take half a second.
const MOST: Duration = Duration::from_secs(20);

static SEED: AtomicU64 = AtomicU64::new(0);
/// The processor time of this process, in nanoseconds, when the world of that seed began.
static BEGAN: AtomicU64 = AtomicU64::new(0);

fn used() -> u64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}

/// The world of a seed begins, and the one before has ended.
pub(crate) fn world_begins(seed: u64) {
    BEGAN.store(used(), Ordering::Relaxed);
    SEED.store(seed, Ordering::Relaxed);
}

/// Ends the process as soon as one of its worlds has used too much processor time. What is wrong is told in the line of
/// its seed.
///
/// # Errors
/// The operating system has no thread to give.
pub fn start() -> io::Result<()> {
    world_begins(0);
    let look = || loop {
        thread::sleep(Duration::from_secs(1));
        if used().saturating_sub(BEGAN.load(Ordering::Relaxed)) > MOST.as_nanos() as u64 {
            let seed = SEED.load(Ordering::Relaxed);
            println!("{seed} 0 0 a thread runs on and on, and never gives its turn away");
            process::exit(1);
        }
    };
    thread::Builder::new().name("watch".into()).spawn(look).map(drop)
}
