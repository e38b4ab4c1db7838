//! What the model assumes where nobody can know, and how far it may be off.

use serde::Serialize;

/// Where in its range an assumption is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Level {
    /// What makes ceilings lowest.
    Low,
    /// What the model takes.
    #[default]
    Usual,
    /// What makes ceilings highest.
    High,
}

impl Level {
    /// The value for this level.
    pub fn of(self, low: f64, usual: f64, high: f64) -> f64 {
        match self {
            Self::Low => low,
            Self::Usual => usual,
            Self::High => high,
        }
    }
}

/// Something that the model assumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Assumption {
    /// What a drive reads.
    DriveReads,
    /// What a drive writes for long.
    DriveWrites,
    /// How well RAID-Z and dRAID use their drives.
    Raidz,
    /// How well mirrors use their drives.
    Mirrors,
    /// What memory moves, and how often data cross it.
    Memory,
    /// Processor time for a byte.
    Processor,
    /// Overhead of PCIe.
    Pcie,
    /// What is lost on a wire.
    Wire,
    /// How evenly several links are used.
    Paths,
    /// The time of a request.
    Session,
}

impl Assumption {
    /// All of them.
    pub(super) const ALL: [Self; 10] = [
        Self::DriveReads,
        Self::DriveWrites,
        Self::Raidz,
        Self::Mirrors,
        Self::Memory,
        Self::Processor,
        Self::Pcie,
        Self::Wire,
        Self::Paths,
        Self::Session,
    ];

    /// Its range, and why that is.
    pub(super) fn range(self) -> &'static str {
        match self {
            Self::DriveReads => {
                "Drives read 85 to 100 % of what the maker states, which is the best case; a drive that \
                 turns 50 to 135 % of 200 MB/s (inner and outer tracks); one of which only the link is \
                 known 50 to 100 % of that; figures that you give 95 to 105 %"
            }
            Self::DriveWrites => {
                "Drives write 60 to 100 % of what the maker states; where somebody measured what lasts, \
                 from 85 % of that to what the maker states; one of which only the link is known 25 to \
                 100 % of that; figures that you give 95 to 105 %"
            }
            Self::Raidz => {
                "RAID-Z reads from its data drives at least and from all at best, and answers random \
                 records as one drive that is half busy with writes, or as all its data drives would"
            }
            Self::Mirrors => "Mirrors spread reads so that 75 to 100 % of their drives are used",
            Self::Memory => {
                "Programs reach 70 to 90 % of what the modules could move (a measurement of a quarter of \
                 a second: 90 to 110 %), and processors whose cache takes what devices send (DDIO) save \
                 up to two crossings"
            }
            Self::Processor => {
                "A byte costs 0.75 to 2 times the cycles: they were measured on another processor, over \
                 loopback, in requests of 128 KiB; drivers of cards and smaller requests cost more"
            }
            Self::Pcie => {
                "Acknowledgements and flow control take 8 to 10 %, a packet has 20 to 28 bytes of header, \
                 and a payload that nobody has seen is 128 to 512 bytes"
            }
            Self::Wire => "Acknowledgements and pauses take up to 2 % of a wire",
            Self::Paths => {
                "Several paths are used to 90 to 100 %; in a link aggregation the hash may put all \
                 connections on one link"
            }
            Self::Session => "A request of 128 KiB takes 0.25 to 4 ms under load instead of 1 ms",
        }
    }
}

/// Where each assumption is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Assumed([Level; Assumption::ALL.len()]);

impl Assumed {
    /// Where this one is taken.
    pub fn level(self, assumption: Assumption) -> Level {
        self.0[assumption as usize]
    }

    /// The same with this one taken there.
    pub fn with(mut self, assumption: Assumption, level: Level) -> Self {
        self.0[assumption as usize] = level;
        self
    }
}
