//! Task management (RFC 7143 section 11.5, SAM-5 chapter 7).
//!
//! A function is done on the spot for the sessions of its own shard. One that reaches into other sessions
//! goes to the other shards as well, and is answered when the last of them has done its part. None waits
//! for storage: an aborted command is forgotten, and its blocks fenced off.
//!
//! It ends older commands only: of the session that asks, those with a lower CmdSN (RFC 7143 4.2.3.2); of
//! another session, those that had arrived when the function was done on that session's shard.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lunet_iscsi::pdu::{TmfFunction, TmfResponse};
use lunet_iscsi::target::{Response, Tag};
use lunet_scsi::{Attention, Lun, Sense, SenseFormat, status};
use lunet_volume::VolumeId;

use super::{Conn, Pdus, PendingClear, SessionLun, Shard};
use crate::group::{RelayRequest, Relays};
use crate::message::{Cause, Clear, Cleared, Message, Part};
use crate::reservations;
use lunet_server::conn::ConnId;

/// A task management function as it arrived.
#[derive(Clone, Copy)]
pub(super) struct Function {
    /// Its name at the connection, for the response.
    pub tag: Tag,
    /// What to do.
    pub function: TmfFunction,
    /// To which logical unit.
    pub lun: u64,
    /// To which command.
    pub referenced: Option<Tag>,
}

/// What the initiator hears of a command that is ended before its time.
#[derive(Clone, Copy)]
pub(super) enum Ending {
    /// Nothing: it has asked for it, or is told in another way.
    Silent,
    /// This status.
    Status(u8),
    /// CHECK CONDITION with this.
    Sense(Sense),
}

impl Ending {
    /// That of a command which another nexus ends: with TAS = 1 it is TASK ABORTED (SAM-5 5.6).
    pub fn by_another(tells: bool) -> Self {
        if tells { Self::Status(status::TASK_ABORTED) } else { Self::Silent }
    }
}

/// Functions of one connection that may wait for other shards at a time.
const MAX_CLEARS: usize = 8;

/// Functions of one shard that other shards may not have done their part of, those of connections that have ended
/// included: nothing of one that would be more is done anywhere.
const MAX_ASKED: usize = 256;

/// A task management function has arrived.
pub(super) fn manage(shard: &mut Shard, slot: ConnId, function: Function) {
    let unit = unit_of(shard, slot, function.lun);
    let owner = match owner_of(shard, slot, &function) {
        Ok(owner) => owner,
        Err(response) => {
            let conn = &mut shard.conns[slot];
            return conn.front.proto.respond_tmf(function.tag, response, &mut Pdus(&mut conn.out));
        }
    };
    let response = match function.function {
        TmfFunction::AbortTask => {
            if let Some(tag) = function.referenced {
                abort(shard, slot, tag);
            }
            TmfResponse::Complete
        }
        TmfFunction::AbortTaskSet => match unit {
            Some((lun, _)) => {
                abort_older(shard, slot, function.tag, |at| at == lun);
                TmfResponse::Complete
            }
            None => TmfResponse::LunDoesNotExist,
        },
        TmfFunction::ClearTaskSet | TmfFunction::LogicalUnitReset => match unit {
            Some((_, volume)) => {
                let cause = match function.function {
                    TmfFunction::ClearTaskSet => Cause::ClearTaskSet,
                    _ => Cause::Reset,
                };
                return clear_everywhere(
                    shard,
                    (slot, function.tag),
                    [volume].into(),
                    cause,
                    owner,
                );
            }
            None => TmfResponse::LunDoesNotExist,
        },
        TmfFunction::TargetWarmReset | TmfFunction::TargetColdReset if !may_reset(shard, slot) => {
            TmfResponse::AuthorizationFailed
        }
        TmfFunction::TargetWarmReset | TmfFunction::TargetColdReset => {
            let volumes = volumes_of(shard, slot);
            let cold = function.function == TmfFunction::TargetColdReset;
            let cause = if cold { Cause::ColdReset } else { Cause::Reset };
            return clear_everywhere(shard, (slot, function.tag), volumes, cause, owner);
        }
        _ => TmfResponse::NotSupported,
    };
    if let Some(owner) = owner.filter(|_| response == TmfResponse::Complete) {
        let left = Arc::new(AtomicUsize::new(1));
        owner.asks(Part::new(&left, &shard.core.mailboxes()[shard.number]));
        let clear = PendingClear { tag: function.tag, left, cause: Cause::ClearTaskSet };
        shard.conns[slot].front.clears.push(clear);
        shard.front.clearing = true;
        return;
    }
    let conn = &mut shard.conns[slot];
    conn.front.proto.respond_tmf(function.tag, response, &mut Pdus(&mut conn.out));
}

/// The owner's part of a function, at a standby: what it has of commands ends there, and the answer waits for that.
struct OwnersPart {
    relays: Arc<Relays>,
    relay: u64,
    function: TmfFunction,
    lun: u64,
    ticket: Option<u64>,
}

impl OwnersPart {
    fn asks(self, part: Part) {
        let Self { relays, relay, function, lun, ticket } = self;
        let done = Box::new(part);
        let function = crate::group::Function { function, lun, ticket };
        (relays.takes)(RelayRequest::Function(relay, function, done));
    }
}

/// The owner's part of a function; `None` if it has none.
///
/// # Errors
/// The answer to a function that cannot be passed on.
fn owner_of(
    shard: &Shard,
    slot: ConnId,
    function: &Function,
) -> Result<Option<OwnersPart>, TmfResponse> {
    let conn = &shard.conns[slot];
    let gated = conn.front.session.as_ref().and_then(|session| session.gated.as_ref());
    let group = gated.and_then(|gated| shard.front.groups.get(gated.group));
    let (Some(gated), Some(group)) = (gated, group) else { return Ok(None) };
    let Some(relays) = group.relays.clone().filter(|_| group.gate.is_through()) else {
        return Ok(None);
    };
    let own = matches!(function.function, TmfFunction::AbortTask | TmfFunction::AbortTaskSet);
    let ticket = function.referenced.and_then(|tag| shard.front.ticket_of(conn, tag));
    let nothing = match function.function {
        TmfFunction::AbortTask => ticket.is_none(),
        _ => gated.relay.number().is_none(),
    };
    let full = conn.front.clears.len() >= MAX_CLEARS;
    match gated.relay.number().filter(|_| !nothing) {
        // Commands of others are at the owner, and this connection has no way there.
        None if !own => Err(TmfResponse::Rejected),
        None => Ok(None),
        Some(_) if full => Err(TmfResponse::Rejected),
        Some(relay) => {
            let lun = function.lun;
            let function = match function.function {
                TmfFunction::TargetColdReset => TmfFunction::TargetWarmReset,
                other => other,
            };
            Ok(Some(OwnersPart { relays, relay, function, lun, ticket }))
        }
    }
}

/// Forgets one command of a connection.
fn abort(shard: &mut Shard, slot: ConnId, tag: Tag) {
    end_command(shard, slot, tag, Ending::Silent);
}

/// Ends one command of a connection before its time. What it may still write is fenced off.
pub(super) fn end_command(shard: &mut Shard, slot: ConnId, tag: Tag, ending: Ending) {
    let conn = &mut shard.conns[slot];
    match ending {
        Ending::Silent => conn.front.proto.abort(tag),
        Ending::Status(status) => {
            let response = Response { status, sense: &[], wanted: None };
            conn.front.proto.respond(tag, response, &mut Pdus(&mut conn.out));
        }
        Ending::Sense(sense) => {
            let sense = sense.encode(SenseFormat::Fixed);
            let status = status::CHECK_CONDITION;
            let response = Response { status, sense: &sense, wanted: None };
            conn.front.proto.respond(tag, response, &mut Pdus(&mut conn.out));
        }
    }
    if let Some(task) = conn.front.task(tag) {
        conn.front.set_task(tag, None);
        shard.front.abandon(task);
    }
}

/// Ends every command of a connection at one logical unit. Returns how many there were.
pub(super) fn end_unit(shard: &mut Shard, slot: ConnId, lun: u16, ending: Ending) -> usize {
    let conn = &shard.conns[slot];
    let tasks = conn.front.tasks.iter().flatten();
    let tags: Vec<Tag> = tasks.filter_map(|task| shard.front.tag_at(*task, lun)).collect();
    for tag in &tags {
        end_command(shard, slot, *tag, ending);
    }
    shard.touch(slot);
    tags.len()
}

/// Forgets the commands of a connection that one of its functions reaches, at the LUNs for which
/// `hits` holds: those that were sent before it, handed up or not.
fn abort_older(shard: &mut Shard, slot: ConnId, function: Tag, hits: impl Fn(u16) -> bool) {
    let at = |lun: u64| Lun::decode(lun.to_be_bytes()).is_some_and(|Lun(lun)| hits(lun));
    for tag in shard.conns[slot].front.proto.older_than(function, at) {
        abort(shard, slot, tag);
    }
}

/// The number of a LUN of a connection, and the slot of its volume.
fn unit_of(shard: &Shard, slot: ConnId, lun: u64) -> Option<(u16, VolumeId)> {
    let session = shard.conns[slot].front.session.as_ref()?;
    let Lun(lun) = Lun::decode(lun.to_be_bytes())?;
    session.luns.iter().find(|seen| seen.lun == lun).map(|seen| (lun, seen.volume))
}

/// True if the target of a connection allows that it is reset (RFC 7143 11.5.1: a target may ask for
/// authorization).
fn may_reset(shard: &Shard, slot: ConnId) -> bool {
    let session = shard.conns[slot].front.session.as_ref();
    let target = session.and_then(|session| session.target.as_ref());
    target.is_some_and(|target| target.allow_reset)
}

/// The volumes that a connection sees.
fn volumes_of(shard: &Shard, slot: ConnId) -> Arc<[VolumeId]> {
    let session = shard.conns[slot].front.session.as_ref();
    session.map(|session| session.luns.iter().map(|lun| lun.volume).collect()).unwrap_or_default()
}

/// Ends the commands on these volumes, whoever sent them: those of this shard at once, so that what the
/// connection has sent after the function finds it done, those of the others by message.
fn clear_everywhere(
    shard: &mut Shard,
    (slot, function): (ConnId, Tag),
    volumes: Arc<[VolumeId]>,
    cause: Cause,
    owner: Option<OwnersPart>,
) {
    shard.front.asked.retain(|left| left.load(Ordering::Acquire) > 0);
    let conn = &mut shard.conns[slot];
    if conn.front.clears.len() >= MAX_CLEARS || shard.front.asked.len() >= MAX_ASKED {
        return conn.front.proto.respond_tmf(
            function,
            TmfResponse::Rejected,
            &mut Pdus(&mut conn.out),
        );
    }
    let mailboxes = shard.core.mailboxes();
    let number = shard.number;
    let others = || mailboxes.iter().enumerate().filter(|(other, _)| *other != number);
    let parts = others().count() + usize::from(owner.is_some());
    let left = Arc::new(AtomicUsize::new(parts));
    if let Some(owner) = owner {
        owner.asks(Part::new(&left, &mailboxes[number]));
    }
    // As it is before a reset makes it the default again.
    let tells =
        |at: &VolumeId| shard.front.exec.storage.volumes[*at].core.face.unit.state.tells_aborts();
    let volumes = volumes.iter().map(|at| Cleared { volume: *at, tells: tells(at) }).collect();
    let target = conn.front.session.as_ref().and_then(|session| session.nexus.target);
    let clear = Clear { volumes, cause, target, part: None };
    for (_, mailbox) in others() {
        let part = Part::new(&left, &mailboxes[shard.number]);
        mailbox.tell(Message::Clear(clear.for_another(part)));
    }
    shard.front.asked.push(left.clone());
    if cause != Cause::ClearTaskSet {
        for at in clear.volumes.iter() {
            let volume = &shard.front.exec.storage.volumes[at.volume].core;
            reservations::reset(volume);
            // Mode parameters are the default ones again (SPC-5 5.6.3).
            if volume.face.unit.state.reset() {
                shard.front.modes_were_reset(at.volume);
            }
        }
    }
    clear_here(shard, &clear, Some((slot, function)));
    shard.conns[slot].front.clears.push(PendingClear { tag: function, left, cause });
    shard.front.clearing = true;
    answer_cleared(shard);
}

/// Ends the commands on cleared volumes that this shard's sessions have sent by now. Those of the
/// connection that asked, if it is one of this shard's, are compared with its function.
pub(super) fn clear_here(shard: &mut Shard, clear: &Clear, asking: Option<(ConnId, Tag)>) {
    if clear.cause != Cause::ClearTaskSet {
        let volumes: Vec<VolumeId> = clear.volumes.iter().map(|it| it.volume).collect();
        shard.front.interrupt_copies(&volumes);
    }
    let slots: Vec<ConnId> = shard.conns.iter().map(|(slot, _)| slot).collect();
    for slot in slots {
        let Some(session) = &shard.conns[slot].front.session else { continue };
        let own = asking.filter(|(own, _)| *own == slot).map(|(_, function)| function);
        let concerned = session.luns.iter().enumerate();
        let cleared = |seen: &SessionLun| clear.volumes.iter().find(|it| it.volume == seen.volume);
        let concerned: Vec<(usize, u16, bool)> =
            concerned.filter_map(|(at, seen)| Some((at, seen.lun, cleared(seen)?.tells))).collect();
        let same_target = session.nexus.target == clear.target;
        let reached = !concerned.is_empty();
        for (at, lun, tells) in concerned {
            let aborted = match own {
                Some(function) => {
                    abort_older(shard, slot, function, |at| at == lun);
                    0
                }
                None => end_unit(shard, slot, lun, Ending::by_another(tells)),
            };
            if clear.cause != Cause::ClearTaskSet {
                shard.front.reset_copies(slot, lun);
            }
            let attention = match clear.cause {
                // Its commands have said so (SAM-5 5.14, COMMANDS CLEARED BY ANOTHER INITIATOR).
                Cause::ClearTaskSet if aborted == 0 || tells => continue,
                Cause::ClearTaskSet => Attention::CommandsCleared,
                Cause::Reset | Cause::ColdReset => Attention::BusDeviceReset,
            };
            if let Some(session) = &mut shard.conns[slot].front.session {
                session.luns[at].nexus.establish(attention);
            }
        }
        let ends = clear.cause == Cause::ColdReset && same_target && reached;
        if ends && own.is_none() {
            shard.drain(slot);
        }
    }
}

/// Answers the functions that all shards have done their part of. Returns whose connections they are.
pub(super) fn answer_cleared(shard: &mut Shard) -> Vec<ConnId> {
    let waits = |(_, conn): &(ConnId, &Conn)| !conn.front.clears.is_empty();
    let slots: Vec<ConnId> = shard.conns.iter().filter(waits).map(|(slot, _)| slot).collect();
    for slot in &slots {
        let conn = &mut shard.conns[*slot];
        let done = |clear: &PendingClear| clear.left.load(Ordering::Acquire) == 0;
        let (done, waiting) = std::mem::take(&mut conn.front.clears).into_iter().partition(done);
        conn.front.clears = waiting;
        let done: Vec<PendingClear> = done;
        for PendingClear { tag, cause, .. } in done {
            let conn = &mut shard.conns[*slot];
            conn.front.proto.respond_tmf(tag, TmfResponse::Complete, &mut Pdus(&mut conn.out));
            if cause == Cause::ColdReset {
                shard.drain(*slot);
            }
        }
        shard.touch(*slot);
    }
    shard.front.clearing = shard.conns.iter().any(|conn| waits(&conn));
    slots
}
