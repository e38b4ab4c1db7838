//! What can be measured here in a moment.

use std::time::Duration;

/// How long each thread copies.
const LONG: Duration = Duration::from_millis(250);

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
    let (copy_bytes_per_second, threads) = lunet_bench::ceiling::copies(LONG);
    Measured { copy_bytes_per_second, threads }
}
