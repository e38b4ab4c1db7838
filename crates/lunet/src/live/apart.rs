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
    manager: &'a Manager,
    change: &'a Change,
    volume: &'a str,
    /// What is served.
    pub now: Arc<Served>,
    /// It is to be foretold, and not to be done.
    pub foretells: bool,
    /// What the user should know about it.
    remarks: RefCell<Vec<String>>,
}

impl Drop for Apart<'_> {
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
        let what = audit::described(change);
        let _one = self.begin(what.clone())?;
        self.refuse_apart(|of| of == volume)?;
        let now = self.now();
        self.check_untouched(&now)?;
        let mut all = self.apart();
        if all.len() >= AT_ONCE {
            return refuse(
                Code::ChangeUnderWay,
                format!("{AT_ONCE} changes of snapshots are under way, and no more can"),
                format!("try again when one has ended{}", told(&all[0])),
            );
        }
        all.push(Begun { volume: volume.clone(), what, since: lunet_os::time::now() });
        let remarks = RefCell::default();
        Ok(Some(Apart { manager: self, change, volume, now, foretells, remarks }))
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
                format!("snapshots of volume {} are being changed", begun.volume),
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
