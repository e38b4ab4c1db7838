//! Logins that replace each other.

use std::io::ErrorKind::{ConnectionReset, UnexpectedEof};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use lunet_iscsi::initiator::{Connection, Options};

use crate::support::client::Client;
use crate::support::{TARGET, config, memory, on_each_driver, start};

/// The first Login Request of a client.
fn login_request(number: u8) -> Vec<u8> {
    let mut options = Options::new("iqn.2026-11.local.lunet:client", Some(TARGET));
    options.isid[5] = number;
    options.skip_security = true;
    let mut bytes = Vec::new();
    Connection::<Vec<u8>, Vec<u8>>::new(options).start(Duration::ZERO, &mut bytes);
    bytes
}

/// Logs in by hand. False if the connection ended before the answer: another login replaced it.
fn is_let_in(address: SocketAddr, request: &[u8]) -> bool {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time limit can be set");
    stream.write_all(request).expect("the server takes what is sent");
    let mut answer = [0; 48];
    match stream.read_exact(&mut answer) {
        Ok(()) => {
            // A Login Response that enters the full feature phase, with status 0.
            assert_eq!((answer[0], answer[1] & 0x83, answer[36]), (0x23, 0x83, 0));
            true
        }
        Err(error) if matches!(error.kind(), UnexpectedEof | ConnectionReset) => false,
        Err(error) => panic!("nobody is let in any more: {error}"),
    }
}

/// Sends a Login Request with this TSIH and CID: status and TSIH of the answer.
fn answer(stream: &mut TcpStream, tsih: u16, cid: u16) -> (u16, u16) {
    let mut request = login_request(7);
    request[14..16].copy_from_slice(&tsih.to_be_bytes());
    request[20..22].copy_from_slice(&cid.to_be_bytes());
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time limit can be set");
    stream.write_all(&request).expect("the server takes what is sent");
    let mut answer = [0; 48];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer[0], 0x23);
    let word = |at: usize| u16::from_be_bytes([answer[at], answer[at + 1]]);
    (word(36), word(14))
}

/// RFC 7143 6.3.1: only TSIH 0, or the session's own TSIH and CID, take its place.
#[test]
fn a_session_lives_on_beside_logins_with_other_handles() {
    on_each_driver(|driver| {
        let (server, address) = start(config(vec![memory(1)], driver));
        let connect = || TcpStream::connect(address).expect("the server listens");
        let sessions = || {
            let sessions = server.handle().sessions();
            sessions.iter().map(|session| (session.tsih, session.peer.clone())).collect::<Vec<_>>()
        };
        let mut first = connect();
        let (0, tsih) = answer(&mut first, 0, 3) else { panic!("it is let in") };
        let own = vec![(tsih, first.local_addr().expect("it has one").to_string())];
        assert_eq!(sessions(), own);
        let login = |tsih, cid| answer(&mut connect(), tsih, cid).0;
        assert_eq!(login(tsih, 4), 0x0206, "too many connections");
        assert_eq!(login(tsih.wrapping_add(1), 3), 0x020a, "session does not exist");
        assert_eq!(login(0xbeef, 0), 0x020a);
        assert_eq!(sessions(), own, "it still lives");
        // Connection reinstatement: another connection, the same handle.
        let mut second = connect();
        assert_eq!(answer(&mut second, tsih, 3), (0, tsih));
        assert_eq!(sessions(), [(tsih, second.local_addr().expect("it has one").to_string())]);
        // The first connection has ended, behind the rest of its answer.
        let _ = first.read_to_end(&mut Vec::new());
        // Session reinstatement.
        let mut third = connect();
        assert!(matches!(answer(&mut third, 0, 3), (0, new) if new != tsih));
        assert_eq!(login(tsih, 3), 0x020a, "that session is over");
        assert_eq!(sessions().len(), 1);
        drop((second, third));
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn a_login_that_is_given_up_leaves_no_session_behind() {
    on_each_driver(|driver| {
        let (server, address) = start(config(vec![memory(1)], driver));
        let request = login_request(7);
        let _first = Client::login(address, 7);
        // Each replaces the one before, and is gone before or after it is let in.
        for _ in 0..200 {
            let mut stream = TcpStream::connect(address).expect("the server listens");
            stream.write_all(&request).expect("the server takes what is sent");
        }
        // Some of them may come after this one.
        assert!((0..200).any(|_| is_let_in(address, &request)));
        assert!(server.stop(Duration::ZERO).flushed);
    });
}
