//! Orders of a failover group's thread, on one shard.

use std::sync::Arc;

use lunet_gateway::{Admission, Gate, GatewayId};
use lunet_nvme::controller::Tag;
use lunet_server::conn::ConnId;
use lunet_server::part::Part;
use lunet_volume::Face;

use super::messages::end_command;
use super::{Conn, Shard, admin};
use crate::group::{Gated, Group, GroupId, GroupMessage, News, Order, Relay, RelayNews};
use crate::message::Message;
use lunet_nvme::status::Status;

/// Carries an order out.
pub(super) fn carry_out<Fc: Face>(shard: &mut Shard<Fc>, message: GroupMessage) {
    let GroupMessage { group, order, part } = message;
    match order {
        Order::Begin { members, gate, ways } => {
            let mailbox = shard.core.mailboxes()[shard.number].clone();
            let news: RelayNews = Arc::new(move |news| mailbox.tell(Message::Relay(news)));
            begin(shard, Group::new((group, members), gate, ways, news), group);
        }
        Order::Relays(relays) => {
            if let Some(group) = shard.front.groups.get_mut(group) {
                group.relays = Some(relays);
            }
        }
        Order::Gate(gate) => set_gate(shard, group, gate),
        Order::StopAnswering(gate) => {
            if let Some(group) = shard.front.groups.get_mut(group) {
                group.gate = gate;
                group.give_up_drains();
                group.held.clear();
            }
            abort(shard, group, &part);
            shard.front.give_up_group(group);
        }
        Order::Abort => abort(shard, group, &part),
        Order::Drain => {
            match shard.front.groups.get_mut(group) {
                // The order may have waited for shards of another protocol, and its gate has opened meanwhile.
                Some(group) if group.gate.is_open() => part.give_up(),
                Some(group) => group.drains.push(part),
                None => {}
            }
            return shard.front.look_drained();
        }
        Order::Access(state) => {
            if let Some(group) = shard.front.groups.get_mut(group) {
                group.access = Some(state);
            }
            look_at_paths(shard, group);
        }
        Order::Requests(takes) => {
            if let Some(group) = shard.front.groups.get_mut(group) {
                group.takes = Some(takes);
            }
        }
        Order::Answer(id, said) => {
            if let Some(slot) = shard.front.group_answers(&mut shard.conns, id, said) {
                shard.abort(slot);
            }
        }
        Order::Hold(volume) => {
            if let Some(group) = shard.front.groups.get_mut(group) {
                group.held.push(volume);
            }
        }
        Order::LetGo(volume) => {
            if let Some(group) = shard.front.groups.get_mut(group) {
                group.held.retain(|held| *held != volume);
            }
            shard.front.go_on_held(&mut shard.conns, |_, waits| waits == Some(volume));
        }
    }
    shard.front.take_answers(&mut shard.conns);
    // Tells who waits.
    drop(part);
}

/// The connections of a group's controllers.
fn connections<Fc: Face>(shard: &Shard<Fc>, group: GroupId) -> Vec<ConnId> {
    let of = |gated: &Gated| gated.group == group;
    let all = shard.conns.iter().filter(|(_, conn)| conn.front.gated.as_deref().is_some_and(of));
    all.map(|(slot, _)| slot).collect()
}

/// There is a group, and queues of its subsystems may be there.
fn begin<Fc: Face>(shard: &mut Shard<Fc>, group: Group, id: GroupId) {
    let gate = group.gate;
    let slots: Vec<ConnId> = shard.conns.iter().map(|(slot, _)| slot).collect();
    for slot in slots {
        let front = &mut shard.conns[slot].front;
        let Some(queue) = &front.queue else { continue };
        if queue.subsystem.as_ref().is_some_and(|subsystem| group.has(&subsystem.nqn)) {
            let through = front.through.map(|through| GatewayId(through.gateway));
            front.gated = Some(Box::new(Gated::new(&group, &queue.member.host.nqn, through)));
        }
    }
    shard.front.groups.add(group);
    set_gate(shard, id, gate);
}

/// The gate of a group has changed: what waits and has not been begun is asked once more.
fn set_gate<Fc: Face>(shard: &mut Shard<Fc>, group: GroupId, gate: Gate) {
    let Some(known) = shard.front.groups.get_mut(group) else { return };
    let goes_on = gate.is_through() && known.gate.epoch() == gate.epoch();
    known.gate = gate;
    let refusal = if known.is_closed() { known.refusal() } else { Status::ANA_TRANSITION };
    if gate.is_open() {
        known.give_up_drains();
    }
    for slot in connections(shard, group) {
        // One that ends may have ended others, as all queues of a controller end together.
        let gated = shard.conns.get(slot).and_then(|conn| conn.front.gated.as_ref());
        let Some(gated) = gated else { continue };
        if gated.is_relay && !gated.is_served_by(&gate) {
            shard.abort(slot);
            continue;
        }
        if !goes_on && gated.relay != Relay::None {
            end_relay(shard, slot);
        }
        let gated = shard.conns.get(slot).and_then(|conn| conn.front.gated.as_ref());
        let Some(gated) = gated else { continue };
        // All that was begun before was let in by the gate as it was, with a stamp of its epoch at the latest.
        if gate.admits(gated.now()) != Admission::Execute {
            turn_back(shard, slot, refusal);
        }
        shard.touch(slot);
    }
    let of = |gated: &Gated| gated.group == group;
    shard.front.go_on_held(&mut shard.conns, |conn, _| conn.front.gated.as_deref().is_some_and(of));
    look_at_paths(shard, group);
}

/// Ends the commands of a connection that have not been begun.
fn turn_back<Fc: Face>(shard: &mut Shard<Fc>, slot: ConnId, status: Status) {
    let front = &shard.front;
    let waiting = shard.conns[slot].front.tasks.iter().flatten();
    let waiting = waiting.filter(|task| front.waits_to_begin(**task));
    let owner = |task| Some(front.exec.operations.get(task)?.command.owner?.tag);
    let mut tags: Vec<Tag> = waiting.filter_map(|task| owner(*task)).collect();
    // Both commands of a pair have one task.
    tags.dedup();
    for tag in tags {
        end_command(shard, slot, tag, status);
    }
}

/// The relay of a queue ends with its epoch. Nobody knows what becomes of commands that have gone by it: nothing is said.
fn end_relay<Fc: Face>(shard: &mut Shard<Fc>, slot: ConnId) {
    let conn = &mut shard.conns[slot];
    shard.front.close_relay(conn);
    if shard.front.relayed_of(conn, None) > 0 {
        shard.abort(slot);
    }
}

/// Something has become of what was passed on.
pub(super) fn relay_news<Fc: Face>(shard: &mut Shard<Fc>, news: News) {
    let (number, next, ended) = match news {
        News::Answered(ticket, answered) => {
            shard.front.relay_answers(&mut shard.conns, ticket, answered);
            return shard.front.take_answers(&mut shard.conns);
        }
        News::Opened(number) => (number, Relay::Asked(number), false),
        News::Stale(number) => (number, Relay::None, false),
        News::Ended(number) => {
            let lost = |(slot, conn): (ConnId, &Conn)| {
                (shard.front.relayed_of(conn, Some(number)) > 0).then_some(slot)
            };
            let lost: Vec<ConnId> = shard.conns.iter().filter_map(lost).collect();
            lost.into_iter().for_each(|slot| shard.abort(slot));
            (number, Relay::None, true)
        }
    };
    let of = |gated: &Gated| gated.relay.number() == Some(number);
    let is = |conn: &Conn| conn.front.gated.as_deref().is_some_and(of);
    let found = shard.conns.iter().find(|(_, conn)| is(conn)).map(|(slot, _)| slot);
    let Some(slot) = found else { return };
    let conn = &mut shard.conns[slot];
    conn.front.gated.iter_mut().for_each(|gated| gated.relay = next);
    if ended {
        let status = shard.front.unreached(conn);
        shard.front.turn_back_held(conn, status);
    } else {
        let serial = conn.serial;
        let of = |conn: &Conn| conn.serial == serial;
        shard.front.go_on_held(&mut shard.conns, |conn, waits| waits.is_none() && of(conn));
    }
    shard.touch(slot);
    shard.front.take_answers(&mut shard.conns);
}

/// Tells hosts of other states.
fn look_at_paths<Fc: Face>(shard: &mut Shard<Fc>, group: GroupId) {
    for slot in connections(shard, group) {
        if shard.conns.get(slot).is_some_and(|conn| conn.front.admin.is_some()) {
            admin::look_at_paths(shard, slot);
        }
    }
}

/// Aborts the connections of a group. The part of whoever waits is done when their sockets are closed.
fn abort<Fc: Face>(shard: &mut Shard<Fc>, group: GroupId, part: &Part) {
    let mut slots = connections(shard, group).into_iter();
    while let Some(slot) = shard.conns.next_of(&mut slots) {
        shard.conns[slot].front.aborted.push(part.clone());
        shard.abort(slot);
    }
}
