//! What commands change of a logical unit, for all initiators.

use core::sync::atomic::{AtomicU32, Ordering};

/// Bits of [`UnitState::flags`].
const STOPPED: u32 = 1;
const PROTECTED: u32 = 1 << 1;
const DESCRIPTOR: u32 = 1 << 2;
/// Mode parameters: a reset brings the default ones back (SPC-5 5.6.3), all of which are 0.
const MODES: u32 = PROTECTED | DESCRIPTOR;

/// The changeable part of a [`Unit`](crate::Unit). It outlives the unit when that is replaced, by one
/// of another size for instance: the new one shares it.
///
/// Reads and writes look at it (relaxed). It changes so rarely that every core keeps its own copy of
/// the cache line.
#[derive(Debug, Default)]
pub struct UnitState {
    flags: AtomicU32,
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

    /// True after START STOP UNIT stopped the unit.
    pub fn stopped(&self) -> bool {
        self.has(STOPPED)
    }

    /// Carries [`Action::Power`](crate::Action::Power) out, after the flush.
    pub fn set_stopped(&self, stopped: bool) {
        self.set(STOPPED, stopped);
    }

    /// SWP: an initiator has switched the software write protection on.
    pub fn write_protected(&self) -> bool {
        self.has(PROTECTED)
    }

    /// Carries [`Action::WriteProtect`](crate::Action::WriteProtect) out. True if that changes
    /// anything.
    pub fn set_write_protected(&self, protected: bool) -> bool {
        self.set(PROTECTED, protected)
    }

    /// D_SENSE: sense data that goes with CHECK CONDITION has descriptors.
    pub fn descriptor_sense(&self) -> bool {
        self.has(DESCRIPTOR)
    }

    /// A reset: the mode parameters are the default ones again.
    pub fn reset(&self) {
        self.set(MODES, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_brings_the_default_mode_parameters_back_and_does_not_start_the_unit() {
        let state = UnitState::default();
        state.set_stopped(true);
        assert!(state.set_write_protected(true));
        assert!(!state.set_write_protected(true), "no change");
        state.reset();
        assert!(!state.write_protected());
        assert!(state.stopped());
        assert!(!state.set_write_protected(false), "no change");
    }
}
