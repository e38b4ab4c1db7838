//! GET LBA STATUS: the storage is asked on another thread.

use lunet_block::{BlockRange, Error, Extent, Op};
use lunet_scsi::{Sense, lba_status, status};

use super::Engine;
use super::task::{Bare, Job, Owner, Task};
use crate::conn::Conn;
use crate::stats::Kind;

impl Engine {
    /// Asks which blocks of a range, that ends with the volume, are mapped.
    pub(super) fn lba_status(
        &mut self,
        conn: &mut Conn,
        (owner, lun, volume): (Owner, u16, usize),
        range: BlockRange,
        allocation: u32,
    ) {
        let mut task = Task::new(volume, Kind::Other, self.now, Job::Bare(Bare::nothing()));
        (task.owner, task.lun) = (Some(owner), lun);
        let index = self.insert_task(task);
        conn.set_task(owner.tag, Some(index));
        let core = self.volumes[volume].core.clone();
        let range = range.bytes(core.caps.block_size);
        let most = lba_status::descriptors(allocation);
        let work = move || match core.backend.slow().extents(range, most) {
            Err(Error::Unsupported) => Ok(Extent::all_mapped(range)),
            found => found,
        };
        let then = move |engine: &mut Self, _: &mut Conn, index: u32, found: Result<_, _>| {
            engine.lba_status_found(index, found, allocation);
        };
        if !self.send_away(index, work, then) {
            self.refuse(index, status::BUSY);
        }
        self.pump(conn, index);
    }

    fn lba_status_found(&mut self, index: u32, found: Result<Vec<Extent>, Error>, allocation: u32) {
        let task = &mut self.tasks[index as usize];
        let unit = &self.volumes[task.volume].core.face.unit;
        match found {
            Ok(extents) => {
                let most = lba_status::descriptors(allocation);
                task.data = lba_status::answer(unit, &extents, most);
                task.data.truncate(allocation as usize);
                task.transfer.data_in = task.data.len() as u64;
            }
            Err(error) => task.fail(Sense::from_block(error, Op::Read)),
        }
    }
}
