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
use std::time::Duration;

use lunet_gateway::Admission;
use lunet_iscsi::pdu::{TmfFunction, TmfResponse};
use lunet_iscsi::target::{Response, Tag};
use lunet_scsi::{Attention, Lun, Sense, SenseFormat, status};
use lunet_volume::VolumeId;

use super::{Conn, Pdus, PendingClear, SessionLun, Shard};
use crate::connection::{Function, WaitingFunction};
use crate::group::{Relay, RelayRequest, Relays};
use crate::message::{Cause, Clear, Cleared, Message, Part};
use crate::reservations;
use lunet_server::conn::ConnId;

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

/// For how long a function waits for the way to the owner of a failover group, as commands do, and between two attempts.
const WAITS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_millis(100));

/// A task management function has arrived.
pub(super) fn manage(shard: &mut Shard, slot: ConnId, function: Function) {
    let until = shard.front.exec.storage.now + WAITS.0;
    begin(shard, slot, function, until);
}

/// Functions of a connection that wait for the way to the owner are tried again: all of them, or those whose time has come.
pub(super) fn try_again(shard: &mut Shard, slot: ConnId, all: bool) {
    let now = shard.front.exec.storage.now;
    let Some(conn) = shard.conns.get_mut(slot) else { return };
    let due = |waiting: &WaitingFunction| all || waiting.again <= now;
    let (due, waiting) = std::mem::take(&mut conn.front.functions).into_iter().partition(due);
    conn.front.functions = waiting;
    let due: Vec<WaitingFunction> = due;
    for WaitingFunction { function, until, .. } in due {
        begin(shard, slot, function, until);
    }
}

fn begin(shard: &mut Shard, slot: ConnId, function: Function, until: Duration) {
    let owner = match share_of_owner(shard, slot, &function) {
        Share::None => None,
        Share::Part(owner) => Some(owner),
        Share::Later if shard.front.exec.storage.now < until => {
            let again = shard.front.exec.storage.now + WAITS.1;
            let waiting = WaitingFunction { function, again, until };
            shard.conns[slot].front.functions.push(waiting);
            return shard.touch(slot);
        }
        Share::Later | Share::Refused => {
            return respond(shard, slot, (function.tag, TmfResponse::Rejected));
        }
    };
    let Some(response) = carry_out(shard, slot, &function, owner.clone()) else { return };
    if let Some(owner) = owner.filter(|_| response == TmfResponse::Complete) {
        let (left, relay) = (Arc::new(AtomicUsize::new(1)), Some(owner.relay));
        owner.asks(Part::new(&left, &shard.core.mailboxes()[shard.number]));
        let clear = PendingClear { tag: function.tag, left, cause: Cause::ClearTaskSet, relay };
        shard.conns[slot].front.clears.push(clear);
        shard.front.clearing = true;
        return;
    }
    respond(shard, slot, (function.tag, response));
}

fn respond(shard: &mut Shard, slot: ConnId, (tag, response): (Tag, TmfResponse)) {
    let conn = &mut shard.conns[slot];
    conn.front.proto.respond_tmf(tag, response, &mut Pdus(&mut conn.out));
    shard.touch(slot);
}

/// Does with the commands of this gateway what a function says. `None`: it is answered later.
fn carry_out(
    shard: &mut Shard,
    slot: ConnId,
    function: &Function,
    owner: Option<OwnersPart>,
) -> Option<TmfResponse> {
    let unit = unit_of(shard, slot, function.lun);
    Some(match function.function {
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
                let asks = (slot, function.tag);
                return clear_everywhere(shard, asks, [volume].into(), cause, owner);
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
    })
}

/// The owner's part of a function, at a standby: what it has of commands ends there, and the answer waits for that.
#[derive(Clone)]
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

/// What the owner of a failover group has to do for a function.
enum Share {
    /// Nothing: there is none, it is this gateway, or it has nothing of what the function ends.
    None,
    /// This.
    Part(OwnersPart),
    /// Something, when it is reached.
    Later,
    /// Something, and it is not reached, or has too much to do.
    Refused,
}

/// What the owner has to do for a function: commands of all hosts are there, and of this connection those that it has.
fn share_of_owner(shard: &mut Shard, slot: ConnId, function: &Function) -> Share {
    let own = matches!(function.function, TmfFunction::AbortTask | TmfFunction::AbortTaskSet);
    let reaches = match function.function {
        TmfFunction::ClearTaskSet | TmfFunction::LogicalUnitReset => {
            unit_of(shard, slot, function.lun).is_some()
        }
        TmfFunction::TargetWarmReset | TmfFunction::TargetColdReset => may_reset(shard, slot),
        _ => own,
    };
    let conn = &shard.conns[slot];
    let ticket = function.referenced.and_then(|tag| shard.front.ticket_of(conn, tag));
    let gated = conn.front.session.as_ref().and_then(|session| session.gated.as_ref());
    let group = gated.and_then(|gated| shard.front.groups.get(gated.group));
    let (Some(gated), Some(group)) = (gated, group.filter(|_| reaches)) else { return Share::None };
    if !group.gate.is_through() {
        return match group.gate.admits(gated.now()) {
            Admission::Standby if !own => Share::Refused,
            Admission::Busy if !own && !group.gate.is_open() => Share::Later,
            _ => Share::None,
        };
    }
    let Some(relays) = group.relays.clone() else { return Share::None };
    let relay = match gated.relay {
        Relay::Asked(number) | Relay::Open(number, _) => Some(number),
        Relay::None | Relay::Opening(_) => None,
    };
    let nothing = match function.function {
        TmfFunction::AbortTask => ticket.is_none(),
        _ => own && relay.is_none(),
    };
    if nothing {
        return Share::None;
    }
    if conn.front.clears.len() + conn.front.functions.len() >= MAX_CLEARS {
        return Share::Refused;
    }
    let Some(relay) = relay else {
        if relays.down.load(Ordering::Relaxed) {
            return Share::Refused;
        }
        let Shard { front, conns, .. } = shard;
        front.open_relay(&mut conns[slot], &relays);
        return Share::Later;
    };
    let lun = function.lun;
    let function = match function.function {
        // What there is of sessions at other gateways stays.
        TmfFunction::TargetColdReset => TmfFunction::TargetWarmReset,
        other => other,
    };
    Share::Part(OwnersPart { relays, relay, function, lun, ticket })
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
) -> Option<TmfResponse> {
    shard.front.asked.retain(|left| left.load(Ordering::Acquire) > 0);
    let conn = &mut shard.conns[slot];
    if conn.front.clears.len() >= MAX_CLEARS || shard.front.asked.len() >= MAX_ASKED {
        return Some(TmfResponse::Rejected);
    }
    // What standbys have of commands, or a network, is ended with those that are here.
    let gated = conn.front.session.as_ref().and_then(|session| session.gated.as_ref());
    let group = gated.and_then(|gated| shard.front.groups.get(gated.group));
    group.iter().for_each(|group| group.ways.renew());
    let mailboxes = shard.core.mailboxes();
    let number = shard.number;
    let others = || mailboxes.iter().enumerate().filter(|(other, _)| *other != number);
    let parts = others().count() + usize::from(owner.is_some());
    let left = Arc::new(AtomicUsize::new(parts));
    let relay = owner.as_ref().map(|owner| owner.relay);
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
    shard.conns[slot].front.clears.push(PendingClear { tag: function, left, cause, relay });
    shard.front.clearing = true;
    answer_cleared(shard);
    None
}

/// Ends the commands on cleared volumes that this shard's sessions have sent by now. Those of the
/// connection that asked, if it is one of this shard's, are compared with its function.
pub(super) fn clear_here(shard: &mut Shard, clear: &Clear, asking: Option<(ConnId, Tag)>) {
    if clear.cause != Cause::ClearTaskSet {
        let volumes: Vec<VolumeId> = clear.volumes.iter().map(|it| it.volume).collect();
        shard.front.interrupt_copies(&volumes);
    }
    let slots: Vec<ConnId> = shard.conns.iter().map(|(slot, _)| slot).collect();
    let mut slots = slots.into_iter();
    while let Some(slot) = shard.conns.next_of(&mut slots) {
        let Some(session) = &shard.conns[slot].front.session else { continue };
        let own = asking.filter(|(own, _)| *own == slot).map(|(_, function)| function);
        let concerned = session.luns.iter().enumerate();
        let cleared = |seen: &SessionLun| clear.volumes.iter().find(|it| it.volume == seen.volume);
        let concerned: Vec<(usize, u16, bool)> =
            concerned.filter_map(|(at, seen)| Some((at, seen.lun, cleared(seen)?.tells))).collect();
        // The session of a host at another gateway stays, and it hears of the reset there.
        let is_here = session.through.is_none();
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
        let ends = clear.cause == Cause::ColdReset && is_here && same_target && reached;
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
        // One that ends may have ended others.
        if shard.conns.get(*slot).is_none() {
            continue;
        }
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
