//! Copy: range by range, within one volume.

use lunet_block::ByteRange;
use lunet_nvme::command::CopyRange;
use lunet_nvme::status::Status;
use lunet_volume::{Face, OperationId, Progress};

use super::Engine;
use super::data::of_wire;
use super::task::{BUSY, Job, TOO_LARGE, fail};
use crate::connection::Conn;

/// Most blocks of a source range (MSSRL).
pub const RANGE_BLOCKS: u16 = 32_768;
/// Most blocks of a command (MCL).
pub const BLOCKS: u32 = 131_072;
/// Most source ranges, 0's based (MSRC).
pub const RANGES: u8 = 63;

/// A copy at work.
pub struct Copy {
    /// From where to where.
    parts: Vec<(ByteRange, ByteRange)>,
    /// The part that comes next.
    next: usize,
}

impl<Fc: Face> Engine<Fc> {
    /// The source ranges are here.
    pub(super) fn copy_collected(&mut self, id: OperationId, lba: u64, data: &[u8]) {
        let volume = self.exec.operations[id].requests.volume;
        let caps = &self.exec.storage.volumes[volume].core.caps;
        let (block, blocks) = (caps.block_size, caps.blocks);
        let (mut parts, mut at) = (Vec::new(), lba);
        for range in of_wire::<CopyRange>(data) {
            let (from, count) = (range.lba.get(), u64::from(range.blocks.get()) + 1);
            let copied = at - lba + count;
            if count > u64::from(RANGE_BLOCKS) || copied > u64::from(BLOCKS) {
                return fail(&mut self.exec.operations[id], TOO_LARGE);
            }
            let inside = |from: u64| from.checked_add(count).is_some_and(|end| end <= blocks);
            if !inside(from) || !inside(at) {
                return fail(&mut self.exec.operations[id], Status::LBA_RANGE.no_retry());
            }
            let bytes = |lba: u64| ByteRange::new(lba * u64::from(block), count * u64::from(block));
            parts.push((bytes(from), bytes(at)));
            at += count;
        }
        self.exec.operations[id].command.job = Job::Copy(Box::new(Copy { parts, next: 0 }));
    }

    /// Lets a copy get on.
    pub(super) fn pump_copy(&mut self, conn: &mut Conn, id: OperationId) -> Progress {
        loop {
            let progress = self.exec.pump_alone(id, Some(conn.budget()));
            let task = &mut self.exec.operations[id];
            if progress != Progress::Finished || task.requests.is_failed() {
                return progress;
            }
            let Job::Copy(copy) = &mut task.command.job else { return progress };
            let Some((from, to)) = copy.parts.get(copy.next).copied() else { return progress };
            copy.next += 1;
            // Reservations may have come since, and abandoned writes.
            let nsid = task.command.nsid;
            let admitted = self.admit(conn, nsid, (true, true)).and_then(|volume| {
                let fence = &self.exec.storage.volumes[volume].core.fence;
                let fenced = fence.blocks(from) || fence.blocks(to);
                if fenced { Err(BUSY) } else { Ok(volume) }
            });
            match admitted {
                Ok(volume) => self.exec.copy(id, (Some(volume), volume), (from, to)),
                Err(status) => fail(&mut self.exec.operations[id], status),
            }
        }
    }
}
