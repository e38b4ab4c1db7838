//! A failover group over RDMA: a deposed owner ends queue pairs and says nothing, a ping is a message like others, and a
//! standby passes commands on whose data it fetches.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use lunet_gateway::{AccessState, ClientName, Contents, Gate, GatewayId, Owner, Portals, Record};
use lunet_server::part::Part;

use super::*;
use crate::group::{
    Answered, GroupId, GroupMessage, GroupPorts, News, Order, RelayNews, RelayRequest, Relayed,
    Relays, Ways,
};
use crate::machine::{Machine, ports};
use crate::message::Message;

const GOOD: u8 = 0;
const CHECK_CONDITION: u8 = 2;
const BUSY: u8 = 8;
const KIB: u32 = 1024;

/// A gateway of a group whose hosts come over RDMA.
struct Gateway {
    bench: Bench,
    machine: Machine,
    ways: Arc<Ways>,
}

impl Gateway {
    fn new(machine: Machine) -> Self {
        let ways: Arc<Ways> = Arc::default();
        let mut gateway = Self { bench: Bench::new(64, layout(None)), machine, ways };
        let (targets, ways) = (Arc::from([TARGET.to_owned()]), gateway.ways.clone());
        let gate = gateway.machine.gate();
        gateway.carried_out(Order::Begin { targets, gate, ways });
        let states = lunet_gateway::Access(vec![(1, AccessState::Optimized)]);
        gateway.carried_out(Order::Ports(Arc::new(GroupPorts::new(&ports(), &states))));
        gateway
    }

    /// One that nobody has been asked by yet.
    fn standby() -> Self {
        Self::new(Machine::standby())
    }

    /// One that owns its group.
    fn owner() -> Self {
        let mut gateway = Self::standby();
        gateway.takes_over();
        gateway
    }

    fn takes_over(&mut self) {
        let gate = self.machine.takes_over();
        self.carried_out(Order::Gate(gate));
    }

    /// Gives an order. True as soon as it is carried out.
    fn order(&mut self, order: Order) -> Arc<AtomicBool> {
        let done = Arc::new(AtomicBool::new(false));
        let told = done.clone();
        let part = Part::new(move || told.store(true, Ordering::SeqCst));
        let message = GroupMessage { group: GroupId::of_test(), order, part };
        Engine::message(&mut self.bench.shard, Message::Group(message));
        done
    }

    /// Gives an order that is carried out at once.
    fn carried_out(&mut self, order: Order) {
        assert!(self.order(order).load(Ordering::SeqCst));
    }

    fn set_gate(&mut self, gate: Gate) {
        self.carried_out(Order::Gate(gate));
    }

    /// WRITE(10) of so many blocks that the host's memory has.
    fn write(&mut self, number: u32, blocks: u16) {
        let header = opens(Some(number), None);
        let expected = u32::from(blocks) * 512;
        self.bench.command(5, number, (WRITE, &cdb(0x2a, blocks), expected), header, &[]);
    }

    /// The same, to its end: its status.
    fn writes(&mut self, number: u32, fill: u8) -> u8 {
        self.write(number, 8);
        loop {
            match self.bench.next(5, &[fill; 4096], Status::Success) {
                Work::Read(len, _) => assert_eq!(len, 4096),
                Work::Send(bytes, _) => return status_of(&bytes[HEADER_LEN..], number),
                Work::Write(..) => panic!("an RDMA Write instead of a Send"),
            }
        }
    }

    /// The NOP-In that comes next: its tag.
    fn asked(&mut self) -> [u8; 4] {
        let (pdu, _) = self.bench.answer(5);
        assert_eq!(pdu[0] & 0x3f, 0x20, "a ping");
        [pdu[20], pdu[21], pdu[22], pdu[23]]
    }

    /// The host answers a ping.
    fn answers(&mut self, ttt: [u8; 4]) {
        let ttt = pdu::U32::new(u32::from_be_bytes(ttt));
        let itt = pdu::U32::new(u32::MAX);
        let nop = NopOut { opcode: 0x40, flags: 0x80, itt, ttt, ..NopOut::default() };
        self.bench.send(5, Header::default(), &nop, &[]);
        (0..4).for_each(|_| self.bench.iterate());
    }

    /// Eight blocks of the volume.
    fn content(&mut self, endpoint: u32, number: u32) -> Vec<u8> {
        let header = opens(None, Some(8));
        self.bench.command(endpoint, number, (READ, &cdb(0x28, 8), 4096), header, &[]);
        let Work::Write(bytes, _) = self.bench.next(endpoint, &[], Status::Success) else {
            panic!("an RDMA Write was expected");
        };
        assert_eq!(self.bench.status(endpoint, number).0, GOOD);
        bytes
    }
}

fn status_of(pdu: &[u8], number: u32) -> u8 {
    assert_eq!((pdu[0], &pdu[16..20]), (0x21, &(100 + number).to_be_bytes()[..]));
    pdu[3]
}

#[test]
fn a_deposed_owner_ends_queue_pairs_and_says_nothing() {
    let mut gateway = Gateway::owner();
    gateway.bench.connect(5);
    gateway.bench.log_in(5);
    assert_eq!(gateway.writes(1, 1), GOOD);
    // Data that is being fetched, data and a status that the device has, and a command that nobody has looked at.
    gateway.write(2, 8);
    let header = opens(None, Some(3));
    gateway.bench.command(5, 3, (READ, &cdb(0x28, 8), 4096), header, &[]);
    (0..4).for_each(|_| gateway.bench.iterate());
    let under_way = gateway.bench.wire.with(|state| (state.posted_reads(5), state.posted(5)));
    assert_eq!(under_way, (1, 3), "a Read, a Write, and a Send");
    gateway.write(4, 8);

    let gate = gateway.machine.is_deposed();
    let done = gateway.order(Order::StopAnswering(gate));
    assert!(done.load(Ordering::SeqCst), "the device has no work of it any more");
    gateway.bench.wire.with(|state| {
        assert_eq!((state.closed.as_slice(), state.posted(5)), (&[5][..], 0));
    });
    // What comes late is of nobody.
    gateway.bench.wire.complete_late(5, 0);
    (0..8).for_each(|_| gateway.bench.iterate());
    assert!(gateway.bench.wire.next(5, &[], Status::Success).is_none(), "it says something");
    gateway.bench.assert_all_is_given_back();

    gateway.takes_over();
    gateway.bench.connect(6);
    gateway.bench.log_in(6);
    assert_eq!(gateway.content(6, 1), [1; 4096], "nothing of it was executed");
}

#[test]
fn what_is_sent_behind_the_answer_to_a_ping_is_executed() {
    let mut gateway = Gateway::standby();
    gateway.bench.connect(5);
    gateway.bench.log_in_at_standby(5);
    gateway.takes_over();
    let ttt = gateway.asked();
    // It was sent before the answer, whatever comes first at the storage.
    gateway.write(1, 8);
    assert_eq!(gateway.bench.status(5, 1).0, BUSY);
    gateway.answers(ttt);
    assert_eq!(gateway.writes(2, 2), CHECK_CONDITION, "it is told of its login");
    assert_eq!(gateway.writes(3, 3), GOOD);
    assert_eq!(gateway.content(5, 4), [3; 4096]);
}

#[test]
fn a_host_has_one_question_at_a_time() {
    let mut gateway = Gateway::owner();
    gateway.bench.connect(5);
    gateway.bench.log_in(5);
    // Somebody else resets the unit, twice: nothing is to be executed that was sent before.
    gateway.ways.renew();
    gateway.write(1, 8);
    let ttt = gateway.asked();
    assert_eq!(gateway.bench.status(5, 1).0, BUSY);
    gateway.ways.renew();
    assert_eq!(gateway.writes(2, 1), BUSY);
    (0..4).for_each(|_| gateway.bench.iterate());
    let more = gateway.bench.wire.next(5, &[], Status::Success);
    assert!(more.is_none(), "there are few receives for questions");
    gateway.answers(ttt);
    let next = gateway.asked();
    assert_ne!(ttt, next);
    assert_eq!(gateway.writes(3, 1), BUSY, "it was asked about the second one");
    gateway.answers(next);
    assert_eq!(gateway.writes(4, 3), GOOD);
}

#[test]
fn a_write_whose_data_is_being_fetched_is_turned_back_when_the_data_is_there() {
    let mut gateway = Gateway::owner();
    gateway.bench.connect(5);
    gateway.bench.log_in(5);
    assert_eq!(gateway.writes(1, 1), GOOD);
    gateway.write(2, 8);
    (0..4).for_each(|_| gateway.bench.iterate());
    let gate = gateway.machine.begins_move();
    gateway.set_gate(gate);
    let drained = gateway.order(Order::Drain);
    assert!(drained.load(Ordering::SeqCst), "nothing is at the storage");
    // A Send may overtake a Read, and its host takes its memory back then.
    (0..4).for_each(|_| gateway.bench.iterate());
    assert_eq!(gateway.bench.wire.with(|state| (state.posted(5), state.posted_reads(5))), (1, 1));
    let Work::Read(..) = gateway.bench.next(5, &[2; 4096], Status::Success) else {
        panic!("an RDMA Read was expected");
    };
    assert_eq!(gateway.bench.status(5, 2).0, BUSY);
    let gate = gateway.machine.stays();
    gateway.set_gate(gate);
    assert_eq!(gateway.content(5, 3), [1; 4096], "nothing was written");
}

/// A standby whose owner can be reached, what it wants of relays, and the way back.
struct Standby {
    gateway: Gateway,
    wants: Arc<Mutex<Vec<RelayRequest>>>,
}

impl Standby {
    fn new() -> Self {
        let mut record = Record::new(TARGET, [7; 32], ports(), Contents::default());
        record.epoch = record.epoch.next();
        record.owner = Some(Owner {
            gateway: GatewayId(2),
            client: ClientName { address: "192.0.2.8:0/1".into(), lock: "client.1".into() },
            portals: Portals { iscsi: Some(([192, 0, 2, 8], 3260).into()), nvme: None },
        });
        let mut gateway = Gateway::new(Machine::of(record));
        let wants: Arc<Mutex<Vec<RelayRequest>>> = Arc::default();
        let into = wants.clone();
        let takes = Arc::new(move |wanted| into.lock().expect("one thread").push(wanted));
        let (down, load) = (Arc::default(), Arc::default());
        let relays = Relays { secret: [7; 32], takes, down, load };
        gateway.carried_out(Order::Relays(Arc::new(relays)));
        Self { gateway, wants }
    }

    fn wanted(&mut self) -> RelayRequest {
        (0..4).for_each(|_| self.gateway.bench.iterate());
        let mut wants = self.wants.lock().expect("one thread");
        assert_eq!(wants.len(), 1);
        wants.remove(0)
    }

    /// Has the relay of the connection opened, and its host asked. `first`: the first command of two.
    fn opened(&mut self, first: u32) -> (u64, RelayNews) {
        self.gateway.write(first, 8);
        assert_eq!(self.gateway.bench.status(5, first).0, BUSY);
        let RelayRequest::Open(number, _, news) = self.wanted() else { panic!("no relay") };
        news(News::Opened(number));
        let ttt = self.gateway.asked();
        self.gateway.answers(ttt);
        // Its session at this gateway is new, and it hears of that first.
        self.gateway.write(first + 1, 8);
        assert_eq!(self.gateway.bench.status(5, first + 1).0, CHECK_CONDITION);
        (number, news)
    }

    fn command(&mut self, relay: u64) -> Relayed {
        match self.wanted() {
            RelayRequest::Command(number, relayed, _) if number == relay => relayed,
            _ => panic!("a command was expected"),
        }
    }
}

#[test]
fn a_standby_passes_on_what_its_hosts_write_and_read() {
    let mut standby = Standby::new();
    standby.gateway.bench.connect(5);
    standby.gateway.bench.log_in_at_standby(5);
    let (relay, news) = standby.opened(1);

    // Data that is fetched in two RDMA Reads.
    let data = pattern(512 << 10);
    let header = opens(Some(7), None);
    let all = (WRITE, &cdb(0x2a, 1024)[..], 512 * KIB);
    standby.gateway.bench.command(5, 3, all, header, &[]);
    let mut at = 0;
    while at < data.len() {
        match standby.gateway.bench.next(5, &data[at..], Status::Success) {
            Work::Read(len, from) => {
                assert_eq!(from.address, remote(7).offset + at as u64);
                at += len;
            }
            _ => panic!("an RDMA Read was expected"),
        }
    }
    let relayed = standby.command(relay);
    assert!(relayed.data == data, "the owner gets other data");
    news(News::Answered(relayed.ticket, Answered::default()));
    assert_eq!(standby.gateway.bench.status(5, 3), (GOOD, Some(7)), "its key is taken back");

    // Data that comes back in pieces, of more than there is memory in one: 8 of 16 MiB are receives' and the shard's.
    let data = pattern(8 << 20);
    let header = opens(None, Some(9));
    let all = (READ, &cdb(0x28, 16_384)[..], 8192 * KIB);
    standby.gateway.bench.command(5, 4, all, header, &[]);
    let relayed = standby.command(relay);
    assert_eq!(relayed.expects_read, 8192 * KIB);
    let answered = Answered { data: data.clone(), ..Answered::default() };
    news(News::Answered(relayed.ticket, answered));
    let (mut seen, mut came) = (vec![0; data.len()], 0);
    while came < data.len() {
        let Work::Write(bytes, to) = standby.gateway.bench.next(5, &[], Status::Success) else {
            panic!("an RDMA Write was expected");
        };
        let at = (to.address - remote(9).offset) as usize;
        seen[at..at + bytes.len()].copy_from_slice(&bytes);
        came += bytes.len();
    }
    assert!(seen == data, "other data came back");
    assert_eq!(standby.gateway.bench.status(5, 4), (GOOD, Some(9)));
}

#[test]
fn a_queue_pair_ends_with_the_relay_that_has_its_commands() {
    let mut standby = Standby::new();
    standby.gateway.bench.connect(5);
    standby.gateway.bench.log_in_at_standby(5);
    let (relay, news) = standby.opened(1);
    let header = opens(None, Some(9));
    standby.gateway.bench.command(5, 3, (READ, &cdb(0x28, 8), 4096), header, &[]);
    // Its data is on its way while the relay ends: it was not passed on.
    let relayed = standby.command(relay);
    standby.gateway.write(4, 8);
    (0..4).for_each(|_| standby.gateway.bench.iterate());
    news(News::Ended(relay));
    standby.gateway.bench.until_closed(5);
    news(News::Answered(relayed.ticket, Answered::default()));
    drop(relayed);
    (0..8).for_each(|_| standby.gateway.bench.iterate());
    assert!(standby.gateway.bench.wire.next(5, &[], Status::Success).is_none(), "nothing is said");
    standby.gateway.bench.assert_all_is_given_back();
}
