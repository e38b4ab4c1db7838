//! Orders of a failover group's thread, on one shard.

use std::sync::Arc;

use lunet_gateway::Gate;
use lunet_iscsi::target::{Asked, Tag};
use lunet_scsi::status;

use super::Shard;
use super::events::log_out;
use super::management::{Ending, end_command, try_again};
use crate::engine::TurnedBack;
use crate::group::{Gated, Group, GroupId, GroupMessage, News, Order, Relay, RelayNews, ask};
use crate::message::Message;
use lunet_server::conn::ConnId;
use lunet_server::part::Part;

/// Carries an order out.
pub(super) fn carry_out(shard: &mut Shard, message: GroupMessage) {
    let GroupMessage { group, order, part } = message;
    match order {
        Order::Begin { targets, gate, ways } => {
            let mailbox = shard.core.mailboxes()[shard.number].clone();
            let news: RelayNews = Arc::new(move |news| mailbox.tell(Message::Relay(news)));
            begin(shard, Group::new((group, targets), gate, ways, news), group);
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
            if let Some(group) = shard.front.groups.get_mut(group) {
                group.drains.push(part);
            }
            return shard.front.look_drained();
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
            shard.front.let_go_held(&mut shard.conns, volume);
        }
        Order::Marked(volumes) => {
            if let Some(group) = shard.front.groups.get_mut(group) {
                group.marked = volumes;
            }
        }
        Order::Ports(ports) => {
            if let Some(group) = shard.front.groups.get_mut(group) {
                group.ports = ports;
            }
            for slot in connections(shard, group) {
                if let Some(session) = &mut shard.conns[slot].front.session {
                    shard.front.groups.show(&mut session.scsi);
                }
            }
        }
    }
    shard.front.take_answers(&mut shard.conns);
    // Tells who waits.
    drop(part);
}

/// The connections of a group that have a session.
fn connections(shard: &Shard, group: GroupId) -> Vec<ConnId> {
    let of = |gated: &Gated| gated.group == group;
    let all = shard.conns.iter().filter(|(_, conn)| {
        let session = conn.front.session.as_ref();
        session.and_then(|session| session.gated.as_deref()).is_some_and(of)
    });
    all.map(|(slot, _)| slot).collect()
}

/// There is a group, and sessions of its targets may be there.
fn begin(shard: &mut Shard, group: Group, id: GroupId) {
    let gate = group.gate;
    let slots: Vec<ConnId> = shard.conns.iter().map(|(slot, _)| slot).collect();
    for slot in slots {
        let Some(session) = &mut shard.conns[slot].front.session else { continue };
        if session.nexus.target.is_some() && group.has(&session.id.port.target) {
            session.gated = Some(Box::new(Gated::new(&group, &session.nexus)));
        }
    }
    shard.front.groups.add(group);
    set_gate(shard, id, gate);
}

/// The gate of a group has changed: what waits and has not been begun is asked once more, and if it has opened, connections
/// of an earlier epoch are pinged.
fn set_gate(shard: &mut Shard, group: GroupId, gate: Gate) {
    let Some(known) = shard.front.groups.get_mut(group) else { return };
    let goes_on = gate.is_through() && known.gate.epoch() == gate.epoch();
    if known.gate.epoch() != gate.epoch() {
        known.not_ready.clear();
    }
    known.gate = gate;
    if gate.is_open() {
        known.give_up_drains();
    }
    for slot in connections(shard, group) {
        // One that ends may let another one go on, whose login ends others.
        let session = shard.conns.get(slot).and_then(|conn| conn.front.session.as_ref());
        let Some((session, gated)) = session.and_then(|it| Some((it, it.gated.as_ref()?))) else {
            continue;
        };
        if session.through.is_some() && !gated.is_served_by(&gate) {
            shard.abort(slot);
            continue;
        }
        if !goes_on && gated.relay != Relay::None {
            end_relay(shard, slot);
        }
        let session = shard.conns.get(slot).and_then(|conn| conn.front.session.as_ref());
        let Some(gated) = session.and_then(|session| session.gated.as_ref()) else { continue };
        // All that was begun before was let in by the gate as it was, with a stamp of its epoch at the latest.
        let Some(turned) = TurnedBack::by(gate.admits(gated.now())) else { continue };
        turn_back(shard, slot, turned);
        if gate.is_open() && shard.conns.get(slot).is_some() {
            let now = shard.front.exec.storage.now;
            ask(&mut shard.conns[slot], now, &gate);
        }
        shard.touch(slot);
    }
}

/// Ends the commands of a connection that have not been begun.
fn turn_back(shard: &mut Shard, slot: ConnId, turned: TurnedBack) {
    let ending = match turned {
        TurnedBack::Busy => Ending::Status(status::BUSY),
        TurnedBack::Standby(sense) => Ending::Sense(sense),
    };
    let waiting = shard.conns[slot].front.tasks.iter().flatten();
    let waiting = waiting.filter(|task| shard.front.waits_to_begin(**task));
    let tags: Vec<Tag> = waiting.filter_map(|task| shard.front.tag_of(*task)).collect();
    for tag in tags {
        end_command(shard, slot, tag, ending);
    }
}

/// The relay of a connection ends with its epoch. Nobody knows what becomes of commands that have gone by it: nothing is said.
fn end_relay(shard: &mut Shard, slot: ConnId) {
    let conn = &mut shard.conns[slot];
    if let Some(session) = &mut conn.front.session {
        shard.front.close_relay(session);
        session.gated.iter_mut().for_each(|gated| gated.relay = Relay::None);
    }
    if shard.front.passed_on(conn, None) > 0 {
        return shard.abort(slot);
    }
    shard.front.turn_back_relayed(conn, None);
    shard.touch(slot);
}

/// Something has become of what was passed on.
pub(super) fn relay_news(shard: &mut Shard, news: News) {
    let (number, opened) = match news {
        News::Answered(ticket, answered) => {
            let slot = shard.front.relay_answers(&mut shard.conns, ticket, answered);
            slot.into_iter().for_each(|slot| log_out(shard, slot));
            return;
        }
        News::Opened(number) => (number, true),
        News::Stale(number) => (number, false),
        News::Ended(number) => {
            relay_ended(shard, number);
            (number, false)
        }
    };
    let of = |gated: &Gated| gated.relay.number() == Some(number);
    let found = shard.conns.iter().find(|(_, conn)| {
        let session = conn.front.session.as_ref();
        session.and_then(|session| session.gated.as_deref()).is_some_and(of)
    });
    let Some(slot) = found.map(|(slot, _)| slot) else { return };
    let session = shard.conns[slot].front.session.as_mut();
    let Some(gated) = session.and_then(|session| session.gated.as_mut()) else { return };
    gated.relay = if opened { Relay::Asked(number) } else { Relay::None };
    let group = gated.group;
    let gate = shard.front.groups.get(group).map(|group| group.gate);
    if let Some(gate) = gate.filter(|_| opened) {
        let now = shard.front.exec.storage.now;
        ask(&mut shard.conns[slot], now, &gate);
        try_again(shard, slot, true);
    }
    shard.touch(slot);
}

/// A relay has ended. Nobody knows what becomes of commands and functions that have gone by it: nothing is said. Commands that
/// have not are to be sent again.
fn relay_ended(shard: &mut Shard, number: u64) {
    let slots: Vec<ConnId> = shard.conns.iter().map(|(slot, _)| slot).collect();
    for slot in slots {
        let Some(conn) = shard.conns.get_mut(slot) else { continue };
        let manages = conn.front.clears.iter().any(|clear| clear.relay == Some(number));
        if manages || shard.front.passed_on(conn, Some(number)) > 0 {
            shard.abort(slot);
            continue;
        }
        shard.front.turn_back_relayed(conn, Some(number));
    }
}

/// The answer to a ping has come.
pub(super) fn answered(shard: &mut Shard, slot: ConnId, asked: Asked, answers: u32) {
    let session = shard.conns[slot].front.session.as_mut();
    let Some(gated) = session.and_then(|session| session.gated.as_mut()) else { return };
    gated.answered(asked, answers);
    let gate = shard.front.groups.get(gated.group).map(|group| group.gate);
    if let Some(gate) = gate.filter(|_| gated.take_again()) {
        let now = shard.front.exec.storage.now;
        ask(&mut shard.conns[slot], now, &gate);
        shard.touch(slot);
    }
}

/// Aborts the connections of a group. The part of whoever waits is done when their sockets are closed.
fn abort(shard: &mut Shard, group: GroupId, part: &Part) {
    let mut slots = connections(shard, group).into_iter();
    while let Some(slot) = shard.conns.next_of(&mut slots) {
        shard.conns[slot].front.aborted = Some(part.clone());
        shard.abort(slot);
    }
}
