//! Reads blocks one after the other: for a look at what a namespace holds.

use lunet_nvme::command::Range;

use super::{Admin, Error, Login, Namespace, Queue, Target, unit};
use crate::pieces;

/// The most bytes of one command.
const PIECE: u64 = 64 << 10;

/// A controller with one queue, which reads. It writes nothing.
pub struct Reader {
    admin: Admin,
    queue: Queue,
    namespace: Namespace,
}

impl Reader {
    /// Connects, and asks the namespace for what it is. Where the address names no subsystem, the only
    /// one there is is taken; where it names no namespace, namespace 1.
    ///
    /// # Errors
    /// See [`inspect`](super::inspect).
    pub fn open(target: &Target, login: &Login) -> Result<Self, Error> {
        let nqn = unit::subsystem(target, login)?;
        let mut admin = Admin::open(target, login, &nqn, 1)?;
        let namespace = unit::look(&mut admin, target.namespace())?;
        let queue = Queue::of(&admin, target, login)?;
        Ok(Self { admin, queue, namespace })
    }

    /// What is read.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Fills the buffer from this byte on. They need not be whole logical blocks: what lies around
    /// them is read and dropped.
    ///
    /// # Errors
    /// The connection broke, the namespace does not read these blocks, or there are no such blocks.
    pub fn read(&mut self, at: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let size = u64::from(self.namespace.block_size);
        let most = self.namespace.max_transfer.min(PIECE);
        pieces::read((at, buffer), (size, most), |lba, blocks| self.blocks(lba, blocks))
    }

    fn blocks(&mut self, lba: u64, blocks: u32) -> Result<Vec<u8>, Error> {
        let range = Range { lba, blocks };
        let (nsid, size) = (self.namespace.nsid, self.namespace.block_size);
        let answer = self.queue.read(nsid, range, size)?;
        answer.good().map_err(|failure| Error::Command { what: "a read", failure })
    }

    /// Shuts the controller down.
    pub fn close(self) {
        drop(self.queue);
        self.admin.close();
    }
}
