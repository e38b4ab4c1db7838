//! Commands wait for the limits of their volume, or its share of its storage, and nothing else does.

use std::collections::VecDeque;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lunet_backends::layers::{Effect, Layer, Ops, Rate, wrap};
use lunet_front_iscsi::Handle;
use lunet_iscsi::initiator::{Data, Event, Options, Outcome, Tag};
use lunet_iscsi::pdu::{LogoutReason, LogoutResponse, TmfFunction, TmfResponse};
use lunet_volume::{ClientRates, POOL_DEPTH, Pool, PoolShare, Rates, Whose};

use crate::groups::{done, open_group, set_gate, two_targets, wait};
use crate::relays::{SECRET, relays, through};
use crate::support::client::{Client, rw16};
use crate::support::copy::{begin, cscd_of, lid1, segment, wake, written};
use crate::support::status::{BUSY, GOOD};
use crate::support::{config, file_volume, memory, on_each_driver, stalling, start, until};

/// So slow that a MiB takes the rest of a test, and more.
const SLOW: Rates = rates(None, Some(64 << 10));

const fn rates(iops: Option<u64>, bandwidth: Option<u64>) -> Rates {
    const fn rate(of: Option<u64>) -> Option<NonZeroU64> {
        match of {
            Some(rate) => NonZeroU64::new(rate),
            None => None,
        }
    }
    Rates { iops: rate(iops), bandwidth: rate(bandwidth), burst: Duration::from_millis(10) }
}

fn limit(handle: &Handle, rates: Rates) {
    handle.limit(|name| (name == "v0").then_some(rates));
}

/// How often operations have waited for the limit.
fn waits(handle: &Handle) -> u64 {
    handle.stats().volumes[0].time.limits.of(Whose::Volume)
}

/// A write that waits, behind one that has used up the limit for the rest of the test.
fn waiting_write(client: &mut Client, handle: &Handle, len: usize) -> Tag {
    client.works(0);
    limit(handle, SLOW);
    assert_eq!(client.read(0, 0, 2048).0, GOOD, "what is larger than the burst passes");
    let write = client.start(0, &rw16(0x8A, 8, (len / 512) as u32), Data::Write(vec![0xAA; len]));
    until("the write waits", || waits(handle) == 1);
    write
}

#[test]
fn operations_are_kept_to_their_rate() {
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a directory");
        let (server, address) = start(config(vec![file_volume(&dir)], driver));
        let handle = server.handle();
        let mut clients: Vec<Client> = (0..3).map(|n| Client::login(address, n)).collect();
        clients.iter_mut().for_each(|client| client.works(0));
        limit(&handle, rates(Some(100), None));
        let began = Instant::now();
        let read = |client: &mut Client, n: u64| {
            client.start(0, &rw16(0x88, n, 1), Data::Read(vec![0; 512]))
        };
        for _ in 0..5 {
            for client in &mut clients {
                let tags: Vec<Tag> = (0..10).map(|n| read(client, n)).collect();
                tags.into_iter().for_each(|tag| drop(client.outcome(tag)));
            }
        }
        // 150 operations, of which the burst is one, and each of two shards may be one ahead.
        assert!(began.elapsed() >= Duration::from_millis(1450), "{:?}", began.elapsed());
        assert!(waits(&handle) > 0);
        limit(&handle, Rates::default());
        let before = waits(&handle);
        clients.iter_mut().for_each(|client| client.works(0));
        assert_eq!(waits(&handle), before, "without a limit nothing waits");
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn a_waiting_write_is_aborted_at_once_and_takes_no_effect() {
    on_each_driver(|driver| {
        // With the command, partly with it, and all after it was asked for.
        for len in [4096, 1 << 20] {
            let (server, address) = start(config(vec![memory(4)], driver));
            let handle = server.handle();
            let mut client = Client::login(address, 1);
            let write = waiting_write(&mut client, &handle, len);
            let aborted = client.manage(TmfFunction::AbortTask, 0, Some(write));
            assert_eq!(aborted, TmfResponse::Complete);
            limit(&handle, Rates::default());
            // Nothing is fenced off, as nothing was at the storage.
            let (status, data) = client.read(0, 8, (len / 512) as u32);
            assert_eq!(status, GOOD);
            assert!(data.iter().all(|byte| *byte != 0xAA), "it was never written");
            assert_eq!(client.write(0, 8, vec![1; 512]), GOOD);
            assert!(server.stop(Duration::ZERO).flushed);
        }
    });
}

#[test]
fn a_reset_of_the_unit_reaches_what_waits_in_another_session() {
    on_each_driver(|driver| {
        let (server, address) = start(config(vec![memory(4)], driver));
        let handle = server.handle();
        let (mut one, mut other) = (Client::login(address, 1), Client::login(address, 2));
        other.works(0);
        waiting_write(&mut one, &handle, 4096);
        let reset = other.manage(TmfFunction::LogicalUnitReset, 0, None);
        assert_eq!(reset, TmfResponse::Complete);
        until("nothing is at work", || handle.stats().volumes[0].commands_in_flight == 0);
        limit(&handle, Rates::default());
        let (status, data) = loop {
            // After the unit attention of the reset.
            match other.read(0, 8, 8) {
                (GOOD, data) => break (GOOD, data),
                _ => continue,
            }
        };
        assert_eq!(status, GOOD);
        assert!(data.iter().all(|byte| *byte != 0xAA));
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn a_session_that_ends_leaves_nothing_in_the_line() {
    on_each_driver(|driver| {
        let (server, address) = start(config(vec![memory(4)], driver));
        let handle = server.handle();
        let mut client = Client::login(address, 1);
        waiting_write(&mut client, &handle, 4096);
        drop(client);
        until("nothing is at work", || handle.stats().volumes[0].commands_in_flight == 0);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn a_server_stops_although_operations_wait() {
    let (server, address) = start(config(vec![memory(4)], lunet_ring::DriverChoice::Auto));
    let mut client = Client::login(address, 1);
    waiting_write(&mut client, &server.handle(), 4096);
    let began = Instant::now();
    assert!(server.stop(Duration::ZERO).flushed);
    // What the limit would have taken.
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
}

#[test]
fn a_higher_limit_lets_those_go_on_that_wait_for_the_lower_one() {
    on_each_driver(|driver| {
        let (server, address) = start(config(vec![memory(4)], driver));
        let handle = server.handle();
        let mut client = Client::login(address, 1);
        let write = waiting_write(&mut client, &handle, 1 << 20);
        assert!(!client.has_answer(write));
        let began = Instant::now();
        limit(&handle, rates(None, Some(1 << 30)));
        let Outcome::Completed(completion) = client.outcome(write).outcome else {
            panic!("the write was not answered")
        };
        assert_eq!(completion.status, GOOD);
        assert!(began.elapsed() < Duration::from_secs(8), "less than what it waited for");
        assert_eq!(client.read(0, 8, 1).1, vec![0xAA; 512]);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn what_moves_no_blocks_does_not_wait() {
    on_each_driver(|driver| {
        let (server, address) = start(config(vec![memory(4)], driver));
        let handle = server.handle();
        let mut client = Client::login(address, 1);
        let write = waiting_write(&mut client, &handle, 4096);
        // TEST UNIT READY, SYNCHRONIZE CACHE, PERSISTENT RESERVE IN.
        assert_eq!(client.finish(0, &[0; 6], Data::None).status, GOOD);
        let mut flush = [0; 10];
        flush[0] = 0x35;
        assert_eq!(client.finish(0, &flush, Data::None).status, GOOD);
        let keys = [0x5E, 0, 0, 0, 0, 0, 0, 0, 8, 0];
        let tag = client.start(0, &keys, Data::Read(vec![0; 8]));
        client.outcome(tag);
        assert!(!client.has_answer(write));
        assert_eq!(waits(&handle), 1);
        limit(&handle, Rates::default());
        client.outcome(write);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn what_the_storage_does_by_itself_is_paid_for() {
    on_each_driver(|driver| {
        let (server, address) = start(config(vec![memory(4), memory(4)], driver));
        let handle = server.handle();
        let mut client = Client::login(address, 1);
        waiting_write(&mut client, &handle, 4096);
        // WRITE SAME with a block, WRITE AND VERIFY, VERIFY with data, COMPARE AND WRITE wait as well.
        let block = || Data::Write(vec![3; 512]);
        client.start(0, &rw16(0x93, 0, 64), block());
        client.start(0, &rw16(0x8E, 0, 1), block());
        let mut verify = rw16(0x8F, 0, 1);
        verify[1] = 2;
        client.start(0, &verify, block());
        let mut swap = [0; 16];
        (swap[0], swap[13]) = (0x89, 1);
        client.start(0, &swap, Data::Write(vec![0; 1024]));
        until("all of them wait", || waits(&handle) == 5);
        assert_eq!(client.manage(TmfFunction::AbortTaskSet, 0, None), TmfResponse::Complete);
        until("nothing is at work", || handle.stats().volumes[0].commands_in_flight == 0);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn a_logout_does_not_wait_for_what_waits() {
    on_each_driver(|driver| {
        let (server, address) = start(config(vec![memory(4)], driver));
        let handle = server.handle();
        let mut client = Client::login(address, 1);
        waiting_write(&mut client, &handle, 4096);
        client.batch(|proto, out| {
            let reason = LogoutReason::CloseSession;
            proto.logout(reason, Duration::ZERO, out).expect("it can be sent");
        });
        let response = client.wait(|event| match event {
            Event::LoggedOut { response, .. } => Some(*response),
            _ => None,
        });
        assert_eq!(response, Ok(LogoutResponse::Closed));
        until("nothing is at work", || handle.stats().volumes[0].commands_in_flight == 0);
        limit(&handle, Rates::default());
        let (status, data) = Client::login(address, 2).read(0, 8, 8);
        assert_eq!(status, GOOD);
        assert!(data.iter().all(|byte| *byte != 0xAA), "it was not waited for");
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

/// Sessions of one host send all the data that they may, and none of it is written within the test.
#[test]
fn sessions_that_wait_keep_others_from_nothing() {
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a folder");
        let (server, address) = start(config(vec![memory(4), file_volume(&dir)], driver));
        let handle = server.handle();
        let mut greedy: Vec<Client> = (0..8).map(|n| Client::login(address, n)).collect();
        waiting_write(&mut greedy[0], &handle, 4096);
        for client in &mut greedy {
            for n in 0..60 {
                client.start(0, &rw16(0x8A, 8 + n, 128), Data::Write(vec![0xAA; 64 << 10]));
            }
        }
        until("they wait", || waits(&handle) > 8);
        let other = |options: &mut Options| {
            options.initiator_name = "iqn.2026-11.local.lunet:other".into();
        };
        let mut others: Vec<Client> =
            (0..4).map(|n| Client::login_with(address, 100 + n, other)).collect();
        for (n, client) in others.iter_mut().enumerate() {
            wake(client, 1..2);
            let data = vec![n as u8 + 1; 1 << 20];
            assert_eq!(client.write(1, 64, data.clone()), GOOD);
            let (status, read) = client.read(1, 64, 2048);
            assert!(status == GOOD && read == data, "what was written is read");
        }
        // All of it is more than ten minutes' worth.
        for client in &mut greedy {
            assert_eq!(client.manage(TmfFunction::AbortTaskSet, 0, None), TmfResponse::Complete);
        }
        until("nothing is at work", || handle.stats().volumes[0].commands_in_flight == 0);
        limit(&handle, Rates::default());
        let (status, data) = others[0].read(0, 8, 200);
        assert_eq!(status, GOOD);
        assert!(data.iter().all(|byte| *byte != 0xAA), "nothing of it was written");
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn copies_and_space_given_back_are_paid_for_on_each_volume() {
    on_each_driver(|driver| {
        let (server, address) = start(config(vec![memory(16), memory(16)], driver));
        let handle = server.handle();
        let mut client = Client::login(address, 1);
        wake(&mut client, 1..2);
        written(&mut client);
        assert_eq!(client.write(1, 4096, vec![9; 1 << 20]), GOOD);
        let cscds = [0, 1].map(|lun| cscd_of(&mut client, lun));
        waiting_write(&mut client, &handle, 4096);
        let mut unmap = vec![0; 24];
        (unmap[1], unmap[3], unmap[14], unmap[18]) = (22, 16, 8, 8);
        client.start(0, &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], Data::Write(unmap));
        // It is read from, and then written to.
        let from = [segment(0, 1, 2048, 0, 0)];
        begin(&mut client, 0, 0, 0, lid1(1, 0, &cscds, &from));
        let cscds = [cscds[1].clone(), cscds[0].clone()];
        let to = [segment(0, 1, 2048, 4096, 4096)];
        begin(&mut client, 0, 0, 0, lid1(2, 0, &cscds, &to));
        until("all of them wait", || waits(&handle) == 4);
        assert_eq!(client.manage(TmfFunction::AbortTaskSet, 0, None), TmfResponse::Complete);
        until("nothing is at work", || {
            handle.stats().volumes.iter().all(|volume| volume.commands_in_flight == 0)
        });
        limit(&handle, Rates::default());
        assert!(client.read(0, 2048, 4096).1.iter().all(|byte| *byte == 7), "it is as it was");
        assert!(client.read(1, 0, 2048).1.iter().all(|byte| *byte == 0), "nothing came");
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn a_planned_move_of_a_group_turns_back_what_waits() {
    on_each_driver(|driver| {
        let (server, address, group, mut machine) = open_group(two_targets(memory(4), driver));
        let handle = server.handle();
        let mut client = Client::login(address, 1);
        let write = waiting_write(&mut client, &handle, 4096);
        set_gate(&group, machine.begins_move());
        assert_eq!(done(&mut client, write).status, BUSY, "it is to be sent to the next owner");
        wait(|drained| group.drain(drained));
        limit(&handle, Rates::default());
        set_gate(&group, machine.stays());
        let (status, data) = client.read(0, 8, 8);
        assert_eq!(status, GOOD);
        assert!(data.iter().all(|byte| *byte != 0xAA), "it was never written");
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn an_initiator_has_its_limit_through_a_standby_as_well() {
    on_each_driver(|driver| {
        let (server, address, group, machine) = open_group(two_targets(memory(4), driver));
        let requests = relays(&group);
        let handle = server.handle();
        // What a standby logs in with for the initiator, and the initiator itself.
        let options = through(2, machine.gate().epoch().0, SECRET);
        let mut around = Client::try_login(address, options).expect("the proof");
        while around.finish(0, &[0; 6], Data::None).status != GOOD {}
        let stranger = |options: &mut Options| {
            options.initiator_name = "iqn.2026-11.local.lunet:other".into();
        };
        let mut direct = Client::login(address, 1);
        let mut stranger = Client::login_with(address, 2, stranger);
        let limited = Client::options().initiator_name;
        handle.limit_clients(Box::new(move |name| match name == limited {
            true => ClientRates { host: SLOW, ..ClientRates::default() },
            false => ClientRates::default(),
        }));
        assert_eq!(around.read(0, 0, 2048).0, GOOD, "what is larger than the burst passes");
        let read =
            |client: &mut Client| client.start(0, &rw16(0x88, 0, 1), Data::Read(vec![0; 512]));
        let tags = [read(&mut around), read(&mut direct)];
        let both = || handle.stats().volumes[0].time.limits.of(Whose::Host) == 2;
        until("both of its ways wait", both);
        assert_eq!(stranger.read(0, 0, 1).0, GOOD);
        handle.limit_clients(Box::new(|_| ClientRates::default()));
        assert_eq!(done(&mut around, tags[0]).status, GOOD);
        assert_eq!(done(&mut direct, tags[1]).status, GOOD);
        drop(requests);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

/// Has two volumes of a server share a pool by these weights.
fn share(handle: &Handle, weights: [u32; 2]) {
    let pool = Arc::new(Pool::default());
    handle.share(|name| {
        let weight = weights[usize::from(name == "v1")];
        Some(PoolShare { pool: pool.clone(), weight: NonZeroU32::new(weight), goal: None })
    });
}

#[test]
fn volumes_share_their_storage_by_weight() {
    on_each_driver(|driver| {
        let delay = Effect::Delay { time: Duration::from_millis(50), spread: Duration::ZERO };
        let slow = |volume| wrap(volume, &[Layer::new(delay, Ops::ALL)]).0;
        let volumes = vec![slow(memory(4)), slow(memory(4))];
        let (server, address) = start(config(volumes, driver));
        let handle = server.handle();
        let mut clients: Vec<Client> = (0..4).map(|n| Client::login(address, n)).collect();
        clients.iter_mut().for_each(|client| wake(client, 1..2));
        share(&handle, [100, 300]);
        // Three clients with all that they may send at one volume, and one at the other.
        let ended = [AtomicU32::new(0), AtomicU32::new(0)];
        thread::scope(|scope| {
            for (at, client) in clients.iter_mut().enumerate() {
                let (lun, ended) = (u16::from(at == 3), &ended);
                scope.spawn(move || {
                    let read = |client: &mut Client| {
                        client.start(lun, &rw16(0x88, 0, 8), Data::Read(vec![0; 4096]))
                    };
                    let mut tags: VecDeque<Tag> = (0..100).map(|_| read(client)).collect();
                    while let Some(tag) = tags.pop_front() {
                        client.outcome(tag);
                        if ended[1].load(Ordering::SeqCst) < 600 {
                            ended[usize::from(lun)].fetch_add(1, Ordering::SeqCst);
                            tags.push_back(read(client));
                        }
                    }
                });
            }
        });
        // A third of the other's: without weights it would be three times as many. What lies between is for machines
        // that let the other client wait.
        let greedy = ended[0].load(Ordering::SeqCst);
        assert!((60..=500).contains(&greedy), "{greedy} beside 600");
        handle.share(|_| None);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

/// Says that a test is over, also to threads that would go on while it fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_latency_target_keeps_the_queues_of_others_short() {
    // Two volumes on a disk that does one operation after the other: 32 of them are 80 ms, the target are 8.
    let (rate, target) = (NonZeroU64::new(400).expect("not 0"), Duration::from_millis(20));
    let layer = Layer::new(Effect::Limit(Rate::Operations(rate)), Ops::ALL);
    let (disk, controls) = wrap(memory(4), &[layer]);
    let driver = lunet_ring::DriverChoice::Auto;
    let (server, address) = start(config(vec![disk.clone(), disk], driver));
    let handle = server.handle();
    let mut clients: Vec<Client> = (0..3).map(|n| Client::login(address, n)).collect();
    clients.iter_mut().for_each(|client| wake(client, 1..2));
    let pool = Arc::new(Pool::default());
    let aim = |target: Option<Duration>| {
        pool.expect_goal(target.is_some());
        handle.share(|name| {
            let goal = target.filter(|_| name == "v1");
            Some(PoolShare { pool: pool.clone(), weight: None, goal })
        });
    };
    let (ends, greedy_reads) = (AtomicBool::new(false), AtomicU32::new(0));
    let start_read =
        |client: &mut Client, lun| client.start(lun, &rw16(0x88, 0, 8), Data::Read(vec![0; 4096]));
    thread::scope(|scope| {
        let over = Over(&ends);
        let mut quick = clients.pop().expect("three");
        for mut greedy in clients {
            let (ends, reads) = (&ends, &greedy_reads);
            scope.spawn(move || {
                let mut tags: VecDeque<Tag> =
                    (0..100).map(|_| start_read(&mut greedy, 0)).collect();
                while let Some(tag) = tags.pop_front() {
                    greedy.outcome(tag);
                    if !ends.load(Ordering::SeqCst) {
                        reads.fetch_add(1, Ordering::SeqCst);
                        tags.push_back(start_read(&mut greedy, 0));
                    }
                }
            });
        }
        // The most that the disk has to do when one of ten reads in a row has ended.
        let mut longest = || {
            let held = |_| {
                let tag = start_read(&mut quick, 1);
                quick.outcome(tag);
                controls.held()
            };
            (0..10).map(held).max().expect("ten")
        };
        aim(None);
        until("the queue is long", || longest() >= 24);
        aim(Some(target));
        until("others have given way", || longest() <= 14);
        let before = greedy_reads.load(Ordering::SeqCst);
        until("they go on all the same", || greedy_reads.load(Ordering::SeqCst) >= before + 50);
        assert!(longest() <= 20, "they have not come back");
        aim(None);
        until("the queue is long again", || longest() >= 24);
        drop(over);
    });
    handle.share(|_| None);
    assert!(server.stop(Duration::ZERO).flushed);
}

#[test]
fn what_waits_for_its_share_is_aborted_and_leaves_the_pool() {
    on_each_driver(|driver| {
        let (one, gate) = stalling(4);
        let (server, address) = start(config(vec![one, memory(4)], driver));
        let handle = server.handle();
        let mut client = Client::login(address, 1);
        wake(&mut client, 1..2);
        share(&handle, [100, 100]);
        gate.close();
        for n in 0..POOL_DEPTH as u64 {
            client.start(0, &rw16(0x8A, 8 * n, 8), Data::Write(vec![1; 4096]));
        }
        until("all are at the storage", || gate.held() == POOL_DEPTH);
        let write = client.start(1, &rw16(0x8A, 8, 8), Data::Write(vec![0xAA; 4096]));
        until("it waits", || handle.stats().volumes[1].time.limits.of(Whose::Share) == 1);
        let aborted = client.manage(TmfFunction::AbortTask, 1, Some(write));
        assert_eq!(aborted, TmfResponse::Complete);
        assert_eq!(client.manage(TmfFunction::AbortTaskSet, 0, None), TmfResponse::Complete);
        gate.open();
        until("nothing is at work", || {
            handle.stats().volumes.iter().all(|volume| volume.commands_in_flight == 0)
        });
        let (status, data) = client.read(1, 8, 8);
        assert_eq!(status, GOOD);
        assert!(data.iter().all(|byte| *byte != 0xAA), "it was never written");
        client.works(0);
        // Where nothing is left in the pool, the server says nothing when it stops.
        assert!(server.stop(Duration::ZERO).flushed);
    });
}
