//! Failover groups whose standbys pass commands on to the owner: what the owner asks of them, and what goes by a relay.

use std::io::ErrorKind;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lunet_front_iscsi::{
    Answered, GroupHandle, News, RelayNews, RelayRequest, Relayed, Relays, accounts, algorithms,
    volume_of,
};
use lunet_gateway::{
    Access, Answer, ClientName, Contents, GatewayId, Owner, Portals, Record, Reserved, Sanitize,
    Volume,
};
use lunet_iscsi::Through;
use lunet_iscsi::initiator::{Chap, Data, Options, Residual};
use lunet_iscsi::pdu::{LogoutReason, TmfFunction, TmfResponse};

use crate::group_reservations::{carry_out, change, requests_of, reserve_out};
use crate::groups::{done, group_of, open_group, ready, sense, set_gate, two_targets, wait};
use crate::support::client::{Client, command as asks, rw16};
use crate::support::gateway::{Machine, ports};
use crate::support::status::{BUSY, CONFLICT, GOOD};
use crate::support::{TARGET, memory, on_each_driver, start, until};

pub const SECRET: [u8; 32] = [7; 32];
const READ_16: u8 = 0x88;
const WRITE_16: u8 = 0x8A;
const SOON: Duration = Duration::from_secs(30);

/// A standby of a group whose owner, gateway 2, can be reached.
fn beside_an_owner() -> Machine {
    let mut record = Record::new(TARGET, SECRET, ports(), Contents::default());
    record.epoch = record.epoch.next();
    record.owner = Some(Owner {
        gateway: GatewayId(2),
        client: ClientName { address: "192.0.2.8:0/1".into(), lock: "client.1".into() },
        portals: Portals { iscsi: Some(([192, 0, 2, 8], 3260).into()), nvme: None },
    });
    let machine = Machine::of(record);
    assert!(machine.gate().is_through());
    machine
}

/// Has a group pass commands on, which come out there.
pub fn relays(group: &GroupHandle) -> Receiver<RelayRequest> {
    let (sender, requests) = channel();
    let sender = Mutex::new(sender);
    let takes = Arc::new(move |request| {
        // A test that has ended takes no more.
        let _ = sender.lock().expect("nobody has failed").send(request);
    });
    let relays = Relays { secret: SECRET, takes, down: Arc::default(), load: Arc::default() };
    wait(|done| group.relay(relays, done));
    wait(|done| group.access(&ports(), &Access(Vec::new()), done));
    requests
}

/// What a gateway logs in with for the initiator of [`Client`], in that epoch.
pub fn through(gateway: u16, epoch: u64, secret: [u8; 32]) -> Options {
    through_for([127, 0, 0, 1], gateway, epoch, secret)
}

/// The same for a host with that address.
fn through_for(host: [u8; 4], gateway: u16, epoch: u64, secret: [u8; 32]) -> Options {
    let through = Through { gateway, epoch, host: host.into(), renews: false };
    let options = Client::options();
    let nexus = (&*options.initiator_name, options.isid);
    let (account, _) = accounts(&secret, &through, nexus, TARGET);
    let chap = Chap { account, algorithms: algorithms(), mutual: None };
    Options { through: Some(through), chap: Some(chap), ..options }
}

/// Has an initiator hear of all that it is to be told.
fn attended(client: &mut Client) {
    while ready(client).status != GOOD {}
}

#[test]
fn a_gateway_logs_in_with_the_secret_for_the_epoch_of_the_owner() {
    on_each_driver(|driver| {
        let (server, address, group, mut machine) = open_group(two_targets(memory(16), driver));
        let epoch = machine.gate().epoch().0;
        let refused = |options| Client::try_login(address, options).is_err();
        assert!(refused(through(2, epoch, SECRET)), "the group passes nothing on");
        let requests = relays(&group);
        // Before there are so many refusals that the address has to wait.
        let mut client = Client::try_login(address, through(2, epoch, SECRET)).expect("the proof");
        attended(&mut client);
        client.works(0);
        let mut unproven = through(2, epoch, SECRET);
        unproven.chap = None;
        let mut other = through(2, epoch, SECRET);
        other.isid[5] ^= 1;
        for options in [
            through(2, epoch, [8; 32]),
            through(2, epoch + 1, SECRET),
            through(2, epoch - 1, SECRET),
            // Its own port, and one that there is not.
            through(1, epoch, SECRET),
            through(3, epoch, SECRET),
            unproven,
            // A proof for another session.
            other,
            // The target is for this machine alone.
            through_for([192, 0, 2, 9], 2, epoch, SECRET),
        ] {
            assert!(refused(options.clone()), "{options:?}");
        }
        // It ends with the epoch.
        set_gate(&group, machine.is_deposed());
        assert_eq!(client.ends_by(), Some(ErrorKind::ConnectionReset));
        assert!(refused(through(2, epoch, SECRET)), "it is no owner");
        drop(requests);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn a_host_has_one_way_at_a_time() {
    on_each_driver(|driver| {
        let (server, address, group, machine) = open_group(two_targets(memory(16), driver));
        let requests = relays(&group);
        let relay = || {
            let options = through(2, machine.gate().epoch().0, SECRET);
            let mut client = Client::try_login(address, options).expect("the proof");
            attended(&mut client);
            client
        };
        let mut direct = Client::try_login(address, Client::options()).expect("it is open");
        attended(&mut direct);
        let mut around = relay();
        assert_eq!(direct.write(0, 0, vec![1; 512]), GOOD);
        // It may be late: the host goes another way since.
        assert_eq!(around.write(0, 0, vec![2; 512]), BUSY);
        assert_eq!(around.write(0, 0, vec![2; 512]), BUSY, "it is asked for a new relay");
        assert_eq!(direct.read(0, 0, 1), (GOOD, vec![1; 512]));
        // Reads are never late.
        assert_eq!(around.read(0, 0, 1), (GOOD, vec![1; 512]));
        let mut around = relay();
        assert_eq!(around.write(0, 0, vec![3; 512]), GOOD);
        // And back: once refused, and asked.
        assert_eq!(direct.write(0, 0, vec![4; 512]), BUSY);
        assert_eq!(direct.write(0, 0, vec![4; 512]), GOOD);
        assert_eq!(around.write(0, 0, vec![5; 512]), BUSY);
        assert_eq!(direct.read(0, 0, 1), (GOOD, vec![4; 512]));
        drop(requests);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

fn opening(requests: &Receiver<RelayRequest>) -> (u64, RelayNews) {
    match requests.recv_timeout(SOON) {
        Ok(RelayRequest::Open(number, whose, news)) => {
            assert_eq!(whose.initiator, Client::options().initiator_name);
            (number, news)
        }
        _ => panic!("no relay is opened"),
    }
}

fn command(requests: &Receiver<RelayRequest>, number: u64) -> Relayed {
    match requests.recv_timeout(SOON) {
        Ok(RelayRequest::Command(relay, command, _)) if relay == number => command,
        _ => panic!("nothing goes by the relay"),
    }
}

#[test]
fn what_was_sent_before_a_relay_was_open_does_not_go_by_it() {
    on_each_driver(|driver| {
        let (server, address) = start(two_targets(memory(16), driver));
        let machine = beside_an_owner();
        let group = group_of(&server, Machine::standby().gate());
        let requests = relays(&group);
        set_gate(&group, machine.gate());
        let mut client = Client::try_login(address, Client::options()).expect("it is open");
        attended(&mut client);
        let (number, news) = opening(&requests);
        assert_eq!(client.write(0, 0, vec![1; 512]), BUSY, "there is no relay");
        news(News::Opened(number));
        // The client has not seen the question when it sends this.
        client.wait_for_bytes();
        let early = client.start(0, &rw16(WRITE_16, 0, 1), Data::Write(vec![1; 512]));
        assert_eq!(done(&mut client, early).status, BUSY);
        let late = client.start(0, &rw16(WRITE_16, 0, 64), Data::Write(vec![2; 64 * 512]));
        let Relayed { ticket, cdb, data, .. } = command(&requests, number);
        assert_eq!((&cdb[..2], data), (&[WRITE_16, 0][..], vec![2; 64 * 512]));
        news(News::Answered(ticket, Answered::default()));
        assert_eq!(done(&mut client, late).status, GOOD);
        // Nobody knows what becomes of this one.
        client.start(0, &rw16(WRITE_16, 0, 1), Data::Write(vec![3; 512]));
        command(&requests, number);
        news(News::Ended(number));
        assert_eq!(client.ends_by(), Some(ErrorKind::ConnectionReset));
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

const REGISTER: u8 = 0;
const CLEAR: u8 = 3;
/// BUS DEVICE RESET FUNCTION OCCURRED.
const RESET: [u8; 3] = [6, 0x29, 0x03];
const STANDBY: [u8; 3] = [2, 0x04, 0x0B];

#[test]
fn a_change_of_reservations_that_is_late_is_not_executed() {
    on_each_driver(|driver| {
        let (server, address, group, mut machine) = open_group(two_targets(memory(16), driver));
        let (_relays, requests) = (relays(&group), requests_of(&group));
        let mut direct = Client::try_login(address, Client::options()).expect("it is open");
        attended(&mut direct);
        let options = through(2, machine.gate().epoch().0, SECRET);
        let mut around = Client::try_login(address, options).expect("the proof");
        let register = reserve_out(&mut direct, REGISTER, 0, 7);
        carry_out(&group, &requests).expect("it is a change");
        assert_eq!(done(&mut direct, register).status, GOOD);
        // A standby may have held that back, while its host went on here.
        let late = reserve_out(&mut around, CLEAR, 7, 0);
        assert_eq!(done(&mut around, late).status, BUSY);
        // And this one is of an earlier epoch: it is sent before the question of the new one is answered.
        set_gate(&group, machine.is_deposed());
        set_gate(&group, machine.takes_over());
        let early = reserve_out(&mut direct, CLEAR, 7, 0);
        assert_eq!(done(&mut direct, early).status, BUSY);
        let other_way = reserve_out(&mut direct, CLEAR, 7, 0);
        assert_eq!(done(&mut direct, other_way).status, BUSY, "its host has gone on elsewhere");
        assert!(requests.try_recv().is_err(), "one of them is executed");
        let clear = reserve_out(&mut direct, CLEAR, 7, 0);
        carry_out(&group, &requests);
        assert_eq!(done(&mut direct, clear).status, GOOD);
        drop((direct, around));
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

/// A record with the mark of FORMAT UNIT for a volume.
fn marked(naa: [u8; 16], sanitize: Sanitize) -> Record {
    let volume = Volume {
        id: "1a".into(),
        bytes: 1 << 20,
        image: "pool/image".into(),
        naa,
        serial: String::new(),
        reserved: Reserved::default(),
        modes: Vec::new(),
        sanitize,
    };
    Record::new(TARGET, SECRET, ports(), Contents { volumes: vec![volume] })
}

#[test]
fn what_a_standby_passes_on_and_what_it_answers() {
    on_each_driver(|driver| {
        let (server, address, group, mut machine) = open_group(two_targets(memory(16), driver));
        let (requests, changes) = (relays(&group), requests_of(&group));
        let mut client = Client::try_login(address, Client::options()).expect("it is open");
        attended(&mut client);
        let register = reserve_out(&mut client, REGISTER, 0, 7);
        let (id, body) = change(&changes);
        let naa = volume_of(&body).expect("a request of iSCSI");
        group.answer(id, Answer::Busy);
        assert_eq!(done(&mut client, register).status, BUSY);
        // Nobody is reached.
        set_gate(&group, machine.is_deposed());
        let mut client = Client::try_login(address, Client::options()).expect("it is there");
        until("it is told of its login", || sense(&ready(&mut client)) == STANDBY);
        let register = reserve_out(&mut client, REGISTER, 0, 7);
        assert_eq!(sense(&done(&mut client, register)), STANDBY);
        assert!(changes.try_recv().is_err(), "it goes to the group's thread");

        set_gate(&group, beside_an_owner().gate());
        let mut client = Client::try_login(address, Client::options()).expect("it is there");
        attended(&mut client);
        let (number, news) = opening(&requests);
        news(News::Opened(number));
        client.wait_for_bytes();
        let early = reserve_out(&mut client, REGISTER, 0, 7);
        assert_eq!(done(&mut client, early).status, BUSY);
        let register = reserve_out(&mut client, REGISTER, 0, 7);
        let Relayed { ticket, cdb, data, .. } = command(&requests, number);
        assert_eq!((cdb[0], data.len()), (0x5F, 24));
        let conflict = Answered { status: CONFLICT, ..Answered::default() };
        news(News::Answered(ticket, conflict));
        assert_eq!(done(&mut client, register).status, CONFLICT);
        let busy = Answered { status: BUSY, ..Answered::default() };
        let passed_on = |client: &mut Client, cdb: &[u8], data| {
            let tag = client.start(0, cdb, data);
            let relayed = command(&requests, number);
            assert_eq!(relayed.cdb[0], cdb[0]);
            news(News::Answered(relayed.ticket, busy.clone()));
            assert_eq!(done(client, tag).status, BUSY);
        };
        let read = || Data::Read(vec![0; 252]);
        // MODE SENSE; and TEST UNIT READY and REQUEST SENSE if there is something to be known.
        passed_on(&mut client, &[0x1A, 0x08, 0x0A, 0, 252, 0], read());
        assert_eq!(ready(&mut client).status, GOOD);
        assert_eq!(client.finish(0, &[3, 0, 0, 0, 252, 0], read()).status, GOOD);
        group.modes(&marked(naa, Sanitize::Formatting));
        passed_on(&mut client, &[0; 6], Data::None);
        passed_on(&mut client, &[3, 0, 0, 0, 252, 0], read());
        group.modes(&marked(naa, Sanitize::None));
        assert_eq!(ready(&mut client).status, GOOD);
        assert!(changes.try_recv().is_err());
        drop(client);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn a_standby_tells_its_unit_attentions_before_it_passes_a_command_on() {
    on_each_driver(|driver| {
        let (server, address, group, _machine) = open_group(two_targets(memory(16), driver));
        let requests = relays(&group);
        set_gate(&group, beside_an_owner().gate());
        let mut client = Client::try_login(address, Client::options()).expect("it is open");
        let early = reserve_out(&mut client, REGISTER, 0, 7);
        let (number, news) = opening(&requests);
        assert_eq!(done(&mut client, early).status, BUSY);
        news(News::Opened(number));
        client.wait_for_bytes();
        // It has not answered the question when it sends this.
        let early = reserve_out(&mut client, REGISTER, 0, 7);
        assert_eq!(done(&mut client, early).status, BUSY);
        // POWER ON, RESET, OR BUS DEVICE RESET OCCURRED: its session at this gateway is new.
        let register = reserve_out(&mut client, REGISTER, 0, 7);
        assert_eq!(sense(&done(&mut client, register)), [6, 0x29, 0]);
        let register = reserve_out(&mut client, REGISTER, 0, 7);
        let relayed = command(&requests, number);
        assert_eq!(relayed.cdb[0], 0x5F);
        news(News::Answered(relayed.ticket, Answered { status: GOOD, ..Answered::default() }));
        assert_eq!(done(&mut client, register).status, GOOD);
        drop(client);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn a_reset_ends_what_standbys_have_yet_and_tells_their_hosts() {
    on_each_driver(|driver| {
        let mut config = two_targets(memory(16), driver);
        config.layout.targets[0].allow_reset = true;
        let (server, address, group, machine) = open_group(config);
        let _requests = relays(&group);
        let relay = || {
            let options = through(2, machine.gate().epoch().0, SECRET);
            Client::try_login(address, options).expect("the proof")
        };
        let mut judge = Client::login(address, 2);
        for (function, told) in
            [(TmfFunction::LogicalUnitReset, true), (TmfFunction::ClearTaskSet, false)]
        {
            let mut around = relay();
            // Its host was told by the gateway where it has logged in.
            assert_eq!(around.write(0, 0, vec![1; 512]), GOOD);
            assert_eq!(judge.manage(function, 0, None), TmfResponse::Complete);
            if told {
                let write = around.finish(0, &rw16(WRITE_16, 0, 1), Data::Write(vec![2; 512]));
                assert_eq!(sense(&write), RESET);
            }
            assert_eq!(around.write(0, 0, vec![2; 512]), BUSY, "it was sent before, perhaps");
            assert_eq!(around.read(0, 0, 1), (GOOD, vec![1; 512]));
            assert_eq!(relay().write(0, 0, vec![1; 512]), GOOD);
        }
        // The one that has asked goes on.
        until("it is asked", || judge.write(0, 0, vec![3; 512]) == GOOD);
        // TARGET COLD RESET ends sessions of this gateway, and those of hosts at others are told.
        assert_eq!(relay().write(0, 0, vec![1; 512]), BUSY, "the way is another");
        let mut around = relay();
        assert_eq!(around.write(0, 0, vec![1; 512]), GOOD);
        assert_eq!(judge.manage(TmfFunction::TargetColdReset, 0, None), TmfResponse::Complete);
        let write = around.finish(0, &rw16(WRITE_16, 0, 1), Data::Write(vec![2; 512]));
        assert_eq!(sense(&write), RESET);
        drop(judge);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn functions_wait_for_the_way_to_the_owner() {
    on_each_driver(|driver| {
        let (server, address) = start(two_targets(memory(16), driver));
        let group = group_of(&server, Machine::standby().gate());
        let requests = relays(&group);
        set_gate(&group, beside_an_owner().gate());
        let mut client = Client::try_login(address, Client::options()).expect("it is open");
        // It has nothing at the owner.
        assert_eq!(client.manage(TmfFunction::AbortTaskSet, 0, None), TmfResponse::Complete);
        assert_eq!(
            client.manage(TmfFunction::LogicalUnitReset, 9, None),
            TmfResponse::LunDoesNotExist
        );
        std::thread::scope(|scope| {
            let reset = scope.spawn(|| client.manage(TmfFunction::LogicalUnitReset, 0, None));
            let (number, news) = opening(&requests);
            // It could not be opened; and then it is.
            news(News::Ended(number));
            let (number, news) = opening(&requests);
            assert!(
                requests.recv_timeout(Duration::from_millis(300)).is_err(),
                "before it is open"
            );
            assert!(!reset.is_finished());
            news(News::Opened(number));
            match requests.recv_timeout(SOON) {
                Ok(RelayRequest::Function(relay, asked, done)) => {
                    let function = asked.function;
                    assert_eq!((relay, function), (number, TmfFunction::LogicalUnitReset));
                    assert!(!reset.is_finished());
                    drop(done);
                }
                _ => panic!("the owner is not asked"),
            }
            assert_eq!(reset.join().expect("no panic"), TmfResponse::Complete);
        });
        // Not for ever.
        let mut other = Client::login_with(address, 2, |_| {});
        assert_eq!(other.manage(TmfFunction::ClearTaskSet, 0, None), TmfResponse::Rejected);
        drop((client, other));
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

/// A client of a standby whose relay is open, which is behind the question.
fn relayed(
    address: std::net::SocketAddr,
    requests: &Receiver<RelayRequest>,
) -> (Client, u64, RelayNews) {
    let mut client = Client::try_login(address, Client::options()).expect("it is open");
    attended(&mut client);
    let (number, news) = opening(requests);
    news(News::Opened(number));
    client.wait_for_bytes();
    client.receive_once();
    (client, number, news)
}

#[test]
fn what_was_not_passed_on_when_a_relay_breaks_is_to_be_sent_again() {
    on_each_driver(|driver| {
        let (server, address) = start(two_targets(memory(16), driver));
        let group = group_of(&server, Machine::standby().gate());
        let requests = relays(&group);
        set_gate(&group, beside_an_owner().gate());
        let (mut client, number, news) = relayed(address, &requests);
        // More than comes by itself: the rest is asked for, and not sent yet.
        let cdb = rw16(WRITE_16, 0, 2048);
        let (tag, bytes) = client.compose(|proto, out| {
            let write = asks(0, &cdb, Data::Write(vec![9; 2048 * 512]));
            proto.submit(write, out).expect("the window is open")
        });
        client.send_raw(&bytes);
        client.wait_for_bytes();
        news(News::Ended(number));
        assert_eq!(done(&mut client, tag).status, BUSY);
        assert_eq!(ready(&mut client).status, GOOD, "its connection stays");
        drop(client);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn a_read_that_expects_more_than_there_can_be_goes_by_a_relay_and_has_a_residual() {
    on_each_driver(|driver| {
        let (server, address) = start(two_targets(memory(16), driver));
        let group = group_of(&server, Machine::standby().gate());
        let requests = relays(&group);
        set_gate(&group, beside_an_owner().gate());
        let (mut client, number, news) = relayed(address, &requests);
        let tag = client.start(0, &rw16(READ_16, 0, 1), Data::Discard(u32::MAX));
        let Relayed { ticket, expects_read, .. } = command(&requests, number);
        assert!(expects_read <= 16 << 20, "{expects_read}");
        let residual = 512 - i64::from(expects_read);
        let answered = Answered { residual, data: vec![7; 512], ..Answered::default() };
        news(News::Answered(ticket, answered));
        let completion = done(&mut client, tag);
        assert_eq!((completion.status, completion.received), (GOOD, 512));
        assert_eq!(completion.residual, Residual::Underflow(u32::MAX - 512));
        drop(client);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn a_standby_asks_the_owner_while_that_says_that_the_unit_is_not_ready() {
    on_each_driver(|driver| {
        let (server, address) = start(two_targets(memory(16), driver));
        let group = group_of(&server, Machine::standby().gate());
        let requests = relays(&group);
        set_gate(&group, beside_an_owner().gate());
        let (mut client, number, news) = relayed(address, &requests);
        let passed_on = |client: &mut Client, cdb: &[u8], stopped: bool| {
            let tag = client.start(0, cdb, Data::None);
            let relayed = command(&requests, number);
            assert_eq!(relayed.cdb[0], cdb[0]);
            // INITIALIZING COMMAND REQUIRED
            let sense = vec![0x70, 0, 2, 0, 0, 0, 0, 10, 0, 0, 0, 0, 4, 2, 0, 0, 0, 0];
            let answered = match stopped {
                true => Answered { status: 2, sense, ..Answered::default() },
                false => Answered::default(),
            };
            news(News::Answered(relayed.ticket, answered));
            assert_eq!(done(client, tag).status, if stopped { 2 } else { GOOD });
        };
        assert_eq!(ready(&mut client).status, GOOD, "by itself");
        passed_on(&mut client, &[0x1B, 0, 0, 0, 0, 0], false);
        passed_on(&mut client, &[0; 6], true);
        passed_on(&mut client, &[0x1B, 0, 0, 0, 1, 0], false);
        assert_eq!(ready(&mut client).status, GOOD, "by itself");
        // Somebody else has stopped it: SYNCHRONIZE CACHE hears of that.
        passed_on(&mut client, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], true);
        passed_on(&mut client, &[0; 6], true);
        passed_on(&mut client, &[0; 6], false);
        assert_eq!(ready(&mut client).status, GOOD, "by itself");
        drop(client);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn a_logout_is_answered_behind_what_the_owner_has() {
    on_each_driver(|driver| {
        let (server, address) = start(two_targets(memory(16), driver));
        let group = group_of(&server, Machine::standby().gate());
        let requests = relays(&group);
        set_gate(&group, beside_an_owner().gate());
        let (mut client, number, news) = relayed(address, &requests);
        let write = client.start(0, &rw16(WRITE_16, 0, 1), Data::Write(vec![1; 512]));
        let Relayed { ticket, .. } = command(&requests, number);
        let before = server.handle().stats().protocol.pdus;
        let (sent, bytes) = client.compose(|proto, out| {
            proto.logout(LogoutReason::CloseSession, Duration::ZERO, out).is_ok()
        });
        assert!(sent);
        client.send_raw(&bytes);
        until("the logout is there", || server.handle().stats().protocol.pdus > before);
        assert!(requests.try_recv().is_err(), "the relay is closed");
        news(News::Answered(ticket, Answered::default()));
        assert_eq!(done(&mut client, write).status, GOOD);
        assert_eq!(client.ends_by(), None);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}
