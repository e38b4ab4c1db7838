//! SANITIZE and FORMAT UNIT: a task of its own, without a connection, which no abort and no lost session ends. The
//! command that asked for it waits for its answer like any other. The executor works on the blocks.
//!
//! Before the first block is touched, a mark is made stable that the volume is being sanitized or formatted; it goes
//! when all is done. A server that finds the mark at its start takes the operation for failed.

use lunet_block::ByteRange;
use lunet_scsi::sanitize::{Method, Sanitize};
use lunet_scsi::{Code, Key, Sanitation, Sense};
use lunet_volume::{Failure, Kind, OperationId, Overwrite, Progress, VolumeId, Work};

use super::Engine;
use super::task::{Awaited, Job};
use crate::connection::Conns;
use crate::keeper;

/// State of [`Job::Sanitize`].
pub struct Sanitizing {
    what: Sanitize,
    /// Where the unit stood before.
    before: Sanitation,
    /// What the command that asked waits for.
    reply: u64,
    /// What the keeper's answer is told by.
    pub ticket: Option<u64>,
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Waits until the volume is its own.
    Hold,
    /// The mark is being made stable, on this machine or in the record of a failover group.
    Mark,
    /// Works on the blocks, until the mark must go.
    Work,
    /// It is going.
    Unmark,
}

impl Engine {
    /// Starts a sanitize operation. Returns the job of the command that waits for it.
    ///
    /// # Errors
    /// Another operation is under way; or the queue for the volume is full, if there is no sense data.
    pub(super) fn begin_sanitize(
        &mut self,
        volume: VolumeId,
        mut what: Sanitize,
    ) -> Result<Job, Option<Sense>> {
        let core = self.exec.storage.volumes[volume].core.clone();
        let before = core.face.unit.state.sanitation();
        if !core.face.unit.state.begin_sanitize(what.format) {
            return Err(core.face.unit.state.sanitize_sense());
        }
        // What was half formatted is not to be had back by giving up a sanitize operation that fails.
        what.restricted |= before == Sanitation::Unformatted;
        // Nothing but the mark is to go.
        let exits = what.method == Method::ExitFailureMode;
        let reply = self.core.next_serial();
        let step = if exits { Step::Work } else { Step::Hold };
        let job = Job::Sanitize(Box::new(Sanitizing { what, before, reply, ticket: None, step }));
        let id = self.exec.begin(volume, Kind::Other);
        self.exec.operations[id].command.job = job;
        if exits {
            self.exec.queue(id);
        } else if !self.exec.hold(id) {
            core.face.unit.state.end_sanitize(before);
            self.exec.remove(id);
            return Err(None);
        }
        self.exec.look_soon();
        Ok(Job::Await(Awaited { ticket: reply, left: 1, order: None }))
    }

    /// Does the next step, if it can be done now.
    pub(super) fn step_sanitize(&mut self, conns: &mut Conns, id: OperationId) {
        let Job::Sanitize(job) = &self.exec.operations[id].command.job else { return };
        let (step, mark) = (job.step, job.what.unfinished());
        // The keeper answers.
        if matches!(step, Step::Mark | Step::Unmark) {
            return;
        }
        let progress = self.exec.pump_alone(id, None);
        self.show_progress(id);
        if progress != Progress::Finished {
            return;
        }
        if step == Step::Hold {
            self.order_mark(conns, id, mark, Step::Mark);
        } else if self.exec.operations[id].requests.is_failed() {
            self.fail_sanitize(conns, id);
        } else {
            self.order_mark(conns, id, Sanitation::None, Step::Unmark);
        }
    }

    /// Has the unit tell how far the work on its blocks has come.
    fn show_progress(&self, id: OperationId) {
        let task = &self.exec.operations[id];
        let core = &self.exec.storage.volumes[task.requests.volume].core;
        if let Work::Overwrite(overwrite) = &task.work {
            core.face.unit.state.set_sanitize_progress(overwrite.progress(core.caps.bytes()));
        }
    }

    /// Has the mark made or taken away, and waits for that in `then`.
    fn order_mark(&mut self, conns: &mut Conns, id: OperationId, mark: Sanitation, then: Step) {
        let slot = self.exec.operations[id].requests.volume;
        let volume = self.exec.storage.volumes[slot].core.clone();
        let ticket = self.core.next_serial();
        let of_group = self.hand_over_mark((slot, &volume.face.unit), mark, ticket);
        let kept = volume.store.is_some();
        if kept && !keeper::mark(&self.core, &volume, mark, (self.number, ticket)) {
            // The keeper has too much to do.
            return self.exec.queue(id);
        }
        if let Job::Sanitize(job) = &mut self.exec.operations[id].command.job {
            job.step = then;
            job.ticket = Some(ticket);
        }
        if !kept && !of_group {
            self.marked(conns, id, true);
        }
    }

    /// The mark cannot be kept just now.
    pub(super) fn mark_later(&mut self, id: OperationId) {
        let Job::Sanitize(job) = &mut self.exec.operations[id].command.job else { return };
        job.ticket = None;
        job.step = if job.step == Step::Mark { Step::Hold } else { Step::Work };
        self.exec.queue(id);
    }

    /// The keeper has answered.
    pub(super) fn marked(&mut self, conns: &mut Conns, id: OperationId, done: bool) {
        let task = &mut self.local.exec.operations[id];
        let Job::Sanitize(job) = &mut task.command.job else { return };
        job.ticket = None;
        let broken = Sense::new(Key::HardwareError, Code::INTERNAL_TARGET_FAILURE);
        match (job.step, done) {
            (Step::Mark, true) => {
                job.step = Step::Work;
                // The unit is closed: nothing that its host sends by another way gets past this.
                task.command.going = None;
                let caps = &self.local.exec.storage.volumes[task.requests.volume].core.caps;
                let overwrite = match &job.what.method {
                    Method::Overwrite(overwrite) => Overwrite::with(
                        (0..overwrite.passes)
                            .map(|pass| {
                                let mut block = vec![0; caps.block_size as usize];
                                overwrite.fill(pass, &mut block);
                                block
                            })
                            .collect(),
                    ),
                    Method::BlockErase | Method::ExitFailureMode => Overwrite::with_zeroes(caps),
                };
                let (immediate, reply) = (job.what.immediate, job.reply);
                task.work = Work::Overwrite(Box::new(overwrite));
                if immediate {
                    self.part_finished(conns, reply, None);
                }
                self.step_sanitize(conns, id);
            }
            // Nothing was touched.
            (Step::Mark, false) => {
                let before = job.before;
                self.end_sanitize(conns, id, before, Some(broken));
            }
            (Step::Unmark, true) => self.end_sanitize(conns, id, Sanitation::None, None),
            _ => self.fail_sanitize(conns, id),
        }
    }

    /// A request has failed, or the mark does not go.
    fn fail_sanitize(&mut self, conns: &mut Conns, id: OperationId) {
        let task = &self.exec.operations[id];
        let Job::Sanitize(job) = &task.command.job else { return };
        if let Some(Failure::Storage { error, .. }) = task.requests.failure() {
            let core = &self.exec.storage.volumes[task.requests.volume].core;
            let what = if job.what.format { "FORMAT UNIT" } else { "SANITIZE" };
            tracing::error!(volume = %core.name, %error, "{what} has failed");
        }
        let failed = match job.what.method {
            // It is where it was.
            Method::ExitFailureMode => job.before,
            _ => job.what.unfinished(),
        };
        let sense = job.what.failure();
        self.end_sanitize(conns, id, failed, Some(sense));
    }

    /// The operation is over.
    fn end_sanitize(
        &mut self,
        conns: &mut Conns,
        id: OperationId,
        stands: Sanitation,
        sense: Option<Sense>,
    ) {
        let slot = self.exec.operations[id].requests.volume;
        self.exec.storage.volumes[slot].core.face.unit.state.end_sanitize(stands);
        // With the task goes its lock.
        let job = std::mem::take(&mut self.exec.operations[id].command.job);
        self.exec.remove(id);
        if let Job::Sanitize(job) = job {
            self.part_finished(conns, job.reply, sense);
        }
    }

    /// Nobody waits any more for an operation, whose volume another server may have now: it has failed, as one that was cut
    /// off by a restart has. What it may still write is fenced off.
    pub(super) fn give_up_sanitize(&mut self, id: OperationId) {
        let task = &mut self.local.exec.operations[id];
        let Job::Sanitize(job) = std::mem::take(&mut task.command.job) else { return };
        let core = &self.local.exec.storage.volumes[task.requests.volume].core;
        core.face.unit.state.end_sanitize(job.what.unfinished());
        task.requests.writes = Some(ByteRange::new(0, core.caps.bytes()));
        self.exec.abandon(id);
    }

    /// The server stops: what is not done counts as failed when it starts again.
    pub fn stop_sanitizing(&mut self) {
        let sanitizes = |task: &super::task::Task| matches!(task.command.job, Job::Sanitize(_));
        while let Some(id) = self.exec.operations.find(sanitizes) {
            // Its answers concern nobody any more.
            self.exec.operations[id].command.job = Job::Storage;
            self.exec.abandon(id);
        }
    }
}
