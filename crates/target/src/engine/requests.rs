//! Requests on their way to the volumes' channels.

use lunet_block::{ByteRange, Error, Op, Request, Submit};
use lunet_ring::Payload;

use super::Engine;

impl Engine {
    /// Sends a request of a task to its volume.
    pub(super) fn submit(
        &mut self,
        task: u32,
        seq: u32,
        op: Op,
        range: ByteRange,
        buf: Option<Payload>,
    ) {
        self.submit_to(self.tasks[task as usize].volume, (task, seq), op, range, buf);
    }

    /// Sends a request of a task to the volume in this slot.
    pub(super) fn submit_to(
        &mut self,
        slot: usize,
        (task, seq): (u32, u32),
        op: Op,
        range: ByteRange,
        mut buf: Option<Payload>,
    ) {
        if let Some(Payload::Buf(buf)) = &mut buf {
            self.charge_storage(slot, task, buf);
        }
        let request = Request::new(request_tag(task, seq), op, range, buf);
        if let Some(flight) = self.tasks[task as usize].flight(seq) {
            (flight.slot, flight.range) = (slot, range);
        }
        let volume = &mut self.volumes[slot];
        volume.written |= !matches!(op, Op::Read | Op::ReadMapped | Op::Flush);
        if volume.guarded {
            return self.submit_guarded(slot, request);
        }
        self.send(slot, request);
    }

    /// Hands a request to its volume's channel.
    pub(super) fn send(&mut self, slot: usize, request: Request<Payload>) {
        let number = self.volumes[slot].channel;
        let way = self.ways[number].as_mut().expect("a volume's channel is open");
        if !way.waiting.is_empty() {
            return way.waiting.push_back(request);
        }
        match way.submit(request, &mut self.ring) {
            Submit::Queued => {
                if way.queued == 0 {
                    way.since = self.now;
                }
                way.queued += 1;
                self.expect_answers();
            }
            Submit::Done(completion) => self.done.push(completion),
            Submit::Busy(request) => way.waiting.push_back(request),
        }
    }

    /// The channel has room again.
    pub(super) fn resubmit(&mut self, number: usize) {
        let Some(Some(way)) = self.ways.get_mut(number) else { return };
        while let Some(request) = way.waiting.pop_front() {
            let (task, _) = split_tag(request.tag);
            if self.tasks.get(task as usize).is_some_and(|task| task.fenced.is_some()) {
                self.done.push(request.complete(Err(Error::Cancelled)));
                continue;
            }
            match way.submit(request, &mut self.ring) {
                Submit::Queued => way.queued += 1,
                Submit::Done(completion) => self.done.push(completion),
                Submit::Busy(request) => return way.waiting.push_front(request),
            }
        }
    }
}

/// What the answer to a request is known by.
pub(super) const fn request_tag(task: u32, seq: u32) -> u64 {
    (task as u64) << 32 | seq as u64
}

/// Whose request it was, and which of his.
pub(super) const fn split_tag(tag: u64) -> (u32, u32) {
    ((tag >> 32) as u32, tag as u32)
}
