//! The end of a command.

use lunet_iscsi::target::{Response, Tag, Wanted};
use lunet_scsi::{SenseData, Transfer, status};

use super::Engine;
use super::start::send_data;
use super::task::Owner;
use crate::conn::Conn;

impl Engine {
    /// Answers a command whose work is over.
    pub(super) fn finish(&mut self, conn: &mut Conn, index: u32) {
        let task = &self.tasks[index as usize];
        debug_assert!(task.idle(), "a command was answered with work in flight");
        if task.refused.is_none() {
            self.change_power(index);
            self.count(index);
        }
        self.end_copy(index);
        // Before the task goes: with it goes a volume that was removed.
        let format = self.volumes[self.tasks[index as usize].volume].core.face.unit.sense_format();
        let task = self.remove_task(index);
        let Some(Owner { tag, .. }) = task.owner else { return };
        conn.set_task(tag, None);
        if let Some(code) = task.refused {
            self.protocol.busy += u64::from(code == status::BUSY);
            return respond(conn, tag, code, &[], task.transfer);
        }
        match &task.sense {
            Some(sense) => respond_sense(conn, tag, &sense.encode(format), task.transfer),
            None if task.data.is_empty() => {
                respond(conn, tag, status::GOOD, &[], task.transfer);
            }
            None => send_data(conn, tag, task.data, task.transfer),
        }
    }

    /// Counts a command that is about to be answered.
    pub(super) fn count(&mut self, index: u32) {
        let task = &self.tasks[index as usize];
        let failed = task.sense.is_some();
        let bytes = if failed { 0 } else { task.transfer.data_in + task.transfer.data_out };
        let elapsed = self.core.started.elapsed().saturating_sub(task.started);
        let count = &mut self.volumes[task.volume].count;
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
