//! To which epoch a queue belongs.
//!
//! A controller has no way to ask a host something on an I/O queue. But it answers commands there, and a host may
//! have no more of them outstanding than the queue has entries, each with an identifier of its own, which is free again
//! when the completion has come (NVMe base specification, sections 3.3.3.1 and 3.3.1.2.1). So commands that are turned back
//! in an epoch are the question: one with an identifier that was turned back, or one more than the queue has entries, cannot have
//! been sent before one of these completions was received. What is behind that on the connection was sent later still.

use lunet_gateway::{Admission, Gate, Link, Ping, Stamp};

use super::GroupId;

/// A queue of a group's controller.
pub struct Gated {
    /// Its group.
    pub group: GroupId,
    link: Link,
    /// The epoch that it is asked for, and the identifiers of the commands that were turned back in it.
    asked: Option<(Ping, Vec<u16>)>,
    /// The stamp of the first command of a fused pair, until the second is there.
    pub first: Option<Stamp>,
}

impl Gated {
    /// A connection whose Connect is answered now.
    pub fn new(group: GroupId, gate: &Gate) -> Self {
        Self { group, link: gate.connected(), asked: None, first: None }
    }

    /// The stamp of what arrived before a gate has changed that is asked now.
    pub fn now(&self) -> Stamp {
        self.link.stamp()
    }

    /// The stamp of a command with this identifier, which arrives now on a queue of so many entries.
    pub fn arrives(&mut self, cid: u16, gate: &Gate, entries: usize) -> Stamp {
        if let Some((ping, turned)) = &self.asked {
            if *ping == gate.ping() && (turned.contains(&cid) || turned.len() >= entries) {
                self.link.renew(*ping);
                self.asked = None;
            }
        }
        self.link.stamp()
    }

    /// A command is turned back now, as its queue belongs to an earlier epoch than the gate, which is open.
    pub fn turned_back(&mut self, cid: u16, gate: &Gate) {
        if !gate.is_open() || gate.admits(self.link.stamp()) == Admission::Execute {
            return;
        }
        let ping = gate.ping();
        match &mut self.asked {
            Some((asked, turned)) if *asked == ping => turned.push(cid),
            asked => *asked = Some((ping, vec![cid])),
        }
    }
}
