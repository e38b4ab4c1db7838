//! A relay that gives data digests to an initiator that knows none.
//!
//! libiscsi 1.19 offers `DataDigest=None` and nothing else. The relay stands between it and the target: it asks for CRC32C in
//! the initiator's name, adds the digest to every data segment on the way to the target, and checks and takes off those on
//! the way back. All else passes as it is, header digests among it: the header does not change.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, ensure};

use super::{crc32c, opcode};

const OFFERED: &[u8] = b"DataDigest=None\0";
const WANTED: &[u8] = b"DataDigest=CRC32C\0";

/// Transit to full feature phase, in a Login Response (RFC 7143 11.13.1).
const TO_FULL_FEATURE: u8 = 0x83;

/// A relay to one portal. Ends when dropped.
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    closing: AtomicBool,
    checked: AtomicU64,
    mistakes: Mutex<Vec<String>>,
}

impl Shared {
    fn mistake(&self, what: String) {
        self.mistakes.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }
}

/// What both directions of a connection know.
#[derive(Default)]
struct Link {
    /// Header digests are in use, by the login.
    header_digest: AtomicBool,
    /// The login is over: from here on there are digests.
    full_feature: AtomicBool,
    /// The target has agreed to data digests.
    agreed: AtomicBool,
}

impl Relay {
    /// Relays to the portal at `address:port`.
    pub fn start(portal: &str) -> Result<Relay> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let (portal, for_all) = (portal.to_owned(), Arc::clone(&shared));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if for_all.closing.load(Ordering::Relaxed) {
                    break;
                }
                // A server that is gone ends the connection, as it would without a relay.
                let Ok(server) = TcpStream::connect(&portal) else { continue };
                if let Err(error) = join(client, server, &for_all) {
                    for_all.mistake(format!("cannot relay: {error}"));
                }
            }
        });
        Ok(Relay { address, shared })
    }

    /// Where initiators connect to, `address:port`.
    pub fn portal(&self) -> String {
        self.address.to_string()
    }

    /// How many data segments of the target had the right digest. An error when one had not, or when the target did
    /// not agree to digests.
    pub fn checked(&self) -> Result<u64> {
        let mistakes = self.shared.mistakes.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(mistakes.is_empty(), "data digests: {}", mistakes.join("; "));
        Ok(self.shared.checked.load(Ordering::Relaxed))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts. If it cannot be reached it has ended already.
        let _ = TcpStream::connect(self.address);
    }
}

fn join(client: TcpStream, server: TcpStream, shared: &Arc<Shared>) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let link = Arc::new(Link::default());
    let ends = [(client.try_clone()?, server.try_clone()?), (server, client)];
    for (up, (from, to)) in [true, false].into_iter().zip(ends) {
        let (link, shared) = (Arc::clone(&link), Arc::clone(shared));
        thread::spawn(move || {
            let mut direction = Direction { up, from: &from, to: &to, link: &link };
            while let Ok(true) = direction.pass_one(&shared) {}
            // Whichever side ended, the other one hears of it.
            let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
        });
    }
    Ok(())
}

struct Direction<'a> {
    /// From the initiator to the target.
    up: bool,
    from: &'a TcpStream,
    to: &'a TcpStream,
    link: &'a Link,
}

impl Direction<'_> {
    /// Passes one PDU on; `false`: this connection is over.
    fn pass_one(&mut self, shared: &Shared) -> Result<bool> {
        let mut head = vec![0; 48];
        self.from.read_exact(&mut head)?;
        let full_feature = self.link.full_feature.load(Ordering::Acquire);
        let additional = usize::from(head[4]) * 4;
        let digest =
            if full_feature && self.link.header_digest.load(Ordering::Acquire) { 4 } else { 0 };
        let length = u32::from_be_bytes([0, head[5], head[6], head[7]]) as usize;
        self.read_more(&mut head, additional + digest)?;
        let mut data = Vec::new();
        self.read_more(&mut data, length.next_multiple_of(4))?;
        if !full_feature {
            data.truncate(length);
            self.login(&mut head, &mut data, shared);
        } else if !data.is_empty() && self.link.agreed.load(Ordering::Acquire) {
            let right = crc32c(&data).to_le_bytes();
            if self.up {
                data.extend_from_slice(&right);
            } else {
                let mut found = Vec::new();
                self.read_more(&mut found, right.len())?;
                if found != right {
                    shared.mistake(format!("the target's is wrong on {:02x?}", &head[..48]));
                    return Ok(false);
                }
                shared.checked.fetch_add(1, Ordering::Relaxed);
            }
        }
        head.append(&mut data);
        self.to.write_all(&head)?;
        Ok(true)
    }

    fn read_more(&mut self, into: &mut Vec<u8>, count: usize) -> Result<()> {
        let start = into.len();
        into.resize(start + count, 0);
        self.from.read_exact(&mut into[start..]).context("the connection ends within a PDU")
    }

    /// Changes what a login says of data digests; notices its end.
    fn login(&self, head: &mut [u8], data: &mut Vec<u8>, shared: &Shared) {
        let (found, instead) = if self.up { (OFFERED, WANTED) } else { (WANTED, OFFERED) };
        if let Some(at) = position(data, found) {
            data.splice(at..at + found.len(), instead.iter().copied());
            let length = (data.len() as u32).to_be_bytes();
            head[5..8].copy_from_slice(&length[1..]);
            if !self.up {
                self.link.agreed.store(true, Ordering::Release);
            }
        }
        if !self.up && position(data, b"HeaderDigest=CRC32C\0").is_some() {
            self.link.header_digest.store(true, Ordering::Release);
        }
        let is_last = head[0] & 0x3f == opcode::LOGIN_RESPONSE
            && head[1] & TO_FULL_FEATURE == TO_FULL_FEATURE
            && head[36..38] == [0, 0];
        if is_last {
            if !self.link.agreed.load(Ordering::Acquire) {
                shared.mistake("the target did not agree to them".into());
            }
            // Before the answer goes on: what the initiator sends next is full feature phase.
            self.link.full_feature.store(true, Ordering::Release);
        }
        data.resize(data.len().next_multiple_of(4), 0);
    }
}

fn position(data: &[u8], wanted: &[u8]) -> Option<usize> {
    data.windows(wanted.len()).position(|window| window == wanted)
}
