//! Changes of what is served, while it is served.
//!
//! Each change has one moment at which it counts: a file that is replaced by a rename. For most that
//! file is the configuration. What must be prepared before that moment or cleaned up after it is in
//! the [`journal`] meanwhile, so that a server that was killed in between finishes or forgets the
//! change at its next start:
//!
//! 1. check the change against the configuration and its rules
//! 2. note in the journal what will be touched
//! 3. prepare storage: make, copy or extend files
//! 4. prepare the server: every event loop opens what is new
//! 5. replace the configuration (or exchange the volume's file, for a rollback)
//! 6. let the server take over, which cannot fail
//! 7. settle what the journal says by the configuration that is now in force, and empty it
//!
//! A step before the fifth that fails goes straight to the last one: by the old configuration, that undoes
//! all. After it there is no way back: what goes wrong then is said, and nothing is undone.

mod apart;
mod apply;
#[cfg(feature = "control")]
mod aside;
mod audience;
mod clones;
mod differences;
mod effects;
mod foretell;
mod groups;
mod identity;
mod images;
mod jobs;
mod journal;
mod limits;
mod lists;
mod nvme;
mod patience;
mod portals;
mod recovery;
mod report;
mod rules;
mod served;
mod sessions;
mod sharing;
mod snapshots;
mod storage;
mod targets;
#[cfg(test)]
mod tests;
mod volumes;

use std::collections::BTreeMap;
use std::hash::RandomState;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use lunet_api::{Change, Code, Done};
use lunet_front_iscsi::{Handle, LogicalUnit, Prepared};
use lunet_os::sync::{Mutex, MutexGuard};
use lunet_ring::{Passthrough, PassthroughRings};
use lunet_server::server::foresee_start;
use lunet_server::{ApplyError, StartError};
use zeroize::Zeroizing;

use self::nvme::hosts_alone;
use crate::audit;
use crate::holder;
use crate::opening;
use crate::plan::{self, Options, Plan, Wrong};
use crate::second::{Second, Standby};
use crate::serve;
use crate::trouble::{self, refuse, refused};
use lunet_config::edit::Editor;
use lunet_config::{Backend, Config, Shared, Volume};
use lunet_files::{self as files, Found};
use lunet_volume::HeldVolume;

pub use effects::notes as concerned;
pub use images::is_full;
pub use jobs::{Mark, Owner};
pub use journal::recover;
pub use report::{controllers, nvme_portals, portals, sessions, stats, stats_of_both};
pub use served::{Open, Served};
pub use sharing::{Clusters, Everywhere};

use effects::{Consent, Weighed};
use identity::InUse;
use journal::{Entry, Journal};
use patience::{Look, patiently};

/// Held during a change.
struct UnderWay<'a> {
    manager: &'a Manager,
    _one: MutexGuard<'a, ()>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        *self.manager.under_way() = None;
    }
}

/// A change that every shard is ready for, of every server. Dropping it undoes it.
struct Ready<'a> {
    iscsi: Prepared<'a>,
    nvme: Option<OverNvme<'a>>,
}

/// What a change is for the server for NVMe.
enum OverNvme<'a> {
    /// It takes over what changes.
    Changes(lunet_front_nvme::Prepared<'a, LogicalUnit>),
    /// It begins: these are its first portals.
    Begins(Standby),
}

/// Changes a running server. One change at a time, those of snapshots aside ([`apart`]).
pub struct Manager {
    handle: Handle,
    nvme: Arc<Second>,
    /// As the server was started with, less what only concerned its first start.
    options: Options,
    /// The configuration file.
    file: PathBuf,
    now: Mutex<Arc<Served>>,
    /// Held during a change.
    changing: Mutex<()>,
    /// The change that is under way, and since when.
    under_way: Mutex<Option<(String, Instant)>>,
    /// Those that go on beside it.
    apart: Mutex<Vec<apart::Begun>>,
    /// The server stops: there will be no more changes.
    closed: AtomicBool,
    /// The change that is under way is only to be foretold.
    foretelling: AtomicBool,
    /// What the user should know about the change that is under way, a sentence each.
    remarks: Mutex<Vec<String>>,
    /// Not every gateway of a group serves by the change that is under way.
    incomplete: AtomicBool,
    /// The rings for NVMe commands that shards have.
    passthrough: PassthroughRings,
    /// The text that [`write_text`](Self::write_text) has put into the file last.
    written: Mutex<Option<Zeroizing<String>>>,
    /// Hashes texts with a key of this process: a hash without one would let secrets in them be guessed.
    versions: RandomState,
    /// Is told of each configuration that comes into force.
    listener: OnceLock<Listener>,
    /// What is to be done about images of Ceph.
    images: Mutex<images::Images>,
    /// Where what failover groups share is.
    clusters: OnceLock<Box<dyn Clusters>>,
    /// Counts the changes of what groups share.
    generation: AtomicU64,
    /// The room in the data directory.
    #[cfg(feature = "control")]
    room: aside::Aside<Option<lunet_api::Room>>,
    /// What volumes share.
    pools: limits::Pools,
    /// What the files of volumes take, by their directories.
    #[cfg(feature = "control")]
    files: std::sync::Mutex<lists::Files>,
}

/// Is told of a configuration. It must not wait.
pub type Listener = Box<dyn Fn(&Config) + Send + Sync>;

/// What of a configuration is without effect, and was not before.
fn new_notes(old: &Config, new: &Config) -> Vec<String> {
    let words = |config: &Config| -> Vec<String> {
        config.notes.iter().map(|note| format!("{}: {}", note.key, note.text)).collect()
    };
    let before = words(old);
    words(new).into_iter().filter(|note| !before.contains(note)).collect()
}

impl Manager {
    /// Takes charge of what the servers behind the handles serve now.
    pub fn new(options: &Options, (handle, nvme): (Handle, Arc<Second>), served: Served) -> Self {
        let file = served.plan.file.clone();
        let options = Options { config: Some(file.clone()), size: None, ..options.clone() };
        let passthrough = serve::passthrough(&served.plan.config);
        let now = Mutex::new(Arc::new(served));
        let remarks = Mutex::default();
        let manager = Self {
            handle,
            nvme,
            options,
            file,
            now,
            changing: Mutex::new(()),
            under_way: Mutex::default(),
            apart: Mutex::default(),
            closed: AtomicBool::new(false),
            foretelling: AtomicBool::new(false),
            remarks,
            incomplete: AtomicBool::new(false),
            passthrough,
            written: Mutex::default(),
            versions: RandomState::new(),
            listener: OnceLock::new(),
            images: Mutex::default(),
            clusters: OnceLock::new(),
            generation: AtomicU64::new(0),
            pools: limits::Pools::default(),
            #[cfg(feature = "control")]
            room: aside::Aside::default(),
            #[cfg(feature = "control")]
            files: std::sync::Mutex::default(),
        };
        manager.set_limits(&manager.now());
        manager
    }

    /// Has somebody told of the configuration now, and of each that comes into force.
    pub fn tell(&self, listener: Listener) {
        self.listener.get_or_init(|| listener)(&self.now().plan.config);
    }

    /// What is served now.
    pub fn now(&self) -> Arc<Served> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Carries out a change. Blocks until all of it is done.
    ///
    /// # Errors
    /// Why not, in one sentence; then nothing has changed.
    pub fn change(&self, change: &Change) -> Result<Done> {
        let now = self.now();
        if let Some(done) = self.by_owner(&now, change) {
            return done;
        }
        groups::refuse_change(&now, change)?;
        if let Some(apart) = self.begin_apart(change, false)? {
            return apart.carry_out();
        }
        let _one = self.begin(audit::described(change))?;
        self.refuse_beside_apart(change)?;
        let now = self.now();
        if !matches!(change, Change::Apply { .. } | Change::EndSessions { .. }) {
            self.check_untouched(&now)?;
        }
        self.forget_remarks();
        let result = self.dispatch(&now, change);
        let remarks = std::mem::take(&mut *self.remarks());
        result.map(|mut done| {
            // `lunet config apply` tells all notes of the file, with their lines.
            if !matches!(change, Change::Apply { .. }) {
                done.notes.extend(new_notes(&now.plan.config, &self.now().plan.config));
            }
            done.notes.extend(remarks);
            done.notes.extend(self.late_passthrough(&now.plan.config));
            done.incomplete = self.incomplete.load(Ordering::Acquire);
            done
        })
    }

    /// The volumes that are new and do not find the rings for their NVMe commands: shards make none while they serve.
    fn late_passthrough(&self, before: &Config) -> Vec<String> {
        let PassthroughRings { interrupt, polled } = self.passthrough;
        let late = |volume: &Volume| {
            let Backend::Block { passthrough: Some(how), .. } = volume.backend else { return None };
            if before.volumes.iter().any(|other| other.name == volume.name) {
                return None;
            }
            let until_then = match how {
                Passthrough::Interrupt if interrupt => return None,
                Passthrough::Polled if polled => return None,
                Passthrough::Polled if interrupt => "the drive interrupts",
                _ => "reads and writes go through the block layer",
            };
            let name = &volume.name;
            Some(format!(
                "volumes.{name}.passthrough takes effect after a restart, as no volume had it at the start: until then \
                 {until_then}"
            ))
        };
        self.now().plan.config.volumes.iter().filter_map(late).collect()
    }

    /// Begins a change: no other one does until the guard is dropped.
    fn begin(&self, what: String) -> Result<UnderWay<'_>> {
        let one = match self.changing.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return refuse(
                    Code::ChangeUnderWay,
                    "another change is under way",
                    format!("try again when it has ended{}", self.told_under_way()),
                );
            }
        };
        if self.closed.load(Ordering::Acquire) {
            return refuse(Code::Stopping, "lunet is stopping", "ask again when it has started");
        }
        *self.under_way() = Some((what, lunet_os::time::now()));
        Ok(UnderWay { manager: self, _one: one })
    }

    fn under_way(&self) -> MutexGuard<'_, Option<(String, Instant)>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is under way, if that is known.
    fn told_under_way(&self) -> String {
        let under_way = self.under_way();
        under_way.as_ref().map(|(what, since)| ago(what, *since)).unwrap_or_default()
    }

    fn dispatch(&self, now: &Served, change: &Change) -> Result<Done> {
        if let Some(shared) = of_rules(change).and_then(|target| now.plan.shared_with(target)) {
            self.is_latest(shared)?;
        }
        match change {
            Change::Apply { force, keep_sessions } => {
                self.apply(now, Consent { force: *force, keep_sessions: *keep_sessions })
            }
            Change::EndSessions { session, initiator } => {
                self.end_sessions(*session, initiator.as_deref())
            }
            Change::CreateVolume(new) => self.create_volume(now, new),
            Change::ResizeVolume { name, size } => self.resize_volume(now, name, *size),
            Change::LimitVolume { name, limits } => self.limit_volume(now, name, limits),
            Change::ReopenVolume { name } => self.reopen_volume(now, name),
            Change::RecreateVolume { name } => self.recreate_volume(now, name),
            Change::AdoptVolume { name } => self.adopt_volume(now, name),
            Change::DeleteVolume { name, keep_data, force } => {
                self.delete_volume(now, name, *keep_data, *force)
            }
            Change::CreateSnapshot { .. } | Change::DeleteSnapshot { .. } => {
                unreachable!("it is carried out apart")
            }
            Change::CloneVolume { volume, snapshot, name, naa } => {
                self.clone_volume(now, volume, snapshot.as_deref(), name, naa.as_deref())
            }
            Change::Rollback { volume, snapshot, force } => {
                self.rollback(now, volume, snapshot, *force)
            }
            Change::CreateTarget { name, alias, nvme } => {
                self.create_target(now, name, alias.as_deref(), *nvme)
            }
            Change::DeleteTarget { name, force } => self.delete_target(now, name, *force),
            Change::AllowInitiators { target, initiators, force, keep_sessions } => {
                let consent = Consent { force: *force, keep_sessions: *keep_sessions };
                match hosts_alone(initiators)? {
                    true => self.allow_hosts(now, target, initiators, consent),
                    false => self.allow(now, target, initiators, consent),
                }
            }
            Change::DenyInitiators { target, initiators, force, keep_sessions } => {
                let consent = Consent { force: *force, keep_sessions: *keep_sessions };
                match hosts_alone(initiators)? {
                    true => self.deny_hosts(now, target, initiators, consent),
                    false => self.deny(now, target, initiators, consent),
                }
            }
            Change::OpenTarget { target } => self.open_target(now, target),
            Change::AddUser { target, user, force, keep_sessions } => {
                let consent = Consent { force: *force, keep_sessions: *keep_sessions };
                self.add_user(now, target, user, consent)
            }
            Change::RemoveUser { target, name, force, keep_sessions } => {
                let consent = Consent { force: *force, keep_sessions: *keep_sessions };
                self.remove_user(now, target, name, consent)
            }
            Change::AddPortal { address, tag, transport } => {
                self.add_portal(now, *address, *tag, transport)
            }
            Change::RemovePortal { address, force, keep_sessions } => {
                let consent = Consent { force: *force, keep_sessions: *keep_sessions };
                self.remove_portal(now, *address, consent)
            }
            Change::Map { target, lun, volume, force } => {
                self.map(now, target, *lun, volume, *force)
            }
            Change::Unmap { target, lun, force } => self.unmap(now, target, *lun, *force),
        }
    }

    /// Refuses every change from now on, and waits at most for `limit` for one that is under way. One that takes
    /// longer, because its storage hangs, is finished or undone at the next start.
    pub fn close(&self, limit: Duration) {
        self.closed.store(true, Ordering::Release);
        let until = lunet_os::time::now() + limit;
        let busy = || matches!(self.changing.try_lock(), Err(TryLockError::WouldBlock));
        while busy() || !self.apart().is_empty() {
            if lunet_os::time::now() >= until {
                tracing::error!(
                    "a change that is under way does not end: it is not waited for any more"
                );
                return;
            }
            lunet_os::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Commands do not overwrite what somebody has written into the file meanwhile.
    fn check_untouched(&self, now: &Served) -> Result<()> {
        match &now.plan.text {
            None if matches!(files::look(&self.file), Found::Absent) => Ok(()),
            // With the check of a start: what a command writes, the next start reads.
            Some(text) if plan::read_own(&self.file)? == *text => Ok(()),
            _ => Err(self.changed_by_hand().into()),
        }
    }

    fn changed_by_hand(&self) -> lunet_api::Error {
        let file = self.file.display();
        let message = format!("{file} was changed by hand since lunet has read it");
        lunet_api::Error::new(Code::ChangedByHand, message).fix("run `lunet config apply` first")
    }

    /// The text that is in force; what the embedded default would be as a file, if there is none.
    fn text(now: &Served) -> Zeroizing<String> {
        now.plan.text.clone().unwrap_or_else(|| {
            let open = now.open.get(plan::DEMO_VOLUME).map(|open| open.volume.caps().bytes());
            let lost = || now.unserved.get(plan::DEMO_VOLUME).and_then(|lost| lost.size);
            Zeroizing::new(plan::demo_text(open.or_else(lost).unwrap_or(plan::DEMO_SIZE)))
        })
    }

    /// The plan after an edit of the configuration, weighed. Nothing is done yet.
    fn edited(
        &self,
        now: &Served,
        consent: Consent,
        edit: impl FnOnce(&mut Editor) -> Result<(), lunet_config::edit::EditError>,
    ) -> Result<Weighed> {
        let mut editor = Editor::new(&Self::text(now))?;
        edit(&mut editor)?;
        let plan = self.plan_of(Zeroizing::new(editor.text()), now.plan.shared.clone())?;
        groups::check(now, &plan)?;
        self.weigh(now, plan, consent, "do it all the same with --force")
    }

    fn plan_of(&self, text: Zeroizing<String>, shared: Vec<Shared>) -> Result<Plan> {
        // One mistake is enough for an answer; where it stands in a text that nobody has written
        // is of no use.
        plan::of_text(&self.options, &self.file, text, shared).map_err(|error| {
            match error.downcast::<Wrong>() {
                Ok(wrong) => match wrong.mistakes.first() {
                    Some(mistake) => {
                        let message = format!("{}: {}", mistake.key, mistake.text);
                        lunet_api::Error::new(Code::Invalid, message).into()
                    }
                    None => wrong.into(),
                },
                Err(error) => error,
            }
        })
    }

    /// Carries out what touches storage: notes `entries` first, and settles them in the end, by the
    /// configuration that is in force then.
    fn noted<T>(
        &self,
        now: &Served,
        entries: Vec<Entry>,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if entries.is_empty() {
            return work();
        }
        let journal = Journal::begin(&now.plan.data, &self.file, entries)?;
        let result = work();
        let now = self.now();
        let look = |open: &Open| -> Look<_> {
            let volume = Arc::clone(&open.volume);
            Box::new(move || lunet_backends::opened(&volume))
        };
        let names = now.open.keys().cloned();
        let found = names.zip(patiently(now.open.values().map(look).collect()));
        // Of one that hangs it is not known what it has open.
        let open = found.map(|(name, found)| match found {
            Some(found) => found.map(|found| found.map(|found| (name, Some(found)))),
            None => Ok(Some((name, None))),
        });
        let open: std::io::Result<Vec<_>> = open.collect();
        let open = match open {
            Ok(open) => open.into_iter().flatten().collect(),
            Err(error) => {
                // The next start, when nothing is open, knows better.
                self.remark(format!("what the change has left cannot be looked at: {error}"));
                return result;
            }
        };
        let used = InUse::new(&now.plan.config, &now.plan.data, open);
        let unstable = |volume: &str, errno: i32| {
            now.open.get(volume).into_iter().for_each(|open| open.not_stable(errno));
        };
        for problem in journal.settle(&now.plan.config, &used, unstable) {
            self.remark(problem);
        }
        result
    }

    fn remarks(&self) -> MutexGuard<'_, Vec<String>> {
        self.remarks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something that the user should know, and the log.
    fn remark(&self, text: String) {
        tracing::warn!("{text}");
        self.remarks().push(text);
    }

    /// The moment that counts, for changes of the configuration: replaces the file, and lets the
    /// server take over.
    ///
    /// # Errors
    /// The server is not ready for it, or the file cannot be replaced: nothing has changed then.
    fn commit(&self, now: &Served, next: Weighed, open: BTreeMap<String, Open>) -> Result<()> {
        self.stop_with(&next)?;
        let Weighed { plan, keep_sessions, .. } = next;
        if let Some(shared) = sharing::changed(now, &plan).cloned() {
            return self.commit_shared(now.with(plan, open).keeping(keep_sessions), &shared);
        }
        let text = plan.text.clone().unwrap_or_default();
        let next = now.with(plan, open).keeping(keep_sessions);
        let prepared = self.prepare(&next)?;
        let before = now.plan.text.as_ref().map(|text| text.as_bytes());
        if let Err(failed) = files::replace_known(&self.file, before, text.as_bytes()) {
            let file = self.file.display();
            if !failed.visible && failed.is_changed() {
                return Err(self.changed_by_hand().into());
            }
            if !failed.visible {
                return Err(refused("write", &self.file, &failed.error));
            }
            self.remark(format!(
                "{file} cannot be made stable ({failed}): should this machine crash now, the \
                 configuration before may come back"
            ));
        }
        self.conclude(prepared, next, None);
        Ok(())
    }

    /// Lets the server take over something that counts already.
    ///
    /// # Errors
    /// It is not ready for it: nothing has changed then.
    fn adopt(&self, next: Served, held: Option<HeldVolume>) -> Result<()> {
        let prepared = self.prepare(&next)?;
        self.conclude(prepared, next, held);
        Ok(())
    }

    /// Has the servers open what is new. Nobody sees anything of it.
    fn prepare(&self, next: &Served) -> Result<Ready<'_>> {
        // The error's own words hold its cause.
        let iscsi = self.handle.prepare(next.layout()).map_err(not_done)?;
        let layout = || serve::over_nvme(next, iscsi.world());
        let config = &next.plan.config;
        let nvme = match self.nvme.handle() {
            Some(handle) => Some(OverNvme::Changes(handle.prepare(layout()).map_err(not_done)?)),
            None if config.nvme.portals.is_empty() => None,
            None => {
                serve::check_tls(config)?;
                let assembled = serve::assemble_nvme(&next.server, config, layout());
                let standby = self.nvme.prepare(assembled).map_err(not_begun)?;
                Some(OverNvme::Begins(standby))
            }
        };
        Ok(Ready { iscsi, nvme })
    }

    /// Says whether [`prepare`](Self::prepare) would refuse the portals of a plan.
    fn foresee_portals(&self, next: &Plan) -> Result<()> {
        let (portals, groups) = (serve::listen(&next.config), serve::groups(&next.config));
        self.handle.foresee_portals(&portals, &groups).map_err(not_done)?;
        let portals = serve::listen_nvme(&next.config);
        match self.nvme.handle() {
            Some(handle) => handle.foresee_portals(&portals, &()).map_err(not_done),
            None => foresee_start(&portals).map_err(not_begun),
        }
    }

    /// Lets the server take over. From here on there is no way back.
    fn conclude(&self, ready: Ready<'_>, next: Served, held: Option<HeldVolume>) {
        let held = held.map(Arc::new);
        let (changes, begins) = match ready.nvme {
            Some(OverNvme::Changes(nvme)) => (Some(nvme.adopt(held.clone())), None),
            Some(OverNvme::Begins(standby)) => (None, Some(standby)),
            None => (None, None),
        };
        let iscsi = ready.iscsi.adopt(held);
        begins.into_iter().for_each(|standby| self.nvme.begin(standby));
        let late = iscsi.wait().late + changes.map_or(0, |nvme| nvme.wait().late);
        let (next, before) = (Arc::new(next.limited()), self.now());
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = next.clone();
        self.set_limits(&next);
        if let Some(listener) = self.listener.get() {
            listener(&next.plan.config);
        }
        // No others: their storage may not answer.
        let changed = |open: &&Open| {
            let old = before.open.get(&open.config.name);
            !old.is_some_and(|old| Arc::ptr_eq(&old.volume, &open.volume))
        };
        opening::remember(&next.plan.data, next.open.values().filter(changed));
        if late > 0 {
            self.remark(format!(
                "the change is committed; {} not taken it over yet and will as soon as {} on: see \
                 the log",
                if late == 1 {
                    "1 event loop has".to_owned()
                } else {
                    format!("{late} event loops have")
                },
                if late == 1 { "it goes" } else { "they go" },
            ));
        }
    }

    /// How many sessions each target has, and each subsystem that is none, as far as it is known. Whoever lists volumes asks once:
    /// it is a question to every shard for all of its sessions.
    fn sessions_by_target(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        let targets = self.handle.sessions().into_iter().filter_map(|session| session.target);
        for name in targets.chain(self.controllers()) {
            *all.entry(name).or_default() += 1;
        }
        all
    }
}

/// Why the server has not done something, with a code and the next step.
fn not_done(error: ApplyError) -> anyhow::Error {
    match error {
        ApplyError::InUse(address) => anyhow!(holder::taken(address)),
        ApplyError::Listen { address, kind: Some(kind), .. } => {
            anyhow!(trouble::listening(address, &kind.into(), "take another address"))
        }
        error => {
            let code = match &error {
                ApplyError::Busy => Code::ChangeUnderWay,
                ApplyError::NotReady | ApplyError::Stuck => Code::NotAnswered,
                ApplyError::Portals { .. } => Code::NeedsRestart,
                _ => Code::Failed,
            };
            lunet_api::Error::new(code, error.to_string()).into()
        }
    }
}

/// Why the server for NVMe has not begun, with the next step.
fn not_begun(error: StartError) -> anyhow::Error {
    match error {
        StartError::InUse { address } => anyhow!(holder::taken(address)),
        StartError::Listen { address, source } => {
            anyhow!(trouble::listening(address, &source, "take another address"))
        }
        error => lunet_api::Error::new(Code::Failed, error.to_string()).into(),
    }
}

/// The target whose rules are changed, if that is all.
fn of_rules(change: &Change) -> Option<&str> {
    match change {
        Change::AllowInitiators { target, .. }
        | Change::DenyInitiators { target, .. }
        | Change::OpenTarget { target }
        | Change::AddUser { target, .. }
        | Change::RemoveUser { target, .. } => Some(target),
        _ => None,
    }
}

/// A change and since when it is under way, for the end of a sentence.
fn ago(what: &str, since: Instant) -> String {
    let seconds = lunet_os::time::now().saturating_duration_since(since).as_secs();
    format!("; {what} began {seconds} s ago")
}

/// `1 session`, `2 sessions`.
fn counted(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

fn done(text: String) -> Done {
    Done { done: text, ..Done::default() }
}
