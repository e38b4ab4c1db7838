//! What else than reservations the record of a group keeps of a volume: mode pages, and the mark of SANITIZE and FORMAT UNIT.

use lunet_gateway::{Change, Record, Sanitize};
use lunet_reservations::Registrant;
use lunet_scsi::reserve::{FAMILY, NexusId};
use lunet_scsi::{Attention, Modes, Sanitation, status};

use super::{GroupHandle, Order};
use crate::reservations::with_seats;
use crate::world::ScsiVolume;

/// The first byte of its bytes; requests on reservations have others.
const VERSION: u8 = 3;
/// What follows.
const MODES: u8 = 0;
const SANITIZE: u8 = 1;

/// What is to be in the record before a command goes on. It goes to the group's thread as
/// [`GroupRequest::Reserve`](super::GroupRequest::Reserve), and is no business of another gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keep {
    /// The volume, by its NAA designator.
    pub naa: [u8; 16],
    /// What is kept of it.
    pub what: Kept,
}

/// Part of the state of a logical unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Mode parameters, and the nexus that sets them, by the name that it registers with.
    Modes(Modes, Vec<u8>),
    /// Where the unit stands if SANITIZE or FORMAT UNIT is cut off, or [`Sanitation::None`].
    Sanitation(Sanitation),
}

impl Keep {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, value, nexus) = match &self.what {
            Kept::Modes(modes, nexus) => (MODES, flags(*modes), nexus.as_slice()),
            Kept::Sanitation(stands) => (SANITIZE, mark(*stands).code(), &[][..]),
        };
        [&[VERSION, kind, value], &self.naa[..], nexus].concat()
    }

    /// Reads it. `None` if it is something else.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&[version, kind, value], rest) = bytes.split_first_chunk()?;
        let (naa, nexus) = rest.split_first_chunk()?;
        let what = match kind {
            MODES => Kept::Modes(modes(value)?, nexus.to_vec()),
            SANITIZE if nexus.is_empty() => {
                let mark = Sanitize::from_code(value).filter(|it| *it != Sanitize::RollingBack)?;
                Kept::Sanitation(sanitation(mark))
            }
            _ => return None,
        };
        (version == VERSION).then_some(Self { naa: *naa, what })
    }

    /// What it changes in the record.
    pub fn change(&self) -> Change {
        match &self.what {
            Kept::Modes(modes, _) => Change::Modes(vec![flags(*modes)]),
            Kept::Sanitation(stands) => Change::Sanitize(mark(*stands)),
        }
    }

    /// The answer for whoever waits: it is kept, or it is to be tried again.
    pub fn answer(kept: bool) -> Vec<u8> {
        vec![if kept { status::GOOD } else { status::BUSY }]
    }
}

impl GroupHandle {
    /// This is in the record now: mode parameters take effect, and the other nexuses are told.
    pub fn kept(&self, keep: &Keep) {
        let Kept::Modes(modes, nexus) = &keep.what else { return };
        let Some((_, volume)) = self.volume(keep.naa) else { return };
        let nexus = NexusId::of(&Registrant::new(FAMILY, nexus));
        set(&volume, *modes, nexus.as_ref());
    }

    /// A rollback of a volume has ended, or it has failed: then its unit is as one that is not formatted.
    pub fn rolled_back(&self, naa: [u8; 16], whole: bool) {
        let Some((_, volume)) = self.volume(naa) else { return };
        let state = &volume.face.unit.state;
        // An initiator that overwrites it has its own end of it.
        if !state.sanitation().is_under_way() {
            state.end_sanitize(if whole { Sanitation::None } else { Sanitation::Unformatted });
        }
    }

    /// The mode parameters that a record has are those of its volumes from now on. Nexuses are told where they are others. Where
    /// it has the mark of SANITIZE or FORMAT UNIT, the owner is asked how that comes on.
    pub fn modes(&self, record: &Record) {
        let marks = record.contents.volumes.iter().filter(|kept| kept.sanitize != Sanitize::None);
        let marked = marks.filter_map(|kept| self.volume(kept.naa)).map(|(slot, _)| slot).collect();
        self.order(&Order::Marked(marked), || {});
        for (volume, kept) in self.in_record(record) {
            // A record that says nothing is one whose group has had no MODE SELECT.
            let default = Modes::DEFAULT;
            let modes = kept.modes.first().map_or(Some(default), |flags| modes(*flags));
            match modes {
                Some(modes) => set(&volume, modes, None),
                None => {
                    tracing::error!(volume = %volume.name, "the record's mode pages make no sense")
                }
            }
        }
    }
}

/// The mark of a unit that stands so.
const fn mark(stands: Sanitation) -> Sanitize {
    match stands {
        Sanitation::None => Sanitize::None,
        Sanitation::Failed { restricted } => Sanitize::Sanitizing { restricted },
        Sanitation::Running => Sanitize::Sanitizing { restricted: true },
        Sanitation::Formatting | Sanitation::Unformatted => Sanitize::Formatting,
    }
}

/// Where a unit stands by the mark of the record: nothing is under way when that is taken up.
pub(super) const fn sanitation(mark: Sanitize) -> Sanitation {
    match mark {
        Sanitize::None => Sanitation::None,
        Sanitize::Sanitizing { restricted } => Sanitation::Failed { restricted },
        // What it holds is as undefined as without a format, and the same ends that.
        Sanitize::Formatting | Sanitize::RollingBack => Sanitation::Unformatted,
    }
}

/// Sets mode parameters, and tells every nexus but one if they are others.
fn set(volume: &ScsiVolume, modes: Modes, by: Option<&NexusId>) {
    if volume.face.unit.state.set_modes(modes) {
        with_seats(volume, |seats| {
            seats.attend_all_but(by, Attention::ModeParametersChanged);
        });
    }
}

const BITS: [u8; 4] = [1, 2, 4, 8];

const fn flags(modes: Modes) -> u8 {
    let Modes { write_protect, descriptor_sense, task_aborted, write_cache } = modes;
    write_protect as u8
        | (descriptor_sense as u8) << 1
        | (task_aborted as u8) << 2
        | (write_cache as u8) << 3
}

fn modes(flags: u8) -> Option<Modes> {
    let [write_protect, descriptor_sense, task_aborted, write_cache] =
        BITS.map(|bit| flags & bit != 0);
    let known = flags < 1 << BITS.len();
    known.then_some(Modes { write_protect, descriptor_sense, task_aborted, write_cache })
}
