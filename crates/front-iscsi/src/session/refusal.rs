//! Logins that are refused: counted, held against the client, and logged.

use lunet_iscsi::pdu::LoginStatus;
use lunet_iscsi::printable::printable;
use lunet_server::refusals::Refusal;
use lunet_server::server::Handle;

use super::Shard;
use crate::engine::Engine;
use crate::site::Aim;
use crate::world::Exports;
use lunet_server::conn::ConnId;
use lunet_server::rationed::Topic;

/// The logins that were refused lately, the newest first. Names are made printable.
pub fn refusals(handle: &Handle<Engine>) -> Vec<Refusal> {
    handle.shared().refusals.list()
}

/// True if the target that a login was for is one for this machine alone, and the initiator is on another.
fn is_closed_to(shard: &Shard, slot: ConnId) -> bool {
    let conn = &shard.conns[slot];
    let name = conn.front.proto.login_identity().and_then(|id| id.target_name.as_deref());
    let found = name.and_then(|name| shard.front.world.find_target(name));
    found.is_some_and(|(_, target)| target.access.is_closed_to(conn.origin()))
}

/// A login was refused with this status.
pub(super) fn refused(shard: &mut Shard, slot: ConnId, status: u16) {
    let conn = &shard.conns[slot];
    let (peer, now) = (conn.peer.ip(), shard.front.exec.storage.now);
    let identity = conn.front.proto.login_identity();
    let count = &mut shard.front.protocol;
    count.login_failures += 1;
    let throttle = &shard.core.throttle;
    let known = LoginStatus::from_code(status);
    match known {
        Some(LoginStatus::AuthenticationFailure) => {
            count.login_auth_failures += 1;
            throttle.failed(peer, identity.map_or(Aim::Unknown, Aim::of), now);
        }
        Some(LoginStatus::NotFound) => {
            count.login_not_found += 1;
            throttle.failed(peer, Aim::Unknown, now);
        }
        Some(LoginStatus::AuthorizationFailure) => count.login_forbidden += 1,
        Some(LoginStatus::ServiceUnavailable) => count.login_throttled += 1,
        _ => {}
    }
    let why = match (conn.front.proto.authentication_error(), known) {
        (Some(error), _) => error.to_string(),
        (None, Some(LoginStatus::NotFound)) if is_closed_to(shard, slot) => {
            "the target says nothing of who may use it, so it is for this machine alone: let the \
             initiator in with `lunet target allow`, or everybody with `lunet target open`"
                .to_owned()
        }
        (None, Some(LoginStatus::NotFound)) => {
            "the target is not there, or not for this initiator".to_owned()
        }
        (None, Some(LoginStatus::AuthorizationFailure)) => {
            "discovery is not for this initiator".to_owned()
        }
        (None, Some(LoginStatus::ServiceUnavailable)) => {
            "too many failed logins from this address: it has to wait".to_owned()
        }
        (None, Some(status)) => format!("{status:?}"),
        (None, None) => String::new(),
    };
    // What a stranger sends is not printed as it is.
    let initiator = printable(identity.map_or("", |id| &id.initiator_name));
    let target = printable(identity.and_then(|id| id.target_name.as_deref()).unwrap_or_default());
    if let Some(unlogged) = shard.core.rations.grants(Topic::Refused, now) {
        tracing::warn!(
            ?initiator,
            ?target,
            peer = %conn.peer,
            status = format_args!("{status:#06x}"),
            unlogged,
            "login refused: {why}"
        );
    }
    let time = lunet_os::time::unix();
    let (client, export) = (initiator.to_string(), target.to_string());
    shard.core.front.refusals.add(Refusal { time, client, export, peer, why });
}
