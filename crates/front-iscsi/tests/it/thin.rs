//! Thin volumes: GET LBA STATUS, and thresholds.

use std::time::{Duration, Instant};

use lunet_block::{Error, Space};
use lunet_iscsi::initiator::{Data, Outcome};
use lunet_scsi::Threshold;

use crate::support::client::{Client, rw16};
use crate::support::room::Roomy;
use crate::support::{config, file_volume, memory, on_each_driver, start};

/// A command with Data-In: its status, and its data or sense data.
fn ask(client: &mut Client, cdb: &[u8], room: usize) -> (u8, Vec<u8>) {
    let tag = client.start(0, cdb, Data::Read(vec![0; room]));
    let finished = client.outcome(tag);
    match (finished.outcome, finished.data) {
        (Outcome::Completed(done), Data::Read(mut data)) if done.status == 0 => {
            data.truncate(done.received as usize);
            (0, data)
        }
        (Outcome::Completed(done), _) => (done.status, done.sense),
        other => panic!("no answer: {other:?}"),
    }
}

/// The extents from an address on: address, blocks, mapped.
fn status(client: &mut Client, lba: u64, most: u32) -> Vec<(u64, u32, bool)> {
    let mut cdb = rw16(0x9E, lba, 8 + 16 * most);
    cdb[1] = 0x12;
    let (status, data) = ask(client, &cdb, 4096);
    assert_eq!(status, 0, "{data:02x?}");
    let number = |bytes: &[u8]| bytes.iter().fold(0, |n, b| n << 8 | u64::from(*b));
    assert_eq!(number(&data[..4]) as usize + 4, data.len());
    let extent = |d: &[u8]| (number(&d[..8]), number(&d[8..12]) as u32, d[12] == 0);
    data[8..].chunks_exact(16).map(extent).collect()
}

const BLOCKS: u64 = (64 << 20) / 512;

#[test]
fn what_was_written_is_mapped_until_it_is_unmapped() {
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a directory");
        let (server, address) = start(config(vec![file_volume(&dir)], driver));
        let mut client = Client::login(address, 1);
        let all = BLOCKS as u32;
        assert_eq!(status(&mut client, 0, 8), [(0, all, false)]);
        assert_eq!(status(&mut client, 9, 8), [(9, all - 9, false)]);
        assert_eq!(client.write(0, 2048, vec![1; 1 << 20]), 0);
        let expected = [(0, 2048, false), (2048, 2048, true), (4096, all - 4096, false)];
        assert_eq!(status(&mut client, 0, 8), expected);
        assert_eq!(status(&mut client, 0, 1), expected[..1]);
        assert_eq!(status(&mut client, 3000, 1), [(3000, 1096, true)]);
        let mut unmap = vec![0; 24];
        (unmap[1], unmap[3]) = (22, 16);
        unmap[14..16].copy_from_slice(&2048_u16.to_be_bytes());
        unmap[18..20].copy_from_slice(&2048_u16.to_be_bytes());
        let cdb = [0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0];
        assert_eq!(client.finish(0, &cdb, Data::Write(unmap)).status, 0);
        assert_eq!(status(&mut client, 0, 8), [(0, all, false)]);
        drop(client);
        server.stop(Duration::ZERO);
    });
}

#[test]
fn a_storage_that_does_not_tell_or_fails_gives_an_answer_too() {
    on_each_driver(|driver| {
        let nothing = Space { used: 0, available: 0, total: 0 };
        let (volume, room) = Roomy::over(memory(16), nothing);
        let (server, address) = start(config(vec![volume], driver));
        let mut client = Client::login(address, 1);
        *room.lock().expect("nobody panics") = Err(Error::Unsupported);
        assert_eq!(status(&mut client, 1, 8), [(1, 32767, true)]);
        *room.lock().expect("nobody panics") = Err(Error::Io(5));
        let mut cdb = rw16(0x9E, 0, 24);
        cdb[1] = 0x12;
        let (code, sense) = ask(&mut client, &cdb, 24);
        assert_eq!((code, sense[2], sense[12]), (2, 3, 0x11));
        drop(client);
        server.stop(Duration::ZERO);
    });
}

/// Waits for a unit attention; its additional sense code and INFORMATION.
fn attention(client: &mut Client) -> (u8, u8, u8) {
    let limit = Instant::now() + Duration::from_secs(60);
    while Instant::now() < limit {
        let answer = client.finish(0, &[0; 6], Data::None);
        if answer.status == 2 {
            return (answer.sense[12], answer.sense[13], answer.sense[6]);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("no unit attention came");
}

#[test]
fn all_are_told_when_the_storage_fills_up() {
    let space = |available| Space { used: 5 << 20, available, total: 100 << 20 };
    let (volume, room) = Roomy::over(memory(16), space(50 << 20));
    let mut config = config(vec![volume], lunet_ring::DriverChoice::Auto);
    config.layout.volumes[0].unit.threshold = Threshold::new(80);
    let (server, address) = start(config);
    let (mut a, mut b) = (Client::login(address, 1), Client::login(address, 2));
    *room.lock().expect("nobody panics") = Ok(space(19 << 20));
    for client in [&mut a, &mut b] {
        assert_eq!(attention(client), (0x38, 0x07, 16));
        assert_eq!(client.finish(0, &[0; 6], Data::None).status, 0, "once");
    }
    let log = [0x4D, 0, 0x4C, 0, 0, 0, 0, 0, 255, 0];
    let (_, page) = ask(&mut a, &log, 255);
    assert_eq!((page[11], page[23]), (19, 5), "MiB available, MiB used");
    drop((a, b));
    server.stop(Duration::ZERO);
}
