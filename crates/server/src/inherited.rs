//! Sockets that listen already: those of the run before, and copies of this run's for the next one.
//!
//! A service manager that keeps the sockets of a service over its restart gives them to the next run. Clients that connect
//! meanwhile wait in their queue, and are not refused. Without one, nothing is kept here.

use std::net::{SocketAddr, TcpListener};
use std::sync::PoisonError;

use lunet_os::sync::Mutex;

/// One for the process, as the service manager has one for it. `None`: nobody keeps any.
static KEPT: Mutex<Option<Vec<Copy>>> = Mutex::new(None);

/// A copy of a socket.
struct Copy {
    listener: TcpListener,
    /// Nobody served at its address when copies were taken: if nobody does the next time, nobody will.
    unserved: bool,
}

impl Copy {
    const fn new(listener: TcpListener) -> Self {
        Self { listener, unserved: false }
    }

    fn is_at(&self, address: SocketAddr) -> bool {
        self.listener.local_addr().is_ok_and(|own| own == address)
    }
}

/// From now on copies of sockets are kept; these listen already, and are taken instead of new ones.
pub fn keep(given: Vec<TcpListener>) {
    let given = given.into_iter().map(Copy::new).collect();
    *KEPT.lock().unwrap_or_else(PoisonError::into_inner) = Some(given);
}

/// True if somebody has copies of the sockets that listen now.
pub(crate) fn are_kept() -> bool {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).is_some()
}

/// Takes the copies of the sockets that listen at these addresses. One at another address is closed if it was there at the
/// last call, too: it belonged to a change that was not made. A change that is under way has not come so far.
pub fn take(addresses: &[SocketAddr]) -> Vec<(SocketAddr, TcpListener)> {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(all) = kept.as_mut() else { return Vec::new() };
    let mut taken = Vec::new();
    for mut copy in std::mem::take(all) {
        match copy.listener.local_addr() {
            Ok(address) if addresses.contains(&address) => taken.push((address, copy.listener)),
            Ok(_) if !copy.unserved => {
                copy.unserved = true;
                all.push(copy);
            }
            _ => {}
        }
    }
    taken
}

/// A copy of the socket that listens at this address, if one is kept. The one of port 0 is nobody's.
pub(crate) fn find(address: SocketAddr) -> Option<TcpListener> {
    let kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let mut of_address = kept.iter().flatten().filter(|copy| copy.is_at(address));
    of_address.next()?.listener.try_clone().ok()
}

/// Keeps a copy of a socket that has just begun to listen.
pub(crate) fn remember(listener: &TcpListener) {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(all) = kept.as_mut() {
        all.extend(listener.try_clone().map(Copy::new));
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;
    use crate::server::listen;

    /// One test, as there is one store for the process.
    #[test]
    fn clients_that_come_between_two_runs_are_served_by_the_next_one() {
        // An address of its own, where no other program listens.
        let [.., high, low] = std::process::id().to_be_bytes();
        let any = SocketAddr::from(([127, 77, high, low], 0));
        let (unkept, address) = listen(any).expect("a port");
        drop(unkept);
        assert!(TcpStream::connect(address).is_err(), "nobody listens");

        keep(Vec::new());
        let (first, address) = listen(any).expect("a port");
        let (foreseen, elsewhere) = listen(any).expect("a port");
        drop(foreseen);
        let copies = take(&[address]);
        assert_eq!(copies.len(), 1);
        assert!(take(&[address]).is_empty(), "it was taken");
        assert!(TcpStream::connect(elsewhere).is_err(), "it was only foreseen");
        drop(first);

        // The service manager has the copy, and the next run gets it.
        let early = TcpStream::connect(address).expect("it waits");
        keep(copies.into_iter().map(|(_, listener)| listener).collect());
        let (second, same) = listen(address).expect("it listens already");
        assert_eq!(same, address);
        let (_, client) = second.accept().expect("it waits");
        assert_eq!(Some(client), early.local_addr().ok());
        drop((take(&[]), take(&[]), second));
        assert!(TcpStream::connect(address).is_err(), "nobody listens");
    }
}
