//! What a logical unit keeps for one initiator (an I_T_L nexus, SAM-5 4.2).

use lunet_reservations::Access;

use crate::sense::{Code, Key, Sense};
use crate::thin::THRESHOLD_DESCRIPTOR;

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
    /// CLEAR took the reservation and all registrations away.
    ReservationsPreempted,
    /// A reservation that others shared was released.
    ReservationsReleased,
    /// PREEMPT took this nexus's registration away.
    RegistrationsPreempted,
    /// The medium was loaded.
    MediumChanged,
    /// The mode parameters changed.
    ModeParametersChanged,
    /// The state of a target port group changed.
    AccessStateChanged,
    /// The storage below a thin volume is as full as its [threshold](crate::Threshold) says.
    ThresholdReached,
    /// The volume has another size.
    CapacityChanged,
    /// The standard INQUIRY data changed (SPC-5 6.7.1).
    InquiryChanged,
    /// The set of LUNs of the target changed.
    ReportedLunsChanged,
    /// A flush that was answered before it was done (IMMED = 1) has failed. Not a unit attention but a deferred
    /// error (SPC-5 4.4.7); it pends in the same way.
    FlushFailed,
}

impl Attention {
    const ALL: [Self; 15] = [
        Self::PowerOn,
        Self::BusDeviceReset,
        Self::NexusLoss,
        Self::CommandsCleared,
        Self::ReservationsPreempted,
        Self::ReservationsReleased,
        Self::RegistrationsPreempted,
        Self::MediumChanged,
        Self::ModeParametersChanged,
        Self::AccessStateChanged,
        Self::ThresholdReached,
        Self::CapacityChanged,
        Self::InquiryChanged,
        Self::ReportedLunsChanged,
        Self::FlushFailed,
    ];

    const fn bit(self) -> u32 {
        1 << self as u32
    }

    /// The additional sense code that reports the condition.
    pub const fn code(self) -> Code {
        match self {
            Self::PowerOn => Code::POWER_ON,
            Self::BusDeviceReset => Code::BUS_DEVICE_RESET,
            Self::NexusLoss => Code::NEXUS_LOSS,
            Self::CommandsCleared => Code::COMMANDS_CLEARED,
            Self::ReservationsPreempted => Code::RESERVATIONS_PREEMPTED,
            Self::ReservationsReleased => Code::RESERVATIONS_RELEASED,
            Self::RegistrationsPreempted => Code::REGISTRATIONS_PREEMPTED,
            Self::MediumChanged => Code::NOT_READY_TO_READY_CHANGE,
            Self::ModeParametersChanged => Code::MODE_PARAMETERS_CHANGED,
            Self::AccessStateChanged => Code::ACCESS_STATE_CHANGED,
            Self::ThresholdReached => Code::SOFT_THRESHOLD_REACHED,
            Self::CapacityChanged => Code::CAPACITY_CHANGED,
            Self::InquiryChanged => Code::INQUIRY_CHANGED,
            Self::ReportedLunsChanged => Code::REPORTED_LUNS_CHANGED,
            Self::FlushFailed => Code::INTERNAL_TARGET_FAILURE,
        }
    }
}

/// A set of unit attentions. Not a list: the same condition pends once, so the memory is bounded, and
/// the order of [`Attention`] is the order of reporting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attentions(u32);

impl Attentions {
    /// A reset or power on says all that the conditions before it said, so they are dropped
    /// (SAM-5 5.14.3), but for lost data: a reset says nothing of that.
    pub const fn establish(&mut self, attention: Attention) {
        if matches!(attention, Attention::PowerOn | Attention::BusDeviceReset) {
            self.0 &= Attention::PowerOn.bit()
                | Attention::ReportedLunsChanged.bit()
                | Attention::FlushFailed.bit();
        }
        self.0 |= attention.bit();
    }
}

/// The state of one I_T_L nexus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nexus {
    pending: Attentions,
    access: Access,
    seen: u64,
}

impl Default for Nexus {
    fn default() -> Self {
        Self::new()
    }
}

impl Nexus {
    /// A nexus with nothing pending, that has not looked at the unit's reservations yet.
    pub const fn new() -> Self {
        Self { pending: Attentions(0), access: Access::FULL, seen: 0 }
    }

    /// Establishes a unit attention condition.
    pub const fn establish(&mut self, attention: Attention) {
        self.pending.establish(attention);
    }

    /// True if a condition pends.
    pub const fn attention_pending(&self) -> bool {
        self.pending.0 != 0
    }

    /// True if a condition pends that comes even before a reservation conflict (SAM-5 5.3.3): one of
    /// those with additional sense code 29h.
    pub(crate) const fn reset_pending(&self) -> bool {
        let resets =
            Attention::PowerOn.bit() | Attention::BusDeviceReset.bit() | Attention::NexusLoss.bit();
        self.pending.0 & resets != 0
    }

    /// Takes the condition that is to be reported next.
    pub fn take(&mut self) -> Option<Attention> {
        let next = Attention::ALL.into_iter().find(|a| self.pending.0 & a.bit() != 0)?;
        self.pending.0 &= !next.bit();
        Some(next)
    }

    /// Takes the next condition as the sense data that reports it.
    pub fn take_sense(&mut self) -> Option<Sense> {
        let attention = self.take()?;
        let sense = Sense::new(Key::UnitAttention, attention.code());
        Some(match attention {
            Attention::FlushFailed => Sense::deferred(Key::HardwareError, attention.code()),
            // Which threshold: where it stands in its mode page (SBC-4 4.7.3.7.6).
            Attention::ThresholdReached => sense.with_information(THRESHOLD_DESCRIPTOR.into()),
            _ => sense,
        })
    }

    /// Drops a condition: REPORT LUNS clears REPORTED LUNS DATA HAS CHANGED (SPC-5 6.33).
    pub const fn clear(&mut self, attention: Attention) {
        self.pending.0 &= !attention.bit();
    }

    /// The latest change of the unit's reservations and seats that this nexus knows of; if there was a later
    /// one, it must be [refreshed](crate::reserve::Seats::refresh) before its next command.
    pub const fn seen(&self) -> u64 {
        self.seen
    }

    /// What the unit's reservations let this nexus do.
    pub const fn access(&self) -> Access {
        self.access
    }

    pub(crate) const fn update(&mut self, seen: u64, access: Access, news: Attentions) {
        self.seen = seen;
        self.access = access;
        self.pending.0 |= news.0;
    }
}
