//! A copy at work: what is to be done, and how far it has come.

use std::sync::Arc;

use arrayvec::ArrayVec;
use lunet_block::ByteRange;
use lunet_scsi::copy::{Extended, Piece, Side};
use lunet_scsi::{Code, CopyFault, Forwarded, Key, Sense};
use lunet_volume::{DEPTH, VolumeId};

use crate::conn::ConnId;
use crate::world::World;

/// The most that one call of the storage's own copying moves, in bytes: an abort waits for no more.
pub const STRIDE: u64 = 16 << 20;

/// State of [`Job::Copy`](crate::engine::task::Job::Copy). It is kept in the task, because the job is another one
/// while a thread copies.
pub struct Copy {
    /// The slot of the connection that it came by.
    pub slot: ConnId,
    /// Its number among that connection's copy operations.
    pub op: u64,
    /// What to do.
    pub parts: Parts,
    /// The segment or piece that comes next.
    pub next: usize,
    /// The one at work.
    pub moving: Option<Moving>,
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

/// A segment or piece at work.
pub struct Moving {
    /// The slot of the volume that is read; for zeroes it is the other.
    pub source: VolumeId,
    /// The slot of the volume that is written.
    pub destination: VolumeId,
    /// What is read.
    pub from: ByteRange,
    /// What is written.
    pub to: ByteRange,
    /// How it is done.
    pub how: How,
    /// How much has been asked for.
    pub asked: u64,
    /// Up to here the storage could not copy what is data: it goes through buffers.
    pub through: u64,
    /// How much has been written, from the start on or from the end back.
    pub written: u64,
    /// What has been written beyond that: offset and length.
    ahead: ArrayVec<(u64, u64), DEPTH>,
    /// All of it is stable, as a volume without write cache must have it.
    pub stable: bool,
    /// The world in which it was found that the initiator may do it.
    pub world: Arc<World>,
}

/// How data is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// By the storage itself, as long as it can.
    Offload,
    /// Through buffers, so many requests at a time.
    Buffers(usize),
    /// One after the other, from the end back: the ranges overlap on one volume.
    Backwards,
    /// Nothing is read.
    Zeroes,
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

    /// The volumes that are in use besides the task's own.
    pub fn held(&self) -> ArrayVec<VolumeId, 2> {
        self.moving.iter().flat_map(|moving| [moving.source, moving.destination]).collect()
    }
}

impl Moving {
    /// A segment or piece that has not begun.
    pub fn new(
        (source, destination): (Option<VolumeId>, VolumeId),
        (from, to): (ByteRange, ByteRange),
        world: Arc<World>,
    ) -> Self {
        let overlap = source == Some(destination) && from.overlaps(to);
        let how = match source {
            None => How::Zeroes,
            Some(_) if overlap && to.offset > from.offset => How::Backwards,
            Some(_) if overlap => How::Buffers(1),
            Some(_) => How::Offload,
        };
        let source = source.unwrap_or(destination);
        let ahead = ArrayVec::new();
        let (asked, through, written, stable) = (0, 0, 0, false);
        Self { source, destination, from, to, how, asked, through, written, ahead, stable, world }
    }

    /// What is not asked for yet, in bytes.
    pub const fn left(&self) -> u64 {
        self.to.len - self.asked
    }

    /// What of that goes through buffers next.
    pub fn left_to_read(&self) -> u64 {
        match self.how {
            How::Offload => self.through - self.asked,
            _ => self.left(),
        }
    }

    /// Requests that may be at work or wait for their turn to count.
    pub const fn depth(&self) -> usize {
        match self.how {
            How::Buffers(depth) => depth,
            How::Offload if self.asked < self.through => DEPTH,
            How::Offload | How::Backwards => 1,
            How::Zeroes => DEPTH,
        }
    }

    /// How many pieces are written whose turn to count has not come.
    pub fn ahead(&self) -> usize {
        self.ahead.len()
    }

    /// Asks for so many bytes more: their offset in the segment.
    pub fn ask(&mut self, len: u64) -> u64 {
        let offset = match self.how {
            How::Backwards => self.to.len - self.asked - len,
            _ => self.asked,
        };
        self.asked += len;
        offset
    }

    /// So many bytes from an offset on are written. Answers how many more count now.
    pub fn wrote(&mut self, offset: u64, len: u64) -> u64 {
        let before = self.written;
        if self.how == How::Backwards {
            self.written += len;
            return len;
        }
        // There is room: each of them was at work before.
        self.ahead.push((offset, len));
        while let Some(at) = self.ahead.iter().position(|(offset, _)| *offset == self.written) {
            self.written += self.ahead.swap_remove(at).1;
        }
        self.written - before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moving(source: usize, from: u64, to: u64) -> Moving {
        let ranges = (ByteRange::new(from, 8192), ByteRange::new(to, 8192));
        let parties = (Some(VolumeId::new(source)), VolumeId::new(1));
        Moving::new(parties, ranges, Arc::default())
    }

    #[test]
    fn overlapping_ranges_are_copied_from_the_side_that_is_safe() {
        assert_eq!(moving(0, 0, 4096).how, How::Offload);
        assert_eq!(moving(1, 0, 8192).how, How::Offload);
        assert_eq!(moving(1, 4096, 0).how, How::Buffers(1));
        let mut backwards = moving(1, 0, 4096);
        assert_eq!(backwards.how, How::Backwards);
        assert_eq!((backwards.ask(512), backwards.ask(512)), (7680, 7168));
    }

    #[test]
    fn only_what_is_written_in_order_counts() {
        let mut moving = moving(0, 0, 0);
        moving.how = How::Buffers(DEPTH);
        assert_eq!((moving.ask(1024), moving.ask(1024), moving.ask(512)), (0, 1024, 2048));
        assert_eq!((moving.wrote(2048, 512), moving.wrote(1024, 1024)), (0, 0));
        assert_eq!(moving.ahead(), 2);
        assert_eq!((moving.wrote(0, 1024), moving.written, moving.ahead()), (2560, 2560, 0));
    }
}
