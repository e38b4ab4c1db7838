//! Features (NVMe base specification, section 5.27.1).

use crate::code::codes;
use crate::log::LogPage;

codes! {
    /// FID: the features.
    Feature: u8 {
        /// Arbitration.
        Arbitration = 0x01,
        /// Power Management.
        Power = 0x02,
        /// Temperature Threshold.
        Temperature = 0x04,
        /// Error Recovery.
        ErrorRecovery = 0x05,
        /// Volatile Write Cache.
        WriteCache = 0x06,
        /// Number of Queues.
        Queues = 0x07,
        /// Write Atomicity Normal.
        WriteAtomicity = 0x0a,
        /// Asynchronous Event Configuration.
        Events = 0x0b,
        /// Keep Alive Timer.
        KeepAlive = 0x0f,
        /// Host Behavior Support.
        HostBehavior = 0x16,
        /// Host Identifier.
        HostId = 0x81,
        /// Reservation Notification Mask.
        ReservationMask = 0x82,
        /// Reservation Persistence.
        ReservationPersistence = 0x83,
        /// Namespace Write Protection Configuration.
        WriteProtection = 0x84,
    }
}

/// SEL of Get Features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Select {
    /// The current value.
    Current,
    /// The default value.
    Default,
    /// The saved value.
    Saved,
    /// What can be done with the feature: bit 0 saved, 1 of a namespace, 2 changed.
    Capabilities,
}

impl Select {
    /// The choice with this code.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Current),
            1 => Some(Self::Default),
            2 => Some(Self::Saved),
            3 => Some(Self::Capabilities),
            _ => None,
        }
    }
}

/// Number of Queues: how many I/O submission (low) and completion queues, 0's based on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queues {
    /// Submission queues, at least 1.
    pub submission: u16,
    /// Completion queues, at least 1.
    pub completion: u16,
}

impl Queues {
    /// What a value says; `None` if a number is 0xffff, which is not allowed.
    #[must_use]
    pub const fn decode(value: u32) -> Option<Self> {
        let (submission, completion) = (value as u16, (value >> 16) as u16);
        if submission == u16::MAX || completion == u16::MAX {
            return None;
        }
        Some(Self { submission: submission + 1, completion: completion + 1 })
    }

    /// The value.
    #[must_use]
    pub const fn encode(self) -> u32 {
        (self.submission - 1) as u32 | ((self.completion - 1) as u32) << 16
    }
}

/// Asynchronous Event Configuration, and OAES: critical warnings of the health log.
pub const EVENT_HEALTH: u32 = 0xff;
/// Changed namespaces.
pub const EVENT_NAMESPACES: u32 = 1 << 8;
/// Changed asymmetric namespace access.
pub const EVENT_ANA: u32 = 1 << 11;
/// Changed discovery log.
pub const EVENT_DISCOVERY: u32 = 1 << 31;

/// Reservation Notification Mask: no notice of a preempted registration.
pub const MASK_REGISTRATION_PREEMPTED: u32 = 1 << 1;
/// No notice of a released reservation.
pub const MASK_RESERVATION_RELEASED: u32 = 1 << 2;
/// No notice of a preempted reservation.
pub const MASK_RESERVATION_PREEMPTED: u32 = 1 << 3;
/// All bits of the mask.
pub const MASK_ALL: u32 =
    MASK_REGISTRATION_PREEMPTED | MASK_RESERVATION_RELEASED | MASK_RESERVATION_PREEMPTED;

/// An event that an Asynchronous Event Request is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Event {
    /// Namespaces have changed.
    Namespaces,
    /// Asymmetric namespace access has changed.
    Ana,
    /// The discovery log has changed.
    Discovery,
    /// There is a reservation notification.
    Reservation,
}

impl Event {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Namespaces, Self::Ana, Self::Discovery, Self::Reservation];

    /// The result of the Asynchronous Event Request: type, information and log page.
    #[must_use]
    pub const fn encode(self) -> u32 {
        let (kind, information) = match self {
            Self::Namespaces => (2, 0),
            Self::Ana => (2, 3),
            Self::Discovery => (2, 0xf0),
            Self::Reservation => (6, 0),
        };
        kind | information << 8 | (self.log_page().code() as u32) << 16
    }

    /// The event of a result, if it is one of these.
    #[must_use]
    pub fn decode(result: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|event| event.encode() == result & 0x00ff_ffff)
    }

    /// The log page that says more. Reading it lets the event come again.
    #[must_use]
    pub const fn log_page(self) -> LogPage {
        match self {
            Self::Namespaces => LogPage::ChangedNamespaces,
            Self::Ana => LogPage::Ana,
            Self::Discovery => LogPage::Discovery,
            Self::Reservation => LogPage::Reservation,
        }
    }

    /// The bit of Asynchronous Event Configuration that enables it; 0 for those that have a mask
    /// of their own.
    #[must_use]
    pub const fn enabled_by(self) -> u32 {
        match self {
            Self::Namespaces => EVENT_NAMESPACES,
            Self::Ana => EVENT_ANA,
            Self::Discovery => EVENT_DISCOVERY,
            Self::Reservation => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_those_that_hosts_know() {
        assert_eq!(Event::Namespaces.encode(), 0x04_0002);
        assert_eq!(Event::Ana.encode(), 0x0c_0302);
        assert_eq!(Event::Discovery.encode(), 0x70_f002);
        assert_eq!(Event::Reservation.encode(), 0x80_0006);
        for event in Event::ALL {
            assert_eq!(Event::decode(event.encode()), Some(event));
        }
        assert_eq!(Event::decode(0x01_0001), None);
    }

    #[test]
    fn numbers_of_queues_are_zero_based() {
        let queues = Queues { submission: 128, completion: 128 };
        assert_eq!(queues.encode(), 0x7f_007f);
        assert_eq!(Queues::decode(0x7f_007f), Some(queues));
        assert_eq!(Queues::decode(0xffff), None);
        assert_eq!(Queues::decode(0xffff_0000), None);
    }

    #[test]
    fn a_selection_has_four_codes() {
        assert_eq!(Select::from_code(3), Some(Select::Capabilities));
        assert_eq!(Select::from_code(4), None);
    }
}
