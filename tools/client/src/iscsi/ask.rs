//! Questions about a unit, with plain buffers.

use std::time::{Duration, Instant};

use lunet_iscsi::initiator::Data;
use lunet_scsi::Lun;

use super::cdb::{self, Cdb};
use super::link::{Ended, Link};
use super::{Error, Failure, Login, Target};

/// Requests of such a session that may be unanswered at a time.
const MAX_TASKS: u16 = 4;

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// How it failed, if it did.
    pub failure: Option<Failure>,
    /// What was read.
    pub data: Vec<u8>,
    /// From the request to the answer.
    pub took: Duration,
}

impl Answer {
    /// What was read, or how it failed.
    ///
    /// # Errors
    /// It failed.
    pub fn good(self) -> Result<Vec<u8>, Failure> {
        self.failure.map_or(Ok(self.data), Err)
    }
}

impl Link {
    /// Connects and logs in to the target of this name; `None` makes a discovery session. Goes where
    /// the target has moved to.
    ///
    /// # Errors
    /// There is no such target, or it does not want this initiator.
    pub fn log_into(target: &Target, login: &Login, name: Option<&str>) -> Result<Self, Error> {
        Self::open(target, login, name, MAX_TASKS, Instant::now())
    }

    /// Sends a command that reads at most `len` bytes, until it is not answered with a unit
    /// attention.
    ///
    /// # Errors
    /// The session has ended; a CHECK CONDITION is an [`Answer`].
    pub fn ask(&mut self, lun: u16, cdb: &Cdb, len: usize) -> Result<Answer, Error> {
        let data = || if len > 0 { Data::Read(vec![0; len]) } else { Data::None };
        let Ended { failure, read, took } = self.repeat(address(lun), cdb, data)?;
        let data = read.map(|(mut data, received)| {
            data.truncate(received);
            data
        });
        Ok(Answer { failure, data: data.unwrap_or_default(), took })
    }

    /// The same; what was read, or how it failed.
    pub(super) fn read(
        &mut self,
        lun: u16,
        cdb: &Cdb,
        len: usize,
    ) -> Result<Result<Vec<u8>, Failure>, Error> {
        self.ask(lun, cdb, len).map(Answer::good)
    }

    /// The logical units of the target, at most `most` (REPORT LUNS).
    ///
    /// # Errors
    /// The session broke, or the target does not say.
    pub fn luns(&mut self, most: u32) -> Result<Vec<u16>, Error> {
        let len = 8 + 8 * most;
        let data = self.read(0, &cdb::report_luns(len), len as usize)?;
        let data = data.map_err(|failure| Error::Command { what: "REPORT LUNS", failure })?;
        let entries = data.get(8..).unwrap_or_default().chunks_exact(8);
        let number = |entry: &[u8]| Lun::decode(entry.try_into().ok()?).map(|lun| lun.0);
        Ok(entries.filter_map(number).collect())
    }

    /// A page of vital product data; empty if there is no such page.
    ///
    /// # Errors
    /// The session has ended.
    pub fn page(&mut self, lun: u16, code: u8) -> Result<Vec<u8>, Error> {
        let data = self.read(lun, &cdb::inquiry(Some(code), 252), 252)?.unwrap_or_default();
        Ok(if data.get(1) == Some(&code) { data } else { Vec::new() })
    }
}

/// The 8 bytes of the LUN field.
pub(super) const fn address(lun: u16) -> u64 {
    u64::from_be_bytes(Lun(lun).encode())
}

/// A number of `width` bytes at `at`, big-endian.
#[must_use]
pub fn number(data: &[u8], at: usize, width: usize) -> Option<u64> {
    let bytes = data.get(at..at + width)?;
    Some(bytes.iter().fold(0, |value, &byte| value << 8 | u64::from(byte)))
}
