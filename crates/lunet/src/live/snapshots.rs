//! Snapshots: the content of a volume at one time.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, bail};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::journal::Entry;
use super::served::{Open, backend};
use super::volumes::{check_new, file_of, no_lun_yet};
use super::{Manager, Served, done, storage};
use crate::config::{self, Backend, edit};
use crate::control::Done;
use crate::{files, names, serve, units};

impl Manager {
    pub(super) fn create_snapshot(
        &self,
        now: &Served,
        volume: &str,
        snapshot: &str,
    ) -> Result<Done> {
        let open = now.volume(volume)?;
        names::check_volume_name(snapshot)
            .map_err(|text| anyhow::anyhow!("{}", text.replace("volume", "snapshot")))?;
        let source = file(now, open)?;
        let place = path(&source, volume, snapshot);
        if place.exists() {
            bail!("there is a snapshot {volume}@{snapshot} already");
        }
        let fresh = files::parent(&source).join(format!(".{volume}@{snapshot}.new"));
        files::remove(&fresh).with_context(|| format!("cannot remove {}", fresh.display()))?;
        self.noted(now, vec![Entry::Scratch { path: fresh.clone() }], || {
            storage::share(&source, &fresh)?;
            // The moment that counts.
            fs::rename(&fresh, &place)
                .and_then(|()| files::sync_parent(&place))
                .with_context(|| format!("cannot make {}", place.display()))
        })?;
        Ok(done(format!("{volume}@{snapshot} keeps what volume {volume} holds now")))
    }

    pub(super) fn delete_snapshot(
        &self,
        now: &Served,
        volume: &str,
        snapshot: &str,
    ) -> Result<Done> {
        let place = self.find(now, volume, snapshot)?;
        files::remove(&place).with_context(|| format!("cannot remove {}", place.display()))?;
        Ok(done(format!("the snapshot {volume}@{snapshot} is gone")))
    }

    pub(super) fn clone_volume(
        &self,
        now: &Served,
        volume: &str,
        snapshot: Option<&str>,
        name: &str,
    ) -> Result<Done> {
        let open = now.volume(volume)?;
        check_new(now, name)?;
        let source = match snapshot {
            Some(snapshot) => self.find(now, volume, snapshot)?,
            None => file(now, open)?,
        };
        let size =
            fs::metadata(&source).with_context(|| format!("cannot read {}", source.display()));
        let mut keys = vec![("backend".to_owned(), "file".into())];
        // Beside its source, since it shares its blocks.
        let place = files::parent(&source).join(format!("{name}.img"));
        if place != now.plan.data.join(format!("{name}.img")) {
            let path = place.to_str().context("the path is not UTF-8 text")?;
            keys.push(("path".to_owned(), path.into()));
        }
        if place.exists() {
            bail!("{} is there already: choose another name", place.display());
        }
        keys.push(("size".to_owned(), edit::size(size?.len())));
        let plan = self.edited(now, |editor| {
            keys.extend(editor.inherited(volume)?);
            let keys: Vec<_> = keys.iter().map(|(key, value)| (&**key, value.clone())).collect();
            editor.add_volume(name, &keys)
        })?;
        let made = file_of(&plan, name);
        let opened = self.add_volume(now, plan, name, made, |config, plan| {
            storage::share(&source, &place)?;
            serve::open(config, &plan.data)
        })?;
        let from = snapshot.map_or_else(String::new, |snapshot| format!("@{snapshot}"));
        let size = units::size(opened.volume.caps().bytes());
        let mut done = done(format!("volume {name} of {size} holds what {volume}{from} holds"));
        done.notes.push(no_lun_yet(name));
        Ok(done)
    }

    pub(super) fn rollback(
        &self,
        now: &Served,
        volume: &str,
        snapshot: &str,
        force: bool,
    ) -> Result<Done> {
        let open = now.volume(volume)?;
        let kept = self.find(now, volume, snapshot)?;
        if open.config.read_only {
            bail!("volume {volume} is read-only: it keeps what it holds");
        }
        self.refuse_used(now, volume, "roll it back", force)?;
        let place = file(now, open)?;
        let fresh = files::parent(&place).join(format!(".{volume}.rollback"));
        files::remove(&fresh).with_context(|| format!("cannot remove {}", fresh.display()))?;
        self.noted(now, vec![Entry::Scratch { path: fresh.clone() }], || {
            storage::share(&kept, &fresh)?;
            // It may have grown since; volumes do not shrink.
            let config = storage::with_size(&open.config, open.volume.caps().bytes());
            let content = serve::open(&at(&config, &fresh), &now.plan.data)?;
            self.exchange(now, open, config, content, &fresh, &place)
        })?;
        Ok(done(format!("volume {volume} holds what {volume}@{snapshot} holds")))
    }

    /// Lets a volume have the file `fresh` in place of `place`, which becomes `fresh`.
    fn exchange(
        &self,
        now: &Served,
        open: &Open,
        config: config::Volume,
        content: lunet_backends::Volume,
        fresh: &Path,
        place: &Path,
    ) -> Result<()> {
        let exchange = || -> std::io::Result<()> {
            renameat_with(CWD, fresh, CWD, place, RenameFlags::EXCHANGE)?;
            files::sync_parent(place)
        };
        let failed = || format!("cannot exchange {} and {}", fresh.display(), place.display());
        // The moment that counts.
        exchange().with_context(failed)?;
        let mut all = now.open.clone();
        all.insert(open.config.name.clone(), Open { config, volume: content });
        self.adopt(now.with(now.plan.clone(), all)).inspect_err(|_| {
            if let Err(error) = exchange() {
                tracing::error!("{}: {error}", failed());
            }
        })
    }

    /// The file of a snapshot that is there.
    fn find(&self, now: &Served, volume: &str, snapshot: &str) -> Result<PathBuf> {
        let open = now.volume(volume)?;
        let place = path(&file(now, open)?, volume, snapshot);
        if place.is_file() {
            return Ok(place);
        }
        let all = list(&now.plan.data, open)?;
        let near = config::did_you_mean(snapshot, all.iter().map(|one| one.name.as_str()));
        bail!("there is no snapshot {volume}@{snapshot}{near}")
    }
}

/// The file of a volume that can have snapshots.
fn file(now: &Served, open: &Open) -> Result<PathBuf> {
    let path = open.config.path(&now.plan.data);
    match (&open.config.backend, path) {
        (Backend::File { .. }, Some(path)) => Ok(path),
        _ => bail!(
            "volume {} is of the kind \"{}\", which has no snapshots: they need a file on XFS or \
             btrfs",
            open.config.name,
            backend(&open.config)
        ),
    }
}

/// The volume with another file.
fn at(config: &config::Volume, place: &Path) -> config::Volume {
    let mut config = config.clone();
    if let Backend::File { path, .. } = &mut config.backend {
        *path = Some(place.to_owned());
    }
    config
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its name, without that of the volume.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it was made, in seconds since 1970.
    pub created: u64,
}

/// The file of a snapshot: beside that of its volume, since only files of one file system can share
/// their blocks.
pub fn path(volume: &Path, name: &str, snapshot: &str) -> PathBuf {
    files::parent(volume).join(format!("{name}@{snapshot}.img"))
}

/// The snapshots of a volume, the oldest first.
///
/// # Errors
/// The directory cannot be read.
pub fn list(data: &Path, open: &Open) -> Result<Vec<Snapshot>> {
    let Backend::File { .. } = open.config.backend else { return Ok(Vec::new()) };
    let Some(volume) = open.config.path(data) else { return Ok(Vec::new()) };
    let directory = files::parent(&volume);
    let failed = || format!("cannot read {}", directory.display());
    let mut out = Vec::new();
    for entry in fs::read_dir(directory).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        let Some(name) = name_of(&open.config.name, &entry.file_name()) else { continue };
        // It may have gone meanwhile.
        let Ok(found) = entry.metadata() else { continue };
        let created = found.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
        let created = created.unwrap_or_default().as_secs();
        out.push(Snapshot { name, bytes: found.len(), created });
    }
    out.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
    Ok(out)
}

/// The name of the snapshot in a file, if it is one of this volume's.
fn name_of(volume: &str, file: &OsString) -> Option<String> {
    let rest = file.to_str()?.strip_prefix(volume)?.strip_prefix('@')?;
    Some(rest.strip_suffix(".img")?.to_owned())
}
