//! Data between hosts and operations: C2HData, R2T and what comes of it.

use lunet_block::{ByteRange, Op};
use lunet_nvme::command::{Completion, DsmRange};
use lunet_nvme::controller::Tag;
use lunet_nvme::status::Status;
use lunet_ring::{Buf, Payload};
use lunet_volume::{
    BACKLOG_HIGH, Budget, Client, Face, OperationId, Piece, Plain, Sink, Source, Step, Timed, Work,
};

use zerocopy::FromBytes;

use super::Engine;
use super::task::{BUSY, Job, Then, fail};
use crate::connection::{Conn, Data, Pdus};

/// The command of a host, on its connection.
pub struct Host<'a> {
    pub conn: &'a mut Conn,
    pub tag: Tag,
}

impl Sink for Host<'_> {
    fn is_behind(&mut self, operation: OperationId) -> bool {
        let behind = self.conn.backlog() >= BACKLOG_HIGH;
        self.conn.blocked.extend(behind.then_some(operation));
        behind
    }

    fn send(&mut self, payload: Payload, len: usize, last: bool) {
        let Conn { front, out, .. } = &mut *self.conn;
        let completion = last.then_some(Completion::SUCCESS);
        front.proto.send_data(self.tag, Data(payload), 0..len, completion, &mut Pdus(out));
    }
}

impl Source for Host<'_> {
    fn ask(&mut self, offset: u64, len: usize, buf: Buf) {
        let Conn { front, out, .. } = &mut *self.conn;
        // No command is longer than MDTS.
        front.proto.solicit(self.tag, offset as u32, len as u32, buf, &mut Pdus(out));
    }
}

impl Client for Host<'_> {
    fn budget(&self) -> Budget<'_> {
        self.conn.budget()
    }

    fn keeps(&self) -> usize {
        self.conn.front.keeps(self.conn.reserve.as_ref())
    }

    fn timed(&mut self, timed: Timed) {
        self.conn.out.timed.get_or_insert(timed);
    }
}

impl<Fc: Face> Engine<Fc> {
    /// Data that was asked for has come.
    pub fn data_arrived(&mut self, conn: &mut Conn, tag: Tag, (offset, len): (u32, u32), buf: Buf) {
        let Some(id) = conn.front.task(tag) else { return };
        if self.exec.operations.get(id).is_none() {
            return;
        }
        if self.relayed_data(conn, (id, tag), &buf[..len as usize]) {
            return;
        }
        if matches!(self.exec.operations[id].command.job, Job::Fused(_)) {
            return self.fused_arrived(conn, id, tag, buf);
        }
        let step = self.exec.data_arrived(id, u64::from(offset), len as usize, buf);
        self.take_step(conn, id, step);
        self.pump(conn, id);
    }

    /// The data of a command was damaged: nothing more will come.
    pub fn transfer_failed(&mut self, conn: &mut Conn, tag: Tag) {
        let Some(id) = conn.front.task(tag) else { return };
        if self.exec.operations.get(id).is_none() || self.relayed_broke(conn, id, tag) {
            return;
        }
        let task = &mut self.exec.operations[id];
        task.requests.expect_nothing();
        fail(task, Status::TRANSPORT);
        self.pump(conn, id);
    }

    /// Whole blocks have come with a command.
    pub(super) fn take_piece(&mut self, conn: &mut Conn, id: OperationId, piece: Piece) {
        let step = self.exec.take_unasked(id, piece);
        self.take_step(conn, id, step);
    }

    pub(super) fn take_step(&mut self, conn: &mut Conn, id: OperationId, step: Step) {
        match step {
            Step::Done | Step::Copied(_) => {}
            Step::Collected(buf, len) => self.collected(conn, id, &buf[..len]),
        }
    }

    /// Data that is needed in full is here.
    fn collected(&mut self, conn: &mut Conn, id: OperationId, data: &[u8]) {
        let Job::Collect(then, len) = self.exec.operations[id].command.job else { return };
        let data = &data[..len.min(data.len())];
        self.set_work(id, Work::None);
        match then {
            Then::Deallocate => self.deallocate(id, data),
            Then::Copy { lba } => self.copy_collected(id, lba, data),
            Then::Reserve(wish) => self.reserve_collected(conn, id, wish, data),
        }
    }

    /// A command works on the storage from now on.
    pub(super) fn set_work(&mut self, id: OperationId, work: Work) {
        let task = &mut self.exec.operations[id];
        (task.work, task.command.job) = (work, Job::Storage);
    }

    /// The ranges of Dataset Management are here. What the storage cannot give back stays as it is: they are hints.
    fn deallocate(&mut self, id: OperationId, data: &[u8]) {
        let volume = self.exec.operations[id].requests.volume;
        let core = &self.exec.storage.volumes[volume].core;
        let (block, blocks) = (u64::from(core.caps.block_size), core.caps.blocks);
        let mut ranges = Vec::new();
        for range in of_wire::<DsmRange>(data) {
            let (lba, count) = (range.lba.get(), u64::from(range.blocks.get()));
            if lba.checked_add(count).is_none_or(|end| end > blocks) {
                return fail(&mut self.exec.operations[id], Status::LBA_RANGE.no_retry());
            }
            ranges.extend((count > 0).then(|| ByteRange::new(lba * block, count * block)));
        }
        if ranges.iter().any(|range| core.fence.blocks(*range)) {
            return fail(&mut self.exec.operations[id], BUSY);
        }
        if core.caps.unmap == lunet_block::Support::None || ranges.is_empty() {
            return;
        }
        self.exec.operations[id].requests.writes = hull(&ranges);
        self.set_work(id, Work::Plain(Plain::new(Op::Unmap, ranges)));
    }
}

/// The structures that data is a list of.
pub(super) fn of_wire<T: FromBytes>(data: &[u8]) -> impl Iterator<Item = T> + '_ {
    data.chunks_exact(size_of::<T>()).filter_map(|bytes| T::read_from_bytes(bytes).ok())
}

/// The smallest range that holds all of these.
fn hull(ranges: &[ByteRange]) -> Option<ByteRange> {
    let start = ranges.iter().map(|range| range.offset).min()?;
    let end = ranges.iter().map(|range| range.end()).max()?;
    Some(ByteRange::new(start, end - start))
}
