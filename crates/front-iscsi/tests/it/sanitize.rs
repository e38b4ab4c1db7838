//! SANITIZE and FORMAT UNIT: what it does to the data, what others see of it, and what a restart in its middle leaves.

use std::path::Path;
use std::time::Duration;

use lunet_backends::Volume;
use lunet_iscsi::initiator::{Completion, Data, Outcome, Tag};
use lunet_iscsi::pdu::{TmfFunction, TmfResponse};
use lunet_ring::DriverChoice;
use lunet_scsi::Sanitation;
use lunet_volume::HoldError;

use crate::support::client::{Client, rw16};
use crate::support::status::{CHECK_CONDITION, CONFLICT, GOOD};
use crate::support::{config, file_volume, memory, on_each_driver, stalling, start, until};

const OVERWRITE: u8 = 0x01;
const BLOCK_ERASE: u8 = 0x02;
const EXIT: u8 = 0x1F;
const IMMED: u8 = 0x80;
const AUSE: u8 = 0x20;
/// Key, code and qualifier.
const IN_PROGRESS: [u8; 3] = [2, 0x04, 0x1B];
const FAILED: [u8; 3] = [3, 0x31, 0x03];
const INVALID: [u8; 3] = [5, 0x24, 0x00];

fn cdb(action: u8, len: u16) -> [u8; 10] {
    let [high, low] = len.to_be_bytes();
    [0x48, action, 0, 0, 0, 0, 0, high, low, 0]
}

/// OVERWRITE with a pattern; `first` has INVERT and the number of passes.
fn overwrite(client: &mut Client, flags: u8, first: u8, pattern: &[u8]) -> Tag {
    let len = pattern.len() as u16;
    let list = [&[first, 0], &len.to_be_bytes()[..], pattern].concat();
    client.start(0, &cdb(OVERWRITE | flags, len + 4), Data::Write(list))
}

fn done(client: &mut Client, tag: Tag) -> Completion {
    match client.outcome(tag).outcome {
        Outcome::Completed(done) => done,
        other => panic!("not answered: {other:?}"),
    }
}

fn bare(client: &mut Client, action: u8) -> Completion {
    client.finish(0, &cdb(action, 0), Data::None)
}

fn sense(done: &Completion) -> [u8; 3] {
    assert_eq!(done.status, CHECK_CONDITION);
    [2, 12, 13].map(|at| done.sense[at])
}

fn test_unit_ready(client: &mut Client) -> Completion {
    client.finish(0, &[0; 6], Data::None)
}

/// A volume of 64 MiB, and one with a volatile cache.
fn each_volume(test: impl Fn(Volume, DriverChoice)) {
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a folder");
        test(memory(64), driver);
        test(file_volume(&dir), driver);
    });
}

#[test]
fn every_block_is_overwritten_or_erased() {
    const ENDS: [u64; 3] = [0, 70_000, (64 << 11) - 8];
    each_volume(|volume, driver| {
        let (server, address) = start(config(vec![volume], driver));
        let mut client = Client::login(address, 1);
        let check = |client: &mut Client, pattern: &[u8]| {
            let block: Vec<u8> = pattern.iter().copied().cycle().take(512).collect();
            for lba in ENDS {
                assert!(client.read(0, lba, 8) == (GOOD, block.repeat(8)), "at {lba}");
                assert_eq!(client.write(0, lba, vec![0xEE; 8 * 512]), GOOD);
            }
        };
        for (first, pattern) in [(1, vec![0xA5; 512]), (0x82, vec![1, 2, 3, 4, 5]), (3, vec![9])] {
            let tag = overwrite(&mut client, 0, first, &pattern);
            assert_eq!(done(&mut client, tag).status, GOOD);
            check(&mut client, &pattern);
        }
        assert_eq!(bare(&mut client, BLOCK_ERASE).status, GOOD);
        check(&mut client, &[0]);
        assert_eq!(bare(&mut client, EXIT).status, GOOD, "there is nothing to leave");
        drop(client);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn others_are_refused_until_it_ends_and_nothing_ends_it_before() {
    on_each_driver(|driver| {
        let (volume, gate) = stalling(16);
        let (server, address) = start(config(vec![volume], driver));
        let mut client = Client::login(address, 1);
        let mut others: Vec<Client> = (2..5).map(|n| Client::login(address, n)).collect();
        // A write that was there before keeps it waiting, but not from being seen.
        gate.close();
        let early = others[0].start(0, &rw16(0x8A, 0, 1), Data::Write(vec![1; 512]));
        until("the write is held", || gate.held() == 1);
        let tag = overwrite(&mut client, 0, 1, &[7]);
        until("it is seen", || test_unit_ready(&mut others[1]).status != GOOD);
        for client in &mut others {
            let told = test_unit_ready(client);
            assert_eq!(sense(&told), IN_PROGRESS);
            assert_eq!(told.sense[15], 0x80, "it has a progress indication");
            let read = client.start(0, &rw16(0x88, 0, 1), Data::Read(vec![0; 512]));
            assert_eq!(sense(&done(client, read)), IN_PROGRESS);
        }
        let again = overwrite(&mut others[1], 0, 1, &[7]);
        assert_eq!(sense(&done(&mut others[1], again)), IN_PROGRESS);
        gate.open();
        assert_eq!(done(&mut others[0], early).status, GOOD);
        assert_eq!(done(&mut client, tag).status, GOOD);

        gate.close();
        let tag = overwrite(&mut client, 0, 1, &[8]);
        until("it writes", || gate.held() > 0);
        let answer = client.manage(TmfFunction::AbortTask, 0, Some(tag));
        assert_eq!(answer, TmfResponse::Complete);
        let answer = others[0].manage(TmfFunction::LogicalUnitReset, 0, None);
        assert_eq!(answer, TmfResponse::Complete);
        drop(client);
        for client in &mut others {
            assert_eq!(sense(&test_unit_ready(client))[..2], [6, 0x29], "the reset");
            assert_eq!(sense(&test_unit_ready(client)), IN_PROGRESS);
        }
        gate.open();
        until("it has ended", || test_unit_ready(&mut others[0]).status == GOOD);
        assert_eq!(others[0].read(0, 100, 1), (GOOD, vec![8; 512]));
        drop(others);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn what_fails_is_to_be_repeated_or_given_up() {
    on_each_driver(|driver| {
        for (flags, restricted) in [(0, true), (AUSE, false)] {
            let (volume, gate) = stalling(16);
            let (server, address) = start(config(vec![volume], driver));
            let mut client = Client::login(address, 1);
            gate.close();
            let tag = overwrite(&mut client, flags | IMMED, 1, &[7]);
            assert_eq!(done(&mut client, tag).status, GOOD, "it does not wait for the end");
            until("it writes", || gate.held() > 0);
            gate.break_open();
            until("it has failed", || sense(&test_unit_ready(&mut client)) == FAILED);
            let read = client.start(0, &rw16(0x88, 0, 1), Data::Read(vec![0; 512]));
            assert_eq!(sense(&done(&mut client, read)), FAILED);
            gate.repair();
            if restricted {
                assert_eq!(sense(&bare(&mut client, EXIT)), INVALID);
                let tag = overwrite(&mut client, AUSE, 1, &[7]);
                assert_eq!(sense(&done(&mut client, tag)), INVALID);
                let tag = overwrite(&mut client, 0, 1, &[7]);
                assert_eq!(done(&mut client, tag).status, GOOD);
                assert_eq!(client.read(0, 9, 1), (GOOD, vec![7; 512]));
            } else {
                assert_eq!(bare(&mut client, EXIT).status, GOOD);
                assert_eq!(client.read(0, 9, 1).0, GOOD);
            }
            drop(client);
            server.stop(Duration::ZERO);
        }
    });
}

#[test]
fn a_restart_in_the_middle_finds_it_failed() {
    let dir = tempfile::tempdir().expect("a folder");
    let mark = dir.path().join("v0.sanitize");
    let serve = |volume: Volume, kept: &Path| {
        let mut config = config(vec![volume], DriverChoice::Auto);
        config.layout.volumes[0].reservations = Some(kept.join("v0.reservations"));
        start(config)
    };
    for (flags, restricted) in [(AUSE, false), (0, true)] {
        let (volume, gate) = stalling(16);
        let (server, address) = serve(volume.clone(), dir.path());
        let mut client = Client::login(address, 1);
        gate.close();
        assert!(!mark.exists());
        let tag = overwrite(&mut client, flags | IMMED, 1, &[7]);
        assert_eq!(done(&mut client, tag).status, GOOD);
        assert!(mark.exists(), "it is answered when the mark is stable");
        until("it writes", || gate.held() > 0);
        drop(client);
        // The server stops with the operation unfinished, whichever of the two comes first.
        std::thread::scope(|scope| {
            scope.spawn(|| server.stop(Duration::ZERO));
            gate.break_open();
        });
        gate.repair();
        assert!(mark.exists());

        let (server, address) = serve(volume, dir.path());
        let mut client = Client::login(address, 1);
        assert_eq!(sense(&test_unit_ready(&mut client)), FAILED);
        let asked = client.start(0, &[3, 0, 0, 0, 18, 0], Data::Read(vec![0; 18]));
        let Data::Read(told) = client.outcome(asked).data else { panic!("no data") };
        assert_eq!([2, 12, 13].map(|at| told[at]), FAILED);
        if restricted {
            assert_eq!(sense(&bare(&mut client, EXIT)), INVALID);
            assert_eq!(bare(&mut client, BLOCK_ERASE).status, GOOD);
            assert_eq!(client.read(0, 0, 1), (GOOD, vec![0; 512]));
        } else {
            assert_eq!(bare(&mut client, EXIT).status, GOOD);
            assert_eq!(client.read(0, 0, 1).0, GOOD);
        }
        assert!(!mark.exists());
        drop(client);
        server.stop(Duration::ZERO);
    }
}

#[test]
fn without_a_stable_mark_no_block_is_touched() {
    let dir = tempfile::tempdir().expect("a folder");
    let state = dir.path().join("state");
    std::fs::create_dir(&state).expect("a folder");
    let mut config = config(vec![memory(16)], DriverChoice::Auto);
    config.layout.volumes[0].reservations = Some(state.join("v0.reservations"));
    let (server, address) = start(config);
    let mut client = Client::login(address, 1);
    assert_eq!(client.write(0, 5, vec![5; 512]), GOOD);
    std::fs::remove_dir(&state).expect("it is empty");
    let tag = overwrite(&mut client, 0, 1, &[7]);
    assert_eq!(sense(&done(&mut client, tag)), [4, 0x44, 0]);
    assert_eq!(client.read(0, 5, 1), (GOOD, vec![5; 512]));
    drop(client);
    server.stop(Duration::ZERO);
}

#[test]
fn a_thread_can_hold_a_volume() {
    on_each_driver(|driver| {
        let (volume, gate) = stalling(16);
        let (server, address) = start(config(vec![volume], driver));
        let handle = server.handle();
        let mut clients: Vec<Client> = (1..4).map(|n| Client::login(address, n)).collect();
        assert!(matches!(handle.hold("v1", Duration::ZERO), Err(HoldError::Unknown)));
        gate.close();
        let write = rw16(0x8A, 0, 1);
        let tag = clients[0].start(0, &write, Data::Write(vec![1; 512]));
        until("the write is held", || gate.held() == 1);
        // What is at the storage must end first.
        let short = Duration::from_millis(50);
        assert!(matches!(handle.hold("v0", short), Err(HoldError::Timeout)));
        gate.open();
        assert_eq!(done(&mut clients[0], tag).status, GOOD);

        let held = handle.hold("v0", Duration::from_secs(20)).expect("it is free");
        let waiting: Vec<Tag> = clients
            .iter_mut()
            .map(|client| client.start(0, &rw16(0x88, 0, 1), Data::Read(vec![0; 512])))
            .collect();
        // What touches no block is answered, and comes after the reads.
        for client in &mut clients {
            assert_eq!(test_unit_ready(client).status, GOOD);
        }
        let answer = clients[0].manage(TmfFunction::AbortTask, 0, Some(waiting[0]));
        assert_eq!(answer, TmfResponse::Complete);
        assert_eq!(clients[0].outcome(waiting[0]).outcome, Outcome::Aborted);
        drop(held);
        for at in 1..3 {
            assert_eq!(done(&mut clients[at], waiting[at]).status, GOOD);
        }
        drop(clients);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

/// IMMED in the header of FORMAT UNIT.
const IMMED_FORMAT: u8 = 0x02;

/// FORMAT UNIT with a short header.
fn format(client: &mut Client, options: u8) -> Completion {
    let tag = client.start(0, &[4, 0x18, 0, 0, 0, 0], Data::Write(vec![0, options, 0, 0]));
    done(client, tag)
}

const FORMATTING: [u8; 3] = [2, 0x04, 0x04];
const CORRUPTED: [u8; 3] = [3, 0x31, 0x00];

#[test]
fn every_block_of_a_formatted_volume_reads_as_zeroes() {
    each_volume(|volume, driver| {
        let (server, address) = start(config(vec![volume], driver));
        let mut client = Client::login(address, 1);
        for round in 0..2 {
            for lba in [0, 70_000, (64 << 11) - 8] {
                assert_eq!(client.write(0, lba, vec![0xEE; 8 * 512]), GOOD);
            }
            let status = match round {
                0 => client.finish(0, &[4, 0, 0, 0, 0, 0], Data::None).status,
                _ => format(&mut client, IMMED_FORMAT).status,
            };
            assert_eq!(status, GOOD);
            until("it has ended", || test_unit_ready(&mut client).status == GOOD);
            for lba in [0, 70_000, (64 << 11) - 8] {
                assert_eq!(client.read(0, lba, 8), (GOOD, vec![0; 8 * 512]), "at {lba}");
            }
        }
        drop(client);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn a_format_that_is_cut_off_leaves_no_usable_volume() {
    let dir = tempfile::tempdir().expect("a folder");
    let mark = dir.path().join("v0.sanitize");
    let serve = |volume: Volume| {
        let mut config = config(vec![volume], DriverChoice::Auto);
        config.layout.volumes[0].reservations = Some(dir.path().join("v0.reservations"));
        start(config)
    };
    for sanitize in [false, true] {
        let (volume, gate) = stalling(16);
        let (server, address) = serve(volume.clone());
        let mut client = Client::login(address, 1);
        gate.close();
        assert_eq!(format(&mut client, IMMED_FORMAT).status, GOOD);
        assert!(mark.exists(), "it is answered when the mark is stable");
        let told = test_unit_ready(&mut client);
        assert_eq!((sense(&told), told.sense[15]), (FORMATTING, 0x80));
        until("it works", || gate.held() > 0);
        let stands = lunet_front_iscsi::sanitations(&server.handle());
        assert_eq!(stands, [("v0".to_owned(), Sanitation::Formatting, Some(0))]);
        drop(client);
        std::thread::scope(|scope| {
            scope.spawn(|| server.stop(Duration::ZERO));
            gate.break_open();
        });
        gate.repair();

        let (server, address) = serve(volume);
        let mut client = Client::login(address, 1);
        assert_eq!(sense(&test_unit_ready(&mut client)), CORRUPTED);
        let stands = lunet_front_iscsi::sanitations(&server.handle());
        assert_eq!(stands, [("v0".to_owned(), Sanitation::Unformatted, None)]);
        let read = client.start(0, &rw16(0x88, 0, 1), Data::Read(vec![0; 512]));
        assert_eq!(sense(&done(&mut client, read)), CORRUPTED);
        let again = match sanitize {
            true => bare(&mut client, BLOCK_ERASE),
            false => format(&mut client, 0),
        };
        assert_eq!(again.status, GOOD);
        assert_eq!(client.read(0, 0, 1), (GOOD, vec![0; 512]));
        assert!(!mark.exists());
        assert!(lunet_front_iscsi::sanitations(&server.handle()).is_empty());
        drop(client);
        server.stop(Duration::ZERO);
    }
}

/// A reservation, write protection and other volumes.
#[test]
fn a_format_reaches_no_more_than_a_write_may() {
    on_each_driver(|driver| {
        let (server, address) = start(config(vec![memory(16), memory(16)], driver));
        let mut holder = Client::login(address, 1);
        let mut other = Client::login(address, 2);
        let block = |client: &mut Client, lun, lba| client.write(lun, lba, vec![7; 512]);
        for lun in [0, 1] {
            other.finish(lun, &[0; 6], Data::None);
            holder.finish(lun, &[0; 6], Data::None);
            assert_eq!(block(&mut holder, lun, 0), GOOD);
        }
        assert_eq!(holder.finish(0, &[0x16, 0, 0, 0, 0, 0], Data::None).status, GOOD, "RESERVE");
        assert_eq!(format(&mut other, 0).status, CONFLICT);
        let plain = other.finish(0, &[4, 0, 0, 0, 0, 0], Data::None);
        assert_eq!(plain.status, CONFLICT);
        // MODE SELECT (6) of SWP.
        let list = [&[0, 0, 0, 0, 0x0A, 0x0A, 0, 0x10, 8, 0x40][..], &[0; 6]].concat();
        let select = |client: &mut Client, list| {
            client.finish(0, &[0x15, 0x10, 0, 0, 16, 0], Data::Write(list)).status
        };
        assert_eq!(select(&mut holder, list.clone()), GOOD);
        assert_eq!(sense(&format(&mut holder, 0)), [7, 0x27, 0]);
        assert_eq!(holder.read(0, 0, 1), (GOOD, vec![7; 512]));
        let mut off = list;
        off[8] = 0;
        assert_eq!(select(&mut holder, off), GOOD);
        assert_eq!(format(&mut holder, 0).status, GOOD);
        assert_eq!(holder.read(0, 0, 1), (GOOD, vec![0; 512]));
        assert_eq!(holder.read(1, 0, 1), (GOOD, vec![7; 512]), "another volume");
        drop((holder, other));
        server.stop(Duration::ZERO);
    });
}
