//! Failover groups: what a gate lets through, and that a gateway that is deposed says nothing.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use lunet_backends::Volume;
use lunet_front_iscsi::{Config, GroupError, GroupHandle, Server, TargetEntry};
use lunet_gateway::{Access, Attention, Gate};
use lunet_iscsi::initiator::{Completion, Data, Outcome, Tag, Unsolicited};
use lunet_ring::DriverChoice;
use lunet_scsi::alua::Alua;

use crate::support::client::{Client, command, rw16};
use crate::support::copy::{cscd_of, lid1, segment, send};
use crate::support::gateway::{Machine, ports};
use crate::support::record::Recording;
use crate::support::status::{BUSY, CHECK_CONDITION, GOOD};
use crate::support::{TARGET, config, memory, on_each_driver, stalling, start, until};

const OTHER: &str = "iqn.2026-11.local.lunet:other";
/// Key, code and qualifier.
const STANDBY: [u8; 3] = [2, 0x04, 0x0B];
const TEST_UNIT_READY: [u8; 6] = [0; 6];
const RTPG: [u8; 12] = [0xA3, 0x0A, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0];

/// LUN 0 of the target that is to be a group, and LUN 0 of another one.
pub fn two_targets(grouped: Volume, driver: DriverChoice) -> Config {
    let mut config = config(vec![grouped, memory(16)], driver);
    config.layout.volumes[0].unit.alua = Alua::Implicit;
    let target = |name: &str, volume| TargetEntry {
        name: name.into(),
        luns: vec![(0, volume)],
        ..TargetEntry::default()
    };
    config.layout.targets = vec![target(TARGET, 0), target(OTHER, 1)];
    config
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

pub fn set_gate(group: &GroupHandle, gate: Gate) {
    wait(|done| group.set_gate(gate, done));
}

pub fn group_of(server: &Server, gate: Gate) -> GroupHandle {
    let mut group = None;
    wait(|done| group = Some(GroupHandle::begin(&server.handle(), &[TARGET], gate, done)));
    group.expect("it was begun").expect("the target can be a group")
}

/// A server with a group whose gate is open, and its machine.
pub fn open_group(config: Config) -> (Server, SocketAddr, GroupHandle, Machine) {
    let (server, address) = start(config);
    let mut machine = Machine::standby();
    let group = group_of(&server, machine.gate());
    set_gate(&group, machine.takes_over());
    (server, address, group, machine)
}

fn other(address: SocketAddr, number: u8) -> Client {
    Client::login_with(address, number, |options| options.target_name = Some(OTHER.into()))
}

pub fn sense(done: &Completion) -> [u8; 3] {
    assert_eq!(done.status, CHECK_CONDITION);
    [done.sense[2] & 0x0F, done.sense[12], done.sense[13]]
}

pub fn ready(client: &mut Client) -> Completion {
    client.finish(0, &TEST_UNIT_READY, Data::None)
}

pub fn done(client: &mut Client, tag: Tag) -> Completion {
    match client.outcome(tag).outcome {
        Outcome::Completed(done) => done,
        other => panic!("not answered: {other:?}"),
    }
}

pub fn read_from(client: &mut Client, cdb: &[u8]) -> (u8, Vec<u8>) {
    let tag = client.start(0, cdb, Data::Read(vec![0; 255]));
    let finished = client.outcome(tag);
    match (finished.outcome, finished.data) {
        (Outcome::Completed(done), Data::Read(data)) => (done.status, data),
        other => panic!("not answered: {other:?}"),
    }
}

/// INQUIRY, VPD page 83h, REPORT LUNS, REPORT TARGET PORT GROUPS, READ CAPACITY, MODE SENSE: what any gateway answers.
fn tells_of_itself(client: &mut Client) {
    const ABOUT: [&[u8]; 6] = [
        &[0x12, 0, 0, 0, 255, 0],
        &[0x12, 1, 0x83, 0, 255, 0],
        &[0xA0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0],
        &RTPG,
        &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0x1A, 0, 0x3F, 0, 255, 0],
    ];
    for cdb in ABOUT {
        assert_eq!(read_from(client, cdb).0, GOOD, "{:#x}", cdb[0]);
    }
}

/// A command block, and what it brings.
type Asks = (Vec<u8>, Data<Vec<u8>, Vec<u8>>);

/// Commands that read, write or change something.
fn executing() -> Vec<Asks> {
    // Switches the software write protection on.
    let select = vec![0, 0, 0, 0, 0x0A, 0x0A, 0x02, 0, 0x08, 0, 0, 0, 0, 0, 0, 0];
    vec![
        (TEST_UNIT_READY.to_vec(), Data::None),
        (rw16(0x88, 0, 1).to_vec(), Data::Read(vec![0; 512])),
        (rw16(0x8A, 0, 1).to_vec(), Data::Write(vec![7; 512])),
        // More than may come unsolicited.
        (rw16(0x8A, 0, 2048).to_vec(), Data::Write(vec![7; 1 << 20])),
        (vec![0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], Data::None),
        (vec![0x48, 0x02, 0, 0, 0, 0, 0, 0, 0, 0], Data::None),
        (vec![0x15, 0x10, 0, 0, 16, 0], Data::Write(select)),
        // RESERVE, READ KEYS, REGISTER.
        (vec![0x16, 0, 0, 0, 0, 0], Data::None),
        (vec![0x5E, 0, 0, 0, 0, 0, 0, 0, 255, 0], Data::Read(vec![0; 255])),
        (vec![0x5F, 0, 0, 0, 0, 0, 0, 0, 24, 0], Data::Write(vec![1; 24])),
    ]
}

#[test]
fn a_closed_gate_is_a_port_in_standby_and_executes_nothing() {
    on_each_driver(|driver| {
        let (volume, record) = Recording::over(memory(16));
        let (server, address) = start(two_targets(volume, driver));
        let before = Client::login(address, 1);
        let mut machine = Machine::standby();
        let group = group_of(&server, machine.gate());
        // Logged in before there was a group, and behind a closed gate, on several shards.
        let mut clients = vec![before];
        clients.extend((2..5).map(|n| Client::login(address, n)));
        for client in &mut clients {
            for (cdb, data) in executing() {
                assert_eq!(sense(&client.finish(0, &cdb, data)), STANDBY, "{:#x}", cdb[0]);
            }
            tells_of_itself(client);
            assert_eq!(sense(&client.finish(9, &TEST_UNIT_READY, Data::None)), [5, 0x25, 0]);
        }
        assert!(record.lock().expect("no panic").is_empty(), "something was executed");
        set_gate(&group, machine.takes_over());
        for client in &mut clients {
            until("its ping is answered", || ready(client).status == GOOD);
            assert!(client.read(0, 0, 1) == (GOOD, vec![0; 512]), "something was written");
        }
        clients.iter_mut().for_each(|client| client.works(0));
        drop(clients);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn a_blocked_gate_is_busy_and_executes_nothing() {
    on_each_driver(|driver| {
        let (volume, record) = Recording::over(memory(16));
        let (server, address, group, mut machine) = open_group(two_targets(volume, driver));
        let mut clients: Vec<Client> = (1..5).map(|n| Client::login(address, n)).collect();
        set_gate(&group, machine.begins_move());
        for client in &mut clients {
            for (cdb, data) in executing() {
                assert_eq!(client.finish(0, &cdb, data).status, BUSY, "{:#x}", cdb[0]);
            }
            tells_of_itself(client);
        }
        assert!(record.lock().expect("no panic").is_empty(), "something was executed");
        // The move does not come about: there is nothing to be pinged for.
        set_gate(&group, machine.stays());
        clients.iter_mut().for_each(|client| client.works(0));
        drop(clients);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn what_was_sent_before_the_answer_to_a_ping_is_busy() {
    on_each_driver(|driver| {
        let (server, address, group, mut machine) = open_group(two_targets(memory(16), driver));
        let mut clients: Vec<Client> = (1..5).map(|n| Client::login(address, n)).collect();
        clients.iter_mut().for_each(|client| client.works(0));
        set_gate(&group, machine.is_deposed());
        set_gate(&group, machine.takes_over());
        for client in &mut clients {
            // Each is sent before the ping is received, and so before the answer.
            let early: Vec<Tag> = (0..8)
                .map(|_| client.start(0, &rw16(0x8A, 0, 1), Data::Write(vec![9; 512])))
                .collect();
            for tag in early {
                assert_eq!(done(client, tag).status, BUSY);
            }
            // That is behind the answer.
            assert_eq!(client.write(0, 8, vec![3; 512]), GOOD);
            assert_ne!(client.read(0, 0, 1).1, vec![9; 512], "one of them was executed");
        }
        drop(clients);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn a_command_whose_header_came_in_an_earlier_epoch_is_not_executed() {
    on_each_driver(|driver| {
        let (server, address, group, mut machine) = open_group(two_targets(memory(16), driver));
        let mut client = Client::login_with(address, 1, |options| {
            (options.unsolicited, options.initial_r2t) = (Unsolicited::SeparateOnly, false);
        });
        // Its data comes behind the command, in PDUs of their own that nobody asks for.
        let cdb = rw16(0x8A, 0, 64);
        let (tag, bytes) = client.compose(|proto, out| {
            let write = command(0, &cdb, Data::Write(vec![9; 64 * 512]));
            proto.submit(write, out).expect("the window is open")
        });
        assert_eq!((bytes[1] & 0x80, &bytes[5..8]), (0, &[0, 0, 0][..]), "its data follows");
        let before = server.handle().stats().protocol.pdus;
        client.send_raw(&bytes[..48]);
        until("the header is there", || server.handle().stats().protocol.pdus > before);
        set_gate(&group, machine.is_deposed());
        set_gate(&group, machine.takes_over());
        client.receive_once();
        until("the ping is answered", || server.handle().stats().protocol.pdus > before + 1);
        client.send_raw(&bytes[48..]);
        assert_eq!(done(&mut client, tag).status, BUSY);
        assert_eq!(client.read(0, 0, 1), (GOOD, vec![0; 512]), "it was executed");
        assert_eq!(client.write(0, 0, vec![4; 512]), GOOD);
        drop(client);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

/// COMPARE AND WRITE of a block of zeroes, which waits for its range behind a write.
fn compare_and_write(client: &mut Client) -> Tag {
    let mut cdb = rw16(0x89, 0, 0);
    cdb[13] = 1;
    client.start(0, &cdb, Data::Write([vec![0; 512], vec![8; 512]].concat()))
}

#[test]
fn what_waits_for_its_turn_ends_when_the_gate_blocks_and_what_was_begun_is_drained() {
    on_each_driver(|driver| {
        let (volume, storage) = stalling(16);
        let config = Config { shards: Some(2), ..two_targets(volume, driver) };
        let (server, address, group, mut machine) = open_group(config);
        let mut clients: Vec<Client> = (1..3).map(|n| Client::login(address, n)).collect();
        clients.push(Client::login_with(address, 3, |options| {
            options.unsolicited = Unsolicited::Nothing;
        }));
        storage.close();
        let begun = clients[0].start(0, &rw16(0x8A, 0, 1), Data::Write(vec![7; 512]));
        until("the write is at the storage", || storage.held() == 1);
        let waits = compare_and_write(&mut clients[1]);
        // It waits for the data of which nothing was sent.
        let cdb = rw16(0x8A, 64, 4096);
        let asks = clients[2].start(0, &cdb, Data::Write(vec![6; 2 << 20]));
        let sent = |number: usize| server.handle().sessions()[number].commands_in_flight;
        until("they are there", || (0..3).map(sent).sum::<usize>() == 3);
        set_gate(&group, machine.begins_move());
        let drained = begin(|done| group.drain(done));
        assert_eq!(done(&mut clients[1], waits).status, BUSY);
        assert_eq!(done(&mut clients[2], asks).status, BUSY);
        assert!(drained.recv_timeout(Duration::from_millis(200)).is_err(), "a write is under way");
        storage.open();
        assert_eq!(done(&mut clients[0], begun).status, GOOD);
        drained.recv_timeout(Duration::from_secs(30)).expect("nothing is under way");
        set_gate(&group, machine.stays());
        assert_eq!(clients[0].read(0, 0, 1), (GOOD, vec![7; 512]), "the comparison was executed");
        drop(clients);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

/// SANITIZE, OVERWRITE with IMMED: nobody waits for it.
fn begin_sanitize(client: &mut Client) {
    let begun =
        client.finish(0, &[0x48, 0x81, 0, 0, 0, 0, 0, 0, 5, 0], Data::Write(vec![1, 0, 0, 1, 7]));
    assert_eq!(begun.status, GOOD);
}

#[test]
fn a_drain_waits_for_sanitize_and_ends_with_a_gate_that_opens() {
    on_each_driver(|driver| {
        let (volume, storage) = stalling(16);
        let (server, address, group, mut machine) = open_group(two_targets(volume, driver));
        let mut client = Client::login(address, 1);
        storage.close();
        begin_sanitize(&mut client);
        until("it works on the blocks", || storage.held() > 0);
        set_gate(&group, machine.begins_move());
        let drained = begin(|done| group.drain(done));
        assert!(drained.recv_timeout(Duration::from_millis(200)).is_err(), "SANITIZE is under way");
        storage.open();
        drained.recv_timeout(Duration::from_secs(30)).expect("nothing is under way");
        set_gate(&group, machine.stays());
        assert_eq!(ready(&mut client).status, GOOD);
        // A drain that is overtaken by a gate that opens is not done.
        storage.close();
        let write = client.start(0, &rw16(0x8A, 0, 1), Data::Write(vec![7; 512]));
        until("the write is at the storage", || storage.held() == 1);
        set_gate(&group, machine.begins_move());
        let drained = begin(|done| group.drain(done));
        set_gate(&group, machine.stays());
        storage.open();
        assert_eq!(done(&mut client, write).status, GOOD);
        assert!(drained.recv_timeout(Duration::from_secs(1)).is_err(), "it was given up");
        drop(client);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn who_stops_answering_says_nothing_more_and_resets_its_connections() {
    on_each_driver(|driver| {
        let (volume, storage) = stalling(64);
        let (server, address, group, mut machine) = open_group(two_targets(volume, driver));
        let mut beside = other(address, 50);
        let mut clients: Vec<Client> = (1..9).map(|n| Client::login(address, n)).collect();
        storage.close();
        let mut tags = Vec::new();
        for (n, client) in clients.iter_mut().enumerate() {
            let at = |k: usize| 128 * (n * 16 + k) as u64;
            let writes =
                (0..8).map(|k| client.start(0, &rw16(0x8A, at(k), 8), Data::Write(vec![5; 4096])));
            tags.push(writes.collect::<Vec<Tag>>());
        }
        until("all are at the storage", || storage.held() == 64);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Load on the other target, and on the shards.
            let load = scope.spawn(|| {
                let until = Instant::now() + Duration::from_secs(60);
                while !stop.load(Ordering::SeqCst) && Instant::now() < until {
                    assert_eq!(beside.write(0, 0, vec![1; 4096]), GOOD);
                }
            });
            let gate = machine.is_deposed();
            wait(|done| group.stop_answering(gate, done));
            wait(|done| group.abort_connections(done));
            storage.open();
            until("the storage has let go of all", || storage.held() == 0);
            for (client, tags) in clients.iter_mut().zip(&tags) {
                assert_eq!(client.ends_by(), Some(ErrorKind::ConnectionReset));
                assert!(!tags.iter().any(|tag| client.has_answer(*tag)), "one was answered");
            }
            stop.store(true, Ordering::SeqCst);
            load.join().expect("the other target goes on");
        });
        // A new connection is one of a standby.
        assert_eq!(sense(&ready(&mut Client::login(address, 1))), STANDBY);
        drop((clients, beside));
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn answers_that_wait_to_be_taken_are_thrown_away() {
    on_each_driver(|driver| {
        let (server, address, group, mut machine) = open_group(two_targets(memory(64), driver));
        let mut client = Client::login(address, 1);
        client.narrow(4 << 10);
        let tags: Vec<Tag> = (0..16)
            .map(|_| client.start(0, &rw16(0x88, 0, 8192), Data::Read(vec![0; 4 << 20])))
            .collect();
        client.wait_for_bytes();
        let gate = machine.is_deposed();
        wait(|done| group.stop_answering(gate, done));
        assert_eq!(client.ends_by(), Some(ErrorKind::ConnectionReset));
        assert!(!client.has_answer(tags[15]), "64 MiB came out of nowhere");
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn sanitize_that_is_cut_off_has_failed_and_writes_no_more() {
    on_each_driver(|driver| {
        let (volume, storage) = stalling(64);
        let (server, address, group, mut machine) = open_group(two_targets(volume, driver));
        let mut client = Client::login(address, 1);
        storage.close();
        begin_sanitize(&mut client);
        until("it works on the blocks", || storage.held() > 0);
        let gate = machine.is_deposed();
        wait(|done| group.stop_answering(gate, done));
        storage.open();
        until("the storage has let go of it", || storage.held() == 0);
        set_gate(&group, machine.takes_over());
        let mut client = Client::login(address, 1);
        assert_eq!(sense(&ready(&mut client)), [3, 0x31, 0x03], "SANITIZE COMMAND FAILED");
        drop(client);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn targets_beside_a_group_hear_nothing_of_it() {
    on_each_driver(|driver| {
        let (server, address) = start(two_targets(memory(16), driver));
        let mut clients: Vec<Client> = (50..54).map(|n| other(address, n)).collect();
        let report = read_from(&mut clients[0], &RTPG);
        let mut machine = Machine::standby();
        let group = group_of(&server, machine.gate());
        let states = Access(vec![(1, lunet_gateway::AccessState::Standby)]);
        let mut steps: Vec<Box<dyn FnMut() + '_>> = vec![
            Box::new(|| wait(|done| group.access(&ports(), &states, done))),
            Box::new(|| group.attention(Attention::AccessChanged)),
            Box::new(|| group.attention(Attention::NexusLoss)),
            Box::new(|| set_gate(&group, machine.takes_over())),
            Box::new(|| wait(|done| group.drain(done))),
            Box::new(|| wait(|done| group.abort_connections(done))),
        ];
        for step in &mut steps {
            step();
            clients.iter_mut().for_each(|client| client.works(0));
        }
        drop(steps);
        let gate = machine.is_deposed();
        wait(|done| group.stop_answering(gate, done));
        clients.iter_mut().for_each(|client| client.works(0));
        assert_eq!(read_from(&mut clients[0], &RTPG), report);
        drop(clients);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn each_nexus_is_told_once() {
    on_each_driver(|driver| {
        let (server, address, group, _) = open_group(two_targets(memory(16), driver));
        let mut clients: Vec<Client> = (1..7).map(|n| Client::login(address, n)).collect();
        let attentions = [
            (Attention::AccessChanged, [6, 0x2A, 0x06]),
            (Attention::ReservationsChanged, [6, 0x2A, 0x03]),
            (Attention::NexusLoss, [6, 0x29, 0x07]),
        ];
        for (attention, code) in attentions {
            group.attention(attention);
            for client in &mut clients {
                assert_eq!(sense(&ready(client)), code);
                assert_eq!(ready(client).status, GOOD, "it was told twice");
            }
        }
        // Also through a port in standby.
        group.attention(Attention::AccessChanged);
        set_gate(&group, Machine::standby().gate());
        for client in &mut clients {
            assert_eq!(sense(&ready(client)), [6, 0x2A, 0x06]);
            assert_eq!(sense(&ready(client)), STANDBY);
        }
        drop(clients);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

/// Relative target port identifier and target port group of page 83h.
fn port_of(client: &mut Client) -> (u8, u8) {
    let (_, page) = read_from(client, &[0x12, 1, 0x83, 0, 255, 0]);
    let end = 4 + usize::from(u16::from_be_bytes([page[2], page[3]]));
    let (mut at, mut found) = (4, (0, 0));
    while at < end {
        let (kind, len) = (page[at + 1] & 0x3F, usize::from(page[at + 3]));
        match kind {
            0x14 => found.0 = page[at + 7],
            0x15 => found.1 = page[at + 7],
            _ => {}
        }
        at += 4 + len;
    }
    found
}

#[test]
fn every_gateway_reports_the_same_ports_and_states() {
    on_each_driver(|driver| {
        let gateway = |tag| {
            let mut config = two_targets(memory(16), driver);
            config.portals[0].tag = tag;
            let (server, address) = start(config);
            let group = group_of(&server, Machine::standby().gate());
            (server, address, group)
        };
        let both = [gateway(1), gateway(2)];
        use lunet_gateway::AccessState::{Optimized, Standby, Transitioning};
        for (states, bytes) in [([Standby, Optimized], [2, 0]), ([Transitioning, Standby], [15, 2])]
        {
            let mut reports = Vec::new();
            for (n, (_, address, group)) in both.iter().enumerate() {
                let mut order = ports();
                // The record's order is not what counts.
                order.rotate_left(n);
                let states = Access(vec![(1, states[0]), (2, states[1])]);
                // Of a session that is there, and of one that comes later.
                let mut early = Client::login(*address, 1);
                wait(|done| group.access(&order, &states, done));
                let mut late = Client::login(*address, 2);
                for client in [&mut early, &mut late] {
                    let own = n as u8 + 1;
                    assert_eq!(port_of(client), (40 + own, own));
                    reports.push(read_from(client, &RTPG));
                }
                // Initiators change nothing.
                let set = [0xA4, 0x0A, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0];
                let list = vec![0, 0, 0, 0, 0, 0, 0, 1];
                let refused = early.finish(0, &set, Data::Write(list));
                assert_eq!(refused.status, CHECK_CONDITION);
            }
            let expected = [
                &[0, 0, 0, 24][..],
                &[bytes[0], 0x87, 0, 1, 0, 2, 0, 1, 0, 0, 0, 41],
                &[bytes[1], 0x87, 0, 2, 0, 2, 0, 1, 0, 0, 0, 42],
            ]
            .concat();
            for (status, report) in reports {
                assert_eq!((status, &report[..28]), (GOOD, &expected[..]));
            }
        }
        for (server, ..) in both {
            assert!(server.stop(Duration::ZERO).flushed);
        }
    });
}

#[test]
fn no_copy_reaches_into_a_group() {
    on_each_driver(|driver| {
        let (server, address, group, mut machine) = open_group(two_targets(memory(16), driver));
        let mut member = Client::login(address, 1);
        let mut stranger = other(address, 50);
        assert_eq!(stranger.write(0, 0, vec![7; 512]), GOOD);
        let named = [cscd_of(&mut stranger, 0), cscd_of(&mut member, 0)];
        set_gate(&group, machine.begins_move());
        // From the volume beside to that of the group, whose gate is blocked.
        let list = lid1(1, 0, &named, &[segment(0, 1, 1, 0, 0)]);
        let refused = send(&mut stranger, 0, 0, 0, list);
        assert_eq!(refused.status, CHECK_CONDITION);
        set_gate(&group, machine.stays());
        assert_eq!(member.read(0, 0, 1), (GOOD, vec![0; 512]), "it was copied");
        drop((member, stranger));
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn what_cannot_be_a_group_is_refused() {
    let gate = Machine::standby().gate();
    let refusal = |config: Config, targets: &[&str]| {
        let (server, _) = start(config);
        let begun = GroupHandle::begin(&server.handle(), targets, gate, || {});
        assert!(server.stop(Duration::ZERO).flushed);
        begun.err()
    };
    let config = || two_targets(memory(16), DriverChoice::Auto);
    assert_eq!(refusal(config(), &[TARGET]), None);
    let unknown = Some(GroupError::Unknown("iqn.x".into()));
    assert_eq!(refusal(config(), &[TARGET, "iqn.x"]), unknown);
    let explicit = Some(GroupError::NotImplicit("v1".into()));
    assert_eq!(refusal(config(), &[TARGET, OTHER]), explicit);
    let mut shared = config();
    shared.layout.targets[1].luns.push((1, 0));
    let (volume, target) = ("v0".into(), OTHER.into());
    assert_eq!(refusal(shared, &[TARGET]), Some(GroupError::Shared { volume, target }));
}
