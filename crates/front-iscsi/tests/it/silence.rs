//! Clients that say nothing for a long time: because they are busy reading, or because they are gone.

use std::time::{Duration, Instant};

use lunet_front_iscsi::{Config, Server};
use lunet_iscsi::initiator::{Data, Outcome};
use lunet_iscsi::target::Options;
use lunet_ring::DriverChoice;

use crate::support::client::{Client, rw16};
use crate::support::{config, memory, on_each_driver, start, until};

const READ: u32 = 8 << 20;

/// A server that asks after a second, and waits for one; and a client with 8 MiB on their way to it, through a
/// receive window of a few KiB.
fn reading(driver: DriverChoice) -> (Server, Client, lunet_iscsi::initiator::Tag) {
    let second = Duration::from_secs(1);
    let iscsi = Options { ping_interval: second, ping_timeout: second, ..Options::default() };
    let (server, address) = start(Config { iscsi, ..config(vec![memory(16)], driver) });
    let mut client = Client::login_with(address, 1, |options| options.ping_interval = None);
    client.narrow(16 << 10);
    let tag = client.start(0, &rw16(0x88, 0, READ / 512), Data::Read(vec![0; READ as usize]));
    (server, client, tag)
}

#[test]
#[ignore = "waits a minute: make test-all runs it"]
fn a_client_that_reads_slowly_is_not_given_up() {
    on_each_driver(|driver| {
        let (server, mut client, tag) = reading(driver);
        let begun = Instant::now();
        let outcome = client.outcome_with_pauses(tag, Duration::from_millis(20)).outcome;
        assert!(matches!(outcome, Outcome::Completed(ref end) if end.status == 0), "{outcome:?}");
        assert!(begun.elapsed() > Duration::from_secs(2), "it was too fast to show anything");
        assert_eq!(client.read(0, 0, 8).0, 0);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn a_client_that_does_not_read_is_given_up() {
    on_each_driver(|driver| {
        let (server, mut client, _) = reading(driver);
        until("the session has ended", || server.handle().sessions().is_empty());
        assert!(client.is_closed_by_server());
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

/// Its time to take what is queued is the time that it has to log out: neither the 30 s that a client has to take
/// anything, nor the 10 s that a connection has at its end, come on top of it.
#[test]
fn a_client_that_does_not_read_is_gone_when_its_time_to_log_out_ends() {
    on_each_driver(|driver| {
        let (server, address) = start(config(vec![memory(16)], driver));
        let mut client = Client::login_with(address, 1, |options| options.ping_interval = None);
        client.narrow(16 << 10);
        let read = Data::Read(vec![0; READ as usize]);
        client.start(0, &rw16(0x88, 0, READ / 512), read);
        until("the data is read", || server.handle().stats().volumes[0].read.ops > 0);
        let begun = Instant::now();
        let handles: Vec<u16> = server.handle().sessions().iter().map(|s| s.tsih).collect();
        server.handle().end_sessions(&handles).expect("it is carried out");
        until("the session has ended", || server.handle().sessions().is_empty());
        let took = begun.elapsed();
        assert!((Duration::from_secs(2)..Duration::from_secs(9)).contains(&took), "{took:?}");
        assert!(client.is_closed_by_server());
        assert!(server.stop(Duration::ZERO).flushed);
    });
}
