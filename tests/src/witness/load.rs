//! Writes and flushes, many on their way at a time.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};

use super::model::{Change, Kind, Model, SECTOR, SECTORS, reads_zeroes_when_unmapped, same};
use crate::wire::Session;
use crate::wire::scsi::{FUA, GOOD, SYNCHRONIZE_CACHE, unmap, unmap_list, write_same16, write16};
use lunet_block::Random;

const IN_FLIGHT: usize = 24;

/// What the answer to a command means.
enum Sent {
    Change {
        change: Change,
        stable: bool,
    },
    /// What was acknowledged before the flush was sent.
    Flush(Vec<(usize, u64)>),
}

/// A load on one volume.
pub struct Load<'a> {
    model: &'a mut Model,
    session: &'a mut Session,
    random: &'a mut Random,
    sent: HashMap<u32, Sent>,
    unmaps: bool,
    /// Writes past the cache make durable what came before them, too: under them a lost flush might stay unseen.
    stable: bool,
}

impl<'a> Load<'a> {
    /// Nothing is on its way yet.
    pub fn new(
        model: &'a mut Model,
        session: &'a mut Session,
        random: &'a mut Random,
    ) -> Result<Load<'a>> {
        let unmaps = reads_zeroes_when_unmapped(session, model.lun())?;
        let stable = random.below(2) == 0;
        Ok(Load { model, session, random, sent: HashMap::new(), unmaps, stable })
    }

    /// Goes on until `enough` says so, which is asked after each answer; leaves the rest on its way.
    pub fn run(&mut self, mut enough: impl FnMut(&Model) -> bool) -> Result<()> {
        loop {
            while self.sent.len() < IN_FLIGHT && self.session.has_window() {
                self.send()?;
            }
            if enough(self.model) {
                return Ok(());
            }
            let answer = self.session.finish()?;
            ensure!(answer.status == GOOD, "LUN {}: {answer:02x?}", self.model.lun());
            match self.sent.remove(&answer.tag).context("an answer to nothing")? {
                Sent::Change { change, stable } => self.model.acknowledged(change, stable),
                Sent::Flush(before) => self.model.flushed(before),
            }
        }
    }

    /// Sends any command.
    fn send(&mut self) -> Result<()> {
        match self.random.below(100) {
            0..3 => {
                let before = self.model.unflushed();
                let tag = self.session.start(self.model.lun(), &SYNCHRONIZE_CACHE, 0, &[])?;
                self.sent.insert(tag, Sent::Flush(before));
                Ok(())
            }
            3..7 if self.unmaps => self.change(Kind::Zeroed, false),
            7..10 => self.change(Kind::Same, false),
            10..15 if self.stable => self.change(Kind::Written, true),
            _ => self.change(Kind::Written, false),
        }
    }

    /// Sends a change, if the blocks that the dice fall on are free.
    fn change(&mut self, kind: Kind, stable: bool) -> Result<()> {
        let lun = self.model.lun();
        let Some(change) = self.model.choose(self.random, kind) else { return Ok(()) };
        let lba = change.first as u64 * SECTORS;
        let sectors = u32::try_from(change.count as u64 * SECTORS)?;
        let tag = match kind {
            Kind::Written => {
                let mut cdb = write16(lba, sectors);
                cdb[1] |= if stable { FUA } else { 0 };
                self.session.start(lun, &cdb, 0, &self.model.data(change))?
            }
            Kind::Same => {
                let data = same(lun, change.version);
                self.session.start(lun, &write_same16(lba, sectors, false), 0, &data)?
            }
            Kind::Zeroed if self.random.below(2) == 0 => {
                let list = unmap_list(lba, sectors);
                self.session.start(lun, &unmap(list.len()), 0, &list)?
            }
            Kind::Zeroed => {
                let zeroes = [0; SECTOR];
                self.session.start(lun, &write_same16(lba, sectors, true), 0, &zeroes)?
            }
        };
        self.sent.insert(tag, Sent::Change { change, stable });
        Ok(())
    }
}
