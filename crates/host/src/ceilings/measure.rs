//! What can be measured here in a moment.

use std::thread;
use std::time::{Duration, Instant};

/// More than any cache of a core holds.
const BLOCK: usize = 32 << 20;
/// How long each thread copies.
const LONG: Duration = Duration::from_millis(250);
/// More threads than this do not move more on any machine.
const MOST_THREADS: usize = 32;

/// What was measured on this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// What all threads copied together, in bytes per second. A copy reads and writes each byte.
    pub copy_bytes_per_second: f64,
    /// How many threads copied.
    pub threads: usize,
}

/// Copies memory for a quarter of a second on as many threads as there are processors.
pub fn measure() -> Measured {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    let workers: Vec<_> = (0..threads).map(|_| thread::spawn(copy)).collect();
    let rates = workers.into_iter().filter_map(|worker| worker.join().ok());
    Measured { copy_bytes_per_second: rates.sum(), threads }
}

fn copy() -> f64 {
    let from = vec![1u8; BLOCK];
    let mut to = vec![0u8; BLOCK];
    to.copy_from_slice(&from);
    let start = Instant::now();
    let mut copied = 0;
    while start.elapsed() < LONG {
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
        copied += BLOCK;
    }
    copied as f64 / start.elapsed().as_secs_f64()
}
