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
//! 4. replace the configuration (or the volume's file, for a rollback)
//! 5. let the server take over
//! 6. settle what the journal says by the configuration that is now in force, and empty it
//!
//! A step that fails goes straight to the last one: by the old configuration, that undoes all.

mod apply;
mod clones;
mod journal;
mod lists;
mod served;
mod snapshots;
mod storage;
mod targets;
mod volumes;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use anyhow::{Result, anyhow, bail};
use lunet_target::Handle;

use crate::config::edit::Editor;
use crate::control::{Change, Done, VERSION};
use crate::plan::{self, Options, Plan, Wrong};
use lunet_target::files;

pub use journal::recover;
pub use served::{Open, Served};

use journal::{Entry, Journal};

/// Changes a running server. One change at a time.
pub struct Manager {
    handle: Handle,
    /// As the server was started with, less what only concerned its first start.
    options: Options,
    /// The configuration file.
    file: PathBuf,
    now: Mutex<Arc<Served>>,
    /// Held during a change; true when there will be no more.
    changing: Mutex<bool>,
}

impl Manager {
    /// Takes charge of what the server behind `handle` serves now.
    pub fn new(options: &Options, handle: Handle, served: Served) -> Self {
        let file = served.plan.file.clone();
        let options = Options { config: Some(file.clone()), size: None, ..options.clone() };
        let now = Mutex::new(Arc::new(served));
        Self { handle, options, file, now, changing: Mutex::new(false) }
    }

    /// What is served now.
    pub fn now(&self) -> Arc<Served> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Carries out a change. Blocks until all of it is done.
    ///
    /// # Errors
    /// Why not, in one sentence; then nothing has changed.
    pub fn change(&self, version: u32, change: &Change) -> Result<Done> {
        if version != VERSION {
            bail!(
                "this lunet understands changes of version {VERSION}, not {version}: use the \
                 `lunet` program that the server runs"
            );
        }
        let closed = match self.changing.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => {
                bail!("another change is under way: try again when it has ended")
            }
        };
        if *closed {
            bail!("lunet is stopping");
        }
        let now = self.now();
        if *change != Change::Apply {
            self.check_untouched(&now)?;
        }
        match change {
            Change::Apply => self.apply(&now),
            Change::CreateVolume(new) => self.create_volume(&now, new),
            Change::ResizeVolume { name, size } => self.resize_volume(&now, name, *size),
            Change::DeleteVolume { name, keep_data, force } => {
                self.delete_volume(&now, name, *keep_data, *force)
            }
            Change::CreateSnapshot { volume, snapshot } => {
                self.create_snapshot(&now, volume, snapshot)
            }
            Change::DeleteSnapshot { volume, snapshot } => {
                self.delete_snapshot(&now, volume, snapshot)
            }
            Change::CloneVolume { volume, snapshot, name } => {
                self.clone_volume(&now, volume, snapshot.as_deref(), name)
            }
            Change::Rollback { volume, snapshot, force } => {
                self.rollback(&now, volume, snapshot, *force)
            }
            Change::CreateTarget { name, alias } => {
                self.create_target(&now, name, alias.as_deref())
            }
            Change::DeleteTarget { name, force } => self.delete_target(&now, name, *force),
            Change::Map { target, lun, volume } => self.map(&now, target, *lun, volume),
            Change::Unmap { target, lun } => self.unmap(&now, target, *lun),
        }
    }

    /// Waits for a change that is under way, and refuses every other from now on.
    pub fn close(&self) {
        let mut closed: MutexGuard<'_, bool> =
            self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        *closed = true;
    }

    /// Commands do not overwrite what somebody has written into the file meanwhile.
    fn check_untouched(&self, now: &Served) -> Result<()> {
        let file = self.file.display();
        match (std::fs::read(&self.file), &now.plan.text) {
            (Ok(found), Some(text)) if found == text.as_bytes() => Ok(()),
            (Err(error), None) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            (Err(error), Some(_)) => Err(anyhow!("cannot read the configuration {file}: {error}")),
            _ => bail!(
                "{file} was changed by hand since lunet has read it: run `lunet config apply` first"
            ),
        }
    }

    /// The text that is in force; what the embedded default would be as a file, if there is none.
    fn text(now: &Served) -> String {
        now.plan.text.clone().unwrap_or_else(|| {
            let demo = now.open.get(plan::DEMO_VOLUME);
            plan::demo_text(demo.map_or(plan::DEMO_SIZE, |open| open.volume.caps().bytes()))
        })
    }

    /// The plan after an edit of the configuration. Nothing is done yet.
    fn edited(
        &self,
        now: &Served,
        edit: impl FnOnce(&mut Editor) -> Result<(), crate::config::edit::EditError>,
    ) -> Result<Plan> {
        let mut editor = Editor::new(&Self::text(now))?;
        edit(&mut editor)?;
        self.plan_of(editor.text())
    }

    fn plan_of(&self, text: String) -> Result<Plan> {
        // One mistake is enough for an answer; where it stands in a text that nobody has written
        // is of no use.
        plan::of_text(&self.options, &self.file, text).map_err(|error| {
            match error.downcast::<Wrong>() {
                Ok(wrong) => match wrong.mistakes.first() {
                    Some(mistake) => anyhow!("{}: {}", mistake.key, mistake.text),
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
        for problem in journal.settle(&self.now().plan.config) {
            tracing::warn!("{problem}");
        }
        result
    }

    /// The moment that counts, for changes of the configuration: replaces the file, and lets the
    /// server take over.
    fn commit(&self, now: &Served, plan: Plan, open: BTreeMap<String, Open>) -> Result<()> {
        let text = plan.text.clone().unwrap_or_default();
        let failed = |error| anyhow!("cannot write {}: {error}", self.file.display());
        files::replace(&self.file, text.as_bytes()).map_err(failed)?;
        let result = self.adopt(now.with(plan, open));
        if result.is_err() {
            // Back to what is served. If even that fails, the file is what the user has asked for.
            let back = match &now.plan.text {
                Some(text) => files::replace(&self.file, text.as_bytes()),
                None => files::remove(&self.file).map(drop),
            };
            if let Err(error) = back {
                tracing::error!("{}", failed(error));
            }
        }
        result
    }

    /// Lets the server take over.
    fn adopt(&self, next: Served) -> Result<()> {
        // The error's own words hold its cause.
        self.handle.apply(next.layout()).map_err(|error| anyhow!("{error}"))?;
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
        Ok(())
    }

    /// How many sessions see the volume.
    fn sessions_on(&self, now: &Served, volume: &str) -> usize {
        let targets: Vec<&str> = now.luns_of(volume).map(|(target, _)| target).collect();
        self.sessions(|name| targets.contains(&name))
    }

    fn sessions(&self, on: impl Fn(&str) -> bool) -> usize {
        let sessions = self.handle.sessions();
        sessions.iter().filter(|session| session.target.as_deref().is_some_and(&on)).count()
    }
}

/// `1 session`, `2 sessions`.
fn counted(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

fn done(text: String) -> Done {
    Done { done: text, notes: Vec::new() }
}
