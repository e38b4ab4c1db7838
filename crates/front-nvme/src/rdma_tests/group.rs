//! A failover group over RDMA: a deposed owner ends queue pairs and says nothing, a refusal is a question by the order of
//! Sends, and a standby passes commands on whose data it fetches.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use lunet_gateway::{AccessState, ClientName, Contents, Gate, GatewayId, Owner, Portals, Record};
use lunet_nvme::command::Completion;
use lunet_server::part::Part;

use super::*;
use crate::group::{
    Answered, GroupId, GroupMessage, Members, News, Order, RelayNews, RelayRequest, Relayed, Relays,
};
use crate::machine::{Machine, ports};
use crate::message::Message;

const TRANSITION: Status = Status::ANA_TRANSITION;

/// A gateway of a group, and a host with an I/O queue of eight entries over RDMA: queue pair 1 is the admin queue's, and 2 this
/// one's.
struct Gateway {
    bench: Bench,
    machine: Machine,
}

impl Gateway {
    fn new(machine: Machine, state: AccessState) -> Self {
        let mut gateway = Self { bench: Bench::new(layout(None)), machine };
        let subsystems = vec![SUBSYSTEM.to_owned()];
        let members = Members { subsystems, gateway: GatewayId(1), families: &["host"] };
        let (gate, ways) = (gateway.machine.gate(), Arc::default());
        gateway.carried_out(Order::Begin { members: Arc::new(members), gate, ways });
        gateway.carried_out(Order::Access(state));
        gateway
    }

    fn standby() -> Self {
        Self::new(Machine::standby(), AccessState::Standby)
    }

    fn owner() -> Self {
        let mut gateway = Self::standby();
        gateway.takes_over();
        gateway
    }

    fn takes_over(&mut self) {
        let gate = self.machine.takes_over();
        self.set_gate(gate);
        self.carried_out(Order::Access(AccessState::Optimized));
    }

    fn connect(&mut self) {
        let cntlid = self.bench.admin(1);
        self.bench.accept(2, asked(1, 7));
        assert!(self.bench.connect(2, &of_queue(1, 7, cntlid)).completion().status.is_success());
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

    fn iterate(&mut self) {
        (0..4).for_each(|_| self.bench.iterate());
    }

    /// Sends a command of eight blocks with this identifier, whose data is in the host's memory.
    fn send(&mut self, cid: u16, write: bool) {
        let sqe = Sqe { cid: U16::new(cid), ..io(write, 8, Sgl::keyed(memory(9), 4096, false)) };
        self.bench.wire.send(2, sqe.as_bytes());
    }

    /// The status of the command with this identifier, whose data is this.
    fn ended(&mut self, cid: u16, fill: u8) -> Status {
        loop {
            match self.bench.next(2, &[fill; 4096], fake::Status::Success) {
                Work::Read(len, _) => assert_eq!(len, 4096),
                Work::Write(..) => panic!("an RDMA Write instead of a Send"),
                Work::Send(bytes, _) => {
                    let cqe = Cqe::read_from_bytes(&bytes).expect("a completion");
                    assert_eq!(cqe.cid.get(), cid);
                    return cqe.completion().status;
                }
            }
        }
    }

    fn writes(&mut self, cid: u16, fill: u8) -> Status {
        self.send(cid, true);
        self.ended(cid, fill)
    }

    /// Eight blocks of the namespace, which were written.
    fn content(&mut self, cid: u16) -> Vec<u8> {
        self.send(cid, false);
        let seen = self.bench.written(2, memory(9), 4096);
        assert_eq!(self.ended(cid, 0), Status::SUCCESS);
        seen
    }
}

#[test]
fn a_deposed_owner_ends_queue_pairs_and_says_nothing() {
    let mut gateway = Gateway::owner();
    gateway.connect();
    assert_eq!(gateway.writes(1, 1), Status::SUCCESS);
    // Data that is being fetched, data and a completion that the device has, and a command that nobody has looked at.
    gateway.send(2, true);
    gateway.send(3, false);
    gateway.iterate();
    let under_way = gateway.bench.wire.with(|state| (state.posted_reads(2), state.posted(2)));
    assert_eq!(under_way, (1, 3), "a Read, a Write, and a Send");
    gateway.send(4, true);

    let gate = gateway.machine.is_deposed();
    let done = gateway.order(Order::StopAnswering(gate));
    assert!(done.load(Ordering::SeqCst), "the device has no work of it any more");
    gateway.bench.wire.with(|state| {
        assert!([1, 2].iter().all(|endpoint| state.closed.contains(endpoint)));
        assert_eq!(state.posted(1) + state.posted(2), 0);
    });
    // What comes late is of nobody.
    gateway.bench.wire.complete_late(2, 0);
    gateway.iterate();
    for endpoint in [1, 2] {
        let said = gateway.bench.wire.next(endpoint, &[], fake::Status::Success);
        assert!(said.is_none(), "queue pair {endpoint} says something");
    }
    gateway.bench.assert_all_is_given_back();

    gateway.takes_over();
    gateway.bench.wire.with(|state| state.closed.clear());
    gateway.connect();
    assert_eq!(gateway.content(1), [1; 4096], "nothing of it was executed");
}

#[test]
fn a_command_with_an_identifier_that_was_turned_back_is_executed() {
    let mut gateway = Gateway::standby();
    gateway.connect();
    gateway.takes_over();
    for cid in 1..=3 {
        assert_eq!(gateway.writes(cid, 1), TRANSITION, "it may have been sent before");
    }
    assert_eq!(gateway.writes(2, 2), Status::SUCCESS, "its host has had the completion");
    assert_eq!(gateway.writes(5, 3), Status::SUCCESS);
    assert_eq!(gateway.content(6), [3; 4096]);
    // Nor can there be one more than the queue has entries.
    let mut gateway = Gateway::standby();
    gateway.connect();
    gateway.takes_over();
    for cid in 1..=8 {
        assert_eq!(gateway.writes(cid, 1), TRANSITION);
    }
    assert_eq!(gateway.writes(9, 2), Status::SUCCESS);
}

#[test]
fn a_write_whose_data_is_being_fetched_is_turned_back_when_the_data_is_there() {
    let mut gateway = Gateway::owner();
    gateway.connect();
    assert_eq!(gateway.writes(1, 1), Status::SUCCESS);
    gateway.send(2, true);
    gateway.iterate();
    let gate = gateway.machine.begins_move();
    gateway.set_gate(gate);
    let drained = gateway.order(Order::Drain);
    assert!(drained.load(Ordering::SeqCst), "nothing is at the storage");
    // A Send may overtake a Read, and its host takes its memory back then.
    gateway.iterate();
    assert_eq!(gateway.bench.wire.with(|state| (state.posted(2), state.posted_reads(2))), (1, 1));
    assert_eq!(gateway.ended(2, 2), TRANSITION);
    let gate = gateway.machine.stays();
    gateway.set_gate(gate);
    assert_eq!(gateway.content(3), [1; 4096], "nothing was written");
}

/// A standby whose owner can be reached, and what it wants of relays.
struct Standby {
    gateway: Gateway,
    wants: Arc<Mutex<Vec<RelayRequest>>>,
}

impl Standby {
    fn new() -> Self {
        let mut record = Record::new(SUBSYSTEM, [7; 32], ports(), Contents::default());
        record.epoch = record.epoch.next();
        record.owner = Some(Owner {
            gateway: GatewayId(2),
            client: ClientName { address: "192.0.2.8:0/1".into(), lock: "client.1".into() },
            portals: Portals { iscsi: None, nvme: Some(([192, 0, 2, 8], 4420).into()) },
        });
        let mut gateway = Gateway::new(Machine::of(record), AccessState::NonOptimized);
        let wants: Arc<Mutex<Vec<RelayRequest>>> = Arc::default();
        let into = wants.clone();
        let takes = Arc::new(move |wanted| into.lock().expect("one thread").push(wanted));
        let (down, load) = (Arc::default(), Arc::default());
        let relays = Relays { secret: [7; 32], takes, down, load };
        gateway.carried_out(Order::Relays(Arc::new(relays)));
        gateway.connect();
        Self { gateway, wants }
    }

    fn wanted(&mut self) -> RelayRequest {
        self.gateway.iterate();
        let mut wants = self.wants.lock().expect("one thread");
        assert_eq!(wants.len(), 1);
        wants.remove(0)
    }

    /// Has the relay of the queue opened, for a command that is turned back then.
    fn opened(&mut self, cid: u16) -> (u64, RelayNews) {
        self.gateway.send(cid, true);
        let RelayRequest::Open(number, _, news) = self.wanted() else { panic!("no relay") };
        news(News::Opened(number));
        assert_eq!(self.gateway.ended(cid, 0), TRANSITION);
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
    let (relay, news) = standby.opened(1);
    // Data that is fetched in two RDMA Reads.
    let data = pattern(512 << 10);
    let sgl = Sgl::keyed(memory(7), 512 << 10, true);
    let sqe = Sqe { cid: U16::new(1), ..io(true, 1024, sgl) };
    standby.gateway.bench.wire.send(2, sqe.as_bytes());
    let mut at = 0;
    while at < data.len() {
        match standby.gateway.bench.next(2, &data[at..], fake::Status::Success) {
            Work::Read(len, from) => {
                assert_eq!(from.address, memory(7).address + at as u64);
                at += len;
            }
            _ => panic!("an RDMA Read was expected"),
        }
    }
    let relayed = standby.command(relay);
    assert!(relayed.parts[0].data == data, "the owner gets other data");
    let completions = vec![Completion::SUCCESS];
    news(News::Answered(relayed.ticket, Answered { completions, data: Vec::new() }));
    assert_eq!(standby.gateway.ended(1, 0), Status::SUCCESS);

    let data = pattern(512 << 10);
    let sgl = Sgl::keyed(memory(8), 512 << 10, false);
    let sqe = Sqe { cid: U16::new(2), ..io(false, 1024, sgl) };
    standby.gateway.bench.wire.send(2, sqe.as_bytes());
    let relayed = standby.command(relay);
    assert_eq!(relayed.parts[0].reads, 512 << 10);
    let completions = vec![Completion::SUCCESS];
    news(News::Answered(relayed.ticket, Answered { completions, data: data.clone() }));
    assert!(
        standby.gateway.bench.written(2, memory(8), data.len()) == data,
        "other data came back"
    );
    assert_eq!(standby.gateway.ended(2, 0), Status::SUCCESS);
}

#[test]
fn a_queue_pair_ends_with_the_relay_that_has_its_commands() {
    let mut standby = Standby::new();
    let (relay, news) = standby.opened(1);
    standby.gateway.send(1, false);
    let relayed = standby.command(relay);
    news(News::Ended(relay));
    standby.gateway.bench.until_closed(2);
    news(News::Answered(relayed.ticket, Answered::default()));
    standby.gateway.iterate();
    let said = standby.gateway.bench.wire.next(2, &[], fake::Status::Success);
    assert!(said.is_none(), "something was said");
}
