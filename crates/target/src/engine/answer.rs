//! The end of a command.

use lunet_iscsi::target::{Response, Tag, Wanted};
use lunet_scsi::{SenseData, Transfer, status};
use lunet_volume::{Failure, OperationId};

use super::Engine;
use super::start::send_data;
use super::task::{Owner, sense};
use crate::conn::Conn;

impl Engine {
    /// Answers a command whose work is over.
    pub(super) fn finish(&mut self, conn: &mut Conn, index: OperationId) {
        let task = &mut self.exec.operations[index];
        debug_assert!(task.requests.is_idle(), "a command was answered with work in flight");
        if task.requests.failure() == Some(Failure::Crowded) {
            task.command.refused = Some(status::BUSY);
        }
        if task.command.refused.is_none() {
            self.change_power(index);
            self.count(index);
        }
        self.end_copy(index);
        // Before the task goes: with it goes a volume that was removed.
        let task = &self.exec.operations[index];
        let volumes = &self.exec.storage.volumes;
        let format = volumes[task.requests.volume].core.face.unit.sense_format();
        let sense = sense(task, volumes).map(|sense| sense.encode(format));
        let command = self.remove_task(index);
        let Some(Owner { tag, .. }) = command.owner else { return };
        conn.set_task(tag, None);
        if let Some(code) = command.refused {
            self.protocol.busy += u64::from(code == status::BUSY);
            return respond(conn, tag, code, &[], command.transfer);
        }
        match &sense {
            Some(sense) => respond_sense(conn, tag, sense, command.transfer),
            None if command.data.is_empty() => {
                respond(conn, tag, status::GOOD, &[], command.transfer);
            }
            None => send_data(conn, tag, command.data, command.transfer),
        }
    }

    /// A command was answered together with its last data.
    pub(super) fn retire(&mut self, conn: &mut Conn, index: OperationId) {
        self.count(index);
        if let Some(owner) = self.remove_task(index).owner {
            conn.set_task(owner.tag, None);
        }
    }

    /// Counts a command that is about to be answered.
    fn count(&mut self, index: OperationId) {
        let task = &self.exec.operations[index];
        let failed = task.requests.is_failed();
        let bytes =
            if failed { 0 } else { task.command.transfer.data_in + task.command.transfer.data_out };
        let elapsed = self.core.started.elapsed().saturating_sub(task.started);
        let count = &mut self.exec.storage.volumes[task.requests.volume].count;
        count.record(task.kind, bytes, elapsed.as_micros() as u64, failed);
    }
}

/// Answers a command without data.
pub(super) fn respond(conn: &mut Conn, tag: Tag, code: u8, sense: &[u8], transfer: Transfer) {
    // What a failed command moved is counted by the connection.
    let wanted = (code == status::GOOD).then(|| wanted(transfer));
    let response = Response { status: code, sense, wanted };
    conn.proto.respond(tag, response, &mut conn.out);
}

/// Answers a command with CHECK CONDITION.
pub(super) fn respond_sense(conn: &mut Conn, tag: Tag, sense: &SenseData, transfer: Transfer) {
    respond(conn, tag, status::CHECK_CONDITION, sense, transfer);
}

/// What a command moves, as the protocol counts it. Longer commands than 4 GiB are refused by the
/// device server.
pub(super) fn wanted(transfer: Transfer) -> Wanted {
    let clip = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
    Wanted { read: clip(transfer.data_in), write: clip(transfer.data_out) }
}
