//! Ctrl-C and the other signals that end a command.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// What ends a command that has something to take back: Ctrl-C, SIGTERM, and the end of its terminal, unless it was started to
/// outlive that (nohup).
pub fn of_the_end() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let hangup = (!ignores(&status, SIGHUP)).then_some(SIGHUP);
    [SIGINT, SIGTERM].into_iter().chain(hangup).collect()
}

/// Set by the first signal [of the end](of_the_end); the second one ends the program with this exit code.
///
/// # Errors
/// The operating system refuses.
pub fn first_of_the_end(code: i32) -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in of_the_end() {
        // In this order: the first one only asks.
        flag::register_conditional_shutdown(signal, code, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// Whether a process with this /proc/PID/status ignores a signal.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_started_to_outlive_its_terminal_does() {
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        let all = [SIGHUP, SIGINT, SIGTERM, signal_hook::consts::SIGPIPE];
        assert_eq!(all.map(|signal| ignores(status, signal)), [true, false, false, true]);
        assert!(!ignores("", SIGHUP));
    }
}
