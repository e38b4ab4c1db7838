//! Reads blocks one after the other: for a look at what a unit holds.

use super::ask::address;
use super::link::Link;
use super::{Error, LogicalUnit, Login, Target, cdb, inspect};
use crate::pieces;

/// The most bytes of one command.
const PIECE: u64 = 64 << 10;

/// A session that reads. It writes nothing.
pub struct Reader {
    link: Link,
    unit: LogicalUnit,
}

impl Reader {
    /// Logs in, and asks the unit for what it is. Where the address names no target or no LUN, the
    /// only one there is is taken.
    ///
    /// # Errors
    /// See [`inspect`].
    pub fn open(target: &Target, login: &Login) -> Result<Self, Error> {
        let unit = inspect(target, login)?;
        let mut link = Link::log_into(target, login, Some(&unit.target))?;
        if let Some(failure) = link.wait_ready(address(unit.lun))? {
            return Err(Error::Command { what: "TEST UNIT READY", failure });
        }
        Ok(Self { link, unit })
    }

    /// What is read.
    #[must_use]
    pub fn unit(&self) -> &LogicalUnit {
        &self.unit
    }

    /// Fills the buffer from this byte on. They need not be whole logical blocks: what lies around
    /// them is read and dropped.
    ///
    /// # Errors
    /// The session broke, the unit does not read these blocks, or there are no such blocks.
    pub fn read(&mut self, at: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let size = u64::from(self.unit.block_size);
        let most = self.unit.max_transfer.unwrap_or(PIECE).min(PIECE);
        pieces::read((at, buffer), (size, most), |lba, blocks| self.blocks(lba, blocks))
    }

    fn blocks(&mut self, lba: u64, blocks: u32) -> Result<Vec<u8>, Error> {
        let cdb = cdb::read(lba, blocks);
        let len = blocks as usize * self.unit.block_size as usize;
        let data = self.link.read(self.unit.lun, &cdb, len)?;
        let data = data.map_err(|failure| Error::Command { what: "READ", failure })?;
        if data.len() == len { Ok(data) } else { Err(Error::Answer("READ")) }
    }

    /// Logs out.
    pub fn close(self) {
        self.link.close();
    }
}
