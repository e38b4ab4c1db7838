//! COMPARE AND WRITE and ORWRITE against everything else on the volume, from sessions on several shards.

use std::io::Read;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use lunet_front_iscsi::Config;
use lunet_iscsi::initiator::{self, Completion, Data, Outcome};
use lunet_iscsi::pdu::{TmfFunction, TmfResponse};
use lunet_iscsi::target::Options;

use crate::support::client::{Client, rw16};
use crate::support::status::{BUSY, CHECK_CONDITION, GOOD};
use crate::support::{config, file_volume, memory, on_each_driver, stalling, start, until};

const MISCOMPARE: u8 = 0x0E;

fn compare_and_write_cdb(lba: u64, blocks: u8) -> [u8; 16] {
    let mut cdb = rw16(0x89, lba, 0);
    cdb[13] = blocks;
    cdb
}

fn compare_and_write(client: &mut Client, lba: u64, old: &[u8], new: &[u8]) -> Completion {
    let cdb = compare_and_write_cdb(lba, (old.len() / 512) as u8);
    client.finish(0, &cdb, Data::Write([old, new].concat()))
}

/// Blocks that say a number, all the same.
fn saying(number: u64, blocks: usize) -> Vec<u8> {
    number.to_be_bytes().repeat(blocks * 64)
}

/// The number that blocks say. Panics if they do not agree.
fn said(data: &[u8]) -> u64 {
    let number = u64::from_be_bytes(data[..8].try_into().expect("a block"));
    let blocks = data.len() / 512;
    assert!(data == saying(number, blocks), "half of a command is seen");
    number
}

/// Adds 1 with COMPARE AND WRITE, however often somebody else is faster.
fn increment(client: &mut Client, lba: u64, blocks: usize) {
    let (_, mut data) = client.read(0, lba, blocks as u32);
    loop {
        let number = said(&data);
        let done = compare_and_write(client, lba, &data, &saying(number + 1, blocks));
        match done.status {
            GOOD => return,
            CHECK_CONDITION => assert_eq!(done.sense[2], MISCOMPARE),
            status => panic!("status {status}"),
        }
        data = client.read(0, lba, blocks as u32).1;
        assert!(said(&data) > number, "somebody was faster");
    }
}

#[test]
fn sessions_that_race_lose_no_increment_and_readers_see_all_or_nothing() {
    const LBA: u64 = 100;
    const ROUNDS: u64 = 40;
    const WRITERS: u8 = 4;
    /// On a busy machine all rounds may be over before another client has begun.
    const MORE_ROUNDS: u64 = 100_000;
    on_each_driver(|driver| {
        for (in_file, blocks) in [(false, 1), (true, 7), (false, 255), (true, 255)] {
            let dir = tempfile::tempdir().expect("a folder");
            let volume = if in_file { file_volume(&dir) } else { memory(16) };
            let (server, address) = start(config(vec![volume], driver));
            let mut first = Client::login(address, 99);
            assert_eq!(first.write(0, LBA, saying(0, blocks)), GOOD);
            let ended = AtomicBool::new(false);
            let (ended, beside) = (&ended, &AtomicU64::new(0));
            std::thread::scope(|scope| {
                let writers = (0..WRITERS).map(|n| {
                    scope.spawn(move || {
                        let mut client = Client::login(address, n);
                        let mut rounds = 0;
                        let others_wait = || beside.load(Ordering::Relaxed) == 0;
                        while rounds < ROUNDS || (rounds < MORE_ROUNDS && others_wait()) {
                            increment(&mut client, LBA, blocks);
                            rounds += 1;
                        }
                        rounds
                    })
                });
                let writers: Vec<_> = writers.collect();
                for n in 0..2 {
                    scope.spawn(move || {
                        let mut client = Client::login(address, 10 + n);
                        let mut last = 0;
                        while !ended.load(Ordering::Relaxed) {
                            let (status, data) = client.read(0, LBA, blocks as u32);
                            assert_eq!(status, GOOD);
                            let now = said(&data);
                            assert!(now >= last, "the number goes back");
                            last = now;
                        }
                    });
                }
                scope.spawn(move || {
                    let mut client = Client::login(address, 20);
                    while !ended.load(Ordering::Relaxed) {
                        assert_eq!(client.write(0, LBA - 8, vec![7; 8 * 512]), GOOD);
                        assert_eq!(client.write(0, LBA + blocks as u64, vec![8; 512]), GOOD);
                        beside.fetch_add(1, Ordering::Relaxed);
                    }
                });
                let writers = writers.into_iter();
                let rounds: u64 = writers.map(|writer| writer.join().expect("a writer")).sum();
                ended.store(true, Ordering::Relaxed);
                let (_, data) = first.read(0, LBA, blocks as u32);
                assert_eq!(said(&data), rounds, "{blocks} blocks");
            });
            assert_ne!(beside.load(Ordering::Relaxed), 0, "others are not kept away");
            drop(first);
            assert!(server.stop(Duration::ZERO).flushed);
        }
    });
}

/// A memory volume answers by reference, and the kernel takes the data as the client makes room for it.
#[test]
fn an_answer_on_its_way_shows_no_half_of_the_first_exclusive_command() {
    const BLOCKS: usize = 255;
    const COMMANDS: usize = 64;
    on_each_driver(|driver| {
        let (server, address) = start(config(vec![memory(16)], driver));
        let mut writer = Client::login(address, 1);
        for n in 0..COMMANDS {
            assert_eq!(writer.write(0, (n * BLOCKS) as u64, saying(0, BLOCKS)), GOOD);
        }
        let mut reader = Client::login(address, 2);
        reader.narrow(64 << 10);
        let all = COMMANDS * BLOCKS;
        let room = Data::Read(vec![0xFF; all * 512]);
        let tag = reader.start(0, &rw16(0x88, 0, all as u32), room);
        // Its answer has begun once the writer, who comes later, has one.
        assert_eq!(writer.read(0, 0, 1).0, GOOD);
        std::thread::sleep(Duration::from_millis(50));
        let writes = std::thread::spawn(move || {
            for n in 0..COMMANDS {
                let (old, new) = (saying(0, BLOCKS), saying(1, BLOCKS));
                let done = compare_and_write(&mut writer, (n * BLOCKS) as u64, &old, &new);
                assert_eq!(done.status, GOOD);
            }
        });
        std::thread::sleep(Duration::from_millis(100));
        let Data::Read(data) = reader.outcome(tag).data else { panic!("no data") };
        data.chunks(BLOCKS * 512).for_each(|one| assert!(said(one) <= 1));
        writes.join().expect("the writer");
        drop(reader);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

/// It takes a little now and then, so it is no session that makes no progress.
#[test]
fn a_client_that_trickles_keeps_no_lock_waiting() {
    on_each_driver(|driver| {
        let iscsi = Options { data_timeout: Duration::from_secs(2), ..Options::default() };
        let (server, address) = start(Config { iscsi, ..config(vec![memory(16)], driver) });
        // Of two shards each has one.
        let mut writer = Client::login(address, 1);
        assert_eq!(writer.write(0, 0, saying(0, 1)), GOOD);
        let stream = TcpStream::connect(address).expect("the server listens");
        let mut taken = stream.try_clone().expect("a second descriptor");
        let options = initiator::Options { isid: [0x80, 0, 0, 0, 0, 2], ..Client::options() };
        let mut slow = Client::login_over(stream, options).expect("the login succeeds");
        slow.finish(0, &[0; 6], Data::None);
        slow.narrow(8 << 10);
        slow.start(0, &rw16(0x88, 0, 16 << 10), Data::Read(vec![0; 8 << 20]));
        let (locked, is_locked) = mpsc::channel();
        let trickle = std::thread::spawn(move || {
            let mut some = [0; 16 << 10];
            while is_locked.try_recv() == Err(mpsc::TryRecvError::Empty) {
                if !matches!(taken.read(&mut some), Ok(1..)) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        std::thread::sleep(Duration::from_millis(50));
        // The client gives up after 30 seconds; the rest of the answer would take 50.
        let done = compare_and_write(&mut writer, 0, &saying(0, 1), &saying(1, 1));
        assert_eq!(done.status, GOOD);
        until("the slow one is gone", || server.handle().sessions().len() == 1);
        // The reader may have seen the end.
        let _ = locked.send(());
        trickle.join().expect("the reader");
        assert_eq!(said(&writer.read(0, 0, 1).1), 1);
        drop((writer, slow));
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn the_first_byte_that_differs_is_named_and_nothing_is_written() {
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a folder");
        let (server, address) = start(config(vec![file_volume(&dir)], driver));
        // The data may come in pieces of any size, and end anywhere in a block.
        for (n, burst) in [512, 700, 70_001, 262_144].into_iter().enumerate() {
            let mut client = Client::login_with(address, n as u8, |options| {
                options.first_burst_length = burst;
                options.max_recv_data_segment_length = 5000;
            });
            for blocks in [1_usize, 3, 255] {
                let old = saying(5, blocks);
                assert_eq!(client.write(0, 9, old.clone()), GOOD);
                for offset in [0, 511, 512 * blocks - 1, 512 * blocks / 2] {
                    let mut wrong = old.clone();
                    wrong[offset] ^= 0x40;
                    let done = compare_and_write(&mut client, 9, &wrong, &saying(6, blocks));
                    let told = u32::from_be_bytes([3, 4, 5, 6].map(|at| done.sense[at]));
                    let expected = (CHECK_CONDITION, 0xF0, MISCOMPARE, 0x1D, offset as u32);
                    let (sense, code) = (&done.sense, done.sense[12]);
                    assert_eq!((done.status, sense[0], sense[2], code, told), expected);
                    assert!(client.read(0, 9, blocks as u32).1 == old, "it was written");
                }
                let new = saying(7, blocks);
                assert_eq!(compare_and_write(&mut client, 9, &old, &new).status, GOOD);
                let (_, all) = client.read(0, 8, blocks as u32 + 2);
                assert!(all[512..all.len() - 512] == new);
                let beside = [&all[..512], &all[all.len() - 512..]].concat();
                assert!(beside.iter().all(|byte| *byte == 0), "its neighbours were written");
                assert_eq!(client.write(0, 9, vec![0; 512 * blocks]), GOOD);
            }
        }
        server.stop(Duration::ZERO);
    });
}

#[test]
fn orwrite_of_several_sessions_loses_no_bit() {
    const BLOCKS: usize = 300;
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a folder");
        let (server, address) = start(config(vec![file_volume(&dir)], driver));
        std::thread::scope(|scope| {
            for bit in 0..4_u8 {
                scope.spawn(move || {
                    let mut client = Client::login(address, bit);
                    for part in 0..10 {
                        // Ranges of all sessions overlap.
                        let from = (part * 29 + bit as usize) % 30;
                        let data = vec![1 << bit; (BLOCKS - from) * 512];
                        let cdb = rw16(0x8B, from as u64, (BLOCKS - from) as u32);
                        assert_eq!(client.finish(0, &cdb, Data::Write(data)).status, GOOD);
                    }
                });
            }
        });
        let mut client = Client::login(address, 9);
        let (_, data) = client.read(0, 30, BLOCKS as u32 - 30);
        assert!(data.iter().all(|byte| *byte == 0x0F));
        drop(client);
        server.stop(Duration::ZERO);
    });
}

#[test]
fn a_disk_that_hangs_under_a_lock_blocks_its_range_only() {
    on_each_driver(|driver| {
        let (volume, gate) = stalling(16);
        let (server, address) = start(config(vec![volume], driver));
        let mut holder = Client::login(address, 1);
        let mut others: Vec<Client> = (2..5).map(|n| Client::login(address, n)).collect();
        gate.close();
        let data = [vec![0; 4 * 512], vec![1; 4 * 512]].concat();
        let cdb = compare_and_write_cdb(100, 4);
        let hangs = holder.start(0, &cdb, Data::Write(data.clone()));
        until("its write is held", || gate.held() == 1);

        // Reads and another command wait behind it; what does not touch the range goes on.
        let waiting: Vec<_> = others
            .iter_mut()
            .map(|client| client.start(0, &rw16(0x88, 102, 4), Data::Read(vec![0; 4 * 512])))
            .collect();
        let behind = others[0].start(0, &cdb, Data::Write(data));
        for client in &mut others {
            assert_eq!(client.read(0, 104, 8).0, GOOD);
            assert_eq!(client.read(0, 92, 8).0, GOOD);
        }
        // All of them can be aborted, those that wait and the one that works.
        let answer = others[0].manage(TmfFunction::AbortTask, 0, Some(behind));
        assert_eq!(answer, TmfResponse::Complete);
        let answer = others[1].manage(TmfFunction::AbortTask, 0, Some(waiting[1]));
        assert_eq!(answer, TmfResponse::Complete);
        let answer = holder.manage(TmfFunction::AbortTask, 0, Some(hangs));
        assert_eq!(answer, TmfResponse::Complete);
        assert_eq!(others[2].read(0, 100, 1).0, BUSY, "its write may still land there");

        gate.open();
        for (client, tag) in [(0, waiting[0]), (2, waiting[2])] {
            let finished = others[client].outcome(tag);
            assert!(matches!(finished.outcome, Outcome::Completed(done) if done.status == GOOD));
        }
        assert_eq!(others[1].outcome(waiting[1]).outcome, Outcome::Aborted);
        let mut now = Vec::new();
        until("the fence is gone", || {
            let (status, data) = others[0].read(0, 100, 4);
            now = data;
            status == GOOD
        });
        // The lock is gone with its command.
        assert_eq!(compare_and_write(&mut holder, 100, &now, &saying(1, 4)).status, GOOD);
        drop((holder, others));
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn what_was_at_the_storage_before_is_seen() {
    on_each_driver(|driver| {
        let (volume, gate) = stalling(16);
        let (server, address) = start(config(vec![volume], driver));
        // On both shards.
        let mut clients: Vec<Client> = (1..4).map(|n| Client::login(address, n)).collect();
        for at in 0..2 {
            let lba = 100 + at as u64;
            gate.close();
            let write = clients[at].start(0, &rw16(0x8A, lba, 1), Data::Write(saying(1, 1)));
            until("the write is held", || gate.held() == 1);
            let data = [saying(1, 1), saying(2, 1)].concat();
            let command = clients[2].start(0, &compare_and_write_cdb(lba, 1), Data::Write(data));
            // Its letters and answers have gone round when these have been.
            for client in &mut clients {
                for _ in 0..20 {
                    assert_eq!(client.finish(0, &[0; 6], Data::None).status, GOOD);
                }
            }
            gate.open();
            for (client, tag) in [(at, write), (2, command)] {
                let finished = clients[client].outcome(tag);
                let good =
                    matches!(&finished.outcome, Outcome::Completed(done) if done.status == GOOD);
                assert!(good, "{:?}", finished.outcome);
            }
            assert_eq!(said(&clients[0].read(0, lba, 1).1), 2);
        }
        drop(clients);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn neither_resets_nor_lost_sessions_leave_a_lock_behind() {
    on_each_driver(|driver| {
        let (volume, gate) = stalling(16);
        let (server, address) = start(config(vec![volume], driver));
        let mut judge = Client::login(address, 9);
        for round in 0..2 {
            let lba = 100 + 10 * round;
            gate.close();
            let mut clients: Vec<Client> = (1..5).map(|n| Client::login(address, n)).collect();
            for client in &mut clients {
                let data = [saying(0, 2), saying(1, 2)].concat();
                client.start(0, &compare_and_write_cdb(lba, 2), Data::Write(data));
                client.start(0, &rw16(0x8A, lba + 1, 1), Data::Write(saying(3, 1)));
            }
            // The plain writes that came first hang, or the first command does.
            until("something is held", || gate.held() > 0);
            match round {
                0 => {
                    let answer = judge.manage(TmfFunction::LogicalUnitReset, 0, None);
                    assert_eq!(answer, TmfResponse::Complete);
                    // What the reset found of the commands is gone; what came later is told of it.
                    judge.finish(0, &[0; 6], Data::None);
                }
                _ => drop(clients),
            }
            gate.open();
            until("the range is free", || {
                let (status, data) = judge.read(0, lba, 2);
                status == GOOD
                    && compare_and_write(&mut judge, lba, &data, &saying(9, 2)).status == GOOD
            });
            assert_eq!(said(&judge.read(0, lba, 2).1), 9);
        }
        drop(judge);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}
