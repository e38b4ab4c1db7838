//! What a logical unit keeps for one initiator (an I_T_L nexus, SAM-5 4.2).

use crate::sense::{Code, Key, Sense};

/// A unit attention condition (SAM-5 5.14), in the order in which they are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Attention {
    /// The target started, or the initiator logged in for the first time.
    PowerOn = 0,
    /// LOGICAL UNIT RESET or a target reset.
    BusDeviceReset,
    /// The session was lost or reinstated.
    NexusLoss,
    /// CLEAR TASK SET or a TAS-less abort by another initiator.
    CommandsCleared,
    /// The mode parameters changed.
    ModeParametersChanged,
    /// The volume has another size.
    CapacityChanged,
    /// The set of LUNs of the target changed.
    ReportedLunsChanged,
}

impl Attention {
    const ALL: [Self; 7] = [
        Self::PowerOn,
        Self::BusDeviceReset,
        Self::NexusLoss,
        Self::CommandsCleared,
        Self::ModeParametersChanged,
        Self::CapacityChanged,
        Self::ReportedLunsChanged,
    ];

    const fn bit(self) -> u16 {
        1 << self as u16
    }

    /// The additional sense code that reports the condition.
    pub const fn code(self) -> Code {
        match self {
            Self::PowerOn => Code::POWER_ON,
            Self::BusDeviceReset => Code::BUS_DEVICE_RESET,
            Self::NexusLoss => Code::NEXUS_LOSS,
            Self::CommandsCleared => Code::COMMANDS_CLEARED,
            Self::ModeParametersChanged => Code::MODE_PARAMETERS_CHANGED,
            Self::CapacityChanged => Code::CAPACITY_CHANGED,
            Self::ReportedLunsChanged => Code::REPORTED_LUNS_CHANGED,
        }
    }
}

/// The state of one I_T_L nexus. A set, not a list: the same condition pends once, so the memory is
/// bounded, and the order of [`Attention`] is the order of reporting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nexus {
    pending: u16,
}

impl Nexus {
    /// A nexus with nothing pending.
    pub const fn new() -> Self {
        Self { pending: 0 }
    }

    /// Establishes a unit attention condition. A reset or power on says all that the conditions
    /// before it said, so they are dropped (SAM-5 5.14.3).
    pub const fn establish(&mut self, attention: Attention) {
        if matches!(attention, Attention::PowerOn | Attention::BusDeviceReset) {
            self.pending &= Attention::PowerOn.bit() | Attention::ReportedLunsChanged.bit();
        }
        self.pending |= attention.bit();
    }

    /// True if a condition pends.
    pub const fn attention_pending(&self) -> bool {
        self.pending != 0
    }

    /// Takes the condition that is to be reported next.
    pub fn take(&mut self) -> Option<Attention> {
        let next = Attention::ALL.into_iter().find(|a| self.pending & a.bit() != 0)?;
        self.pending &= !next.bit();
        Some(next)
    }

    /// Takes the next condition as the sense data that reports it.
    pub fn take_sense(&mut self) -> Option<Sense> {
        self.take().map(|attention| Sense::new(Key::UnitAttention, attention.code()))
    }

    /// Drops a condition: REPORT LUNS clears REPORTED LUNS DATA HAS CHANGED (SPC-5 6.33).
    pub const fn clear(&mut self, attention: Attention) {
        self.pending &= !attention.bit();
    }
}
