//! Compare and Write as a fused pair: one operation, with one place in the line for its range.

use lunet_block::ByteRange;
use lunet_nvme::command::Io;
use lunet_nvme::controller::{Command, Tag};
use lunet_nvme::status::Status;
use lunet_ring::Buf;
use lunet_server::conn::ConnId;
use lunet_volume::{Exclusive, Face, Kind, Merge, OperationId, Work, take};

use super::Engine;
use super::start::{capsule, transfer_fits};
use super::task::{BUSY, Job, Owner, fail};
use crate::connection::{Conn, Pdus, complete};

/// Longest range of a pair, in bytes.
const LONGEST: u64 = 128 << 10;

/// The data of both commands, until all of it is here.
pub struct Pair {
    range: ByteRange,
    fua: bool,
    /// With its command's name: what is compared, and what is written.
    halves: [(Tag, Option<Buf>); 2],
}

impl Pair {
    /// True if the data of both is here.
    pub fn is_complete(&self) -> bool {
        self.halves.iter().all(|(_, buf)| buf.is_some())
    }
}

impl<Fc: Face> Engine<Fc> {
    /// Both commands of a fused pair have come.
    pub fn fused(
        &mut self,
        conn: &mut Conn,
        slot: ConnId,
        first: Command<Buf>,
        second: Command<Buf>,
    ) {
        let (one, other) = (first.tag, second.tag);
        if let Err((status, failed)) = self.begin_fused(conn, slot, first, second) {
            complete(conn, one, if failed == 0 { status } else { Status::FAILED_FUSED });
            complete(conn, other, if failed == 1 { status } else { Status::FAILED_FUSED });
        }
    }

    /// # Errors
    /// The status of the half that is to blame, and which one that is.
    fn begin_fused(
        &mut self,
        conn: &mut Conn,
        slot: ConnId,
        mut first: Command<Buf>,
        mut second: Command<Buf>,
    ) -> Result<(), (Status, usize)> {
        let invalid = Status::INVALID_FIELD.no_retry();
        let (compare, write) = (Io::decode(&first.sqe), Io::decode(&second.sqe));
        let Io::Compare { range } = compare.map_err(|s| (s, 0))? else { return Err((invalid, 0)) };
        let Io::Write { range: to, fua } = write.map_err(|s| (s, 1))? else {
            return Err((invalid, 1));
        };
        if range != to || first.sqe.nsid != second.sqe.nsid {
            return Err((invalid, 1));
        }
        let nsid = first.sqe.nsid.get();
        let volume = self.admit(conn, nsid, (true, true)).map_err(|status| (status, 0))?;
        self.takes_writes(volume).map_err(|status| (status, 1))?;
        let bytes = self.bytes_of(volume, range).map_err(|status| (status, 0))?;
        if bytes.len > LONGEST {
            return Err((invalid, 0));
        }
        for (at, command) in [&first, &second].into_iter().enumerate() {
            transfer_fits(command, bytes.len).map_err(|status| (status, at))?;
        }
        self.free_of_fences(volume, bytes).map_err(|status| (status, 0))?;
        let halves = [(first.tag, capsule(&mut first)), (second.tag, capsule(&mut second))];
        let halves = halves.map(|(tag, data)| (tag, data.map(|(buf, _)| buf)));
        let len = bytes.len as usize;
        let (storage, budget) = (&self.exec.storage, conn.budget());
        let new = || {
            let allowance = storage.allowance(budget.account);
            take((storage.ring.arena(), allowance), budget.reserve, budget.account, len)
        };
        let mut asked = Vec::new();
        for (tag, data) in &halves {
            if data.is_none() {
                asked.push((*tag, new().ok_or((BUSY, 0))?));
            }
        }
        let at_storage = self.storage_account(conn, nsid);
        let id = self.exec.begin_command(volume, Kind::Write, second.arrived);
        let task = &mut self.exec.operations[id];
        task.requests.at_storage = at_storage;
        task.requests.client = conn.front.limits();
        (task.requests.writes, task.requests.stable) = (Some(bytes), fua);
        (task.command.nsid, task.command.bytes) = (nsid, 2 * bytes.len);
        task.command.owner = Some(Owner { slot, tag: first.tag, second: Some(second.tag) });
        task.command.job = Job::Fused(Box::new(Pair { range: bytes, fua, halves }));
        conn.front.set_task(first.tag, Some(id));
        conn.front.set_task(second.tag, Some(id));
        for (tag, buf) in asked {
            let out = &mut conn.out;
            conn.front.proto.solicit(tag, 0, len as u32, buf, &mut Pdus(out));
        }
        self.begin_exclusive(conn, id);
        self.pump(conn, id);
        Ok(())
    }

    /// The data of one half has come.
    pub(super) fn fused_arrived(&mut self, conn: &mut Conn, id: OperationId, tag: Tag, buf: Buf) {
        if let Job::Fused(pair) = &mut self.exec.operations[id].command.job {
            if let Some(half) = pair.halves.iter_mut().find(|(of, _)| *of == tag) {
                half.1 = Some(buf);
            }
        }
        self.begin_exclusive(conn, id);
        self.pump(conn, id);
    }

    /// Takes a place in the line, if all data is here.
    fn begin_exclusive(&mut self, conn: &mut Conn, id: OperationId) {
        let task = &mut self.exec.operations[id];
        let Job::Fused(pair) = &mut task.command.job else { return };
        if !pair.is_complete() || task.requests.is_failed() {
            return;
        }
        let (range, fua, volume) = (pair.range, pair.fua, task.requests.volume);
        let [compare, write] = [0, 1].map(|at| pair.halves[at].1.take());
        let len = range.len as usize;
        let (storage, budget) = (&self.exec.storage, conn.budget());
        let allowance = storage.allowance(budget.account);
        let whole =
            take((storage.ring.arena(), allowance), budget.reserve, budget.account, 2 * len);
        let made = whole.zip(compare.zip(write)).and_then(|(mut whole, (compare, write))| {
            whole[..len].copy_from_slice(&compare[..len]);
            whole[len..2 * len].copy_from_slice(&write[..len]);
            let what = (Merge::CompareAndWrite, range, fua);
            Exclusive::new(storage, (budget, volume), what, Some((whole, 2 * len)))
        });
        let Some((exclusive, piece)) = made else {
            self.set_work(id, Work::None);
            return fail(&mut self.exec.operations[id], BUSY);
        };
        self.set_work(id, Work::Exclusive(Box::new(exclusive)));
        if let Some(piece) = piece {
            self.take_piece(conn, id, piece);
        }
    }
}
