//! Changes of registrations and of the persistent reservation, one function for each.

use alloc::vec::Vec;

use crate::{
    Event, Held, Kind, Loss, MAX_OF_NAME, MAX_REGISTRATIONS, Registrant, Registration, Reservations,
};

/// Who has lost what, if the change was made.
pub type Result<T = Vec<Event>> = core::result::Result<T, Refusal>;

/// Why a change is refused. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Whoever asks is not registered with that key, or another's reservation or claim is in the way.
    #[error("reservation conflict")]
    Conflict,
    /// There would be more than [`MAX_REGISTRATIONS`], or more than [`MAX_OF_NAME`](crate::MAX_OF_NAME).
    #[error("there are too many registrations")]
    NoRoom,
    /// The state is to be kept through power loss, and cannot be.
    #[error("reservations are not kept through power loss")]
    NotKept,
    /// The reservation that is to be released is of another kind.
    #[error("the reservation is of another kind")]
    OtherKind,
    /// The key of whom to preempt is 0, and the reservation is not one of all registrants; or a new holder's key is 0.
    #[error("0 is nobody's key")]
    NoKey,
    /// The preemption takes the reservation, and says of no valid kind.
    #[error("the kind of the reservation is not valid")]
    NoKind,
    /// There is no reservation that could be moved.
    #[error("there is no reservation")]
    NotHeld,
}

/// A registration as it is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Register<'a> {
    /// The key that whoever asks is registered with, 0 if it is not; `None`: whatever it is.
    pub existing: Option<u64>,
    /// The key to register; 0 unregisters.
    pub new_key: u64,
    /// These are registered, or unregistered, as well, whatever their keys are.
    pub also: &'a [Registrant],
    /// Whether the state is to be kept through power loss from now on; `None` leaves that as it is.
    pub keep: Option<bool>,
}

impl Reservations {
    /// The key of whoever asks for a registration; `None` if it has none.
    ///
    /// # Errors
    /// [`Refusal::Conflict`]: it is not what is expected (0 for no registration), or the volume is claimed.
    pub fn known(&self, who: &Registrant, expected: Option<u64>) -> Result<Option<u64>> {
        let key = self.key_of(who);
        let other = expected.is_some_and(|expected| expected != key.unwrap_or(0));
        if self.claimed() || other { Err(Refusal::Conflict) } else { Ok(key) }
    }

    /// Where the registration of whoever asks stands, if the key is right.
    fn registered(&self, who: &Registrant, key: u64) -> Result<usize> {
        let at = self.position(who).ok_or(Refusal::Conflict)?;
        if self.registrations[at].key == key { Ok(at) } else { Err(Refusal::Conflict) }
    }

    /// Remembers whether the state is to be kept through power loss.
    fn keep(&mut self, keep: Option<bool>) -> Result<()> {
        if keep == Some(true) && !self.capable {
            return Err(Refusal::NotKept);
        }
        self.activated = keep.unwrap_or(self.activated);
        Ok(())
    }

    /// Registers somebody, changes its key, or unregisters it, and with it others. With the registration of its only
    /// holder a reservation ends.
    ///
    /// # Errors
    /// [`Refusal::Conflict`], [`Refusal::NoRoom`], [`Refusal::NotKept`].
    pub fn register(&mut self, who: &Registrant, asked: Register<'_>) -> Result {
        let mut events = Vec::new();
        // Nothing to register, nothing to unregister.
        if self.known(who, asked.existing)?.is_none() && asked.new_key == 0 {
            return Ok(self.changed(events));
        }
        if asked.new_key != 0 && self.position(who).is_none() {
            self.admits(who)?;
        }
        let all = || core::iter::once(who).chain(asked.also);
        let fresh = all().filter(|id| asked.new_key != 0 && self.position(id).is_none()).count();
        if self.registrations.len() + fresh > MAX_REGISTRATIONS {
            return Err(Refusal::NoRoom);
        }
        self.keep(asked.keep)?;
        for id in all() {
            match self.position(id) {
                Some(at) if asked.new_key == 0 => self.unregister(at, who, &mut events),
                Some(at) => self.registrations[at].key = asked.new_key,
                None if asked.new_key == 0 => {}
                None => {
                    let registrant = id.clone();
                    self.registrations.push(Registration { registrant, key: asked.new_key });
                }
            }
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(self.changed(events))
    }

    /// Sees whether a host may register: its identifier is nobody else's, and its name has not registered with many.
    fn admits(&self, who: &Registrant) -> Result<()> {
        let (Some(id), name) = (who.host_id(), who.host_name()) else { return Ok(()) };
        let hosts = || self.registrations.iter().map(|r| &r.registrant);
        if hosts().any(|other| other.host_id() == Some(id)) {
            return Err(Refusal::Conflict);
        }
        let of_name = hosts().filter(|other| other.host_name() == name).count();
        if of_name < MAX_OF_NAME { Ok(()) } else { Err(Refusal::NoRoom) }
    }

    /// Takes a registration away, and the reservation with its holder.
    fn unregister(&mut self, at: usize, asking: &Registrant, events: &mut Vec<Event>) {
        let gone = self.registrations.remove(at).registrant;
        match &self.held {
            Held::By(kind, holder) if *holder == gone => {
                let shared = kind.shared();
                self.held = Held::Free;
                if shared {
                    self.others_lose(asking, Loss::Reservation, events);
                }
            }
            Held::ByAll(_) if self.registrations.is_empty() => self.held = Held::Free,
            _ => {}
        }
    }

    /// Reserves the volume. If it is reserved so already, by whoever asks, this is done without effect.
    ///
    /// # Errors
    /// [`Refusal::Conflict`].
    pub fn reserve(&mut self, who: &Registrant, key: u64, kind: Kind) -> Result {
        self.registered(who, key)?;
        match &self.held {
            Held::Free => self.take(who, kind),
            Held::By(held, holder) if *held == kind && holder == who => {}
            Held::ByAll(held) if *held == kind => {}
            _ => return Err(Refusal::Conflict),
        }
        Ok(self.changed(Vec::new()))
    }

    fn take(&mut self, who: &Registrant, kind: Kind) {
        self.held =
            if kind.all_registrants() { Held::ByAll(kind) } else { Held::By(kind, who.clone()) };
    }

    /// Releases the reservation of this kind. From who does not hold it, it is done without effect.
    ///
    /// # Errors
    /// [`Refusal::Conflict`], [`Refusal::OtherKind`].
    pub fn release(&mut self, who: &Registrant, key: u64, kind: Kind) -> Result {
        self.registered(who, key)?;
        let mut events = Vec::new();
        if let Some(held) = self.kind().filter(|_| self.holds(who)) {
            if held != kind {
                return Err(Refusal::OtherKind);
            }
            self.held = Held::Free;
            if held.shared() {
                self.others_lose(who, Loss::Reservation, &mut events);
            }
        }
        Ok(self.changed(events))
    }

    /// Takes all registrations away, and the reservation.
    ///
    /// # Errors
    /// [`Refusal::Conflict`].
    pub fn clear(&mut self, who: &Registrant, key: u64) -> Result {
        self.registered(who, key)?;
        let mut events = Vec::new();
        self.others_lose(who, Loss::Everything, &mut events);
        self.registrations.clear();
        self.held = Held::Free;
        self.generation = self.generation.wrapping_add(1);
        Ok(self.changed(events))
    }

    /// Takes the registrations with the key `victim` away, and, if the holder has it, the reservation over, which is of
    /// `kind` then. Where all registrants hold the reservation, 0 names all others and takes it over. With `abort` the
    /// commands of all that the key names are to be aborted.
    ///
    /// # Errors
    /// [`Refusal::Conflict`], also if nobody has the key; [`Refusal::NoKey`]; [`Refusal::NoKind`].
    pub fn preempt(
        &mut self,
        who: &Registrant,
        (key, victim): (u64, u64),
        kind: Option<Kind>,
        abort: bool,
    ) -> Result {
        self.registered(who, key)?;
        let by_all = matches!(self.held, Held::ByAll(_));
        if victim == 0 && !by_all {
            return Err(Refusal::NoKey);
        }
        let takes = match self.holder() {
            Some(holder) => self.key_of(holder) == Some(victim),
            None => by_all && victim == 0,
        };
        // The kind is looked at only where it says something.
        let kind = if takes { Some(kind.ok_or(Refusal::NoKind)?) } else { None };
        let named = |r: &&Registration| {
            if victim == 0 { r.registrant != *who } else { r.key == victim }
        };
        let victims = self.registrations.iter().filter(named).map(|r| r.registrant.clone());
        let victims: Vec<Registrant> = victims.collect();
        if victims.is_empty() && !takes {
            return Err(Refusal::Conflict);
        }
        // Who takes the reservation keeps its own registration.
        self.registrations
            .retain(|r| !victims.contains(&r.registrant) || (takes && r.registrant == *who));
        let mut events = Vec::new();
        for registrant in victims {
            if registrant != *who {
                events.push(Event { registrant: registrant.clone(), loses: Loss::Registration });
            }
            if abort {
                events.push(Event { registrant, loses: Loss::Commands });
            }
        }
        if let Some(kind) = kind {
            let other = self.kind() != Some(kind);
            self.take(who, kind);
            if other {
                self.others_lose(who, Loss::Reservation, &mut events);
            }
        } else if by_all && self.registrations.is_empty() {
            self.held = Held::Free;
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(self.changed(events))
    }

    /// What moving the reservation is refused for, whoever is to have it.
    ///
    /// # Errors
    /// [`Refusal::Conflict`], [`Refusal::NotHeld`].
    pub fn may_move(&self, who: &Registrant, key: u64) -> Result<Kind> {
        self.registered(who, key)?;
        match &self.held {
            Held::By(kind, holder) if holder == who => Ok(*kind),
            Held::Free | Held::Claimed(_) => Err(Refusal::NotHeld),
            Held::By(..) | Held::ByAll(_) => Err(Refusal::Conflict),
        }
    }

    /// Registers somebody else and makes it the holder. With `leave` whoever asks loses its
    /// registration.
    ///
    /// # Errors
    /// [`Refusal::Conflict`], also for a move to oneself; [`Refusal::NoKey`], [`Refusal::NotHeld`],
    /// [`Refusal::NoRoom`], [`Refusal::NotKept`].
    pub fn move_to(
        &mut self,
        (who, key): (&Registrant, u64),
        to: Registration,
        leave: bool,
        keep: Option<bool>,
    ) -> Result {
        let kind = self.may_move(who, key)?;
        if to.key == 0 {
            return Err(Refusal::NoKey);
        }
        if to.registrant == *who {
            return Err(Refusal::Conflict);
        }
        let there = self.position(&to.registrant);
        let room = MAX_REGISTRATIONS + usize::from(leave);
        if there.is_none() && self.registrations.len() >= room {
            return Err(Refusal::NoRoom);
        }
        self.keep(keep)?;
        self.held = Held::By(kind, to.registrant.clone());
        match there {
            Some(at) => self.registrations[at].key = to.key,
            None => self.registrations.push(to),
        }
        if leave {
            self.registrations.retain(|r| r.registrant != *who);
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(self.changed(Vec::new()))
    }

    fn changed(&mut self, events: Vec<Event>) -> Vec<Event> {
        self.changes += 1;
        events
    }
}
