//! What others do with images of Ceph that are served, and images whose clusters were away.

use std::collections::BTreeSet;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use anyhow::Result;
use lunet_api::Change;
use lunet_backends::rbd::{self, ImageName, News};
use lunet_os::sync::MutexGuard;
use lunet_volume::Cause;

use super::Manager;
use super::served::Open;
use crate::failures;
use crate::opening::{self, Failure, How, Unserved};

/// Between two tries to open what a silent cluster has.
const AGAIN: Duration = Duration::from_secs(30);

/// What there is to be said of an image without room.
pub fn is_full(image: &ImageName) -> String {
    format!(
        "the pool of {image} is full, or has reached its quota: writes that need room fail (SPACE ALLOCATION FAILED WRITE PROTECT, \
         Capacity Exceeded); `ceph health detail` and `ceph df` say which, and what has room"
    )
}

/// What is to be done about images, which takes a thread that may wait for a cluster.
#[derive(Debug, Default)]
pub struct Images {
    /// Volumes whose images somebody has changed.
    changed: BTreeSet<String>,
    /// When silent clusters are asked again; `None` as long as all answer.
    again: Option<Instant>,
    /// They are being asked.
    asking: bool,
    /// Volumes that were told to have no room.
    full: BTreeSet<String>,
}

/// Work for a thread that may wait for a cluster.
#[derive(Debug, Default)]
pub struct Work {
    changed: BTreeSet<String>,
    again: bool,
}

impl Work {
    /// True if there is nothing to do.
    pub fn is_none(&self) -> bool {
        self.changed.is_empty() && !self.again
    }
}

impl Manager {
    /// What is to be done about images now. One that was lost is found to be at fault. Does not wait for a cluster.
    pub fn images(&self) -> Work {
        let changed = self.changed_images();
        self.tell_of_full_pools();
        let silent = self.now().unserved.values().any(|unserved| unserved.failure.silent);
        let now = lunet_os::time::now();
        let mut images = self.images_due();
        images.changed.extend(changed);
        images.again = silent.then(|| images.again.unwrap_or(now + AGAIN));
        let again = !images.asking && images.again.is_some_and(|at| at <= now);
        images.asking |= again;
        Work { changed: std::mem::take(&mut images.changed), again }
    }

    /// There is no thread for it now: it is due again.
    pub fn images_later(&self, work: &Work) {
        let mut images = self.images_due();
        images.changed.extend(work.changed.iter().cloned());
        images.asking &= !work.again;
    }

    /// Does it. Waits for clusters.
    pub fn see_to_images(&self, work: &Work) {
        for name in &work.changed {
            self.image_changed(name);
        }
        if work.again {
            self.ask_again();
            let mut images = self.images_due();
            images.asking = false;
            images.again = Some(lunet_os::time::now() + AGAIN);
        }
    }

    fn images_due(&self) -> MutexGuard<'_, Images> {
        self.images.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens images whose cluster was away, and serves those that it gives. Other changes may be made while it is waited for.
    fn ask_again(&self) {
        let served = self.now();
        for (name, unserved) in served.unserved.iter().filter(|(_, one)| one.failure.silent) {
            let opened = opening::open(&unserved.config, &served.plan.data, How::Take);
            if opened.as_ref().is_err_and(|failure| failure.silent) {
                continue;
            }
            match self.take_up(name, unserved, opened) {
                Ok(true) => {}
                Ok(false) => {
                    tracing::info!(volume = name, "its configuration has changed meanwhile")
                }
                Err(error) => tracing::warn!(volume = name, "its cluster answers again: {error:#}"),
            }
        }
    }

    /// The cluster answers again: it has given the image, or something else is wrong, which is for somebody to mend. False
    /// if this is not the volume that was tried.
    fn take_up(
        &self,
        name: &str,
        tried: &Unserved,
        opened: Result<lunet_backends::Volume, Failure>,
    ) -> Result<bool> {
        let _one = self.begin(format!("serving volume {name} again"))?;
        let now = self.now();
        let is = now.unserved.get(name);
        if is.is_none_or(|one| !one.failure.silent || one.config != tried.config) {
            return Ok(false);
        }
        let (mut next, is_given) = (now.with(now.plan.clone(), now.open.clone()), opened.is_ok());
        match opened {
            Ok(volume) => {
                let volume = Open::new(
                    tried.config.clone(),
                    volume,
                    &mut failures::Marks::of(&now.plan.data),
                );
                next.unserved.remove(name);
                next.open.insert(name.to_owned(), volume);
            }
            Err(failure) => {
                tracing::warn!(volume = name, "its cluster answers again: {failure}");
                let unserved = Unserved { failure, ..tried.clone() };
                next.unserved.insert(name.to_owned(), unserved);
            }
        }
        self.adopt(next.keeping(true), None)?;
        if is_given {
            tracing::info!(volume = name, "its cluster answers again: it is served");
        }
        Ok(true)
    }

    /// The volumes whose images were changed by somebody since this was asked last.
    fn changed_images(&self) -> Vec<String> {
        let now = self.now();
        let mut changed = Vec::new();
        // Of images of failover groups, their groups are told at once.
        for (name, open) in now.open.iter().filter(|(_, open)| open.config.group.is_none()) {
            match rbd::news(&open.volume) {
                Some(News::Changed) => changed.push(name.clone()),
                Some(News::Lost { errno }) => drop(open.health.fail(Cause::TakenOver { errno })),
                None => {}
            }
        }
        changed
    }

    /// Tells once of each volume whose pool is full, and when it is not any more.
    fn tell_of_full_pools(&self) {
        let now = self.now();
        let mut images = self.images_due();
        for (name, open) in &now.open {
            match rbd::full(&open.volume) {
                Some(image) if images.full.insert(name.clone()) => {
                    tracing::error!(volume = name, "{}", is_full(&image));
                }
                None if images.full.remove(name) => {
                    tracing::info!(volume = name, "its pool has room again: writes succeed");
                }
                _ => {}
            }
        }
        images.full.retain(|name| now.open.contains_key(name));
    }

    /// Takes over the new size of an image. Waits for the cluster.
    fn image_changed(&self, name: &str) {
        let now = self.now();
        let Some(open) = now.open.get(name) else { return };
        let before = open.volume.caps().bytes();
        match rbd::size(&open.volume) {
            Ok(size) if size > before => {
                let change = Change::ResizeVolume { name: name.to_owned(), size: None };
                match self.change(&change) {
                    Ok(done) => {
                        tracing::info!(volume = name, "its image was resized: {}", done.done)
                    }
                    Err(error) => tracing::warn!(volume = name, "its image was resized: {error:#}"),
                }
            }
            Ok(size) if size < before => drop(open.health.fail(Cause::CutShort { bytes: size })),
            Ok(_) => {}
            Err(error) => tracing::warn!(volume = name, "{error}"),
        }
    }
}
