//! Commands whose next step may block: another thread does it, and the command goes on when that is back. See
//! [`lunet_volume::Offload`]. GET LBA STATUS is nothing but such a step.

use lunet_block::{BlockRange, Error, Extent, Op};
use lunet_scsi::{Sense, lba_status, status};
use lunet_volume::{Kind, OperationId, Step, VolumeId};

use super::Engine;
use super::task::{Job, Owner, fail};
use crate::connection::{Conn, Conns};

impl Engine {
    /// Does `work` on another thread, then goes on with `then` on this one, with what came of it. Until then
    /// the command waits; if it is aborted meanwhile, what it may write stays fenced off until the work has
    /// ended, and `then` is not called. False if too much work waits: nothing has happened then.
    pub(super) fn send_away<T: Send + 'static>(
        &mut self,
        id: OperationId,
        work: impl FnOnce() -> T + Send + 'static,
        then: impl FnOnce(&mut Self, &mut Conn, OperationId, T) + 'static,
    ) -> bool {
        let Some(back) = self.exec.send_away(id, work) else { return false };
        let then = move |engine: &mut Self, conn: &mut Conn, id: OperationId| {
            if let Ok(found) = back.try_recv() {
                then(engine, conn, id, found);
            }
        };
        self.exec.operations[id].command.job = Job::Away(Box::new(then));
        true
    }

    /// Work that a command waited for is done.
    pub fn returned(&mut self, conns: &mut Conns, id: OperationId, step: Step) {
        match self.conn_of(conns, id) {
            Some(conn) => {
                let job = &mut self.exec.operations[id].command.job;
                let away = matches!(job, Job::Away(_));
                if let Some(Job::Away(then)) = away.then(|| std::mem::replace(job, Job::Storage)) {
                    then(self, conn, id);
                }
                self.take_step(conn, id, step);
                self.pump(conn, id);
            }
            None => self.let_go(id),
        }
    }

    /// Asks which blocks of a range, that ends with the volume, are mapped.
    pub(super) fn lba_status(
        &mut self,
        conn: &mut Conn,
        (owner, lun, volume): (Owner, u16, VolumeId),
        range: BlockRange,
        allocation: u32,
    ) {
        let id = self.exec.begin(volume, Kind::Other);
        let command = &mut self.exec.operations[id].command;
        (command.owner, command.lun) = (Some(owner), lun);
        conn.front.set_task(owner.tag, Some(id));
        let core = self.exec.storage.volumes[volume].core.clone();
        let range = range.bytes(core.caps.block_size);
        let most = lba_status::descriptors(allocation);
        let work = move || match core.backend.slow().extents(range, most) {
            Err(Error::Unsupported) => Ok(Extent::all_mapped(range)),
            found => found,
        };
        let then = move |engine: &mut Self, _: &mut Conn, id: OperationId, found: Result<_, _>| {
            engine.lba_status_found(id, found, allocation);
        };
        if !self.send_away(id, work, then) {
            self.refuse(id, status::BUSY);
        }
        self.pump(conn, id);
    }

    fn lba_status_found(
        &mut self,
        id: OperationId,
        found: Result<Vec<Extent>, Error>,
        allocation: u32,
    ) {
        let task = &mut self.local.exec.operations[id];
        let unit = &self.local.exec.storage.volumes[task.requests.volume].core.face.unit;
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
