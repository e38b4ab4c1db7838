//! Messages between the shards of a server.

use lunet_nvme::command::Completion;
use lunet_nvme::controller::Tag;
use lunet_nvme::status::Status;
use lunet_server::conn::{ConnId, Phase};
use lunet_server::places::ConnRef;
use lunet_volume::Face;

use super::connect::connect_again;
use super::{Shard, admin, authenticate, group, secure};
use crate::connection::{Pdus, complete};
use crate::message::{Message, Preempted};

/// A message to the front of this shard.
pub(super) fn message<Fc: Face>(shard: &mut Shard<Fc>, message: Message) {
    match message {
        Message::EndQueue { connection, aborted } => match shard.find(connection) {
            Some(slot) if aborted => shard.abort(slot),
            Some(slot) => shard.disconnect(slot),
            None => {}
        },
        Message::QueuesGone { connection } => queues_gone(shard, connection),
        Message::Retry { connection } => connect_again(shard, connection),
        Message::Abort { connection, cid, asks } => abort(shard, connection, cid, asks),
        Message::Aborted { connection, tag, done } => {
            if let Some(slot) = shard.find(connection) {
                complete(&mut shard.conns[slot], tag, Completion::with(u64::from(!done)));
                shard.touch(slot);
            }
        }
        Message::Paths { connection } => {
            if let Some(slot) = shard.find(connection) {
                admin::look_at_paths(shard, slot);
            }
        }
        Message::PathsChanged => {
            shard.core.front.looks_at_paths();
            let admins = shard.conns.iter().filter(|(_, conn)| conn.front.admin.is_some());
            let admins: Vec<ConnId> = admins.map(|(slot, _)| slot).collect();
            admins.into_iter().for_each(|slot| admin::look_at_paths(shard, slot));
        }
        Message::Computed { connection, tag, computed } => {
            authenticate::computed(shard, connection, tag, computed);
        }
        Message::Exchanged { connection, exchanged } => {
            secure::exchanged(shard, connection, exchanged);
        }
        Message::Lost { connection, volume, notice } => {
            let Some(slot) = shard.find(connection) else { return };
            let conn = &mut shard.conns[slot];
            let queue = conn.front.queue.as_ref();
            queue.into_iter().for_each(|queue| queue.member.loss_told());
            let namespaces = queue.map_or(&[][..], |queue| &queue.namespaces);
            let nsids = namespaces.iter().filter(|seen| seen.volume == volume);
            let nsids: Vec<u32> = nsids.map(|seen| seen.nsid).collect();
            if let Some(admin) = &mut conn.front.admin {
                nsids.into_iter().for_each(|nsid| admin.lost(nsid, notice));
            }
            admin::after(shard, slot);
        }
        Message::Preempted(preempted) => {
            end_preempted(shard, &preempted);
            // Tells who waits.
            drop(preempted.receipt);
        }
        Message::Part { ticket } => shard.front.part_done(&mut shard.conns, ticket),
        Message::Kept { ticket, result } => {
            shard.front.reservation_kept(&mut shard.conns, ticket, result);
        }
        Message::Group(message) => group::carry_out(shard, message),
        Message::Relay(news) => group::relay_news(shard, news),
    }
}

/// A controller that is being reset may be ready for that.
fn queues_gone<Fc: Face>(shard: &mut Shard<Fc>, connection: u64) {
    let Some(slot) = shard.find(connection) else { return };
    let conn = &mut shard.conns[slot];
    let Some(cntlid) = conn.front.queue.as_ref().map(|queue| queue.member.cntlid) else { return };
    // The host may have made others since.
    if !shard.core.front.registry.queues(cntlid).is_empty() {
        return;
    }
    if let Some(admin) = &mut conn.front.admin {
        admin.controller.reset_done();
        if std::mem::take(&mut admin.ends_queues) {
            admin.flushed();
        }
    }
    admin::after(shard, slot);
}

/// A host wants a command of a queue of this shard to be aborted.
fn abort<Fc: Face>(shard: &mut Shard<Fc>, connection: u64, cid: u16, (asks, tag): (ConnRef, Tag)) {
    let done = shard.find(connection).is_some_and(|slot| {
        let conn = &mut shard.conns[slot];
        if let Some(tag) = conn.front.proto.find(cid) {
            if shard.front.end_held(conn, tag, Status::ABORTED) {
                shard.touch(slot);
                return true;
            }
            return end_command(shard, slot, tag, Status::ABORTED);
        }
        let held = conn.front.proto.abort_first(cid, &mut Pdus(&mut conn.out));
        if held {
            shard.touch(slot);
        }
        held
    });
    let message = Message::Aborted { connection: asks.connection, tag, done };
    shard.core.mailboxes()[asks.shard].tell(message);
}

/// Ends a command that has not taken effect, and with it the other one of its pair. True if it was there to be ended.
pub(super) fn end_command<Fc: Face>(
    shard: &mut Shard<Fc>,
    slot: ConnId,
    tag: Tag,
    status: Status,
) -> bool {
    let conn = &mut shard.conns[slot];
    let Some(id) = conn.front.task(tag) else { return false };
    let Some(task) = shard.front.exec.operations.get(id) else { return false };
    let Some(owner) = task.command.owner.filter(|_| !task.command.has_taken_effect()) else {
        return false;
    };
    shard.front.abandon(id);
    for tag in std::iter::once(owner.tag).chain(owner.second) {
        conn.front.set_task(tag, None);
        complete(conn, tag, status);
    }
    shard.touch(slot);
    true
}

/// Ends the commands of hosts that were preempted at a volume.
fn end_preempted<Fc: Face>(shard: &mut Shard<Fc>, preempted: &Preempted) {
    let mut ended = Vec::new();
    for (slot, conn) in shard.conns.iter().filter(|(_, conn)| conn.phase == Phase::Open) {
        let Some(queue) = &conn.front.queue else { continue };
        if !preempted.hosts.contains(&queue.member.registrant) {
            continue;
        }
        let operations = &shard.front.exec.operations;
        let tasks = conn.front.tasks.iter().flatten().filter_map(|id| operations.get(*id));
        let at_volume = tasks.filter(|task| task.requests.volume == preempted.volume);
        let owners = at_volume.filter_map(|task| task.command.owner.map(|owner| owner.tag));
        let others = owners.filter(|tag| Some((conn.serial, *tag)) != preempted.spared);
        ended.extend(others.map(|tag| (slot, tag)));
    }
    for (slot, tag) in ended {
        end_command(shard, slot, tag, Status::PREEMPTED);
    }
    shard.front.take_answers(&mut shard.conns);
}
