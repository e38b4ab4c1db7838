//! Reservations of one logical unit: RESERVE and RELEASE (SPC-2 5.5.1) and persistent reservations
//! (SPC-5 5.14).
//!
//! [`Reservations`] is the whole state, shared by all initiators, and each command on it is one step.
//! Nexuses that are logged in have a seat here: it keeps the unit attentions that others cause, until the
//! nexus comes by. Each change has a number; a nexus that has seen the latest
//! ([`Nexus::seen`](crate::Nexus::seen)) knows what it may do, and needs no look at the state.

mod access;
mod command;
mod out;
mod port;
mod report;
mod saved;

use alloc::sync::Arc;
use alloc::vec::Vec;

pub(crate) use access::Guard;
pub use access::{Access, Kind};
pub use command::{In, Move, Out, Register, Request};
pub(crate) use command::{parse, persistent_in, persistent_out, release, reserve};
pub use port::{InitiatorPort, NexusId, Port, TargetPort};
pub use saved::{Damaged, Saved, SavedRegistration};

use crate::action::Reply;
use crate::nexus::{Attention, Attentions, Nexus};
use crate::sense::Sense;

/// Registrations of one logical unit at the most.
pub const MAX_REGISTRATIONS: usize = 256;

/// Where a nexus that is logged in waits for news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat(usize);

/// The answer to a [`Request`], and what else follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The answer.
    pub reply: Reply,
    /// Nexuses whose commands are to be aborted before the answer goes out (PREEMPT AND ABORT). The
    /// nexus that asked may be among them; the command that asked is spared.
    pub aborts: Vec<Arc<NexusId>>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    Conflict,
    Check(Sense),
}

impl From<Sense> for Refusal {
    fn from(sense: Sense) -> Self {
        Self::Check(sense)
    }
}

#[derive(Clone, Debug)]
struct Sitting {
    nexus: Arc<NexusId>,
    pending: Attentions,
    /// PREVENT ALLOW MEDIUM REMOVAL: this nexus wants the medium to stay.
    prevents: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Registration {
    nexus: Arc<NexusId>,
    /// Never 0.
    key: u64,
}

/// Who has the unit.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Held {
    Free,
    /// By RESERVE.
    Legacy(Arc<NexusId>),
    /// By one registered nexus.
    By(Kind, Arc<NexusId>),
    /// By every registered nexus; there is one.
    ByAll(Kind),
}

/// The reservations of one logical unit.
#[derive(Clone, Debug)]
pub struct Reservations {
    /// The target ports that lead to the unit.
    ports: Vec<Port>,
    seats: Vec<Option<Sitting>>,
    registrations: Vec<Registration>,
    held: Held,
    /// PRGENERATION.
    generation: u32,
    /// Number of the latest change, from 1 on.
    changes: u64,
    /// Persist through power loss capable.
    capable: bool,
    /// Persist through power loss activated: the APTPL bit of the latest registration.
    activated: bool,
}

impl Reservations {
    /// No reservation. `capable` says whether the caller can keep them through power loss, see
    /// [`Self::saved`].
    pub const fn new(ports: Vec<Port>, capable: bool) -> Self {
        Self {
            ports,
            seats: Vec::new(),
            registrations: Vec::new(),
            held: Held::Free,
            generation: 0,
            changes: 1,
            capable,
            activated: false,
        }
    }

    /// Other target ports lead to the unit from now on. Registrations through those that are gone stay, as
    /// they do while a path is down.
    pub fn set_ports(&mut self, ports: Vec<Port>) {
        self.ports = ports;
    }

    /// The target ports that lead to the unit.
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// The number of the latest change: never 0, and it only rises.
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    /// True if the state is to be kept through power loss.
    pub const fn activated(&self) -> bool {
        self.activated
    }

    /// A nexus has logged in.
    pub fn attach(&mut self, nexus: Arc<NexusId>) -> Seat {
        let sitting = Some(Sitting { nexus, pending: Attentions::default(), prevents: false });
        match self.seats.iter().position(Option::is_none) {
            Some(free) => {
                self.seats[free] = sitting;
                Seat(free)
            }
            None => {
                self.seats.push(sitting);
                Seat(self.seats.len() - 1)
            }
        }
    }

    /// The nexus in a seat.
    pub fn nexus(&self, seat: Seat) -> Option<&Arc<NexusId>> {
        self.seats.get(seat.0)?.as_ref().map(|sitting| &sitting.nexus)
    }

    /// True if a request of the nexus in `seat` has the same outcome here and there, and leads to the same
    /// state as far as it is [saved](Self::saved).
    pub fn decides_like(&self, other: &Self, seat: Seat) -> bool {
        self.nexus(seat) == other.nexus(seat)
            && self.ports == other.ports
            && self.registrations == other.registrations
            && self.held == other.held
            && (self.capable, self.activated) == (other.capable, other.activated)
    }

    /// The nexus is lost: RESERVE ends with it (SPC-2 5.5.1), persistent reservations stay.
    pub fn detach(&mut self, seat: Seat) {
        let Some(sitting) = self.seats.get_mut(seat.0).and_then(Option::take) else { return };
        if self.held == Held::Legacy(sitting.nexus) {
            self.held = Held::Free;
            self.changes += 1;
        }
    }

    /// A reset of the unit or the target: ends RESERVE and PREVENT, persistent reservations stay.
    pub fn reset(&mut self) {
        for sitting in self.seats.iter_mut().flatten() {
            sitting.prevents = false;
        }
        if matches!(self.held, Held::Legacy(_)) {
            self.held = Held::Free;
            self.changes += 1;
        }
    }

    /// Brings a nexus up to date: what it may do, and the unit attentions that wait for it.
    pub fn refresh(&mut self, seat: Seat, nexus: &mut Nexus) {
        let Some(Some(sitting)) = self.seats.get_mut(seat.0) else { return };
        let pending = core::mem::take(&mut sitting.pending);
        let id = sitting.nexus.clone();
        nexus.update(self.changes, self.access(&id), pending);
    }

    /// What the reservations let a nexus do.
    pub fn access(&self, nexus: &NexusId) -> Access {
        let (kind, holds) = match &self.held {
            Held::Free => return Access::FULL,
            Held::Legacy(holder) if **holder == *nexus => return Access::FULL,
            Held::Legacy(_) => return Access::NONE,
            Held::By(kind, holder) => (*kind, **holder == *nexus),
            Held::ByAll(kind) => (*kind, false),
        };
        if holds || (kind.shared() && self.position(nexus).is_some()) {
            return Access::FULL;
        }
        Access { status: true, read: kind.reads_are_free(), write: false }
    }

    /// Establishes a unit attention for every nexus but one.
    pub fn attend_others(&mut self, seat: Seat, attention: Attention) {
        for (at, sitting) in self.seats.iter_mut().enumerate() {
            if let Some(sitting) = sitting.as_mut().filter(|_| at != seat.0) {
                sitting.pending.establish(attention);
            }
        }
        self.changes += 1;
    }

    /// Establishes a unit attention for one nexus, if it still has its seat.
    pub fn attend(&mut self, (seat, nexus): (Seat, &NexusId), attention: Attention) {
        let sitting = self.seats.get_mut(seat.0).and_then(Option::as_mut);
        if let Some(sitting) = sitting.filter(|sitting| *sitting.nexus == *nexus) {
            sitting.pending.establish(attention);
            self.changes += 1;
        }
    }

    /// Establishes a unit attention for every nexus.
    pub fn attend_all(&mut self, attention: Attention) {
        for sitting in self.seats.iter_mut().flatten() {
            sitting.pending.establish(attention);
        }
        self.changes += 1;
    }

    /// PREVENT ALLOW MEDIUM REMOVAL (SPC-5 6.16) of the nexus in `seat`.
    pub fn prevent_removal(&mut self, seat: Seat, prevent: bool) {
        if let Some(Some(sitting)) = self.seats.get_mut(seat.0) {
            sitting.prevents = prevent;
        }
    }

    /// True if a nexus that is logged in prevents the removal of the medium.
    pub fn removal_prevented(&self) -> bool {
        self.seats.iter().flatten().any(|sitting| sitting.prevents)
    }

    /// Carries a request of the nexus in `seat` out.
    pub fn execute(&mut self, seat: Seat, request: &Request) -> Outcome {
        let Some(Some(sitting)) = self.seats.get(seat.0) else {
            debug_assert!(false, "a request without a seat");
            return conflict();
        };
        let nexus = sitting.nexus.clone();
        let result = match request {
            Request::Reserve => self.reserve(&nexus),
            Request::Release => self.release(&nexus),
            // While the unit is taken by RESERVE, nobody may use the other model (SPC-2 5.5.1).
            Request::In { .. } | Request::Out(_) if matches!(self.held, Held::Legacy(_)) => {
                Err(Refusal::Conflict)
            }
            Request::In { action, allocation } => {
                return reply(Reply::data(self.report(*action, *allocation)));
            }
            Request::Out(out) => self.out(&nexus, out),
        };
        match result {
            Ok(aborts) => {
                self.changes += 1;
                Outcome { reply: Reply::GOOD, aborts }
            }
            Err(Refusal::Conflict) => conflict(),
            Err(Refusal::Check(sense)) => reply(Reply::check(sense)),
        }
    }

    /// RESERVE (SPC-2 7.21). From those whom a persistent reservation lets in it is done without effect
    /// (SPC-5 5.14.3); persistent registrations refuse it to all others.
    fn reserve(&mut self, nexus: &Arc<NexusId>) -> Result<Vec<Arc<NexusId>>, Refusal> {
        match &self.held {
            Held::Free if self.registrations.is_empty() => {
                self.held = Held::Legacy(nexus.clone());
                Ok(Vec::new())
            }
            Held::Legacy(holder) if holder == nexus => Ok(Vec::new()),
            Held::By(..) | Held::ByAll(_) if self.access(nexus) == Access::FULL => Ok(Vec::new()),
            _ => Err(Refusal::Conflict),
        }
    }

    /// RELEASE (SPC-2 7.16): that of another nexus is done without effect.
    fn release(&mut self, nexus: &Arc<NexusId>) -> Result<Vec<Arc<NexusId>>, Refusal> {
        match &self.held {
            Held::Legacy(holder) if holder == nexus => self.held = Held::Free,
            Held::Legacy(_) => {}
            Held::Free if self.registrations.is_empty() => {}
            Held::By(..) | Held::ByAll(_) if self.access(nexus) == Access::FULL => {}
            _ => return Err(Refusal::Conflict),
        }
        Ok(Vec::new())
    }

    /// Where the registration of a nexus stands.
    fn position(&self, nexus: &NexusId) -> Option<usize> {
        self.registrations.iter().position(|r| *r.nexus == *nexus)
    }

    /// Establishes a unit attention for each of these nexuses that is logged in.
    fn tell(&mut self, nexuses: &[Arc<NexusId>], attention: Attention) {
        for sitting in self.seats.iter_mut().flatten() {
            if nexuses.contains(&sitting.nexus) {
                sitting.pending.establish(attention);
            }
        }
    }

    /// Lets the medium go as far as these nexuses are concerned: they have lost their registration.
    fn allow_removal(&mut self, nexuses: &[Arc<NexusId>]) {
        for sitting in self.seats.iter_mut().flatten() {
            sitting.prevents &= !nexuses.contains(&sitting.nexus);
        }
    }

    /// Every registered nexus but one.
    fn others(&self, nexus: &NexusId) -> Vec<Arc<NexusId>> {
        let registered = self.registrations.iter().map(|r| &r.nexus);
        registered.filter(|id| ***id != *nexus).cloned().collect()
    }
}

fn conflict() -> Outcome {
    reply(Reply::CONFLICT)
}

fn reply(reply: Reply) -> Outcome {
    Outcome { reply, aborts: Vec::new() }
}
