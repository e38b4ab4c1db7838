//! Reservations through power loss.

use alloc::vec::Vec;

use crate::{Held, Kind, MAX_REGISTRATIONS, Registration, Reservations};

/// What survives a power loss. The generation does not: it starts at 0 again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// All registrations.
    pub registrations: Vec<Registration>,
    /// The kind of the reservation.
    pub kind: Option<Kind>,
    /// Which of the registrations holds the reservation; `None` if there is none, or all do.
    pub holder: Option<usize>,
}

/// What was saved makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the saved reservations contradict themselves")]
pub struct Damaged;

impl Reservations {
    /// What the next start takes up after one that has ended in good order, though it does not survive a power loss;
    /// `None` if there is nothing, or what there is survives that, too.
    pub fn passing(&self) -> Option<Saved> {
        let is_there = !self.activated && !self.registrations.is_empty();
        is_there.then(|| self.all())
    }

    /// Takes up what was passed on, with the generation that it had. It does not survive a power loss.
    ///
    /// # Errors
    /// It contradicts itself.
    pub fn take_up(&mut self, passed: Saved, generation: u32) -> Result<(), Damaged> {
        self.restore(passed)?;
        (self.activated, self.generation) = (false, generation);
        Ok(())
    }

    fn all(&self) -> Saved {
        Saved {
            registrations: self.registrations.clone(),
            kind: self.kind(),
            holder: self.holder().and_then(|holder| self.position(holder)),
        }
    }

    /// What to keep through power loss; `None` if nothing is: what was kept is to be forgotten.
    pub fn saved(&self) -> Option<Saved> {
        self.activated.then(|| self.all())
    }

    /// Takes up what was kept. Registrations of those who cannot come any more stay: they may return.
    ///
    /// # Errors
    /// It contradicts itself.
    pub fn restore(&mut self, saved: Saved) -> Result<(), Damaged> {
        let Saved { registrations, kind, holder } = saved;
        let twice = |(at, r): (usize, &Registration)| {
            r.key == 0 || registrations[..at].iter().any(|other| other.registrant == r.registrant)
        };
        if registrations.len() > MAX_REGISTRATIONS || registrations.iter().enumerate().any(twice) {
            return Err(Damaged);
        }
        self.held = match (kind, holder) {
            (None, None) => Held::Free,
            (Some(kind), None) if kind.all_registrants() && !registrations.is_empty() => {
                Held::ByAll(kind)
            }
            (Some(kind), Some(at)) if !kind.all_registrants() => {
                Held::By(kind, registrations.get(at).ok_or(Damaged)?.registrant.clone())
            }
            _ => return Err(Damaged),
        };
        self.registrations = registrations;
        self.activated = true;
        self.changes += 1;
        Ok(())
    }
}
