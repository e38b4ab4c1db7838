//! A disk that does not answer: aborts, resets and new sessions do not wait for it, no acknowledged
//! data is overtaken by an abandoned write, and other volumes go on.

use crate::support::client::{Client, rw16};
use crate::support::stall::Gate;
use crate::support::status::{BUSY, CHECK_CONDITION, GOOD, TASK_ABORTED};
use crate::support::{config, memory, on_each_driver, stalling, start, until};
use lunet_iscsi::initiator::{Data, Outcome};
use lunet_iscsi::pdu::{TmfFunction, TmfResponse};

/// Writes one block again and again until the fence is gone.
fn write_until_good(client: &mut Client, lba: u64, byte: u8) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        match client.write(0, lba, vec![byte; 512]) {
            GOOD => return,
            status => assert_eq!(status, BUSY, "only the fence is in the way"),
        }
        assert!(std::time::Instant::now() < deadline, "the fence stays");
    }
}

fn stall_a_write(client: &mut Client, gate: &Gate, lba: u64) -> lunet_iscsi::initiator::Tag {
    gate.close();
    let tag = client.start(0, &rw16(0x8A, lba, 1), Data::Write(vec![0x11; 512]));
    until("the write is held", || gate.held() == 1);
    tag
}

/// The status of a command that was started before.
fn status_of(client: &mut Client, tag: lunet_iscsi::initiator::Tag) -> u8 {
    match client.outcome(tag).outcome {
        Outcome::Completed(completion) => completion.status,
        other => panic!("the command was not answered: {other:?}"),
    }
}

#[test]
fn an_abort_is_answered_and_its_blocks_are_fenced_off() {
    on_each_driver(|driver| {
        let (volume, gate) = stalling(16);
        let (server, address) = start(config(vec![volume, memory(16)], driver));
        let mut client = Client::login(address, 1);
        let stalled = stall_a_write(&mut client, &gate, 100);

        let answer = client.manage(TmfFunction::AbortTask, 0, Some(stalled));
        assert_eq!(answer, TmfResponse::Complete);
        assert_eq!(client.outcome(stalled).outcome, Outcome::Aborted);
        assert_eq!(client.read(0, 99, 3).0, BUSY, "the old write may still land there");
        assert_eq!(client.read(0, 101, 8).0, GOOD, "its neighbours are free");

        gate.open();
        write_until_good(&mut client, 100, 0x22);
        let (status, data) = client.read(0, 100, 1);
        assert_eq!((status, data), (GOOD, vec![0x22; 512]), "the old write did not overtake");
        drop(client);
        assert!(server.stop(std::time::Duration::ZERO).flushed);
    });
}

#[test]
fn a_reset_reaches_the_commands_of_other_sessions() {
    on_each_driver(|driver| {
        let (volume, gate) = stalling(16);
        let (server, address) = start(config(vec![volume, memory(16)], driver));
        let mut victim = Client::login(address, 1);
        let mut other = Client::login(address, 2);
        let write = stall_a_write(&mut victim, &gate, 0);

        let answer = other.manage(TmfFunction::LogicalUnitReset, 0, None);
        assert_eq!(answer, TmfResponse::Complete);
        assert_eq!(status_of(&mut victim, write), TASK_ABORTED);
        for client in [&mut victim, &mut other] {
            let told = client.finish(0, &[0; 6], Data::None);
            assert_eq!((told.status, told.sense[2], told.sense[12]), (CHECK_CONDITION, 6, 0x29));
            assert_eq!(client.finish(0, &[0; 6], Data::None).status, GOOD, "it is told once");
        }
        gate.open();
        write_until_good(&mut victim, 0, 3);
        drop((victim, other));
        server.stop(std::time::Duration::ZERO);
    });
}

#[test]
fn a_new_session_replaces_one_whose_disk_hangs_and_other_volumes_go_on() {
    on_each_driver(|driver| {
        let (volume, gate) = stalling(16);
        let (server, address) = start(config(vec![volume, memory(16)], driver));
        let mut old = Client::login(address, 1);
        stall_a_write(&mut old, &gate, 8);

        let mut new = Client::login(address, 1);
        assert!(old.is_closed_by_server());
        assert_eq!(new.write(0, 8, vec![5; 512]), BUSY);
        // The other unit reports its own power on first.
        assert_eq!(new.finish(1, &[0; 6], Data::None).status, CHECK_CONDITION);
        assert_eq!(new.write(1, 8, vec![6; 4096]), GOOD);
        assert_eq!(new.read(1, 8, 8), (GOOD, vec![6; 4096]));

        gate.open();
        write_until_good(&mut new, 8, 7);
        assert_eq!(new.read(0, 8, 1), (GOOD, vec![7; 512]));
        drop(new);
        server.stop(std::time::Duration::ZERO);
    });
}

#[test]
fn clear_task_set_tells_only_those_who_lost_commands() {
    on_each_driver(|driver| {
        let (volume, gate) = stalling(16);
        let (server, address) = start(config(vec![volume], driver));
        let mut victim = Client::login(address, 1);
        let mut idle = Client::login(address, 2);
        let mut caller = Client::login(address, 3);
        // TAS = 1, the default: each command says so, and no unit attention does.
        let write = stall_a_write(&mut victim, &gate, 0);
        assert_eq!(caller.manage(TmfFunction::ClearTaskSet, 0, None), TmfResponse::Complete);
        assert_eq!(status_of(&mut victim, write), TASK_ABORTED);
        for client in [&mut victim, &mut idle, &mut caller] {
            assert_eq!(client.finish(0, &[0; 6], Data::None).status, GOOD);
        }
        gate.open();
        write_until_good(&mut victim, 0, 3);
        // TAS = 0 (MODE SELECT): no answer, and a unit attention.
        let page = vec![0, 0, 0, 0, 0x0A, 0x0A, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0];
        let select = [0x15, 0x10, 0, 0, 16, 0];
        assert_eq!(caller.finish(0, &select, Data::Write(page)).status, GOOD);
        for client in [&mut victim, &mut idle] {
            let told = client.finish(0, &[0; 6], Data::None);
            assert_eq!((told.status, told.sense[12]), (CHECK_CONDITION, 0x2A));
        }
        stall_a_write(&mut victim, &gate, 0);
        assert_eq!(caller.manage(TmfFunction::ClearTaskSet, 0, None), TmfResponse::Complete);
        let told = victim.finish(0, &[0; 6], Data::None);
        assert_eq!((told.status, told.sense[2], told.sense[12]), (CHECK_CONDITION, 6, 0x2F));
        assert_eq!(idle.finish(0, &[0; 6], Data::None).status, GOOD);
        assert_eq!(caller.finish(0, &[0; 6], Data::None).status, GOOD);
        gate.open();
        drop((victim, idle, caller));
        server.stop(std::time::Duration::ZERO);
    });
}

#[test]
fn functions_on_a_lun_that_does_not_exist_say_so() {
    let (server, address) = start(config(vec![memory(1)], lunet_ring::DriverChoice::Auto));
    let mut client = Client::login(address, 1);
    for function in
        [TmfFunction::AbortTaskSet, TmfFunction::ClearTaskSet, TmfFunction::LogicalUnitReset]
    {
        assert_eq!(client.manage(function, 9, None), TmfResponse::LunDoesNotExist);
    }
    assert_eq!(client.manage(TmfFunction::AbortTaskSet, 0, None), TmfResponse::Complete);
    drop(client);
    server.stop(std::time::Duration::ZERO);
}
