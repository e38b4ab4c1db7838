//! To which epoch a queue belongs, for which turn of its host's way it is fresh, and what may go by its relay.
//!
//! A controller has no way to ask a host something on an I/O queue. But it answers commands there, and a host may
//! have no more of them outstanding than the queue has entries, each with an identifier of its own, which is free again
//! when the completion has come (NVMe base specification, sections 3.3.3.1 and 3.3.1.2.1). So commands that are turned back
//! in an epoch are the question: one with an identifier that was turned back, or one more than the queue has entries, cannot have
//! been sent before one of these completions was received. What is behind that on the connection was sent later still.

//! A relay's own queue at the owner is asked nothing: what its gateway has received tells nothing of the host. It belongs to the
//! epoch and the turn of its Connect, and when they are over it is opened anew.

use std::sync::Arc;

use lunet_gateway::{Admission, Gate, GatewayId, Link, Ping, Stamp, Turn, Way};
use lunet_relay::Load;

use super::{Group, GroupId};

/// A queue of a group's controller.
pub struct Gated {
    /// Its group.
    pub group: GroupId,
    /// By which gateway its host's changes come.
    pub way: Arc<Way>,
    /// By which gateway this queue comes.
    pub by: GatewayId,
    /// It is a relay of that gateway.
    pub is_relay: bool,
    /// How it reaches the owner, at a standby.
    pub relay: Relay,
    /// What is on its way there.
    pub load: Arc<Load>,
    link: Link,
    fresh: Turn,
    /// What it is asked, and the identifiers of the commands that were turned back since.
    asked: Option<(Question, Vec<u16>)>,
    /// What the first command of a fused pair is good for, until the second is there.
    pub first: Option<Good>,
}

/// What is shown by a command with an identifier that was turned back.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Question {
    /// The epoch.
    ping: Ping,
    /// The turn of the host's way.
    turn: Turn,
    /// The relay that was open.
    relay: Option<u64>,
}

/// What a command is good for that has arrived.
#[derive(Clone, Copy)]
pub struct Good {
    /// To be executed in this epoch.
    pub stamp: Stamp,
    /// To change something in this turn of its host's way.
    pub turn: Turn,
    /// To go by this relay.
    pub relay: Option<u64>,
}

/// How a queue of a host reaches the owner, at a standby.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Relay {
    /// Not at all.
    #[default]
    None,
    /// By this relay, which is being opened.
    Opening(u64),
    /// By this one, which is open, when a command has come that was sent since.
    Asked(u64),
    /// By this one.
    Open(u64),
}

impl Relay {
    /// Its number.
    pub const fn number(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Opening(number) | Self::Asked(number) | Self::Open(number) => Some(number),
        }
    }
}

impl Gated {
    /// A queue of a host by its NQN, whose Connect is answered now. `through`: the gateway whose relay it is.
    pub fn new(group: &Group, host: &str, through: Option<GatewayId>) -> Self {
        let way = group.ways.of(host);
        let fresh = way.turn();
        Self {
            group: group.id,
            way,
            by: through.unwrap_or(group.members.gateway),
            is_relay: through.is_some(),
            relay: Relay::None,
            load: Arc::default(),
            link: group.gate.connected(),
            fresh,
            asked: None,
            first: None,
        }
    }

    /// What a relay brings from now on is of the present turn.
    pub fn renewed(&mut self) {
        self.fresh = self.way.turn();
    }

    /// True if a gate lets commands of its epoch in, or will.
    pub fn is_served_by(&self, gate: &Gate) -> bool {
        let serves = matches!(gate.admits(self.link.stamp()), Admission::Execute | Admission::Busy);
        serves && gate.connected() == self.link
    }

    /// The stamp of what arrived before a gate has changed that is asked now.
    pub fn now(&self) -> Stamp {
        self.link.stamp()
    }

    fn question(&self, gate: &Gate) -> Question {
        let relay = match self.relay {
            Relay::Asked(number) | Relay::Open(number) => Some(number),
            Relay::None | Relay::Opening(_) => None,
        };
        Question { ping: gate.ping(), turn: self.way.turn(), relay }
    }

    /// What a command with this identifier is good for, which arrives now on a queue of so many entries.
    pub fn arrives(&mut self, cid: u16, gate: &Gate, entries: usize) -> Good {
        let answers = |(question, turned): &mut (Question, Vec<u16>)| {
            question.ping == gate.ping() && (turned.contains(&cid) || turned.len() >= entries)
        };
        if let Some((question, _)) = self.asked.take_if(answers) {
            self.link.renew(question.ping);
            self.fresh = self.fresh.max(question.turn);
            if let (Relay::Asked(number), Some(asked)) = (self.relay, question.relay)
                && number == asked
            {
                self.relay = Relay::Open(number);
            }
        }
        let relay = match self.relay {
            Relay::Open(number) => Some(number),
            _ => None,
        };
        Good { stamp: self.link.stamp(), turn: self.fresh, relay }
    }

    /// A command is turned back now, as its queue is not good for it.
    pub fn turned_back(&mut self, cid: u16, gate: &Gate) {
        if self.is_relay {
            return;
        }
        let question = self.question(gate);
        match &mut self.asked {
            Some((asked, turned)) if *asked == question => turned.push(cid),
            asked => *asked = Some((question, vec![cid])),
        }
    }
}
