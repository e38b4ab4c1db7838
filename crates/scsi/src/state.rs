//! What commands change of a logical unit, for all initiators.

use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use lunet_block::Space;

use crate::action::PowerChange;
use crate::alua::AccessStates;
use crate::opcodes::Needs;
use crate::power::NO_MEDIUM;
use crate::sense::{Code, Key, Sense};

/// Bits of [`UnitState::flags`].
const STOPPED: u32 = 1;
const EJECTED: u32 = 1 << 1;
const IDLE: u32 = 1 << 2;
const STANDBY: u32 = 1 << 3;
const PROTECTED: u32 = 1 << 4;
const DESCRIPTOR: u32 = 1 << 5;
/// A sanitize operation, or one that formats, is under way; one has failed, in the restricted mode.
const SANITIZING: u32 = 1 << 16;
const FAILED: u32 = 1 << 17;
const RESTRICTED: u32 = 1 << 18;
/// It was FORMAT UNIT.
const FORMAT: u32 = 1 << 19;
/// All but the active power condition: at most one of them is set.
const POWER: u32 = STOPPED | EJECTED | IDLE | STANDBY;
/// WCE of the Caching mode page, the other way round.
const WRITE_THROUGH: u32 = 1 << 6;
/// The threshold is reached, and was told.
const REACHED: u32 = 1 << 7;
/// TAS of the Control mode page, the other way round.
const SILENT_ABORT: u32 = 1 << 8;
/// What a reset sets to 0: the default mode parameters come back (SPC-5 5.6.3). The write cache stays off,
/// because who has switched it off sends no flushes any more, and may not notice.
const RESET: u32 = PROTECTED | DESCRIPTOR | SILENT_ABORT;

/// What a command that needs the unit to be ready gets while it is stopped.
const NOT_STARTED: Sense = Sense::new(Key::NotReady, Code::INITIALIZING_COMMAND_REQUIRED);

/// The changeable part of a [`Unit`](crate::Unit). It outlives the unit when that is replaced, by one
/// of another size for instance: the new one shares it.
///
/// Reads and writes look at it (relaxed). It changes so rarely that every core keeps its own copy of
/// the cache line.
#[derive(Debug, Default)]
pub struct UnitState {
    flags: AtomicU32,
    /// What each target port group may do.
    pub access: AccessStates,
    used: AtomicU64,
    available: AtomicU64,
    /// 0: not known.
    total: AtomicU64,
    /// PROGRESS INDICATION of the sanitize operation.
    progress: AtomicU16,
}

/// Where a unit stands with SANITIZE (SBC-4 4.11) and FORMAT UNIT (SBC-4 4.34).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sanitation {
    /// Nothing was asked, or all of it was done.
    None,
    /// Under way.
    Running,
    /// FORMAT UNIT is under way.
    Formatting,
    /// FORMAT UNIT was cut off, or has failed: only another one, or SANITIZE, makes the unit usable again.
    Unformatted,
    /// The last operation did not end well.
    Failed {
        /// Only another operation makes the unit usable again (AUSE was 0).
        restricted: bool,
    },
}

impl Sanitation {
    /// An operation is under way.
    pub const fn is_under_way(self) -> bool {
        matches!(self, Self::Running | Self::Formatting)
    }
}

/// The mode parameters that MODE SELECT changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modes {
    /// SWP of the Control page: the unit takes no writes.
    pub write_protect: bool,
    /// D_SENSE of the Control page: sense data that goes with CHECK CONDITION has descriptors.
    pub descriptor_sense: bool,
    /// TAS of the Control page: a command that another nexus aborts ends in TASK ABORTED, instead of
    /// without an answer (SAM-5 5.6).
    pub task_aborted: bool,
    /// WCE of the Caching page: what is answered may be in a volatile cache, where there is one.
    pub write_cache: bool,
}

impl Modes {
    /// What a unit has when it is made.
    pub const DEFAULT: Self = Self {
        write_protect: false,
        descriptor_sense: false,
        task_aborted: true,
        write_cache: true,
    };
    pub(crate) const NONE: Self = Self { write_cache: false, task_aborted: false, ..Self::DEFAULT };
    pub(crate) const ALL: Self =
        Self { write_protect: true, descriptor_sense: true, task_aborted: true, write_cache: true };
}

impl UnitState {
    fn has(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Relaxed) & flag != 0
    }

    /// True if that changes anything.
    fn set(&self, flag: u32, on: bool) -> bool {
        let before = if on {
            self.flags.fetch_or(flag, Ordering::Relaxed)
        } else {
            self.flags.fetch_and(!flag, Ordering::Relaxed)
        };
        (before & flag != 0) != on
    }

    /// Where the unit stands with SANITIZE and FORMAT UNIT.
    pub fn sanitation(&self) -> Sanitation {
        match self.flags.load(Ordering::Relaxed) {
            flags if flags & (SANITIZING | FORMAT) == SANITIZING | FORMAT => Sanitation::Formatting,
            flags if flags & SANITIZING != 0 => Sanitation::Running,
            flags if flags & (FAILED | FORMAT) == FAILED | FORMAT => Sanitation::Unformatted,
            flags if flags & FAILED != 0 => {
                Sanitation::Failed { restricted: flags & RESTRICTED != 0 }
            }
            _ => Sanitation::None,
        }
    }

    /// A sanitize operation begins, or one that formats the unit. False if one is under way.
    pub fn begin_sanitize(&self, format: bool) -> bool {
        let next = |flags: u32| {
            let flag = SANITIZING | if format { FORMAT } else { 0 };
            (flags & SANITIZING == 0).then_some((flags & !FORMAT) | flag)
        };
        let begins = self.flags.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok();
        if begins {
            self.progress.store(0, Ordering::Relaxed);
        }
        begins
    }

    /// How far the operation has come, in 65,536ths.
    pub fn set_sanitize_progress(&self, progress: u16) {
        self.progress.store(progress, Ordering::Relaxed);
    }

    /// The sanitize operation has ended, or one before the start of the server has not.
    pub fn end_sanitize(&self, sanitation: Sanitation) {
        let stands = match sanitation {
            Sanitation::None => 0,
            Sanitation::Running => SANITIZING,
            Sanitation::Formatting => SANITIZING | FORMAT,
            Sanitation::Unformatted => FAILED | FORMAT,
            Sanitation::Failed { restricted: true } => FAILED | RESTRICTED,
            Sanitation::Failed { restricted: false } => FAILED,
        };
        const ALL: u32 = SANITIZING | FAILED | RESTRICTED | FORMAT;
        let next = |flags: u32| Some((flags & !ALL) | stands);
        // It always sets them.
        let _ = self.flags.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// Why a command is not carried out for the sake of SANITIZE or FORMAT UNIT.
    pub fn sanitize_sense(&self) -> Option<Sense> {
        match self.sanitation() {
            Sanitation::None => None,
            Sanitation::Unformatted => {
                Some(Sense::new(Key::MediumError, Code::MEDIUM_FORMAT_CORRUPTED))
            }
            running @ (Sanitation::Running | Sanitation::Formatting) => {
                let code = match running {
                    Sanitation::Formatting => Code::FORMAT_IN_PROGRESS,
                    _ => Code::SANITIZE_IN_PROGRESS,
                };
                let sense = Sense::new(Key::NotReady, code);
                Some(sense.with_progress(self.progress.load(Ordering::Relaxed)))
            }
            Sanitation::Failed { .. } => {
                Some(Sense::new(Key::MediumError, Code::SANITIZE_COMMAND_FAILED))
            }
        }
    }

    /// True after START STOP UNIT stopped the unit.
    pub fn stopped(&self) -> bool {
        self.has(STOPPED)
    }

    /// True after START STOP UNIT ejected the medium.
    pub fn ejected(&self) -> bool {
        self.has(EJECTED)
    }

    /// Carries [`Action::Power`](crate::Action::Power) out, after the flush. True if a medium was
    /// loaded that was not there before.
    pub fn change_power(&self, change: PowerChange) -> bool {
        let (flag, keeps) = match change {
            PowerChange::Active => (0, EJECTED),
            PowerChange::Idle => (IDLE, EJECTED),
            PowerChange::Standby => (STANDBY, EJECTED),
            PowerChange::Stopped => (STOPPED, EJECTED),
            PowerChange::Eject => (EJECTED, 0),
            PowerChange::Load => (0, 0),
        };
        let next = |flags| {
            // A medium that was ejected meanwhile stays out, and nothing else matters then.
            let power = if flags & keeps != 0 { EJECTED } else { flag };
            Some(flags & !POWER | power)
        };
        let before = self.flags.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        change == PowerChange::Load && before.is_ok_and(|flags| flags & EJECTED != 0)
    }

    /// What REQUEST SENSE says of SANITIZE and FORMAT UNIT, or else of the power condition.
    pub(crate) fn condition(&self) -> Sense {
        if let Some(sense) = self.sanitize_sense() {
            return sense;
        }
        let flags = self.flags.load(Ordering::Relaxed);
        match flags & POWER {
            EJECTED => NO_MEDIUM,
            STOPPED => NOT_STARTED,
            IDLE => Sense::new(Key::NoSense, Code::IDLE_BY_COMMAND),
            STANDBY => Sense::new(Key::NoSense, Code::STANDBY_BY_COMMAND),
            _ => Sense::new(Key::NoSense, Code::NO_ADDITIONAL_SENSE),
        }
    }

    /// Sees whether the unit can serve a command that needs this: while it is sanitized or formatted, or should be,
    /// it does nothing else (SBC-4 4.11, 4.34). One load, while the power condition is the active one.
    pub(crate) fn serve(&self, needs: Needs) -> Result<(), Sense> {
        let flags = self.flags.load(Ordering::Relaxed);
        if flags & (POWER | SANITIZING | FAILED) == 0 {
            return Ok(());
        }
        let ends = match flags & FORMAT {
            0 => Needs::SANITIZE,
            _ => Needs::SANITIZE.union(Needs::FORMAT),
        };
        match self.sanitize_sense() {
            Some(sense) if flags & SANITIZING != 0 || !needs.intersects(ends) => {
                return Err(sense);
            }
            _ => {}
        }
        let medium = needs.intersects(Needs::READY.union(Needs::MEDIUM));
        match flags & POWER {
            EJECTED if medium => Err(NO_MEDIUM),
            STOPPED if needs.contains(Needs::READY) => Err(NOT_STARTED),
            IDLE | STANDBY if needs.contains(Needs::ACTIVE) => {
                self.set(IDLE | STANDBY, false);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The mode parameters.
    pub fn modes(&self) -> Modes {
        let flags = self.flags.load(Ordering::Relaxed);
        Modes {
            write_protect: flags & PROTECTED != 0,
            descriptor_sense: flags & DESCRIPTOR != 0,
            task_aborted: flags & SILENT_ABORT == 0,
            write_cache: flags & WRITE_THROUGH == 0,
        }
    }

    /// Carries [`Action::Modes`](crate::Action::Modes) out. True if that changes anything.
    pub fn set_modes(&self, modes: Modes) -> bool {
        // All of them, each whatever became of the others.
        self.set(PROTECTED, modes.write_protect)
            | self.set(DESCRIPTOR, modes.descriptor_sense)
            | self.set(SILENT_ABORT, !modes.task_aborted)
            | self.set(WRITE_THROUGH, !modes.write_cache)
    }

    /// SWP: an initiator has switched the software write protection on.
    pub(crate) fn write_protected(&self) -> bool {
        self.has(PROTECTED)
    }

    /// D_SENSE: sense data that goes with CHECK CONDITION has descriptors.
    pub(crate) fn descriptor_sense(&self) -> bool {
        self.has(DESCRIPTOR)
    }

    /// TAS: a command that another nexus aborts is answered with TASK ABORTED.
    pub fn tells_aborts(&self) -> bool {
        !self.has(SILENT_ABORT)
    }

    /// True if an initiator has switched the write cache off.
    pub(crate) fn write_through(&self) -> bool {
        self.has(WRITE_THROUGH)
    }

    /// A reset of the unit: mode parameters that are not saved are the default ones again. True if they were others.
    pub fn reset(&self) -> bool {
        self.set(RESET, false)
    }

    /// The room that the volume takes and could take, when it was looked at last.
    pub fn space(&self) -> Option<Space> {
        let [used, available, total] =
            [&self.used, &self.available, &self.total].map(|n| n.load(Ordering::Relaxed));
        (total != 0).then_some(Space { used, available, total })
    }

    /// Remembers how much room there is.
    pub(crate) fn set_space(&self, space: &Space) {
        self.used.store(space.used, Ordering::Relaxed);
        self.available.store(space.available, Ordering::Relaxed);
        self.total.store(space.total.max(1), Ordering::Relaxed);
    }

    /// Remembers that the threshold is reached, or that it is no more. True if that is news.
    pub(crate) fn set_reached(&self, reached: bool) -> bool {
        self.set(REACHED, reached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_brings_default_mode_parameters_back_and_is_no_start() {
        let state = UnitState::default();
        assert_eq!(state.modes(), Modes::DEFAULT);
        assert!(!state.change_power(PowerChange::Stopped));
        assert!(state.set_modes(Modes { write_protect: true, ..Modes::DEFAULT }));
        assert!(!state.set_modes(Modes { write_protect: true, ..Modes::DEFAULT }), "no change");
        assert!(state.set_modes(Modes { write_cache: false, ..Modes::ALL }));
        state.reset();
        let rest = Modes { write_cache: false, ..Modes::DEFAULT };
        assert_eq!(state.modes(), rest, "the write cache stays off");
        assert!(state.stopped());
        assert!(state.set_modes(Modes::DEFAULT));
    }

    #[test]
    fn only_a_load_brings_an_ejected_medium_back() {
        let state = UnitState::default();
        assert!(!state.change_power(PowerChange::Load), "it was there");
        state.change_power(PowerChange::Stopped);
        state.change_power(PowerChange::Eject);
        for change in [PowerChange::Active, PowerChange::Stopped, PowerChange::Idle] {
            assert!(!state.change_power(change));
            assert_eq!((state.ejected(), state.stopped()), (true, false));
        }
        assert!(state.change_power(PowerChange::Load));
        assert_eq!((state.ejected(), state.stopped()), (false, false));
    }

    #[test]
    fn one_sanitize_operation_at_a_time_and_resets_do_not_end_it() {
        let state = UnitState::default();
        assert_eq!((state.sanitation(), state.sanitize_sense()), (Sanitation::None, None));
        assert!(state.begin_sanitize(false));
        assert!(!state.begin_sanitize(false));
        state.set_sanitize_progress(0x8000);
        state.reset();
        assert_eq!(state.sanitation(), Sanitation::Running);
        assert_eq!(state.sanitize_sense().and_then(|sense| sense.progress), Some(0x8000));
        for sanitation in [
            Sanitation::Failed { restricted: true },
            Sanitation::Failed { restricted: false },
            Sanitation::None,
        ] {
            state.end_sanitize(sanitation);
            assert_eq!(state.sanitation(), sanitation);
            assert!(state.begin_sanitize(false));
        }
        assert_eq!(state.sanitize_sense().and_then(|sense| sense.progress), Some(0));
    }
}
