//! Commands whose next step may block: it is done by a thread of its own, and the command goes on when that
//! is back. See [`lunet_volume::Offload`].

use std::sync::mpsc::sync_channel;

use lunet_volume::OperationId;

use super::Engine;
use super::task::{Away, Job};
use crate::conn::{Conn, Conns};
use crate::mail::Owed;

impl Engine {
    /// Does `work` on another thread, then goes on with `then` on this one, with what came of it. Until then
    /// the command waits; if it is aborted meanwhile, what it may write stays fenced off until the work has
    /// ended, and `then` is not called. False if too much work waits: nothing has happened then.
    pub(super) fn send_away<T: Send + 'static>(
        &mut self,
        index: OperationId,
        work: impl FnOnce() -> T + Send + 'static,
        then: impl FnOnce(&mut Self, &mut Conn, OperationId, T) + 'static,
    ) -> bool {
        let ticket = self.core.next_serial();
        let (result, back) = sync_channel(1);
        let mailbox = self.core.mailboxes()[self.number].clone();
        let work = move || {
            // Somebody listens, or the command is over.
            let _ = result.send(work());
            mailbox.deliver(Owed::Returned { ticket });
        };
        let task = &mut self.exec.operations[index];
        if !self.core.offload.give(Some(task.requests.writes_on), Box::new(work)) {
            return false;
        }
        let then = Box::new(move |engine: &mut Self, conn: &mut Conn, index: OperationId| {
            if let Ok(found) = back.try_recv() {
                then(engine, conn, index, found);
            }
        });
        task.requests.away = true;
        task.command.job = Job::Away(Away { ticket, then });
        true
    }

    /// Work that a command waited for is done.
    pub fn returned(&mut self, conns: &mut Conns, ticket: u64) {
        let waits = |job: &Job| matches!(job, Job::Away(away) if away.ticket == ticket);
        let waiting = self.exec.operations.find(|task| waits(&task.command.job));
        let Some(index) = waiting else { return };
        self.exec.came_back(index);
        let task = &mut self.exec.operations[index];
        let job = std::mem::replace(&mut task.command.job, Job::Storage);
        match (job, self.conn_of(conns, index)) {
            (Job::Away(away), Some(conn)) => {
                (away.then)(self, conn, index);
                self.pump(conn, index);
            }
            _ => self.let_go(index),
        }
        self.settle(conns);
    }
}
