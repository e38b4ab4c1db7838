//! Reservation commands of a failover group: its owner decides, whatever gateway a host has come to.

use std::io::{ErrorKind, Read};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use lunet_front_nvme::{Execution, GroupRequest, volume_of};
use lunet_gateway::{AccessState, Answer, Contents, Record, Reserved, Sanitize};
use lunet_nvme::command::{
    Acquire, AcquireAction, Io, PersistOnPowerLoss, Range, Register, RegisterAction,
    ReservationType,
};
use lunet_nvme::host::{Data, Tag};
use lunet_nvme::pdu::U64;
use lunet_nvme::reservation::Report;
use lunet_nvme::status::Status;
use zerocopy::IntoBytes;

use crate::groups::{Group, owner, set_gate, standby, tell, two_subsystems, wait};
use crate::host::{Host, Queue, Settings, to_send};
use crate::machine::ports;
use crate::support::memory;

const CONFLICT: Status = Status::RESERVATION_CONFLICT.no_retry();
const TYPE: ReservationType = ReservationType::WriteExclusive;

/// Where a group's thread would get its requests.
fn requests_of(group: &Group) -> Receiver<GroupRequest> {
    let (sender, requests) = sync_channel(64);
    wait(|done| group.take_requests(move |request| sender.send(request).expect("room"), done));
    requests
}

fn next(requests: &Receiver<GroupRequest>) -> GroupRequest {
    requests.recv_timeout(Duration::from_secs(30)).expect("a request comes")
}

fn change(requests: &Receiver<GroupRequest>) -> (u64, Vec<u8>) {
    match next(requests) {
        GroupRequest::Reserve(id, body) => (id, body),
        other => panic!("{other:?}"),
    }
}

fn register(queue: &mut Queue, key: u64) -> Tag {
    let (action, persist) = (RegisterAction::Register, PersistOnPowerLoss::Unchanged);
    let io = Io::ReservationRegister { action, ignore_key: false, persist };
    let keys = Register { current: U64::new(0), new: U64::new(key) };
    queue.submit(io.encode(1), to_send(keys.as_bytes()))
}

fn acquire(queue: &mut Queue, action: AcquireAction, key: u64, other: u64) -> Tag {
    let keys = Acquire { current: U64::new(key), preempted: U64::new(other) };
    let io = Io::ReservationAcquire { action, kind: TYPE };
    queue.submit(io.encode(1), to_send(keys.as_bytes()))
}

fn write(queue: &mut Queue, byte: u8) -> Tag {
    let range = Range { lba: 0, blocks: 1 };
    queue.submit(Io::Write { range, fua: false }.encode(1), to_send(&[byte; 512]))
}

fn end(queue: &mut Queue, tag: Tag) -> Status {
    queue.wait(tag).completion.expect("an answer").status
}

fn execute(group: &Group, body: &[u8]) -> Execution {
    let (sender, done) = sync_channel(1);
    group.execute(body, move |execution| sender.send(execution).expect("somebody waits"));
    done.recv_timeout(Duration::from_secs(30)).expect("every shard answers")
}

/// What a group's thread does with a request, when the record is written as it should be.
fn carry_out(group: &Group, requests: &Receiver<GroupRequest>) -> Option<Reserved> {
    let (id, body) = change(requests);
    let Execution { reserved, answer } = execute(group, &body);
    wait(|done| group.apply(done));
    group.answer(id, Answer::Body(answer));
    reserved.map(|(_, reserved)| reserved)
}

fn keys(reserved: &Reserved) -> Vec<u64> {
    reserved.registrations.iter().map(|one| one.key).collect()
}

fn connect(address: std::net::SocketAddr, host: u8) -> Host {
    Host::new(address, Settings { host, ..Settings::default() }, 2)
}

#[test]
fn the_owner_decides_and_commands_wait_from_the_copy_to_the_effect() {
    let (_server, address, group, _) = owner(two_subsystems(memory(1, 8)));
    let requests = requests_of(&group);
    let mut hosts: Vec<Host> = (1..4).map(|number| connect(address, number)).collect();
    let tag = register(hosts[0].io(), 7);
    let registered = carry_out(&group, &requests).expect("it is a change");
    assert_eq!((keys(&registered), registered.kind), (vec![7], None));
    assert_eq!(registered.registrations[0].family, "host");
    assert_eq!(end(hosts[0].io(), tag), Status::SUCCESS);

    let tag = acquire(hosts[0].io(), AcquireAction::Acquire, 7, 0);
    let (id, body) = change(&requests);
    let Execution { reserved, answer } = execute(&group, &body);
    let (volume, reserved) = reserved.expect("it is a change");
    assert_eq!((Some(volume), reserved.holder), (volume_of(&body), Some(0)));
    // Others may see the new state in the record already: nobody is answered by the old one.
    let waiting: Vec<Tag> = hosts[1..].iter_mut().map(|host| write(host.io(), 9)).collect();
    let quiet = Some(Duration::from_millis(200));
    hosts[1].io().stream.set_read_timeout(quiet).expect("a socket");
    let early = hosts[1].io().stream.read(&mut [0; 24]).map_err(|error| error.kind());
    assert_eq!(early.err(), Some(ErrorKind::WouldBlock), "it was answered by the old state");
    let long = Some(Duration::from_secs(30));
    hosts[1].io().stream.set_read_timeout(long).expect("a socket");
    wait(|done| group.apply(done));
    group.answer(id, Answer::Body(answer));
    assert_eq!(end(hosts[0].io(), tag), Status::SUCCESS);
    for (host, tag) in hosts[1..].iter_mut().zip(waiting) {
        assert_eq!(end(host.io(), tag), CONFLICT);
    }
    assert!(hosts[0].queues[1].write(1, 0, &[1; 512]).is_success());
}

#[test]
fn what_is_given_up_changes_nothing_and_lets_commands_go_on() {
    let (_server, address, group, _) = owner(two_subsystems(memory(1, 8)));
    let requests = requests_of(&group);
    let (mut one, mut two) = (connect(address, 1), connect(address, 2));
    let tag = register(one.io(), 7);
    let (id, body) = change(&requests);
    assert!(execute(&group, &body).reserved.is_some());
    let waits = write(two.io(), 9);
    wait(|done| group.abandon(done));
    group.answer(id, Answer::Busy);
    assert_eq!(end(one.io(), tag), Status::ANA_TRANSITION, "it may try again");
    assert_eq!(end(two.io(), waits), Status::SUCCESS);
    // It is registered nowhere.
    let tag = acquire(one.io(), AcquireAction::Acquire, 7, 0);
    assert_eq!(carry_out(&group, &requests), None);
    assert_eq!(end(one.io(), tag), CONFLICT);
    assert!(two.io().write(1, 0, &[1; 512]).is_success());
}

#[test]
fn changes_go_by_the_gate_as_writes_do() {
    let (_standby, elsewhere, other, _) = standby(two_subsystems(memory(1, 8)));
    let refused = requests_of(&other);
    let mut there = connect(elsewhere, 2);
    let tag = register(there.io(), 8);
    assert_eq!(end(there.io(), tag), Status::ANA_INACCESSIBLE);
    assert!(refused.try_recv().is_err(), "the group's thread has nothing to do with it");

    let (_owner, address, group, mut machine) = owner(two_subsystems(memory(1, 8)));
    let requests = requests_of(&group);
    let (mut one, mut two) = (connect(address, 1), connect(address, 2));
    for (host, key) in [(&mut one, 7), (&mut two, 8)] {
        let tag = register(host.io(), key);
        carry_out(&group, &requests).expect("it is a change");
        assert_eq!(end(host.io(), tag), Status::SUCCESS);
    }
    let tag = acquire(one.io(), AcquireAction::Acquire, 7, 0);
    carry_out(&group, &requests);
    assert_eq!(end(one.io(), tag), Status::SUCCESS);
    // The group has been elsewhere: this may have been sent before.
    set_gate(&group, machine.is_deposed());
    set_gate(&group, machine.takes_over());
    let late = acquire(two.io(), AcquireAction::PreemptAndAbort, 8, 7);
    assert_eq!(end(two.io(), late), Status::ANA_TRANSITION);
    assert!(requests.try_recv().is_err(), "it was executed");
    // As many as the queue has entries show that the host has its answers.
    let mut flush = || two.io().plain(Io::Flush.encode(1)).status;
    let turned = (0..64).take_while(|_| flush() == Status::ANA_TRANSITION).count();
    assert!(turned < 64, "the queue stays one of an earlier epoch");
    let tag = acquire(two.io(), AcquireAction::PreemptAndAbort, 8, 7);
    let reserved = carry_out(&group, &requests).expect("it is a change");
    assert_eq!(keys(&reserved), [8]);
    assert_eq!(end(two.io(), tag), Status::SUCCESS);
}

/// What the record of a group with this volume says.
fn record(reserved: Reserved) -> Record {
    let volume = lunet_gateway::Volume {
        image: "rbd/a".into(),
        id: "1a".into(),
        bytes: 1 << 20,
        naa: [1; 16],
        serial: "1".into(),
        reserved,
        modes: Vec::new(),
        sanitize: Sanitize::None,
    };
    Record::new("x", [7; 32], ports(), Contents { volumes: vec![volume] })
}

#[test]
fn a_report_is_what_the_record_says_through_any_gateway() {
    let registered = |family: &str, name: Vec<u8>, key| lunet_gateway::Registered {
        family: family.into(),
        name,
        key,
    };
    let host = [&[5; 16][..], b"nqn.2026-11.org.lunet:host5"].concat();
    let reserved = Reserved {
        generation: 9,
        registrations: vec![
            registered("scsi", b"a nexus".to_vec(), 6),
            registered("host", host, 7),
        ],
        kind: Some(lunet_reservations::Kind::WriteExclusive),
        holder: Some(1),
    };
    let (_server, address, group, mut machine) = standby(two_subsystems(memory(1, 8)));
    let requests = requests_of(&group);
    let mut host = connect(address, 1);
    for serves in [false, true] {
        if serves {
            set_gate(&group, machine.takes_over());
            tell(&group, AccessState::Optimized, AccessState::Standby);
        }
        let io = Io::ReservationReport { len: 4096, extended: true };
        let tag = host.io().submit(io.encode(1), Data::Read(vec![0; 4096]));
        let GroupRequest::Report(id) = next(&requests) else { panic!("it is a report") };
        group.answer(id, Answer::Record(Box::new(record(reserved.clone()))));
        let ended = host.io().wait(tag);
        assert!(ended.completion.expect("an answer").status.is_success());
        let Data::Read(page) = ended.data else { panic!("a page") };
        let found = Report::decode(&page).expect("a report");
        assert_eq!((found.generation, found.kind, found.persist), (9, Some(TYPE), false));
        let who: Vec<_> =
            found.registrants.iter().map(|it| (it.host_id, it.key, it.holds)).collect();
        assert_eq!(who, [([0; 16], 6, false), ([5; 16], 7, true)]);
    }
    // A record that does not have the volume tells nothing of it.
    let io = Io::ReservationReport { len: 4096, extended: true };
    let tag = host.io().submit(io.encode(1), Data::Read(vec![0; 4096]));
    let GroupRequest::Report(id) = next(&requests) else { panic!("it is a report") };
    let none = Record { contents: Contents::default(), ..record(reserved) };
    group.answer(id, Answer::Record(Box::new(none)));
    assert_eq!(end(host.io(), tag), Status::ANA_TRANSITION);
}
