//! Failover groups: this server is a gateway of each. A group has a thread of its own ([`lunet_group`]); what that wants of
//! the server goes to all shards, before it goes on.

mod agreement;
mod fronts;
mod serving;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lunet_api::{Code, Done, GroupState};
use lunet_front_iscsi::Handle;
use lunet_gateway::{Condition, Epoch, Gateway, GatewayId, Order};
use lunet_group::{Agrees, Said, Status};
use lunet_os::sync::{Mutex, MutexGuard};

use self::agreement::{Expected, record_of};
use self::fronts::Fronts;
use self::serving::Server;
use crate::config::{Config, Group};
use crate::identity::Machine;
use crate::live::Manager;
use crate::second;
use crate::trouble::refuse;

/// Makes the record of a group of the configuration, for so many gateways. Blocks until the cluster answers.
///
/// # Errors
/// There is no such group, it has a record already, or the cluster's.
pub fn create(config: &Config, name: &str, gateways: u16) -> Result<()> {
    let group = config.groups.iter().find(|group| group.name == name);
    let group = group.with_context(|| format!("the configuration has no [group.{name}]"))?;
    if group.gateway > gateways {
        bail!("this gateway has number {}: name at least as many gateways", group.gateway);
    }
    let machine = Machine::unkept().context("cannot get random numbers")?;
    let record = record_of(config, group, &machine, gateways);
    lunet_group::create(&group.place(), &record).with_context(|| format!("group {name}"))
}

/// How long the end of an order is waited for: a move waits for some seconds where a gateway has died. A client waits longer.
const PATIENCE: Duration = Duration::from_secs(12);
/// How often it is looked for.
const LOOK: Duration = Duration::from_millis(20);

/// What is known of a group.
struct State {
    status: Status,
    /// Why there is no connection to its cluster.
    trouble: Option<String>,
    /// What an administrator has to do.
    notice: Option<String>,
    /// Why the latest order was not carried out.
    refused: Option<String>,
}

/// Whether the server is about to end.
#[derive(Clone, Default)]
struct Ending(Arc<AtomicBool>);

impl Ending {
    fn is_near(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A group that runs.
struct Running {
    config: Group,
    state: Arc<Mutex<State>>,
    group: lunet_group::Group,
}

/// All groups of a server.
#[derive(Default)]
pub struct Groups {
    all: Mutex<Vec<Running>>,
    ending: Ending,
}

impl Groups {
    /// Starts the groups of a configuration. Nothing of them is served before one owns its group.
    ///
    /// # Errors
    /// A target cannot be a group's, or there is no thread.
    pub fn start(
        config: &Config,
        (iscsi, nvme): (&Handle, Option<&second::Handle>),
        manager: &Arc<Manager>,
    ) -> Result<Self> {
        let groups = Self::default();
        for group in &config.groups {
            let running = start(config, group, (iscsi, nvme, manager), &groups.ending)
                .with_context(|| format!("group {}", group.name))?;
            groups.all().push(running);
        }
        Ok(groups)
    }

    fn all(&self) -> MutexGuard<'_, Vec<Running>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of each group.
    pub fn list(&self) -> Vec<lunet_api::Group> {
        self.all().iter().map(Running::told).collect()
    }

    /// Has a group do something, and waits a while for its end.
    ///
    /// # Errors
    /// There is no such group, or the order is not carried out.
    pub fn order(&self, name: &str, to: Option<u16>) -> Result<Done> {
        let (state, me) = {
            let all = self.all();
            let Some(running) = all.iter().find(|running| running.config.name == name) else {
                return refuse(
                    Code::NotFound,
                    format!("there is no group \"{name}\""),
                    "`lunet group list` shows what there is",
                );
            };
            let (state, me) = (running.state.clone(), running.config.gateway);
            look(&state).refused = None;
            if look(&state).status.owner == Some(GatewayId(to.unwrap_or(me))) {
                let owner = to.unwrap_or(me);
                return refuse(
                    Code::Unsupported,
                    format!("gateway {owner} owns group {name} already"),
                    "",
                );
            }
            let order = to.map_or(Order::TakeOver, |to| Order::MoveTo(GatewayId(to)));
            running.group.handle().order(order);
            (state, me)
        };
        let owner = to.unwrap_or(me);
        let until = lunet_os::time::now() + PATIENCE;
        while lunet_os::time::now() < until {
            let state = look(&state);
            if let Some(why) = &state.refused {
                return refuse(Code::Failed, format!("group {name} stays where it is: {why}"), "");
            }
            if state.status.owner == Some(GatewayId(owner)) {
                let done =
                    format!("gateway {owner} owns group {name}, in epoch {}", state.status.epoch.0);
                return Ok(Done { done, ..Done::default() });
            }
            drop(state);
            lunet_os::thread::sleep(LOOK);
        }
        let done = format!(
            "group {name} is to go to gateway {owner}, and has not come there yet: `lunet group list` says more"
        );
        Ok(Done { done, ..Done::default() })
    }

    /// Ends all groups: their connections are aborted, and locks are given back.
    pub fn end(&self) {
        self.ending.0.store(true, Ordering::Release);
        let all = std::mem::take(&mut *self.all());
        drop(all);
    }
}

fn look(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Running {
    fn told(&self) -> lunet_api::Group {
        let state = look(&self.state);
        let Status { condition, epoch, owner, heir } = &state.status;
        lunet_api::Group {
            name: self.config.name.clone(),
            record: self.config.record.to_string(),
            gateway: self.config.gateway,
            state: match condition {
                Condition::Fenced => GroupState::Fenced,
                Condition::Standby => GroupState::Standby,
                Condition::TakingOver => GroupState::TakingOver,
                Condition::Owner => GroupState::Owner,
                Condition::Moving => GroupState::Moving,
            },
            owner: owner.map(|owner| owner.0),
            heir: heir.map(|heir| heir.0),
            epoch: epoch.0,
            trouble: state.trouble.clone().or_else(|| state.notice.clone()),
        }
    }
}

/// A status in words, for the log.
fn told(status: &Status) -> String {
    let is = match status.condition {
        Condition::Fenced => "has no connection to the cluster",
        Condition::Standby => "is a standby",
        Condition::TakingOver => "takes the group over",
        Condition::Owner => "owns the group",
        Condition::Moving => "gives the group away",
    };
    let owner = status.owner.map_or("nobody".to_owned(), |owner| format!("gateway {}", owner.0));
    format!("this gateway {is}; epoch {}, owned by {owner}", status.epoch.0)
}

fn start(
    config: &Config,
    group: &Group,
    (iscsi, nvme, manager): (&Handle, Option<&second::Handle>, &Arc<Manager>),
    ending: &Ending,
) -> Result<Running> {
    let target = config.targets[group.target].name.as_str();
    let me = lunet_gateway::Config { me: GatewayId(group.gateway), rank: group.rank };
    // One that has just started has a closed gate.
    let gate = Gateway::new(me, Duration::ZERO).gate();
    let subsystem = config.nvme.of_target(target).map(|subsystem| subsystem.nqn.as_str());
    let shards = Fronts::begin((iscsi, target), nvme.zip(subsystem), me.me, gate)?;
    let none = Status { condition: Condition::Fenced, epoch: Epoch(0), owner: None, heir: None };
    let state = State { status: none, trouble: None, notice: None, refused: None };
    let state = Arc::new(Mutex::new(state));
    let expected = Arc::new(Expected::new(config, group));
    let agrees = {
        let expected = expected.clone();
        Agrees::new(move |record| expected.agrees(record).map_err(Said))
    };
    let (name, manager, ending, seen) =
        (group.name.clone(), manager.clone(), ending.clone(), state.clone());
    let serving = move |thread: lunet_group::Handle| {
        shards.take_requests(&thread);
        Server {
            name,
            expected,
            shards,
            manager,
            state: seen,
            ending,
            thread,
            volumes: Vec::new(),
            client: None,
            ports: Vec::new(),
            unanswered: Vec::new(),
            contents: Arc::default(),
            keeping: None,
        }
    };
    let wanted = lunet_group::Config { group: group.place(), gateway: me, agrees, shared: None };
    let running = lunet_group::Group::start(wanted, serving).context("cannot start its thread")?;
    Ok(Running { config: group.clone(), state, group: running })
}
