//! GET LBA STATUS: the storage is asked on another thread.

use lunet_block::{BlockRange, Error, Extent, Op};
use lunet_scsi::{Sense, lba_status, status};
use lunet_volume::{Kind, OperationId, VolumeId};

use super::Engine;
use super::task::{Job, Owner, fail, operation};
use crate::conn::Conn;

impl Engine {
    /// Asks which blocks of a range, that ends with the volume, are mapped.
    pub(super) fn lba_status(
        &mut self,
        conn: &mut Conn,
        (owner, lun, volume): (Owner, u16, VolumeId),
        range: BlockRange,
        allocation: u32,
    ) {
        let mut task = operation(volume, Kind::Other, self.exec.storage.now, Job::Storage);
        (task.command.owner, task.command.lun) = (Some(owner), lun);
        let index = self.exec.insert(task);
        conn.set_task(owner.tag, Some(index));
        let core = self.exec.storage.volumes[volume].core.clone();
        let range = range.bytes(core.caps.block_size);
        let most = lba_status::descriptors(allocation);
        let work = move || match core.backend.slow().extents(range, most) {
            Err(Error::Unsupported) => Ok(Extent::all_mapped(range)),
            found => found,
        };
        let then =
            move |engine: &mut Self, _: &mut Conn, index: OperationId, found: Result<_, _>| {
                engine.lba_status_found(index, found, allocation);
            };
        if !self.send_away(index, work, then) {
            self.refuse(index, status::BUSY);
        }
        self.pump(conn, index);
    }

    fn lba_status_found(
        &mut self,
        index: OperationId,
        found: Result<Vec<Extent>, Error>,
        allocation: u32,
    ) {
        let task = &mut self.exec.operations[index];
        let unit = &self.exec.storage.volumes[task.requests.volume].core.face.unit;
        match found {
            Ok(extents) => {
                let most = lba_status::descriptors(allocation);
                task.command.data = lba_status::answer(unit, &extents, most);
                task.command.data.truncate(allocation as usize);
                task.command.transfer.data_in = task.command.data.len() as u64;
            }
            Err(error) => fail(task, Sense::from_block(error, Op::Read)),
        }
    }
}
