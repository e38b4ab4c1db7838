//! Checks that what is read is what was written last, and names what is wrong.
//!
//! Each logical block of a verified write says which write it comes from and where it belongs (see
//! [`Fault`] for what that tells). In memory there is one number for each block of the smallest
//! size: the generation of the last write that was acknowledged there. Every job has a part of the
//! volume for itself, and no operation of it overlaps a write under way, so what a read has to
//! return is known exactly. A write that failed may or may not have happened: what it covered is
//! not known any more, and not judged until it is written again.
//!
//! What is found wrong is read a second time, together with all of the write that it comes from and
//! before anything else happens there. That tells a wrong answer from a wrong medium, and a write
//! that was torn from one that was lost.

mod judge;

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use crate::layout::Parts;
use crate::pattern::{self, Stamp};

pub(crate) use judge::Look;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// An acknowledged write is not there: twice, all that can be seen of it held what was there
    /// before.
    Lost,
    /// A part of an acknowledged write is there and a part is not.
    Torn,
    /// A read returned what was there before an acknowledged write; a second one was right.
    Stale,
    /// The data of another place was returned, or lies there.
    Misplaced,
    /// A block is damaged: its checksum is wrong, and it differs in some bits from what it should
    /// be.
    Flipped,
}

impl Fault {
    /// All of them, in the order of [`VerifyOutcome::faults`].
    pub const ALL: [Self; 5] =
        [Self::Lost, Self::Torn, Self::Stale, Self::Misplaced, Self::Flipped];

    /// The kind of damage in capitals, as reports print it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lost => "LOST",
            Self::Torn => "TORN",
            Self::Stale => "STALE",
            Self::Misplaced => "MISPLACED",
            Self::Flipped => "FLIPPED",
        }
    }
}

/// What was found instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The same block as of another write, whose generation this is.
    Generation(u32),
    /// A block that belongs elsewhere.
    OtherBlock {
        /// Where it belongs.
        lba: u64,
        /// The write that it comes from.
        generation: u32,
    },
    /// The right block with some bits wrong.
    Bits {
        /// How many.
        count: u32,
        /// The first byte with a wrong bit.
        first_byte: u32,
    },
    /// So many bytes at one end are right, the rest is something else.
    Part(u32),
    /// Zeroes.
    Zeroes,
    /// Nothing that this run has written.
    Foreign,
}

/// Something that is wrong: a run of logical blocks that are wrong alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it is called.
    pub fault: Fault,
    /// First logical block of the run.
    pub lba: u64,
    /// How many blocks.
    pub blocks: u64,
    /// The write that should be there.
    pub expected: u32,
    /// What was there, in the first block.
    pub found: Found,
    /// A second read was wrong as well: it is the medium, and not the answer.
    pub lasting: bool,
    /// When, since the start of the run.
    pub at: Duration,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fault, lba, blocks, expected, .. } = self;
        write!(f, "{} LBA {lba}", fault.name())?;
        if *blocks > 1 {
            write!(f, " to {} ({blocks} blocks)", lba + blocks - 1)?;
        }
        match *expected {
            0 => f.write_str(": ")?,
            expected => write!(f, ": write {expected} should be there; ")?,
        }
        match self.found {
            Found::Generation(generation) => write!(f, "found write {generation}")?,
            Found::OtherBlock { lba, generation } => {
                write!(f, "found the data of LBA {lba}, write {generation}")?;
            }
            Found::Bits { count: 1, first_byte } => {
                write!(f, "found one wrong bit, in byte {first_byte}")?;
            }
            Found::Bits { count, first_byte } => {
                write!(f, "found {count} wrong bits, from byte {first_byte} on")?;
            }
            Found::Part(right) => write!(f, "found {right} bytes of it, the rest is not its own")?,
            Found::Zeroes => f.write_str("found zeroes")?,
            Found::Foreign => f.write_str("found data that this run has not written")?,
        }
        f.write_str(if self.lasting { "" } else { "; a second read was right" })
    }
}

/// How many findings of a job are kept; more are counted.
pub const MOST_FINDINGS: usize = 1000;

/// What checking has shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyOutcome {
    /// Logical blocks that were compared with what should be there.
    pub checked: u64,
    /// Wrong logical blocks by [`Fault::ALL`].
    pub faults: [u64; 5],
    /// The first findings, in the order in which they were made.
    pub findings: Vec<Finding>,
    /// The run was interrupted, or ended by a failure, before all was read back.
    pub incomplete: bool,
}

impl VerifyOutcome {
    /// Wrong logical blocks in all.
    #[must_use]
    pub fn wrong(&self) -> u64 {
        self.faults.iter().sum()
    }

    /// Adds what another job has found.
    pub fn add(&mut self, other: &Self) {
        self.checked += other.checked;
        for (sum, part) in self.faults.iter_mut().zip(other.faults) {
            *sum += part;
        }
        let room = MOST_FINDINGS.saturating_sub(self.findings.len());
        self.findings.extend(other.findings.iter().take(room));
        self.incomplete |= other.incomplete;
    }

    fn report(&mut self, finding: Finding) {
        let kind = Fault::ALL.iter().position(|&fault| fault == finding.fault).unwrap_or(0);
        self.faults[kind] += finding.blocks;
        if self.findings.len() < MOST_FINDINGS {
            self.findings.push(finding);
        }
    }
}

/// What one job knows of its part of the volume.
pub(crate) struct Ledger {
    parts: Parts,
    key: u64,
    block_size: u32,
    /// Logical blocks of one entry.
    unit: u32,
    /// The generation of the last acknowledged write; 0: not known.
    generations: Vec<u32>,
    last: u32,
    /// Where reading back has come to, as an index into `generations`.
    cursor: u64,
    pub outcome: VerifyOutcome,
}

/// Most blocks of a second read, in bytes.
const LARGEST_EXTENT: u64 = crate::workload::MAX_KEPT_BLOCK as u64;

impl Ledger {
    /// `unit` logical blocks are never written one without the other.
    pub fn new(parts: Parts, key: u64, block_size: u32, unit: u32) -> Self {
        let entries = (parts.total() / u64::from(unit)) as usize;
        Self {
            parts,
            key,
            block_size,
            unit,
            generations: vec![0; entries],
            last: 0,
            cursor: 0,
            outcome: VerifyOutcome::default(),
        }
    }

    /// The number of the next write; `None` if all numbers are used up.
    pub fn next_generation(&mut self) -> Option<u32> {
        self.last = self.last.checked_add(1)?;
        Some(self.last)
    }

    /// Makes the data of a write.
    pub fn fill(&self, bytes: &mut [u8], lba: u64, generation: u32) {
        pattern::fill(bytes, self.block_size as usize, self.key, lba, generation);
    }

    fn entries(&self, lba: u64, blocks: u32) -> Range<usize> {
        let first = self.parts.index(lba).unwrap_or(0) / u64::from(self.unit);
        first as usize..first as usize + (blocks / self.unit) as usize
    }

    /// A write was acknowledged, or (`None`) failed.
    pub fn written(&mut self, lba: u64, blocks: u32, generation: Option<u32>) {
        let entries = self.entries(lba, blocks);
        self.generations[entries].fill(generation.unwrap_or(0));
    }

    /// The generation that a block should have; 0: not known.
    fn expected(&self, lba: u64) -> u32 {
        let index = self.parts.index(lba).map(|index| (index / u64::from(self.unit)) as usize);
        index.and_then(|index| self.generations.get(index)).copied().unwrap_or(0)
    }

    fn stamp(&self, lba: u64, generation: u32) -> Stamp {
        Stamp { key: self.key, lba, generation }
    }

    /// Looks at what a read returned. False if something is wrong.
    pub fn is_right(&mut self, lba: u64, bytes: &[u8]) -> bool {
        let mut right = true;
        let first = self.entries(lba, self.unit).start;
        let size = self.block_size as usize;
        for (n, unit) in bytes.chunks(size * self.unit as usize).enumerate() {
            let expected = self.generations[first + n];
            let from = lba + n as u64 * u64::from(self.unit);
            for (block, lba) in unit.chunks_exact(size).zip(from..) {
                self.outcome.checked += u64::from(expected != 0);
                let stamp = Stamp::read(block);
                right &= match expected {
                    0 => stamp.is_none_or(|s| s.key != self.key || s.lba == lba),
                    expected => stamp == Some(self.stamp(lba, expected)),
                };
            }
        }
        right
    }

    /// The blocks of a read, and all of the writes that its first and last blocks come from.
    pub fn extent(&self, lba: u64, blocks: u32) -> Range<u64> {
        let Some(part) = self.parts.around(lba) else { return lba..lba + u64::from(blocks) };
        let (unit, most) = (u64::from(self.unit), LARGEST_EXTENT / u64::from(self.block_size));
        let (mut start, mut end) = (lba, lba + u64::from(blocks));
        let (first, last) = (self.expected(start), self.expected(end - 1));
        let room = |start: u64, end: u64| end - start + unit <= most;
        while first != 0
            && start >= part.start + unit
            && room(start, end)
            && self.expected(start - unit) == first
        {
            start -= unit;
        }
        while last != 0 && end + unit <= part.end && room(start, end) && self.expected(end) == last
        {
            end += unit;
        }
        start..end
    }

    /// The next blocks to read back: known ones, at most `most`.
    pub fn next_check(&mut self, most: u32) -> Option<(u64, u32)> {
        let unit = u64::from(self.unit);
        let most = u64::from(most / self.unit).max(1);
        let known = |at: u64| self.generations.get(at as usize).is_some_and(|&g| g != 0);
        let entries = self.generations.len() as u64;
        let start = (self.cursor..entries).find(|&at| known(at));
        let Some(start) = start else {
            self.cursor = entries;
            return None;
        };
        let lba = self.lba(start);
        let part_end = self.parts.around(lba).map_or(lba + unit, |part| part.end);
        let whole = (part_end - lba) / unit;
        let mut len = 1;
        while len < most.min(whole) && known(start + len) {
            len += 1;
        }
        self.cursor = start + len;
        Some((lba, (len * unit) as u32))
    }

    /// The part of reading back that is done, 0 to 1.
    pub fn checked_part(&self) -> f64 {
        self.cursor as f64 / self.generations.len().max(1) as f64
    }

    /// The first block of an entry.
    fn lba(&self, entry: u64) -> u64 {
        let mut index = entry * u64::from(self.unit);
        for range in self.parts.ranges() {
            let len = range.end - range.start;
            if index < len {
                return range.start + index;
            }
            index -= len;
        }
        0
    }
}

/// Bytes that the ledgers of all jobs take for so many logical blocks.
pub(crate) const fn memory(blocks: u64, unit: u32) -> u64 {
    blocks / unit as u64 * 4
}

#[cfg(test)]
mod tests;
