//! Storage that hangs, fails or slows: who asks for an end gets it in time, nobody else notices.

use std::time::{Duration, Instant};

use lunet_backends::Volume;
use lunet_backends::layers::{Controls, Effect, Layer, Ops, Which, wrap};
use lunet_iscsi::initiator::{Completion, Data, Outcome, Tag};
use lunet_iscsi::pdu::{TmfFunction, TmfResponse};

use crate::support::client::{Client, rw16};
use crate::support::status::{CHECK_CONDITION, GOOD};
use crate::support::{config, file_volume, memory, on_each_driver, start, until};

/// Initiators give an abort or a reset this much time at least (Linux: 15 s, ESXi: 10 s).
const LIMIT: Duration = Duration::from_secs(10);

type Command = (&'static str, Vec<u8>, Data<Vec<u8>, Vec<u8>>);

/// One command for each kind of operation, on eight blocks from `lba` on.
fn commands(lba: u64) -> Vec<Command> {
    let mut list = vec![0; 24];
    (list[1], list[3], list[19]) = (22, 16, 8);
    list[8..16].copy_from_slice(&lba.to_be_bytes());
    let mut unmap = vec![0; 10];
    (unmap[0], unmap[8]) = (0x42, 24);
    let eight = |opcode| rw16(opcode, lba, 8);
    vec![
        ("read", eight(0x88).to_vec(), Data::Read(vec![0; 4096])),
        ("write", eight(0x8A).to_vec(), Data::Write(vec![1; 4096])),
        ("write with FUA", fua(eight(0x8A)), Data::Write(vec![1; 4096])),
        ("flush", rw16(0x91, 0, 0).to_vec(), Data::None),
        ("unmap", unmap, Data::Write(list)),
        ("write same", eight(0x93).to_vec(), Data::Write(vec![0; 512])),
        ("verify", bytchk(eight(0x8F)), Data::Write(vec![0; 4096])),
    ]
}

fn fua(mut cdb: [u8; 16]) -> Vec<u8> {
    cdb[1] |= 8;
    cdb.to_vec()
}

fn bytchk(mut cdb: [u8; 16]) -> Vec<u8> {
    cdb[1] |= 2;
    cdb.to_vec()
}

fn hanging(volume: Volume) -> (Volume, Controls) {
    wrap(volume, &[Layer::new(Effect::Hang, Ops::ALL)])
}

/// Sends a command, and waits until it hangs.
fn hang(client: &mut Client, controls: &Controls, command: &Command) -> Tag {
    let before = controls.held();
    let tag = client.start(0, &command.1, command.2.clone());
    until("it hangs", || controls.held() > before);
    tag
}

fn in_time<T>(what: &str, action: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let result = action();
    assert!(begin.elapsed() < LIMIT, "{what} took {:?}", begin.elapsed());
    result
}

/// A unit attention, and then nothing more to be told.
fn is_told(client: &mut Client, code: u8) {
    let told = client.finish(0, &[0; 6], Data::None);
    assert_eq!((told.status, told.sense[2], told.sense[12]), (CHECK_CONDITION, 6, code));
    assert_eq!(client.finish(0, &[0; 6], Data::None).status, GOOD);
}

/// Nothing is ever released here: what is answered is answered although the storage hangs.
#[test]
fn aborts_resets_and_logins_are_answered_whatever_hangs() {
    on_each_driver(|driver| {
        for (kind, (name, ..)) in commands(0).into_iter().enumerate() {
            // Where an aborted write may still land, others wait: each has its own place.
            let command = |n: u64| commands(n * 64).swap_remove(kind);
            let dir = tempfile::tempdir().expect("a folder");
            let (volume, controls) = hanging(file_volume(&dir));
            let (server, address) = start(config(vec![volume, memory(16)], driver));
            let mut client = Client::login(address, 1);
            let mut other = Client::login(address, 2);

            let tag = hang(&mut client, &controls, &command(1));
            let answer = in_time(name, || client.manage(TmfFunction::AbortTask, 0, Some(tag)));
            assert_eq!(answer, TmfResponse::Complete, "{name}");
            assert_eq!(client.outcome(tag).outcome, Outcome::Aborted, "{name}");

            hang(&mut client, &controls, &command(2));
            let answer = in_time(name, || client.manage(TmfFunction::AbortTaskSet, 0, None));
            assert_eq!(answer, TmfResponse::Complete, "{name}");

            hang(&mut client, &controls, &command(3));
            let answer = in_time(name, || other.manage(TmfFunction::LogicalUnitReset, 0, None));
            assert_eq!(answer, TmfResponse::Complete, "{name}");
            is_told(&mut client, 0x29);
            is_told(&mut other, 0x29);

            hang(&mut client, &controls, &command(4));
            let mut again = in_time(name, || Client::login(address, 1));
            assert!(client.is_closed_by_server(), "{name}");
            assert_eq!(again.finish(0, &[0; 6], Data::None).status, GOOD, "{name}");
            let first = again.finish(1, &[0; 6], Data::None);
            assert_eq!(first.status, CHECK_CONDITION, "power on of the other unit");
            assert_eq!(again.write(1, 0, vec![6; 4096]), GOOD, "{name}");
            assert_eq!(again.read(1, 0, 8), (GOOD, vec![6; 4096]), "{name}");
            drop((again, other));
            controls.switch(0, false);
            until("all of it has ended", || controls.held() == 0);
            server.stop(Duration::ZERO);
        }
    });
}

/// More commands than a channel takes: they wait, the other volume does not.
#[test]
fn a_volume_full_of_hanging_commands_is_alone_with_them() {
    on_each_driver(|driver| {
        let (volume, controls) = hanging(memory(16));
        let mut config = config(vec![volume, memory(16)], driver);
        config.shards = Some(1);
        let (server, address) = start(config);
        let mut clients: Vec<_> = (1..=12).map(|n| Client::login(address, n)).collect();
        let tags: Vec<Vec<Tag>> = clients
            .iter_mut()
            .map(|client| {
                let one = |n| client.start(0, &rw16(0x88, n, 1), Data::Read(vec![0; 512]));
                (0..100).map(one).collect()
            })
            .collect();
        until("the channel is full", || controls.held() == 1024);
        let mut idle = Client::login(address, 13);
        assert_eq!(idle.finish(1, &[0; 6], Data::None).status, CHECK_CONDITION);
        for n in 0..100 {
            assert_eq!(idle.write(1, n, vec![n as u8; 512]), GOOD);
            assert_eq!(idle.read(1, n, 1), (GOOD, vec![n as u8; 512]));
        }
        let answer = in_time("reset", || idle.manage(TmfFunction::LogicalUnitReset, 0, None));
        assert_eq!(answer, TmfResponse::Complete);
        for (client, tags) in clients.iter_mut().zip(tags) {
            is_told(client, 0x29);
            drop(tags);
        }
        controls.switch(0, false);
        until("all of it has ended", || controls.held() == 0);
        assert_eq!(clients[0].read(0, 0, 1).0, GOOD, "the volume works again");
        drop((clients, idle));
        server.stop(Duration::ZERO);
    });
}

fn run(client: &mut Client, command: &Command) -> Completion {
    client.finish(0, &command.1, command.2.clone())
}

#[test]
fn each_fault_is_told_as_what_it_is_and_is_over_then() {
    /// Sense key and additional sense codes.
    type Sense = (u8, u8, u8);
    const WRITE_ERROR: Sense = (3, 0x0C, 0);
    let cases: [(&str, Ops, i32, Sense); 8] = [
        ("read", Ops::READ, 5, (3, 0x11, 0)),
        ("write", Ops::WRITE, 5, WRITE_ERROR),
        ("write", Ops::WRITE, 28, (7, 0x27, 7)),
        ("write", Ops::WRITE, 30, (7, 0x27, 0)),
        ("write", Ops::WRITE, 110, WRITE_ERROR),
        ("unmap", Ops::UNMAP, 5, WRITE_ERROR),
        ("write same", Ops::UNMAP, 28, (7, 0x27, 7)),
        ("verify", Ops::READ, 5, (3, 0x11, 0)),
    ];
    on_each_driver(|driver| {
        for (name, ops, errno, expected) in cases {
            let dir = tempfile::tempdir().expect("a folder");
            let once = Layer { which: Which::Nth(1), ..Layer::new(Effect::Fault(errno), ops) };
            let (volume, controls) = wrap(file_volume(&dir), &[once]);
            let (server, address) = start(config(vec![volume], driver));
            let mut client = Client::login(address, 1);
            let all = commands(0);
            let command = all.iter().find(|command| command.0 == name).expect("a command");
            let failed = run(&mut client, command);
            let sense = (failed.sense[2] & 15, failed.sense[12], failed.sense[13]);
            assert_eq!((failed.status, sense), (CHECK_CONDITION, expected), "{name} {errno}");
            assert_eq!(controls.matched(0), 1, "{name}");
            assert_eq!(run(&mut client, command).status, GOOD, "{name} {errno}");
            drop(client);
            server.stop(Duration::ZERO);
        }
    });
}

#[test]
fn commands_that_are_delayed_by_chance_are_all_answered_with_their_data() {
    on_each_driver(|driver| {
        let (time, spread) = (Duration::ZERO, Duration::from_millis(3));
        let dir = tempfile::tempdir().expect("a folder");
        let delay = Layer::new(Effect::Delay { time, spread }, Ops::ALL);
        let (volume, controls) = wrap(file_volume(&dir), &[delay]);
        let (server, address) = start(config(vec![volume], driver));
        let mut client = Client::login(address, 1);
        for round in 0..3u8 {
            let data = |n: u64| vec![(n as u8) ^ round; 4096];
            let writes: Vec<Tag> = (0..60)
                .map(|n| client.start(0, &rw16(0x8A, n * 8, 8), Data::Write(data(n))))
                .collect();
            for tag in writes {
                let Outcome::Completed(done) = client.outcome(tag).outcome else { panic!() };
                assert_eq!(done.status, GOOD);
            }
            let reads: Vec<Tag> = (0..60)
                .map(|n| client.start(0, &rw16(0x88, n * 8, 8), Data::Read(vec![0; 4096])))
                .collect();
            for (n, tag) in (0..).zip(reads) {
                let Data::Read(read) = client.outcome(tag).data else { panic!("no data") };
                assert!(read == data(n), "block {n} of round {round}");
            }
        }
        assert!(controls.matched(0) >= 360);
        drop(client);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

/// What has not begun takes no effect, so its blocks are free at once.
#[test]
fn an_abort_of_a_delayed_write_leaves_no_fence() {
    on_each_driver(|driver| {
        let hour = Effect::Delay { time: Duration::from_secs(3600), spread: Duration::ZERO };
        let first = Layer { which: Which::Nth(1), ..Layer::new(hour, Ops::WRITE) };
        let dir = tempfile::tempdir().expect("a folder");
        let (volume, controls) = wrap(file_volume(&dir), &[first]);
        let (server, address) = start(config(vec![volume], driver));
        let mut client = Client::login(address, 1);
        let write = commands(8).swap_remove(1);
        let tag = hang(&mut client, &controls, &write);
        assert_eq!(client.manage(TmfFunction::AbortTask, 0, Some(tag)), TmfResponse::Complete);
        until("it was given up", || controls.held() == 0);
        until("its blocks are free", || client.write(0, 8, vec![2; 4096]) == GOOD);
        assert_eq!(client.read(0, 8, 8), (GOOD, vec![2; 4096]));
        drop(client);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}
