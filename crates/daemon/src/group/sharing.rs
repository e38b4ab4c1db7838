//! What the gateways of a group share of their configuration: between the cluster and what is served here.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::Result;
use lunet_api::Code;
use lunet_gateway::{GatewayId, Outcome, Refusal};
use lunet_group::{Error, Handle, Heard, Said, Shared, Shares};
use lunet_os::sync::Mutex;

use super::{Running, State, look, told};
use crate::audit::Listener;
use crate::copies;
use crate::live::{Clusters, Everywhere, Manager};
use crate::trouble::refuse;
use lunet_config as config;

/// How long the cluster has to take a change. Longer, and nobody knows whether it has.
const WRITE: Duration = Duration::from_secs(10);
/// How long other gateways are waited for, longer than the notify that they answer.
const TELL: Duration = Duration::from_secs(8);
/// How much longer than its time an order to the owner is waited for: a notify may be late.
const ASKED: Duration = Duration::from_secs(5);
/// For how long an owner is waited for: longer than a planned move, and a move of an owner to itself, which a new size is.
const PAUSE: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(100);

/// Takes over what other gateways change.
pub(super) struct Taker {
    pub(super) group: String,
    pub(super) manager: Arc<Manager>,
    pub(super) state: Arc<Mutex<State>>,
    /// Is told of another configuration.
    pub(super) listener: Listener,
}

impl Shares for Taker {
    fn generation(&self) -> u64 {
        self.manager.generation()
    }

    fn take(&self, since: u64, shared: Shared) -> Result<bool, Said> {
        let shared = copies::here(&self.group, shared);
        let taken = self.manager.take_shared(since, shared);
        let taken = taken.map_err(|error| Said(format!("{error:#}")));
        if let Ok(true) = taken {
            let now = revision(&self.manager, &self.group);
            let before = std::mem::replace(&mut look(&self.state).revision, now);
            if before != now {
                self.listener.differs(told::ALL_LISTS);
            }
        }
        taken
    }

    fn revision(&self) -> u64 {
        revision(&self.manager, &self.group).unwrap_or_default()
    }
}

/// The revision that is served of a group.
pub(super) fn revision(manager: &Manager, group: &str) -> Option<u64> {
    let now = manager.now();
    now.plan.shared.iter().find(|one| one.group == group).map(|one| one.revision)
}

fn gone(group: &str) -> anyhow::Error {
    let error = lunet_api::Error::new(Code::NotServed, format!("group {group} does not run"));
    error.fix("`lunet group list` shows what there is: try again when it runs").into()
}

/// The clusters of the groups that run.
pub(super) struct Writers(pub(super) Weak<Mutex<Vec<Running>>>);

impl Writers {
    /// Who owns a group, as far as is known here.
    fn owner(&self, group: &str) -> Option<GatewayId> {
        let all = self.0.upgrade()?;
        let all = super::lock(&all);
        let own = all.iter().find(|one| one.config.name == group)?;
        look(&own.state).status.owner
    }

    /// The group's thread, which has the client that its cluster is asked by.
    fn thread(&self, group: &str) -> Option<Handle> {
        let all = self.0.upgrade()?;
        let all = super::lock(&all);
        all.iter().find(|one| one.config.name == group).map(|one| one.group.handle())
    }
}

impl Writers {
    /// Asks the cluster of a group something before it is changed.
    fn asks<T>(
        &self,
        group: &str,
        what: impl FnOnce(&Handle) -> Receiver<Result<T, Error>>,
    ) -> Result<T> {
        let thread = self.thread(group).ok_or_else(|| gone(group))?;
        match what(&thread).recv_timeout(WRITE) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error @ Error::NoClient)) => refuse(
                Code::NotServed,
                format!("group {group}: {error}, so its configuration cannot be changed from here"),
                "`lunet group list` says why",
            ),
            Ok(Err(error)) => refuse(
                Code::Failed,
                format!("group {group}: {error}"),
                "`lunet group list` says more; nothing was changed",
            ),
            Err(_) => refuse(
                Code::NotAnswered,
                format!(
                    "the cluster of group {group} has not answered within {} s: nothing was changed",
                    WRITE.as_secs()
                ),
                "`ceph -s` says why, such as a full pool; try again when it answers",
            ),
        }
    }
}

impl Clusters for Writers {
    fn look_at(&self, group: &str, images: Vec<String>) -> Result<()> {
        if images.is_empty() {
            return Ok(());
        }
        self.asks(group, |thread| thread.look_at(images))
    }

    fn revision(&self, group: &str) -> Result<u64> {
        self.asks(group, Handle::revision)
    }

    fn write(&self, shared: &config::Shared) -> Result<()> {
        let (group, revision) = (&shared.group, shared.revision);
        let thread = self.thread(group).ok_or_else(|| gone(group))?;
        let fix = format!("`lunet group config {group}` shows it");
        match thread.write_shared(copies::there(shared)).recv_timeout(WRITE) {
            Ok(Ok(())) => {
                if let Some(all) = self.0.upgrade() {
                    let all = super::lock(&all);
                    let own = all.iter().find(|one| one.config.name == *group);
                    own.iter().for_each(|one| look(&one.state).revision = Some(revision));
                }
                Ok(())
            }
            Ok(Err(Error::Changed)) => refuse(
                Code::ChangedByHand,
                format!("the configuration of group {group} was changed meanwhile"),
                format!("{fix} as it is now, within seconds"),
            ),
            Ok(Err(error @ Error::NoClient)) => refuse(
                Code::NotServed,
                format!("group {group}: {error}, so its configuration cannot be changed from here"),
                "`lunet group list` says why",
            ),
            Ok(Err(error)) => refuse(Code::Failed, format!("group {group}: {error}"), fix),
            Err(RecvTimeoutError::Timeout) => refuse(
                Code::NotAnswered,
                format!(
                    "the cluster of group {group} has not answered within {} s: it is not known whether revision {revision} is there",
                    WRITE.as_secs()
                ),
                format!("`ceph -s` says why, such as a full pool; {fix}, when the cluster answers"),
            ),
            Err(RecvTimeoutError::Disconnected) => {
                refuse(Code::Failed, format!("group {group} has ended meanwhile"), fix)
            }
        }
    }

    fn job(&self, group: &str, body: Vec<u8>, limit: Duration) -> Result<Vec<u8>> {
        let thread = self.thread(group).ok_or_else(|| gone(group))?;
        let until = lunet_os::time::now() + PAUSE;
        let outcome = loop {
            let outcome = thread.job(body.clone(), limit).recv_timeout(limit + ASKED);
            // Nothing was done, and in a moment somebody does it.
            let passes =
                matches!(outcome, Ok(Outcome::Refused(Refusal::NoOwner | Refusal::NotReady)));
            if !passes || lunet_os::time::now() >= until {
                break outcome;
            }
            lunet_os::thread::sleep(AGAIN);
        };
        match outcome {
            Ok(Outcome::Answer(answer)) => Ok(answer),
            Ok(Outcome::Refused(refusal)) => refuse(
                Code::NotServed,
                format!("group {group}: nothing was done: {refusal}"),
                refusal.next(),
            ),
            Ok(Outcome::Unknown) | Err(RecvTimeoutError::Timeout) => refuse(
                Code::NotAnswered,
                format!(
                    "the owner of group {group} has not answered: it may have been done, or be done yet"
                ),
                "`lunet group list` shows who owns it, `lunet volume list` and `lunet volume snapshots` what is there",
            ),
            Err(RecvTimeoutError::Disconnected) => {
                let next = "`lunet group list` shows whether it runs: try again when it does";
                refuse(Code::Failed, format!("group {group} has ended meanwhile"), next)
            }
        }
    }

    fn tell(&self, shared: &config::Shared) -> Everywhere {
        let told = self.thread(&shared.group).map(|thread| thread.tell_of_shared());
        let unknown = |said: String| Everywhere { said: vec![said], all: false };
        match told.and_then(|told| told.recv_timeout(TELL).ok()) {
            Some(Ok((heard, missing))) => {
                let mut told = in_words(&heard, missing, shared.revision);
                let owner = self.owner(&shared.group).and_then(|owner| of_owner(owner, &heard));
                told.all &= owner.is_none();
                told.said.extend(owner);
                told
            }
            Some(Err(error)) => unknown(format!("{error}: they find the revision within seconds")),
            None => unknown(
                "other gateways were not told: they find the revision within seconds".into(),
            ),
        }
    }
}

/// What there is to be said of an owner that has not taken part: nobody waits for one that has a file of its own.
fn of_owner(owner: GatewayId, heard: &[Heard]) -> Option<String> {
    let GatewayId(number) = owner;
    heard.iter().all(|one| one.gateway != owner).then(|| {
        format!(
            "gateway {number}, which owns the group, is not among them: it may go on by other rules, as one does whose file does \
             not say `shared = true` yet; restart it with such a file, or shut it out with `lunet group take-over` at another one"
        )
    })
}

/// What the gateways have said to a revision. `missing`: how long one was waited for that has said nothing.
fn in_words(heard: &[Heard], missing: Option<Duration>, revision: u64) -> Everywhere {
    let serves = |one: &&Heard| one.revision >= revision && one.trouble.is_none();
    let serving: Vec<String> =
        heard.iter().filter(serves).map(|one| one.gateway.0.to_string()).collect();
    let everywhere = missing.is_none() && serving.len() == heard.len();
    let mut out = vec![format!("gateways that serve by it: {}", serving.join(", "))];
    out.extend(heard.iter().filter(|one| !serves(one)).map(|one| {
        let why = one.trouble.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        format!("gateway {} serves nothing of the group{why}", one.gateway.0)
    }));
    out.extend(missing.map(|waited| {
        format!(
            "a gateway has not answered within {} s: if it is the owner it may go on by the revision before until it does; `lunet \
             group take-over` at another one shuts it out",
            waited.as_secs()
        )
    }));
    Everywhere { said: out, all: everywhere }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_gateways_have_said_is_told() {
        let heard = |gateway, revision, trouble: Option<&str>| Heard {
            gateway: GatewayId(gateway),
            revision,
            trouble: trouble.map(str::to_owned),
        };
        let all = [heard(1, 8, None), heard(2, 7, Some("why")), heard(3, 9, None)];
        let told = in_words(&all, None, 8);
        assert_eq!(
            told.said,
            ["gateways that serve by it: 1, 3", "gateway 2 serves nothing of the group: why"]
        );
        assert!(!told.all && in_words(&all[..1], None, 8).all);
        let told = in_words(&all[..1], Some(Duration::from_secs(1)), 8);
        assert!(told.said[1].starts_with("a gateway has not answered within 1 s"), "{told:?}");
        assert!(!told.all);
        assert_eq!(of_owner(GatewayId(3), &all), None);
        let told = of_owner(GatewayId(4), &all).unwrap_or_default();
        assert!(told.starts_with("gateway 4, which owns the group, is not among them"), "{told}");
    }
}
