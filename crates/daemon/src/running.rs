//! A server from its configuration to its end: started, asked and stopped by whoever has it. Signals, the control
//! socket and the log are [`serve`](crate::serve)'s.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
#[cfg(feature = "control")]
use lunet_api::PartsOf;
use lunet_api::{Answer, Change, Done, Portal, Request, Session, Stats};
use lunet_front_iscsi::{Handle, PortsError, Server};
use lunet_os::{thread, time};
use lunet_server::refusals::{REMEMBERED, Refusal};
use lunet_server::{Member, StartError};
use zeroize::Zeroizing;

#[cfg(feature = "control")]
use crate::announce::Announcer;
use crate::audit::{self, Listener, Origin};
use crate::control::{Asker, Source};
use crate::group::Groups;
use crate::live::{self, Manager, Open, Served};
use crate::opening::{How, Unserved};
#[cfg(feature = "control")]
use crate::parts::Parts;
use crate::plan::{Options, Plan};
use crate::second::{self, Second};
use crate::serve::{self, Made};
use crate::sizing::Placement;
use crate::{exposure, form, holder, identity, ready, trouble};
use lunet_config::Config;

/// What is different when a group has another configuration.
const OF_GROUP: &[&str] = &["groups", "volumes", "targets", "sessions", "config"];

/// How long whatever looks at a volume has to end at the end of the server.
const LOOKS_END: Duration = Duration::from_secs(1);

/// What is to be served, opened: nobody is listened to yet.
pub struct Opened {
    options: Options,
    served: Served,
    placement: Placement,
}

impl Opened {
    /// Takes the data directory, ends the change that was under way when the last server ended, and opens the volumes
    /// of a plan that was made of these options. What was made for that goes when the second value is dropped, unless
    /// it is told that lunet serves; it has to outlive the server and whatever else is in the directory.
    ///
    /// # Errors
    /// Something is wrong with the data directory, or a volume cannot be opened.
    pub fn new(options: &Options, plan: Plan) -> Result<(Self, Made)> {
        Self::inside(options, plan, |_| Ok(()))
    }

    /// The same; `limit` is called when the data directory is there, and nothing else is opened.
    ///
    /// # Errors
    /// As for [`new`](Self::new), or `limit` fails.
    pub fn inside(
        options: &Options,
        plan: Plan,
        limit: impl FnOnce(&Plan) -> Result<()>,
    ) -> Result<(Self, Made)> {
        let mut made = serve::take_data(&plan.data)?;
        // What it is found by may be out of reach behind the next line.
        let placement = Placement::of(&plan);
        limit(&plan)?;
        form::check(&plan.data)?;
        for problem in live::recover(&plan.data, &plan.file, &plan.config)? {
            tracing::warn!("{problem}");
        }
        let machine = identity::machine(&plan.data)?;
        // The embedded default is for people who have no file, and would not know of the option.
        let how = if options.create || plan.text.is_none() { How::Make } else { How::Take };
        let served = serve::open_volumes(plan, machine, how, &mut made)?;
        Ok((Self { options: options.clone(), served, placement }, made))
    }

    /// Path of the control socket.
    pub fn socket(&self) -> &Path {
        &self.served.plan.socket
    }

    /// What is to be served.
    pub fn plan(&self) -> &Plan {
        &self.served.plan
    }

    /// Listens and serves.
    ///
    /// # Errors
    /// Something cannot be listened on, or an event loop does not start.
    pub fn start(self) -> Result<Running> {
        let Self { options, served, placement } = self;
        let config = served.plan.config.clone();
        let (server, nvme) = start(&config, &served, &placement)
            .map_err(|error| not_started(&error, &served.plan))?;
        tracing::info!("{}", placement.told);
        if let Some(lost) = &placement.lost {
            tracing::warn!("{lost}");
        }
        let nvme = Arc::new(nvme);
        let manager = Arc::new(Manager::new(&options, (server.handle(), nvme.clone()), served));
        let (listener, servers) = (Listener::default(), (&server.handle(), &nvme));
        let groups = match Groups::start(&config, servers, &manager, &listener) {
            Ok(groups) => Arc::new(groups),
            Err(error) => {
                let _ = nvme.take().map(|nvme| nvme.stop(Duration::ZERO));
                server.stop(Duration::ZERO);
                return Err(error);
            }
        };
        #[cfg(feature = "control")]
        let announcer = announce(&manager);
        Ok(Running {
            config,
            server,
            nvme,
            manager,
            groups,
            listener,
            #[cfg(feature = "control")]
            parts: Parts::default(),
            #[cfg(feature = "control")]
            announcer,
        })
    }
}

/// Starts the server for iSCSI, and that for NVMe if there are portals for it. Either both serve, or none.
fn start(
    config: &Config,
    served: &Served,
    placement: &Placement,
) -> std::result::Result<(Server, Second), StartError> {
    let mut assembled = serve::assemble(config, &served.plan.data, served.layout());
    assembled.limits.processors.clone_from(&placement.processors);
    let [owner, other] = Member::of([Some(placement.shards); 2]);
    let server = lunet_front_iscsi::start_as(owner, assembled)?;
    let second = Second::new(other, placement.processors.clone());
    if config.nvme.portals.is_empty() {
        return Ok((server, second));
    }
    let layout = serve::over_nvme(served, &server.handle().world());
    let assembled = serve::assemble_nvme(&config.server, config, layout);
    match second.prepare(assembled) {
        Ok(standby) => second.begin(standby),
        Err(error) => {
            server.stop(Duration::ZERO);
            return Err(error);
        }
    }
    Ok((server, second))
}

/// A server that serves.
pub struct Running {
    /// As it was at the start.
    config: Config,
    server: Server,
    nvme: Arc<Second>,
    manager: Arc<Manager>,
    groups: Arc<Groups>,
    /// Is told of changes.
    listener: Listener,
    /// What data passes on this machine.
    #[cfg(feature = "control")]
    parts: Parts,
    /// Announces discovery.
    #[cfg(feature = "control")]
    announcer: Announcer,
}

/// Has discovery announced as the configuration says, now and later.
#[cfg(feature = "control")]
fn announce(manager: &Manager) -> Announcer {
    let announcer = Announcer::default();
    manager.tell(Box::new(announcer.teller()));
    announcer
}

/// Volumes that were open, to see whether they are closed: somebody who holds on to one keeps its lock from the next server.
struct Volumes(Vec<(String, Box<dyn Fn() -> bool>)>);

impl Volumes {
    fn of(manager: &Manager) -> Self {
        let now = manager.now();
        let all = now.open.iter().map(|(name, open)| -> (String, Box<dyn Fn() -> bool>) {
            let volume = Arc::downgrade(&open.volume);
            (name.clone(), Box::new(move || volume.strong_count() > 0))
        });
        Self(all.collect())
    }

    /// Tells of those that are open still, behind the end of all that should have had them. What looks at them now has a moment to
    /// end.
    fn are_closed(&self) {
        let begun = time::now();
        let mut left: Vec<_> = self.0.iter().collect();
        while time::since(begun) < LOOKS_END {
            left.retain(|(_, is_open)| is_open());
            if left.is_empty() {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        let names: Vec<&str> = left.iter().map(|(name, _)| name.as_str()).collect();
        tracing::error!(
            "not closed: {}; whatever locks them still does so until this process ends",
            names.join(", ")
        );
    }
}

impl Running {
    /// Answers requests.
    pub fn asked(&self) -> Asked {
        let (nvme, manager) = (self.nvme.clone(), self.manager.clone());
        Asked {
            handle: self.server.handle(),
            nvme,
            manager,
            groups: self.groups.clone(),
            listener: self.listener.clone(),
            #[cfg(feature = "control")]
            parts: self.parts.clone(),
        }
    }

    /// Through whom somebody is told of each change.
    pub fn listener(&self) -> &Listener {
        &self.listener
    }

    /// The addresses that are listened on since the start, in the configuration's order.
    pub fn portals(&self) -> Vec<SocketAddr> {
        self.server.portals()
    }

    /// The same for NVMe.
    pub fn nvme_portals(&self) -> Vec<SocketAddr> {
        self.nvme.portals()
    }

    /// True if an event loop has failed.
    pub fn failed(&self) -> bool {
        self.server.failed() || self.nvme.failed()
    }

    /// What the user should know of the start, a sentence each.
    pub fn notes(&self) -> Vec<String> {
        self.server.notes().iter().map(ToString::to_string).collect()
    }

    /// The volumes that are not served, and a sentence each that says why.
    pub fn unserved(&self) -> Vec<(String, String)> {
        let now = self.manager.now();
        let told = |(name, one): (&String, &Unserved)| {
            (name.clone(), format!("not served: {}", one.failure))
        };
        now.unserved.iter().map(told).collect()
    }

    /// Targets that can be reached over a network and say nothing of who may use them, a sentence each.
    pub fn warnings(&self) -> Vec<String> {
        exposure::warnings(&self.config, (&self.server.portals(), &self.nvme_portals()))
    }

    /// Where it serves, and how to attach that.
    pub fn ready(&self) -> String {
        let now = self.manager.now();
        let portals = (self.server.portals(), self.nvme_portals());
        ready::text(&self.config, (&portals.0, &portals.1), |name| now.unserved.contains_key(name))
    }

    /// Reads the configuration again, in a thread of its own, and says when that has ended.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn reload(&self, ended: impl FnOnce() + Send + 'static) -> Result<()> {
        let (manager, listener) = (self.manager.clone(), self.listener.clone());
        let change = Change::Apply { force: false, keep_sessions: false };
        let apply = move || {
            let result = manager.change(&change);
            audit::log(&Origin::Signal, &change, &result, &listener);
            ended();
            let Ok(done) = result else { return };
            // Sessions were told already.
            let sessions = live::concerned(&done.sessions);
            for note in done.notes.iter().filter(|note| !sessions.contains(note)) {
                tracing::warn!("{note}");
            }
        };
        let thread = thread::spawn("reload", apply);
        thread.map(drop).context("cannot start a thread to read the configuration")
    }

    /// Looks what others have done with images of Ceph that are served, takes larger ones over, and asks clusters again that were
    /// silent, in a thread of its own.
    pub fn look_at_images(&self) {
        let work = Arc::new(self.manager.images());
        if work.is_none() {
            return;
        }
        let (manager, theirs) = (self.manager.clone(), work.clone());
        if thread::spawn("images", move || manager.see_to_images(&theirs)).is_err() {
            // The system has none to give now. It may have one a second later.
            self.manager.images_later(&work);
        }
    }

    /// Ends what runs, and flushes and closes all volumes.
    ///
    /// # Errors
    /// An event loop had failed, or data could not be flushed.
    pub fn stop(self) -> Result<()> {
        let failed = self.failed();
        // Hosts that hear of it come no more.
        #[cfg(feature = "control")]
        drop(self.announcer);
        let Self { config, server, nvme, manager, groups, .. } = self;
        // As long as there are shards and changes: their connections are aborted, and their locks given back.
        groups.end();
        let (begun, grace) = (time::now(), config.server.shutdown_grace);
        manager.close(grace);
        let cached = |open: &Open| open.volume.caps().write_cache && !open.volume.caps().read_only;
        let cached = manager.now().open.values().any(cached);
        let open = Volumes::of(&manager);
        drop(manager);
        let left = grace.saturating_sub(time::since(begun));
        server.begin_stop(left);
        // The volumes are of the other one, which is the last to look at them.
        let flushed = nvme.take().is_none_or(|nvme| nvme.stop(left).flushed);
        drop(nvme);
        let report = server.stop(left);
        if failed {
            bail!("an event loop has failed: the log above says why; start lunet again");
        }
        let all_ended = report.flushed && flushed;
        if all_ended {
            open.are_closed();
        }
        if !all_ended && !cached {
            bail!(
                "not everything has ended, as storage does not answer: see to that which the log above names. No \
                 volume here has a write cache, so what was acknowledged is kept; requests that were not answered may \
                 have been carried out or not"
            );
        }
        if !all_ended {
            bail!(
                "not everything could be flushed, so the last writes may be lost: see to the storage that the log \
                 above names, and check the file systems on its volumes"
            );
        }
        tracing::info!("all volumes are flushed and closed");
        Ok(())
    }
}

/// Answers what is asked of a running server.
#[derive(Clone)]
pub struct Asked {
    handle: Handle,
    nvme: Arc<Second>,
    manager: Arc<Manager>,
    groups: Arc<Groups>,
    listener: Listener,
    #[cfg(feature = "control")]
    parts: Parts,
}

impl Asked {
    /// Logins and hosts that were refused lately, the newest first, each with the protocol.
    pub fn refusals(&self) -> Vec<(&'static str, Refusal)> {
        let iscsi = lunet_front_iscsi::refusals(&self.handle).into_iter();
        let hosts = self.nvme.handle().map(lunet_front_nvme::refusals).unwrap_or_default();
        let nvme = hosts.into_iter().map(|one| ("nvme", one));
        let mut all: Vec<_> = iscsi.map(|one| ("iscsi", one)).chain(nvme).collect();
        all.sort_by_key(|(_, one)| std::cmp::Reverse(one.time));
        all.truncate(REMEMBERED);
        all
    }

    /// Who changes what is served.
    pub fn manager(&self) -> &Manager {
        &self.manager
    }

    /// Answers a request from somewhere.
    ///
    /// # Errors
    /// Why there is no answer.
    pub fn answer_to(&self, origin: &Origin, request: Request) -> Result<Answer, lunet_api::Error> {
        let answer = match request {
            Request::Sessions => Ok(Answer::Sessions(self.sessions())),
            Request::Stats => Ok(Answer::Stats(Box::new(self.with_parts(self.stats())))),
            Request::Volumes => Ok(Answer::Volumes(self.manager.volumes())),
            Request::Snapshots { volume } => {
                self.manager.snapshots(volume.as_deref()).map(Answer::Snapshots)
            }
            Request::Targets => Ok(Answer::Targets(self.manager.targets())),
            Request::Portals => Ok(Answer::Portals(self.portals())),
            Request::Config => Ok(Answer::Config(Box::new(self.manager.configuration()))),
            Request::Groups => Ok(Answer::Groups(self.groups.list(&self.manager.now()))),
            Request::Gateways { group } => self.groups.gateways(&group).map(Answer::Gateways),
            Request::MoveGroup { group, gateway } => {
                self.order(origin, &group, Some(gateway)).map(Answer::Done)
            }
            Request::TakeOverGroup { group } => self.order(origin, &group, None).map(Answer::Done),
            Request::GrowGroup { group, gateways } => {
                self.grow(origin, &group, gateways).map(Answer::Done)
            }
            Request::GroupConfig { group } => {
                self.manager.group_config(&group).map(Answer::GroupConfig)
            }
            Request::SetGroupConfig { group, text, revision, force } => {
                let done = self.manager.set_group_config(&group, (text.text(), revision), force);
                let what = audit::of_group("set-group-config", &group, None);
                audit::log_other(origin, (what, OF_GROUP), &done, &self.listener);
                done.map(Answer::Done)
            }
            Request::Change { change, .. } => {
                let done = self.manager.change(&change);
                audit::log(origin, &change, &done, &self.listener);
                done.map(Answer::Done)
            }
            Request::Preview { change, .. } => self.manager.preview(&change).map(Answer::Preview),
        };
        answer.map_err(|error| trouble::coded(&error))
    }

    /// Has a failover group move to a gateway, or this one take it.
    fn order(&self, origin: &Origin, group: &str, to: Option<u16>) -> Result<Done> {
        let done = self.groups.order(group, to);
        let kind = if to.is_some() { "move-group" } else { "take-over-group" };
        let what = audit::of_group(kind, group, to);
        audit::log_other(origin, (what, &["groups"]), &done, &self.listener);
        done
    }

    /// Has a group have more gateways.
    fn grow(&self, origin: &Origin, group: &str, gateways: u16) -> Result<Done> {
        let done = self.groups.grow(group, gateways);
        let what = audit::of_group("grow-group", group, None);
        let what = format!("{what} gateways={gateways}");
        audit::log_other(origin, (what, &["groups"]), &done, &self.listener);
        done
    }

    fn sessions(&self) -> Vec<Session> {
        let mut all = live::sessions(self.handle.sessions());
        if let Some(nvme) = self.nvme.handle() {
            all.extend(live::controllers(nvme.sessions(), nvme.first_shard()));
        }
        all
    }

    /// What the shards have counted; those that do not answer in time are left out of the loads.
    pub fn stats(&self) -> Stats {
        match self.nvme.handle() {
            Some(nvme) => live::stats_of_both(self.handle.stats_with(nvme)),
            None => live::stats(self.handle.stats()),
        }
    }

    /// With the counts of what data passes on this machine, and the room that is left.
    #[cfg(feature = "control")]
    fn with_parts(&self, mut stats: Stats) -> Stats {
        let portals = self.portals().into_iter();
        let mut portals: Vec<_> = portals
            .filter_map(|portal| Some(portal.address.parse::<SocketAddr>().ok()?.ip()))
            .collect();
        portals.sort_unstable();
        portals.dedup();
        (stats.parts, stats.parts_wanted) =
            self.parts.now(PartsOf { portals, places: self.manager.places() });
        stats.room = self.manager.room();
        stats.helper_ended = crate::helper::has_ended();
        stats
    }

    /// The simulator's machine has no parts.
    #[cfg(not(feature = "control"))]
    fn with_parts(&self, stats: Stats) -> Stats {
        stats
    }

    /// The portals, and how they are served.
    pub fn portals(&self) -> Vec<Portal> {
        let mut all = live::portals(self.handle.portal_report());
        let nvme = self.nvme.handle().map(second::Handle::portal_report);
        all.extend(nvme.map(live::nvme_portals).unwrap_or_default());
        all
    }
}

impl Source for Asked {
    fn answer(&self, who: Asker, request: Request) -> Result<Answer, lunet_api::Error> {
        self.answer_to(&Origin::Socket(who), request)
    }
}

/// Why the server has not started, with the next step.
fn not_started(error: &StartError, plan: &Plan) -> anyhow::Error {
    let portals =
        |text: &&Zeroizing<String>| text.lines().any(|line| line.trim().starts_with("[[portal]]"));
    let file = plan.text.as_ref().filter(portals).map(|_| plan.file.as_path());
    // Which option of the command line has the address.
    let option = |address: &SocketAddr| {
        let is_nvme = plan.config.nvme.portals.iter().any(|portal| portal.address == *address);
        if is_nvme { "--listen-nvme" } else { "--listen" }
    };
    match error {
        StartError::InUse { address } => {
            anyhow!("{}", holder::in_use(*address, file, option(address)))
        }
        StartError::Listen { address, source } => {
            let place = match file {
                Some(file) => format!("name another address in [[portal]] in {}", file.display()),
                None => format!("take another address with `lunet serve {}`", option(address)),
            };
            anyhow!("{}", trouble::listening(*address, source, &place))
        }
        StartError::Front(error) => match error.downcast_ref() {
            Some(PortsError::NotKept { path, error }) => {
                trouble::refused("keep the numbers of target ports in", path, error)
            }
            _ => anyhow!("{error}"),
        },
        error => anyhow!("{error}"),
    }
}
