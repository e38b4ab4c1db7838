//! Commands that get on because something has changed: their turn at a lock, memory, storage that hangs.

use lunet_ring::Account;
use lunet_scsi::status;
use lunet_volume::{OperationId, VolumeId};

use super::Engine;
use super::task::{Job, fail};
use crate::connection::{Conn, Conns, find_lun};
use lunet_server::front::Occasion;

impl Engine {
    /// An operation may get on, if it has not ended because of another.
    pub fn resume(&mut self, conns: &mut Conns, id: OperationId, why: Occasion) {
        let Some(task) = self.exec.operations.get(id) else { return };
        let sanitizes = matches!(task.command.job, Job::Sanitize(_));
        if sanitizes && why == Occasion::Look {
            return self.step_sanitize(conns, id);
        }
        let Some(conn) = self.conn_of(conns, id) else { return };
        match why {
            Occasion::Look => self.give_way_to_sanitize(id),
            Occasion::Memory if conn.reserve.is_none() => {
                self.exec.storage.renew(&conn.account, &mut conn.reserve);
            }
            Occasion::Memory => {}
        }
        self.pump(conn, id);
    }

    /// A command that waits for a range behind a sanitize operation is over.
    fn give_way_to_sanitize(&mut self, id: OperationId) {
        if !self.local.exec.waits_for_range(id) {
            return;
        }
        let task = &mut self.local.exec.operations[id];
        let state = &self.local.exec.storage.volumes[task.requests.volume].core.face.unit.state;
        if state.sanitation().is_under_way() {
            if let Some(sense) = state.sanitize_sense() {
                fail(task, sense);
            }
        }
    }

    /// A volume hangs: what is at its storage counts for the volume alone.
    pub fn storage_hangs(&mut self, conns: &Conns, volume: VolumeId) {
        let sessions = conns.iter().filter_map(|(_, conn)| conn.front.session.as_ref());
        for lun in sessions.flat_map(|session| &session.luns) {
            if let Some(part) = lun.at_storage.as_ref().filter(|_| lun.volume == volume) {
                part.detach();
            }
        }
    }

    /// What a command gets that cannot begin because of the memory or the commands at its volume.
    pub(super) fn refusal(&self, slot: VolumeId, has_data: bool) -> Option<u8> {
        if self.exec.storage.is_crowded(slot) {
            return Some(status::BUSY);
        }
        (has_data && self.exec.storage.is_full(slot)).then_some(status::TASK_SET_FULL)
    }

    /// The account of what a session has at the storage of one of its LUNs.
    pub(super) fn storage_account(&self, conn: &mut Conn, lun: u16) -> Option<Account> {
        let seen = find_lun(&mut conn.front.session.as_mut()?.luns, lun)?;
        Some(self.exec.storage_account(&mut seen.at_storage, &conn.account, seen.volume))
    }
}
