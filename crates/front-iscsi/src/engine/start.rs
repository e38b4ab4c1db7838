//! A command arrives: it is decoded, checked against fences, and set to work.

use std::time::Duration;

use lunet_block::{ByteRange, Op};
use lunet_iscsi::target::{Command, Response, Tag};
use lunet_ring::{Buf, Payload};
use lunet_scsi::{
    Action, Attention, Check, Code, CommandIn, Exclusive as What, Key, Lun, ParameterKind,
    PowerChange, Reply, Sanitize, SenseFormat, Transfer, WriteSameSource, status,
};
use lunet_volume::{
    CHUNK, Compare, DEPTH, Exclusive, Intake, Kind, Merge, OperationId, Piece, Plain, Progress,
    Read, VolumeId, Work, Write,
};

use super::task::{Job, Owner, Then};
use super::{Engine, respond, respond_sense, wanted};
use crate::connection::{Conn, Data, Pdus, find_lun};
use crate::reservations;
use lunet_server::conn::ConnId;

/// OPERATION CODE of REPORT LUNS.
const REPORT_LUNS: u8 = 0xA0;

/// A decoded command on its way to a task.
struct Arrival {
    /// Its connection's slot.
    slot: ConnId,
    /// The logical unit number, and the slot of its volume.
    lun: u16,
    volume: VolumeId,
    tag: Tag,
    /// What the initiator has room for, in bytes.
    expects_read: u32,
    /// Unsolicited data.
    first: Option<(Buf, usize)>,
    /// When its header was there.
    arrived: Duration,
    transfer: Transfer,
}

/// What an action amounts to.
struct Plan {
    kind: Kind,
    /// What it reads or writes, as far as that is known.
    touches: Option<ByteRange>,
    /// True if it changes `touches`.
    writes: bool,
    /// Each of its writes is stable when it is done.
    stable: bool,
    work: Work,
    /// What follows, if its data is needed in full first.
    then: Option<Then>,
    /// Unsolicited data in whole blocks.
    piece: Option<Piece>,
    /// The answer does not wait for the job.
    immediate: bool,
    /// What becomes of the unit when the job is done.
    power: Option<PowerChange>,
}

impl Engine {
    /// A command and its unsolicited data have arrived on the connection in `slot`.
    pub fn command(&mut self, conn: &mut Conn, slot: ConnId, mut command: Command<Buf>) {
        let gated = conn.front.session.as_ref().is_some_and(|session| session.gated.is_some());
        if gated && self.turns_back(conn, slot, &mut command) {
            return;
        }
        let tag = command.tag;
        self.admitted(conn, slot, command);
        if gated {
            self.goes(conn, tag);
        }
    }

    /// The command may be executed, as far as its failover group goes, if it is one of one.
    #[inline]
    fn admitted(&mut self, conn: &mut Conn, slot: ConnId, command: Command<Buf>) {
        let Some(session) = conn.front.session.as_mut() else { return };
        let lun = Lun::decode(command.lun.to_be_bytes());
        let mut seen = lun.and_then(|lun| find_lun(&mut session.luns, lun.0));
        let volume = seen.as_ref().map(|lun| lun.volume);
        let mut unit = None;
        if let Some(lun) = &mut seen {
            let core = &self.exec.storage.volumes[lun.volume].core;
            reservations::refresh(core, lun.place.seat, &mut lun.nexus);
            unit = Some(&core.face.unit);
        }
        let nexus = seen.map(|lun| &mut lun.nexus);
        let request = CommandIn {
            cdb: command.cdb(),
            expects_read: command.expects_read,
            expects_write: command.expects_write,
        };
        let decoded = lunet_scsi::execute(&session.scsi, unit, nexus, &request);
        let transfer = decoded.transfer;
        let (Some(Lun(lun)), Some(volume)) = (lun, volume) else {
            if let Action::Complete(reply) = decoded.action {
                send_reply(conn, command.tag, reply, transfer, SenseFormat::Fixed);
            }
            return;
        };
        let opcode = command.cdb()[0];
        let arrival = Arrival {
            slot,
            lun,
            volume,
            tag: command.tag,
            expects_read: command.expects_read,
            first: command.data,
            arrived: command.arrived,
            transfer,
        };
        let owner = Owner { slot, tag: arrival.tag };
        lunet_os::met(&decoded.action);
        match decoded.action {
            Action::Complete(reply) => {
                if opcode == REPORT_LUNS && reply.status == status::GOOD {
                    // The other LUNs of the session have nothing more to tell of this (SPC-5 6.33).
                    for lun in &mut session.luns {
                        lun.nexus.clear(Attention::ReportedLunsChanged);
                    }
                }
                // A unit attention is news, not a failure, and a deferred error one of another command.
                let failed = reply
                    .sense
                    .is_some_and(|sense| sense.key != Key::UnitAttention && !sense.deferred);
                self.exec.storage.volumes[volume].count.record(Kind::Other, 0, 0, failed);
                let format = self.exec.storage.volumes[volume].core.face.unit.sense_format();
                send_reply(conn, arrival.tag, reply, transfer, format);
            }
            Action::PortGroups(request) => {
                self.port_groups(conn, (arrival.tag, arrival.lun, arrival.volume), &request);
            }
            Action::Reservation(request) => {
                self.reservation(conn, (owner, arrival.lun, arrival.volume), &request);
            }
            Action::Copy(request) => {
                let place = (arrival.lun, arrival.volume);
                self.copy_request(conn, (slot, arrival.tag), place, &request);
            }
            Action::Sanitize(what) => self.sanitize(conn, &arrival, what),
            Action::LbaStatus { range, allocation } => {
                self.lba_status(conn, (owner, arrival.lun, volume), range, allocation);
            }
            Action::PreventRemoval(prevent) => {
                self.prevent_removal(conn, (arrival.tag, arrival.lun, volume), prevent);
            }
            action => self.begin(conn, arrival, action),
        }
    }

    fn begin(&mut self, conn: &mut Conn, mut arrival: Arrival, action: Action) {
        // Parameter lists may be about reservations: those who share a LUN that hangs need them.
        let concerns_storage = !matches!(action, Action::Parameters(_));
        let has_data = arrival.first.is_some();
        let refusal = self.refusal(arrival.volume, has_data).filter(|_| concerns_storage);
        if let Some(code) = refusal {
            self.protocol.busy += u64::from(code == status::BUSY);
            return respond(conn, arrival.tag, code, &[], arrival.transfer);
        }
        let Some(plan) = self.plan(conn, &mut arrival, action) else {
            // Not even a block of buffer memory.
            return respond(conn, arrival.tag, status::TASK_SET_FULL, &[], arrival.transfer);
        };
        let core = &self.exec.storage.volumes[arrival.volume].core;
        if plan.touches.is_some_and(|range| core.fence.blocks(range)) {
            self.protocol.busy += 1;
            return respond(conn, arrival.tag, status::BUSY, &[], arrival.transfer);
        }
        let job = plan.then.map_or(Job::Storage, Job::Collect);
        let at_storage = self.storage_account(conn, arrival.lun);
        let id = self.exec.begin_command(arrival.volume, plan.kind, arrival.arrived);
        let task = &mut self.exec.operations[id];
        (task.work, task.command.job) = (plan.work, job);
        task.command.lun = arrival.lun;
        task.requests.at_storage = at_storage;
        task.requests.client = conn.front.limits();
        task.command.transfer = arrival.transfer;
        task.requests.writes = plan.touches.filter(|_| plan.writes);
        task.requests.stable = plan.stable;
        if let Some(change) = plan.power {
            task.command.power = Some(Box::new((change, conn.front.seat(arrival.lun))));
        }
        // What is answered now goes on without a connection.
        task.command.owner =
            (!plan.immediate).then_some(Owner { slot: arrival.slot, tag: arrival.tag });
        if plan.immediate {
            let session = conn.front.session.as_ref();
            let asks = conn.front.seat(arrival.lun).zip(session.map(|session| session.id.clone()));
            let going = self.going.take();
            let command = &mut self.exec.operations[id].command;
            (command.deferred, command.going) = (asks.map(Box::new), going);
            self.exec.orphan(id);
            self.set_off(id);
            return respond(conn, arrival.tag, status::GOOD, &[], arrival.transfer);
        }
        conn.front.set_task(arrival.tag, Some(id));
        if let Some(piece) = plan.piece {
            self.take_piece(conn, id, piece);
        }
        self.pump(conn, id);
    }

    /// A sanitize operation without a parameter list.
    fn sanitize(&mut self, conn: &mut Conn, arrival: &Arrival, what: Sanitize) {
        let job = match self.begin_sanitize(arrival.volume, what) {
            Ok(job) => job,
            Err(None) => {
                return respond(conn, arrival.tag, status::BUSY, &[], arrival.transfer);
            }
            Err(Some(sense)) => {
                let format =
                    self.exec.storage.volumes[arrival.volume].core.face.unit.sense_format();
                let sense = sense.encode(format);
                return respond_sense(conn, arrival.tag, &sense, arrival.transfer);
            }
        };
        let id = self.exec.begin(arrival.volume, Kind::Other);
        let command = &mut self.exec.operations[id].command;
        command.job = job;
        (command.lun, command.transfer) = (arrival.lun, arrival.transfer);
        command.owner = Some(Owner { slot: arrival.slot, tag: arrival.tag });
        conn.front.set_task(arrival.tag, Some(id));
    }

    /// Starts a job whose command has been answered: a flush.
    fn set_off(&mut self, id: OperationId) {
        // The next command finds what this one was told.
        self.change_power(id);
        if self.exec.pump_alone(id, None) == Progress::Finished {
            self.exec.remove(id);
        }
    }

    fn plan_read(
        &self,
        conn: &Conn,
        volume: VolumeId,
        range: ByteRange,
        (wanted, fua): (Option<u64>, bool),
    ) -> Plan {
        let open = &self.exec.storage.volumes[volume];
        let caps = &open.core.caps;
        let mapped = caps.mapped_reads && !conn.front.needs_stable_data() && !open.exclusive;
        let read = Read::new(range, wanted, mapped).stable(fua && caps.write_cache);
        Plan::reads(range, Work::Read(read))
    }

    fn plan(&mut self, conn: &Conn, arrival: &mut Arrival, action: Action) -> Option<Plan> {
        let caps = &self.exec.storage.volumes[arrival.volume].core.caps;
        let block = caps.block_size;
        let read = |range: ByteRange, wanted: Option<u64>, fua: bool| {
            self.plan_read(conn, arrival.volume, range, (wanted, fua))
        };
        Some(match action {
            Action::Read { range, fua } => {
                let range = range.bytes(block);
                read(range, Some(range.len.min(u64::from(arrival.expects_read))), fua)
            }
            Action::Verify { range, check: Check::Medium, .. } => {
                read(range.bytes(block), None, false)
            }
            Action::Prefetch { range } => {
                let mut range = range.bytes(block);
                // More would push out of the cache what others use.
                range.len = range.len.min((DEPTH * CHUNK) as u64);
                read(range, None, false)
            }
            Action::Write { range, fua, then_verify: None, .. } => {
                let range = range.bytes(block);
                let (intake, piece) = Intake::new(range.len, block as usize, arrival.first.take());
                let work = Work::Write(Write::new(range.offset, intake, fua));
                Plan { piece, stable: fua, ..Plan::writes(range, work) }
            }
            Action::Write { range, then_verify: Some(check), .. } => {
                let range = range.bytes(block);
                let compares = check != Check::Medium;
                let plan = compare(range, block, true, compares, arrival.first.take());
                Plan { kind: Kind::Write, writes: true, ..plan }
            }
            Action::Verify { range, check: Check::Compare, .. } => {
                compare(range.bytes(block), block, false, true, arrival.first.take())
            }
            Action::Verify { range, check: Check::CompareOneBlock, .. } => {
                let range = range.bytes(block);
                Plan::collect(Some(range), block, Then::Pattern(range), arrival.first.take())
            }
            Action::WriteSame { range, source: WriteSameSource::DataOut, unmap } => {
                let range = range.bytes(block);
                let then = Then::Fill { range, unmap };
                let plan = Plan::collect(Some(range), block, then, arrival.first.take());
                Plan { kind: Kind::Write, writes: true, ..plan }
            }
            Action::WriteSame { range, source: WriteSameSource::Zeroes, unmap } => {
                let range = range.bytes(block);
                let client = (conn.budget(), arrival.volume);
                Plan::writes(range, Work::zeroes(&self.exec.storage, client, range, unmap)?)
            }
            Action::Exclusive { what, range, fua, .. } => {
                let range = range.bytes(block);
                let first = arrival.first.take();
                let merge = match what {
                    What::CompareAndWrite => Merge::CompareAndWrite,
                    What::OrWrite => Merge::Or,
                };
                let client = (conn.budget(), arrival.volume);
                let exclusive =
                    Exclusive::new(&self.exec.storage, client, (merge, range, fua), first);
                let (exclusive, piece) = exclusive?;
                Plan { piece, ..Plan::writes(range, Work::Exclusive(Box::new(exclusive))) }
            }
            Action::Parameters(parameters) => {
                let then = Then::Parameters(parameters);
                let plan = Plan::collect(None, parameters.len, then, arrival.first.take());
                Plan { kind: counted(parameters.kind), ..plan }
            }
            other => self.plan_without_data(arrival.volume, other),
        })
    }

    /// What needs no data and no buffer.
    fn plan_without_data(&self, volume: VolumeId, action: Action) -> Plan {
        match action {
            Action::Unmap(ranges) => {
                let block = self.exec.storage.volumes[volume].core.caps.block_size;
                let ranges: Vec<_> = ranges.iter().map(|range| range.bytes(block)).collect();
                let touches = super::data::hull(&ranges);
                let work = Work::Plain(Plain::new(Op::Unmap, ranges));
                Plan { kind: Kind::Unmap, touches, writes: true, ..Plan::still(work) }
            }
            Action::Flush { immediate, .. } => {
                let work = self.flush(volume);
                // What is known to fail is told with the command.
                let immediate =
                    immediate && self.exec.storage.volumes[volume].core.health.is_sound();
                Plan { kind: Kind::Flush, immediate, ..Plan::still(work) }
            }
            Action::Power(power) => {
                let held = self.holds_medium(volume, power.change);
                let flushes = power.flush && !held;
                let work = if flushes { self.flush(volume) } else { Work::None };
                // A refusal is not to be missed, nor a failure.
                let sound = !flushes || self.exec.storage.volumes[volume].core.health.is_sound();
                let immediate = power.immediate && !held && sound;
                Plan { immediate, power: Some(power.change), ..Plan::still(work) }
            }
            // Answered before a plan is made, or planned with its data.
            _ => Plan::still(Work::None),
        }
    }

    /// A flush, or nothing where the volume has no volatile cache.
    fn flush(&self, volume: VolumeId) -> Work {
        let cached = self.exec.storage.volumes[volume].core.caps.write_cache;
        if cached { Work::Plain(Plain::flush()) } else { Work::None }
    }
}

/// What a command that brings a parameter list counts as. Each kind is named, so that a new one is
/// never counted as another.
fn counted(kind: ParameterKind) -> Kind {
    match kind {
        ParameterKind::Unmap => Kind::Unmap,
        ParameterKind::ModeSelect6
        | ParameterKind::ModeSelect10
        | ParameterKind::SetTargetPortGroups
        | ParameterKind::PersistentReserveOut { .. }
        | ParameterKind::Overwrite { .. }
        | ParameterKind::FormatUnit { .. }
        | ParameterKind::ExtendedCopy { .. }
        | ParameterKind::PopulateToken { .. }
        | ParameterKind::WriteUsingToken { .. } => Kind::Other,
    }
}

impl Plan {
    fn still(work: Work) -> Self {
        Self {
            kind: Kind::Other,
            touches: None,
            writes: false,
            stable: false,
            work,
            then: None,
            piece: None,
            immediate: false,
            power: None,
        }
    }

    fn reads(range: ByteRange, work: Work) -> Self {
        Self { kind: Kind::Read, touches: Some(range), ..Self::still(work) }
    }

    fn writes(range: ByteRange, work: Work) -> Self {
        Self { kind: Kind::Write, touches: Some(range), writes: true, ..Self::still(work) }
    }

    /// A plan that needs all of `len` bytes first.
    fn collect(
        touches: Option<ByteRange>,
        len: u32,
        then: Then,
        first: Option<(Buf, usize)>,
    ) -> Self {
        // One 'block' as long as the whole, so that it arrives in one piece.
        let (intake, piece) = Intake::new(u64::from(len), len as usize, first);
        let (work, then) = (Work::Collect(intake), Some(then));
        Self { kind: Kind::Read, touches, piece, then, ..Self::still(work) }
    }
}

fn compare(
    range: ByteRange,
    block: u32,
    write_first: bool,
    compares: bool,
    first: Option<(Buf, usize)>,
) -> Plan {
    let (intake, piece) = Intake::new(range.len, block as usize, first);
    let compare = Compare::new(range, intake, write_first, compares);
    Plan { piece, ..Plan::reads(range, Work::Compare(compare)) }
}

/// Sends an answer that needed no volume. GOOD travels with the last data.
pub(super) fn send_reply(
    conn: &mut Conn,
    tag: Tag,
    reply: Reply,
    transfer: Transfer,
    format: SenseFormat,
) {
    match &reply.sense {
        // What did not fit is told like in a transfer that went on without it.
        Some(sense) if sense.code == Code::INVALID_FIELD_IN_INFORMATION_UNIT => {
            let sense = sense.encode(format);
            let wanted = Some(wanted(transfer));
            let response = Response { status: status::CHECK_CONDITION, sense: &sense, wanted };
            conn.front.proto.respond(tag, response, &mut Pdus(&mut conn.out));
        }
        Some(sense) => respond_sense(conn, tag, &sense.encode(format), transfer),
        None if reply.data.is_empty() || reply.status != status::GOOD => {
            respond(conn, tag, reply.status, &[], transfer);
        }
        None => send_data(conn, tag, reply.data, transfer),
    }
}

/// Sends Data-In that is not empty, and with it GOOD.
pub(super) fn send_data(conn: &mut Conn, tag: Tag, data: Vec<u8>, transfer: Transfer) {
    let len = data.len();
    let data = Data(Payload::Bytes(data));
    conn.front.proto.send_data(tag, data, 0..len, Some(wanted(transfer)), &mut Pdus(&mut conn.out));
}
