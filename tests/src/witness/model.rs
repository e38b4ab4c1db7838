//! What each block of a volume may hold.

use anyhow::{Context, Result, ensure};

use crate::wire::{Session, scsi};
use lunet_block::{Random, mix};

/// The unit of the checks. A write of several of these may be cut between them by a crash, never within one.
pub const BLOCK: usize = 4096;
/// The logical block of every volume under test.
pub const SECTOR: usize = 512;
/// Logical blocks of a block.
pub const SECTORS: u64 = (BLOCK / SECTOR) as u64;
/// The blocks of a volume that are written to.
pub const BLOCKS: usize = 1024;

/// The largest write: more than the target takes without an R2T in one of our segments.
const MOST_BLOCKS: u64 = 48;

/// What a block holds is told by one number, 0 = never written. Later changes have higher ones.
pub type Version = u64;

/// How a version came about, which says what its blocks hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// WRITE: every block its own content.
    Written,
    /// WRITE SAME: all logical blocks the same.
    Same,
    /// UNMAP, or WRITE SAME with zeroes; or never written.
    Zeroed,
}

/// Blocks that one command changes.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// The first.
    pub first: usize,
    /// So many.
    pub count: usize,
    /// What they hold afterwards.
    pub version: Version,
}

/// What may be found in one block.
#[derive(Clone, Default)]
struct Slot {
    /// Acknowledged, and a flush that was sent after that was acknowledged too; or written past the cache.
    durable: Version,
    /// The last that was acknowledged.
    acknowledged: Version,
    /// Sent later than what is durable. Each may or may not have reached the storage.
    later: Vec<Version>,
    /// A change is on its way.
    busy: bool,
}

impl Slot {
    fn is_durable(&mut self, version: Version) {
        self.durable = self.durable.max(version);
        let durable = self.durable;
        self.later.retain(|&v| v > durable);
    }
}

/// What a writer knows about a volume.
pub struct Model {
    lun: u8,
    tears: bool,
    slots: Vec<Slot>,
    /// By version.
    kinds: Vec<Kind>,
    /// Flushes that were acknowledged.
    pub flushes: u64,
    /// Blocks that were found torn, where that is no fault.
    pub torn: u64,
}

/// What a written block holds: no two blocks of any two volumes or versions are alike.
pub fn written_block(lun: u8, slot: usize, version: Version) -> Vec<u8> {
    let place = slot as u64 | u64::from(lun) << 32;
    let rest = (2..BLOCK as u64 / 8).map(|i| mix(version ^ mix(place ^ mix(i))));
    [version, place].into_iter().chain(rest).flat_map(u64::to_le_bytes).collect()
}

/// What one logical block of WRITE SAME holds.
pub fn same(lun: u8, version: Version) -> Vec<u8> {
    let place = u64::MAX ^ u64::from(lun);
    let rest = (2..SECTOR as u64 / 8).map(|i| mix(version ^ mix(place ^ mix(i))));
    [version, place].into_iter().chain(rest).flat_map(u64::to_le_bytes).collect()
}

impl Model {
    /// A volume of zeroes.
    pub fn new(lun: u8) -> Model {
        Model {
            lun,
            tears: false,
            slots: vec![Slot::default(); BLOCKS],
            kinds: vec![Kind::Zeroed],
            flushes: 0,
            torn: 0,
        }
    }

    /// A change that was not flushed may come out of a crash in parts.
    pub fn tears(self) -> Model {
        Model { tears: true, ..self }
    }

    /// The logical unit.
    pub fn lun(&self) -> u8 {
        self.lun
    }

    /// How many changes were sent.
    pub fn changes(&self) -> u64 {
        self.kinds.len() as u64 - 1
    }

    fn content(&self, slot: usize, version: Version) -> Vec<u8> {
        match self.kinds[version as usize] {
            Kind::Written => written_block(self.lun, slot, version),
            Kind::Same => same(self.lun, version).repeat(BLOCK / SECTOR),
            Kind::Zeroed => vec![0; BLOCK],
        }
    }

    /// The bytes of a WRITE.
    pub fn data(&self, change: Change) -> Vec<u8> {
        let slots = change.first..change.first + change.count;
        slots.flat_map(|slot| self.content(slot, change.version)).collect()
    }

    /// A change of blocks that no other change is on its way to: otherwise nobody could say which comes last.
    pub fn choose(&mut self, random: &mut Random, kind: Kind) -> Option<Change> {
        let wanted = 1 + if random.below(4) == 0 { random.below(MOST_BLOCKS) } else { 0 };
        let first = random.below(BLOCKS as u64) as usize;
        let free = self.slots[first..].iter().take(wanted as usize).take_while(|s| !s.busy);
        let count = free.count();
        if count == 0 {
            return None;
        }
        let version = self.kinds.len() as Version;
        self.kinds.push(kind);
        for slot in &mut self.slots[first..first + count] {
            slot.busy = true;
            slot.later.push(version);
        }
        Some(Change { first, count, version })
    }

    /// A change was acknowledged; with `stable` it was one that goes past the cache.
    pub fn acknowledged(&mut self, change: Change, stable: bool) {
        for slot in &mut self.slots[change.first..change.first + change.count] {
            slot.busy = false;
            slot.acknowledged = change.version;
            if stable {
                slot.is_durable(change.version);
            }
        }
    }

    /// What a flush that is sent now makes durable.
    pub fn unflushed(&self) -> Vec<(usize, Version)> {
        let slots = self.slots.iter().enumerate();
        slots
            .filter(|(_, s)| s.acknowledged > s.durable)
            .map(|(i, s)| (i, s.acknowledged))
            .collect()
    }

    /// A flush was acknowledged that was sent when this was unflushed.
    pub fn flushed(&mut self, before: Vec<(usize, Version)>) {
        self.flushes += 1;
        for (slot, version) in before {
            self.slots[slot].is_durable(version);
        }
    }

    /// Only the server died: what it has acknowledged is in the hands of the kernel, and must be there without a flush. An
    /// initiator that logs in again does not repeat what was acknowledged.
    pub fn only_the_server_died(&mut self) {
        for slot in &mut self.slots {
            slot.is_durable(slot.acknowledged);
        }
    }

    /// Compares the volume with what may be there, and takes over what is there.
    pub fn check(&mut self, session: &mut Session) -> Result<()> {
        const AT_ONCE: usize = 16;
        for first in (0..BLOCKS).step_by(AT_ONCE) {
            let sectors = AT_ONCE as u64 * SECTORS;
            let lba = first as u64 * SECTORS;
            let data = session.read(self.lun, lba, u32::try_from(sectors)?, SECTOR)?;
            for (slot, found) in (first..).zip(data.chunks(BLOCK)) {
                let whole = self.recognise(slot, found);
                if whole.is_none() && self.tears && self.is_torn(slot, found) {
                    let what = self.describe(slot, found);
                    println!("LUN {} block {slot}, as it may: {what}", self.lun);
                    self.repair(session, slot)?;
                    continue;
                }
                let version = whole.with_context(|| {
                    let known = &self.slots[slot];
                    format!(
                        "LUN {} block {slot}: {}, but {} ({:?}) is durable, {} was acknowledged, and only {:?} were sent later",
                        self.lun,
                        self.describe(slot, found),
                        known.durable,
                        self.kinds[known.durable as usize],
                        known.acknowledged,
                        known.later
                    )
                })?;
                self.slots[slot] =
                    Slot { durable: version, acknowledged: version, ..Slot::default() };
            }
        }
        // What was read may still be only in a cache. From here on it counts as durable.
        session.flush(self.lun)
    }

    /// The version that a block holds, out of those that it may.
    fn recognise(&self, slot: usize, found: &[u8]) -> Option<Version> {
        let known = &self.slots[slot];
        let mut may = std::iter::once(&known.durable).chain(&known.later);
        may.find(|&&version| self.content(slot, version) == found).copied()
    }

    /// Is each word of the block from some version that it may hold?
    fn is_torn(&self, slot: usize, found: &[u8]) -> bool {
        let known = &self.slots[slot];
        let may = std::iter::once(&known.durable).chain(&known.later);
        let may: Vec<_> = may.map(|&version| self.content(slot, version)).collect();
        let from = |at: usize, content: &Vec<u8>| content[at..at + 8] == found[at..at + 8];
        (0..BLOCK).step_by(8).all(|at| may.iter().any(|content| from(at, content)))
    }

    /// Writes a torn block anew, as a file system's own journal would.
    fn repair(&mut self, session: &mut Session, slot: usize) -> Result<()> {
        let version = self.kinds.len() as Version;
        self.kinds.push(Kind::Written);
        self.torn += 1;
        session.write(self.lun, slot as u64 * SECTORS, &self.content(slot, version), SECTOR)?;
        self.slots[slot] = Slot { durable: version, acknowledged: version, ..Slot::default() };
        Ok(())
    }

    /// What a block holds that it may not, in words.
    fn describe(&self, slot: usize, found: &[u8]) -> String {
        if found.iter().all(|&byte| byte == 0) {
            return "zeroes".to_owned();
        }
        let mut head = [0; 8];
        head.copy_from_slice(&found[..8]);
        let version = Version::from_le_bytes(head);
        if version >= self.kinds.len() as Version {
            return format!("bytes of nobody: {:02x?}", &found[..16]);
        }
        let content = self.content(slot, version);
        let other = found.iter().zip(&content).position(|(found, written)| found != written);
        match other {
            None => format!("version {version}"),
            Some(at) => format!("version {version}, torn or of another block from byte {at} on"),
        }
    }
}

/// Demands a logical block of [`SECTOR`] bytes. Says whether unmapped blocks read as zeroes.
pub fn reads_zeroes_when_unmapped(session: &mut Session, lun: u8) -> Result<bool> {
    let capacity = scsi::capacity(session, lun)?;
    let block = capacity.block_size;
    ensure!(block as usize == SECTOR, "LUN {lun} has blocks of {block} bytes");
    Ok(capacity.unmapped_reads_zeroes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One block that a change is on its way to.
    fn sent(model: &mut Model, slot: usize) -> Change {
        let version = model.kinds.len() as Version;
        model.kinds.push(Kind::Written);
        model.slots[slot].later.push(version);
        Change { first: slot, count: 1, version }
    }

    #[test]
    fn what_was_acknowledged_may_be_lost_until_it_is_flushed() {
        let mut model = Model::new(3);
        let old = sent(&mut model, 7);
        model.acknowledged(old, false);
        let before = model.unflushed();
        let new = sent(&mut model, 7);
        model.acknowledged(new, false);
        let holds = |model: &Model, version| model.recognise(7, &model.content(7, version));
        assert_eq!([0, old.version, new.version].map(|v| holds(&model, v).is_some()), [true; 3]);
        // The flush was sent before the second.
        model.flushed(before);
        let may = [0, old.version, new.version].map(|v| holds(&model, v).is_some());
        assert_eq!(may, [false, true, true]);
        model.only_the_server_died();
        let may = [0, old.version, new.version].map(|v| holds(&model, v).is_some());
        assert_eq!(may, [false, false, true]);
    }

    #[test]
    fn a_write_past_the_cache_needs_no_flush_and_a_torn_block_is_none() {
        let mut model = Model::new(0);
        let change = sent(&mut model, 5);
        model.acknowledged(change, true);
        assert_eq!(model.recognise(5, &[0; BLOCK]), None);
        let mut torn = model.data(change);
        assert_eq!(model.recognise(5, &torn), Some(change.version));
        torn[SECTOR..].fill(0);
        assert_eq!(model.recognise(5, &torn), None);
        assert!(model.describe(5, &torn).ends_with("from byte 512 on"));
        // Torn parts are those of a change that may be lost as a whole.
        assert!(!model.is_torn(5, &torn));
        let later = sent(&mut model, 5);
        let mut torn = model.data(later);
        torn[1000..].copy_from_slice(&model.data(change)[1000..]);
        assert!(model.is_torn(5, &torn));
        torn[2000] ^= 1;
        assert!(!model.is_torn(5, &torn));
    }
}
