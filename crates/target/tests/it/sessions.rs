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
