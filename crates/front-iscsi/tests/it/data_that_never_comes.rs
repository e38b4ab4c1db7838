//! Initiators that are alive but owe something: data that they were asked for, or reading what they asked for.

use std::net::SocketAddr;
use std::time::Duration;

use crate::support::client::{Client, rw16};
use crate::support::status::GOOD;
use crate::support::{config, file_volume, on_each_driver, start, until};
use lunet_front_iscsi::Config;
use lunet_iscsi::initiator::{Data, Unsolicited};
use lunet_iscsi::target::Options;
use lunet_server::Limits;

const MIB: usize = 1 << 20;

/// Sessions that come one after the other, and take all that they get: by writes whose R2Ts they never answer,
/// and by reads that they never take.
fn owing(address: SocketAddr, sessions: u8, reads: bool) -> Vec<Client> {
    let login = |n: u8| {
        let mut client = Client::login_with(address, 100 + n + 64 * u8::from(reads), |options| {
            options.unsolicited = Unsolicited::Nothing;
        });
        client.narrow(8 << 10);
        for _ in 0..4 {
            let blocks = (4 * MIB / 512) as u32;
            if reads {
                client.start(0, &rw16(0x88, 0, blocks), Data::Read(vec![0; 4 * MIB]));
            } else {
                client.start(0, &rw16(0x8A, 0, blocks), Data::Write(vec![0; 4 * MIB]));
            }
        }
        client
    };
    (0..sessions).map(login).collect()
}

fn established_clients_go_on(reads: bool) {
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a folder");
        let iscsi = Options { data_timeout: Duration::ZERO, ..Options::default() };
        let base = config(vec![file_volume(&dir)], driver);
        let (server, address) = start(Config { shards: Some(1), iscsi, ..base });
        let mut client = Client::login(address, 1);
        client.works(0);
        let owing = owing(address, 64, reads);
        client.works(0);
        drop(owing);
        // What they had is there for others.
        Client::login(address, 2).works(0);
        drop(client);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn established_clients_go_on_beside_64_that_never_answer_r2ts() {
    established_clients_go_on(false);
}

#[test]
fn established_clients_go_on_beside_64_that_never_take_what_they_read() {
    established_clients_go_on(true);
}

fn who_comes_later_gets_on(reads: bool) {
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a folder");
        let iscsi = Options { data_timeout: Duration::ZERO, ..Options::default() };
        let base = config(vec![file_volume(&dir)], driver);
        let limits = Limits { buffer_bytes: 64 << 20, ..base.limits.clone() };
        let (server, address) = start(Config { shards: Some(1), iscsi, limits, ..base });
        let mut owing = owing(address, 64, reads);
        // What each has asked for is under way, or waits for memory.
        owing.iter_mut().for_each(Client::wait_for_bytes);
        let mut all = Vec::new();
        for n in 0..3 {
            let name = format!("iqn.2026-11.local.lunet:late{n}");
            let mut late = Client::login_with(address, n, |it| it.initiator_name = name.clone());
            late.works(0);
            // And another session of those who owe.
            let mut same = Client::login_with(address, 8 + n, |_| {});
            same.works(0);
            all.extend([late, same]);
        }
        drop((owing, all));
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn who_comes_later_than_64_that_never_answer_r2ts_gets_on() {
    who_comes_later_gets_on(false);
}

#[test]
fn who_comes_later_than_64_that_never_take_what_they_read_gets_on() {
    who_comes_later_gets_on(true);
}

#[test]
fn who_makes_no_progress_is_disconnected() {
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a folder");
        let iscsi = Options { data_timeout: Duration::from_secs(2), ..Options::default() };
        let base = config(vec![file_volume(&dir)], driver);
        let (server, address) = start(Config { shards: Some(1), iscsi, ..base });
        let mut client = Client::login(address, 1);
        let owing = [owing(address, 4, false), owing(address, 4, true)];
        until("they are gone", || server.handle().sessions().len() == 1);
        // Who owes nothing stays.
        assert_eq!(client.finish(0, &[0; 6], Data::None).status, GOOD);
        drop(owing);
        drop(client);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}
