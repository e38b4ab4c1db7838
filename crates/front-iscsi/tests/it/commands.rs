//! Commands whose data takes an unusual way.

use std::time::Duration;

use lunet_backends::{Storage, VolumeSpec, open};
use lunet_iscsi::initiator::{Data, Residual};
use lunet_ring::DriverChoice;

use crate::support::client::{Client, rw16};
use crate::support::status::{CHECK_CONDITION, GOOD};
use crate::support::{config, file_volume, memory, on_each_driver, start};

/// Bytes that differ from block to block and from seed to seed.
fn pattern(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32).map(|n| (n.wrapping_mul(31) ^ (n >> 9) ^ seed) as u8).collect()
}

/// A WRITE that the initiator flags as a read (R = 1), and commands without Data-Out that it flags as writes.
#[test]
fn data_in_the_wrong_direction_is_no_success() {
    on_each_driver(|driver| {
        let (server, address) = start(config(vec![memory(16)], driver));
        let mut client = Client::login(address, 1);
        assert_eq!(client.write(0, 0, vec![7; 512]), GOOD);
        let done = client.finish(0, &rw16(0x8A, 0, 1), Data::Read(vec![0; 512]));
        let sense = (done.sense[2], done.sense[12], done.sense[13]);
        assert_eq!((done.status, sense), (CHECK_CONDITION, (5, 0x0E, 0x03)));
        assert_eq!(client.read(0, 0, 1), (GOOD, vec![7; 512]));
        // Here the residual count says that none of it was used (RFC 7143 11.4.5.1).
        for cdb in [&rw16(0x88, 0, 1)[..], &[0x12, 0, 0, 0, 96, 0], &[0; 6]] {
            let done = client.finish(0, cdb, Data::Write(vec![9; 512]));
            assert_eq!(
                (done.status, done.residual),
                (GOOD, Residual::Underflow(512)),
                "{cdb:02x?}"
            );
        }
        assert_eq!(client.read(0, 0, 1), (GOOD, vec![7; 512]));
        drop(client);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn unsolicited_data_may_end_in_the_middle_of_a_block() {
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a folder");
        let (server, address) = start(config(vec![memory(16), file_volume(&dir)], driver));
        for (n, first_burst) in [512, 700, 1000, 4097, 70_001].into_iter().enumerate() {
            let mut client = Client::login_with(address, n as u8, |options| {
                options.first_burst_length = first_burst;
                options.max_recv_data_segment_length = 5000;
            });
            assert_eq!(client.finish(1, &[0; 6], Data::None).status, CHECK_CONDITION, "power on");
            for (lun, len) in [(0, 512), (0, 4096), (0, 1 << 20), (1, 4096), (1, (3 << 20) + 512)] {
                let data = pattern(len, first_burst);
                assert_eq!(client.write(lun, 7, data.clone()), 0);
                let (status, read) = client.read(lun, 7, (len / 512) as u32);
                assert_eq!(status, 0);
                assert!(read == data, "first burst {first_burst}, {len} bytes");
            }
        }
        server.stop(std::time::Duration::ZERO);
    });
}

#[test]
fn blocks_are_repeated_and_compared() {
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a folder");
        let (server, address) = start(config(vec![file_volume(&dir)], driver));
        let mut client = Client::login(address, 1);
        let block = pattern(512, 9);
        let blocks = 6000;
        let write_same = rw16(0x93, 10, blocks);
        assert_eq!(client.finish(0, &write_same, Data::Write(block.clone())).status, 0);
        let (_, read) = client.read(0, 9, blocks + 2);
        assert!(read[..512].iter().chain(&read[read.len() - 512..]).all(|byte| *byte == 0));
        assert!(read[512..read.len() - 512].chunks(512).all(|piece| piece == block));

        // VERIFY: one block against all, all against all, and with a difference in one byte.
        let mut one = rw16(0x8F, 10, blocks);
        one[1] = 0x06;
        assert_eq!(client.finish(0, &one, Data::Write(block.clone())).status, 0);
        let mut all = rw16(0x8F, 10, 1000);
        all[1] = 0x02;
        let mut data = block.repeat(1000);
        assert_eq!(client.finish(0, &all, Data::Write(data.clone())).status, 0);
        data[300_000] ^= 1;
        let answer = client.finish(0, &all, Data::Write(data.clone()));
        let offset = u32::from_be_bytes([3, 4, 5, 6].map(|at| answer.sense[at]));
        assert_eq!((answer.status, answer.sense[2], offset), (CHECK_CONDITION, 0x0E, 300_000));

        // WRITE AND VERIFY writes what it compares.
        let mut write = rw16(0x8E, 10, 1000);
        write[1] = 0x02;
        assert_eq!(client.finish(0, &write, Data::Write(data.clone())).status, 0);
        assert!(client.read(0, 10, 1000).1 == data);

        // Zeroes, given back or written.
        for unmap in [0x08, 0x00] {
            let mut zeroes = rw16(0x93, 10, 1000);
            zeroes[1] = unmap;
            assert_eq!(client.finish(0, &zeroes, Data::Write(vec![0; 512])).status, 0);
            assert!(client.read(0, 10, 1000).1.iter().all(|byte| *byte == 0));
            assert_eq!(client.write(0, 10, data.clone()), 0);
        }
        drop(client);
        server.stop(std::time::Duration::ZERO);
    });
}

#[test]
fn a_whole_large_volume_can_be_verified() {
    let null = open(&VolumeSpec::new(Storage::Null { size: 1 << 40 })).expect("a null volume");
    let (server, address) = start(config(vec![null, memory(256)], DriverChoice::Auto));
    let mut client = Client::login(address, 1);
    assert_eq!(client.finish(1, &[0; 6], Data::None).status, CHECK_CONDITION, "power on");
    for (lun, blocks) in [(0, 1 << 30), (1, 256 << 11)] {
        assert_eq!(client.finish(lun, &rw16(0x8F, 0, blocks), Data::None).status, 0);
    }
    drop(client);
    server.stop(std::time::Duration::ZERO);
}
