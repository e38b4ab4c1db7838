//! Failover groups: this server is a gateway of each. A group has a thread of its own ([`lunet_group`]); what that wants of
//! the server goes to all shards, before it goes on.

mod agreement;
mod fronts;
mod jobs;
mod relay;
mod serving;
mod sharing;
mod told;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lunet_api::{Code, Done};
use lunet_front_iscsi::Handle;
use lunet_gateway::{Condition, Epoch, Gateway, GatewayId, Order, Portals, Refusal};
use lunet_group::{Agrees, Said, Shares, Status};
use lunet_os::sync::{Mutex, MutexGuard};

use self::agreement::{Expected, record_of};
use self::fronts::{Fronts, Relays};
use self::serving::Server;
use self::sharing::{Taker, Writers};
use crate::audit::Listener;
use crate::copies;
use crate::identity::Machine;
use crate::live::{Manager, Served};
use crate::second::Second;
use crate::trouble::refuse;
use lunet_config::{self as config, Config, Group, Pending};

/// Makes the record of a group of the configuration, for so many gateways, and writes what they share into the cluster, if
/// they share something. A group that has a record gets that alone, if it has none. Says what was done. Blocks until the
/// cluster answers.
///
/// # Errors
/// There is no such group, it is there already, what it would share does not agree with its record, or the cluster's.
pub fn create(
    config: &Config,
    name: &str,
    gateways: u16,
    shared: Option<&config::Shared>,
) -> Result<String> {
    let group = config.groups.iter().find(|group| group.name == name);
    let group = group.with_context(|| format!("the configuration has no [group.{name}]"))?;
    if group.gateway > gateways {
        bail!("this gateway has number {}: name at least as many gateways", group.gateway);
    }
    let (place, of_group) = (group.place(), || format!("group {name}"));
    let done = format!("group {name} is there, for gateways 1 to {gateways}");
    let machine = Machine::unkept().context("cannot get random numbers")?;
    let mut secret = [0; 32];
    lunet_os::random::fill(&mut secret).context("cannot get random numbers")?;
    let record = record_of(config, group, &machine, secret, gateways);
    let Some(shared) = shared else {
        lunet_group::create(&place, record).with_context(of_group)?;
        return Ok(done);
    };
    let there = lunet_group::read_shared(&place).with_context(of_group)?;
    let next = |revision| lunet_group::Shared { revision, text: shared.text.clone() };
    match lunet_group::read(&place) {
        // What a group of before has left is replaced. The configuration first: a record alone is a group that cannot start.
        Err(lunet_group::Error::None(_)) => {
            let revision = there.map_or(1, |there| there.revision + 1);
            lunet_group::write_shared(&place, &next(revision)).with_context(of_group)?;
            lunet_group::create(&place, record).with_context(of_group)?;
            Ok(done)
        }
        Err(error) => Err(error).with_context(of_group),
        Ok(_) if there.is_some() => {
            bail!(
                "group {name} is there already: change its configuration with `lunet group config {name} --set FILE`"
            )
        }
        Ok(record) => {
            if let Err(why) = Expected::new(config, group).agrees(&record) {
                bail!(
                    "group {name} has a record, and the configuration does not agree with it: {why}"
                );
            }
            lunet_group::write_shared(&place, &next(1)).with_context(of_group)?;
            Ok(format!(
                "group {name} has a record already; its configuration is in the cluster now"
            ))
        }
    }
}

/// What the gateways of a group share, with its secrets, as the cluster has it. Blocks until that answers.
///
/// # Errors
/// There is no such group, it shares nothing, or the cluster's.
pub fn read_config(config: &Config, name: &str) -> Result<lunet_group::Shared> {
    let pending = config.pending.iter().find(|group| group.name == name).map(Pending::place);
    let place = pending
        .with_context(|| format!("the configuration has no [group.{name}] with `shared = true`"))?;
    let found = lunet_group::read_shared(&place).with_context(|| format!("group {name}"))?;
    found.with_context(|| format!("group {name} has no configuration in the cluster"))
}

/// How long the end of an order is waited for: a move waits for some seconds where a gateway has died. A client waits longer.
const PATIENCE: Duration = Duration::from_secs(12);
/// How soon a cluster is asked again for what gateways share.
const AGAIN: Duration = Duration::from_secs(1);
/// Orders that were not carried out are remembered up to this number.
const REFUSED: usize = 16;
/// How often it is looked for.
const LOOK: Duration = Duration::from_millis(20);

/// What is known of a group.
struct State {
    status: Status,
    /// What an administrator has to know.
    notices: told::Notices,
    /// Orders that somebody waits for, each as often as it was given.
    orders: Vec<Order>,
    /// Orders that were not carried out, and why: the latest ones.
    refused: VecDeque<(Order, Refusal)>,
    /// The revision of the configuration in the cluster that is served.
    revision: Option<u64>,
    /// The gateways that the record was made for.
    gateways: Vec<u16>,
    /// Where commands are passed on to, as long as another gateway owns the group.
    owner: Portals,
    /// In which epoch, which may be a later one than that of the status.
    aimed: Epoch,
    /// How often this gateway has become the owner.
    takeovers: u64,
    /// How often its connections were reset, as it owns the group no more.
    deposed: u64,
}

impl State {
    /// Of a gateway that has just started, by this revision.
    const fn new(revision: Option<u64>) -> Self {
        let (condition, epoch) = (Condition::Fenced, Epoch(0));
        Self {
            status: Status { condition, epoch, owner: None, heir: None },
            notices: told::Notices::new(),
            orders: Vec::new(),
            refused: VecDeque::new(),
            revision,
            gateways: Vec::new(),
            owner: Portals { iscsi: None, nvme: None },
            aimed: Epoch(0),
            takeovers: 0,
            deposed: 0,
        }
    }
}

/// A group of which it is not known yet what its gateways share.
struct Waiting {
    config: Pending,
    /// Why it is not known.
    trouble: Option<String>,
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
    /// What is passed on over iSCSI, and over NVMe if the group is served so.
    counts: (Arc<relay::Counts>, Option<Arc<relay::Counts>>),
    /// Who was there, and when that was asked last.
    present: Arc<Mutex<told::Present>>,
}

/// All groups of a server.
#[derive(Default)]
pub struct Groups {
    all: Arc<Mutex<Vec<Running>>>,
    waiting: Arc<Mutex<Vec<Waiting>>>,
    ending: Ending,
    listener: Listener,
}

/// What a group is started with, when what its gateways share is known.
struct Starter {
    iscsi: Handle,
    nvme: Arc<Second>,
    manager: Weak<Manager>,
    listener: Listener,
    all: Arc<Mutex<Vec<Running>>>,
    waiting: Arc<Mutex<Vec<Waiting>>>,
    ending: Ending,
}

impl Starter {
    /// Asks the cluster for what the gateways of a group share, until it is known and the group runs, or the server ends.
    fn wait(&self, group: &Pending) {
        while !self.ending.is_near() {
            match self.begin(group) {
                Ok(()) => return,
                Err(error) => self.told(group, format!("{error:#}")),
            }
            let until = lunet_os::time::now() + AGAIN;
            while lunet_os::time::now() < until && !self.ending.is_near() {
                lunet_os::thread::sleep(LOOK);
            }
        }
    }

    /// Keeps why a group does not run yet, and logs it when it is something new.
    fn told(&self, group: &Pending, trouble: String) {
        let mut waiting = lock(&self.waiting);
        let mut all = waiting.iter_mut();
        let Some(one) = all.find(|one| one.config.name == group.name) else { return };
        if one.trouble.as_ref() != Some(&trouble) {
            tracing::error!(group = %group.name, "not served: {trouble}");
            one.trouble = Some(trouble);
            self.listener.differs(told::LISTS);
        }
    }

    fn begin(&self, group: &Pending) -> Result<()> {
        let found = lunet_group::read_shared(&group.place())
            .context("its configuration is not known here")?
            .with_context(|| {
                let name = &group.name;
                format!("its configuration is not in the cluster: `lunet group create {name} --shared FILE` writes it")
            })?;
        let Some(manager) = self.manager.upgrade() else { return Ok(()) };
        let shared = copies::here(&group.name, found);
        if manager.now().plan.config.pending.contains(group) {
            let served = manager.begin_sharing(&shared);
            served.with_context(|| format!("revision {} of its configuration", shared.revision))?;
        }
        let now = manager.now();
        let config = &now.plan.config;
        let own = config.groups.iter().find(|own| own.name == group.name);
        let own = own.context("the file has no such group any more")?;
        let mut all = lock(&self.all);
        // Whoever ends the groups has said so before.
        if self.ending.is_near() {
            return Ok(());
        }
        let servers = (&self.iscsi, self.nvme.handle(), &manager);
        all.push(start(config, own, servers, (&self.ending, &self.listener))?);
        drop(all);
        lock(&self.waiting).retain(|one| one.config.name != group.name);
        self.listener.differs(told::ALL_LISTS);
        Ok(())
    }
}

impl Groups {
    /// Starts the groups of a configuration. Nothing of them is served before one owns its group. The listener is told when
    /// something is different of them.
    ///
    /// # Errors
    /// A target cannot be a group's, or there is no thread.
    pub fn start(
        config: &Config,
        (iscsi, nvme): (&Handle, &Arc<Second>),
        manager: &Arc<Manager>,
        listener: &Listener,
    ) -> Result<Self> {
        let groups = Self { listener: listener.clone(), ..Self::default() };
        manager.use_clusters(Box::new(Writers(Arc::downgrade(&groups.all))));
        for group in &config.groups {
            if let Some(revision) = sharing::revision(manager, &group.name) {
                tracing::info!(
                    group = %group.name,
                    "begins with revision {revision} of its configuration, as this gateway has kept it, and serves nothing by \
                     it before the cluster has been asked"
                );
            }
            let servers = (iscsi, nvme.handle(), manager);
            let running = start(config, group, servers, (&groups.ending, listener))
                .with_context(|| format!("group {}", group.name))?;
            groups.all().push(running);
        }
        for group in &config.pending {
            let (handle, second) = (iscsi.clone(), nvme.clone());
            groups.wait_for(group, (handle, second), manager)?;
        }
        Ok(groups)
    }

    /// Starts a group as soon as it is known what its gateways share.
    fn wait_for(
        &self,
        group: &Pending,
        (iscsi, nvme): (Handle, Arc<Second>),
        manager: &Arc<Manager>,
    ) -> Result<()> {
        let name = &group.name;
        let data = &manager.now().plan.data;
        match copies::read(data, name) {
            Ok(None) => {}
            Ok(Some(kept)) => tracing::warn!(
                group = %name,
                "revision {} of its configuration, which this gateway has kept, does not fit its file",
                kept.revision
            ),
            Err(error) => {
                tracing::warn!(group = %name, "what this gateway has kept is lost: {error:#}")
            }
        }
        lock(&self.waiting).push(Waiting { config: group.clone(), trouble: None });
        let starter = Starter {
            iscsi,
            nvme,
            manager: Arc::downgrade(manager),
            listener: self.listener.clone(),
            all: self.all.clone(),
            waiting: self.waiting.clone(),
            ending: self.ending.clone(),
        };
        let group = group.clone();
        let thread = lunet_group::spawn("lunet-group", move || starter.wait(&group));
        thread.map(drop).with_context(|| format!("group {name}: cannot start its thread"))
    }

    fn all(&self) -> MutexGuard<'_, Vec<Running>> {
        lock(&self.all)
    }

    /// What is known of each group, which is served by this.
    pub fn list(&self, now: &Served) -> Vec<lunet_api::Group> {
        let mut all: Vec<_> = self.all().iter().map(|one| one.told(now)).collect();
        all.extend(lock(&self.waiting).iter().map(Waiting::told));
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }

    /// Has a group do something, and waits a while for its end.
    ///
    /// # Errors
    /// There is no such group, or the order is not carried out.
    pub fn order(&self, name: &str, to: Option<u16>) -> Result<Done> {
        if let Some(to) = to {
            self.is_there(name, to)?;
        }
        let order = to.map_or(Order::TakeOver, |to| Order::MoveTo(GatewayId(to)));
        let (state, owner, since) = self.running(name, |running| {
            let (state, owner) = (running.state.clone(), to.unwrap_or(running.config.gateway));
            let Status { condition, epoch, owner: known, .. } = look(&state).status;
            let is_there = known == Some(GatewayId(owner));
            // Whoever is to take over looks whether it is the owner still, and who has no connection knows of nobody.
            if is_there && to.is_some() && condition != Condition::Fenced {
                let next = Refusal::IsOwner.next();
                return refuse(Code::Unsupported, owned(name, owner), next);
            }
            running.give(order);
            Ok((state, owner, is_there.then_some(epoch)))
        })?;
        let texts = Texts {
            order,
            owned: owned(name, owner),
            refused: format!("group {name} stays where it is"),
            late: format!("group {name} has not come to gateway {owner}"),
            later: "and may still do so, if its cluster answers later",
        };
        carried_out(&state, &texts, |state| {
            let Status { condition, epoch, owner: now, .. } = state.status;
            let owns = now == Some(GatewayId(owner)) && condition != Condition::Fenced;
            let is_new = since.is_none_or(|since| since < epoch);
            let Epoch(epoch) = epoch;
            (owns && is_new)
                .then(|| done(format!("gateway {owner} owns group {name}, in epoch {epoch}")))
        })
    }

    /// The owner asks for a gateway before it gives the group to it, and what it says to that is not heard elsewhere: so it is
    /// looked for here as well.
    fn is_there(&self, name: &str, to: u16) -> Result<()> {
        // The owner asks itself, and this gateway is there.
        let knows = self.all().iter().any(|running| {
            let (me, owner) = (running.config.gateway, look(&running.state).status.owner);
            running.config.name == name && (me == to || owner == Some(GatewayId(me)))
        });
        if knows {
            return Ok(());
        }
        // What cannot be known is seen by the order itself.
        let Ok(all) = self.gateways(name) else { return Ok(()) };
        let why = match all.iter().find(|one| one.gateway == to) {
            None => Refusal::Unknown,
            Some(one) if one.state == lunet_api::GatewayState::Silent => Refusal::Absent,
            Some(_) => return Ok(()),
        };
        refuse(told::code_of(&why), format!("group {name} stays where it is: {why}"), why.next())
    }

    /// Has a group that this gateway owns have gateways up to this number, and waits a while for that.
    ///
    /// # Errors
    /// There is no such group, another gateway owns it, or the order is not carried out.
    pub fn grow(&self, name: &str, gateways: u16) -> Result<Done> {
        let order = Order::Gateways(gateways);
        let begun = self.running(name, |running| {
            let me = running.config.gateway;
            let state = look(&running.state);
            match state.status.owner {
                Some(GatewayId(owner)) if owner == me => {
                    if state.gateways.len() >= usize::from(gateways) {
                        return Ok(Err(has_ports(name, &state)));
                    }
                }
                Some(GatewayId(owner)) => {
                    return refuse(
                        Code::Unsupported,
                        format!("gateway {owner} owns group {name}, and only the owner does this"),
                        format!("run the command on gateway {owner}"),
                    );
                }
                None => {
                    return refuse(
                        Code::NotServed,
                        format!("nobody owns group {name} now, and only an owner does this"),
                        "try again when `lunet group list` shows an owner",
                    );
                }
            }
            drop(state);
            running.give(order);
            Ok(Ok(running.state.clone()))
        })?;
        let state = match begun {
            Ok(state) => state,
            Err(there_already) => return Ok(there_already),
        };
        let texts = Texts {
            order,
            owned: String::new(),
            refused: format!("group {name} stays as it is"),
            late: format!("group {name} has not got more gateways"),
            later: "and may still get them",
        };
        carried_out(&state, &texts, |state| {
            let owned = state.status.condition == Condition::Owner;
            let has = owned && state.gateways.len() >= usize::from(gateways);
            has.then(|| has_ports(name, state))
        })
    }

    /// Does something with a group that runs.
    ///
    /// # Errors
    /// There is none of this name, or what is done fails.
    fn running<T>(&self, name: &str, does: impl FnOnce(&Running) -> Result<T>) -> Result<T> {
        let all = self.all();
        let running = all.iter().find(|running| running.config.name == name);
        running.map_or_else(|| self.missing(name), does)
    }

    /// Why nothing can be asked of a group.
    fn missing<T>(&self, name: &str) -> Result<T> {
        let waits = lock(&self.waiting).iter().any(|one| one.config.name == name);
        let (code, text) = match waits {
            true => (Code::NotServed, format!("group {name} does not run here yet")),
            false => (Code::NotFound, format!("there is no group \"{name}\"")),
        };
        let fix = if waits { "says why" } else { "shows what there is" };
        refuse(code, text, format!("`lunet group list` {fix}"))
    }

    /// Asks which gateways of a group are there. Whoever asks again within a second gets the same answer.
    ///
    /// # Errors
    /// There is no such group here, or its cluster does not answer.
    pub fn gateways(&self, name: &str) -> Result<Vec<lunet_api::GroupGateway>> {
        self.running(name, |running| Ok(running.roll()))?.call()
    }

    /// Ends all groups: their connections are aborted, and locks are given back.
    pub fn end(&self) {
        self.ending.0.store(true, Ordering::Release);
        let all = std::mem::take(&mut *self.all());
        drop(all);
    }
}

fn owned(name: &str, owner: u16) -> String {
    format!("gateway {owner} owns group {name} already")
}

fn done(done: String) -> Done {
    Done { done, ..Done::default() }
}

fn has_ports(name: &str, state: &State) -> Done {
    let (count, epoch) = (state.gateways.len(), state.status.epoch.0);
    done(format!("group {name} has target ports of {count} gateways, in epoch {epoch}"))
}

impl State {
    /// Somebody waits for the end of an order from now on. True if it is to be given: a refusal is told to all who wait for one like
    /// it, so it has to be the same one. What became of one before is forgotten.
    fn awaits(&mut self, order: Order) -> bool {
        let is_new = !self.orders.contains(&order);
        if is_new {
            self.refused.retain(|(other, _)| *other != order);
        }
        self.orders.push(order);
        is_new
    }

    /// One of those who wait for an order knows what became of it, or waits no more.
    fn is_told(&mut self, order: Order) {
        if let Some(at) = self.orders.iter().position(|other| *other == order) {
            self.orders.swap_remove(at);
        }
    }
}

impl Running {
    /// Gives its thread an order, if nobody has given one like it that goes on still.
    fn give(&self, order: Order) {
        if look(&self.state).awaits(order) {
            self.group.handle().order(order);
        }
    }
}

/// What is said of an order that is not carried out.
struct Texts {
    order: Order,
    /// That it is so already.
    owned: String,
    /// What stays as it is.
    refused: String,
    /// What has not happened in time.
    late: String,
    /// And what may still happen.
    later: &'static str,
}

/// Waits a while until a group is as it was [ordered](Running::give) to be: what there is to be said then.
///
/// # Errors
/// The order is refused, or the time is over.
fn carried_out(
    state: &Mutex<State>,
    texts: &Texts,
    is_done: impl Fn(&State) -> Option<Done>,
) -> Result<Done> {
    let result = end_of(state, texts, is_done);
    look(state).is_told(texts.order);
    result
}

fn end_of(
    state: &Mutex<State>,
    texts: &Texts,
    is_done: impl Fn(&State) -> Option<Done>,
) -> Result<Done> {
    let until = lunet_os::time::now() + PATIENCE;
    while lunet_os::time::now() < until {
        let state = look(state);
        if let Some(done) = is_done(&state) {
            return Ok(done);
        }
        // Others may have been given one meanwhile.
        if let Some((_, why)) = state.refused.iter().find(|(order, _)| *order == texts.order) {
            let text = match why {
                Refusal::IsOwner => texts.owned.clone(),
                // It has gone elsewhere.
                Refusal::Overtaken => format!("{}: {why}", texts.late),
                _ => format!("{}: {why}", texts.refused),
            };
            return refuse(told::code_of(why), text, why.next());
        }
        drop(state);
        lunet_os::thread::sleep(LOOK);
    }
    let (Texts { late, later, .. }, waited) = (texts, PATIENCE.as_secs());
    refuse(
        Code::NotAnswered,
        format!("{late} within {waited} s, {later}"),
        "`lunet group list` says more",
    )
}

fn lock<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

fn look(state: &Mutex<State>) -> MutexGuard<'_, State> {
    lock(state)
}

/// A status in words, for the log.
fn in_words(status: &Status) -> String {
    let is = match status.condition {
        Condition::Fenced => "has no connection to the cluster",
        Condition::Standby => "is a standby",
        Condition::TakingOver => "takes the group over",
        Condition::Owner => "owns the group",
        Condition::Moving => "gives the group away",
        Condition::Orphaned => return "this gateway has lost its record".to_owned(),
    };
    let owner = status.owner.map_or("nobody".to_owned(), |owner| format!("gateway {}", owner.0));
    format!("this gateway {is}; epoch {}, owned by {owner}", status.epoch.0)
}

/// Where other gateways pass commands on to this one. It is told once if they do not.
fn portals(group: &Group, over_nvme: bool) -> Portals {
    if group.reach.is_none() {
        tracing::info!(
            group = %group.name,
            "other gateways pass no commands on to this one: it has no address that they reach (`reach`)"
        );
    }
    if over_nvme && group.reach_nvme.is_none() {
        tracing::info!(
            group = %group.name,
            "other gateways pass no commands of NVMe on to this one: it has no address that they reach (`reach-nvme`)"
        );
    }
    Portals { iscsi: group.reach, nvme: group.reach_nvme.filter(|_| over_nvme) }
}

fn start(
    config: &Config,
    group: &Group,
    (iscsi, nvme, manager): (&Handle, Option<&crate::second::Handle>, &Arc<Manager>),
    (ending, listener): (&Ending, &Listener),
) -> Result<Running> {
    let target = config.targets[group.target].name.as_str();
    let (me, rank) = (GatewayId(group.gateway), group.rank);
    let subsystem = config.nvme.of_target(target).map(|subsystem| subsystem.nqn.as_str());
    let subsystem = nvme.zip(subsystem);
    let portals = portals(group, subsystem.is_some());
    let me = lunet_gateway::Config { me, rank, portals };
    // One that has just started has a closed gate.
    let gate = Gateway::new(me, Duration::ZERO).gate();
    let shards = Fronts::begin((iscsi, target), subsystem, me.me, gate)?;
    let state = State::new(sharing::revision(manager, &group.name));
    let state = Arc::new(Mutex::new(state));
    let agrees = {
        let (manager, name) = (manager.clone(), group.name.clone());
        Agrees::new(move |record| match Expected::now(&manager, &name) {
            Some(expected) => expected.agrees(record).map_err(Said),
            None => Err(Said("it has no such group".to_owned())),
        })
    };
    let taker = Taker {
        group: group.name.clone(),
        manager: manager.clone(),
        state: state.clone(),
        listener: listener.clone(),
    };
    let shared: Option<Arc<dyn Shares>> = match group.shared {
        true => Some(Arc::new(taker)),
        false => None,
    };
    let (name, manager, ending, seen) =
        (group.name.clone(), manager.clone(), ending.clone(), state.clone());
    let no_thread = "cannot start its thread";
    let over_nvme = subsystem.map(|(_, nqn)| relay::Handle::start(nqn, me.me));
    let relays = Relays {
        iscsi: relay::Handle::start(target, me.me).context(no_thread)?,
        nvme: over_nvme.transpose().context(no_thread)?,
    };
    let counts = (relays.iscsi.counts(), relays.nvme.as_ref().map(relay::Handle::counts));
    let listener = listener.clone();
    let serving = move |thread: lunet_group::Handle| {
        shards.take_requests(&thread);
        Server {
            name,
            gateway: me.me.0,
            shards,
            manager,
            state: seen,
            ending,
            listener,
            thread,
            volumes: Vec::new(),
            client: None,
            relays,
            secret: [0; 32],
            unanswered: Vec::new(),
            contents: Arc::default(),
            keeping: None,
            jobs: Arc::default(),
            marking: None,
        }
    };
    let wanted = lunet_group::Config { group: group.place(), gateway: me, agrees, shared };
    let running = lunet_group::Group::start(wanted, serving).context("cannot start its thread")?;
    Ok(Running { config: group.clone(), state, group: running, counts, present: Arc::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_orders_what_is_under_way_waits_for_its_end() {
        let (order, other) = (Order::MoveTo(GatewayId(2)), Order::TakeOver);
        let mut state = State::new(None);
        assert!(state.awaits(order) && !state.awaits(order) && state.awaits(other));
        // Both are told of it, and it is not tried a second time in between.
        state.refused.push_front((order, Refusal::NotDrained));
        assert!(!state.awaits(order));
        assert_eq!(state.refused.len(), 1);
        (0..3).for_each(|_| state.is_told(order));
        assert!(state.awaits(order));
        assert!(state.refused.is_empty());
        assert_eq!(state.orders, [other, order]);
    }
}
