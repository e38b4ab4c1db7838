//! Standbys pass commands on to the owner: a session between two gateways for each connection of a host that has I/O.

use std::net::SocketAddr;
use std::rc::Rc;

use lunet_gateway::{Epoch, GatewayId, Passage, Turn, Way};

use crate::host::{Question, Told, Wanted};
use crate::node::{Command, Connection};
use crate::world::{Event, World};
use crate::{SEC, Time};

/// How long an answer of the owner may take.
const LATE: Time = 5 * SEC;

/// What gateways tell each other about a session between them.
#[derive(Clone, Debug)]
pub enum Carried {
    /// To the owner: a host logs in, in that epoch.
    Open(u8, Epoch),
    /// To the owner: a command, by the number that its answer has.
    Command(u64, Wanted),
    /// Of the owner: it is open.
    Opened,
    /// Of the owner: an answer.
    Answer(u64, Told),
    /// Of the owner: it is to be opened anew.
    Stale,
    /// It is over.
    Ended,
}

/// A session with the owner, for a connection of a host.
#[derive(Debug)]
pub struct Relay {
    session: u64,
    to: usize,
    epoch: Epoch,
    open: bool,
    /// The owner wants it to end.
    stale: bool,
    /// Commands that the owner has not answered.
    waiting: Vec<u64>,
}

/// A change that goes by a host's way, until the storage has nothing of it any more.
#[derive(Debug)]
pub struct Going {
    way: Rc<Way>,
    turn: Turn,
}

impl Drop for Going {
    fn drop(&mut self) {
        self.way.ended(self.turn);
    }
}

/// The portal of a gateway.
pub fn portal_of(gateway: usize) -> SocketAddr {
    ([192, 0, 2, 1 + gateway as u8], 3260).into()
}

impl World {
    fn carry(&mut self, (from, to): (usize, usize), session: u64, what: Carried) {
        let at = self.between((from, to), session);
        self.at(at, Event::Carried(from, to, session, what));
    }

    /// A command of a host comes to a gateway that passes it on.
    pub fn relay(&mut self, gateway: usize, id: u64) {
        let node = &mut self.nodes[gateway];
        let Some(Command { connection, wanted, asked, .. }) = node.commands.get(&id).cloned()
        else {
            return;
        };
        let Some(relay) = node.relays.get_mut(&connection) else {
            self.open_relay(gateway, connection);
            return self.end(gateway, id, Told::Busy);
        };
        // What was sent before the session was opened is not passed on.
        if !relay.open || relay.stale || asked != relay.session {
            return self.end(gateway, id, Told::Busy);
        }
        relay.waiting.push(id);
        let (session, to) = (relay.session, relay.to);
        self.carry((gateway, to), session, Carried::Command(id, wanted));
        self.to_node(gateway, self.now + LATE, Event::RelayLate(session, Some(id)));
    }

    fn open_relay(&mut self, gateway: usize, connection: u64) {
        let session = self.number();
        let node = &mut self.nodes[gateway];
        let (Some((epoch, to)), Some(host)) =
            (node.reach, node.connections.get(&connection).map(|it| it.host))
        else {
            return;
        };
        let (open, stale, waiting) = (false, false, Vec::new());
        node.relays.insert(connection, Relay { session, to, epoch, open, stale, waiting });
        self.carry((gateway, to), session, Carried::Open(host, epoch));
        self.to_node(gateway, self.now + LATE, Event::RelayLate(session, None));
    }

    /// An answer has taken too long, if it is not there.
    pub fn relay_late(&mut self, gateway: usize, session: u64, id: Option<u64>) {
        let mut relays = self.nodes[gateway].relays.iter();
        let Some((connection, relay)) = relays.find(|(_, relay)| relay.session == session) else {
            return;
        };
        let waits = id.map_or(!relay.open, |id| relay.waiting.contains(&id));
        let connection = *connection;
        if waits {
            self.end_relay(gateway, connection, true);
        }
    }

    /// A session with the owner is over. Nobody knows what becomes of commands without an answer: nothing is said.
    pub fn end_relay(&mut self, gateway: usize, connection: u64, tells: bool) {
        let node = &mut self.nodes[gateway];
        let Some(relay) = node.relays.remove(&connection) else { return };
        relay.waiting.iter().for_each(|id| drop(node.commands.remove(id)));
        if tells {
            self.carry((gateway, relay.to), relay.session, Carried::Ended);
        }
        if !relay.waiting.is_empty() {
            self.abort(gateway, connection);
        }
    }

    /// The gate of a gateway has changed: sessions of another epoch are over, at both ends.
    pub fn relays_end(&mut self, gateway: usize) {
        let node = &self.nodes[gateway];
        let gate = node.gate();
        let goes_on = |relay: &Relay| gate.is_through() && gate.epoch() == relay.epoch;
        let over = node.relays.iter().filter(|(_, relay)| !goes_on(relay));
        let over: Vec<u64> = over.map(|(connection, _)| *connection).collect();
        over.into_iter().for_each(|connection| self.end_relay(gateway, connection, true));
        let node = &self.nodes[gateway];
        let left = |it: &Connection| it.from.is_some() && it.is_of_another_epoch(&gate);
        let left = node.connections.iter().filter(|(_, it)| left(it));
        let left: Vec<u64> = left.map(|(id, _)| *id).collect();
        left.into_iter().for_each(|id| self.abort(gateway, id));
    }

    /// One gateway tells another something.
    pub fn carried(&mut self, (from, to): (usize, usize), session: u64, what: Carried) {
        if !self.nodes[to].alive {
            if !matches!(what, Carried::Ended) && self.chance.once_in(2) {
                self.carry((to, from), session, Carried::Ended);
            }
            return;
        }
        match what {
            Carried::Open(host, epoch) => self.relay_comes((from, to), session, host, epoch),
            Carried::Command(asked, wanted) => self.command(to, session, wanted, asked),
            Carried::Opened | Carried::Answer(..) | Carried::Stale => {
                self.relay_hears(to, session, what);
            }
            Carried::Ended => {
                self.closed(to, session);
                let mut relays = self.nodes[to].relays.iter();
                let found = relays.find(|(_, relay)| relay.session == session);
                if let Some(connection) = found.map(|(connection, _)| *connection) {
                    self.end_relay(to, connection, false);
                }
            }
        }
    }

    /// A session of another gateway, at the owner.
    fn relay_comes(&mut self, (from, to): (usize, usize), session: u64, host: u8, epoch: Epoch) {
        let gate = self.nodes[to].gate();
        // Both prove the secret of the record.
        let is_of_record = self.nodes[from].machine().tag() == self.nodes[to].machine().tag();
        if gate.is_open() && gate.epoch() == epoch && is_of_record {
            self.begin_session(to, session, host, Some(from));
        } else {
            self.carry((to, from), session, Carried::Ended);
        }
    }

    /// The owner says something to a gateway that passes commands on.
    fn relay_hears(&mut self, gateway: usize, session: u64, what: Carried) {
        let turn = |world: &mut Self, host| world.nodes[gateway].way(host).turn();
        let node = &mut self.nodes[gateway];
        let found = node.relays.iter_mut().find(|(_, relay)| relay.session == session);
        let Some((connection, relay)) = found else { return };
        let connection = *connection;
        match what {
            Carried::Opened => {
                relay.open = true;
                let Some(host) = node.connections.get(&connection).map(|it| it.host) else {
                    return;
                };
                let (ping, turn) = (node.gate().ping(), turn(self, host));
                let question = Question { ping, turn, session };
                return self.to_host(host, gateway, connection, Told::Ping(question));
            }
            Carried::Answer(id, told) => {
                relay.waiting.retain(|other| *other != id);
                self.end(gateway, id, told);
            }
            _ => relay.stale = true,
        }
        let relay = self.nodes[gateway].relays.get(&connection);
        if relay.is_some_and(|relay| relay.stale && relay.waiting.is_empty()) {
            self.end_relay(gateway, connection, true);
        }
    }

    /// A host has one way at a time. Sees whether a change goes by it; it is answered if not.
    pub fn goes_its_way(&mut self, gateway: usize, id: u64) -> bool {
        let node = &mut self.nodes[gateway];
        let Some(command) = node.commands.get(&id) else { return false };
        if command.going.is_some() {
            return true;
        }
        let Command { host, fresh, connection, from, .. } = *command;
        let (way, through) = (node.way(host), GatewayId(from.unwrap_or(gateway) as u16));
        let passage = way.admits(through, fresh);
        if let (Passage::Go(turn), Some(command)) = (passage, node.commands.get_mut(&id)) {
            command.going = Some(Rc::new(Going { way, turn }));
            return true;
        }
        if passage == Passage::Ask {
            match from {
                Some(from) => self.carry((gateway, from), connection, Carried::Stale),
                None => {
                    let (ping, turn) = (node.gate().ping(), way.turn());
                    let question = Question { ping, turn, session: 0 };
                    self.to_host(host, gateway, connection, Told::Ping(question));
                }
            }
        }
        self.end(gateway, id, Told::Busy);
        false
    }

    /// A gateway tells a host something, or the gateway through which it comes.
    pub fn tell_host(&mut self, gateway: usize, id: u64, (asked, told): (u64, Told)) {
        let Some(connection) = self.nodes[gateway].connections.get(&id) else { return };
        let (host, from) = (connection.host, connection.from);
        match from {
            None => self.to_host(host, gateway, id, told),
            Some(from) => {
                let what = match told {
                    Told::LoggedIn => Carried::Opened,
                    told => Carried::Answer(asked, told),
                };
                self.carry((gateway, from), id, what);
            }
        }
    }

    /// A connection was aborted: whoever it comes from hears of it.
    pub fn tell_aborted(&mut self, gateway: usize, id: u64, connection: &Connection) {
        match connection.from {
            None => self.to_host(connection.host, gateway, id, Told::Aborted),
            Some(from) => self.carry((gateway, from), id, Carried::Ended),
        }
        self.end_relay(gateway, id, true);
    }
}
