//! Reservations between two sessions on two shards.

use std::path::Path;

use lunet_front_iscsi::Config;
use lunet_iscsi::initiator::{Completion, Data, Outcome};
use lunet_iscsi::pdu::{TmfFunction, TmfResponse};
use lunet_ring::DriverChoice;

use crate::support::client::{Client, command, rw16};
use crate::support::status::{BUSY, CHECK_CONDITION, CONFLICT, GOOD, TASK_ABORTED};
use crate::support::{config, memory, on_each_driver, stalling, start, until};

const RESERVE: [u8; 6] = [0x16, 0, 0, 0, 0, 0];
const READY: [u8; 6] = [0; 6];

fn out(client: &mut Client, action: u8, kind: u8, key: u64, second: u64, flags: u8) -> Completion {
    let mut list = [key.to_be_bytes(), second.to_be_bytes(), [0; 8]].concat();
    list[20] = flags;
    client.finish(0, &[0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0], Data::Write(list))
}

fn register(client: &mut Client, key: u64, new: u64) -> u8 {
    out(client, 0, 0, key, new, 0).status
}

fn report(client: &mut Client, action: u8) -> (u8, Vec<u8>) {
    let tag = client.start(0, &[0x5E, action, 0, 0, 0, 0, 0, 1, 0, 0], Data::Read(vec![0; 256]));
    let finished = client.outcome(tag);
    match (finished.outcome, finished.data) {
        (Outcome::Completed(completion), Data::Read(mut data)) => {
            let len = 8 + u32::from_be_bytes([data[4], data[5], data[6], data[7]]) as usize;
            data.truncate(len);
            (completion.status, data)
        }
        other => panic!("the report was not answered: {other:?}"),
    }
}

fn keys(client: &mut Client) -> Vec<u64> {
    let (status, data) = report(client, 0);
    assert_eq!(status, GOOD);
    data[8..].chunks(8).map(|key| u64::from_be_bytes(key.try_into().expect("8 bytes"))).collect()
}

/// The unit attention that pends, as additional sense code and qualifier.
fn told(client: &mut Client) -> Option<(u8, u8)> {
    let answer = client.finish(0, &READY, Data::None);
    (answer.status == CHECK_CONDITION).then(|| (answer.sense[12], answer.sense[13]))
}

#[test]
fn a_reservation_holds_on_every_shard() {
    on_each_driver(|driver| {
        let (server, address) = start(config(vec![memory(16)], driver));
        let mut a = Client::login(address, 1);
        let mut b = Client::login(address, 2);
        let shards: Vec<usize> = server.handle().sessions().iter().map(|s| s.shard).collect();
        assert_ne!(shards[0], shards[1], "two sessions, two shards");
        assert_eq!((register(&mut a, 0, 1), register(&mut b, 0, 2)), (GOOD, GOOD));
        assert_eq!(out(&mut a, 1, 3, 1, 0, 0).status, GOOD);
        assert_eq!((b.read(0, 0, 8).0, b.write(0, 0, vec![1; 4096])), (CONFLICT, CONFLICT));
        assert_eq!(a.write(0, 0, vec![2; 4096]), GOOD);
        assert_eq!(keys(&mut b), [1, 2]);

        assert_eq!(out(&mut b, 4, 1, 2, 1, 0).status, GOOD);
        assert_eq!(told(&mut a), Some((0x2A, 0x05)), "its registration was preempted");
        assert_eq!(told(&mut a), None);
        assert_eq!(a.read(0, 0, 8), (GOOD, vec![2; 4096]), "write exclusive now");
        assert_eq!(a.write(0, 0, vec![3; 4096]), CONFLICT);
        assert_eq!(b.write(0, 0, vec![4; 4096]), GOOD);
        assert_eq!(keys(&mut a), [2]);
        drop((a, b));
        server.stop(std::time::Duration::ZERO);
    });
}

/// WRITE, and COMPARE AND WRITE, which has its blocks for itself.
fn writing() -> [(Vec<u8>, Vec<u8>); 2] {
    let mut compare_and_write = rw16(0x89, 8, 0).to_vec();
    compare_and_write[13] = 1;
    let both = [vec![0; 512], vec![0x11; 512]].concat();
    [(rw16(0x8A, 8, 1).to_vec(), vec![0x11; 512]), (compare_and_write, both)]
}

#[test]
fn preempt_and_abort_ends_the_commands_of_the_preempted() {
    on_each_driver(|driver| {
        for (cdb, data) in writing() {
            preempted_while(driver, &cdb, &data);
        }
    });
}

/// The victim has two of these commands, one of which waits for the other if it must.
fn preempted_while(driver: DriverChoice, cdb: &[u8], data: &[u8]) {
    let (volume, gate) = stalling(16);
    let (server, address) = start(config(vec![volume], driver));
    let mut victim = Client::login(address, 1);
    let mut winner = Client::login(address, 2);
    assert_eq!((register(&mut victim, 0, 1), register(&mut winner, 0, 2)), (GOOD, GOOD));
    assert_eq!(out(&mut victim, 1, 3, 1, 0, 0).status, GOOD);
    gate.close();
    let lost = victim.start(0, cdb, Data::Write(data.to_vec()));
    until("it is held", || gate.held() > 0);
    let waits = victim.start(0, cdb, Data::Write(data.to_vec()));
    assert_eq!(told(&mut victim), None, "both are there");
    // The answer comes although the disk does not answer.
    assert_eq!(out(&mut winner, 5, 3, 2, 1, 0).status, GOOD);
    for tag in [lost, waits] {
        let outcome = victim.outcome(tag).outcome;
        assert!(
            matches!(&outcome, Outcome::Completed(end) if end.status == TASK_ABORTED),
            "{outcome:?}"
        );
    }
    assert_eq!(winner.write(0, 8, vec![0x22; 512]), BUSY, "the old write may still land");
    gate.open();
    until("the blocks are free", || winner.write(0, 8, vec![0x22; 512]) == GOOD);
    assert_eq!(winner.read(0, 8, 1), (GOOD, vec![0x22; 512]));
    assert_eq!(told(&mut victim), Some((0x2A, 0x05)));
    let answer = victim.finish(0, &rw16(0x8A, 8, 1), Data::Write(vec![0x33; 512]));
    assert_eq!(answer.status, CONFLICT);
    drop((victim, winner));
    server.stop(std::time::Duration::ZERO);
}

/// Who preempts itself ends what it has sent before, and nothing that it sends after that.
#[test]
fn commands_behind_a_preempt_and_abort_are_carried_out() {
    on_each_driver(|driver| {
        for shards in [1, 5] {
            let (volume, gate) = stalling(16);
            let config = Config { shards: Some(shards), ..config(vec![volume], driver) };
            let (server, address) = start(config);
            let mut client = Client::login(address, 1);
            assert_eq!(register(&mut client, 0, 1), GOOD);
            assert_eq!(out(&mut client, 1, 3, 1, 0, 0).status, GOOD);
            gate.close();
            let mut list = vec![0; 24];
            (list[7], list[15]) = (1, 1);
            let preempt = [0x5F, 5, 3, 0, 0, 0, 0, 0, 24, 0];
            let tags = client.batch(|proto, out| {
                let write = |lba| rw16(0x8A, lba, 1).to_vec();
                let commands =
                    [(write(8), vec![1; 512]), (preempt.to_vec(), list), (write(16), vec![2; 512])];
                commands.map(|(cdb, data)| {
                    proto.submit(command(0, &cdb, Data::Write(data)), out).expect("room")
                })
            });
            let status = |client: &mut Client, tag| match client.outcome(tag).outcome {
                Outcome::Completed(end) => end.status,
                other => panic!("{other:?}"),
            };
            assert_eq!(status(&mut client, tags[1]), GOOD);
            gate.open();
            assert_eq!(status(&mut client, tags[2]), GOOD);
            let answer = client.manage(TmfFunction::AbortTask, 0, Some(tags[0]));
            assert_eq!(answer, TmfResponse::TaskDoesNotExist, "it was ended without an answer");
            drop(client);
            server.stop(std::time::Duration::ZERO);
        }
    });
}

#[test]
fn reserve_ends_with_its_session_and_with_a_reset() {
    on_each_driver(|driver| {
        let (server, address) = start(config(vec![memory(16)], driver));
        let mut a = Client::login(address, 1);
        let mut b = Client::login(address, 2);
        assert_eq!(a.finish(0, &RESERVE, Data::None).status, GOOD);
        assert_eq!(b.finish(0, &READY, Data::None).status, CONFLICT);
        assert_eq!(b.manage(TmfFunction::LogicalUnitReset, 0, None), TmfResponse::Complete);
        assert_eq!(told(&mut b), Some((0x29, 0x03)));
        assert_eq!(b.finish(0, &RESERVE, Data::None).status, GOOD);
        assert_eq!(told(&mut a), Some((0x29, 0x03)));
        assert_eq!(a.write(0, 0, vec![1; 512]), CONFLICT);
        // The same nexus logs in anew: its old session is over, and with it RESERVE.
        let again = Client::login(address, 2);
        assert_eq!(a.write(0, 0, vec![1; 512]), GOOD);
        drop((a, b, again));
        server.stop(std::time::Duration::ZERO);
    });
}

fn kept_at(path: &Path) -> lunet_front_iscsi::Config {
    let mut config = config(vec![memory(16)], DriverChoice::Auto);
    config.layout.volumes[0].reservations = Some(path.to_owned());
    config
}

#[test]
fn reservations_are_taken_up_after_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("v0.reservations");
    let (server, address) = start(kept_at(&path));
    let mut a = Client::login(address, 1);
    assert_eq!(out(&mut a, 0, 0, 0, 1, 1).status, GOOD);
    assert_eq!(out(&mut a, 1, 1, 1, 0, 0).status, GOOD);
    // Every answer comes after the state is stable: this is what a power loss would find.
    let image = std::fs::read(&path).expect("it is kept");
    drop(a);
    server.stop(std::time::Duration::ZERO);
    assert_eq!(std::fs::read(&path).expect("it is kept"), image);

    let (server, address) = start(kept_at(&path));
    let mut a = Client::login(address, 1);
    let mut b = Client::login(address, 2);
    assert_eq!((keys(&mut b), b.write(0, 0, vec![1; 512])), (vec![1], CONFLICT));
    assert_eq!(a.write(0, 0, vec![1; 512]), GOOD);
    assert_eq!(register(&mut a, 1, 2), GOOD, "APTPL = 0");
    assert!(!path.exists(), "nothing is to be kept any more");
    drop((a, b));
    server.stop(std::time::Duration::ZERO);
    // A stop in good order is no power loss, which finds nothing of it.
    let (server, address) = start(kept_at(&path));
    assert_eq!(keys(&mut Client::login(address, 1)), [2]);
    server.stop(std::time::Duration::ZERO);
    std::fs::remove_file(path.with_extension("restart")).expect("it is passed on");
    let (server, address) = start(kept_at(&path));
    assert!(keys(&mut Client::login(address, 1)).is_empty());
    server.stop(std::time::Duration::ZERO);
}

#[test]
fn what_cannot_be_kept_is_not_promised() {
    let dir = tempfile::tempdir().expect("a directory");
    let gone = dir.path().join("gone");
    let (server, address) = start(kept_at(&gone.join("v0.reservations")));
    let mut a = Client::login(address, 1);
    let answer = out(&mut a, 0, 0, 0, 1, 1);
    assert_eq!((answer.status, answer.sense[2], answer.sense[12]), (CHECK_CONDITION, 4, 0x44));
    drop(a);
    server.stop(std::time::Duration::ZERO);

    let (server, address) = start(config(vec![memory(16)], DriverChoice::Auto));
    let mut a = Client::login(address, 1);
    let answer = out(&mut a, 0, 0, 0, 1, 1);
    assert_eq!((answer.status, answer.sense[2], answer.sense[12]), (CHECK_CONDITION, 5, 0x26));
    drop(a);
    server.stop(std::time::Duration::ZERO);
}

/// The reservations as they stand, without PRGENERATION: registered keys, and holder and type.
fn standing(client: &mut Client) -> (Vec<u64>, Vec<u8>) {
    let (status, data) = report(client, 1);
    assert_eq!(status, GOOD);
    (keys(client), data[8..].to_vec())
}

#[test]
fn a_command_that_cannot_be_kept_changes_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("v0.reservations");
    let (server, address) = start(kept_at(&path));
    let mut a = Client::login(address, 1);
    let mut b = Client::login(address, 2);
    assert_eq!(out(&mut a, 0, 0, 0, 1, 1).status, GOOD);
    assert_eq!(out(&mut b, 0, 0, 0, 2, 1).status, GOOD);
    assert_eq!(out(&mut a, 1, 1, 1, 0, 0).status, GOOD);
    let (before, image) = (standing(&mut a), std::fs::read(&path).expect("it is kept"));

    // Something in the way of the next state of the file.
    let way = dir.path().join(".v0.reservations.new");
    std::fs::create_dir(&way).expect("it can");
    // Register, release, clear, preempt, preempt and abort.
    for (by_b, action, kind, key, second) in [
        (true, 0, 0, 2, 9),
        (false, 2, 1, 1, 0),
        (false, 3, 0, 1, 0),
        (true, 4, 1, 2, 1),
        (true, 5, 1, 2, 1),
    ] {
        let client = if by_b { &mut b } else { &mut a };
        let answer = out(client, action, kind, key, second, u8::from(action == 0));
        let found = (answer.status, answer.sense[2], answer.sense[12]);
        assert_eq!(found, (CHECK_CONDITION, 4, 0x44), "action {action}");
        assert_eq!(standing(&mut a), before, "action {action}");
        assert_eq!((told(&mut a), told(&mut b)), (None, None), "action {action}");
        assert_eq!(b.write(0, 0, vec![1; 512]), CONFLICT, "a holds it");
        assert_eq!(a.write(0, 0, vec![1; 512]), GOOD);
        assert_eq!(std::fs::read(&path).expect("it is kept"), image);
    }
    std::fs::remove_dir(&way).expect("it can");
    assert_eq!(out(&mut b, 5, 1, 2, 1, 0).status, GOOD);
    assert_eq!(told(&mut a), Some((0x2A, 0x05)), "its registration was preempted");
    assert_eq!((keys(&mut b), a.write(0, 0, vec![1; 512])), (vec![2], CONFLICT));
    drop((a, b));
    server.stop(std::time::Duration::ZERO);
}

#[test]
fn a_damaged_file_keeps_the_server_from_starting() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("v0.reservations");
    std::fs::write(&path, "{").expect("written");
    let error = lunet_front_iscsi::Server::start(kept_at(&path)).err().expect("it does not start");
    assert!(error.to_string().starts_with("persistent reservations: "), "{error}");
}
