//! What a reservation lets through.

/// The kinds of persistent reservation, as TYPE numbers them (SPC-5 6.15.3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Only the holder writes.
    WriteExclusive = 1,
    /// Only the holder reads and writes.
    ExclusiveAccess = 3,
    /// Only registered nexuses write; one of them is the holder.
    WriteExclusiveRegistrantsOnly = 5,
    /// Only registered nexuses read and write; one of them is the holder.
    ExclusiveAccessRegistrantsOnly = 6,
    /// Only registered nexuses write; all of them are holders.
    WriteExclusiveAllRegistrants = 7,
    /// Only registered nexuses read and write; all of them are holders.
    ExclusiveAccessAllRegistrants = 8,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::WriteExclusive,
        Self::ExclusiveAccess,
        Self::WriteExclusiveRegistrantsOnly,
        Self::ExclusiveAccessRegistrantsOnly,
        Self::WriteExclusiveAllRegistrants,
        Self::ExclusiveAccessAllRegistrants,
    ];

    /// The kind with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// True if every registered nexus holds the reservation.
    pub const fn all_registrants(self) -> bool {
        matches!(self, Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants)
    }

    /// True if registered nexuses may do what the holder may, holders themselves or not.
    pub const fn shared(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    /// True if reads are for everybody.
    pub const fn reads_are_free(self) -> bool {
        matches!(
            self,
            Self::WriteExclusive
                | Self::WriteExclusiveRegistrantsOnly
                | Self::WriteExclusiveAllRegistrants
        )
    }
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

/// What the reservations of a logical unit let one nexus do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Ask for the unit's state: false only while another nexus has it by RESERVE.
    pub status: bool,
    /// Read blocks.
    pub read: bool,
    /// Write blocks.
    pub write: bool,
}

impl Access {
    /// Everything: there is no reservation, or it is this nexus's own.
    pub const FULL: Self = Self { status: true, read: true, write: true };
    /// Nothing: another nexus has the unit by RESERVE.
    pub const NONE: Self = Self { status: false, read: false, write: false };

    pub(crate) const fn allows(self, guard: Guard) -> bool {
        match guard {
            Guard::Free => true,
            Guard::Status => self.status,
            Guard::Read => self.read,
            Guard::Write | Guard::Power | Guard::Prevent => self.write,
        }
    }
}
