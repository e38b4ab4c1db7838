//! SANITIZE and FORMAT UNIT: a task of its own, without a connection, which no abort and no lost session ends. The
//! command that asked for it waits for its answer like any other.
//!
//! Before the first block is touched, a mark is made stable that the volume is being sanitized or formatted; it goes
//! when all is done. A server that finds the mark at its start takes the operation for failed.

use lunet_block::{ByteRange, Completion, Op, Support};
use lunet_ring::{Buf, Payload};
use lunet_scsi::sanitize::{Method, Overwrite, Sanitize};
use lunet_scsi::{Code, Key, Sanitation, Sense};
use lunet_volume::{CHUNK, Kind, OperationId, VolumeId};

use super::Engine;
use super::task::{Job, Settle, operation};
use crate::conn::Conns;
use crate::keeper::Order;

/// The whole volume, whatever its size becomes meanwhile.
const WHOLE: ByteRange = ByteRange::new(0, u64::MAX);

/// Requests at work at a time: enough to keep a disk busy, and other volumes hardly notice.
const WIDTH: usize = 2;

/// How much space one request gives back, in bytes.
const ERASE: u64 = 16 << 20;

/// Bytes written in one turn of the loop, or one request that gives space back: a volume in memory answers on the
/// spot, and the shard has others to serve.
const SHARE: u64 = 8 << 20;

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
    /// The pass, counted from 0, and where its next request starts.
    pass: u8,
    next: u64,
    /// Bytes worked on in all passes.
    done: u64,
    /// Buffers with the data of this pass.
    ready: Vec<Buf>,
    failed: bool,
    /// Bytes that may still be worked on in this turn.
    share: u64,
    /// The server stops: so does this, as soon as nothing is at work.
    stops: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Waits for the lock of the whole volume.
    Lock,
    /// The mark is being made stable.
    Mark,
    /// Works on the blocks.
    Work,
    /// What this pass did is being made stable.
    Flush,
    /// The mark must go.
    Unmark,
    /// It is going.
    Unmarking,
}

impl Sanitizing {
    fn passes(&self) -> u8 {
        match &self.what.method {
            Method::Overwrite(overwrite) => overwrite.passes,
            Method::BlockErase | Method::ExitFailureMode => 1,
        }
    }
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
        let caps = &core.caps;
        let zeroes = caps.unmap_zeroes || caps.write_zeroes == Support::Native;
        if what.method == Method::BlockErase && !zeroes {
            // The storage below has nothing that can be relied on.
            let zeroes = Overwrite { pattern: vec![0], passes: 1, invert: false };
            what.method = Method::Overwrite(zeroes);
        }
        let exits = what.method == Method::ExitFailureMode;
        let reply = self.core.next_serial();
        let job = Sanitizing {
            what,
            before,
            reply,
            ticket: None,
            step: if exits { Step::Unmark } else { Step::Lock },
            pass: 0,
            next: 0,
            done: 0,
            ready: Vec::new(),
            failed: false,
            share: SHARE,
            stops: false,
        };
        let job = Job::Sanitize(Box::new(job));
        let index = self.exec.insert(operation(volume, Kind::Other, self.exec.storage.now, job));
        if exits {
            self.exec.queue(index);
        } else if !self.exec.claim(index, WHOLE) {
            core.face.unit.state.end_sanitize(before);
            self.remove_task(index);
            return Err(None);
        }
        self.exec.look_soon();
        Ok(Job::Settle(Settle { ticket: reply, left: 1 }))
    }

    /// Does the next step, if it can be done now.
    pub(super) fn step_sanitize(&mut self, conns: &mut Conns, index: OperationId) {
        let Job::Sanitize(job) = &self.exec.operations[index].command.job else { return };
        let (step, mark) = (job.step, job.what.unfinished());
        match step {
            Step::Lock => {
                if self.exec.has_range(index) {
                    self.order_mark(conns, index, mark, Step::Mark);
                }
            }
            Step::Work => {
                self.exec.leave_queue(index);
                if let Job::Sanitize(job) = &mut self.exec.operations[index].command.job {
                    job.share = SHARE;
                }
                self.work_on(conns, index);
            }
            Step::Unmark => self.order_mark(conns, index, Sanitation::None, Step::Unmarking),
            Step::Mark | Step::Flush | Step::Unmarking => {}
        }
    }

    /// Has the mark made or taken away, and waits for that in `then`.
    fn order_mark(&mut self, conns: &mut Conns, index: OperationId, mark: Sanitation, then: Step) {
        self.exec.leave_queue(index);
        let volume =
            self.exec.storage.volumes[self.exec.operations[index].requests.volume].core.clone();
        let ticket = self.core.next_serial();
        let kept = volume.face.kept.is_some();
        let order = Order::Mark { volume, mark, shard: self.number, ticket };
        if kept && !self.core.order(order) {
            // The keeper has too much to do.
            return self.exec.queue(index);
        }
        if let Job::Sanitize(job) = &mut self.exec.operations[index].command.job {
            job.step = then;
            job.ticket = Some(ticket);
        }
        if !kept {
            self.marked(conns, index, true);
        }
    }

    /// The keeper has answered.
    pub(super) fn marked(&mut self, conns: &mut Conns, index: OperationId, done: bool) {
        let Job::Sanitize(job) = &mut self.exec.operations[index].command.job else { return };
        job.ticket = None;
        let broken = Sense::new(Key::HardwareError, Code::INTERNAL_TARGET_FAILURE);
        match (job.step, done) {
            (Step::Mark, true) => {
                job.step = Step::Work;
                if job.what.immediate {
                    let reply = job.reply;
                    self.answer_settled(conns, reply, None);
                }
                self.work_on(conns, index);
            }
            // Nothing was touched.
            (Step::Mark, false) => {
                let before = job.before;
                self.end_sanitize(conns, index, before, Some(broken));
            }
            (Step::Unmarking, true) => self.end_sanitize(conns, index, Sanitation::None, None),
            _ => self.fail_sanitize(conns, index),
        }
    }

    /// Sends the next requests of a pass. When all are done, makes them stable.
    fn work_on(&mut self, conns: &mut Conns, index: OperationId) {
        loop {
            let queued = self.exec.is_queued(index);
            let task = &mut self.exec.operations[index];
            let core = &self.exec.storage.volumes[task.requests.volume].core;
            let total = core.caps.bytes();
            let at_work = task.requests.in_flight();
            let Job::Sanitize(job) = &mut task.command.job else { return };
            if job.next >= total || job.failed {
                if at_work > 0 {
                    return;
                }
                return if job.failed {
                    self.fail_sanitize(conns, index);
                } else {
                    self.end_pass(conns, index);
                };
            }
            if at_work >= WIDTH || queued {
                return;
            }
            if job.share == 0 {
                self.exec.queue(index);
                return self.exec.look_soon();
            }
            let (op, len, buf) = match &job.what.method {
                Method::Overwrite(_) => {
                    let buf = job.ready.pop().or_else(|| self.pattern_buffer(index));
                    let Some(buf) = buf else {
                        if self.exec.operations[index].requests.in_flight() == 0 {
                            self.exec.queue(index);
                        }
                        return;
                    };
                    (Op::Write { fua: false }, buf.len() as u64, Some(Payload::Buf(buf)))
                }
                _ if core.caps.unmap_zeroes => (Op::Unmap, ERASE, None),
                _ => {
                    let may_unmap = core.caps.unmap != Support::None;
                    (Op::WriteZeroes { may_unmap }, ERASE, None)
                }
            };
            let task = &mut self.exec.operations[index];
            let Job::Sanitize(job) = &mut task.command.job else { return };
            job.share = job.share.saturating_sub(len.min(SHARE));
            let range = ByteRange::new(job.next, len.min(total - job.next));
            job.next = range.end();
            self.exec.submit(index, op, range, buf);
        }
    }

    /// A buffer full of what this pass writes, as long as memory allows.
    fn pattern_buffer(&self, index: OperationId) -> Option<Buf> {
        let task = &self.exec.operations[index];
        let Job::Sanitize(job) = &task.command.job else { return None };
        let Method::Overwrite(overwrite) = &job.what.method else { return None };
        let block = self.exec.storage.volumes[task.requests.volume].core.caps.block_size as usize;
        let arena = self.exec.storage.ring.arena();
        let mut buf = arena.alloc(CHUNK).or_else(|| arena.alloc(block))?;
        overwrite.fill(job.pass, &mut buf[..block]);
        let (first, rest) = buf.split_at_mut(block);
        rest.chunks_exact_mut(block).for_each(|other| other.copy_from_slice(first));
        Some(buf)
    }

    /// A request is done.
    pub(super) fn sanitize_done(
        &mut self,
        conns: &mut Conns,
        index: OperationId,
        done: Completion<Payload>,
    ) {
        let task = &mut self.exec.operations[index];
        let core = &self.exec.storage.volumes[task.requests.volume].core;
        let Job::Sanitize(job) = &mut task.command.job else { return };
        if let Err(error) = done.result {
            let what = if job.what.format { "FORMAT UNIT" } else { "SANITIZE" };
            tracing::error!(volume = %core.name, %error, "{what} has failed");
            job.failed = true;
        }
        if job.stops {
            if task.requests.in_flight() == 0 {
                self.remove_task(index);
            }
            return;
        }
        if let Some(Payload::Buf(buf)) = done.buf {
            job.ready.push(buf);
        }
        if done.op == Op::Flush {
            job.step = Step::Work;
            return match job.failed {
                true => self.fail_sanitize(conns, index),
                false => self.next_pass(conns, index),
            };
        }
        job.done += done.range.len;
        let total = u128::from(core.caps.bytes()) * u128::from(job.passes());
        let progress = (u128::from(job.done) << 16) / total.max(1);
        core.face.unit.state.set_sanitize_progress(progress.min(0xFFFF) as u16);
        self.work_on(conns, index);
    }

    /// Every block has been worked on: now make it stable.
    fn end_pass(&mut self, conns: &mut Conns, index: OperationId) {
        let task = &mut self.exec.operations[index];
        let cached = self.exec.storage.volumes[task.requests.volume].core.caps.write_cache;
        let Job::Sanitize(job) = &mut task.command.job else { return };
        if !cached {
            return self.next_pass(conns, index);
        }
        job.step = Step::Flush;
        self.exec.submit(index, Op::Flush, ByteRange::new(0, 0), None);
    }

    /// A pass is stable: on with the next, or the mark can go.
    fn next_pass(&mut self, conns: &mut Conns, index: OperationId) {
        let Job::Sanitize(job) = &mut self.exec.operations[index].command.job else { return };
        job.pass += 1;
        job.next = 0;
        job.ready.clear();
        if job.pass < job.passes() {
            return self.work_on(conns, index);
        }
        job.step = Step::Unmark;
        self.step_sanitize(conns, index);
    }

    fn fail_sanitize(&mut self, conns: &mut Conns, index: OperationId) {
        let Job::Sanitize(job) = &self.exec.operations[index].command.job else { return };
        let failed = match job.what.method {
            // It is where it was.
            Method::ExitFailureMode => job.before,
            _ => job.what.unfinished(),
        };
        let sense = job.what.failure();
        self.end_sanitize(conns, index, failed, Some(sense));
    }

    /// The operation is over.
    fn end_sanitize(
        &mut self,
        conns: &mut Conns,
        index: OperationId,
        stands: Sanitation,
        sense: Option<Sense>,
    ) {
        self.exec.leave_queue(index);
        let slot = self.exec.operations[index].requests.volume;
        self.exec.storage.volumes[slot].core.face.unit.state.end_sanitize(stands);
        // With the task goes its lock.
        if let Job::Sanitize(job) = self.remove_task(index).job {
            self.answer_settled(conns, job.reply, sense);
        }
    }

    /// The server stops: what is not done counts as failed when it starts again.
    pub fn stop_sanitizing(&mut self) {
        let tasks = self.exec.operations.iter_mut();
        let mut idle = Vec::new();
        for (index, task) in tasks {
            if let Job::Sanitize(job) = &mut task.command.job {
                job.stops = true;
                if task.requests.in_flight() == 0 {
                    idle.push(index);
                }
            }
        }
        for index in idle {
            self.exec.leave_queue(index);
            self.remove_task(index);
        }
    }
}
