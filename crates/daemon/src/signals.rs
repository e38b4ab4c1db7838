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
