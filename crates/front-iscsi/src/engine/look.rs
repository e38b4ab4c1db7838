//! What is looked at again and again: whose turn it is at locks, who gets memory, which volumes hang.

use std::time::Duration;

use lunet_ring::Account;
use lunet_scsi::status;
use lunet_volume::{OperationId, VolumeId};

use super::Engine;
use super::task::{Job, fail};
use crate::session::{Conn, Conns, find_lun};
use lunet_server::conn::{Phase, Wire};

/// How long a lock waits for answers by reference that initiators do not take, or for `iscsi.data-timeout` if that is
/// shorter: less than what initiators give a COMPARE AND WRITE (ESXi: 8 s).
const LENT: Duration = Duration::from_secs(5);

impl Engine {
    /// Looks whose turn it is.
    pub fn look(&mut self, conns: &mut Conns) {
        let timeout = self.core.data_timeout;
        let patience = if timeout.is_zero() { LENT } else { timeout.min(LENT) };
        for slot in self.exec.look_at_lent(patience) {
            self.find_lenders(slot, conns);
        }
        self.exec.look();
        for id in self.exec.queued() {
            // One may have ended because of another.
            let Some(task) = self.exec.operations.get(id) else { continue };
            if matches!(task.command.job, Job::Sanitize(_)) {
                self.step_sanitize(conns, id);
            } else if let Some(conn) = self.conn_of(conns, id) {
                self.give_way_to_sanitize(id);
                self.pump(conn, id);
            }
        }
        self.take_answers(conns);
    }

    /// The connections on which answers by reference of a volume wait to be taken.
    fn find_lenders(&mut self, slot: VolumeId, conns: &Conns) {
        for (number, conn) in conns.iter() {
            let Wire::Stream(socket) = conn.wire else { continue };
            if conn.phase != Phase::Closed
                && self.exec.storage.is_lender(slot, &conn.out.chain, socket)
            {
                self.keep_waiting.push(number);
            }
        }
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

    /// Gives commands that wait for memory another try.
    pub fn feed_starved(&mut self, conns: &mut Conns) {
        for _ in 0..self.exec.begin_feeding() {
            let Some(id) = self.exec.next_starved() else { break };
            let Some(conn) = self.conn_of(conns, id) else { continue };
            if conn.reserve.is_none() {
                self.exec.storage.renew(&mut conn.reserve);
            }
            self.pump(conn, id);
        }
        self.take_answers(conns);
    }

    /// Sees to it that what is at the storage of a volume that hangs counts for the volume alone.
    pub fn watch_storage(&mut self, conns: &Conns) {
        for slot in self.exec.watch_storage() {
            let sessions = conns.iter().filter_map(|(_, conn)| conn.front.session.as_ref());
            for lun in sessions.flat_map(|session| &session.luns) {
                if let Some(part) = lun.at_storage.as_ref().filter(|_| lun.volume == slot) {
                    part.detach();
                }
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
