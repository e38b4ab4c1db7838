//! Failover groups: what a gate lets through, what hosts are told of paths, and that a gateway that is deposed says nothing.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use lunet_front_nvme::{Config, GroupError, GroupHandle, Hosts, Members, SubsystemEntry};
use lunet_gateway::{Access, AccessState, Gate, GatewayId};
use lunet_nvme::command::{ALL_NAMESPACES, Admin, Io, PersistOnPowerLoss, Range, RegisterAction};
use lunet_nvme::fabrics::ANY_CONTROLLER;
use lunet_nvme::feature::{EVENT_ANA, Event, Feature};
use lunet_nvme::host::{Data, Error, Tag};
use lunet_nvme::identify::Cns;
use lunet_nvme::log::{AnaState, LogPage, ana_groups};
use lunet_nvme::status::Status;
use lunet_volume::{Volume, VolumeId};

use crate::host::{Bytes, Host, Queue, Settings, pair, to_send};
use crate::machine::{Machine, ports};
use crate::record::Recording;
use crate::stall::{Gate as Stall, Stalling};
use crate::support::{SUBSYSTEM, Server, Shown, config, layout, memory, serve, shown, until};

const OTHER: &str = "nqn.2026-11.org.lunet:other";
const INACCESSIBLE: Status = Status::ANA_INACCESSIBLE;
const TRANSITION: Status = Status::ANA_TRANSITION;
/// The protocols whose registrants a record may have.
pub const FAMILIES: [&str; 2] = ["scsi", "host"];

pub type Group = GroupHandle<Shown>;

/// Namespace 1 of the subsystem that is to be a group, and namespace 1 of another one.
pub fn two_subsystems(grouped: Arc<Volume<Shown>>) -> Config<Shown> {
    let mut layout = layout(vec![grouped, memory(2, 8)]);
    layout.subsystems[0].namespaces = vec![(1, VolumeId::new(0))];
    layout.subsystems.push(SubsystemEntry {
        nqn: OTHER.into(),
        serial: "SN2".into(),
        model: "lunet".into(),
        namespaces: vec![(1, VolumeId::new(1))],
        hosts: Hosts::Any,
        portals: Vec::new(),
    });
    config(layout)
}

/// Gives an order to a group and waits until it is carried out.
pub fn wait(order: impl FnOnce(Box<dyn FnOnce() + Send + Sync>)) {
    let done = begin(order);
    done.recv_timeout(Duration::from_secs(30)).expect("every shard answers");
}

/// Gives an order to a group. Something comes when it is carried out.
pub fn begin(order: impl FnOnce(Box<dyn FnOnce() + Send + Sync>)) -> Receiver<()> {
    let (sender, done) = sync_channel(1);
    order(Box::new(move || sender.send(()).expect("somebody waits")));
    done
}

pub fn set_gate(group: &Group, gate: Gate) {
    wait(|done| group.set_gate(gate, done));
}

/// Gateway 1 has this state, gateway 2 that one.
pub fn tell(group: &Group, one: AccessState, two: AccessState) {
    let access = Access(vec![(1, one), (2, two)]);
    wait(|done| group.access(&ports(), &access, done));
}

/// The subsystem is a group from now on, whose record nobody has read.
pub fn unread_group(server: &Server, gateway: u16, gate: Gate) -> Group {
    let subsystems = vec![SUBSYSTEM.to_owned()];
    let members = Members { subsystems, gateway: GatewayId(gateway), families: &FAMILIES };
    let mut group = None;
    wait(|done| group = Some(GroupHandle::begin(&server.handle(), members, gate, done)));
    group.expect("it was begun").expect("the subsystem can be a group")
}

/// A server with a group that gateway 2 owns.
pub fn standby(config: Config<Shown>) -> (Server, SocketAddr, Group, Machine) {
    let (server, address) = serve(config);
    let machine = Machine::standby();
    let group = unread_group(&server, 1, machine.gate());
    tell(&group, AccessState::Standby, AccessState::Optimized);
    (server, address, group, machine)
}

/// A server with a group that it owns.
pub fn owner(config: Config<Shown>) -> (Server, SocketAddr, Group, Machine) {
    let (server, address, group, mut machine) = standby(config);
    takes_over(&group, &mut machine);
    (server, address, group, machine)
}

fn takes_over(group: &Group, machine: &mut Machine) {
    set_gate(group, machine.takes_over());
    tell(group, AccessState::Optimized, AccessState::Standby);
}

fn connect(address: SocketAddr, host: u8, queues: u16) -> Host {
    Host::new(address, Settings { host, ..Settings::default() }, queues)
}

fn beside(address: SocketAddr, host: u8) -> Host {
    let settings = Settings { host, subsystem: OTHER.into(), ..Settings::default() };
    Host::new(address, settings, 1)
}

/// Commands that read, write or change something, with their data.
fn executing() -> Vec<(Io, Data<Vec<u8>, Bytes>)> {
    let range = Range { lba: 0, blocks: 1 };
    let many = Range { lba: 0, blocks: 2048 };
    let (action, persist) = (RegisterAction::Register, PersistOnPowerLoss::Unchanged);
    vec![
        (Io::Read { range, fua: false }, Data::Read(vec![0; 512])),
        (Io::Verify { range, fua: false }, Data::None),
        (Io::Write { range, fua: false }, to_send(&[7; 512])),
        // More than a capsule has.
        (Io::Write { range: many, fua: true }, to_send(&vec![7; 1 << 20])),
        (Io::Compare { range }, to_send(&[0; 512])),
        (Io::WriteZeroes { range, fua: false, deallocate: true }, Data::None),
        (Io::Flush, Data::None),
        (Io::DatasetManagement { ranges: 1, deallocate: true }, to_send(&[0; 16])),
        (Io::Copy { lba: 8, ranges: 1, fua: false }, to_send(&[0; 32])),
        (Io::ReservationRegister { action, ignore_key: false, persist }, to_send(&[1; 16])),
    ]
}

/// Demands that all of them end with this, and so does each half of a pair, or because of the other.
fn all_end_with(queue: &mut Queue, status: Status) {
    for (io, data) in executing() {
        let tag = queue.submit(io.encode(1), data);
        assert_eq!(queue.wait(tag).completion.expect("an answer").status, status, "{io:?}");
    }
    assert_eq!(queue.plain(Io::Flush.encode(ALL_NAMESPACES)).status, status);
    let tags = queue.submit_all(pair(0, 0, 7));
    let ended: Vec<Status> = tags.into_iter().map(|tag| end(queue, tag)).collect();
    assert_eq!(ended, [status, Status::FAILED_FUSED]);
}

fn end(queue: &mut Queue, tag: Tag) -> Status {
    queue.wait(tag).completion.expect("an answer").status
}

/// The state of namespace 1, and the change count.
fn state(host: &mut Host) -> (AnaState, u64) {
    let page = host.admin.log(LogPage::Ana, 4096).expect("a page");
    let (changes, groups) = ana_groups(&page).expect("an ANA log");
    assert_eq!((groups.len(), groups[0].id, &groups[0].nsids[..]), (1, 1, &[1][..]));
    (groups[0].state, changes)
}

/// Writes until the queue is one of the present epoch; how often it was turned back.
fn insist(queue: &mut Queue, byte: u8) -> usize {
    for turned in 0..100 {
        match queue.write(1, 0, &[byte; 512]) {
            Status::SUCCESS => return turned,
            status => assert_eq!(status, TRANSITION),
        }
    }
    panic!("it is turned back for ever")
}

#[test]
fn nobody_connects_before_the_record_was_read() {
    let (server, address) = serve(two_subsystems(memory(1, 8)));
    let group = unread_group(&server, 1, Machine::standby().gate());
    let refused = Queue::connect(address, &Settings::default(), (0, ANY_CONTROLLER));
    // It may try again.
    assert!(matches!(refused, Err(Error::Refused(done)) if done.status == Status::CONNECT_BUSY));
    tell(&group, AccessState::Standby, AccessState::Optimized);
    connect(address, 1, 1);
    assert!(beside(address, 2).io().write(1, 0, &[1; 512]).is_success());
}

#[test]
fn a_group_is_of_subsystems_that_share_no_volume_with_others() {
    let mut config = two_subsystems(memory(1, 8));
    config.layout.subsystems[1].namespaces.push((2, VolumeId::new(0)));
    let (server, _) = serve(config);
    let begin = |name: &str| {
        let subsystems = vec![name.to_owned()];
        let members = Members { subsystems, gateway: GatewayId(1), families: &FAMILIES };
        GroupHandle::begin(&server.handle(), members, Machine::standby().gate(), || {})
    };
    assert!(matches!(begin("nqn.x"), Err(GroupError::Unknown(_))));
    let shared = begin(SUBSYSTEM).err();
    let (volume, subsystem) = ("v1".to_owned(), OTHER.to_owned());
    assert_eq!(shared, Some(GroupError::Shared { volume, subsystem }));
}

#[test]
fn a_closed_gate_is_an_inaccessible_path_and_executes_nothing() {
    let (backend, record) = Recording::over(memory(1, 8).backend.clone());
    let (server, address, group, mut machine) = standby(two_subsystems(shown(1, backend)));
    let mut host = connect(address, 1, 4);
    for queue in &mut host.queues {
        all_end_with(queue, INACCESSIBLE);
        assert_eq!(queue.io(Io::Flush, 9).code(), Status::INVALID_NAMESPACE);
    }
    assert_eq!(state(&mut host).0, AnaState::Inaccessible);
    assert!(host.admin.identify(Cns::Namespace, 1).is_ok(), "it tells of the namespace");
    // The heir of a move.
    tell(&group, AccessState::Transitioning, AccessState::Standby);
    assert_eq!(state(&mut host).0, AnaState::Change);
    all_end_with(host.io(), TRANSITION);
    assert!(record.lock().expect("no panic").is_empty(), "something was executed");
    takes_over(&group, &mut machine);
    assert_eq!(state(&mut host).0, AnaState::Optimized);
    for queue in &mut host.queues {
        insist(queue, 1);
        assert!(queue.write(1, 0, &[1; 512]).is_success());
    }
    drop(host);
    assert!(server.stop(Duration::from_secs(5)).flushed);
}

#[test]
fn hosts_are_told_of_other_states() {
    let (_server, address, group, mut machine) = standby(two_subsystems(memory(1, 8)));
    let mut hosts: Vec<Host> = (1..4).map(|number| connect(address, number, 1)).collect();
    let mut other = beside(address, 9);
    for host in hosts.iter_mut().chain([&mut other]) {
        assert!(host.admin.set_feature(Feature::Events, EVENT_ANA).status.is_success());
    }
    let silent = other.admin.listen();
    let before: Vec<u64> = hosts.iter_mut().map(|host| state(host).1).collect();
    let tags: Vec<Tag> = hosts.iter_mut().map(|host| host.admin.listen()).collect();
    takes_over(&group, &mut machine);
    for ((host, tag), before) in hosts.iter_mut().zip(tags).zip(before) {
        assert_eq!(host.admin.heard(tag), Some(Event::Ana));
        let (now, changes) = state(host);
        assert_eq!(now, AnaState::Optimized);
        assert!(changes > before);
    }
    // What is served beside has no other states: its request ends with its abort alone.
    let abort = Admin::Abort { sqid: 0, cid: silent.cid() }.encode(0);
    assert_eq!(other.admin.plain(abort).result & 1, 0, "it was told something");
    assert_eq!(end(&mut other.admin, silent), Status::ABORTED);
}

#[test]
fn what_a_queue_of_an_earlier_epoch_brings_is_turned_back_until_it_is_proved_to_be_new() {
    let (_server, address, group, mut machine) = owner(two_subsystems(memory(1, 8)));
    let mut host = connect(address, 1, 4);
    for queue in &mut host.queues {
        assert!(queue.write(1, 0, &[1; 512]).is_success());
    }
    set_gate(&group, machine.is_deposed());
    set_gate(&group, machine.takes_over());
    for queue in &mut host.queues {
        // As many as may be outstanding have all been sent before, as far as anybody can tell.
        let range = Range { lba: 0, blocks: 1 };
        let write = || (Io::Write { range, fua: false }.encode(1), to_send(&[9; 512]));
        let tags = queue.submit_all((0..31).map(|_| write()).collect());
        for tag in tags {
            assert_eq!(end(queue, tag), TRANSITION);
        }
        assert_ne!(queue.plain(Io::Flush.encode(1)).status, INACCESSIBLE);
        assert!(insist(queue, 3) <= 1, "the queue has 32 entries");
        assert!(queue.write(1, 0, &[4; 512]).is_success());
    }
    // One that connects now is new.
    let mut fresh = connect(address, 2, 1);
    assert!(fresh.io().write(1, 0, &[5; 512]).is_success());
}

/// A Flush with this identifier, in a PDU of its own.
fn flush(queue: &mut Queue, cid: u16) -> Status {
    let mut pdu = vec![4, 0, 72, 0, 72, 0, 0, 0];
    let mut entry = [0; 64];
    entry[1] = 0x40;
    entry[2..4].copy_from_slice(&cid.to_le_bytes());
    entry[4] = 1;
    pdu.extend_from_slice(&entry);
    queue.stream.write_all(&pdu).expect("the server takes it");
    let mut answer = [0; 24];
    queue.stream.read_exact(&mut answer).expect("the server answers");
    assert_eq!((answer[0], &answer[20..22]), (5, &cid.to_le_bytes()[..]));
    Status::from_bits(u16::from_le_bytes([answer[22], answer[23]]) >> 1)
}

#[test]
fn an_identifier_that_comes_again_or_one_command_more_than_there_are_entries_is_a_proof() {
    let (_server, address, group, mut machine) = owner(two_subsystems(memory(1, 8)));
    let settings = Settings { entries: 16, ..Settings::default() };
    let mut host = Host::new(address, settings, 2);
    set_gate(&group, machine.is_deposed());
    set_gate(&group, machine.takes_over());
    let [one, two] = &mut host.queues[..] else { panic!("two queues") };
    for cid in [100, 101, 102] {
        assert_eq!(flush(one, cid), TRANSITION);
    }
    assert_eq!(flush(one, 101), Status::SUCCESS);
    assert_eq!(flush(one, 900), Status::SUCCESS);
    for cid in 200..216 {
        assert_eq!(flush(two, cid), TRANSITION, "{cid}");
    }
    assert_eq!(flush(two, 216), Status::SUCCESS);
    // What was turned back in an earlier epoch proves nothing of a later one.
    set_gate(&group, machine.is_deposed());
    assert_eq!(flush(one, 300), INACCESSIBLE);
    set_gate(&group, machine.takes_over());
    assert_eq!(flush(one, 101), TRANSITION);
    assert_eq!(flush(one, 300), TRANSITION);
    assert_eq!(flush(one, 300), Status::SUCCESS);
}

#[test]
fn a_write_that_is_held_back_over_two_changes_of_the_owner_is_not_executed() {
    let (_server, address, group, mut machine) = owner(two_subsystems(memory(1, 8)));
    let mut host = connect(address, 1, 1);
    let (mut other, range) = (connect(address, 2, 1), Range { lba: 0, blocks: 1 });
    // Whether its header comes in time makes no difference.
    host.io().begin(Io::Write { range, fua: false }.encode(1), to_send(&[9; 512]));
    set_gate(&group, machine.is_deposed());
    set_gate(&group, machine.takes_over());
    insist(other.io(), 5);
    host.io().stream.write_all(&[9]).expect("the last byte");
    let mut answer = [0; 24];
    host.io().stream.read_exact(&mut answer).expect("the server answers");
    let status = Status::from_bits(u16::from_le_bytes([answer[22], answer[23]]) >> 1);
    assert_eq!(status, TRANSITION);
    assert_eq!(other.io().read(1, 0, 1), Ok(vec![5; 512]));
}

#[test]
fn commands_wait_at_a_blocked_gate_and_go_on_or_end_with_it() {
    let (_server, address, group, mut machine) = owner(two_subsystems(memory(1, 8)));
    let mut host = connect(address, 1, 3);
    let range = Range { lba: 0, blocks: 1 };
    let write = |byte| (Io::Write { range, fua: false }.encode(1), to_send(&[byte; 512]));
    set_gate(&group, machine.begins_move());
    let tags: Vec<Vec<Tag>> = host
        .queues
        .iter_mut()
        .map(|queue| queue.submit_all([write(7)].into_iter().chain(pair(8, 0, 8)).collect()))
        .collect();
    assert_eq!(state(&mut host).0, AnaState::Optimized, "nothing has been decided");
    // One is aborted meanwhile.
    let abort = Admin::Abort { sqid: 3, cid: tags[2][0].cid() }.encode(0);
    until("it is there, and aborted", || host.admin.plain(abort).result & 1 == 0);
    assert_eq!(end(&mut host.queues[2], tags[2][0]), Status::ABORTED);
    // The move does not come about.
    set_gate(&group, machine.stays());
    for (queue, tags) in host.queues.iter_mut().zip(&tags).take(2) {
        assert_eq!(end(queue, tags[0]), Status::SUCCESS);
    }
    assert_eq!(host.io().read(1, 0, 1), Ok(vec![7; 512]));
    // It comes about.
    set_gate(&group, machine.begins_move());
    let tags: Vec<Vec<Tag>> =
        host.queues.iter_mut().map(|queue| queue.submit_all(vec![write(9)])).collect();
    set_gate(&group, machine.is_deposed());
    tell(&group, AccessState::Standby, AccessState::Transitioning);
    for (queue, tags) in host.queues.iter_mut().zip(&tags) {
        assert_eq!(end(queue, tags[0]), INACCESSIBLE);
    }
    assert_eq!(state(&mut host).0, AnaState::Inaccessible);
}

fn stalling() -> (Arc<Volume<Shown>>, Arc<Stall>) {
    let stall = Arc::new(Stall::default());
    let inner = memory(1, 8).backend.clone();
    (shown(1, Arc::new(Stalling::new(inner, stall.clone()))), stall)
}

#[test]
fn what_was_begun_is_drained_and_what_waits_for_its_turn_ends() {
    let (volume, storage) = stalling();
    let (_server, address, group, mut machine) = owner(two_subsystems(volume));
    let mut host = connect(address, 1, 2);
    storage.close();
    let range = Range { lba: 0, blocks: 1 };
    let begun = host.io().submit(Io::Write { range, fua: false }.encode(1), to_send(&[7; 512]));
    until("the write is at the storage", || storage.held() == 1);
    // It waits for its range behind the write.
    let waits = host.queues[1].submit_all(pair(0, 0, 8));
    std::thread::sleep(Duration::from_millis(100));
    set_gate(&group, machine.begins_move());
    let drained = begin(|done| group.drain(done));
    assert!(drained.recv_timeout(Duration::from_millis(200)).is_err(), "a write is under way");
    storage.open();
    assert_eq!(end(host.io(), begun), Status::SUCCESS);
    drained.recv_timeout(Duration::from_secs(30)).expect("nothing is under way");
    set_gate(&group, machine.stays());
    let ended: Vec<Status> =
        waits.into_iter().map(|tag| end(&mut host.queues[1], tag).code()).collect();
    // It was ended, or it waited at the gate and found what had been written.
    let compared = [Status::COMPARE_FAILURE, Status::FAILED_FUSED];
    assert!(ended == [TRANSITION, TRANSITION] || ended == compared, "{ended:?}");
    assert_eq!(host.io().read(1, 0, 1), Ok(vec![7; 512]));
    // A drain that is overtaken by a gate that opens is not done.
    storage.close();
    let write = host.io().submit(Io::Write { range, fua: false }.encode(1), to_send(&[6; 512]));
    until("the write is at the storage", || storage.held() == 1);
    set_gate(&group, machine.begins_move());
    let drained = begin(|done| group.drain(done));
    set_gate(&group, machine.stays());
    storage.open();
    assert_eq!(end(host.io(), write), Status::SUCCESS);
    assert!(drained.recv_timeout(Duration::from_secs(1)).is_err(), "it was given up");
}

/// Reads until the connection ends: how, and whether something came before.
fn ends_by(queue: &mut Queue) -> (Option<ErrorKind>, usize) {
    let (mut bytes, mut came) = ([0; 4096], 0);
    loop {
        match queue.stream.read(&mut bytes) {
            Ok(0) => return (None, came),
            Ok(n) => came += n,
            Err(error) => return (Some(error.kind()), came),
        }
    }
}

#[test]
fn who_stops_answering_says_nothing_more_and_resets_its_connections() {
    let (volume, storage) = stalling();
    let (_server, address, group, mut machine) = owner(two_subsystems(volume));
    let mut other = beside(address, 9);
    let mut hosts: Vec<Host> = (1..4).map(|number| connect(address, number, 2)).collect();
    storage.close();
    for (n, host) in hosts.iter_mut().enumerate() {
        for (k, queue) in host.queues.iter_mut().enumerate() {
            let range = Range { lba: 64 * (2 * n + k) as u64, blocks: 8 };
            let sqe = Io::Write { range, fua: false }.encode(1);
            queue.submit(sqe, to_send(&[5; 4096]));
        }
    }
    until("all are at the storage", || storage.held() == 6);
    let gate = machine.is_deposed();
    wait(|done| group.stop_answering(gate, done));
    wait(|done| group.abort_connections(done));
    storage.open();
    until("the storage has let go of all", || storage.held() == 0);
    for host in &mut hosts {
        for queue in host.queues.iter_mut().chain([&mut host.admin]) {
            assert_eq!(ends_by(queue), (Some(ErrorKind::ConnectionReset), 0));
        }
    }
    assert!(other.io().write(1, 0, &[1; 512]).is_success(), "the other subsystem goes on");
    // A new connection is one of a standby.
    tell(&group, AccessState::Standby, AccessState::Optimized);
    assert_eq!(connect(address, 1, 1).io().write(1, 0, &[1; 512]), INACCESSIBLE);
}

#[test]
fn gateways_share_no_controller_identifier() {
    let (server, address) = serve(two_subsystems(memory(1, 8)));
    let group = unread_group(&server, 2, Machine::standby().gate());
    tell(&group, AccessState::Optimized, AccessState::Standby);
    let part = lunet_nvme::fabrics::MAX_CNTLID / 64;
    let mut all: Vec<u16> = (1..6).map(|n| connect(address, n, 0).admin.cntlid).collect();
    assert!(all.iter().all(|id| (part + 1..=2 * part).contains(id)), "{all:?}");
    all.push(connect(address, 7, 0).admin.cntlid);
    all.sort_unstable();
    all.dedup();
    // One that has ended has its own for as long as can be.
    assert_eq!(all.len(), 6);
}
