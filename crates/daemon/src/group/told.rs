//! What a gateway knows of its group, as it is told to whoever asks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use lunet_api::{
    Code, GatewayState, GroupAccess, GroupGateway, GroupProtocol, GroupState, GroupVolume,
};
use lunet_gateway::{Condition, GatewayId, Refusal};
use lunet_group::{Handle, Status};
use lunet_os::sync::Mutex;

use super::relay::Counts;
use super::{Running, State, Waiting, lock, look};
use crate::live::{Served, is_full};
use lunet_config::image_of;

/// How long gateways are waited for that are asked whether they are there: longer than they have.
const ROLL: Duration = Duration::from_secs(9);
/// How long that is the answer to whoever asks.
const STILL: Duration = Duration::from_secs(1);

/// What is different when a gateway, or its group, is something else.
pub(super) const LISTS: &[&str] = &["groups"];
/// The same of another configuration.
pub(super) const ALL_LISTS: &[&str] =
    &["groups", "volumes", "targets", "portals", "sessions", "config"];

/// The gateways that were there, or why that is not known, and when that was found out.
pub(super) type Present =
    Option<(Instant, std::result::Result<Vec<GroupGateway>, lunet_api::Error>)>;

/// What an administrator has to know of a group, a sentence each. What has no cause any more is not there.
#[derive(Clone, Debug, Default)]
pub(super) struct Notices {
    /// The record is not there any more: all else is of no weight.
    pub(super) orphaned: Option<String>,
    /// Why there is no connection to its cluster.
    pub(super) trouble: Option<String>,
    /// Why the group is not taken over.
    pub(super) takeover: Option<String>,
    /// Two servers are one gateway.
    pub(super) twin: Option<String>,
    /// Why the group cannot have the volumes of its configuration.
    pub(super) not_had: Option<String>,
    /// Who would take over, as an owner knows it.
    pub(super) standbys: Standbys,
}

impl Notices {
    pub(super) const fn new() -> Self {
        Self {
            orphaned: None,
            trouble: None,
            takeover: None,
            twin: None,
            not_had: None,
            standbys: Standbys { heard: None, seen: Vec::new() },
        }
    }

    /// All of them, with what else there is to be said.
    fn all(&self, others: impl Iterator<Item = String>) -> Vec<String> {
        if let Some(orphaned) = &self.orphaned {
            return vec![orphaned.clone()];
        }
        let own = [&self.trouble, &self.takeover, &self.twin, &self.not_had];
        own.into_iter().flatten().cloned().chain(others).collect()
    }
}

/// The other gateways of a group, as its owner hears of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Standbys {
    /// Who has answered last; `None` if nobody was asked yet.
    heard: Option<Vec<u16>>,
    /// Who has answered since this gateway owns the group.
    seen: Vec<u16>,
}

impl Standbys {
    /// These have answered. True if they are others than before.
    pub(super) fn heard(&mut self, standbys: &[GatewayId]) -> bool {
        let mut heard: Vec<u16> = standbys.iter().map(|gateway| gateway.0).collect();
        heard.dedup();
        self.seen.extend(heard.iter().filter(|one| !self.seen.contains(one)).collect::<Vec<_>>());
        self.seen.sort_unstable();
        self.heard.replace(heard.clone()) != Some(heard)
    }

    /// Who is missing, of the gateways that the record was made for; all of these need not be there.
    pub(super) fn missing(&self, me: u16, known: &[u16]) -> Option<String> {
        let heard = self.heard.as_ref()?;
        let named = |all: Vec<u16>, or: &str| {
            let all: Vec<String> = all.iter().map(u16::to_string).collect();
            let (word, all) = (if all.len() == 1 { "gateway" } else { "gateways" }, all.join(or));
            format!("{word} {all}")
        };
        if heard.is_empty() {
            let others: Vec<u16> = known.iter().copied().filter(|one| *one != me).collect();
            return (!others.is_empty()).then(|| {
                format!(
                    "no standby is there, so nobody takes over if this gateway fails: start lunet on {}",
                    named(others, " or ")
                )
            });
        }
        let missing: Vec<u16> =
            self.seen.iter().copied().filter(|one| !heard.contains(one)).collect();
        (!missing.is_empty()).then(|| {
            let does = if missing.len() == 1 { "was there and does" } else { "were there and do" };
            format!(
                "{} {does} not answer any more: see whether lunet runs there, and to the network between there and the cluster",
                named(missing, ", ")
            )
        })
    }
}

/// What kind of refusal that of an order is.
pub(super) const fn code_of(why: &Refusal) -> Code {
    match why {
        Refusal::NotReady
        | Refusal::NoClient
        | Refusal::NoRecord
        | Refusal::Absent
        | Refusal::NoOwner
        | Refusal::Orphaned => Code::NotServed,
        Refusal::IsOwner | Refusal::NotOwner | Refusal::NoMore => Code::Unsupported,
        Refusal::Unknown => Code::NotFound,
        Refusal::NotDrained
        | Refusal::JobUnderWay
        | Refusal::Crowded
        | Refusal::Overtaken
        | Refusal::InTheWay => Code::Failed,
    }
}

impl Waiting {
    pub(super) fn told(&self) -> lunet_api::Group {
        let asked = || "its configuration is being read from the cluster".to_owned();
        let trouble = self.trouble.clone().unwrap_or_else(asked);
        lunet_api::Group {
            name: self.config.name.clone(),
            record: self.config.record.to_string(),
            gateway: self.config.gateway,
            state: GroupState::Fenced,
            notices: vec![trouble.clone()],
            trouble: Some(trouble),
            shared: true,
            ..lunet_api::Group::default()
        }
    }
}

impl Running {
    pub(super) fn told(&self, now: &Served) -> lunet_api::Group {
        let state = look(&self.state);
        let Status { condition, epoch, owner, heir } = &state.status;
        let (target, volumes) = volumes(now, &self.config.name);
        let protocols = self.protocols(&state);
        let missing = match condition {
            Condition::Owner => {
                state.notices.standbys.missing(self.config.gateway, &state.gateways)
            }
            _ => None,
        };
        // The address is that owner's.
        let aimed = owner.filter(|_| state.aimed == *epoch);
        let unreached = protocols.iter().filter_map(|one| not_reached(one, aimed));
        let full = volumes.iter().filter_map(|volume| {
            let open = now.open.get(&volume.name)?;
            Some(is_full(&lunet_backends::rbd::full(&open.volume)?))
        });
        let notices = state.notices.all(missing.into_iter().chain(unreached).chain(full));
        lunet_api::Group {
            name: self.config.name.clone(),
            record: self.config.record.to_string(),
            gateway: self.config.gateway,
            state: match condition {
                Condition::Fenced | Condition::Orphaned => GroupState::Fenced,
                Condition::Standby => GroupState::Standby,
                Condition::TakingOver => GroupState::TakingOver,
                Condition::Owner => GroupState::Owner,
                Condition::Moving => GroupState::Moving,
            },
            owner: owner.map(|owner| owner.0),
            heir: heir.map(|heir| heir.0),
            epoch: epoch.0,
            config: state.revision,
            trouble: notices.first().cloned(),
            notices,
            shared: self.config.shared,
            target,
            gateways: state.gateways.clone(),
            volumes,
            protocols,
            takeovers: state.takeovers,
            deposed: state.deposed,
        }
    }

    fn protocols(&self, state: &State) -> Vec<GroupProtocol> {
        let (iscsi, nvme) = &self.counts;
        let over_nvme =
            nvme.as_ref().map(|counts| protocol("nvme", state, state.owner.nvme, counts));
        let over_iscsi = protocol("iscsi", state, state.owner.iscsi, iscsi);
        std::iter::once(over_iscsi).chain(over_nvme).collect()
    }

    /// What its gateways are asked by.
    pub(super) fn roll(&self) -> Roll {
        Roll {
            name: self.config.name.clone(),
            known: look(&self.state).gateways.clone(),
            thread: self.group.handle(),
            present: self.present.clone(),
        }
    }
}

/// The target of a group and its volumes, as they are served.
fn volumes(now: &Served, group: &str) -> (Option<String>, Vec<GroupVolume>) {
    let config = &now.plan.config;
    let Some(own) = config.groups.iter().find(|one| one.name == group) else {
        return (None, Vec::new());
    };
    let Some(target) = config.targets.get(own.target) else { return (None, Vec::new()) };
    let volume = |(lun, at): &(u16, usize)| {
        let volume = config.volumes.get(*at)?;
        let (name, image) = (volume.name.clone(), image_of(volume)?.to_string());
        Some(GroupVolume { name, image, lun: *lun })
    };
    (Some(target.name.clone()), target.luns.iter().filter_map(volume).collect())
}

fn protocol(
    name: &str,
    state: &State,
    owner: Option<SocketAddr>,
    counts: &Counts,
) -> GroupProtocol {
    let (connections, commands) = counts.passed_on();
    let access = access(&state.status, owner, counts.are_down());
    let passes = matches!(access, GroupAccess::PassesOn | GroupAccess::OwnerNotReached);
    GroupProtocol {
        protocol: name.to_owned(),
        access,
        owner: owner.filter(|_| passes).map(|owner| owner.to_string()),
        connections,
        commands,
    }
}

/// What there is to be said of an owner that is not reached by commands which are passed on.
fn not_reached(protocol: &GroupProtocol, owner: Option<GatewayId>) -> Option<String> {
    let (GroupAccess::OwnerNotReached, Some(address), Some(GatewayId(owner))) =
        (&protocol.access, &protocol.owner, owner)
    else {
        return None;
    };
    let (name, key) = match protocol.protocol.as_str() {
        "nvme" => ("NVMe", "reach-nvme"),
        _ => ("iSCSI", "reach"),
    };
    Some(format!(
        "gateway {owner}, which owns the group, was not reached at {address} when commands were to be passed on over {name}: hosts that \
         reach this gateway alone are turned away; see to the network, or to `{key}` at gateway {owner}"
    ))
}

/// What a gateway does with commands, whose owner has this address for them.
fn access(status: &Status, owner: Option<SocketAddr>, down: bool) -> GroupAccess {
    match (status.condition, status.owner, owner) {
        (Condition::Owner, ..) => GroupAccess::Executes,
        (Condition::Standby, Some(_), Some(_)) if down => GroupAccess::OwnerNotReached,
        (Condition::Standby, Some(_), Some(_)) => GroupAccess::PassesOn,
        (Condition::Standby, Some(_), None) => GroupAccess::Refuses,
        _ => GroupAccess::Waits,
    }
}

/// What the gateways of a group are asked by.
pub(super) struct Roll {
    name: String,
    known: Vec<u16>,
    thread: Handle,
    present: Arc<Mutex<Present>>,
}

impl Roll {
    /// Asks them. Whoever asks meanwhile waits for this answer, and gets it too if there is none: a cluster that does not answer
    /// holds nobody up twice.
    ///
    /// # Errors
    /// The cluster does not answer.
    pub(super) fn call(self) -> Result<Vec<GroupGateway>> {
        let mut present = lock(&self.present);
        if let Some((at, known)) = &*present {
            if lunet_os::time::since(*at) < STILL {
                return Ok(known.clone()?);
            }
        }
        let answer = self.ask();
        *present = Some((lunet_os::time::now(), answer.clone()));
        Ok(answer?)
    }

    fn ask(&self) -> std::result::Result<Vec<GroupGateway>, lunet_api::Error> {
        let name = &self.name;
        let (code, why) = match self.thread.roll().recv_timeout(ROLL) {
            Ok(Ok(found)) => return Ok(listed(&self.known, &found)),
            Ok(Err(error)) => (Code::NotServed, error.to_string()),
            Err(_) => {
                let waited = ROLL.as_secs();
                (Code::NotAnswered, format!("its cluster has not answered within {waited} s"))
            }
        };
        let error = lunet_api::Error::new(code, format!("group {name}: {why}"));
        Err(error.fix("`lunet group list` says more"))
    }
}

/// Gateways of the record, with what those have said that are there.
fn listed(known: &[u16], found: &[lunet_group::Present]) -> Vec<GroupGateway> {
    let others = found.iter().map(|one| one.gateway.0).filter(|number| !known.contains(number));
    let mut numbers: Vec<u16> = known.iter().copied().chain(others).collect();
    numbers.sort_unstable();
    let told = |number: u16| {
        let Some(one) = found.iter().find(|one| one.gateway == GatewayId(number)) else {
            let (gateway, state) = (number, GatewayState::Silent);
            return GroupGateway { gateway, state, ..GroupGateway::default() };
        };
        GroupGateway {
            gateway: number,
            state: if one.owns { GatewayState::Owner } else { GatewayState::Standby },
            epoch: one.epoch.0,
            config: one.heard.as_ref().map(|heard| heard.revision),
            trouble: one.heard.as_ref().and_then(|heard| heard.trouble.clone()),
        }
    };
    numbers.into_iter().map(told).collect()
}

#[cfg(test)]
mod tests {
    use lunet_gateway::Epoch;
    use lunet_group::Heard;

    use super::*;

    #[test]
    fn what_a_gateway_does_with_commands_follows_from_what_it_is() {
        let status = |condition, owner: Option<u16>| {
            let (epoch, owner) = (Epoch(7), owner.map(GatewayId));
            Status { condition, epoch, owner, heir: None }
        };
        let portal = Some(([192, 0, 2, 1], 3260).into());
        for (condition, owner, portal, down, wanted) in [
            (Condition::Owner, Some(1), None, true, GroupAccess::Executes),
            (Condition::Standby, Some(1), portal, false, GroupAccess::PassesOn),
            (Condition::Standby, Some(1), portal, true, GroupAccess::OwnerNotReached),
            (Condition::Standby, Some(1), None, false, GroupAccess::Refuses),
            (Condition::Standby, None, portal, false, GroupAccess::Waits),
            (Condition::Fenced, Some(1), portal, false, GroupAccess::Waits),
            (Condition::Moving, Some(1), portal, false, GroupAccess::Waits),
        ] {
            assert_eq!(access(&status(condition, owner), portal, down), wanted, "{condition:?}");
        }
    }

    #[test]
    fn an_owner_without_a_standby_says_who_is_missing() {
        let mut standbys = Standbys::default();
        let all = [1, 2, 3];
        assert_eq!(standbys.missing(1, &all), None, "nobody was asked yet");
        assert!(standbys.heard(&[]));
        let why = standbys.missing(1, &all).unwrap();
        assert!(
            why.starts_with("no standby is there") && why.ends_with("gateways 2 or 3"),
            "{why}"
        );
        assert_eq!(standbys.missing(1, &[1]), None, "there is no other");
        assert!(standbys.heard(&[GatewayId(2), GatewayId(3)]));
        assert!(!standbys.heard(&[GatewayId(2), GatewayId(3)]));
        assert_eq!(standbys.missing(1, &all), None);
        assert!(standbys.heard(&[GatewayId(3)]));
        let why = standbys.missing(1, &all).unwrap();
        let told = "gateway 2 was there and does not answer any more: see whether lunet runs there";
        assert!(why.starts_with(told), "{why}");
    }

    #[test]
    fn a_gateway_without_its_record_says_nothing_else() {
        let text = |text: &str| Some(text.to_owned());
        let mut notices = Notices { trouble: text("a"), twin: text("b"), ..Notices::new() };
        let others = || ["c".to_owned()].into_iter();
        assert_eq!(notices.all(others()), ["a", "b", "c"]);
        notices.orphaned = text("d");
        assert_eq!(notices.all(others()), ["d"]);
    }

    #[test]
    fn an_owner_that_is_not_reached_is_named_with_its_address() {
        let protocol = |protocol: &str, access| GroupProtocol {
            protocol: protocol.into(),
            access,
            owner: Some("192.0.2.9:4420".into()),
            ..GroupProtocol::default()
        };
        let down = protocol("nvme", GroupAccess::OwnerNotReached);
        let why = not_reached(&down, Some(GatewayId(4))).unwrap();
        for part in ["gateway 4", "192.0.2.9:4420", "NVMe", "`reach-nvme`"] {
            assert!(why.contains(part), "{why}");
        }
        assert_eq!(
            not_reached(&protocol("iscsi", GroupAccess::PassesOn), Some(GatewayId(4))),
            None
        );
    }

    #[test]
    fn gateways_that_have_not_answered_are_silent_and_others_are_told_by_their_numbers() {
        let heard = Heard { gateway: GatewayId(9), revision: 8, trouble: Some("why".into()) };
        let present = |gateway, owns, heard| lunet_group::Present {
            gateway: GatewayId(gateway),
            owns,
            epoch: Epoch(5),
            heard,
        };
        let told = listed(&[1, 2], &[present(9, false, Some(heard)), present(2, true, None)]);
        let all: Vec<_> = told.iter().map(|one| (one.gateway, one.state.as_str())).collect();
        assert_eq!(all, [(1, "silent"), (2, "owner"), (9, "standby")]);
        assert_eq!((told[0].epoch, told[1].epoch, told[2].config), (0, 5, Some(8)));
        assert_eq!(told[2].trouble.as_deref(), Some("why"));
    }
}
