//! EXTENDED COPY between volumes of all kinds, and what becomes of it when something is in the way.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use lunet_backends::{Storage, Volume, VolumeSpec, open};
use lunet_block::Op;
use lunet_iscsi::initiator::{Completion, Data, Outcome};
use lunet_iscsi::pdu::{TmfFunction, TmfResponse};
use lunet_ring::DriverChoice;

use crate::support::client::{Client, rw16};
use crate::support::copy::{begin, cscd_of, lid1, lid4, receive, segment, send, wake, written};
use crate::support::record::Recording;
use crate::support::status::{BUSY, CHECK_CONDITION, CONFLICT, GOOD, TASK_ABORTED};
use crate::support::{config, file_volume, memory, on_each_driver, stalling, start, until};

const COPY_ABORTED: u8 = 0x0A;

/// Bytes that differ from block to block and from seed to seed.
fn pattern(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32).map(|n| (n.wrapping_mul(31) ^ (n >> 9).wrapping_mul(7) ^ seed) as u8).collect()
}

fn memory_4k(mib: u64) -> Volume {
    let mut spec = VolumeSpec::new(Storage::Memory { size: mib << 20 });
    spec.block_size = Some(4096);
    open(&spec).expect("a memory volume opens")
}

/// Sense key, additional sense code and qualifier of fixed format sense data.
fn sense(answer: &Completion) -> (u8, u8, u8) {
    assert_eq!(answer.status, CHECK_CONDITION);
    (answer.sense[2], answer.sense[12], answer.sense[13])
}

/// Reads blocks in commands of a size that every volume takes.
fn read_all(client: &mut Client, lun: u16, lba: u64, blocks: u32) -> Vec<u8> {
    let mut all = Vec::new();
    for at in (0..blocks).step_by(8192) {
        let (status, data) = client.read(lun, lba + u64::from(at), (blocks - at).min(8192));
        assert_eq!(status, GOOD);
        all.extend(data);
    }
    all
}

#[test]
fn data_goes_from_volume_to_volume() {
    on_each_driver(|driver| {
        let (dir, other) =
            (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("one"));
        let volumes = vec![memory(64), memory(64), file_volume(&dir), file_volume(&other)];
        let (server, address) = start(config(volumes, driver));
        let mut client = Client::login(address, 1);
        wake(&mut client, 1..4);
        let data = pattern(5 << 20, 3);
        assert_eq!(client.write(0, 11, data.clone()), GOOD);
        // A ring of copies, each by the copy manager of another unit.
        for (from, to, by) in [(0, 2, 0), (2, 3, 3), (3, 1, 1), (1, 1, 2)] {
            let cscds = [cscd_of(&mut client, from), cscd_of(&mut client, to)];
            let at = if from == 0 { 11 } else { 4001 };
            let to_at = if from == to { 40_000 } else { 4001 };
            let segments =
                [segment(0, 1, 5000, at, to_at), segment(0, 1, 5240, at + 5000, to_at + 5000)];
            let answer = send(&mut client, by, 0, 0, lid1(7, 0, &cscds, &segments));
            assert_eq!(answer.status, GOOD, "{from} to {to}: {:?}", answer.sense);
            let status = receive(&mut client, by, 0x00, 7, 12).expect("a status");
            assert_eq!(status, [0, 0, 0, 8, 1, 0, 2, 0, 0, 0x50, 0, 0]);
            assert!(receive(&mut client, by, 0x00, 7, 12).is_err(), "it is told once");
            assert!(read_all(&mut client, to, to_at, 10_240) == data, "{from} to {to}");
        }
        let copied: u64 = server.handle().stats().volumes.iter().map(|v| v.copied_bytes).sum();
        assert_eq!(copied, 4 * (5 << 20));
        drop(client);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn holes_stay_holes() {
    on_each_driver(|driver| {
        let (dir, other) =
            (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("one"));
        // From a file to memory, what is data goes through buffers.
        let volumes = vec![file_volume(&dir), file_volume(&other), memory(64)];
        let (server, address) = start(config(volumes, driver));
        let mut client = Client::login(address, 1);
        wake(&mut client, 1..3);
        let data = pattern(1 << 20, 3);
        assert_eq!(client.write(0, 10_001, data.clone()), GOOD);
        for to in 1..3 {
            for at in (0..4).map(|n| n * 16_384) {
                assert_eq!(client.write(to, at, vec![0xAA; 8 << 20]), GOOD);
            }
            let cscds = [cscd_of(&mut client, 0), cscd_of(&mut client, to)];
            let segments = [segment(0, 1, 65_535, 0, 1)];
            let answer = send(&mut client, 0, 0, 0, lid1(0, 0b11, &cscds, &segments));
            assert_eq!(answer.status, GOOD, "{:?}", answer.sense);
            let read = read_all(&mut client, to, 0, 65_536);
            let (start, end) = (10_002 * 512, 10_002 * 512 + data.len());
            assert!(read[..512].iter().all(|byte| *byte == 0xAA));
            assert!(read[512..start].iter().chain(&read[end..]).all(|byte| *byte == 0));
            assert!(read[start..end] == data);
        }
        let file = other.path().join("volume.img");
        let taken = std::fs::metadata(file).expect("the volume's file").blocks() * 512;
        assert!(taken < 4 << 20, "the copy takes {taken} bytes");
        drop(client);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn ranges_of_one_volume_may_overlap() {
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a folder");
        let (server, address) = start(config(vec![memory(64), file_volume(&dir)], driver));
        let mut client = Client::login(address, 1);
        wake(&mut client, 1..2);
        for lun in 0..2 {
            let cscds = [cscd_of(&mut client, lun)];
            for (from, to) in [(100u64, 101u64), (101, 100), (100, 1000), (1000, 100)] {
                let data = pattern(3 << 20, lun.into());
                assert_eq!(client.write(lun, from, data.clone()), GOOD);
                let segments = [segment(0, 0xFFFF, 6144, from, to)];
                let answer = send(&mut client, lun, 0, 0, lid1(0, 0b11, &cscds, &segments));
                assert_eq!(answer.status, GOOD, "{:?}", answer.sense);
                assert!(read_all(&mut client, lun, to, 6144) == data, "{lun}: {from} to {to}");
            }
        }
        drop(client);
        server.stop(Duration::ZERO);
    });
}

#[test]
fn blocks_of_different_sizes_are_copied_if_they_fit() {
    let (server, address) = start(config(vec![memory(16), memory_4k(16)], DriverChoice::Auto));
    let mut client = Client::login(address, 1);
    wake(&mut client, 1..2);
    let cscds = [cscd_of(&mut client, 0), cscd_of(&mut client, 1)];
    let data = pattern(64 << 10, 9);
    assert_eq!(client.write(0, 3, data.clone()), GOOD);
    let segments = [segment(0, 1, 128, 3, 5)];
    assert_eq!(send(&mut client, 0, 0, 0, lid1(1, 0, &cscds, &segments)).status, GOOD);
    let tag = client.start(1, &rw16(0x88, 5, 16), Data::Read(vec![0; 64 << 10]));
    assert!(matches!(client.outcome(tag).data, Data::Read(read) if read == data));
    // The first segment is done, the second would leave a part of a block.
    let segments = [segment(0, 1, 8, 3, 100), segment(0, 1, 9, 3, 200)];
    let answer = send(&mut client, 0, 0, 0, lid1(1, 0, &cscds, &segments));
    assert_eq!(sense(&answer), (COPY_ABORTED, 0x26, 0x0A));
    assert_eq!(answer.sense[10..12], [0, 1], "the segment's number");
    let details = receive(&mut client, 0, 0x04, 1, 200).expect("failed segment details");
    assert_eq!((details[56], &details[60..]), (CHECK_CONDITION, &answer.sense[..]));
    drop(client);
    server.stop(Duration::ZERO);
}

#[test]
fn an_immediate_copy_goes_on_by_itself() {
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a folder");
        let (server, address) = start(config(vec![memory(64), file_volume(&dir)], driver));
        let mut client = Client::login(address, 1);
        wake(&mut client, 1..2);
        let cscds = [cscd_of(&mut client, 0), cscd_of(&mut client, 1)];
        let data = pattern(8 << 20, 5);
        assert_eq!(client.write(0, 0, data.clone()), GOOD);
        let segments = [segment(0, 1, 16_384, 0, 512)];
        let list = lid4(0x0102_0304, (0, 1), &cscds, &segments);
        assert_eq!(send(&mut client, 0, 1, 0, list).status, GOOD);
        let mut status = Vec::new();
        until("the copy has ended", || {
            status = receive(&mut client, 0, 0x05, 0x0102_0304, 64).expect("a status");
            status[5] != 0x12
        });
        assert_eq!((status[4], status[5], status.len()), (1, 0x01, 32));
        assert_eq!(status[16..26], [0, 0, 0, 0, 0, 0x80, 0, 0, 0, 1]);
        assert!(read_all(&mut client, 1, 512, 16_384) == data);
        drop(client);
        server.stop(Duration::ZERO);
    });
}

#[test]
fn a_copy_is_aborted_and_its_blocks_are_fenced_off() {
    let dir = tempfile::tempdir().expect("a folder");
    // Copied by the storage, and through buffers.
    for source in [memory(16), file_volume(&dir)] {
        let (stalled, gate) = stalling(16);
        let (server, address) = start(config(vec![source, stalled], DriverChoice::Auto));
        let mut client = Client::login(address, 1);
        wake(&mut client, 1..2);
        let cscds = [cscd_of(&mut client, 0), cscd_of(&mut client, 1)];
        let list = || lid1(3, 0, &cscds, &[segment(0, 1, 16_384, 0, 0)]);
        assert_eq!(client.write(0, 0, pattern(1 << 20, 1)), GOOD);
        gate.close();
        let copy = begin(&mut client, 0, 0, 0, list());
        until("writes are held", || gate.held() > 0);
        let twice = send(&mut client, 0, 0, 0, list());
        assert_eq!(sense(&twice), (5, 0x00, 0x16), "the list identifier is in use");
        let answer = client.manage(TmfFunction::AbortTask, 0, Some(copy));
        assert_eq!(answer, TmfResponse::Complete);
        assert_eq!(client.outcome(copy).outcome, Outcome::Aborted);
        assert_eq!(client.write(1, 100, vec![1; 512]), BUSY, "the copy may still land there");
        let again = send(&mut client, 0, 0, 0, list());
        assert_eq!(again.status, BUSY, "so another one must wait");
        gate.open();
        until("the fence is gone", || client.write(1, 100, vec![2; 512]) == GOOD);
        assert_eq!(client.read(1, 100, 1), (GOOD, vec![2; 512]), "the copy did not overtake");
        drop(client);
        assert!(server.stop(Duration::ZERO).flushed);
    }
}

#[test]
fn copy_operation_abort_ends_both_kinds() {
    let (stalled, gate) = stalling(16);
    let (server, address) = start(config(vec![memory(16), stalled], DriverChoice::Auto));
    let mut client = Client::login(address, 1);
    written(&mut client);
    wake(&mut client, 1..2);
    let cscds = [cscd_of(&mut client, 0), cscd_of(&mut client, 1)];
    let segments = [segment(0, 1, 1000, 0, 0)];
    let abort = |list: u8| {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[5]) = (0x83, 0x1C, list);
        cdb
    };
    gate.close();
    let foreground = begin(&mut client, 0, 0, 0, lid1(8, 0, &cscds, &segments));
    until("writes are held", || gate.held() > 0);
    assert_eq!(client.finish(0, &abort(8), Data::None).status, GOOD);
    let Outcome::Completed(ended) = client.outcome(foreground).outcome else {
        panic!("the command is answered")
    };
    assert_eq!(ended.status, TASK_ABORTED);
    gate.open();
    until("the fence is gone", || client.write(1, 0, vec![2; 512]) == GOOD);
    gate.close();
    assert_eq!(send(&mut client, 0, 1, 0, lid4(9, (0, 1), &cscds, &segments)).status, GOOD);
    until("writes are held", || gate.held() > 0);
    assert_eq!(receive(&mut client, 0, 0x05, 9, 64).expect("a status")[5], 0x12);
    assert_eq!(client.finish(0, &abort(9), Data::None).status, GOOD);
    for list in [8, 9] {
        let status = receive(&mut client, 0, 0x05, list, 64).expect("a status");
        assert_eq!((status[5], status[12]), (0x60, TASK_ABORTED));
    }
    assert_eq!(sense(&client.finish(0, &abort(10), Data::None)), (5, 0x24, 0));
    gate.open();
    drop(client);
    server.stop(Duration::ZERO);
}

#[test]
fn a_reset_of_the_destination_interrupts_a_copy_of_another_unit() {
    let (stalled, gate) = stalling(16);
    let (server, address) = start(config(vec![memory(16), stalled], DriverChoice::Auto));
    let mut client = Client::login(address, 1);
    written(&mut client);
    let mut other = Client::login(address, 2);
    wake(&mut client, 1..2);
    wake(&mut other, 1..2);
    let cscds = [cscd_of(&mut client, 0), cscd_of(&mut client, 1)];
    gate.close();
    let segments = [segment(0, 1, 16_384, 0, 0)];
    let copy = begin(&mut client, 0, 0, 0, lid1(8, 0, &cscds, &segments));
    until("writes are held", || gate.held() > 0);
    assert_eq!(other.manage(TmfFunction::LogicalUnitReset, 1, None), TmfResponse::Complete);
    wake(&mut other, 1..2);
    assert_eq!(other.write(1, 16_000, vec![1; 512]), BUSY, "the copy may still land there");
    gate.open();
    let Outcome::Completed(ended) = client.outcome(copy).outcome else {
        panic!("the command is answered")
    };
    assert_eq!(sense(&ended), (COPY_ABORTED, 0x0D, 0x01));
    assert_eq!(ended.sense[ended.sense[9] as usize], TASK_ABORTED);
    until("the fence is gone", || other.write(1, 0, vec![2; 512]) == GOOD);
    drop((client, other));
    server.stop(Duration::ZERO);
}

#[test]
fn reservations_and_write_protection_of_either_side_count() {
    let (server, address) = start(config(vec![memory(16), memory(16)], DriverChoice::Auto));
    let mut client = Client::login(address, 1);
    let mut holder = Client::login(address, 2);
    for client in [&mut client, &mut holder] {
        wake(client, 1..2);
    }
    let cscds = [cscd_of(&mut client, 0), cscd_of(&mut client, 1)];
    let list = || lid1(8, 0, &cscds, &[segment(0, 1, 64, 0, 0)]);
    assert_eq!(holder.finish(1, &[0x16, 0, 0, 0, 0, 0], Data::None).status, GOOD);
    let refused = send(&mut client, 0, 0, 0, list());
    assert_eq!(sense(&refused), (COPY_ABORTED, 0x0D, 0x01));
    assert_eq!(refused.sense[refused.sense[9] as usize], CONFLICT, "the destination's status");
    assert_eq!(send(&mut client, 1, 0, 0, list()).status, CONFLICT, "the unit's own");
    assert_eq!(send(&mut holder, 0, 0, 0, list()).status, GOOD, "it holds what it writes");
    assert_eq!(holder.finish(1, &[0x17, 0, 0, 0, 0, 0], Data::None).status, GOOD);
    // SWP of the Control mode page.
    let mut page = vec![0; 16];
    let sense6 = client.start(1, &[0x1A, 0x08, 0x0A, 0, 64, 0], Data::Read(vec![0; 64]));
    if let Data::Read(current) = client.outcome(sense6).data {
        page[4..16].copy_from_slice(&current[4..16]);
        page[8] |= 0x08;
    }
    let select = [0x15, 0x10, 0, 0, 16, 0];
    assert_eq!(client.finish(1, &select, Data::Write(page)).status, GOOD);
    let refused = send(&mut client, 0, 0, 0, list());
    assert_eq!(sense(&refused), (COPY_ABORTED, 0x0D, 0x01));
    let status = refused.sense[9] as usize;
    assert_eq!((refused.sense[status], refused.sense[status + 3]), (CHECK_CONDITION, 7));
    drop((client, holder));
    server.stop(Duration::ZERO);
}

#[test]
fn without_write_cache_each_segment_is_stable() {
    let (recorded, record) = Recording::over(memory(16));
    let (server, address) = start(config(vec![memory(16), recorded], DriverChoice::Auto));
    let mut client = Client::login(address, 1);
    written(&mut client);
    wake(&mut client, 1..2);
    let cscds = [cscd_of(&mut client, 0), cscd_of(&mut client, 1)];
    let segments = [segment(0, 1, 64, 0, 0), segment(0, 1, 64, 0, 64)];
    let mut copied = || {
        let list = lid1(8, 0, &cscds, &segments);
        assert_eq!(send(&mut client, 0, 0, 0, list).status, GOOD);
        std::mem::take(&mut *record.lock().expect("nobody panics"))
    };
    let write = Op::Write { fua: false };
    assert_eq!(copied(), [write, write]);
    // The Caching mode page with WCE = 0.
    let mut select = vec![0; 24];
    select[4..6].copy_from_slice(&[0x08, 0x12]);
    let mut holder = Client::login(address, 2);
    wake(&mut holder, 1..2);
    let cdb = [0x15, 0x10, 0, 0, 24, 0];
    assert_eq!(holder.finish(1, &cdb, Data::Write(select)).status, GOOD);
    record.lock().expect("nobody panics").clear();
    assert_eq!(copied(), [write, Op::Flush, write, Op::Flush]);
    drop((client, holder));
    server.stop(Duration::ZERO);
}

#[test]
fn a_small_arena_is_enough() {
    on_each_driver(|driver| {
        // These two go through buffers.
        let dir = tempfile::tempdir().expect("a folder");
        let mut config = config(vec![file_volume(&dir), memory(64)], driver);
        config.limits.buffer_bytes = 1 << 20;
        let (server, address) = start(config);
        let mut clients: Vec<Client> = (0..4).map(|n| Client::login(address, n)).collect();
        // Before any copy has the memory: a write may be told that there is none left.
        for (n, client) in clients.iter_mut().enumerate() {
            wake(client, 1..2);
            let at = n as u64 * 16_384;
            for lba in (at..at + 16_384).step_by(2048) {
                assert_eq!(client.write(0, lba, vec![n as u8 + 1; 1 << 20]), GOOD);
            }
        }
        let tags: Vec<_> = clients
            .iter_mut()
            .enumerate()
            .map(|(n, client)| {
                let cscds = [cscd_of(client, 0), cscd_of(client, 1)];
                let at = n as u64 * 16_384;
                let segments = [segment(0, 1, 16_384, at, at)];
                begin(client, 0, 0, 0, lid1(1, 0, &cscds, &segments))
            })
            .collect();
        for (client, tag) in clients.iter_mut().zip(tags) {
            let Outcome::Completed(answer) = client.outcome(tag).outcome else {
                panic!("no answer")
            };
            assert_eq!(answer.status, GOOD, "{:?}", answer.sense);
        }
        for at in [0, 20_000, 40_000, 65_535] {
            let wanted = vec![(at / 16_384) as u8 + 1; 512];
            assert_eq!(clients[0].read(1, at, 1), (GOOD, wanted));
        }
        drop(clients);
        server.stop(Duration::ZERO);
    });
}
