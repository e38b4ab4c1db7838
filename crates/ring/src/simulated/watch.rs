//! Descriptors that loops of a simulated world watch.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lunet_os::simulated;

use super::{Simulated, Teller};
use crate::{Event, Token, WatchId};

/// What loops can learn of a descriptor.
#[derive(Debug, Default)]
struct State {
    readable: bool,
    watchers: Vec<Teller>,
}

/// The descriptors of a world that can be watched, by number.
#[derive(Debug, Default)]
struct Signals(Mutex<(u64, HashMap<u64, State>)>);

impl Signals {
    fn lock(&self) -> MutexGuard<'_, (u64, HashMap<u64, State>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A descriptor of which the world says whether it is readable. It is an open file that holds its number, so a duplicate
/// of it is known for the same.
#[derive(Clone, Copy, Debug)]
pub struct Signal {
    number: u64,
    fd: RawFd,
}

impl Signal {
    /// A descriptor that is not readable. Its file is in this folder, and has no name.
    ///
    /// # Errors
    /// The system's.
    pub fn new(folder: &Path) -> io::Result<Self> {
        let signals = simulated::part::<Signals>();
        let mut all = signals.lock();
        all.0 += 1;
        let number = all.0;
        all.1.insert(number, State::default());
        drop(all);
        let path = folder.join(format!("signal-{number}"));
        let file = File::options().create_new(true).read(true).write(true).open(&path)?;
        file.write_all_at(&number.to_ne_bytes(), 0)?;
        fs::remove_file(path)?;
        Ok(Self { number, fd: file.into_raw_fd() })
    }

    /// The descriptor.
    pub const fn fd(&self) -> RawFd {
        self.fd
    }

    /// It becomes readable, or is not any more.
    pub fn set(&self, readable: bool) {
        let signals = simulated::part::<Signals>();
        let mut all = signals.lock();
        let Some(state) = all.1.get_mut(&self.number) else { return };
        state.readable = readable;
        let watchers = if readable { state.watchers.clone() } else { Vec::new() };
        drop(all);
        for watcher in watchers {
            watcher.tell(|news| news.signals.push(self.number));
        }
    }

    /// Closes it.
    pub fn close(self) {
        simulated::part::<Signals>().lock().1.remove(&self.number);
        // SAFETY: it was made here, and is a value that is used no more.
        drop(unsafe { OwnedFd::from_raw_fd(self.fd) });
    }
}

/// A descriptor that a loop watches.
pub(super) struct Watch {
    _fd: OwnedFd,
    signal: u64,
    token: Token,
    armed: bool,
}

impl Simulated {
    pub(crate) fn watch(&mut self, fd: OwnedFd, token: Token) -> io::Result<WatchId> {
        let file = File::from(fd);
        let mut number = [0; 8];
        file.read_exact_at(&mut number, 0)?;
        let signal = u64::from_ne_bytes(number);
        match simulated::part::<Signals>().lock().1.get_mut(&signal) {
            Some(state) => state.watchers.push(self.teller.clone()),
            // Nothing of the kernel's can be watched here.
            None => return Err(io::ErrorKind::Unsupported.into()),
        }
        let id =
            WatchId(self.watches.insert(Watch { _fd: file.into(), signal, token, armed: false }));
        self.watch_again(id);
        Ok(id)
    }

    pub(crate) fn watch_again(&mut self, id: WatchId) {
        let Some(watch) = self.watches.get_mut(id.0) else { return };
        watch.armed = true;
        let signal = watch.signal;
        self.teller.tell(|news| news.signals.push(signal));
    }

    pub(crate) fn unwatch(&mut self, id: WatchId) {
        self.watches.remove(id.0);
    }

    /// A descriptor may have become readable.
    pub(super) fn signalled(&mut self, signal: u64, events: &mut Vec<Event>) {
        if !simulated::part::<Signals>().lock().1.get(&signal).is_some_and(|state| state.readable) {
            return;
        }
        for (_, watch) in self.watches.iter_mut() {
            if watch.signal == signal && std::mem::take(&mut watch.armed) {
                events.push(Event::Readable { token: watch.token });
            }
        }
    }
}
