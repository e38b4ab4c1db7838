//! Connections that have proved nothing take no places from others, whoever and how many they are.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use lunet_front_iscsi::Server;
use lunet_iscsi::initiator::{Error, Options};
use socket2::{Domain, Socket, Type};

use crate::support::client::Client;
use crate::support::{config, memory, on_each_driver, start, until};

/// A connection from this address of the loopback device.
fn connect(address: SocketAddr, from: [u8; 4]) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from((from, 0)).into()).expect("an address of this machine");
    socket.connect(&address.into()).expect("the server listens");
    TcpStream::from(socket)
}

fn discovery() -> Options {
    Options { target_name: None, ..Client::options() }
}

fn session(number: u8) -> Options {
    let mut options = Client::options();
    options.isid[5] = number;
    options
}

fn log_in(address: SocketAddr, from: [u8; 4], options: Options) -> Result<Client, Error> {
    Client::login_over(connect(address, from), options)
}

fn turned_away(server: &Server) -> u64 {
    server.handle().stats().protocol.turned_away
}

/// Connections that never log in, from several addresses.
#[test]
fn half_open_logins_keep_nobody_out() {
    on_each_driver(|driver| {
        let mut config = config(vec![memory(1)], driver);
        config.limits.max_logins = 16;
        let (server, address) = start(config);
        let connects = |from| (0..16).map(move |_| connect(address, from)).collect::<Vec<_>>();
        let idle: Vec<_> = (1..5).map(|host| connects([127, 0, 0, host])).collect();
        // All that lose their places end.
        until("48 are turned away", || turned_away(&server) == 48);
        let known = log_in(address, [127, 0, 0, 9], session(1)).expect("there is a place");
        // Not even from an address that holds many is the next one kept out.
        let neighbour = log_in(address, [127, 0, 0, 1], session(2)).expect("there is a place");
        // The places of those who have logged in are free again.
        until("one more is turned away", || turned_away(&server) == 49);
        assert_eq!(server.handle().stats().sessions, 2);
        drop((idle, known, neighbour));
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

/// Discovery sessions that stay, from one address.
#[test]
fn discovery_sessions_keep_nobody_out() {
    on_each_driver(|driver| {
        let mut config = config(vec![memory(1)], driver);
        (config.limits.max_sessions, config.max_discovery) = (4, 8);
        let (server, address) = start(config);
        let from = |host| log_in(address, [127, 0, 0, host], discovery()).expect("it gets in");
        let mut stranger = from(9);
        let mut greedy: Vec<Client> = (0..20).map(|_| from(1)).collect();
        // The oldest of the greedy one end, and none of another address.
        until("13 are turned away", || turned_away(&server) == 13);
        assert!(greedy[0].is_closed_by_server());
        assert_eq!(stranger.targets(), [crate::support::TARGET]);
        assert_eq!(greedy[19].targets(), [crate::support::TARGET], "as may the latest");
        // They are not among the sessions that there may be.
        let sessions: Vec<Client> = (1..5)
            .map(|n| log_in(address, [127, 0, 0, 2], session(n)).expect("there is a place"))
            .collect();
        let full = log_in(address, [127, 0, 0, 3], session(9)).err();
        assert_eq!(full, Some(Error::LoginRefused { status: 0x0302, address: None }));
        assert_eq!(server.handle().stats().sessions, 12);
        drop((greedy, sessions));
        assert!(server.stop(Duration::ZERO).flushed);
    });
}
