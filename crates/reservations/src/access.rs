//! What a reservation lets through.

/// The kinds of persistent reservation. Protocols have the same six, each under numbers of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Only the holder writes.
    WriteExclusive,
    /// Only the holder reads and writes.
    ExclusiveAccess,
    /// Only registrants write; one of them is the holder.
    WriteExclusiveRegistrantsOnly,
    /// Only registrants read and write; one of them is the holder.
    ExclusiveAccessRegistrantsOnly,
    /// Only registrants write; all of them are holders.
    WriteExclusiveAllRegistrants,
    /// Only registrants read and write; all of them are holders.
    ExclusiveAccessAllRegistrants,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::WriteExclusive,
        Self::ExclusiveAccess,
        Self::WriteExclusiveRegistrantsOnly,
        Self::ExclusiveAccessRegistrantsOnly,
        Self::WriteExclusiveAllRegistrants,
        Self::ExclusiveAccessAllRegistrants,
    ];

    /// True if every registrant holds the reservation.
    pub const fn all_registrants(self) -> bool {
        matches!(self, Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants)
    }

    /// True if registrants may do what the holder may, holders themselves or not.
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

/// What the reservations of a volume let somebody do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Ask for the state of the volume: false only while another has [claimed](crate::Reservations::claim) it.
    pub status: bool,
    /// Read blocks.
    pub read: bool,
    /// Write blocks.
    pub write: bool,
}

impl Access {
    /// Everything: there is no reservation, or it is one's own.
    pub const FULL: Self = Self { status: true, read: true, write: true };
    /// Nothing: another has claimed the volume.
    pub const NONE: Self = Self { status: false, read: false, write: false };
}
