//! Persistent reservations of a volume: who is registered with which key, who holds the volume, and what that lets
//! each do.
//!
//! [`Reservations`] is the whole state, and every change of it is one step: it is refused and changes nothing, or it
//! is done and gives back [events](Event), which say who has lost what. Whoever registers is a [`Registrant`]: a name
//! that means something to one protocol only, so that several protocols share the state, and each respects what was
//! reserved by another. A protocol keeps beside it what it tells its clients, and how.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod access;
mod change;
mod claim;
mod saved;

use alloc::sync::Arc;
use alloc::vec::Vec;

pub use access::{Access, Kind};
pub use change::{Refusal, Register, Result};
pub use saved::{Damaged, Saved};

/// Registrations of one volume at the most.
pub const MAX_REGISTRATIONS: usize = 256;

/// Registrations of one volume by [hosts](Registrant::host) of one name at the most. A host has one identifier: whoever
/// makes up others would fill the volume's registrations.
pub const MAX_OF_NAME: usize = 4;

/// The family of [hosts](Registrant::host) that are known by an identifier.
pub const HOST: &str = "host";

/// Who can be registered: a host, or one path of a host, by the name that a protocol gives it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Registrant {
    /// The protocol that can read the name.
    family: &'static str,
    name: Arc<[u8]>,
}

impl Registrant {
    /// The registrant that the protocol `family` calls `name`. No two families have a registrant in common.
    pub fn new(family: &'static str, name: &[u8]) -> Self {
        Self { family, name: name.into() }
    }

    /// A host by its identifier of 128 bits and its name, whichever way it comes. Another name with the same identifier is
    /// another registrant: identifiers are not proved.
    pub fn host(id: [u8; 16], name: &str) -> Self {
        Self::new(HOST, &[&id, name.as_bytes()].concat())
    }

    /// The identifier of a [host](Self::host).
    pub fn host_id(&self) -> Option<[u8; 16]> {
        self.name_in(HOST)?.first_chunk().copied()
    }

    /// The name of a [host](Self::host).
    pub fn host_name(&self) -> Option<&str> {
        core::str::from_utf8(self.name_in(HOST)?.get(16..)?).ok()
    }

    /// Its name, if it is one of this family.
    pub fn name_in(&self, family: &str) -> Option<&[u8]> {
        (self.family == family).then_some(&*self.name)
    }
}

/// A registrant with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Whose it is.
    pub registrant: Registrant,
    /// The reservation key, never 0.
    pub key: u64,
}

/// Somebody has lost something to a request of another registrant, or, where it says so, to its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Who.
    pub registrant: Registrant,
    /// What.
    pub loses: Loss,
}

impl Event {
    /// Those among the losers whose commands are to be aborted.
    pub fn aborted(events: &[Self]) -> impl Iterator<Item = &Registrant> {
        let aborted = events.iter().filter(|event| event.loses == Loss::Commands);
        aborted.map(|event| &event.registrant)
    }
}

/// What a registrant loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// A reservation that it shared is released, or is of another kind now.
    Reservation,
    /// Its registration was preempted.
    Registration,
    /// All registrations were cleared, its own among them, and with them the reservation.
    Everything,
    /// Its commands are to be aborted before the request is answered that asks for it; that request is spared. This
    /// may be said of the registrant that asks.
    Commands,
}

/// Who holds the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Held {
    Free,
    /// By a claim: nobody is registered.
    Claimed(Registrant),
    /// By one registrant.
    By(Kind, Registrant),
    /// By every registrant; there is one.
    ByAll(Kind),
}

/// The reservations of one volume.
#[derive(Clone, Debug)]
pub struct Reservations {
    registrations: Vec<Registration>,
    held: Held,
    generation: u32,
    changes: u64,
    /// The state can be kept through power loss.
    capable: bool,
    /// It is to be kept, as the latest registration says.
    activated: bool,
}

impl Reservations {
    /// No reservation. `capable` says whether the caller can keep them through power loss, see [`Self::saved`].
    pub const fn new(capable: bool) -> Self {
        Self {
            registrations: Vec::new(),
            held: Held::Free,
            generation: 0,
            changes: 0,
            capable,
            activated: false,
        }
    }

    /// The number of the latest change: it only rises.
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    /// How often registrations were made, changed, cleared and preempted since the start, modulo 2³². Reservations
    /// and releases do not count.
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// True if the state can be kept through power loss.
    pub const fn capable(&self) -> bool {
        self.capable
    }

    /// True if the state is to be kept through power loss.
    pub const fn activated(&self) -> bool {
        self.activated
    }

    /// All registrations, the oldest first.
    pub fn registrations(&self) -> &[Registration] {
        &self.registrations
    }

    /// The key of a registrant; `None` if it is not registered.
    pub fn key_of(&self, who: &Registrant) -> Option<u64> {
        self.position(who).map(|at| self.registrations[at].key)
    }

    /// The kind of the persistent reservation, if there is one.
    pub const fn kind(&self) -> Option<Kind> {
        match &self.held {
            Held::By(kind, _) | Held::ByAll(kind) => Some(*kind),
            Held::Free | Held::Claimed(_) => None,
        }
    }

    /// Who holds the persistent reservation, if one registrant does.
    pub const fn holder(&self) -> Option<&Registrant> {
        match &self.held {
            Held::By(_, holder) => Some(holder),
            Held::Free | Held::Claimed(_) | Held::ByAll(_) => None,
        }
    }

    /// True if a registrant holds the persistent reservation, alone or with all others.
    pub fn holds(&self, who: &Registrant) -> bool {
        match &self.held {
            Held::By(_, holder) => holder == who,
            Held::ByAll(_) => self.position(who).is_some(),
            Held::Free | Held::Claimed(_) => false,
        }
    }

    /// What the reservations let somebody do, registered or not.
    pub fn access(&self, who: &Registrant) -> Access {
        let (kind, holds) = match &self.held {
            Held::Free => return Access::FULL,
            Held::Claimed(holder) if holder == who => return Access::FULL,
            Held::Claimed(_) => return Access::NONE,
            Held::By(kind, holder) => (*kind, holder == who),
            Held::ByAll(kind) => (*kind, false),
        };
        if holds || (kind.shared() && self.position(who).is_some()) {
            return Access::FULL;
        }
        Access { status: true, read: kind.reads_are_free(), write: false }
    }

    /// True if every request has the same outcome here and there, and leads to the same state as far as it is
    /// [saved](Self::saved).
    pub fn decides_like(&self, other: &Self) -> bool {
        self.registrations == other.registrations
            && self.held == other.held
            && (self.capable, self.activated) == (other.capable, other.activated)
    }

    /// Where the registration of a registrant stands.
    fn position(&self, who: &Registrant) -> Option<usize> {
        self.registrations.iter().position(|r| r.registrant == *who)
    }

    /// Every registrant but one loses this.
    fn others_lose(&self, who: &Registrant, loses: Loss, events: &mut Vec<Event>) {
        let others = self.registrations.iter().map(|r| &r.registrant).filter(|id| *id != who);
        events.extend(others.map(|id| Event { registrant: id.clone(), loses }));
    }
}
