//! What the protocol of a connection asks its shard for, and how a connection ends.

use lunet_iscsi::target::{CloseReason, Event, RdmaFault};

use super::admission::login;
use super::group::answered;
use super::management::manage;
use super::refusal::refused;
use super::{Shard, drive};
use crate::connection::Function;
use lunet_server::conn::{ConnId, Phase};
use lunet_server::rationed::Topic;

/// Does what the protocol asks for.
pub(super) fn handle_events(shard: &mut Shard, slot: ConnId) {
    let Some(conn) = shard.conns.get_mut(slot) else { return };
    let mut events = std::mem::take(&mut conn.front.events);
    for event in events.drain(..) {
        let Some(conn) = shard.conns.get_mut(slot) else { break };
        if conn.phase == Phase::Closed {
            break;
        }
        lunet_os::met(&event);
        match event {
            // A function that came before its last data may have ended it.
            Event::Command(command) if !conn.front.proto.is_pending(command.tag) => {}
            Event::Command(command) => shard.front.command(conn, slot, command),
            Event::Data { tag, offset, len, buf } => {
                if let Some(task) = conn.front.task(tag) {
                    shard.front.data_arrived(conn, task, (offset, len), buf);
                }
            }
            Event::LoginFinished(identity) => login(shard, slot, identity),
            Event::TransferFailed { tag, error } => {
                if let Some(task) = conn.front.task(tag) {
                    shard.front.transfer_failed(conn, task, error);
                }
            }
            Event::TaskManagement { tag, function, lun, referenced } => {
                manage(shard, slot, Function { tag, function, lun, referenced });
            }
            Event::Answered { asked, answers } => answered(shard, slot, asked, answers),
            Event::Close(reason) => close(shard, slot, reason),
        }
    }
    if let Some(conn) = shard.conns.get_mut(slot) {
        conn.front.events = events;
    }
    shard.front.take_answers(&mut shard.conns);
    shard.touch(slot);
    log_out(shard, slot);
}

/// Goes on with a Logout that came behind commands and functions: what could be answered of them is,
/// and no function is at work any more. What the owner of a failover group has is answered first: it may be executed until
/// then.
pub(super) fn log_out(shard: &mut Shard, slot: ConnId) {
    let Some(conn) = shard.conns.get_mut(slot) else { return };
    let ready = conn.phase == Phase::Open && conn.front.proto.logs_out();
    if ready && shard.front.passed_on(conn, None) == 0 {
        let Some(conn) = shard.conns.get_mut(slot) else { return };
        drive(conn, &shard.front, |proto, cx| proto.log_out(cx));
        handle_events(shard, slot);
    }
}

/// The protocol asks to close: what is queued is sent first, unless the client is gone.
pub(super) fn close(shard: &mut Shard, slot: ConnId, reason: CloseReason) {
    lunet_os::met(&reason);
    let Some(conn) = shard.conns.get_mut(slot) else { return };
    match reason {
        CloseReason::LoggedOut
        | CloseReason::LogoutTimeout
        | CloseReason::Rdma(RdmaFault::Disconnected) => {}
        CloseReason::LoginRefused(status) => {
            refused(shard, slot, status);
            return shard.drain(slot);
        }
        _ => shard.front.protocol.dropped += 1,
    }
    if conn.front.session.as_ref().is_some_and(|session| session.logged) {
        tracing::info!(peer = %conn.peer, %reason, "connection closes");
    } else if let Some(unlogged) =
        shard.core.rations.grants(Topic::Unfinished, shard.front.exec.storage.now)
    {
        // Strangers cannot fill the log.
        tracing::info!(peer = %conn.peer, %reason, unlogged, "connection closes");
    }
    let gone = matches!(
        reason,
        CloseReason::PingTimeout
            | CloseReason::DataTimeout
            | CloseReason::OutputTimeout
            | CloseReason::KeepsLockWaiting
            | CloseReason::Rdma(_)
    );
    if gone {
        // Nobody is there to take what is queued.
        return shard.disconnect(slot);
    }
    shard.drain(slot);
}
