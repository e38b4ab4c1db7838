//! The driver of a simulated world: its network, its disks and its scheduler instead of the kernel's.
//!
//! Sockets are ends of the streams of [`Net`], files are real files whose writes, flushes and failures go by [`Disks`].
//! An operation takes a random time, and what it does to a file happens at its beginning or at its end.

mod disk;
mod net;
mod socket;
mod watch;

use std::io;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lunet_os::simulated::{self, Key};
use slab::Slab;

use self::disk::Disk;
use self::socket::{Accepting, Socket};
use self::watch::Watch;
use crate::files::Files;
use crate::slots::Slots;
use crate::{Counters, Event, PollSource, Token, Waker};

pub use self::disk::{Disks, Faults, close_files};
pub use self::net::{Net, Peer, Received};
pub use self::watch::Signal;

/// What the world tells a loop.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// Disk operations that are due, by number.
    disks: Vec<u64>,
    /// Connections that came in.
    accepted: Vec<(Token, net::End)>,
    /// Streams on which something has changed.
    streams: Vec<net::End>,
    /// Watched descriptors that may be readable, by number.
    signals: Vec<u64>,
}

/// Where the world tells a loop its news.
#[derive(Clone, Debug)]
pub(crate) struct Teller {
    key: Key,
    news: Arc<Mutex<News>>,
}

impl Teller {
    fn tell(&self, tell: impl FnOnce(&mut News)) {
        tell(&mut self.news.lock().unwrap_or_else(PoisonError::into_inner));
        simulated::wake(self.key, true);
    }
}

/// The driver.
pub(crate) struct Simulated {
    teller: Teller,
    sockets: Slots<Socket>,
    listeners: Vec<Accepting>,
    files: Files,
    disks: Slab<Disk>,
    watches: Slots<Watch>,
    /// Tells operations with the same place apart.
    serial: u64,
    ended: Vec<Event>,
    waker: Waker,
    counters: Counters,
}

impl Simulated {
    /// A driver for the calling thread, which belongs to a world.
    pub(crate) fn new(waker: Waker, key: Key) -> Self {
        Self {
            teller: Teller { key, news: Arc::default() },
            sockets: Slots::new(),
            listeners: Vec::new(),
            files: Files::new(),
            disks: Slab::new(),
            watches: Slots::new(),
            serial: 0,
            ended: Vec::new(),
            waker,
            counters: Counters::default(),
        }
    }

    pub(crate) const fn counters(&self) -> Counters {
        self.counters
    }

    pub(crate) fn add_listener(&mut self, listener: TcpListener, token: Token) -> io::Result<()> {
        let address = listener.local_addr()?;
        simulated::part::<Net>().listen(address, token, self.teller.clone());
        self.listeners.push(Accepting { token, address, _listener: listener });
        Ok(())
    }

    pub(crate) fn stop_accepting(&mut self, mut which: impl FnMut(Token) -> bool, _shut: bool) {
        let net = simulated::part::<Net>();
        self.listeners.retain(|accepting| {
            let goes = which(accepting.token);
            if goes {
                net.stop_listening(accepting.address);
            }
            !goes
        });
    }

    pub(crate) fn wait(
        &mut self,
        timeout: Option<Duration>,
        events: &mut Vec<Event>,
        source: &mut dyn PollSource,
    ) -> io::Result<()> {
        let before = events.len();
        self.counters.waits += 1;
        events.append(&mut self.ended);
        self.try_sockets(events);
        self.take_news(events);
        if events.len() == before && timeout != Some(Duration::ZERO) {
            if source.before_sleep(&mut |id| self.watch_again(id)) {
                return Ok(());
            }
            self.take_news(events);
        }
        if events.len() == before {
            // Others come first even if there is no time to wait.
            simulated::park(Some(self.teller.key), timeout);
            self.take_news(events);
        }
        Ok(())
    }

    pub(crate) fn gather(&mut self, time: Duration) -> io::Result<()> {
        lunet_os::thread::sleep(time);
        Ok(())
    }

    /// Turns what the world has told into events.
    fn take_news(&mut self, events: &mut Vec<Event>) {
        if self.waker.take() {
            events.push(Event::Woken);
        }
        let news = {
            let mut news = self.teller.news.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *news)
        };
        for serial in news.disks {
            self.disk_due(serial, events);
        }
        for (token, end) in news.accepted {
            self.accepted(token, end, events);
        }
        for end in news.streams {
            self.stream_changed(end, events);
        }
        for signal in news.signals {
            self.signalled(signal, events);
        }
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        self.stop_accepting(|_| true, true);
        let keys = self.sockets.keys(|_| true);
        for key in keys {
            self.close_socket(crate::SocketId(key));
        }
    }
}
