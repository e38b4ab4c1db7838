//! Standbys pass commands on to the owner: who may, in which order, and what becomes of them.

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lunet_front_nvme::{
    Answered, Concatenation, Config, EXCHANGE, HASH, Host as Listed, Hosts, News, RelayFor,
    RelayNews, RelayRequest, Relayed, Relays, names, secrets,
};
use lunet_gateway::{AccessState, ClientName, Contents, GatewayId, Owner, Portals, Record};
use lunet_nvme::Through;
use lunet_nvme::auth::chap::{Credentials, Initiator};
use lunet_nvme::command::{
    ALL_NAMESPACES, AcquireAction, Completion, Io, PersistOnPowerLoss, Range, RegisterAction,
    ReservationType,
};
use lunet_nvme::fabrics::Property;
use lunet_nvme::feature::{EVENT_ANA, Event, Feature};
use lunet_nvme::host::{Error, Options, Tag};
use lunet_nvme::identify::Cns;
use lunet_nvme::log::{AnaState, LogPage, ana_groups};
use lunet_nvme::status::Status;
use lunet_ring::DriverChoice;

use crate::groups::{Group, owner, set_gate, standby, tell, two_subsystems, wait};
use crate::host::{ENABLE, Host, Queue, Settings, nqn, pair, to_send};
use crate::machine::{Machine, ports};
use crate::support::{SUBSYSTEM, Shown, memory, until};

const SECRET: [u8; 32] = [7; 32];
const SOON: Duration = Duration::from_secs(10);
const TRANSITION: Status = Status::ANA_TRANSITION;
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Runs a test on each driver that this machine has.
fn on_each_driver(test: impl Fn(Config<Shown>)) {
    for driver in [DriverChoice::Auto, DriverChoice::Epoll] {
        test(Config { driver, ..two_subsystems(memory(1, 8)) });
    }
}

/// Has a group pass commands on, which come out there. The flag says that the owner is not reached.
pub fn relays(group: &Group) -> (Receiver<RelayRequest>, Arc<AtomicBool>) {
    let (sender, requests) = channel();
    let sender = Mutex::new(sender);
    let takes = Arc::new(move |request| {
        // A test that has ended takes no more.
        let _ = sender.lock().expect("nobody has failed").send(request);
    });
    let down = Arc::new(AtomicBool::new(false));
    let relays = Relays { secret: SECRET, takes, down: down.clone(), load: Arc::default() };
    wait(|done| group.relay(relays, done));
    (requests, down)
}

/// A standby of a group whose owner, gateway 2, can be reached.
fn beside_an_owner() -> Machine {
    let mut record = Record::new(SUBSYSTEM, SECRET, ports(), Contents::default());
    record.epoch = record.epoch.next();
    record.owner = Some(Owner {
        gateway: GatewayId(2),
        client: ClientName { address: "192.0.2.8:0/1".into(), lock: "client.1".into() },
        portals: Portals { iscsi: None, nvme: Some(([192, 0, 2, 8], 4420).into()) },
    });
    let machine = Machine::of(record);
    assert!(machine.gate().of_nvme().is_through() && !machine.gate().of_iscsi().is_through());
    machine
}

/// What a gateway says, in that epoch.
pub fn through(gateway: u16, epoch: u64) -> Through {
    Through { gateway, epoch, host: HERE, renews: false }
}

/// Connects as a gateway for a host, with this secret, if any.
fn open(
    address: SocketAddr,
    host: u8,
    (through, claimed): (Through, Through),
    secret: Option<[u8; 32]>,
) -> Result<Queue, Error> {
    let whose = RelayFor { nqn: nqn(host), id: [host; 16], host: HERE };
    let connect = whose.connect(through, SUBSYSTEM);
    let proof = secret.and_then(|secret| {
        let [host, owner] = secrets(&secret, &claimed, &connect)?;
        let credentials = Credentials {
            names: names(&connect),
            host,
            controller: Some(owner),
            hashes: vec![HASH],
            groups: vec![EXCHANGE],
            concatenation: false,
        };
        let mut random = |bytes: &mut [u8]| lunet_os::random::fill(bytes).is_ok();
        Initiator::new(credentials, 1, 1, &mut random)
    });
    let options = Options {
        connect,
        alignment: 0,
        header_digest: false,
        data_digest: false,
        max_r2t: 4,
        capsule_data: 16 << 10,
        connect_timeout: SOON,
    };
    Queue::open(address, options, proof)
}

/// A relay that the owner lets in.
pub fn relay(address: SocketAddr, host: u8, through: Through) -> Queue {
    open(address, host, (through, through), Some(SECRET)).expect("the proof")
}

#[test]
fn a_gateway_connects_with_the_secret_for_the_epoch_of_the_owner() {
    on_each_driver(|mut config| {
        config.layout.subsystems[0].hosts = Hosts::Listed(vec![listed(1)]);
        let (server, address, group, mut machine) = owner(config);
        let epoch = machine.gate().epoch().0;
        let right = through(2, epoch);
        assert!(open(address, 1, (right, right), Some(SECRET)).is_err(), "nothing is passed on");
        let requests = relays(&group);
        let mut queue = relay(address, 1, right);
        assert!(queue.write(1, 0, &[1; 512]).is_success());
        assert_eq!(queue.read(1, 0, 1), Ok(vec![1; 512]));
        let sessions = server.handle().sessions();
        let [session] = &sessions[..] else { panic!("{sessions:?}") };
        assert!(session.host_nqn == nqn(1) && session.authenticated && session.queues.len() == 1);
        let mut unproven = open(address, 1, (right, right), None).expect("a proof is asked for");
        assert_eq!(unproven.write(1, 0, &[2; 512]), Status::AUTHENTICATION_REQUIRED);
        let elsewhere = Through { host: [192, 0, 2, 9].into(), ..right };
        let later = through(2, epoch + 1);
        for (host, claims, secret) in [
            (1, (right, right), Some([8; 32])),
            (1, (later, later), Some(SECRET)),
            (1, (through(1, epoch), through(1, epoch)), Some(SECRET)),
            // A proof for something else.
            (1, (right, elsewhere), Some(SECRET)),
            (1, (right, Through { renews: true, ..right }), Some(SECRET)),
            // A host that may not use the subsystem.
            (2, (right, right), Some(SECRET)),
        ] {
            let refused = open(address, host, claims, secret);
            assert!(refused.is_err(), "{host}, {claims:?}");
        }
        // It is none of the controllers that hosts know.
        let mut host = Host::one(address);
        let list = host.admin.identify(Cns::Controllers, 0).expect("a list");
        assert_eq!(u16::from_le_bytes([list[0], list[1]]), 1);
        // It ends with the epoch.
        set_gate(&group, machine.is_deposed());
        queue.wait_for_end();
        assert!(open(address, 1, (right, right), Some(SECRET)).is_err(), "it is no owner");
        drop((requests, host));
        assert!(server.stop(Duration::from_secs(5)).flushed);
    });
}

fn listed(host: u8) -> Listed {
    Listed {
        nqn: nqn(host),
        secret: None,
        controller_secret: None,
        tls: None,
        concatenation: Concatenation::Allowed,
    }
}

#[test]
fn a_host_has_one_way_at_a_time() {
    on_each_driver(|config| {
        let (server, address, group, machine) = owner(config);
        let requests = relays(&group);
        let relay = |renews| {
            let through = through(2, machine.gate().epoch().0);
            relay(address, 1, Through { renews, ..through })
        };
        let mut host = Host::one(address);
        let direct = host.io();
        let mut around = relay(false);
        assert!(direct.write(1, 0, &[1; 512]).is_success());
        // It may be late: the host goes another way since.
        for _ in 0..40 {
            assert_eq!(around.write(1, 0, &[2; 512]), TRANSITION, "a relay proves nothing");
        }
        assert_eq!(direct.read(1, 0, 1), Ok(vec![1; 512]));
        // Reads are never late.
        assert_eq!(around.read(1, 0, 1), Ok(vec![1; 512]));
        let mut fresh = relay(false);
        assert!(fresh.write(1, 0, &[3; 512]).is_success());
        // And back: turned back until an identifier is used again.
        let turned = (0..40).take_while(|_| direct.write(1, 0, &[4; 512]) == TRANSITION).count();
        assert!((1..40).contains(&turned), "{turned}");
        let tags = fresh.submit_all(pair(0, 4, 5));
        let ended: Vec<Status> = tags.into_iter().map(|tag| end(&mut fresh, tag)).collect();
        assert_eq!(ended, [TRANSITION, Status::FAILED_FUSED]);
        assert_eq!(direct.read(1, 0, 1), Ok(vec![4; 512]));
        // A gateway that has lost something has what it has sent before forgotten.
        let mut old = relay(false);
        assert!(old.write(1, 0, &[6; 512]).is_success());
        let mut renewed = relay(true);
        assert_eq!(old.write(1, 0, &[7; 512]), TRANSITION);
        assert!(renewed.write(1, 0, &[8; 512]).is_success());
        assert_eq!(old.write(1, 0, &[9; 512]), TRANSITION);
        assert_eq!(direct.read(1, 0, 1), Ok(vec![8; 512]));
        // Another host has its own way.
        let through = through(2, machine.gate().epoch().0);
        let mut other = self::relay(address, 3, through);
        assert!(other.write(1, 8, &[1; 512]).is_success());
        assert!(renewed.write(1, 0, &[10; 512]).is_success());
        drop((requests, host));
        assert!(server.stop(Duration::from_secs(5)).flushed);
    });
}

#[test]
fn a_relay_has_the_reservations_of_its_host() {
    on_each_driver(|config| {
        let (server, address, group, machine) = owner(config);
        let requests = relays(&group);
        let right = through(2, machine.gate().epoch().0);
        let mut host = Host::one(address);
        let persist = PersistOnPowerLoss::Unchanged;
        let register = Io::ReservationRegister {
            action: RegisterAction::Register,
            ignore_key: false,
            persist,
        };
        let kind = ReservationType::ExclusiveAccess;
        let acquire = Io::ReservationAcquire { action: AcquireAction::Acquire, kind };
        for (io, keys) in [(register, [0_u64, 5]), (acquire, [5, 0])] {
            let keys: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
            assert!(host.io().send_data(io.encode(1), &keys).status.is_success());
        }
        let (mut own, mut other) = (relay(address, 1, right), relay(address, 2, right));
        // Where nobody takes them, reservations are changes as others.
        let mut turned = 0;
        while own.write(1, 0, &[1; 512]) == TRANSITION {
            turned += 1;
            assert!(turned < 3, "it is turned back for ever");
            own = relay(address, 1, right);
        }
        assert_eq!(other.write(1, 0, &[2; 512]), Status::RESERVATION_CONFLICT.no_retry());
        assert_eq!(other.read(1, 0, 1), Err(Status::RESERVATION_CONFLICT.no_retry()));
        assert_eq!(own.read(1, 0, 1), Ok(vec![1; 512]));
        drop((requests, host));
        assert!(server.stop(Duration::from_secs(5)).flushed);
    });
}

fn end(queue: &mut Queue, tag: Tag) -> Status {
    queue.wait(tag).completion.expect("an answer").status
}

fn state(host: &mut Host) -> AnaState {
    let page = host.admin.log(LogPage::Ana, 4096).expect("a page");
    ana_groups(&page).expect("an ANA log").1[0].state
}

fn opening(requests: &Receiver<RelayRequest>) -> (u64, RelayNews) {
    match requests.recv_timeout(SOON) {
        Ok(RelayRequest::Open(number, whose, news)) => {
            let expected = RelayFor { nqn: nqn(1), id: [1; 16], host: HERE };
            assert_eq!(whose, expected);
            (number, news)
        }
        _ => panic!("no relay is opened"),
    }
}

#[track_caller]
fn command(requests: &Receiver<RelayRequest>, number: u64) -> Relayed {
    match requests.recv_timeout(SOON) {
        Ok(RelayRequest::Command(relay, command, _)) if relay == number => command,
        _ => panic!("nothing goes by the relay"),
    }
}

/// Answers what goes by a relay with success, and data for the host.
fn answer(news: &RelayNews, relayed: &Relayed, data: Vec<u8>) {
    let completions = vec![Completion::SUCCESS; relayed.parts.len()];
    news(News::Answered(relayed.ticket, Answered { completions, data }));
}

/// A host at a standby whose first command has a relay opened: the command is answered when that is there.
fn with_relay(address: SocketAddr, requests: &Receiver<RelayRequest>) -> (Host, u64, RelayNews) {
    let mut host = Host::new(address, Settings { entries: 16, ..Settings::default() }, 1);
    let early = host.io().submit(write(9).0, write(9).1);
    let (number, news) = opening(requests);
    news(News::Opened(number));
    assert_eq!(end(host.io(), early), TRANSITION, "it was sent before");
    (host, number, news)
}

fn write(
    byte: u8,
) -> (lunet_nvme::command::Sqe, lunet_nvme::host::Data<Vec<u8>, crate::host::Bytes>) {
    let range = Range { lba: 0, blocks: 1 };
    (Io::Write { range, fua: false }.encode(1), to_send(&[byte; 512]))
}

/// Writes until something goes by the relay.
fn gets_by(
    host: &mut Host,
    requests: &Receiver<RelayRequest>,
    number: u64,
    byte: u8,
) -> (Tag, Relayed) {
    let late = Instant::now() + SOON;
    let mut tag = None;
    while Instant::now() < late {
        let sent = *tag.get_or_insert_with(|| {
            let (sqe, data) = write(byte);
            host.io().submit(sqe, data)
        });
        match requests.recv_timeout(Duration::from_millis(5)) {
            Ok(RelayRequest::Command(relay, command, _)) if relay == number => {
                return (sent, command);
            }
            Ok(_) => panic!("it is no command"),
            Err(_) if host.io().has_ended(sent) => {
                assert_eq!(end(host.io(), sent), TRANSITION);
                tag = None;
            }
            Err(_) => {}
        }
    }
    panic!("nothing goes by the relay")
}

#[test]
fn what_was_sent_before_a_relay_was_open_does_not_go_by_it() {
    on_each_driver(|config| {
        let (server, address, group, _) = standby(config);
        let (requests, _) = relays(&group);
        set_gate(&group, beside_an_owner().gate().of_nvme());
        tell(&group, AccessState::NonOptimized, AccessState::Optimized);
        let (mut host, number, news) = with_relay(address, &requests);
        assert_eq!(state(&mut host), AnaState::NonOptimized);
        let (tag, relayed) = gets_by(&mut host, &requests, number, 1);
        assert_eq!(relayed.parts[0].data, vec![1; 512]);
        answer(&news, &relayed, Vec::new());
        assert_eq!(end(host.io(), tag), Status::SUCCESS);
        // More than a capsule has.
        let long: Vec<u8> = (0..1 << 20).map(|at| (at / 512) as u8).collect();
        let range = Range { lba: 0, blocks: 2048 };
        let tag = host.io().submit(Io::Write { range, fua: true }.encode(1), to_send(&long));
        std::thread::scope(|scope| {
            // It sends what it is asked for.
            let ended = scope.spawn(|| end(host.io(), tag));
            let relayed = command(&requests, number);
            assert!(relayed.parts[0].data == long);
            answer(&news, &relayed, Vec::new());
            assert_eq!(ended.join().expect("an answer"), Status::SUCCESS);
        });
        let read = lunet_nvme::host::Data::Read(vec![0; long.len()]);
        let tag = host.io().submit(Io::Read { range, fua: false }.encode(1), read);
        let relayed = command(&requests, number);
        assert_eq!(relayed.parts[0].reads as usize, long.len());
        answer(&news, &relayed, long.clone());
        let ended = host.io().wait(tag);
        assert!(matches!(ended.data, lunet_nvme::host::Data::Read(data) if data == long));
        // A pair goes as one, and so does a flush of everything.
        let tags = host.io().submit_all(pair(8, 1, 2));
        let relayed = command(&requests, number);
        assert_eq!([0, 1].map(|at| relayed.parts[at].data[0]), [1, 2]);
        let completions = [Status::COMPARE_FAILURE, Status::FAILED_FUSED].map(Completion::from);
        let answered = Answered { completions: completions.into(), data: Vec::new() };
        news(News::Answered(relayed.ticket, answered));
        let ended: Vec<Status> = tags.into_iter().map(|tag| end(host.io(), tag)).collect();
        assert_eq!(ended, [Status::COMPARE_FAILURE, Status::FAILED_FUSED]);
        let (sqe, none) = (Io::Flush.encode(ALL_NAMESPACES), lunet_nvme::host::Data::None);
        let tag = host.io().submit(sqe, none);
        answer(&news, &command(&requests, number), Vec::new());
        assert_eq!(end(host.io(), tag), Status::SUCCESS);
        // Nobody knows what becomes of this one: nothing is said.
        host.io().submit(write(3).0, write(3).1);
        command(&requests, number);
        news(News::Ended(number));
        let mut byte = [0];
        let end = host.io().stream.read(&mut byte);
        assert_eq!(end.map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset));
        drop(host);
        assert!(server.stop(Duration::from_secs(5)).flushed);
    });
}

#[test]
fn a_relay_that_is_stale_or_cannot_be_opened_has_the_host_try_again() {
    on_each_driver(|config| {
        let (server, address, group, _) = standby(config);
        let (requests, down) = relays(&group);
        set_gate(&group, beside_an_owner().gate().of_nvme());
        let (mut host, number, news) = with_relay(address, &requests);
        let (tag, relayed) = gets_by(&mut host, &requests, number, 1);
        // The owner wants another one. What has gone by this one is answered yet.
        news(News::Stale(number));
        answer(&news, &relayed, Vec::new());
        assert_eq!(end(host.io(), tag), Status::SUCCESS);
        let early = host.io().submit(write(2).0, write(2).1);
        let (next, news) = opening(&requests);
        news(News::Opened(next));
        assert_eq!(end(host.io(), early), TRANSITION, "it may be older than the relay");
        let (tag, relayed) = gets_by(&mut host, &requests, next, 3);
        answer(&news, &relayed, Vec::new());
        assert_eq!(end(host.io(), tag), Status::SUCCESS);
        news(News::Ended(next));
        for (is_down, status) in [(false, TRANSITION), (true, Status::ANA_INACCESSIBLE)] {
            let tag = host.io().submit(write(4).0, write(4).1);
            let (number, news) = opening(&requests);
            down.store(is_down, Ordering::Relaxed);
            news(News::Ended(number));
            assert_eq!(end(host.io(), tag), status);
        }
        // A queue that ends has its relay end.
        let tag = host.io().submit(write(5).0, write(5).1);
        let (number, _) = opening(&requests);
        drop((host, tag));
        let closed = requests.recv_timeout(SOON);
        assert!(matches!(closed, Ok(RelayRequest::Close(it)) if it == number));
        assert!(server.stop(Duration::from_secs(5)).flushed);
    });
}

#[test]
fn a_relay_ends_with_its_epoch_and_commands_without_an_answer_with_their_queue() {
    on_each_driver(|config| {
        let (server, address, group, mut machine) = standby(config);
        let (requests, _) = relays(&group);
        set_gate(&group, beside_an_owner().gate().of_nvme());
        tell(&group, AccessState::NonOptimized, AccessState::Optimized);
        let (mut host, number, news) = with_relay(address, &requests);
        let mut idle = Host::new(address, Settings { host: 4, ..Settings::default() }, 1);
        assert!(idle.admin.set_feature(Feature::Events, EVENT_ANA).status.is_success());
        let notice = idle.admin.listen();
        gets_by(&mut host, &requests, number, 1);
        set_gate(&group, machine.takes_over());
        tell(&group, AccessState::Optimized, AccessState::NonOptimized);
        host.io().wait_for_end();
        let closed = requests.recv_timeout(SOON);
        assert!(matches!(closed, Ok(RelayRequest::Close(it)) if it == number));
        assert_eq!(idle.admin.heard(notice), Some(Event::Ana));
        assert_eq!(state(&mut idle), AnaState::Optimized);
        // What is left of it comes to nothing.
        news(News::Answered(0, Answered::default()));
        news(News::Ended(number));
        assert!(Host::one(address).io().write(1, 0, &[2; 512]).is_success());
        drop((host, idle));
        assert!(server.stop(Duration::from_secs(5)).flushed);
    });
}

#[test]
fn a_shutdown_at_a_standby_ends_the_relays_of_its_controller_first() {
    on_each_driver(|config| {
        let (server, address, group, _) = standby(config);
        let (requests, _) = relays(&group);
        set_gate(&group, beside_an_owner().gate().of_nvme());
        let (mut host, number, _news) = with_relay(address, &requests);
        gets_by(&mut host, &requests, number, 1);
        assert!(host.admin.configure(ENABLE | 1 << 14).is_success());
        let closed = requests.recv_timeout(SOON);
        assert!(matches!(closed, Ok(RelayRequest::Close(it)) if it == number));
        host.io().wait_for_end();
        until("it is shut down", || host.admin.property(Property::Status) >> 2 & 3 == 2);
        drop(host);
        assert!(server.stop(Duration::from_secs(5)).flushed);
    });
}
