//! A copy at work: what is to be done, and how far it has come.

use std::sync::Arc;

use lunet_scsi::copy::{Extended, Piece, Side};
use lunet_scsi::{Code, CopyFault, Forwarded, Key, Sense, status};
use lunet_volume::{OpenVolumes, VolumeId, Work};

use crate::engine::task::Task;
use crate::world::{LogicalUnit, World};
use lunet_server::conn::ConnId;

/// State of [`Job::Copy`](crate::engine::task::Job::Copy). The [work](lunet_volume::Operation::work) of its operation is
/// the segment or piece at work.
pub struct Copy {
    /// The slot of the connection that it came by.
    pub slot: ConnId,
    /// Its number among that connection's copy operations.
    pub op: u64,
    /// What to do.
    pub parts: Parts,
    /// The segment or piece that comes next.
    pub next: usize,
    /// The world in which it was found that the initiator may have the one at work.
    pub world: Arc<World>,
    /// There was less data than was asked for.
    pub partial: bool,
}

/// What a copy is made of.
pub enum Parts {
    /// Segments; who takes part in one is found when its turn comes.
    Segments(Box<Extended>),
    /// Pieces from the volume in a slot, or zeroes if there is none, to the volume that has the command.
    Pieces(Option<VolumeId>, Vec<Piece>),
}

impl Copy {
    /// How many segments or pieces there are.
    pub fn count(&self) -> usize {
        match &self.parts {
            Parts::Segments(extended) => extended.segments(),
            Parts::Pieces(_, pieces) => pieces.len(),
        }
    }

    /// SEGMENTS PROCESSED: those begun; 0 if there are no segments.
    pub fn segments(&self) -> u16 {
        match &self.parts {
            Parts::Segments(_) => self.next as u16,
            Parts::Pieces(..) => 0,
        }
    }

    /// The sense data of a party that has refused or failed.
    pub fn failure(&self, side: Side, status: u8, sense: Option<Sense>) -> Sense {
        let number = self.next.saturating_sub(1);
        match &self.parts {
            Parts::Segments(extended) => extended.failure(number, side, status, sense),
            // The destination is the unit that has the command: its trouble is the command's own.
            Parts::Pieces(..) => match sense {
                Some(sense) if side == Side::Destination => sense,
                sense => {
                    let nothing = Sense::new(Key::NoSense, Code::NO_ADDITIONAL_SENSE);
                    let Sense { key, code, .. } = sense.unwrap_or(nothing);
                    let source = side == Side::Source;
                    let forwarded = Some(Forwarded { source, status, key, code });
                    Sense::third_party(CopyFault { segment: 0, forwarded })
                }
            },
        }
    }

    /// The sense data of a request of `task`, this copy, that has failed for this reason at one of the parties.
    pub fn request_failure(
        &self,
        task: &Task,
        side: Side,
        sense: Sense,
        volumes: &OpenVolumes<LogicalUnit>,
    ) -> Sense {
        let failure = self.failure(side, status::CHECK_CONDITION, Some(sense));
        let residual = match &task.work {
            Work::Copy(copy) => copy.residual(),
            // All is written, but not stable.
            _ => Some(0),
        };
        let written = task.requests.parties().map(|parties| parties.destination);
        match (residual, written) {
            // The residual, in blocks of the destination (SPC-5 5.18.7.4).
            (Some(bytes), Some(slot)) if failure.copy.is_some() => {
                failure.with_information(bytes / u64::from(volumes[slot].core.caps.block_size))
            }
            _ => failure,
        }
    }
}
