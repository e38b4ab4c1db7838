//! What the protocol of a connection asks its shard for, and how a connection ends.

use lunet_nvme::command::FABRICS;
use lunet_nvme::controller::{CloseReason, Event};
use lunet_nvme::status::Status;
use lunet_server::conn::{ConnId, Phase};
use lunet_server::rationed::Topic;
use lunet_volume::Face;

use super::connect::connect;
use super::{Shard, admin, authenticate};
use crate::connection::complete;

/// Does what the protocol asks for.
pub(super) fn handle_events<Fc: Face>(shard: &mut Shard<Fc>, slot: ConnId) {
    let Some(conn) = shard.conns.get_mut(slot) else { return };
    let mut events = std::mem::take(&mut conn.front.events);
    for event in events.drain(..) {
        let Some(conn) = shard.conns.get_mut(slot) else { break };
        if conn.phase == Phase::Closed {
            break;
        }
        lunet_os::met(&event);
        match event {
            Event::Connect(asked) => connect(shard, slot, asked),
            Event::Command(command) if conn.front.auth.is_some() => {
                authenticate::command(shard, slot, command);
            }
            Event::Command(command) if authenticate::is_message(&command) => {
                authenticate::again(shard, slot, command);
            }
            Event::Command(command) if conn.front.admin.is_some() => {
                admin::command(shard, slot, command);
            }
            // Properties are the admin queue's.
            Event::Command(command) if command.sqe.opcode == FABRICS => {
                complete(conn, command.tag, Status::INVALID_OPCODE.no_retry());
            }
            Event::Command(command) => shard.front.command(conn, slot, command),
            Event::Data { tag, offset, len, buf } => {
                shard.front.data_arrived(conn, tag, (offset, len), buf);
            }
            Event::TransferFailed { tag } => shard.front.transfer_failed(conn, tag),
            Event::Close(reason) => close(shard, slot, reason),
        }
    }
    if let Some(conn) = shard.conns.get_mut(slot) {
        conn.front.events = events;
    }
    shard.front.take_answers(&mut shard.conns);
    shard.touch(slot);
}

/// The protocol asks to close: what is queued is sent first, unless the host is gone.
pub(super) fn close<Fc: Face>(shard: &mut Shard<Fc>, slot: ConnId, reason: CloseReason) {
    lunet_os::met(&reason);
    let Some(conn) = shard.conns.get_mut(slot) else { return };
    shard.front.protocol.dropped += u64::from(reason != CloseReason::Ended);
    if conn.front.queue.as_ref().is_some_and(|queue| queue.logged) {
        tracing::info!(peer = %conn.peer, %reason, "connection closes");
    } else if let Some(unlogged) =
        shard.core.rations.grants(Topic::Unfinished, shard.front.exec.storage.now)
    {
        // Strangers cannot fill the log.
        tracing::info!(peer = %conn.peer, %reason, unlogged, "connection closes");
    }
    match reason {
        // Nobody is there to take what is queued.
        CloseReason::DataTimeout => shard.disconnect(slot),
        _ => shard.drain(slot),
    }
}
