//! How reservations treat commands, and the numbers of their types.

use lunet_reservations::{Access, Kind};

/// TYPE (SPC-5 6.15.3.4).
pub(super) const fn type_of(kind: Kind) -> u8 {
    match kind {
        Kind::WriteExclusive => 1,
        Kind::ExclusiveAccess => 3,
        Kind::WriteExclusiveRegistrantsOnly => 5,
        Kind::ExclusiveAccessRegistrantsOnly => 6,
        Kind::WriteExclusiveAllRegistrants => 7,
        Kind::ExclusiveAccessAllRegistrants => 8,
    }
}

/// The kind that has this number.
pub(super) fn kind_of(number: u8) -> Option<Kind> {
    Kind::ALL.into_iter().find(|kind| type_of(*kind) == number)
}

/// How a reservation treats a command (SPC-5 table 66, SBC-4 table 15; SPC-2 table 10 for
/// RESERVE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// It passes every reservation, or the reservation's own rules judge it.
    Free,
    /// It passes persistent reservations, not RESERVE.
    Status,
    /// It passes those that leave reads free.
    Read,
    /// It passes none of another nexus.
    Write,
    /// START STOP UNIT: `Status` if it starts the unit, else `Write`.
    Power,
    /// PREVENT ALLOW MEDIUM REMOVAL: `Free` if it allows, else `Write`.
    Prevent,
}

impl Guard {
    /// True if a nexus with this access may send the command.
    pub(crate) const fn admits(self, access: Access) -> bool {
        match self {
            Self::Free => true,
            Self::Status => access.status,
            Self::Read => access.read,
            Self::Write | Self::Power | Self::Prevent => access.write,
        }
    }
}
