//! Claims: the reservations of old, without registration and key. A claim ends with the session of whoever has it, and
//! it excludes registrations, as these exclude it.

use alloc::vec::Vec;

use crate::change::{Refusal, Result};
use crate::{Access, Held, Registrant, Reservations};

impl Reservations {
    /// True while somebody has claimed the volume: nobody may register.
    pub const fn claimed(&self) -> bool {
        matches!(self.held, Held::Claimed(_))
    }

    /// Claims the volume. From those whom a persistent reservation lets in it is done without effect; registrations
    /// refuse it to all others.
    ///
    /// # Errors
    /// [`Refusal::Conflict`].
    pub fn claim(&mut self, who: &Registrant) -> Result {
        match &self.held {
            Held::Free if self.registrations.is_empty() => self.held = Held::Claimed(who.clone()),
            Held::Claimed(holder) if holder == who => {}
            Held::By(..) | Held::ByAll(_) if self.access(who) == Access::FULL => {}
            _ => return Err(Refusal::Conflict),
        }
        self.changes += 1;
        Ok(Vec::new())
    }

    /// Gives a claim up. That of another stays, and this is no error.
    ///
    /// # Errors
    /// [`Refusal::Conflict`].
    pub fn give_up_claim(&mut self, who: &Registrant) -> Result {
        match &self.held {
            Held::Claimed(holder) if holder == who => self.held = Held::Free,
            Held::Claimed(_) => {}
            Held::Free if self.registrations.is_empty() => {}
            Held::By(..) | Held::ByAll(_) if self.access(who) == Access::FULL => {}
            _ => return Err(Refusal::Conflict),
        }
        self.changes += 1;
        Ok(Vec::new())
    }

    /// The session of somebody is over: its claim ends, registrations and persistent reservations stay.
    pub fn session_ended(&mut self, who: &Registrant) {
        if matches!(&self.held, Held::Claimed(holder) if holder == who) {
            self.end_claim();
        }
    }

    /// A reset: whoever has claimed the volume has it no more. Registrations and persistent reservations stay.
    pub fn end_claim(&mut self) {
        if self.claimed() {
            self.held = Held::Free;
            self.changes += 1;
        }
    }
}
