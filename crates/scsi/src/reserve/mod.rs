//! How SCSI reserves a volume: RESERVE and RELEASE (SPC-2 5.5.1) and persistent reservations (SPC-5 5.14).
//!
//! The reservations are the volume's ([`Reservations`]), and hosts of another protocol may be registered in them too.
//! A command on them is one step: [`Request::execute`]. [`Seats`] is what SCSI keeps beside them: nexuses that are
//! logged in have a seat there, which holds the unit attentions that others cause, until the nexus comes by.
//!
//! Each change has a number; a nexus that has seen the latest ([`Nexus::seen`]) knows what it may do, and needs no look
//! at the state.

mod access;
mod command;
mod out;
mod port;
mod report;

use alloc::sync::Arc;
use alloc::vec::Vec;

use lunet_reservations::{Event, Loss, Registrant, Reservations};

pub(crate) use access::Guard;
pub use command::{In, Move, Out, Register, Request};
pub(crate) use command::{parse, persistent_in, persistent_out, release, reserve};
pub use out::Outcome;
pub use port::{FAMILY, InitiatorPort, LiveNexus, NexusId, Port, TargetPort};

use crate::nexus::{Attention, Attentions, Nexus};

/// Where a nexus that is logged in waits for news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat(u32);

impl Seat {
    const fn at(self) -> usize {
        self.0 as usize
    }
}

/// A list of so many seats costs little, and stays as it is.
const FEW: usize = 64;

#[derive(Clone, Debug)]
struct Sitting {
    nexus: Arc<LiveNexus>,
    pending: Attentions,
    /// PREVENT ALLOW MEDIUM REMOVAL: this nexus wants the medium to stay.
    prevents: bool,
}

/// The nexuses at one logical unit, and the ports by which they come.
#[derive(Clone, Debug, Default)]
pub struct Seats {
    /// The target ports that lead to the unit.
    ports: Vec<Port>,
    seats: Vec<Option<Sitting>>,
    /// All before this one are taken.
    first_free: usize,
    changes: u64,
}

impl Seats {
    /// A unit that these ports lead to.
    pub const fn new(ports: Vec<Port>) -> Self {
        Self { ports, seats: Vec::new(), first_free: 0, changes: 0 }
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

    /// How often something has changed that a nexus has to look at: it only rises.
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    /// A nexus has logged in.
    pub fn attach(&mut self, nexus: Arc<LiveNexus>) -> Seat {
        let sitting = Some(Sitting { nexus, pending: Attentions::default(), prevents: false });
        let free = self.seats.iter().skip(self.first_free).position(Option::is_none);
        let at = free.map_or(self.seats.len(), |free| self.first_free + free);
        match self.seats.get_mut(at) {
            Some(seat) => *seat = sitting,
            None => self.seats.push(sitting),
        }
        self.first_free = at + 1;
        Seat(at as u32)
    }

    /// The nexus in a seat.
    pub fn nexus(&self, seat: Seat) -> Option<&Arc<LiveNexus>> {
        self.seats.get(seat.at())?.as_ref().map(|sitting| &sitting.nexus)
    }

    /// The nexus is lost. As whom it has reserved; RESERVE [ends](Reservations::session_ended) with it.
    pub fn detach(&mut self, seat: Seat) -> Option<Registrant> {
        let left = self.seats.get_mut(seat.at())?.take()?;
        self.first_free = self.first_free.min(seat.at());
        self.shrink();
        Some(left.nexus.registrant().clone())
    }

    /// Gives up the free seats at the end, and most of their memory when few are left: thousands may have been there.
    fn shrink(&mut self) {
        let taken = self.seats.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        self.seats.truncate(taken);
        if self.seats.capacity() > FEW && taken <= self.seats.capacity() / 4 {
            self.seats.shrink_to(2 * taken);
        }
    }

    /// A reset of the unit or the target ends PREVENT.
    pub fn reset(&mut self) {
        for sitting in self.seats.iter_mut().flatten() {
            sitting.prevents = false;
        }
    }

    /// Brings a nexus up to date: what it may do, and the unit attentions that wait for it. `seen` is the number of a
    /// change that is visible here, and so is every one before it.
    pub fn refresh(&mut self, seat: Seat, state: &Reservations, seen: u64, nexus: &mut Nexus) {
        let Some(Some(sitting)) = self.seats.get_mut(seat.at()) else { return };
        let pending = core::mem::take(&mut sitting.pending);
        nexus.update(seen, state.access(sitting.nexus.registrant()), pending);
    }

    /// Tells nexuses that are logged in what they have lost to somebody, of whatever protocol: by a unit attention, and
    /// who has lost its registration to PREEMPT AND ABORT or CLEAR does not prevent the removal of the medium any more.
    pub fn tell(&mut self, events: &[Event]) {
        for event in events {
            let lost = |sitting: &&mut Sitting| *sitting.nexus.registrant() == event.registrant;
            for sitting in self.seats.iter_mut().flatten().filter(lost) {
                match event.loses {
                    Loss::Reservation => sitting.pending.establish(Attention::ReservationsReleased),
                    Loss::Registration => {
                        sitting.pending.establish(Attention::RegistrationsPreempted);
                    }
                    Loss::Everything => {
                        sitting.pending.establish(Attention::ReservationsPreempted);
                        sitting.prevents = false;
                    }
                    Loss::Commands => sitting.prevents = false,
                }
            }
        }
    }

    /// Establishes a unit attention for every nexus but one.
    pub fn attend_others(&mut self, seat: Seat, attention: Attention) {
        for (at, sitting) in self.seats.iter_mut().enumerate() {
            if let Some(sitting) = sitting.as_mut().filter(|_| at != seat.at()) {
                sitting.pending.establish(attention);
            }
        }
        self.changes += 1;
    }

    /// Establishes a unit attention for one nexus, if it still has its seat.
    pub fn attend(&mut self, (seat, nexus): (Seat, &NexusId), attention: Attention) {
        let sitting = self.seats.get_mut(seat.at()).and_then(Option::as_mut);
        if let Some(sitting) = sitting.filter(|sitting| **sitting.nexus == *nexus) {
            sitting.pending.establish(attention);
            self.changes += 1;
        }
    }

    /// Establishes a unit attention for the nexuses that reserve as this registrant.
    pub fn attend_registrant(&mut self, registrant: &Registrant, attention: Attention) {
        for sitting in self.seats.iter_mut().flatten() {
            if sitting.nexus.registrant() == registrant {
                sitting.pending.establish(attention);
            }
        }
        self.changes += 1;
    }

    /// Establishes a unit attention for every nexus.
    pub fn attend_all(&mut self, attention: Attention) {
        self.attend_all_but(None, attention);
    }

    /// Establishes a unit attention for every nexus, but for this one if there is one.
    pub fn attend_all_but(&mut self, nexus: Option<&NexusId>, attention: Attention) {
        for sitting in self.seats.iter_mut().flatten() {
            if nexus != Some(&**sitting.nexus) {
                sitting.pending.establish(attention);
            }
        }
        self.changes += 1;
    }

    /// PREVENT ALLOW MEDIUM REMOVAL (SPC-5 6.16) of the nexus in `seat`.
    pub fn prevent_removal(&mut self, seat: Seat, prevent: bool) {
        if let Some(Some(sitting)) = self.seats.get_mut(seat.at()) {
            sitting.prevents = prevent;
        }
    }

    /// True if a nexus that is logged in prevents the removal of the medium.
    pub fn removal_prevented(&self) -> bool {
        self.seats.iter().flatten().any(|sitting| sitting.prevents)
    }
}
