//! Volume to initiator.

use lunet_block::{ByteRange, Completion, Error, Op};
use lunet_ring::{Buf, Payload};

use super::task::{CHUNK, DEPTH, Job, Owner};
use super::{Engine, wanted};
use crate::conn::{BACKLOG_HIGH, Conn};
use crate::transmit::Data;

/// The shortest read that a longer one is cut into when memory is short, in bytes.
const LEAST: usize = CHUNK / 16;

/// What keeps a read from asking for its next chunk.
enum Next {
    /// Nothing: ask for this much.
    Ask(ByteRange, bool),
    /// All is asked for, or enough is in flight.
    Wait,
    /// The initiator takes its data too slowly.
    Backlog,
}

impl Engine {
    /// Sends what is ready and asks for more. True if the command can be answered.
    pub(super) fn pump_read(&mut self, conn: &mut Conn, index: u32) -> bool {
        loop {
            if self.send_ready(conn, index) {
                // The status went with the last data: the command is answered.
                self.retire_read(conn, index);
                return false;
            }
            match self.next_chunk(conn, index) {
                Next::Ask(mut range, mapped) => {
                    let mut buf = None;
                    if !mapped {
                        let slot = self.tasks[index as usize].volume;
                        let taken = self.take_some(conn, slot, range.len as usize);
                        let Some(taken) = taken else { return self.starve(index) };
                        range.len = taken.len() as u64;
                        buf = Some(Payload::Buf(taken));
                    }
                    let Job::Read(job) = &mut self.tasks[index as usize].job else { return false };
                    job.requested += range.len;
                    let seq = self.tasks[index as usize].take_seq();
                    let op = if mapped { Op::ReadMapped } else { Op::Read };
                    self.submit(index, seq, op, range, buf);
                }
                Next::Backlog => {
                    conn.blocked.push(index);
                    return false;
                }
                Next::Wait => break,
            }
        }
        let task = &self.tasks[index as usize];
        let Job::Read(job) = &task.job else { return false };
        task.inflight.is_empty() && (task.sense.is_some() || job.sent == job.range.len)
    }

    /// A chunk has come from the volume.
    pub(super) fn read_done(&mut self, index: u32, seq: u32, done: Completion<Payload>) {
        let task = &mut self.tasks[index as usize];
        let Job::Read(job) = &mut task.job else { return };
        match (done.result, done.buf) {
            (Ok(()), Some(_)) if job.discard => job.sent += done.range.len,
            (Ok(()), Some(buf)) => job.ready[seq as usize % DEPTH] = Some((buf, done.range.len)),
            (Err(error), _) => self.fail(index, error, done.op, done.range),
            (Ok(()), None) => self.fail(index, Error::Unsupported, done.op, done.range),
        }
    }

    /// A buffer within the connection's allowance, for work on the volume in this slot.
    pub(super) fn take_buffer(&self, conn: &Conn, slot: usize, len: usize) -> Option<Buf> {
        if self.is_full(slot) {
            return None;
        }
        conn.take(self.ring.arena(), self.allowance(conn), len)
    }

    /// A buffer within the allowance, of this length or, if memory is short, a part of it: whole
    /// pages, 16 KiB at least.
    pub(super) fn take_some(&self, conn: &Conn, slot: usize, len: usize) -> Option<Buf> {
        let mut wanted = len;
        loop {
            match self.take_buffer(conn, slot, wanted) {
                None if wanted > LEAST => wanted = (wanted / 2).max(LEAST).next_multiple_of(4096),
                other => return other,
            }
        }
    }

    fn next_chunk(&self, conn: &Conn, index: u32) -> Next {
        let task = &self.tasks[index as usize];
        let Job::Read(job) = &task.job else { return Next::Wait };
        let ahead = task.next_seq - job.send_seq;
        if task.sense.is_some() || job.requested == job.range.len || task.inflight.is_full() {
            return Next::Wait;
        }
        if !job.discard && ahead as usize >= DEPTH {
            return Next::Wait;
        }
        if conn.backlog() >= BACKLOG_HIGH {
            return Next::Backlog;
        }
        // What has waited for its turn since before the volume's first lock is not read by reference any more.
        let mapped = job.mapped && !self.volumes[task.volume].exclusive;
        let chunk = if mapped { job.chunk } else { job.chunk.min(CHUNK as u64) };
        let len = chunk.min(job.range.len - job.requested);
        Next::Ask(ByteRange::new(job.range.offset + job.requested, len), mapped)
    }

    /// Hands chunks to the connection in order. True if the last went with the status.
    fn send_ready(&mut self, conn: &mut Conn, index: u32) -> bool {
        let task = &mut self.tasks[index as usize];
        let Some(Owner { tag, .. }) = task.owner else { return false };
        let Job::Read(job) = &mut task.job else { return false };
        while let Some((payload, len)) = job.ready[job.send_seq as usize % DEPTH].take() {
            if task.sense.is_some() {
                continue;
            }
            job.send_seq += 1;
            let wire = len.min(job.wire - job.sent.min(job.wire)) as usize;
            job.sent += len;
            let last = job.sent == job.range.len;
            let status = last.then(|| wanted(task.transfer));
            conn.proto.send_data(tag, Data(payload), 0..wire, status, &mut conn.out);
            if last {
                return true;
            }
        }
        false
    }

    /// The command was answered together with its last data.
    fn retire_read(&mut self, conn: &mut Conn, index: u32) {
        self.count(index);
        let task = self.remove_task(index);
        if let Some(owner) = task.owner {
            conn.set_task(owner.tag, None);
        }
    }
}
