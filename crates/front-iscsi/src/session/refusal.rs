//! Logins that are refused: counted, held against the client, and logged.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::PoisonError;
use std::time::Duration;

use lunet_iscsi::pdu::LoginStatus;
use lunet_iscsi::printable::printable;
use lunet_os::sync::Mutex;
use lunet_server::server::Handle;

use super::Shard;
use crate::engine::Engine;
use crate::site::Aim;
use crate::world::Exports;
use lunet_server::conn::ConnId;
use lunet_server::rationed::Topic;

/// Refusals that are remembered.
const REMEMBERED: usize = 64;

/// Why a login was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// When, since 1970; of several alike, the last one.
    pub time: Duration,
    /// The initiator's name as it was sent, made printable.
    pub initiator: String,
    /// The target's, in the same way; empty for discovery.
    pub target: String,
    /// The initiator's address.
    pub peer: IpAddr,
    /// Why, in a sentence.
    pub why: String,
}

/// The last logins that were refused, the newest last.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<VecDeque<Refusal>>);

impl Refusals {
    /// Remembers one. Of several alike, one is remembered.
    fn add(&self, one: Refusal) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let alike = |old: &Refusal| Refusal { time: one.time, ..old.clone() } == one;
        if let Some(at) = all.iter().position(alike) {
            all.remove(at);
        } else if all.len() >= REMEMBERED {
            all.pop_front();
        }
        all.push_back(one);
    }
}

/// The logins that were refused lately, the newest first.
pub fn refusals(handle: &Handle<Engine>) -> Vec<Refusal> {
    let all = handle.shared().refusals.0.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter().rev().cloned().collect()
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
    let (initiator, target) = (initiator.to_string(), target.to_string());
    shard.core.front.refusals.add(Refusal { time, initiator, target, peer, why });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_refusals_are_remembered_and_those_alike_once() {
        let refusals = Refusals::default();
        let one = |time, initiator: u32| Refusal {
            time: Duration::from_secs(time),
            initiator: initiator.to_string(),
            target: "t".into(),
            peer: IpAddr::from([127, 0, 0, 1]),
            why: String::new(),
        };
        (0..100).for_each(|n| refusals.add(one(n, n as u32)));
        (100..200).for_each(|time| refusals.add(one(time, 50)));
        let all = refusals.0.lock().unwrap();
        assert_eq!(all.len(), REMEMBERED);
        assert_eq!(*all.back().unwrap(), one(199, 50));
        assert_eq!(all.iter().filter(|one| one.initiator == "50").count(), 1);
    }
}
