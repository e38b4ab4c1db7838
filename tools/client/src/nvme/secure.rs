//! TLS on a socket, before NVMe over TCP begins there: the handshake is ours, what follows is the kernel's (kTLS).

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use lunet_nvme::auth::psk::{Derivation, Psk as Retained, TlsKey, Version};
use lunet_nvme::auth::{Hash, Secret};
use lunet_tls::client::{Client, Config};
use lunet_tls::exchange::Group;
use lunet_tls::{Next, Psk, Session, suite};

use super::Error;
use super::error::Parties;

/// Secures a socket for this host and this subsystem.
///
/// # Errors
/// The kernel has no TLS, or the other end has another key, or none.
pub(super) fn secure(
    stream: &mut TcpStream,
    secret: &Secret,
    parties: &Parties<'_>,
) -> Result<(), Error> {
    lunet_ring::has_tls().map_err(Error::NoTls)?;
    // Of version 1, as the specification has it: only SPDK and early hosts know version 0 alone.
    let key = Retained::retained(secret, parties.host, Derivation::Rfc8446)
        .map(|key| key.tls(Version::V1, parties.host, parties.subsystem));
    let key = key.ok_or_else(|| parties.tls("the key is of another kind"))?;
    let session = handshake(stream, key).map_err(|why| parties.tls(why))?;
    let (send, receive) = (session.send.for_linux(), session.receive.for_linux());
    lunet_ring::secure_stream(stream, &send, &receive).map_err(Error::NoTls)
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Tls(#[from] lunet_tls::Error),
    #[error("the connection was closed: the portal may have no TLS")]
    Closed,
    #[error(transparent)]
    Io(#[from] io::Error),
}

fn handshake(stream: &mut TcpStream, key: TlsKey) -> Result<Session, Failed> {
    let hash = match key.hash {
        Hash::Sha256 => suite::Hash::Sha256,
        // No identity has SHA-512.
        Hash::Sha384 | Hash::Sha512 => suite::Hash::Sha384,
    };
    let config = Config {
        identity: key.identity.into_bytes(),
        psk: Psk { hash, key: key.key },
        groups: vec![Group::X25519, Group::Secp256r1],
        shares: 1,
        compatible: false,
    };
    let mut client = Client::new(config, &mut random)?;
    let mut bytes = Vec::new();
    loop {
        stream.write_all(&client.take_out())?;
        // No more than the handshake has: what follows is for the kernel.
        bytes.resize(client.wants(), 0);
        let n = match stream.read(&mut bytes) {
            Ok(0) => return Err(Failed::Closed),
            Ok(n) => n,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Err(Failed::Closed),
            Err(error) => return Err(error.into()),
        };
        let next = client.receive(&bytes[..n], &mut random);
        // An alert, or the end of the handshake.
        let said = stream.write_all(&client.take_out());
        if let (_, Next::Done) = next? {
            said?;
            return client.finish().ok_or(Failed::Closed);
        }
    }
}

/// Numbers for keys: there is nothing in their place.
fn random(bytes: &mut [u8]) -> bool {
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use lunet_nvme::auth::Purpose;
    use lunet_nvme::auth::psk::candidates;
    use lunet_tls::server::Server;

    use super::*;

    const HOST: &str = "nqn.2026-11.org.lunet:h";
    const SUBSYSTEM: &str = "nqn.2026-11.org.lunet:s";

    fn secret(hash: Hash, byte: u8) -> Secret {
        Secret::new(Purpose::Tls, Some(hash), &vec![byte; hash.size()]).expect("a secret")
    }

    fn key_of(secret: &Secret) -> TlsKey {
        let key = Retained::retained(secret, HOST, Derivation::Rfc8446).expect("one for TLS");
        key.tls(Version::V1, HOST, SUBSYSTEM)
    }

    /// Both ends, of which the server has this secret, and sends a byte when it has done.
    fn run(own: &Secret, servers: Secret) -> (Result<Session, Failed>, Option<Session>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let mut stream =
            TcpStream::connect(listener.local_addr().expect("it has one")).expect("it listens");
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("somebody comes");
            serve(&mut stream, &servers)
        });
        let session = handshake(&mut stream, key_of(own));
        if session.is_ok() {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("what follows is left in the socket");
            assert_eq!(byte, [7]);
        }
        drop(stream);
        (session, server.join().expect("it ends"))
    }

    fn serve(stream: &mut TcpStream, secret: &Secret) -> Option<Session> {
        let mut server = Server::new();
        let mut keys = |identity: &[u8]| {
            let found = candidates(secret, std::str::from_utf8(identity).expect("text"));
            let hash = |hash| match hash {
                Hash::Sha256 => suite::Hash::Sha256,
                _ => suite::Hash::Sha384,
            };
            found.into_iter().map(|key| Psk { hash: hash(key.hash), key: key.key }).collect()
        };
        loop {
            let mut bytes = vec![0; server.wants()];
            let n = stream.read(&mut bytes).ok().filter(|n| *n > 0)?;
            let mut next =
                server.receive(&bytes[..n], &mut keys, &mut random).map(|(_, next)| next);
            if let Ok(Next::Compute(job)) = next {
                next = server.computed(job.compute(), &mut random);
            }
            let done = matches!(next, Ok(Next::Done));
            stream.write_all(&server.take_out()).ok()?;
            next.ok()?;
            if done {
                stream.write_all(&[7]).ok()?;
                return server.finish();
            }
        }
    }

    #[test]
    fn both_ends_have_the_same_keys_and_nothing_more_is_read() {
        for hash in [Hash::Sha256, Hash::Sha384] {
            let (own, servers) = run(&secret(hash, 1), secret(hash, 1));
            let (own, servers) = (own.expect("a session"), servers.expect("a session"));
            assert_eq!(own.send.for_linux(), servers.receive.for_linux());
            assert_eq!(own.receive.for_linux(), servers.send.for_linux());
        }
    }

    #[test]
    fn another_key_is_refused() {
        let (own, servers) = run(&secret(Hash::Sha256, 1), secret(Hash::Sha256, 2));
        assert!(matches!(own, Err(Failed::Tls(lunet_tls::Error::Refused(_)))), "refused");
        assert!(servers.is_none());
    }
}
