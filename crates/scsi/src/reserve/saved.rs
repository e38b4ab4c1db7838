//! Reservations through power loss (APTPL, SPC-5 5.14.5).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use super::{Held, Kind, MAX_REGISTRATIONS, NexusId, Registration, Reservations};

/// What survives a power loss. PRGENERATION does not: it starts at 0 again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// All registrations.
    pub registrations: Vec<SavedRegistration>,
    /// TYPE of the reservation.
    pub kind: Option<Kind>,
    /// Which of the registrations holds the reservation; `None` if there is none, or all do.
    pub holder: Option<usize>,
}

/// A registration that survives a power loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedRegistration {
    /// Whose.
    pub nexus: NexusId,
    /// The reservation key.
    pub key: u64,
}

/// What was saved makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the saved reservations contradict themselves")
    }
}

impl core::error::Error for Damaged {}

impl Reservations {
    /// What to keep through power loss; `None` if nothing is: what was kept is to be forgotten.
    pub fn saved(&self) -> Option<Saved> {
        if !self.activated {
            return None;
        }
        let registrations = self
            .registrations
            .iter()
            .map(|r| SavedRegistration { nexus: NexusId::clone(&r.nexus), key: r.key });
        let holder = match &self.held {
            Held::By(_, holder) => self.position(holder),
            Held::Free | Held::Legacy(_) | Held::ByAll(_) => None,
        };
        Some(Saved { registrations: registrations.collect(), kind: self.kind(), holder })
    }

    /// Takes up what was kept. Registrations through ports that are gone stay: the ports may return.
    ///
    /// # Errors
    /// It contradicts itself.
    pub fn restore(&mut self, saved: Saved) -> Result<(), Damaged> {
        let mut registrations: Vec<Registration> = Vec::with_capacity(saved.registrations.len());
        for SavedRegistration { nexus, key } in saved.registrations {
            if key == 0 || registrations.iter().any(|r| *r.nexus == nexus) {
                return Err(Damaged);
            }
            registrations.push(Registration { nexus: Arc::new(nexus), key });
        }
        if registrations.len() > MAX_REGISTRATIONS {
            return Err(Damaged);
        }
        self.held = match (saved.kind, saved.holder) {
            (None, None) => Held::Free,
            (Some(kind), None) if kind.all_registrants() && !registrations.is_empty() => {
                Held::ByAll(kind)
            }
            (Some(kind), Some(at)) if !kind.all_registrants() => {
                Held::By(kind, registrations.get(at).ok_or(Damaged)?.nexus.clone())
            }
            _ => return Err(Damaged),
        };
        self.registrations = registrations;
        self.activated = true;
        self.changes += 1;
        Ok(())
    }
}
