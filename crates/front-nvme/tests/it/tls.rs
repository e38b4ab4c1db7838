//! TLS over real sockets, as far as it goes without the kernel, which has no module for it everywhere.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use lunet_front_nvme::{Concatenation, Host as Listed, Hosts, Layout, Tls, TlsKey};
use lunet_nvme::auth::psk::{Derivation, Psk, Version};
use lunet_nvme::auth::{Hash, Purpose, Secret};
use lunet_nvme::fabrics::ANY_CONTROLLER;
use lunet_nvme::host::Error;
use lunet_nvme::log::{LogPage, discovery_entries};
use lunet_nvme::name::DISCOVERY_NQN;
use lunet_nvme::status::Status;
use lunet_tls::client::{Client, Config as Offer};
use lunet_tls::exchange::Group;
use lunet_tls::record::{DATA, HEADER, Opener, Sealer};
use lunet_tls::{Alert, Next, Session, suite};

use crate::host::{ENABLE, Queue, Settings, nqn};
use crate::support::{SUBSYSTEM, Server, Shown, config, layout, memory, serve};

fn secret(byte: u8) -> Secret {
    Secret::new(Purpose::Tls, Some(Hash::Sha256), &[byte; 32]).expect("a secret")
}

/// A subsystem for the first host, which has a key and needs it, the second, which may use one, and the third, which has
/// none.
fn keyed() -> Layout<Shown> {
    let mut layout = layout(vec![memory(1, 8)]);
    let host = |number, tls| Listed {
        nqn: nqn(number),
        secret: None,
        controller_secret: None,
        tls: Option::map(tls, |(byte, required)| TlsKey { secret: secret(byte), required }),
        concatenation: Concatenation::Allowed,
    };
    let hosts = vec![host(1, Some((1, true))), host(2, Some((2, false))), host(3, None)];
    layout.subsystems[0].hosts = Hosts::Listed(hosts);
    layout
}

fn serve_tls(tls: Tls) -> (Server, SocketAddr) {
    let mut layout = keyed();
    layout.tls = vec![(0, tls)];
    serve(config(layout))
}

/// What a host offers that has this secret.
fn offer(number: u8, byte: u8, version: Version, way: Derivation, subsystem: &str) -> Offer {
    let psk = Psk::retained(&secret(byte), &nqn(number), way).expect("a key");
    let key = psk.tls(version, &nqn(number), subsystem);
    Offer {
        identity: key.identity.into_bytes(),
        psk: lunet_tls::Psk { hash: suite::Hash::Sha256, key: key.key },
        groups: Group::ALL.to_vec(),
        shares: 1,
        compatible: true,
    }
}

fn right(number: u8) -> Offer {
    offer(number, number, Version::V1, Derivation::Rfc8446, SUBSYSTEM)
}

fn random(bytes: &mut [u8]) -> bool {
    lunet_os::random::fill(bytes).is_ok()
}

/// A handshake, whose bytes are sent in pieces of this length.
pub fn shake(
    address: SocketAddr,
    offer: Offer,
    piece: usize,
) -> Result<(TcpStream, Session), lunet_tls::Error> {
    let mut stream = TcpStream::connect(address).expect("the server accepts");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    stream.set_nodelay(true).expect("no delay");
    let mut client = Client::new(offer, &mut random).expect("a client");
    let send = |stream: &mut TcpStream, bytes: &[u8]| {
        // A server that has refused may be gone.
        bytes.chunks(piece).for_each(|bytes| drop(stream.write_all(bytes)));
    };
    send(&mut stream, &client.take_out());
    loop {
        let mut bytes = vec![0; client.wants()];
        let n = stream.read(&mut bytes).expect("an answer");
        assert!(n > 0, "the server has ended the connection without an alert");
        let received = client.receive(&bytes[..n], &mut random);
        send(&mut stream, &client.take_out());
        if let (_, Next::Done) = received? {
            return Ok((stream, client.finish().expect("a session")));
        }
    }
}

/// An initialization of NVMe over TCP by records, with the first byte of what comes back. Without TLS in the kernel the
/// server says so and closes.
pub fn initialize((mut stream, session): (TcpStream, Session)) {
    let mut request = vec![0, 0, 128, 0, 128, 0, 0, 0];
    request.resize(128, 0);
    let mut record = Vec::new();
    Sealer::new(session.send).seal(DATA, &request, &mut record);
    let _ = stream.write_all(&record);
    let mut header = [0; HEADER];
    if lunet_ring::has_tls().is_err() {
        let _ = stream.shutdown(Shutdown::Write);
        assert!(!matches!(stream.read(&mut header), Ok(1..)), "nothing is said in clear text");
        return;
    }
    stream.read_exact(&mut header).expect("a record");
    let mut body = vec![0; usize::from(u16::from_be_bytes([header[3], header[4]]))];
    stream.read_exact(&mut body).expect("a record");
    assert_eq!(Opener::new(session.receive).open(&header, &mut body), Ok(DATA));
    assert_eq!(body[..3], [1, 0, 128], "ICResp");
}

fn plain(address: SocketAddr, host: u8) -> Result<Queue, Error> {
    let settings = Settings { host, ..Settings::default() };
    Queue::connect(address, &settings, (0, ANY_CONTROLLER))
}

fn refusal(result: Result<Queue, Error>) -> Option<Status> {
    match result {
        Err(Error::Refused(completion)) => Some(completion.status),
        _ => None,
    }
}

#[test]
fn hosts_connect_by_tls_with_any_key_that_their_secret_makes() {
    let (server, address) = serve_tls(Tls::Required);
    for version in [Version::V0, Version::V1] {
        for way in Derivation::ALL {
            let session = shake(address, offer(1, 1, version, way, SUBSYSTEM), usize::MAX);
            initialize(session.expect("a session"));
        }
    }
    let discovery = offer(2, 2, Version::V1, Derivation::Rfc8446, DISCOVERY_NQN);
    initialize(shake(address, discovery, usize::MAX).expect("a session"));
    let mut asked = right(1);
    asked.shares = 0;
    initialize(shake(address, asked, 1).expect("a session"));
    drop(server);
}

#[test]
fn a_host_without_the_right_key_is_told_so() {
    let (server, address) = serve_tls(Tls::Allowed);
    let refused = |offer, alert| {
        let error = shake(address, offer, usize::MAX).err();
        assert_eq!(error, Some(lunet_tls::Error::Refused(alert)));
    };
    let way = Derivation::Rfc8446;
    // Its digest shows that the key is another one; without a digest the binder does.
    refused(offer(1, 9, Version::V1, way, SUBSYSTEM), Alert::UNKNOWN_PSK_IDENTITY);
    refused(offer(1, 9, Version::V0, way, SUBSYSTEM), Alert::DECRYPT_ERROR);
    refused(offer(3, 1, Version::V1, way, SUBSYSTEM), Alert::UNKNOWN_PSK_IDENTITY);
    refused(offer(1, 1, Version::V1, way, "nqn.2026-11.l:other"), Alert::UNKNOWN_PSK_IDENTITY);
    let mut other = right(1);
    other.identity = b"somebody".to_vec();
    refused(other, Alert::UNKNOWN_PSK_IDENTITY);
    let counts = server.handle().stats().protocol;
    assert_eq!(counts.refused, 5);
    drop(server);
    let (_server, address) = serve_tls(Tls::Off);
    let error = shake(address, right(1), usize::MAX).err();
    assert_eq!(error, Some(lunet_tls::Error::Refused(Alert::UNKNOWN_PSK_IDENTITY)));
}

#[test]
fn who_needs_tls_does_not_connect_without() {
    let (_server, address) = serve_tls(Tls::Allowed);
    assert_eq!(refusal(plain(address, 1)), Some(Status::AUTHENTICATION_REQUIRED));
    assert!(plain(address, 2).is_ok() && plain(address, 3).is_ok());
    let (server, address) = serve_tls(Tls::Required);
    let mut stream = TcpStream::connect(address).expect("the server accepts");
    stream.write_all(&[0, 0, 128, 0, 128]).expect("it is taken");
    assert!(!matches!(stream.read(&mut [0]), Ok(1..)), "the connection ends");
    assert_eq!(server.handle().stats().protocol.refused, 1);
}

#[test]
fn discovery_says_where_tls_is_needed() {
    let entries = |address, host| {
        let subsystem = DISCOVERY_NQN.into();
        let settings = Settings { host, subsystem, ..Settings::default() };
        let mut queue = Queue::connect(address, &settings, (0, ANY_CONTROLLER)).expect("one");
        assert!(queue.configure(ENABLE).is_success());
        let page = queue.log(LogPage::Discovery, 1024 * 3).expect("a log");
        let (_, entries) = discovery_entries(&page).expect("a discovery log");
        entries.iter().map(|entry| (entry.treq & 3, entry.tsas[0])).collect::<Vec<_>>()
    };
    // TREQ and SECTYPE: of discovery, and of the subsystem.
    let (_server, address) = serve_tls(Tls::Allowed);
    assert_eq!(entries(address, 1), [(0, 0), (1, 2)]);
    assert_eq!(entries(address, 2), [(0, 0), (0, 0)]);
    assert_eq!(entries(address, 3), [(0, 0), (0, 0)]);
    let (_server, address) = serve_tls(Tls::Off);
    assert_eq!(entries(address, 2), [(0, 0), (0, 0)]);
}

#[test]
fn bytes_may_come_one_by_one() {
    let (_server, address) = serve_tls(Tls::Allowed);
    initialize(shake(address, right(1), 1).expect("a session"));
    let mut stream = TcpStream::connect(address).expect("the server accepts");
    stream.set_nodelay(true).expect("no delay");
    let mut request = vec![0, 0, 128, 0, 128, 0, 0, 0];
    request.resize(128, 0);
    request.chunks(1).for_each(|byte| stream.write_all(byte).expect("it is taken"));
    let mut answer = [0; 128];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer[..3], [1, 0, 128]);
}
