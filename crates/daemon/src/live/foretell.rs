//! What a change would do: it goes as far as the step before anything is touched, and stops there.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use anyhow::Result;
use lunet_api::{Change, Code, Difference, Done, Preview, SessionChange};
use zeroize::Zeroizing;

use super::apart::Apart;
use super::apply::fate;
use super::differences::differences;
use super::effects::Weighed;
use super::{Manager, Served, portals};
use crate::audit;
use crate::plan::{self, Plan};
use crate::trouble::{self, refuse};
use lunet_config::Backend;
use lunet_config::edit::Editor;
use lunet_files::{self as files, Found};

/// A change was stopped before it touched anything. It passes through the change as its error.
#[derive(Debug, thiserror::Error)]
#[error("the change was only to be foretold")]
struct Foretold(Box<Future>);

/// What would be.
#[derive(Debug, Default)]
struct Future {
    /// The next configuration, if it would be another one.
    plan: Option<Plan>,
    /// What would be different besides.
    changes: Vec<Difference>,
    sessions: Vec<SessionChange>,
    refused: Option<lunet_api::Error>,
}

/// Ends the mode in which changes are only foretold.
struct Mode<'m>(&'m Manager);

impl Drop for Mode<'_> {
    fn drop(&mut self) {
        self.0.foretelling.store(false, Ordering::Release);
        self.0.remarks.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl From<Future> for anyhow::Error {
    fn from(future: Future) -> Self {
        Foretold(Box::new(future)).into()
    }
}

fn stop_without(foretells: bool, what: &str, name: &str, change: &str) -> Result<()> {
    match foretells {
        true => {
            let (what, name, change) = (what.to_owned(), name.to_owned(), change.to_owned());
            let changes = vec![Difference { what, name, change }];
            Err(Future { changes, ..Future::default() }.into())
        }
        false => Ok(()),
    }
}

impl Apart<'_> {
    /// As [`Manager::stop_without`].
    pub(super) fn stop_without(&self, what: &str, name: &str, change: &str) -> Result<()> {
        stop_without(self.foretells, what, name, change)
    }
}

impl Manager {
    /// What a change would do.
    ///
    /// # Errors
    /// It cannot be done at all, or cannot be foretold ([`Code::Unsupported`]).
    pub fn preview(&self, change: &Change) -> Result<Preview> {
        if let Change::Apply { force, keep_sessions } = change {
            return self.preview_apply(*force, *keep_sessions);
        }
        if let Some(apart) = self.begin_apart(change, true)? {
            return self.foretold(&apart.now, change, apart.carry_out());
        }
        let _one = self.begin(format!("a preview of {}", audit::described(change)))?;
        let now = self.now();
        self.check_foretellable(&now, change)?;
        self.check_untouched(&now)?;
        self.foretelling.store(true, Ordering::Release);
        let mode = Mode(self);
        let result = self.dispatch(&now, change);
        drop(mode);
        self.foretold(&now, change, result)
    }

    /// What would be, as the way to it has ended.
    fn foretold(&self, now: &Served, change: &Change, result: Result<Done>) -> Result<Preview> {
        let file = self.file.display().to_string();
        let error = match result {
            // There is nothing to do, which it says.
            Ok(done) => {
                let notes = [done.done].into_iter().chain(done.notes).collect();
                return Ok(Preview { file, notes, ..Preview::default() });
            }
            Err(error) => error,
        };
        match error.downcast::<Foretold>() {
            Ok(Foretold(future)) => self.told(now, change, *future),
            Err(error) => match trouble::coded(&error) {
                // It could be done, with consent.
                told if matches!(told.code, Code::InUse | Code::ChangesAccess) => {
                    Ok(Preview { file, refused: Some(told.to_string()), ..Preview::default() })
                }
                _ => Err(error),
            },
        }
    }

    /// Refuses changes that touch something at their first step.
    fn check_foretellable(&self, now: &Served, change: &Change) -> Result<()> {
        let device = |name: &str| {
            let open = now.open.get(name);
            open.is_some_and(|open| {
                matches!(open.config.backend, Backend::Block { .. } | Backend::Rbd { .. })
            })
        };
        match change {
            Change::ReopenVolume { .. }
            | Change::RecreateVolume { .. }
            | Change::AdoptVolume { .. } => {}
            Change::ResizeVolume { name, .. } if device(name) => {}
            _ => return Ok(()),
        }
        refuse(Code::Unsupported, "what this change would do is only known when it is done", "")
    }

    /// True if nothing is to be touched.
    pub(super) fn foretelling(&self) -> bool {
        self.foretelling.load(Ordering::Acquire)
    }

    /// Stops a change that is only to be foretold, before it touches anything.
    ///
    /// # Errors
    /// It is to be stopped.
    pub(super) fn stop_with(&self, weighed: &Weighed) -> Result<()> {
        match self.foretelling() {
            true => {
                let (plan, sessions) = (Some(weighed.plan.clone()), weighed.sessions.clone());
                Err(Future { plan, sessions, ..Future::default() }.into())
            }
            false => Ok(()),
        }
    }

    /// The same for one that leaves the configuration as it is.
    ///
    /// # Errors
    /// It is to be stopped.
    pub(super) fn stop_without(&self, what: &str, name: &str, change: &str) -> Result<()> {
        stop_without(self.foretelling(), what, name, change)
    }

    /// The same for one that ends sessions and does nothing else.
    ///
    /// # Errors
    /// It is to be stopped.
    pub(super) fn stop_at_sessions(&self, sessions: Vec<SessionChange>) -> Result<()> {
        match self.foretelling() {
            true => Err(Future { sessions, ..Future::default() }.into()),
            false => Ok(()),
        }
    }

    /// The same for one that needs consent to what it does to sessions.
    pub(super) fn stopped_for(
        plan: Plan,
        sessions: Vec<SessionChange>,
        refused: lunet_api::Error,
    ) -> anyhow::Error {
        Future { plan: Some(plan), sessions, refused: Some(refused), ..Future::default() }.into()
    }

    fn told(&self, now: &Served, change: &Change, future: Future) -> Result<Preview> {
        let Future { plan, mut changes, sessions, mut refused } = future;
        let mut notes = Vec::new();
        if let Some(next) = plan {
            let mut fates = Vec::new();
            for volume in &next.config.volumes {
                let open = now.open.get(&volume.name);
                let fate = open.map(|open| fate(open, volume, &next)).transpose()?;
                fates.push((volume.clone(), fate));
            }
            changes.extend(differences(now, &next, &fates));
            notes.extend(super::new_notes(&now.plan.config, &next.config));
            notes.extend(crate::exposure::news(&now.plan.config, &next.config));
            let portals = || -> Result<()> {
                portals::check(&now.plan.config, &next.config)?;
                portals::check_nvme(&now.plan.config, &next.config, self.nvme.handle().is_some())?;
                self.foresee_portals(&next)
            };
            refused = refused.or(portals().err().map(|error| trouble::coded(&error)));
        }
        if let Change::DeleteVolume { name, keep_data: false, .. } = change {
            let open = now.open.get(name);
            let is_file = |open: &super::Open| matches!(open.config.backend, Backend::File { .. });
            if open.is_some_and(|open| is_file(open) && !open.config.read_only) {
                let mut gone =
                    changes.iter_mut().filter(|one| one.what == "volume" && one.name == *name);
                gone.by_ref().for_each(|one| one.change = "is gone, and so is its data".to_owned());
            }
        }
        let file = self.file.display().to_string();
        let refused = refused.map(|refused| refused.to_string());
        Ok(Preview { file, changes, notes, sessions, refused })
    }

    /// What a configuration with this text would change. Secrets that [`configuration`](Self::configuration) has hidden
    /// are those of the file that was [written](Self::write_text), or those that are in force. For others than an
    /// `administrator` no file, variable or secret is looked at that the configuration does not name already: the answer
    /// would say what is there.
    ///
    /// # Errors
    /// The text is wrong, or says what cannot change, or names what only an administrator may name.
    pub fn check_text(&self, text: &str, administrator: bool) -> Result<Preview> {
        let now = self.now();
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let found = self.file_text().ok().flatten().filter(|found| written.as_ref() == Some(found));
        if !administrator {
            self.check_places(&now, found.as_ref(), text)?;
        }
        self.preview_text(&now, Self::with_secrets(&now, found.as_ref(), text)?)
    }

    /// Refuses a text that names a file, a variable or a secret that neither what is in force nor the file that was
    /// `written` names in that place.
    fn check_places(
        &self,
        now: &Served,
        written: Option<&Zeroizing<String>>,
        text: &str,
    ) -> Result<()> {
        let Ok(mut editor) = Editor::new(text) else {
            // This says in which line. What one of the two can read alone is read by none.
            plan::check(&self.file, text)?;
            return refuse(Code::Invalid, "the configuration cannot be read as TOML", "");
        };
        let mut known = vec![Editor::new(&Self::text(now))?];
        known.extend(written.and_then(|text| Editor::new(text).ok()));
        match editor.new_place(&mut known) {
            None => Ok(()),
            Some(key) => refuse(
                Code::from("forbidden"),
                format!(
                    "this text has a new `{key}`, or in another place: to have it looked at needs the role administrator"
                ),
                "leave it as `lunet config show` has it",
            ),
        }
    }

    /// The text of the configuration file; `None` if there is none.
    pub(super) fn file_text(&self) -> Result<Option<Zeroizing<String>>> {
        match files::look(&self.file) {
            Found::Absent => Ok(None),
            _ => plan::read_own(&self.file).map(Some),
        }
    }

    /// Replaces the configuration file, and does not apply it.
    ///
    /// # Errors
    /// The text is wrong, or the file cannot be written, or was changed by hand meanwhile.
    pub fn write_text(&self, text: &str) -> Result<Done> {
        let _one = self.begin("a new configuration file".to_owned())?;
        let now = self.now();
        let found = self.file_text()?;
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        // What was written here before and is not applied yet may be written again.
        if found != now.plan.text && (found.is_none() || found != *written) {
            return Err(self.changed_by_hand().into());
        }
        let text = Self::with_secrets(&now, found.as_ref(), text)?;
        plan::of_text(&self.options, &self.file, text.clone(), now.plan.shared.clone())?;
        let before = found.as_ref().map(|text| text.as_bytes());
        if let Err(failed) = files::replace_known(&self.file, before, text.as_bytes()) {
            return match failed.is_changed() {
                true => Err(self.changed_by_hand().into()),
                false => Err(trouble::refused("write", &self.file, &failed.error)),
            };
        }
        *written = Some(text);
        let mut done = super::done(format!("{} is written", self.file.display()));
        done.notes.push("it is not in force until it is applied".to_owned());
        Ok(done)
    }

    /// A text with the secrets that were hidden when it was shown: those of the file that was `written`, and then those
    /// that are in force.
    fn with_secrets(
        now: &Served,
        written: Option<&Zeroizing<String>>,
        text: &str,
    ) -> Result<Zeroizing<String>> {
        // What is no TOML is told with its lines by whoever reads it next.
        let Ok(mut editor) = Editor::new(text) else { return Ok(Zeroizing::new(text.to_owned())) };
        if let Some(mut written) = written.and_then(|text| Editor::new(text).ok()) {
            editor.restore_secrets(&mut written);
        }
        let mut known = Editor::new(&Self::text(now))?;
        editor.restore_secrets(&mut known);
        Ok(Zeroizing::new(editor.text()))
    }
}
