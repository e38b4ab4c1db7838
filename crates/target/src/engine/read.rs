//! Volume to initiator.

use lunet_block::{ByteRange, Completion, Error, Op};
use lunet_ring::Payload;
use lunet_volume::{BACKLOG_HIGH, CHUNK, DEPTH, OperationId};

use super::task::{Job, Owner};
use super::{Engine, wanted};
use crate::conn::Conn;
use crate::transmit::Data;

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
    pub(super) fn pump_read(&mut self, conn: &mut Conn, index: OperationId) -> bool {
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
                        let slot = self.exec.operations[index].volume;
                        let taken = self.exec.take_some(conn.budget(), slot, range.len as usize);
                        let Some(taken) = taken else { return self.exec.starve(index) };
                        range.len = taken.len() as u64;
                        buf = Some(Payload::Buf(taken));
                    }
                    let Job::Read(job) = &mut self.exec.operations[index].command.job else {
                        return false;
                    };
                    job.requested += range.len;
                    let seq = self.exec.operations[index].take_seq();
                    let op = if mapped { Op::ReadMapped } else { Op::Read };
                    self.exec.submit(index, seq, op, range, buf);
                }
                Next::Backlog => {
                    conn.blocked.push(index);
                    return false;
                }
                Next::Wait => break,
            }
        }
        let task = &self.exec.operations[index];
        let Job::Read(job) = &task.command.job else { return false };
        task.in_flight() == 0 && (task.command.sense.is_some() || job.sent == job.range.len)
    }

    /// A chunk has come from the volume.
    pub(super) fn read_done(&mut self, index: OperationId, seq: u32, done: Completion<Payload>) {
        let task = &mut self.exec.operations[index];
        let Job::Read(job) = &mut task.command.job else { return };
        match (done.result, done.buf) {
            (Ok(()), Some(_)) if job.discard => job.sent += done.range.len,
            (Ok(()), Some(buf)) => job.ready[seq as usize % DEPTH] = Some((buf, done.range.len)),
            (Err(error), _) => self.fail(index, error, done.op, done.range),
            (Ok(()), None) => self.fail(index, Error::Unsupported, done.op, done.range),
        }
    }

    fn next_chunk(&self, conn: &Conn, index: OperationId) -> Next {
        let task = &self.exec.operations[index];
        let Job::Read(job) = &task.command.job else { return Next::Wait };
        let ahead = task.next_seq - job.send_seq;
        if task.command.sense.is_some() || job.requested == job.range.len || task.is_full() {
            return Next::Wait;
        }
        if !job.discard && ahead as usize >= DEPTH {
            return Next::Wait;
        }
        if conn.backlog() >= BACKLOG_HIGH {
            return Next::Backlog;
        }
        // What has waited for its turn since before the volume's first lock is not read by reference any more.
        let mapped = job.mapped && !self.exec.volumes[task.volume].exclusive;
        let chunk = if mapped { job.chunk } else { job.chunk.min(CHUNK as u64) };
        let len = chunk.min(job.range.len - job.requested);
        Next::Ask(ByteRange::new(job.range.offset + job.requested, len), mapped)
    }

    /// Hands chunks to the connection in order. True if the last went with the status.
    fn send_ready(&mut self, conn: &mut Conn, index: OperationId) -> bool {
        let task = &mut self.exec.operations[index];
        let Some(Owner { tag, .. }) = task.command.owner else { return false };
        let Job::Read(job) = &mut task.command.job else { return false };
        while let Some((payload, len)) = job.ready[job.send_seq as usize % DEPTH].take() {
            if task.command.sense.is_some() {
                continue;
            }
            job.send_seq += 1;
            let wire = len.min(job.wire - job.sent.min(job.wire)) as usize;
            job.sent += len;
            let last = job.sent == job.range.len;
            let status = last.then(|| wanted(task.command.transfer));
            conn.proto.send_data(tag, Data(payload), 0..wire, status, &mut conn.out);
            if last {
                return true;
            }
        }
        false
    }

    /// The command was answered together with its last data.
    fn retire_read(&mut self, conn: &mut Conn, index: OperationId) {
        self.count(index);
        if let Some(owner) = self.remove_task(index).owner {
            conn.set_task(owner.tag, None);
        }
    }
}
