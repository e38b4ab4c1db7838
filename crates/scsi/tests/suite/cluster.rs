//! Nexuses that send commands to one logical unit and its reservations.

use std::sync::Arc;

use crate::common::*;
use lunet_reservations::{Damaged, Event, Registrant, Reservations, Saved};
use lunet_scsi::reserve::{
    InitiatorPort, LiveNexus, NexusId, Outcome, Port, Request, Seat, Seats, TargetPort,
};
use lunet_scsi::{Action, CommandIn, Nexus, Reply, Unit, execute, parameters};

pub const GOOD: u8 = 0x00;
pub const CHECK: u8 = 0x02;
pub const CONFLICT: u8 = 0x18;

/// The reservations of a volume, and who is logged in at the unit.
pub struct State {
    pub reservations: Reservations,
    pub seats: Seats,
}

impl State {
    pub fn new(ports: Vec<Port>, capable: bool) -> Self {
        Self { reservations: Reservations::new(capable), seats: Seats::new(ports) }
    }

    /// What saves itself a look at the state goes by.
    pub fn changes(&self) -> u64 {
        1 + self.reservations.changes() + self.seats.changes()
    }

    pub fn attach(&mut self, nexus: Arc<LiveNexus>) -> Seat {
        self.seats.attach(nexus)
    }

    pub fn detach(&mut self, seat: Seat) {
        let registrant = self.seats.detach(seat).expect("it has its seat");
        self.reservations.session_ended(&registrant);
    }

    pub fn reset(&mut self) {
        self.seats.reset();
        self.reservations.end_claim();
    }

    pub fn refresh(&mut self, seat: Seat, nexus: &mut Nexus) {
        let seen = self.changes();
        self.seats.refresh(seat, &self.reservations, seen, nexus);
    }

    pub fn execute(&mut self, seat: Seat, request: &Request) -> Outcome {
        let nexus = self.seats.nexus(seat).expect("it has its seat");
        let outcome = request.execute(&mut self.reservations, nexus, self.seats.ports());
        self.seats.tell(&outcome.events);
        outcome
    }

    pub fn saved(&self) -> Option<Saved> {
        self.reservations.saved()
    }

    pub fn restore(&mut self, saved: Saved) -> Result<(), Damaged> {
        self.reservations.restore(saved)
    }
}

pub struct Node {
    pub id: Arc<LiveNexus>,
    pub seat: Seat,
    pub nexus: Nexus,
}

pub struct Cluster {
    pub unit: Unit,
    pub state: State,
    pub nodes: Vec<Node>,
    /// What the last PREEMPT AND ABORT aborted.
    pub aborts: Vec<Registrant>,
    /// Who has lost what to the last command on reservations.
    pub events: Vec<Event>,
}

pub fn port(tag: u16) -> TargetPort {
    TargetPort { target: "iqn.t".into(), tag }
}

/// A port that leads to the unit; its number is another than its tag.
pub fn leading(name: TargetPort) -> Port {
    Port { relative: relative(name.tag), name }
}

/// RELATIVE TARGET PORT IDENTIFIER of the port with this tag.
pub fn relative(tag: u16) -> u16 {
    0x1000 + tag
}

pub fn initiator(letter: char) -> InitiatorPort {
    InitiatorPort { name: format!("iqn.host:{letter}"), isid: [0x40, 0, 0, 0, 0, letter as u8] }
}

impl Cluster {
    /// Hosts a, b and d through port 1, host a through port 2 as well: nodes 0, 1, 3 and 2.
    pub fn new() -> Self {
        let other = TargetPort { target: "iqn.other".into(), tag: 3 };
        Self::over(State::new([port(1), port(2), other].map(leading).to_vec(), true))
    }

    pub fn over(state: State) -> Self {
        Self::of(state, [('a', 1), ('b', 1), ('a', 2), ('d', 1)])
    }

    /// Two hosts with two paths each: nodes 0 and 1 are the paths of a, nodes 2 and 3 those of b.
    pub fn two_hosts() -> Self {
        let state = State::new([port(1), port(2)].map(leading).to_vec(), true);
        Self::of(state, [('a', 1), ('a', 2), ('b', 1), ('b', 2)])
    }

    fn of(state: State, paths: [(char, u16); 4]) -> Self {
        let (nodes, aborts, events) = (vec![], vec![], vec![]);
        let mut cluster = Self { unit: unit(), state, nodes, aborts, events };
        for (letter, tag) in paths {
            let id = LiveNexus::new(NexusId { initiator: initiator(letter), port: port(tag) });
            let seat = cluster.state.attach(id.clone());
            cluster.nodes.push(Node { id, seat, nexus: Nexus::new() });
        }
        cluster
    }

    /// The session of a node ends and begins anew.
    pub fn log_in_again(&mut self, who: usize) {
        let node = &mut self.nodes[who];
        self.state.detach(node.seat);
        node.seat = self.state.attach(node.id.clone());
        node.nexus = Nexus::new();
    }

    /// The target loses power: what was kept is taken up, and all sessions begin anew.
    pub fn lose_power(&mut self) {
        let mut fresh = State::new(self.state.seats.ports().to_vec(), true);
        if let Some(saved) = self.state.saved() {
            fresh.restore(saved).expect("what was saved makes sense");
        }
        self.state = fresh;
        for node in &mut self.nodes {
            node.seat = self.state.attach(node.id.clone());
            node.nexus = Nexus::new();
        }
    }

    /// Sends a command with the data that it may ask for.
    pub fn send(&mut self, who: usize, cdb: &[u8], list: &[u8]) -> Reply {
        let node = &mut self.nodes[who];
        if node.nexus.seen() != self.state.changes() {
            self.state.refresh(node.seat, &mut node.nexus);
        }
        let command = CommandIn { cdb, expects_read: 4096, expects_write: list.len() as u32 };
        let task = execute(&target(), Some(&self.unit), Some(&mut node.nexus), &command);
        let action = match task.action {
            Action::Parameters(asked) => parameters(&self.unit, asked, list),
            action => action,
        };
        match action {
            Action::Complete(reply) => reply,
            Action::Reservation(request) => {
                let Outcome { reply, events } = self.state.execute(node.seat, &request);
                self.aborts = Event::aborted(&events).cloned().collect();
                self.events = events;
                reply
            }
            // An operation on blocks: it was let through.
            _ => Reply::GOOD,
        }
    }

    pub fn status(&mut self, who: usize, cdb: &[u8]) -> u8 {
        self.send(who, cdb, &[]).status
    }

    pub fn read(&mut self, who: usize) -> u8 {
        self.status(who, &cdb(10, &[(0, &[0x28]), (8, &[1])]))
    }

    pub fn write(&mut self, who: usize) -> u8 {
        self.send(who, &cdb(10, &[(0, &[0x2A]), (8, &[1])]), &[0; 512]).status
    }

    /// PERSISTENT RESERVE OUT.
    pub fn out(&mut self, who: usize, action: u8, kind: u8, list: &[u8]) -> Reply {
        let len = (list.len() as u32).to_be_bytes();
        self.send(who, &cdb(10, &[(0, &[0x5F, action, kind]), (5, &len)]), list)
    }

    /// PERSISTENT RESERVE OUT with the plain parameter list; the status.
    pub fn plain(&mut self, who: usize, action: u8, kind: u8, key: u64, second: u64) -> u8 {
        self.out(who, action, kind, &list(key, second, 0)).status
    }

    pub fn register(&mut self, who: usize, key: u64, new_key: u64) -> u8 {
        self.plain(who, 0, 0, key, new_key)
    }

    /// PERSISTENT RESERVE IN.
    pub fn report(&mut self, who: usize, action: u8) -> Vec<u8> {
        let reply = self.send(who, &cdb(10, &[(0, &[0x5E, action]), (7, &[0x10, 0])]), &[]);
        assert_eq!((reply.status, reply.sense), (GOOD, None));
        reply.data
    }

    /// The registered keys, in order.
    pub fn keys(&mut self, who: usize) -> Vec<u64> {
        let data = self.report(who, 0);
        data[8..].chunks(8).map(|key| u64::from_be_bytes(key.try_into().unwrap())).collect()
    }

    /// TYPE of the reservation, 0 if there is none.
    pub fn kind(&mut self, who: usize) -> u8 {
        self.report(who, 1).get(21).copied().unwrap_or(0)
    }

    /// Takes the unit attentions of a node: the qualifiers of those with code 2Ah.
    pub fn told(&mut self, who: usize) -> Vec<u8> {
        let mut told = vec![];
        loop {
            let sense = self.send(who, &[3, 0, 0, 0, 252, 0], &[]).data;
            if sense[2] == 0 {
                return told;
            }
            assert_eq!((sense[2], sense[12]), (6, 0x2A));
            told.push(sense[13]);
        }
    }
}

/// The plain parameter list; `flags` are SPEC_I_PT (08h), ALL_TG_PT (04h) and APTPL (01h).
pub fn list(key: u64, second: u64, flags: u8) -> Vec<u8> {
    let mut list = [key.to_be_bytes(), second.to_be_bytes(), [0; 8]].concat();
    list[20] = flags;
    list
}

/// The parameter list of REGISTER AND MOVE; `flags` are UNREG (02h) and APTPL (01h).
pub fn move_list(key: u64, new: u64, flags: u8, tag: u16, to: &InitiatorPort) -> Vec<u8> {
    let mut list = [key.to_be_bytes(), new.to_be_bytes(), [0; 8]].concat();
    list[17] = flags;
    list[18..20].copy_from_slice(&relative(tag).to_be_bytes());
    to.encode(&mut list);
    let len = (list.len() - 24) as u32;
    list[20..24].copy_from_slice(&len.to_be_bytes());
    list
}
