//! The end of a command.

use lunet_iscsi::target::{Response, Tag, Wanted};
use lunet_scsi::{SenseData, Transfer, status};
use lunet_volume::{Failure, OperationId};

use super::Engine;
use super::start::send_data;
use super::task::{Owner, sense};
use crate::connection::{Conn, Pdus};

impl Engine {
    /// Answers a command whose work is over.
    pub(super) fn finish(&mut self, conn: &mut Conn, id: OperationId) {
        let task = &mut self.exec.operations[id];
        debug_assert!(task.requests.is_idle(), "a command was answered with work in flight");
        if task.requests.failure() == Some(Failure::Crowded) {
            task.command.refused = Some(status::BUSY);
        }
        if task.command.refused.is_none() {
            self.change_power(id);
            self.count(id);
        }
        self.end_copy(id);
        // Before the task goes: with it goes a volume that was removed.
        let task = &self.exec.operations[id];
        let volumes = &self.exec.storage.volumes;
        let format = volumes[task.requests.volume].core.face.unit.sense_format();
        let sense = sense(task, volumes).map(|sense| sense.encode(format));
        let command = &mut self.exec.operations[id].command;
        let (owner, refused, transfer) = (command.owner, command.refused, command.transfer);
        let data = std::mem::take(&mut command.data);
        self.exec.remove(id);
        let Some(Owner { tag, .. }) = owner else { return };
        conn.front.set_task(tag, None);
        if let Some(code) = refused {
            self.protocol.busy += u64::from(code == status::BUSY);
            return respond(conn, tag, code, &[], transfer);
        }
        match &sense {
            Some(sense) => respond_sense(conn, tag, sense, transfer),
            None if data.is_empty() => respond(conn, tag, status::GOOD, &[], transfer),
            None => send_data(conn, tag, data, transfer),
        }
    }

    /// A command was answered together with its last data.
    pub(super) fn retire(&mut self, conn: &mut Conn, id: OperationId) {
        self.count(id);
        let owner = self.exec.operations[id].command.owner;
        self.exec.remove(id);
        if let Some(owner) = owner {
            conn.front.set_task(owner.tag, None);
        }
    }

    /// Counts a command that is about to be answered.
    fn count(&mut self, id: OperationId) {
        let task = &self.local.exec.operations[id];
        let bytes = task.command.transfer.data_in + task.command.transfer.data_out;
        let now = self.answered.unwrap_or_else(|| lunet_os::time::since(self.core.started));
        self.local.exec.count_answer(id, bytes, now);
    }
}

/// Answers a command without data.
pub(super) fn respond(conn: &mut Conn, tag: Tag, code: u8, sense: &[u8], transfer: Transfer) {
    // What a failed command moved is counted by the connection.
    let wanted = (code == status::GOOD).then(|| wanted(transfer));
    let response = Response { status: code, sense, wanted };
    conn.front.proto.respond(tag, response, &mut Pdus(&mut conn.out));
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
