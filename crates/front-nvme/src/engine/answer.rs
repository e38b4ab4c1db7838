//! The end of a command.

use lunet_nvme::command::Completion;
use lunet_nvme::status::Status;
use lunet_volume::{Face, Failure, OperationId, Plain, VolumeId, Work};

use super::Engine;
use super::task::{Job, Owner, status};
use crate::connection::{Conn, complete};

impl<Fc: Face> Engine<Fc> {
    /// Answers a command whose work is over, unless something follows.
    pub(super) fn finish(&mut self, conn: &mut Conn, id: OperationId) {
        if self.follows(id) {
            return self.pump(conn, id);
        }
        if let Some((owner, rest)) = self.next_flush(id) {
            self.count(id);
            self.exec.remove(id);
            return self.flush_all(conn, owner, rest);
        }
        self.count(id);
        let task = &self.exec.operations[id];
        let status = status(task);
        let busy = status.is_some_and(|status| status.code() == Status::INTERRUPTED);
        let (owner, failure) = (task.command.owner, task.requests.failure());
        self.exec.remove(id);
        self.protocol.busy += u64::from(busy);
        let Some(Owner { tag, second, .. }) = owner else { return };
        conn.front.set_task(tag, None);
        let completion = status.map_or(Completion::SUCCESS, Completion::from);
        let Some(second) = second else { return complete(conn, tag, completion) };
        conn.front.set_task(second, None);
        // The write has failed behind a comparison that has not.
        let wrote =
            matches!(failure, Some(Failure::Storage { op: lunet_block::Op::Write { .. }, .. }));
        let (first, other) = match completion.status.is_success() || wrote {
            true => (Completion::SUCCESS, completion),
            false => (completion, Status::FAILED_FUSED.into()),
        };
        complete(conn, tag, first);
        complete(conn, second, other);
    }

    /// True if the command has something more to do now.
    fn follows(&mut self, id: OperationId) -> bool {
        let task = &mut self.exec.operations[id];
        if task.requests.is_failed() {
            return false;
        }
        if std::mem::take(&mut task.command.flushes) {
            let volume = task.requests.volume;
            let work = self.flush(volume);
            self.exec.operations[id].work = work;
            return true;
        }
        false
    }

    /// The volumes that a command flushes next, if it flushes several and has flushed one.
    fn next_flush(&mut self, id: OperationId) -> Option<(Owner, Vec<VolumeId>)> {
        let task = &mut self.exec.operations[id];
        let owner = task.command.owner.filter(|_| !task.requests.is_failed())?;
        let Job::FlushAll(rest) = &mut task.command.job else { return None };
        (!rest.is_empty()).then(|| (owner, std::mem::take(rest)))
    }

    /// A flush, or nothing where the volume has no volatile cache.
    pub(super) fn flush(&self, volume: VolumeId) -> Work {
        match self.exec.storage.volumes[volume].core.caps.write_cache {
            true => Work::Plain(Plain::flush()),
            false => Work::None,
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
        let bytes = self.local.exec.operations[id].command.bytes;
        let now = self.answered.unwrap_or_else(|| lunet_os::time::since(self.core.started));
        self.local.exec.count_answer(id, bytes, now);
    }
}
