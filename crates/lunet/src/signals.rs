//! SIGTERM and SIGINT end the server, SIGHUP lets it read its configuration again.

use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;

use crate::log;

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

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// End in good order.
    Stop,
    /// Read the configuration again.
    Reload,
}

/// The signals that the server takes. Caught from the moment that this is made.
#[derive(Debug)]
pub struct Signals {
    /// Gets a byte for each signal.
    caught: UnixStream,
    stop: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
}

impl Signals {
    /// Catches the signals.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn catch() -> io::Result<Self> {
        let (caught, catcher) = UnixStream::pair()?;
        let (stop, reload) = (Arc::default(), Arc::default());
        for (signal, wish) in [(SIGTERM, &stop), (SIGINT, &stop), (SIGHUP, &reload)] {
            // The wish first, so that it is there when the byte wakes us up.
            flag::register(signal, Arc::clone(wish))?;
            pipe::register(signal, catcher.try_clone()?)?;
        }
        Ok(Self { caught, stop, reload })
    }

    /// Waits for a signal, but no longer than `limit`. Several wishes come one after the other,
    /// the end first; the same one twice may come once.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn wait(&mut self, limit: Option<Duration>) -> io::Result<Option<Wish>> {
        if let Some(wish) = self.next() {
            return Ok(Some(wish));
        }
        self.caught.set_read_timeout(limit)?;
        match self.caught.read(&mut [0]) {
            Ok(_) => Ok(self.next()),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn next(&self) -> Option<Wish> {
        let wishes = [(&self.stop, Wish::Stop), (&self.reload, Wish::Reload)];
        wishes.into_iter().find(|(wish, _)| wish.swap(false, Ordering::AcqRel)).map(|(_, w)| w)
    }

    /// From now on a signal to stop ends the process at once.
    ///
    /// # Errors
    /// The operating system grants no thread.
    pub fn at_once(mut self) -> io::Result<()> {
        let exit = move || {
            while let Ok(wish) = self.wait(None) {
                if wish == Some(Wish::Stop) {
                    log::tell(
                        "a signal while stopping: ending at once, volumes may not be flushed",
                    );
                    log::finish();
                    std::process::exit(1);
                }
            }
        };
        thread::Builder::new().name("second-signal".into()).spawn(exit).map(drop)
    }
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
