//! A network between gateways that holds back what it is told to.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::Duration;

use anyhow::Result;

use crate::world::until;

/// How often a connection is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// A way to one portal. Connections are numbered in the order in which they come.
pub struct Network {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    closing: AtomicBool,
    wires: Mutex<Vec<Arc<Wire>>>,
}

/// What a connection carries to the portal.
#[derive(Default)]
struct Wire {
    held: AtomicBool,
    /// Bytes that are held back.
    pending: AtomicUsize,
    /// Bytes that have come back.
    returned: AtomicUsize,
    /// The portal does not hear of its end yet: what was held back is answered before.
    stays: AtomicBool,
}

impl Network {
    /// One to the portal at `address:port`.
    pub fn to(portal: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let (portal, of_all) = (portal.to_owned(), shared.clone());
        thread::spawn(move || {
            for from in listener.incoming().flatten() {
                if of_all.closing.load(SeqCst) {
                    return;
                }
                let Ok(to) = TcpStream::connect(&portal) else { continue };
                let wire = Arc::new(Wire::default());
                of_all.wires.lock().unwrap_or_else(PoisonError::into_inner).push(wire.clone());
                // A connection that cannot be joined ends.
                drop(join(from, to, wire));
            }
        });
        Ok(Self { address, shared })
    }

    /// Where it begins.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn wires(&self) -> Vec<Arc<Wire>> {
        self.shared.wires.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many connections there have been.
    pub fn count(&self) -> usize {
        self.wires().len()
    }

    /// Holds back what the first `count` connections carry to the portal, their ends among it.
    pub fn hold(&self, count: usize) {
        for wire in &self.wires()[..count] {
            wire.stays.store(true, SeqCst);
            wire.held.store(true, SeqCst);
        }
    }

    /// Waits until it holds something back.
    pub fn has_something(&self) -> Result<()> {
        let is_held = |it: &Arc<Wire>| it.held.load(SeqCst) && it.pending.load(SeqCst) > 0;
        until("something is held back", || Ok(self.wires().iter().any(is_held)))
    }

    /// Delivers what was held back, waits until the portal has said something to it, and tells it then of connections that have
    /// ended.
    pub fn deliver(&self) -> Result<()> {
        let held: Vec<_> = self.wires().into_iter().filter(|it| it.held.load(SeqCst)).collect();
        for wire in held {
            let (pending, before) = (wire.pending.load(SeqCst), wire.returned.load(SeqCst));
            wire.held.store(false, SeqCst);
            let answered = || pending == 0 || wire.returned.load(SeqCst) > before;
            until("what was held back is answered", || Ok(answered()))?;
            wire.stays.store(false, SeqCst);
        }
        Ok(())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.shared.closing.store(true, SeqCst);
        for wire in self.wires() {
            wire.held.store(false, SeqCst);
            wire.stays.store(false, SeqCst);
        }
        // Wakes the thread that accepts. If it cannot be reached it has ended already.
        drop(TcpStream::connect(self.address));
    }
}

fn join(from: TcpStream, to: TcpStream, wire: Arc<Wire>) -> std::io::Result<()> {
    from.set_nodelay(true)?;
    to.set_nodelay(true)?;
    from.set_read_timeout(Some(LOOK))?;
    let (mut back, mut forth, returns) = (to.try_clone()?, from.try_clone()?, wire.clone());
    thread::spawn(move || {
        let mut chunk = vec![0; 64 << 10];
        while let Ok(read @ 1..) = back.read(&mut chunk) {
            returns.returned.fetch_add(read, SeqCst);
            // Nobody may be there any more.
            drop(forth.write_all(&chunk[..read]));
        }
        drop(forth.shutdown(Shutdown::Both));
    });
    thread::spawn(move || carry(from, to, &wire));
    Ok(())
}

/// Carries bytes until there are no more, and none are held back.
fn carry(mut from: TcpStream, mut to: TcpStream, wire: &Wire) {
    let (mut pending, mut chunk, mut ended) = (Vec::new(), vec![0; 64 << 10], false);
    loop {
        if ended {
            sleep(LOOK);
        } else {
            match from.read(&mut chunk) {
                Ok(0) => ended = true,
                Ok(read) => pending.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => ended = true,
            }
        }
        wire.pending.store(pending.len(), SeqCst);
        if wire.held.load(SeqCst) {
            continue;
        }
        if to.write_all(&pending).is_err() {
            return;
        }
        pending.clear();
        wire.pending.store(0, SeqCst);
        if ended && !wire.stays.load(SeqCst) {
            drop(to.shutdown(Shutdown::Both));
            return;
        }
    }
}
