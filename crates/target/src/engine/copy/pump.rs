//! Data on its way from volume to volume: by the storage itself where it can, else through buffers.

use lunet_block::{ByteRange, Completion, Error, Op, Support};
use lunet_ring::Payload;
use lunet_scsi::copy::Side;
use lunet_scsi::{Sense, status};
use lunet_volume::{CHUNK, DEPTH, OperationId, Stride};

use super::job::{How, Moving, STRIDE};
use crate::conn::Conn;
use crate::engine::Engine;
use crate::engine::task::{Job, fail};

impl Engine {
    /// Lets a copy get on. True if it is over.
    pub(in crate::engine) fn pump_copy(&mut self, conn: &mut Conn, index: OperationId) -> bool {
        loop {
            let task = &self.exec.operations[index];
            let Some(copy) = &task.command.copy else { return false };
            if task.requests.is_failed() {
                return task.requests.in_flight() == 0;
            }
            let Some(moving) = &copy.moving else {
                if copy.next == copy.count() {
                    return true;
                }
                self.next_step(conn, index);
                continue;
            };
            if moving.written == moving.to.len {
                if self.flush_step(index) {
                    return false;
                }
                self.end_step(index);
                continue;
            }
            let room = task.requests.in_flight() + moving.ahead() < moving.depth();
            if moving.left() == 0 || !room {
                return false;
            }
            if let Err(sense) = self.still_allowed(conn, index) {
                fail(&mut self.exec.operations[index], sense);
                continue;
            }
            let on = match self.how(index) {
                How::Offload if self.moving(index).is_some_and(|m| m.asked >= m.through) => {
                    !self.copy_away(index)
                }
                How::Offload | How::Buffers(_) | How::Backwards => self.read_next(conn, index),
                How::Zeroes => self.zero_next(conn, index),
            };
            if !on {
                return false;
            }
        }
    }

    fn how(&self, index: OperationId) -> How {
        let moving =
            self.exec.operations[index].command.copy.as_ref().and_then(|copy| copy.moving.as_ref());
        moving.map_or(How::Zeroes, |moving| moving.how)
    }

    /// The segment or piece at work.
    pub(super) fn moving(&mut self, index: OperationId) -> Option<&mut Moving> {
        self.exec.operations[index].command.copy.as_mut().and_then(|copy| copy.moving.as_mut())
    }

    /// The storage copies the next stride on another thread. False if too much work waits there: it goes
    /// through buffers then.
    fn copy_away(&mut self, index: OperationId) -> bool {
        let Some(moving) = self.moving(index) else { return false };
        let (source, destination) = (moving.source, moving.destination);
        let (offset, len) = (moving.asked, moving.left().min(STRIDE));
        let from = ByteRange::new(moving.from.offset + offset, len);
        let to = ByteRange::new(moving.to.offset + offset, len);
        let reads = self.exec.storage.volumes[source].core.clone();
        let writes = self.exec.storage.volumes[destination].core.clone();
        if !reads.locks.is_free(from) || !writes.locks.is_free(to) {
            // Requests of their own wait for their turn.
            self.by_buffers(index);
            return false;
        }
        // Locks that come now wait for it, as for any request at the storage.
        let task = &mut self.exec.operations[index];
        for (slot, range) in [(source, from), (destination, to)] {
            task.requests.begin(slot, range);
        }
        let work = move || writes.copy_from(to.offset, &reads, from);
        let sent = self.send_away(index, work, move |engine, _, index, result| {
            engine.exec.operations[index].command.job = Job::Copy;
            engine.copied_away(index, result);
        });
        if !sent {
            self.exec.stays(index);
            self.by_buffers(index);
        }
        sent
    }

    /// The storage has copied, or cannot.
    fn copied_away(&mut self, index: OperationId, result: Result<Stride, Error>) {
        let Some(moving) = self.moving(index) else { return };
        let destination = moving.destination;
        match result {
            Ok(Stride::Copied(len)) => {
                let offset = moving.ask(len);
                self.exec.storage.volumes[destination].written = true;
                self.wrote(index, offset, len);
            }
            Ok(Stride::Hole(len)) => {
                let range = ByteRange::new(moving.to.offset + moving.ask(len), len);
                let op = Op::WriteZeroes { may_unmap: true };
                self.exec.submit_to(destination, index, op, range, None);
            }
            Ok(Stride::Data(len)) => moving.through = moving.asked + len,
            Ok(Stride::Blind) => self.by_buffers(index),
            Err(error) => {
                let sense = Sense::from_block(error, Op::Write { fua: false });
                self.copy_failed(index, Side::Destination, sense);
            }
        }
    }

    /// The rest of a step goes through buffers.
    fn by_buffers(&mut self, index: OperationId) {
        if let Some(moving) = self.moving(index) {
            moving.how = How::Buffers(DEPTH);
        }
    }

    /// Reads the next chunk. False if there is no memory for it.
    fn read_next(&mut self, conn: &Conn, index: OperationId) -> bool {
        let Some(moving) = self.moving(index) else { return false };
        let wanted = moving.left_to_read().min(CHUNK as u64) as usize;
        let source = moving.source;
        let taken = self.exec.storage.take_some(conn.budget(), source, wanted);
        let Some(buf) = taken else { return self.wait_for_memory(index) };
        let len = buf.len() as u64;
        let Some(moving) = self.moving(index) else { return false };
        let offset = moving.ask(len);
        let range = ByteRange::new(moving.from.offset + offset, len);
        self.exec.submit_to(source, index, Op::Read, range, Some(Payload::Buf(buf)));
        true
    }

    /// Makes the next part read as zeroes. False if there is no memory for it.
    fn zero_next(&mut self, conn: &Conn, index: OperationId) -> bool {
        let Some(moving) = self.moving(index) else { return false };
        let (destination, left) = (moving.destination, moving.left());
        let native =
            self.exec.storage.volumes[destination].core.caps.write_zeroes == Support::Native;
        let (op, len, buf) = if native {
            (Op::WriteZeroes { may_unmap: true }, left.min(STRIDE), None)
        } else {
            let taken = self.exec.storage.take_some(
                conn.budget(),
                destination,
                left.min(CHUNK as u64) as usize,
            );
            let Some(mut buf) = taken else { return self.wait_for_memory(index) };
            buf.fill(0);
            (Op::Write { fua: false }, buf.len() as u64, Some(Payload::Buf(buf)))
        };
        let Some(moving) = self.moving(index) else { return false };
        let range = ByteRange::new(moving.to.offset + moving.ask(len), len);
        self.exec.submit_to(destination, index, op, range, buf);
        true
    }

    /// Where the write cache is switched off, what was copied is made stable. True while that is under way.
    fn flush_step(&mut self, index: OperationId) -> bool {
        let Some(moving) = self.moving(index) else { return false };
        let (destination, stable) = (moving.destination, moving.stable);
        if stable || !self.exec.storage.volumes[destination].core.face.unit.write_through() {
            return false;
        }
        let task = &mut self.exec.operations[index];
        if task.requests.in_flight() == 0 {
            let nowhere = ByteRange::new(0, 0);
            self.exec.submit_to(destination, index, Op::Flush, nowhere, None);
        }
        true
    }

    /// Waits for memory: that of its own requests, or of others.
    fn wait_for_memory(&mut self, index: OperationId) -> bool {
        if self.exec.operations[index].requests.in_flight() == 0 {
            self.exec.starve(index);
        }
        false
    }

    /// A chunk has been read, or written.
    pub(in crate::engine) fn copy_done(&mut self, index: OperationId, done: Completion<Payload>) {
        let reads = matches!(done.op, Op::Read);
        let task = &self.exec.operations[index];
        let failed = task.requests.is_failed();
        let Some(moving) = task.command.copy.as_ref().and_then(|copy| copy.moving.as_ref()) else {
            return;
        };
        match (done.result, done.buf) {
            (Ok(()), Some(buf)) if reads && !failed => {
                let offset = done.range.offset - moving.from.offset;
                let range = ByteRange::new(moving.to.offset + offset, done.range.len);
                let destination = moving.destination;
                let op = Op::Write { fua: false };
                self.exec.submit_to(destination, index, op, range, Some(buf));
            }
            (Ok(()), _) if reads => {}
            (Ok(()), _) if done.op == Op::Flush => {
                if let Some(moving) = self.moving(index) {
                    moving.stable = true;
                }
            }
            (Ok(()), _) => {
                let offset = done.range.offset - moving.to.offset;
                self.wrote(index, offset, done.range.len);
            }
            (Err(error), _) => {
                let side = if reads { Side::Source } else { Side::Destination };
                let slot = if reads { moving.source } else { moving.destination };
                let block = u64::from(self.exec.storage.volumes[slot].core.caps.block_size);
                let sense = Sense::from_block(error, done.op);
                self.copy_failed(index, side, sense.with_information(done.range.offset / block));
            }
        }
    }

    /// A part of a step is on its destination.
    fn wrote(&mut self, index: OperationId, offset: u64, len: u64) {
        let Some(copy) = &mut self.exec.operations[index].command.copy else { return };
        let (slot, op, segments) = (copy.slot, copy.op, copy.segments());
        let Some(moving) = &mut copy.moving else { return };
        let counts = moving.wrote(offset, len);
        self.exec.storage.volumes[moving.destination].count.copied(len);
        self.copies.of(slot).advance(op, segments, counts, 1);
    }

    /// One of the parties has failed: the copy ends when nothing is at work any more.
    fn copy_failed(&mut self, index: OperationId, side: Side, sense: Sense) {
        let task = &mut self.exec.operations[index];
        let Some(copy) = &task.command.copy else { return };
        let mut failure = copy.failure(side, status::CHECK_CONDITION, Some(sense));
        if let (Some(moving), true) = (&copy.moving, failure.copy.is_some()) {
            // The residual, in blocks of the destination (SPC-5 5.18.7.4).
            let block =
                u64::from(self.exec.storage.volumes[moving.destination].core.caps.block_size);
            if moving.written > 0 && moving.how != How::Backwards {
                failure = failure.with_information((moving.to.len - moving.written) / block);
            }
        }
        fail(task, failure);
    }
}
