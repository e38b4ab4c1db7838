//! SIGTERM and SIGINT.

use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

/// The signals that end the server. Caught from the moment that this is made.
#[derive(Debug)]
pub struct Stop {
    /// Gets a byte for each signal.
    caught: UnixStream,
}

impl Stop {
    /// Catches the signals.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn catch() -> io::Result<Self> {
        let (caught, catcher) = UnixStream::pair()?;
        pipe::register(SIGTERM, catcher.try_clone()?)?;
        pipe::register(SIGINT, catcher)?;
        Ok(Self { caught })
    }

    /// Waits for a signal, but no longer than `limit`. True if there was one.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn wait(&mut self, limit: Option<Duration>) -> io::Result<bool> {
        self.caught.set_read_timeout(limit)?;
        match self.caught.read(&mut [0]) {
            Ok(n) => Ok(n > 0),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// From now on a signal ends the process at once.
    ///
    /// # Errors
    /// The operating system grants no thread.
    pub fn at_once(mut self) -> io::Result<()> {
        let exit = move || {
            while let Ok(signalled) = self.wait(None) {
                if signalled {
                    eprintln!(
                        "lunet: a signal while stopping: ending at once, volumes may not be flushed"
                    );
                    std::process::exit(1);
                }
            }
        };
        thread::Builder::new().name("second-signal".into()).spawn(exit).map(drop)
    }
}
