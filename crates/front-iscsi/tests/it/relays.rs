//! Failover groups whose standbys pass commands on to the owner: what the owner asks of them, and what goes by a relay.

use std::io::ErrorKind;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lunet_front_iscsi::{
    Answered, GroupHandle, News, RelayNews, RelayRequest, Relayed, Relays, accounts, algorithms,
};
use lunet_gateway::{Access, ClientName, Contents, GatewayId, Owner, Portals, Record};
use lunet_iscsi::Through;
use lunet_iscsi::initiator::{Chap, Data, Options};

use crate::groups::{done, group_of, open_group, ready, set_gate, two_targets, wait};
use crate::support::client::{Client, rw16};
use crate::support::gateway::{Machine, ports};
use crate::support::status::{BUSY, GOOD};
use crate::support::{TARGET, memory, on_each_driver, start};

const SECRET: [u8; 32] = [7; 32];
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
fn relays(group: &GroupHandle) -> Receiver<RelayRequest> {
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
fn through(gateway: u16, epoch: u64, secret: [u8; 32]) -> Options {
    through_for([127, 0, 0, 1], gateway, epoch, secret)
}

/// The same for a host with that address.
fn through_for(host: [u8; 4], gateway: u16, epoch: u64, secret: [u8; 32]) -> Options {
    let through = Through { gateway, epoch, host: host.into() };
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
