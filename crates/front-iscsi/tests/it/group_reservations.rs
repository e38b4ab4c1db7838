//! Persistent reservations of a failover group: its owner decides, whatever gateway an initiator has come to.

use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use lunet_front_iscsi::{Execution, GroupHandle, GroupRequest};
use lunet_gateway::{Access, AccessState, Answer, Contents, Record, Reserved, Sanitize, Volume};
use lunet_iscsi::initiator::{Data, Options, Tag};

use crate::groups::{
    begin, done, group_of, open_group, read_from, sense, set_gate, two_targets, wait,
};
use crate::relays::{SECRET, relays, through};
use crate::support::client::{Client, rw16};
use crate::support::gateway::{Machine, ports};
use crate::support::status::{BUSY, CONFLICT, GOOD};
use crate::support::{TARGET, memory, on_each_driver, stalling, start, until};

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const PREEMPT_AND_ABORT: u8 = 5;
const WRITE_EXCLUSIVE: u8 = 1;

/// Where a group's thread would get its requests.
pub fn requests_of(group: &GroupHandle) -> Receiver<GroupRequest> {
    let (sender, requests) = sync_channel(64);
    wait(|done| group.take_requests(move |request| sender.send(request).expect("room"), done));
    requests
}

pub fn next(requests: &Receiver<GroupRequest>) -> GroupRequest {
    requests.recv_timeout(Duration::from_secs(30)).expect("a request comes")
}

pub fn change(requests: &Receiver<GroupRequest>) -> (u64, Vec<u8>) {
    match next(requests) {
        GroupRequest::Reserve(id, body) => (id, body),
        other => panic!("{other:?}"),
    }
}

/// PERSISTENT RESERVE OUT.
pub fn reserve_out(client: &mut Client, action: u8, key: u64, second: u64) -> Tag {
    let kind = if action == REGISTER { 0 } else { WRITE_EXCLUSIVE };
    let list = [&key.to_be_bytes()[..], &second.to_be_bytes(), &[0; 8]].concat();
    client.start(0, &[0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0], Data::Write(list))
}

fn execute(group: &GroupHandle, body: &[u8]) -> Execution {
    let (sender, done) = sync_channel(1);
    group.execute(body, move |execution| sender.send(execution).expect("somebody waits"));
    done.recv_timeout(Duration::from_secs(30)).expect("every shard answers")
}

/// What a group's thread does with a request, when the record is written as it should be.
pub fn carry_out(group: &GroupHandle, requests: &Receiver<GroupRequest>) -> Option<Reserved> {
    let (id, body) = change(requests);
    let Execution { reserved, answer } = execute(group, &body);
    wait(|done| group.apply(done));
    group.answer(id, Answer::Body(answer));
    reserved.map(|(_, reserved)| reserved)
}

fn keys(reserved: &Reserved) -> Vec<u64> {
    reserved.registrations.iter().map(|one| one.key).collect()
}

/// What a record has of a volume with these reservations.
fn contents(naa: [u8; 16], reserved: Reserved) -> Contents {
    let volume = Volume {
        image: "pool/image".into(),
        id: "1a".into(),
        bytes: 1 << 20,
        naa,
        serial: String::new(),
        reserved,
        modes: Vec::new(),
        sanitize: Sanitize::None,
    };
    Contents { volumes: vec![volume] }
}

#[test]
fn the_owner_decides_and_commands_wait_from_the_copy_to_the_effect() {
    on_each_driver(|driver| {
        let (server, address, group, _) = open_group(two_targets(memory(16), driver));
        let requests = requests_of(&group);
        let mut clients: Vec<Client> = (1..5).map(|n| Client::login(address, n)).collect();
        let register = reserve_out(&mut clients[0], REGISTER, 0, 7);
        let registered = carry_out(&group, &requests).expect("it is a change");
        assert_eq!((keys(&registered), registered.kind), (vec![7], None));
        assert_eq!(done(&mut clients[0], register).status, GOOD);

        let reserve = reserve_out(&mut clients[0], RESERVE, 7, 0);
        let (id, body) = change(&requests);
        let Execution { reserved, answer } = execute(&group, &body);
        assert!(reserved.is_some_and(|(_, reserved)| reserved.holder == Some(0)));
        // Others may see the new state in the record already: nobody is answered by the old one.
        let waiting: Vec<Tag> = clients[1..]
            .iter_mut()
            .map(|client| client.start(0, &rw16(0x8A, 0, 1), Data::Write(vec![9; 512])))
            .collect();
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(
            read_from(&mut clients[1], &[0x12, 0, 0, 0, 255, 0]).0,
            GOOD,
            "INQUIRY does not wait"
        );
        assert!(!clients[1].has_answer(waiting[0]), "a command was answered by the old state");
        wait(|done| group.apply(done));
        group.answer(id, Answer::Body(answer));
        assert_eq!(done(&mut clients[0], reserve).status, GOOD);
        for (client, tag) in clients[1..].iter_mut().zip(waiting) {
            assert_eq!(done(client, tag).status, CONFLICT);
        }
        assert_eq!(clients[0].write(0, 0, vec![1; 512]), GOOD);
        drop(clients);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn what_is_given_up_changes_nothing_and_lets_commands_go_on() {
    on_each_driver(|driver| {
        let (server, address, group, _) = open_group(two_targets(memory(16), driver));
        let requests = requests_of(&group);
        let mut clients: Vec<Client> = (1..3).map(|n| Client::login(address, n)).collect();
        let register = reserve_out(&mut clients[0], REGISTER, 0, 7);
        let (id, body) = change(&requests);
        assert!(execute(&group, &body).reserved.is_some());
        let waits = clients[1].start(0, &rw16(0x8A, 0, 1), Data::Write(vec![9; 512]));
        wait(|done| group.abandon(done));
        group.answer(id, Answer::Busy);
        assert_eq!(done(&mut clients[0], register).status, BUSY);
        assert_eq!(done(&mut clients[1], waits).status, GOOD);
        // It is registered nowhere.
        let reserve = reserve_out(&mut clients[0], RESERVE, 7, 0);
        assert_eq!(carry_out(&group, &requests), None);
        assert_eq!(done(&mut clients[0], reserve).status, CONFLICT);
        clients[1].works(0);
        drop(clients);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn a_nexus_of_another_gateway_registers_and_preempts() {
    on_each_driver(|driver| {
        let (volume, storage) = stalling(16);
        let (owner, address, group, machine) = open_group(two_targets(volume, driver));
        let states = Access(vec![(1, AccessState::Optimized), (2, AccessState::Standby)]);
        let _relays = relays(&group);
        wait(|done| group.access(&ports(), &states, done));
        let mut config = two_targets(memory(16), driver);
        config.portals[0].tag = 2;
        let (standby, elsewhere) = start(config);
        let other = group_of(&standby, Machine::standby().gate());
        wait(|done| other.access(&ports(), &states, done));
        let (requests, reports) = (requests_of(&group), requests_of(&other));
        // Another host than the one that comes through the standby.
        let name = |options: &mut Options| options.initiator_name = "iqn.2026-11.x:here".into();
        let mut here = Client::login_with(address, 1, name);
        // As the standby passes its commands on; and what that answers by itself.
        let through = through(2, machine.gate().epoch().0, SECRET);
        let mut there = Client::try_login(address, through).expect("the proof");
        let mut asks = Client::login(elsewhere, 2);

        let registers = reserve_out(&mut here, REGISTER, 0, 7);
        carry_out(&group, &requests).expect("it is a change");
        assert_eq!(done(&mut here, registers).status, GOOD);
        let registers = reserve_out(&mut there, REGISTER, 0, 8);
        let (id, body) = change(&requests);
        let Execution { reserved, answer } = execute(&group, &body);
        let (naa, reserved) = reserved.expect("it is a change");
        assert_eq!(keys(&reserved), [7, 8]);
        wait(|done| group.apply(done));
        group.answer(id, Answer::Body(answer));
        assert_eq!(done(&mut there, registers).status, GOOD);

        // READ KEYS and READ FULL STATUS at the standby, by the record.
        let contents = contents(naa, reserved.clone());
        let record = Record::new(TARGET, [7; 32], ports(), contents);
        let report = |client: &mut Client, action: u8| {
            let cdb = [0x5E, action, 0, 0, 0, 0, 0, 0, 255, 0];
            let tag = client.start(0, &cdb, Data::Read(vec![0; 255]));
            let GroupRequest::Report(id) = next(&reports) else { panic!("no report") };
            other.answer(id, Answer::Record(Box::new(record.clone())));
            let finished = client.outcome(tag);
            let Data::Read(data) = finished.data else { panic!("{finished:?}") };
            data
        };
        let listed = report(&mut asks, 0);
        let expected = [&reserved.generation.to_be_bytes()[..], &[0, 0, 0, 16]].concat();
        assert_eq!(listed[..8], expected);
        assert_eq!((listed[15], listed[23]), (7, 8));
        let full = report(&mut asks, 3);
        assert_eq!(full[8 + 18..8 + 20], [0, 41], "the port of gateway 1");

        // PREEMPT AND ABORT from there ends what is under way here, before it is answered.
        storage.close();
        let tag = here.start(0, &rw16(0x8A, 0, 1), Data::Write(vec![7; 512]));
        until("the write is at the storage", || storage.held() == 1);
        let preempts = reserve_out(&mut there, PREEMPT_AND_ABORT, 8, 7);
        let (id, body) = change(&requests);
        let Execution { reserved, answer } = execute(&group, &body);
        assert_eq!(reserved.map(|(_, it)| keys(&it)), Some(vec![8]));
        let applied = begin(|done| group.apply(done));
        applied.recv_timeout(Duration::from_secs(30)).expect("tasks were aborted");
        group.answer(id, Answer::Body(answer));
        assert_eq!(done(&mut there, preempts).status, GOOD);
        assert_eq!(done(&mut here, tag).status, crate::support::status::TASK_ABORTED);
        storage.open();
        assert_eq!(sense(&crate::groups::ready(&mut here)), [6, 0x2A, 0x05], "it is told");
        // What it has sent before is not executed, also if it comes now.
        assert_eq!(here.write(0, 0, vec![8; 512]), BUSY);
        drop((here, there, asks));
        assert!(owner.stop(Duration::ZERO).flushed);
        assert!(standby.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn a_record_is_taken_up_before_the_gate_opens() {
    on_each_driver(|driver| {
        let (server, address) = start(two_targets(memory(16), driver));
        let mut machine = Machine::standby();
        let group = group_of(&server, machine.gate());
        // Where another gateway was the owner.
        let (first, at_first, owner, _) = open_group(two_targets(memory(16), driver));
        let requests = requests_of(&owner);
        let mut there = Client::login(at_first, 1);
        let mut here = Client::login(address, 1);
        let mut reserved = None;
        for (action, keys) in [(REGISTER, (0, 7)), (RESERVE, (7, 0))] {
            let tag = reserve_out(&mut there, action, keys.0, keys.1);
            let (id, body) = change(&requests);
            let execution = execute(&owner, &body);
            wait(|done| owner.apply(done));
            reserved = execution.reserved;
            owner.answer(id, Answer::Body(execution.answer));
            assert_eq!(done(&mut there, tag).status, GOOD);
        }
        let (naa, reserved) = reserved.expect("it is reserved");
        let contents = contents(naa, reserved);
        let mut record = Record::new(TARGET, [7; 32], ports(), contents);
        let mut other = Client::login(address, 2);
        group.load(&record).expect("it makes sense");
        set_gate(&group, machine.takes_over());
        until("its ping is answered", || other.read(0, 0, 1).0 == GOOD);
        assert_eq!(other.write(0, 0, vec![1; 512]), CONFLICT);
        until("its ping is answered", || here.write(0, 0, vec![1; 512]) == GOOD);
        record.contents.volumes[0].sanitize = Sanitize::Sanitizing { restricted: true };
        group.load(&record).expect("it makes sense");
        assert_eq!(sense(&crate::groups::ready(&mut here)), [3, 0x31, 0x03]);
        drop((here, other, there));
        assert!(first.stop(Duration::ZERO).flushed);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}
