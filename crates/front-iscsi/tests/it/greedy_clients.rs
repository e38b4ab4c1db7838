//! Clients that take memory and give nothing back stop themselves and nobody else.

use std::net::SocketAddr;
use std::time::Duration;

use crate::support::client::{Client, rw16};
use crate::support::{config, file_volume, on_each_driver, stalling, start};
use lunet_iscsi::initiator::{Data, Outcome, Unsolicited};

const MIB: usize = 1 << 20;

/// What everybody else should be able to do, whatever the greedy ones do.
fn works(client: &mut Client, byte: u8) {
    let data = vec![byte; MIB];
    assert_eq!(client.write(0, 64, data.clone()), 0);
    let (status, read) = client.read(0, 64, (MIB / 512) as u32);
    assert_eq!(status, 0);
    assert!(read == data, "the data is what was written");
}

/// Four clients of another host that come now, at the same time.
fn others_work(address: SocketAddr) {
    let other = |options: &mut lunet_iscsi::initiator::Options| {
        options.initiator_name = "iqn.2026-11.local.lunet:other".into();
    };
    let mut others: Vec<Client> =
        (0..4).map(|n| Client::login_with(address, 100 + n, other)).collect();
    for (n, client) in others.iter_mut().enumerate() {
        works(client, n as u8);
    }
}

#[test]
fn clients_that_do_not_read_their_answers() {
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a folder");
        let (server, address) = start(config(vec![file_volume(&dir)], driver));
        let mut greedy: Vec<Client> = (0..12).map(|n| Client::login(address, n)).collect();
        for client in &mut greedy {
            // 64 MiB each, of a server that has 8 MiB of buffers per shard.
            for _ in 0..16 {
                let room = Data::Read(vec![0; 4 * MIB]);
                client.start(0, &rw16(0x88, 0, (4 * MIB / 512) as u32), room);
            }
        }
        others_work(address);
        drop(greedy);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn clients_that_never_send_the_data_they_announced() {
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a folder");
        let (server, address) = start(config(vec![file_volume(&dir)], driver));
        let silent = |options: &mut lunet_iscsi::initiator::Options| {
            options.unsolicited = Unsolicited::Nothing;
        };
        let mut greedy: Vec<Client> =
            (0..12).map(|n| Client::login_with(address, n, silent)).collect();
        for client in &mut greedy {
            for _ in 0..16 {
                // The answer is an R2T, which nobody receives.
                let data = Data::Write(vec![0; 4 * MIB]);
                client.start(0, &rw16(0x8A, 0, (4 * MIB / 512) as u32), data);
            }
        }
        others_work(address);
        drop(greedy);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn many_comparisons_at_once_do_not_wait_for_each_other() {
    on_each_driver(|driver| {
        let (volume, gate) = stalling(64);
        let (server, address) = start(config(vec![volume], driver));
        let mut client = Client::login(address, 1);
        gate.close();
        // All of them hold their data when they come to read back, and there is no memory left.
        let commands: Vec<_> = (0..40)
            .map(|n| {
                let mut cdb = rw16(0x8E, n * 512, 512);
                cdb[1] = 0x02;
                client.start(0, &cdb, Data::Write(vec![(n + 1) as u8; 512 * 512]))
            })
            .collect();
        let refused = |client: &mut Client, tag| match client.outcome(tag).outcome {
            Outcome::Completed(answer) => answer.status == 0x28,
            other => panic!("{:?}", std::mem::discriminant(&other)),
        };
        // When this is answered, all of them have been looked at: they are at the storage, or TASK SET FULL.
        assert_eq!(client.finish(0, &[0; 6], Data::None).status, 0);
        assert!((1..=34).contains(&gate.held()), "{} are at the storage", gate.held());
        gate.open();
        let full = commands.iter().filter(|tag| refused(&mut client, **tag)).count();
        assert!((6..40).contains(&full), "some got through: all but {full}");
        works(&mut client, 77);
        drop(client);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}
