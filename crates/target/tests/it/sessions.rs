//! Logins that replace each other.

use std::io::Write;
use std::net::TcpStream;
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
        let mut last = Client::login(address, 7);
        assert_eq!(last.write(0, 0, vec![1; 512]), 0);
        drop(last);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}
