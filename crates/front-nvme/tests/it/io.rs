//! Reads and writes, with and without digests.

use lunet_nvme::command::{Admin, CopyRange, DsmRange, Io, Range};
use lunet_nvme::fabrics::Property;
use lunet_nvme::host::Data;
use lunet_nvme::pdu::{U16, U32, U64};
use lunet_nvme::status::Status;
use zerocopy::IntoBytes;

use crate::host::{Host, Settings, pair, to_send};
use crate::support::{memory, serve_volumes, shown};

fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 512) as u8 ^ (at % 251) as u8 ^ seed).collect()
}

#[test]
fn data_comes_back_as_it_was_written() {
    for (digests, no_sq_flow) in [(false, false), (true, false), (false, true), (true, true)] {
        let dir = tempfile::tempdir().expect("a directory");
        let mut file = lunet_backends::FileSpec::new(dir.path().join("volume.img"));
        (file.size, file.create) = (Some(16 << 20), true);
        let spec = lunet_backends::VolumeSpec::new(lunet_backends::Storage::File(file));
        let backend = lunet_backends::open(&spec).expect("a file volume opens");
        let (_server, address) = serve_volumes(vec![memory(1, 16), shown(2, backend)]);
        let settings = Settings { digests, no_sq_flow, ..Settings::default() };
        let mut host = Host::new(address, settings, 2);
        for nsid in [1, 2] {
            for len in [512, 4096, 16 << 10, 64 << 10, 1 << 20] {
                let data = pattern(len as u8 ^ nsid as u8, len);
                assert!(host.queues[0].write(nsid, 8, &data).is_success());
                let found = host.queues[1].read(nsid, 8, (len / 512) as u32).expect("data");
                assert!(found == data, "{len} bytes, namespace {nsid}");
            }
        }
    }
}

#[test]
fn many_commands_are_under_way_at_once() {
    let (_server, address) = serve_volumes(vec![memory(1, 16)]);
    let mut host = Host::new(address, Settings::default(), 4);
    for round in 0..8u8 {
        for (at, queue) in host.queues.iter_mut().enumerate() {
            let writes = (0..16).map(|n: u64| {
                let data = pattern(round ^ n as u8, 24 << 10);
                let range = Range { lba: (at as u64 * 16 + n) * 48, blocks: 48 };
                (Io::Write { range, fua: n % 2 == 0 }.encode(1), to_send(&data))
            });
            let tags = queue.submit_all(writes.collect());
            for tag in tags {
                assert!(queue.wait(tag).completion.is_some_and(|it| it.status.is_success()));
            }
            for n in 0..16 {
                let found = queue.read(1, (at as u64 * 16 + n) * 48, 48).expect("data");
                assert!(found == pattern(round ^ n as u8, 24 << 10));
            }
        }
    }
}

#[test]
fn zeroes_deallocation_copies_and_comparisons_do_what_they_say() {
    let (_server, address) = serve_volumes(vec![memory(1, 16)]);
    let mut host = Host::one(address);
    let queue = host.io();
    let data = pattern(7, 64 << 10);
    assert!(queue.write(1, 0, &data).is_success());
    let range = |lba, blocks| Range { lba, blocks };
    let compare = |queue: &mut crate::host::Queue, data: &[u8]| {
        queue.send_data(Io::Compare { range: range(0, 128) }.encode(1), data).status
    };
    assert!(compare(queue, &data).is_success());
    let mut other = data.clone();
    other[40_000] ^= 1;
    assert_eq!(compare(queue, &other), Status::COMPARE_FAILURE.no_retry());
    assert!(queue.io(Io::Verify { range: range(0, 128), fua: true }, 1).is_success());
    let part = |lba, blocks: u16| CopyRange {
        lba: U64::new(lba),
        blocks: U16::new(blocks - 1),
        ..CopyRange::default()
    };
    let list = [part(64, 64), part(0, 64)];
    let copy = Io::Copy { lba: 1000, ranges: 2, fua: true }.encode(1);
    assert!(queue.send_data(copy, list.as_bytes()).status.is_success());
    let copied = queue.read(1, 1000, 128).expect("data");
    assert!(copied == [&data[32 << 10..], &data[..32 << 10]].concat());
    for (at, deallocate) in [(0, false), (16, true)] {
        let zeroes = Io::WriteZeroes { range: range(at, 8), fua: true, deallocate };
        assert!(queue.io(zeroes, 1).is_success());
        assert_eq!(queue.read(1, at, 8).expect("data"), [0; 4096]);
    }
    let gone = |lba, blocks| DsmRange {
        lba: U64::new(lba),
        blocks: U32::new(blocks),
        ..DsmRange::default()
    };
    let list = [gone(32, 8), gone(48, 0), gone(64, 16)];
    let deallocate = Io::DatasetManagement { ranges: 3, deallocate: true }.encode(1);
    assert!(queue.send_data(deallocate, list.as_bytes()).status.is_success());
    assert_eq!(queue.read(1, 64, 16).expect("data"), [0; 8192]);
    assert_eq!(queue.read(1, 48, 8).expect("data"), data[48 * 512..56 * 512]);
    // Linux always sends room for 256 ranges, with anything behind those that count.
    let mut list = [gone(50, u32::MAX); 256];
    list[0] = gone(96, 8);
    let deallocate = Io::DatasetManagement { ranges: 1, deallocate: true }.encode(1);
    assert!(queue.send_data(deallocate, list.as_bytes()).status.is_success());
    assert_eq!(queue.read(1, 96, 8).expect("data"), [0; 4096]);
    assert_eq!(queue.read(1, 50, 8).expect("data"), data[50 * 512..58 * 512]);
    let beyond = [gone(0, 1), gone(32_767, 2)];
    let deallocate = Io::DatasetManagement { ranges: 2, deallocate: true }.encode(1);
    let refused = queue.send_data(deallocate, beyond.as_bytes()).status;
    assert_eq!(refused, Status::LBA_RANGE.no_retry());
    assert!(queue.io(Io::Flush, 1).is_success());
    assert!(queue.io(Io::Flush, 0xffff_ffff).is_success());
}

#[test]
fn what_does_not_fit_is_refused() {
    let (_server, address) = serve_volumes(vec![memory(1, 8)]);
    let mut host = Host::one(address);
    let queue = host.io();
    let write = |lba, blocks| Io::Write { range: Range { lba, blocks }, fua: false }.encode(1);
    assert_eq!(queue.read(1, 16_384, 1).err(), Some(Status::LBA_RANGE.no_retry()));
    assert_eq!(queue.read(1, u64::MAX, 2).err(), Some(Status::LBA_RANGE.no_retry()));
    assert_eq!(queue.read(2, 0, 1).err(), Some(Status::INVALID_NAMESPACE.no_retry()));
    let short = queue.send_data(write(0, 8), &[0; 512]).status;
    assert_eq!(short, Status::DATA_LENGTH.no_retry());
    let long = queue.send_data(write(0, 1), &[0; 4096]).status;
    assert_eq!(long, Status::DATA_LENGTH.no_retry());
    let large = queue
        .fetch(Io::Read { range: Range { lba: 0, blocks: 4096 }, fua: false }.encode(1), 2 << 20);
    assert_eq!(large.err(), Some(Status::INVALID_FIELD.no_retry()), "more than MDTS");
    let mut unknown = Io::Flush.encode(1);
    unknown.opcode = 0x7c;
    assert_eq!(queue.plain(unknown).status, Status::INVALID_OPCODE.no_retry());
    let property = lunet_nvme::fabrics::Fabrics::PropertyGet { property: Property::Status };
    assert_eq!(queue.plain(property.encode()).status, Status::INVALID_OPCODE.no_retry());
    assert!(queue.write(1, 0, &[1; 512]).is_success());
}

/// Of hosts that compare the same block with what they know, and write, one wins each round.
#[test]
fn one_of_several_fused_pairs_wins() {
    let (_server, address) = serve_volumes(vec![memory(1, 8)]);
    // With and without data in the capsules.
    for capsule_data in [16 << 10, 0] {
        let settings = |host| Settings { host, capsule_data, ..Settings::default() };
        let mut one = Host::new(address, settings(1), 2);
        let mut two = Host::new(address, settings(2), 2);
        assert!(one.io().write(1, 5, &[0; 512]).is_success());
        for round in 0..100u8 {
            let mut tags = Vec::new();
            let queues = one.queues.iter_mut().chain(&mut two.queues);
            for (at, queue) in queues.enumerate() {
                tags.push(queue.submit_all(pair(5, round, round + 1 + 100 * (at as u8 % 2))));
            }
            let queues = one.queues.iter_mut().chain(&mut two.queues);
            let outcomes: Vec<[Status; 2]> = queues
                .zip(tags)
                .map(|(queue, tags)| {
                    [0, 1].map(|at| queue.wait(tags[at]).completion.expect("an answer").status)
                })
                .collect();
            let lost = [Status::COMPARE_FAILURE.no_retry(), Status::FAILED_FUSED];
            let won = outcomes.iter().filter(|it| it.iter().all(|s| s.is_success())).count();
            assert_eq!(won, 1, "round {round}: {outcomes:?}");
            assert_eq!(outcomes.iter().filter(|it| **it == lost).count(), 3, "{outcomes:?}");
            // The next round begins with a value that all know.
            assert!(one.io().write(1, 5, &[round + 1; 512]).is_success());
        }
    }
}

#[test]
fn a_write_that_waits_for_data_is_aborted() {
    let (_server, address) = serve_volumes(vec![memory(1, 8)]);
    let mut host = Host::one(address);
    assert!(host.io().write(1, 0, &[1; 512]).is_success());
    // The host hides the R2T from its protocol: it is not read.
    let range = Range { lba: 0, blocks: 1 };
    let mut capsule = vec![4, 0, 72, 0, 72, 0, 0, 0];
    let mut sqe = Io::Write { range, fua: false }.encode(1);
    (sqe.cid, sqe.sgl) = (U16::new(0xabc), lunet_nvme::command::Sgl::transport(512));
    capsule.extend_from_slice(sqe.as_bytes());
    use std::io::{Read, Write};
    let mut stream = host.io().stream.try_clone().expect("a stream");
    stream.write_all(&capsule).expect("the server takes it");
    let mut r2t = [0; 24];
    stream.read_exact(&mut r2t).expect("an R2T");
    assert_eq!((r2t[0], &r2t[8..10]), (9, &[0xbc, 0x0a][..]));
    let aborted = host.admin.plain(Admin::Abort { sqid: 1, cid: 0xabc }.encode(0));
    assert_eq!((aborted.status, aborted.result & 1), (Status::SUCCESS, 0));
    let again = host.admin.plain(Admin::Abort { sqid: 1, cid: 0xabd }.encode(0));
    assert_eq!(again.result & 1, 1, "there is no such command");
    // Its answer comes when the data has, which is not written.
    let mut data = vec![6, 4, 24, 24, 24, 2, 0, 0, 0xbc, 0x0a];
    data.extend_from_slice(&[r2t[10], r2t[11], 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0]);
    data.resize(24 + 512, 9);
    stream.write_all(&data).expect("the server takes it");
    let mut answer = [0; 24];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!((answer[0], u16::from_le_bytes([answer[22], answer[23]]) >> 1), (5, 7));
    assert_eq!(host.io().read(1, 0, 1).expect("data"), [1; 512]);
}

#[test]
fn reads_go_on_when_the_host_takes_what_was_read() {
    let (_server, address) = serve_volumes(vec![memory(1, 64)]);
    let mut host = Host::one(address);
    let queue = host.io();
    let reads = (0..24u64).map(|n| {
        let range = Range { lba: n * 2048, blocks: 2048 };
        (Io::Read { range, fua: false }.encode(1), Data::Read(vec![1; 1 << 20]))
    });
    let tags = queue.submit_all(reads.collect());
    std::thread::sleep(std::time::Duration::from_millis(100));
    for tag in tags {
        assert!(queue.wait(tag).completion.is_some_and(|it| it.status.is_success()));
    }
}
