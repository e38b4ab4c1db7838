//! Reservation commands: what hosts ask for, on the state that all protocols share.

use lunet_nvme::command::{
    Acquire, AcquireAction, Io, PersistOnPowerLoss, Register as Keys, RegisterAction,
    ReleaseAction, ReservationType,
};
use lunet_nvme::reservation::{self, Report};
use lunet_nvme::status::Status;
use lunet_reservations::{Event, Kind, Refusal, Register, Registrant, Reservations};

/// What a reservation command wants, without its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// To register.
    Register {
        /// What to do.
        action: RegisterAction,
        /// The current key does not matter.
        ignore_key: bool,
        /// What becomes of Persist Through Power Loss.
        persist: PersistOnPowerLoss,
    },
    /// To acquire the reservation.
    Acquire {
        /// What to do.
        action: AcquireAction,
        /// Its type.
        kind: ReservationType,
    },
    /// To release it.
    Release {
        /// What to do.
        action: ReleaseAction,
        /// Its type.
        kind: Option<ReservationType>,
    },
}

impl Wish {
    /// What a command wants, and how long its data is; `None` if it is not of this kind.
    pub fn of(io: &Io) -> Option<(Self, u64)> {
        Some(match *io {
            Io::ReservationRegister { action, ignore_key, persist } => {
                (Self::Register { action, ignore_key, persist }, size_of::<Keys>() as u64)
            }
            Io::ReservationAcquire { action, kind } => {
                (Self::Acquire { action, kind }, size_of::<Acquire>() as u64)
            }
            Io::ReservationRelease { action, kind } => (Self::Release { action, kind }, 8),
            _ => return None,
        })
    }
}

/// The kind of a type.
fn kind_of(kind: ReservationType) -> Kind {
    Kind::ALL[usize::from(kind.code()) - 1]
}

/// The type of a kind.
fn type_of(kind: Kind) -> Option<ReservationType> {
    let number = Kind::ALL.iter().position(|it| *it == kind)?;
    ReservationType::from_code(number as u8 + 1)
}

/// A change that a host asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Who asks.
    pub who: Registrant,
    /// For what.
    pub wish: Wish,
    /// CRKEY, and NRKEY or PRKEY.
    pub keys: (u64, u64),
}

impl Change {
    /// Makes the change.
    ///
    /// # Errors
    /// Nothing has changed.
    pub fn make(&self, state: &mut Reservations) -> Result<Vec<Event>, Refusal> {
        let (who, (current, other)) = (&self.who, self.keys);
        match self.wish {
            Wish::Register { action, ignore_key, persist } => {
                let keep = match persist {
                    PersistOnPowerLoss::Unchanged => None,
                    PersistOnPowerLoss::Off => Some(false),
                    PersistOnPowerLoss::On => Some(true),
                };
                let registered = state.key_of(who);
                let (existing, new_key) = match action {
                    // Who is registered may do so again with the same key (NVMe base specification, section 7.7).
                    RegisterAction::Register if registered.is_some_and(|key| key != other) => {
                        return Err(Refusal::Conflict);
                    }
                    RegisterAction::Register => (None, other),
                    RegisterAction::Unregister | RegisterAction::Replace
                        if registered.is_none()
                            && !(ignore_key && action == RegisterAction::Replace) =>
                    {
                        return Err(Refusal::Conflict);
                    }
                    RegisterAction::Unregister => ((!ignore_key).then_some(current), 0),
                    RegisterAction::Replace => ((!ignore_key).then_some(current), other),
                };
                if new_key == 0 && action != RegisterAction::Unregister {
                    return Err(Refusal::NoKey);
                }
                state.register(who, Register { existing, new_key, also: &[], keep })
            }
            Wish::Acquire { action: AcquireAction::Acquire, kind } => {
                state.reserve(who, current, kind_of(kind))
            }
            Wish::Acquire { action, kind } => {
                let aborts = action == AcquireAction::PreemptAndAbort;
                state.preempt(who, (current, other), Some(kind_of(kind)), aborts)
            }
            Wish::Release { action: ReleaseAction::Clear, .. } => state.clear(who, current),
            Wish::Release { kind: Some(kind), .. } => state.release(who, current, kind_of(kind)),
            Wish::Release { kind: None, .. } => Err(Refusal::NoKind),
        }
    }

    /// True if it asks for persistence.
    pub fn persists(&self) -> bool {
        matches!(self.wish, Wish::Register { persist: PersistOnPowerLoss::On, .. })
    }

    /// True if commands of those who are preempted are to be aborted.
    pub fn aborts(&self) -> bool {
        matches!(self.wish, Wish::Acquire { action: AcquireAction::PreemptAndAbort, .. })
    }
}

/// A volume has as many registrations as there may be, or the host has. The specification has no status of its own for
/// that; nvmet and SPDK say the same.
pub const NO_ROOM: Status = Status::INTERNAL;

/// How a refusal is told.
pub fn told(refusal: Refusal) -> Status {
    match refusal {
        Refusal::Conflict | Refusal::NotHeld => Status::RESERVATION_CONFLICT,
        Refusal::NoRoom => NO_ROOM,
        Refusal::NotKept | Refusal::OtherKind | Refusal::NoKey | Refusal::NoKind => {
            Status::INVALID_FIELD
        }
    }
    .no_retry()
}

/// What a report says.
pub fn report(state: &Reservations) -> Report {
    let registrant = |it: &lunet_reservations::Registration| reservation::Registrant {
        // Who has come over another protocol has no identifier, and is there all the same.
        host_id: it.registrant.host_id().unwrap_or_default(),
        key: it.key,
        holds: state.holds(&it.registrant),
    };
    Report {
        generation: state.generation(),
        kind: state.kind().and_then(type_of),
        persist: state.activated(),
        registrants: state.registrations().iter().map(registrant).collect(),
    }
}
