//! A command arrives: it is decoded, checked against paths, reservations and fences, and set to work.

use lunet_block::ByteRange;
use lunet_nvme::command::{ALL_NAMESPACES, Fuse, Io, Range};
use lunet_nvme::controller::Command;
use lunet_nvme::status::Status;
use lunet_ring::{Account, Buf};
use lunet_server::conn::ConnId;
use lunet_volume::{Compare, Face, Intake, Kind, PathState, Piece, Read, VolumeId, Work, Write};

use super::Engine;
use super::copy::RANGES;
use super::task::{BUSY, Job, Owner, TOO_LARGE, Then, WORKED_ON};
use crate::connection::{Conn, complete, find};
use crate::message::Message;
use crate::reservations::Wish;
use crate::world::Exports;

/// The longest data of a command that is a list, in bytes: 256 ranges of Dataset Management.
const LONGEST_LIST: u64 = 4096;

/// What a command amounts to.
struct Plan {
    kind: Kind,
    /// What it reads or writes, as far as that is known.
    touches: Option<ByteRange>,
    /// True if it changes that.
    writes: bool,
    /// Each of its writes is stable when it is done.
    stable: bool,
    /// A flush has to follow.
    flushes: bool,
    work: Work,
    /// What follows, if its data is needed in full first, and how many bytes of that count.
    then: Option<(Then, usize)>,
    /// Data that came with the command, in whole blocks.
    piece: Option<Piece>,
}

impl Plan {
    fn still(kind: Kind, work: Work) -> Self {
        let (touches, then, piece) = (None, None, None);
        Self { kind, touches, writes: false, stable: false, flushes: false, work, then, piece }
    }

    fn reads(range: ByteRange, work: Work) -> Self {
        Self { touches: Some(range), ..Self::still(Kind::Read, work) }
    }

    fn writes(range: ByteRange, work: Work) -> Self {
        Self { touches: Some(range), writes: true, ..Self::still(Kind::Write, work) }
    }

    /// A plan that needs the `len` bytes of a list first. More may come with them: Linux sends as many ranges as there can be,
    /// and says how many of them count.
    fn collect(
        kind: Kind,
        len: u64,
        then: Then,
        command: &mut Command<Buf>,
    ) -> Result<Self, Status> {
        let all = u64::from(command.expects_write);
        if !(len..=LONGEST_LIST).contains(&all) {
            return Err(Status::DATA_LENGTH.no_retry());
        }
        // One 'block' as long as the whole, so that it arrives in one piece.
        let (intake, piece) = Intake::new(all, all as usize, capsule(command));
        let then = Some((then, len as usize));
        Ok(Self { piece, then, ..Self::still(kind, Work::Collect(intake)) })
    }
}

/// The data of a command's capsule, from the start of its buffer on, and its length.
pub(super) fn capsule(command: &mut Command<Buf>) -> Option<(Buf, usize)> {
    let (mut buf, range) = command.data.take()?;
    let len = range.len();
    if range.start > 0 {
        buf.copy_within(range, 0);
    }
    Some((buf, len))
}

/// Sees whether a host has just the data for the controller that a command needs.
pub(super) fn transfer_fits(command: &Command<Buf>, len: u64) -> Result<(), Status> {
    let has = u64::from(command.expects_write);
    if has == len { Ok(()) } else { Err(Status::DATA_LENGTH.no_retry()) }
}

impl<Fc: Face> Engine<Fc> {
    /// A command has arrived on an I/O queue.
    pub fn command(&mut self, conn: &mut Conn, slot: ConnId, command: Command<Buf>) {
        if conn.front.queue.as_ref().is_none_or(|queue| queue.member.is_shut_down()) {
            // The controller is shut down: nobody would flush what is written now.
            let first = conn.front.first.take().map(|first| first.tag);
            for tag in first.into_iter().chain([command.tag]) {
                complete(conn, tag, Status::SEQUENCE.no_retry());
            }
            return;
        }
        if conn.front.gated.is_some() {
            return self.arrived(conn, slot, command);
        }
        match (command.fuse, conn.front.first.take()) {
            (Fuse::First, _) => conn.front.first = Some(command),
            (_, first) => self.admitted(conn, slot, first, command),
        }
    }

    /// A command may be executed, as far as its failover group goes, if it is one of one; or a fused pair.
    #[inline]
    pub(super) fn admitted(
        &mut self,
        conn: &mut Conn,
        slot: ConnId,
        first: Option<Command<Buf>>,
        command: Command<Buf>,
    ) {
        match (command.fuse, first) {
            (Fuse::Second, Some(first)) => self.fused(conn, slot, first, command),
            // The connection hands up both or none.
            (Fuse::Second, None) => complete(conn, command.tag, Status::MISSING_FUSED),
            (Fuse::Normal | Fuse::First, _) => {
                let tag = command.tag;
                if let Err(status) = self.begin(conn, slot, command) {
                    self.protocol.busy += u64::from(status.code() == Status::INTERRUPTED);
                    complete(conn, tag, status);
                }
            }
        }
    }

    /// # Errors
    /// What the command is answered with at once.
    fn begin(
        &mut self,
        conn: &mut Conn,
        slot: ConnId,
        mut command: Command<Buf>,
    ) -> Result<(), Status> {
        let io = Io::decode(&command.sqe)?;
        lunet_os::met(&io);
        let nsid = command.sqe.nsid.get();
        let owner = Owner { slot, tag: command.tag, second: None };
        let volume = match io {
            Io::Flush if nsid == ALL_NAMESPACES => {
                let queue = conn.front.queue.as_ref();
                let seen = queue.map_or(&[][..], |queue| &queue.namespaces);
                let all = seen.iter().map(|seen| seen.volume).collect();
                self.flush_all(conn, owner, all);
                return Ok(());
            }
            Io::ReservationReport { len, extended } => {
                return self.report_reservations((conn, slot), &command, (len, extended));
            }
            _ => self.admit(conn, nsid, needs(&io))?,
        };
        if needs(&io).1 && io != Io::Flush {
            self.takes_writes(volume)?;
        }
        let plan = self.plan(conn, volume, io, &mut command)?;
        if let Some(range) = plan.touches {
            self.free_of_fences(volume, range)?;
        }
        let at_storage = self.storage_account(conn, nsid);
        let id = self.exec.begin_command(volume, plan.kind, command.arrived);
        let task = &mut self.exec.operations[id];
        (task.work, task.command.job) =
            (plan.work, plan.then.map_or(Job::Storage, |(then, len)| Job::Collect(then, len)));
        task.requests.at_storage = at_storage;
        task.requests.client = conn.front.limits();
        task.requests.writes = plan.touches.filter(|_| plan.writes);
        (task.requests.stable, task.command.flushes) = (plan.stable, plan.flushes);
        task.command.bytes = plan.touches.map_or(0, |range| range.len);
        (task.command.nsid, task.command.owner) = (nsid, Some(owner));
        conn.front.set_task(command.tag, Some(id));
        if let Some(piece) = plan.piece {
            self.take_piece(conn, id, piece);
        }
        self.pump(conn, id);
        Ok(())
    }

    /// What a host may do to a namespace now: the slot of its volume.
    ///
    /// # Errors
    /// Why it may not read, or write, if the command does.
    pub(super) fn admit(
        &self,
        conn: &mut Conn,
        nsid: u32,
        (reads, writes): (bool, bool),
    ) -> Result<VolumeId, Status> {
        let queue = conn.front.queue.as_mut().ok_or(Status::SEQUENCE.no_retry())?;
        let seen = find(&mut queue.namespaces, nsid);
        let seen = seen.ok_or(Status::INVALID_NAMESPACE.no_retry())?;
        let core = &self.exec.storage.volumes[seen.volume].core;
        let path = self.world.path(core, conn.portal);
        if path != seen.path {
            seen.path = path;
            let admin = queue.member.admin;
            let message = Message::Paths { connection: admin.connection };
            self.core.mailboxes()[admin.shard].tell(message);
        }
        if path == PathState::Inaccessible {
            return Err(Status::ANA_INACCESSIBLE);
        }
        if core.face.is_absent() {
            return Err(Status::NOT_READY);
        }
        if core.face.is_closed() {
            return Err(WORKED_ON);
        }
        let news = core.reservations.news();
        if news != seen.access.1 {
            let access = core.reservations.look(|state| state.access(&queue.member.registrant));
            seen.access = (access, news);
        }
        let access = seen.access.0;
        if reads && !access.read || writes && !access.write {
            return Err(Status::RESERVATION_CONFLICT.no_retry());
        }
        if self.exec.storage.is_crowded(seen.volume) {
            return Err(BUSY);
        }
        Ok(seen.volume)
    }

    /// Sees whether a volume takes writes.
    ///
    /// # Errors
    /// It does not.
    pub(super) fn takes_writes(&self, volume: VolumeId) -> Result<(), Status> {
        let read_only = self.exec.storage.volumes[volume].core.face.is_read_only();
        if read_only { Err(Status::WRITE_PROTECTED.no_retry()) } else { Ok(()) }
    }

    /// The bytes of a range that lies on a volume.
    ///
    /// # Errors
    /// It does not.
    pub(super) fn bytes_of(&self, volume: VolumeId, range: Range) -> Result<ByteRange, Status> {
        let caps = &self.exec.storage.volumes[volume].core.caps;
        let (block, blocks) = (u64::from(caps.block_size), u64::from(range.blocks));
        let end = range.lba.checked_add(blocks).filter(|end| *end <= caps.blocks);
        end.ok_or(Status::LBA_RANGE.no_retry())?;
        Ok(ByteRange::new(range.lba * block, blocks * block))
    }

    /// Sees whether an abandoned write may still change a range.
    ///
    /// # Errors
    /// The host has to try again.
    pub(super) fn free_of_fences(&self, volume: VolumeId, range: ByteRange) -> Result<(), Status> {
        let fenced = self.exec.storage.volumes[volume].core.fence.blocks(range);
        if fenced { Err(BUSY) } else { Ok(()) }
    }

    /// The account of what a queue has at the storage of a namespace.
    pub(super) fn storage_account(&self, conn: &mut Conn, nsid: u32) -> Option<Account> {
        let seen = find(&mut conn.front.queue.as_mut()?.namespaces, nsid)?;
        Some(self.exec.storage_account(&mut seen.at_storage, &conn.account, seen.volume))
    }

    fn plan(
        &mut self,
        conn: &Conn,
        volume: VolumeId,
        io: Io,
        command: &mut Command<Buf>,
    ) -> Result<Plan, Status> {
        let block = self.exec.storage.volumes[volume].core.caps.block_size;
        let client = (conn.budget(), volume);
        Ok(match io {
            Io::Read { range, fua } => {
                let range = self.moved(volume, range)?;
                if u64::from(command.expects_read) != range.len {
                    return Err(Status::DATA_LENGTH.no_retry());
                }
                self.plan_read(conn, volume, (range, fua), Some(range.len))
            }
            Io::Verify { range, fua } => {
                let range = self.bytes_of(volume, range)?;
                self.plan_read(conn, volume, (range, fua), None)
            }
            Io::Write { range, fua } => {
                let range = self.moved(volume, range)?;
                transfer_fits(command, range.len)?;
                let (intake, piece) = Intake::new(range.len, block as usize, capsule(command));
                let work = Work::Write(Write::new(range.offset, intake, fua));
                Plan { piece, stable: fua, ..Plan::writes(range, work) }
            }
            Io::Compare { range } => {
                let range = self.moved(volume, range)?;
                transfer_fits(command, range.len)?;
                let (intake, piece) = Intake::new(range.len, block as usize, capsule(command));
                let compare = Compare::new(range, intake, false, true);
                Plan { piece, ..Plan::reads(range, Work::Compare(compare)) }
            }
            Io::WriteZeroes { range, fua, deallocate } => {
                let range = self.bytes_of(volume, range)?;
                let work = Work::zeroes(&self.exec.storage, client, range, deallocate);
                Plan { flushes: fua, ..Plan::writes(range, work.ok_or(BUSY)?) }
            }
            Io::Flush => Plan::still(Kind::Flush, self.flush(volume)),
            // Nothing but hints, that nobody needs.
            Io::DatasetManagement { deallocate: false, .. } => Plan::still(Kind::Other, Work::None),
            Io::DatasetManagement { ranges, .. } => {
                Plan::collect(Kind::Unmap, u64::from(ranges) * 16, Then::Deallocate, command)?
            }
            Io::Copy { ranges, .. } if ranges > u16::from(RANGES) + 1 => {
                return Err(TOO_LARGE);
            }
            Io::Copy { lba, ranges, fua } => {
                let (len, then) = (u64::from(ranges) * 32, Then::Copy { lba });
                let plan = Plan::collect(Kind::Other, len, then, command)?;
                Plan { flushes: fua, ..plan }
            }
            Io::ReservationRegister { .. }
            | Io::ReservationAcquire { .. }
            | Io::ReservationRelease { .. }
            | Io::ReservationReport { .. } => {
                let (wish, len) = Wish::of(&io).ok_or(Status::INTERNAL)?;
                Plan::collect(Kind::Other, len, Then::Reserve(wish), command)?
            }
        })
    }

    fn plan_read(
        &self,
        conn: &Conn,
        volume: VolumeId,
        (range, fua): (ByteRange, bool),
        wanted: Option<u64>,
    ) -> Plan {
        let open = &self.exec.storage.volumes[volume];
        let stable = conn.front.needs_stable_data();
        let mapped = open.core.caps.mapped_reads && !open.exclusive && !stable;
        let read = Read::new(range, wanted, mapped);
        Plan::reads(range, Work::Read(read.stable(fua && open.core.caps.write_cache)))
    }

    /// The bytes of a range that a command moves between host and volume.
    fn moved(&self, volume: VolumeId, range: Range) -> Result<ByteRange, Status> {
        let range = self.bytes_of(volume, range)?;
        let most = 4096 << self.core.front.options.mdts;
        if range.len > most { Err(Status::INVALID_FIELD.no_retry()) } else { Ok(range) }
    }

    /// Flushes the volumes in these slots, one after the other, for one command.
    pub(super) fn flush_all(&mut self, conn: &mut Conn, owner: Owner, mut volumes: Vec<VolumeId>) {
        // Some may have been removed since.
        let volume = loop {
            match volumes.pop() {
                Some(volume) if self.exec.storage.volumes.get(volume).is_none() => {}
                found => break found,
            }
        };
        let Some(volume) = volume else {
            conn.front.set_task(owner.tag, None);
            return complete(conn, owner.tag, Status::SUCCESS);
        };
        let work = self.flush(volume);
        let id = self.exec.begin(volume, Kind::Flush);
        let task = &mut self.exec.operations[id];
        (task.work, task.command.job) = (work, Job::FlushAll(volumes));
        task.command.owner = Some(owner);
        conn.front.set_task(owner.tag, Some(id));
        self.pump(conn, id);
    }

    /// Makes all that was written to these volumes stable, because the controller of an admin queue shuts down.
    pub fn flush_for_shutdown(&mut self, connection: u64, volumes: Vec<VolumeId>) -> usize {
        let mut flushing = 0;
        for volume in volumes {
            if !self.exec.storage.volumes[volume].core.caps.write_cache {
                continue;
            }
            let id = self.exec.begin(volume, Kind::Flush);
            let task = &mut self.exec.operations[id];
            task.work = Work::Plain(lunet_volume::Plain::flush());
            task.command.job = Job::ShutDown { connection };
            if self.exec.pump_alone(id, None) == lunet_volume::Progress::Finished {
                self.exec.remove(id);
            } else {
                flushing += 1;
            }
        }
        flushing
    }
}

/// What a command needs of reservations: to read, and to write. Those about reservations need nothing.
fn needs(io: &Io) -> (bool, bool) {
    match io {
        Io::Read { .. } | Io::Compare { .. } | Io::Verify { .. } => (true, false),
        Io::Write { .. } | Io::WriteZeroes { .. } | Io::Flush => (false, true),
        Io::DatasetManagement { deallocate, .. } => (false, *deallocate),
        Io::Copy { .. } => (true, true),
        Io::ReservationRegister { .. }
        | Io::ReservationAcquire { .. }
        | Io::ReservationRelease { .. }
        | Io::ReservationReport { .. } => (false, false),
    }
}
