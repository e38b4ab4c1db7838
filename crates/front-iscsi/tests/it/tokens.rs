//! POPULATE TOKEN, WRITE USING TOKEN and RECEIVE ROD TOKEN INFORMATION, as Windows uses them.

use std::time::{Duration, Instant};

use lunet_iscsi::initiator::{Completion, Data};
use lunet_iscsi::pdu::TmfFunction;
use lunet_ring::DriverChoice;

use crate::support::client::Client;
use crate::support::copy::{receive, send, wake};
use crate::support::status::{CHECK_CONDITION, GOOD};
use crate::support::{config, file_volume, memory, on_each_driver, start};

const POPULATE: u8 = 0x10;
const WRITE: u8 = 0x11;
const INFORMATION: u8 = 0x07;

fn pattern(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32).map(|n| (n.wrapping_mul(31) ^ (n >> 9).wrapping_mul(7) ^ seed) as u8).collect()
}

fn descriptors(ranges: &[(u64, u32)]) -> Vec<u8> {
    let one = |(lba, blocks): &(u64, u32)| {
        [&lba.to_be_bytes()[..], &blocks.to_be_bytes(), &[0; 4]].concat()
    };
    ranges.iter().flat_map(one).collect()
}

fn populate(immediate: bool, ranges: &[(u64, u32)]) -> Vec<u8> {
    let descriptors = descriptors(ranges);
    let mut list = vec![0; 16];
    list[..2].copy_from_slice(&(14 + descriptors.len() as u16).to_be_bytes());
    list[2] = immediate.into();
    list[14..].copy_from_slice(&(descriptors.len() as u16).to_be_bytes());
    [list, descriptors].concat()
}

fn write(flags: u8, offset: u64, token: &[u8], ranges: &[(u64, u32)]) -> Vec<u8> {
    let descriptors = descriptors(ranges);
    let mut list = vec![0; 536];
    list[..2].copy_from_slice(&(534 + descriptors.len() as u16).to_be_bytes());
    list[2] = flags;
    list[8..16].copy_from_slice(&offset.to_be_bytes());
    list[16..528].copy_from_slice(token);
    list[534..].copy_from_slice(&(descriptors.len() as u16).to_be_bytes());
    [list, descriptors].concat()
}

fn sense(answer: &Completion) -> (u8, u8, u8) {
    assert_eq!(answer.status, CHECK_CONDITION);
    (answer.sense[2], answer.sense[12], answer.sense[13])
}

/// Makes a token.
fn token(client: &mut Client, lun: u16, ranges: &[(u64, u32)]) -> Vec<u8> {
    assert_eq!(send(client, lun, POPULATE, 77, populate(true, ranges)).status, GOOD);
    let information = receive(client, lun, INFORMATION, 77, 1024).expect("a token");
    assert_eq!((information[4], information[5]), (POPULATE, 0x01));
    let blocks: u64 = ranges.iter().map(|(_, blocks)| u64::from(*blocks)).sum();
    assert_eq!(information[15..24], [&[0xF1][..], &blocks.to_be_bytes()].concat());
    assert_eq!(information[32..36], 514u32.to_be_bytes());
    information[38..].to_vec()
}

/// The state of an operation that has ended, and the blocks that it has written.
fn ended(client: &mut Client, lun: u16, list: u32) -> (u8, u64) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let information = receive(client, lun, INFORMATION, list, 1024).expect("it is known");
        assert_eq!(information[4], WRITE);
        let count = u64::from_be_bytes(information[16..24].try_into().expect("8 bytes"));
        if !matches!(information[5], 0x10..=0x12) {
            return (information[5], count);
        }
        assert!(Instant::now() < deadline, "it does not end");
    }
}

#[test]
fn a_token_moves_data_between_volumes() {
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a folder");
        let (server, address) = start(config(vec![memory(64), file_volume(&dir)], driver));
        let mut client = Client::login(address, 1);
        wake(&mut client, 1..2);
        for (from, to) in [(0, 1), (1, 0), (0, 0)] {
            let data = pattern(4 << 20, u32::from(from) + 1);
            assert_eq!(client.write(from, 50, data.clone()), GOOD);
            let token = token(&mut client, from, &[(50, 4000), (4050, 4192)]);
            for immediate in [0, 1] {
                let ranges = [(70_000, 8000), (90_000, 192)];
                let list = write(immediate, 0, &token, &ranges);
                assert_eq!(send(&mut client, to, WRITE, 5, list).status, GOOD);
                assert_eq!(ended(&mut client, to, 5), (0x01, 8192));
                let read = [client.read(to, 70_000, 8000).1, client.read(to, 90_000, 192).1];
                assert!(read.concat() == data, "{from} to {to}, IMMED {immediate}");
            }
            // From the middle on, and more than there is.
            let list = write(2, 8000, &token, &[(110_000, 1000)]);
            assert_eq!(send(&mut client, to, WRITE, 5, list.clone()).status, GOOD);
            assert_eq!(ended(&mut client, to, 5), (0x03, 192));
            let read = client.read(to, 110_000, 192).1;
            assert!(read == data[8000 * 512..], "{from} to {to}");
            // That was its last use (DEL_TKN).
            let again = send(&mut client, to, WRITE, 5, list);
            assert_eq!(sense(&again), (5, 0x23, 0x04));
        }
        drop(client);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn the_token_of_zeroes_needs_no_making() {
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a folder");
        let (server, address) = start(config(vec![memory(64), file_volume(&dir)], driver));
        let mut client = Client::login(address, 1);
        wake(&mut client, 1..2);
        let mut zero = vec![0; 512];
        zero[..8].copy_from_slice(&[0xFF, 0xFF, 0, 1, 0, 0, 0x01, 0xF8]);
        for lun in 0..2 {
            assert_eq!(client.write(lun, 0, vec![0xAA; 2 << 20]), GOOD);
            let list = write(1, 0, &zero, &[(1, 2000), (3000, 1000)]);
            assert_eq!(send(&mut client, lun, WRITE, 6, list).status, GOOD);
            assert_eq!(ended(&mut client, lun, 6), (0x01, 3000));
            let read = client.read(lun, 0, 4096).1;
            let zeroes =
                |from: usize, to: usize| read[from * 512..to * 512].iter().all(|b| *b == 0);
            let kept =
                |from: usize, to: usize| read[from * 512..to * 512].iter().all(|b| *b == 0xAA);
            assert!(kept(0, 1) && zeroes(1, 2001) && kept(2001, 3000));
            assert!(zeroes(3000, 4000) && kept(4000, 4096));
        }
        drop(client);
        server.stop(Duration::ZERO);
    });
}

#[test]
fn bad_tokens_are_told_apart() {
    let (server, address) = start(config(vec![memory(64), memory(64)], DriverChoice::Auto));
    let mut client = Client::login(address, 1);
    wake(&mut client, 1..2);
    let good = token(&mut client, 0, &[(0, 8)]);
    let mut refused = |token: &[u8], offset: u64, ranges: &[(u64, u32)]| {
        let answer = send(&mut client, 1, WRITE, 9, write(1, offset, token, ranges));
        let (key, code, qualifier) = sense(&answer);
        assert_eq!(key, 5);
        (code, qualifier)
    };
    let change = |at: usize, value: u8| {
        let mut token = good.clone();
        token[at] ^= value;
        token
    };
    for at in [8, 20, 100, 400, 511] {
        assert_eq!(refused(&change(at, 1), 0, &[(0, 8)]), (0x23, 0x04), "byte {at}");
    }
    assert_eq!(refused(&change(1, 0x80), 0, &[(0, 8)]), (0x23, 0x01));
    assert_eq!(refused(&change(7, 1), 0, &[(0, 8)]), (0x23, 0x0A));
    assert_eq!(refused(&good, 8, &[(0, 8)]), (0x26, 0x00), "beyond the data");
    assert_eq!(refused(&good, 0, &[(64 << 11, 1)]), (0x21, 0x00), "beyond the volume");
    // What never began is not known.
    assert!(receive(&mut client, 1, INFORMATION, 9, 1024).is_err());
    // A short inactivity timeout.
    let mut list = populate(false, &[(0, 8)]);
    list[7] = 1;
    assert_eq!(send(&mut client, 0, POPULATE, 1, list).status, GOOD);
    let short = receive(&mut client, 0, INFORMATION, 1, 1024).expect("a token")[38..].to_vec();
    std::thread::sleep(Duration::from_millis(1100));
    let answer = send(&mut client, 1, WRITE, 9, write(0, 0, &short, &[(0, 8)]));
    assert_eq!(sense(&answer), (5, 0x23, 0x07));
    assert_eq!(send(&mut client, 1, WRITE, 9, write(0, 0, &good, &[(0, 8)])).status, GOOD);
    drop(client);
    server.stop(Duration::ZERO);
}

#[test]
fn tokens_do_not_outlive_the_server_and_outcomes_not_a_reset() {
    let (volume, other) = (memory(64), memory(64));
    let volumes = || vec![volume.clone(), other.clone()];
    let (server, address) = start(config(volumes(), DriverChoice::Auto));
    let mut client = Client::login(address, 1);
    wake(&mut client, 1..2);
    let token = token(&mut client, 0, &[(0, 8)]);
    let list = write(0, 0, &token, &[(0, 8)]);
    assert_eq!(send(&mut client, 1, WRITE, 9, list.clone()).status, GOOD);
    client.manage(TmfFunction::LogicalUnitReset, 1, None);
    assert_eq!(client.finish(1, &[0; 6], Data::None).status, CHECK_CONDITION, "reset");
    assert!(receive(&mut client, 1, INFORMATION, 9, 1024).is_err());
    // The token is the server's, not the session's.
    let mut next = Client::login(address, 2);
    wake(&mut next, 1..2);
    assert_eq!(send(&mut next, 1, WRITE, 9, list.clone()).status, GOOD);
    drop((client, next));
    server.stop(Duration::ZERO);
    let (server, address) = start(config(volumes(), DriverChoice::Auto));
    let mut client = Client::login(address, 1);
    wake(&mut client, 1..2);
    assert_eq!(sense(&send(&mut client, 1, WRITE, 9, list)), (5, 0x23, 0x04));
    drop(client);
    server.stop(Duration::ZERO);
}
