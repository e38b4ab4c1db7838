//! A way that is longer: a relay that holds back every byte for a while, in both directions.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

/// What is taken from a socket at once.
const PIECE: usize = 256 << 10;
/// Pieces on their way in one direction: what does not fit waits at the sender, as it does on a real way.
const ON_THE_WAY: usize = 1024;

/// A relay to one address. Ends when dropped, connections when one of their ends does.
pub struct Relay {
    address: SocketAddr,
    closing: Arc<AtomicBool>,
}

impl Relay {
    /// Relays to `address:port`; each direction takes so long.
    pub fn start(to: &str, one_way: Duration) -> Result<Relay> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let closing = Arc::new(AtomicBool::new(false));
        let (to, ends) = (to.to_owned(), Arc::clone(&closing));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if ends.load(Ordering::Relaxed) {
                    break;
                }
                // A server that is gone ends the connection, as it would without a relay.
                let Ok(server) = TcpStream::connect(&to) else { continue };
                let _ = join(client, server, one_way);
            }
        });
        Ok(Relay { address, closing })
    }

    /// Where to connect to, `address:port`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts. If it cannot be reached it has ended already.
        let _ = TcpStream::connect(self.address);
    }
}

fn join(client: TcpStream, server: TcpStream, one_way: Duration) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    for (from, to) in [(client.try_clone()?, server.try_clone()?), (server, client)] {
        let (enter, leave) = sync_channel(ON_THE_WAY);
        thread::spawn(move || take(from, &enter, one_way));
        thread::spawn(move || give(to, &leave));
    }
    Ok(())
}

fn take(mut from: TcpStream, enter: &SyncSender<(Instant, Vec<u8>)>, one_way: Duration) {
    let mut piece = vec![0; PIECE];
    while let Ok(n @ 1..) = from.read(&mut piece) {
        if enter.send((Instant::now() + one_way, piece[..n].to_vec())).is_err() {
            break;
        }
    }
}

fn give(mut to: TcpStream, leave: &Receiver<(Instant, Vec<u8>)>) {
    while let Ok((due, bytes)) = leave.recv() {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            // Its reader is gone: the sender hears of it by the other direction.
            let _ = to.shutdown(Shutdown::Both);
            return;
        }
    }
    // One direction has ended; the other one may go on.
    let _ = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_takes_its_time_and_each_end_is_passed_on() -> Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let to = listener.local_addr()?.to_string();
        let echo = thread::spawn(move || -> io::Result<()> {
            let (mut stream, _) = listener.accept()?;
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes)?;
            stream.write_all(&bytes)
        });
        let one_way = Duration::from_millis(20);
        let relay = Relay::start(&to, one_way)?;
        let mut stream = TcpStream::connect(relay.address())?;
        let start = Instant::now();
        stream.write_all(b"hello")?;
        stream.shutdown(Shutdown::Write)?;
        let mut all = Vec::new();
        stream.read_to_end(&mut all)?;
        assert!(start.elapsed() >= 2 * one_way, "{:?}", start.elapsed());
        assert_eq!(all, b"hello");
        assert!(matches!(echo.join(), Ok(Ok(()))));
        Ok(())
    }
}
