//! Changes of snapshots, beside which other changes go on.
//!
//! They leave the configuration and what is served as they are, and their storage may take its time, or hang. So the lock
//! of all changes is held only while one begins. Until it has ended, nothing else changes its volume.

use std::cell::RefCell;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use anyhow::Result;
use lunet_api::{Change, Code, Done};
use lunet_backends::snapshot::SnapshotError;
use lunet_os::sync::MutexGuard;

use super::{Manager, Served, ago};
use crate::audit;
use crate::trouble::refuse;

/// So many may be under way: each holds a thread that answers requests, and some of these have to be left.
const AT_ONCE: usize = 4;

/// One that is under way.
pub(super) struct Begun {
    volume: String,
    what: String,
    since: Instant,
}

/// A change of a volume's snapshots, until this is dropped.
pub(super) struct Apart<'a> {
    change: &'a Change,
    _beside: Beside<'a>,
    /// What is served.
    pub now: Arc<Served>,
    /// It is to be foretold, and not to be done.
    pub foretells: bool,
    /// What the user should know about it.
    remarks: RefCell<Vec<String>>,
}

/// A change that others go on beside, but for those of its volume, until this is dropped.
pub(super) struct Beside<'a> {
    manager: &'a Manager,
    volume: String,
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        self.manager.apart().retain(|begun| begun.volume != self.volume);
    }
}

/// The volume whose snapshots a change is about, if it is such a change.
const fn snapshots_of(change: &Change) -> Option<&String> {
    match change {
        Change::CreateSnapshot { volume, .. } | Change::DeleteSnapshot { volume, .. } => {
            Some(volume)
        }
        _ => None,
    }
}

impl Manager {
    /// Begins a change that others go on beside; `None` if this is no such change.
    ///
    /// # Errors
    /// Another one is in the way.
    pub(super) fn begin_apart<'a>(
        &'a self,
        change: &'a Change,
        foretells: bool,
    ) -> Result<Option<Apart<'a>>> {
        let Some(volume) = snapshots_of(change) else { return Ok(None) };
        let beside = self.begin_beside(volume, audit::described(change))?;
        let (now, remarks) = (self.now(), RefCell::default());
        Ok(Some(Apart { change, _beside: beside, now, foretells, remarks }))
    }

    /// Begins a change of a volume that others go on beside.
    ///
    /// # Errors
    /// Another one is in the way.
    pub(super) fn begin_beside(&self, volume: &str, what: String) -> Result<Beside<'_>> {
        let _one = self.begin(what.clone())?;
        self.refuse_apart(|of| of == volume)?;
        let now = self.now();
        // That the file of one gateway was changed is no matter of its group's images.
        if now.open.get(volume).is_none_or(|open| open.config.group.is_none()) {
            self.check_untouched(&now)?;
        }
        let mut all = self.apart();
        if all.len() >= AT_ONCE {
            return refuse(
                Code::ChangeUnderWay,
                format!("{AT_ONCE} changes of snapshots are under way, and no more can"),
                format!("try again when one has ended{}", told(&all[0])),
            );
        }
        let volume = volume.to_owned();
        all.push(Begun { volume: volume.clone(), what, since: lunet_os::time::now() });
        Ok(Beside { manager: self, volume })
    }

    /// Refuses a change that concerns a volume whose snapshots are changed now.
    ///
    /// # Errors
    /// It does.
    pub(super) fn refuse_beside_apart(&self, change: &Change) -> Result<()> {
        match change {
            Change::Apply { .. } => self.refuse_apart(|_| true),
            Change::ResizeVolume { name, .. }
            | Change::LimitVolume { name, .. }
            | Change::ReopenVolume { name }
            | Change::RecreateVolume { name }
            | Change::AdoptVolume { name }
            | Change::DeleteVolume { name, .. }
            | Change::CloneVolume { volume: name, .. }
            | Change::Rollback { volume: name, .. } => self.refuse_apart(|of| of == name),
            _ => Ok(()),
        }
    }

    fn refuse_apart(&self, concerns: impl Fn(&str) -> bool) -> Result<()> {
        match self.apart().iter().find(|begun| concerns(&begun.volume)) {
            Some(begun) => refuse(
                Code::ChangeUnderWay,
                format!("volume {} or its snapshots are being changed", begun.volume),
                format!("try again when that has ended{}", told(begun)),
            ),
            None => Ok(()),
        }
    }

    /// Those that are under way.
    pub(super) fn apart(&self) -> MutexGuard<'_, Vec<Begun>> {
        self.apart.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn told(Begun { what, since, .. }: &Begun) -> String {
    ago(what, *since)
}

impl Apart<'_> {
    /// Does it.
    ///
    /// # Errors
    /// Why not; or it is only to be foretold.
    pub fn carry_out(&self) -> Result<Done> {
        let mut done = match self.change {
            Change::CreateSnapshot { volume, snapshot } => {
                self.create_snapshot(volume, snapshot)?
            }
            Change::DeleteSnapshot { volume, snapshot } => {
                self.delete_snapshot(volume, snapshot)?
            }
            _ => unreachable!("it is no change of snapshots"),
        };
        done.notes.extend(self.remarks.take());
        Ok(done)
    }

    /// What is done, but may not survive a power loss, is done: the user is told.
    pub fn done_or(&self, result: Result<(), SnapshotError>) -> Result<()> {
        match result {
            Err(unsynced @ SnapshotError::Unsynced { .. }) => {
                tracing::warn!("{unsynced}");
                self.remarks.borrow_mut().push(unsynced.to_string());
            }
            other => other?,
        }
        Ok(())
    }
}
