//! Snapshots: the content of a volume at one time.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use lunet_api::{Code, Done};
use lunet_backends::snapshot as reflink;
use lunet_backends::zfs::{Dataset, Zfs, ZfsError, ZfsSnapshot};
use lunet_backends::{mark, rbd};

use super::apart::Apart;
use super::identity::FileMark;
use super::journal::{Entry, Known};
use super::served::Open;
use super::storage::{self, Keeper};
use super::{Manager, Served, done};
use crate::serve;
use crate::trouble::{At, refuse, refused};
use lunet_config::names;
use lunet_config::{self as config, Backend};
use lunet_files::{self as files, Found};
use lunet_volume::{Cause, HeldVolume};

/// How long the storage has to end what is under way.
pub(super) const HOLD: Duration = Duration::from_secs(30);

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its name, without that of the volume.
    pub name: String,
    /// Its size in bytes, if that is known.
    pub bytes: Option<u64>,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// What tells it from another snapshot of the same name.
    pub uid: Option<String>,
}

impl Apart<'_> {
    pub(super) fn create_snapshot(&self, volume: &str, snapshot: &str) -> Result<Done> {
        let now = &self.now;
        let open = now.volume(volume)?;
        names::check_volume_name(snapshot).map_err(|text| {
            lunet_api::Error::new(Code::Invalid, text.replace("volume", "snapshot"))
        })?;
        let keeper = storage::keeper(open, &now.plan.data)?;
        if list(&now.plan.data, open)?.iter().any(|one| one.name == snapshot) {
            return refuse(
                Code::Exists,
                format!("there is a snapshot {volume}@{snapshot} already"),
                "choose another name",
            );
        }
        self.stop_without("snapshot", &format!("{volume}@{snapshot}"), "is new")?;
        refuse_failed(open, "a snapshot of it")?;
        match keeper {
            Keeper::File(file) => {
                storage::check_whole(open, &file)?;
                // Of the file that is open, whatever comes to be at its path meanwhile.
                let to = path(&file, volume, snapshot);
                let copy = reflink::keep_open(&open.volume, &file, &to)?;
                storage::check_copy(open, &file, copy.metadata()?.len())?;
                self.done_or(copy.publish())?;
            }
            Keeper::Zfs(zfs, dataset) => zfs.snapshot(&dataset, snapshot)?,
            Keeper::Rbd(volume) => rbd::snapshot(&volume, snapshot)?,
        }
        Ok(done(format!("{volume}@{snapshot} keeps what volume {volume} holds now")))
    }

    pub(super) fn delete_snapshot(&self, volume: &str, snapshot: &str) -> Result<Done> {
        let now = &self.now;
        let keeper = find(now, volume, snapshot)?;
        self.stop_without("snapshot", &format!("{volume}@{snapshot}"), "is gone")?;
        match keeper {
            Keeper::File(file) => self.done_or(reflink::remove(&path(&file, volume, snapshot)))?,
            Keeper::Zfs(zfs, dataset) => zfs.destroy_snapshot(&dataset, snapshot)?,
            Keeper::Rbd(volume) => rbd::remove_snapshot(&volume, snapshot)?,
        }
        Ok(done(format!("the snapshot {volume}@{snapshot} is gone")))
    }
}

impl Manager {
    pub(super) fn rollback(
        &self,
        now: &Served,
        volume: &str,
        snapshot: &str,
        force: bool,
    ) -> Result<Done> {
        let open = now.volume(volume)?;
        let keeper = find(now, volume, snapshot)?;
        if open.config.read_only {
            return refuse(
                Code::Unsupported,
                format!("volume {volume} is read-only"),
                "take `read-only` out of the configuration and restart lunet first",
            );
        }
        self.refuse_used(now, volume, "roll it back", force)?;
        self.stop_without("volume", volume, &format!("holds what {volume}@{snapshot} holds"))?;
        refuse_failed(open, "a rollback")?;
        match keeper {
            Keeper::File(file) => self.roll_file_back(now, open, &file, snapshot)?,
            Keeper::Zfs(zfs, dataset) => {
                let held = self.handle.hold(volume, HOLD)?;
                zfs.rollback(&dataset, snapshot)?;
                // The size of the volume is part of what goes back. That cannot be taken back.
                if let Err(error) = self.look_again(now, open, Some(held)) {
                    self.remark(format!(
                        "the size that {dataset} has now cannot be taken over: {error:#}"
                    ));
                }
            }
            Keeper::Rbd(image) => {
                // As long as the cluster copies, what initiators ask for waits.
                let held = self.handle.hold(volume, HOLD)?;
                rbd::roll_back(&image, snapshot)?;
                self.look_again(now, open, Some(held))?;
            }
        }
        Ok(done(format!("volume {volume} holds what {volume}@{snapshot} holds")))
    }

    fn roll_file_back(&self, now: &Served, open: &Open, file: &Path, snapshot: &str) -> Result<()> {
        let name = &open.config.name;
        let kept = path(file, name, snapshot);
        let place = file.canonicalize().at("find", file)?;
        let fresh = files::parent(&place).join(format!(".{name}.rollback"));
        if !storage::is_absent(&fresh)? {
            return refuse(
                Code::Exists,
                format!("{} is in the way", fresh.display()),
                "move it elsewhere",
            );
        }
        let place_now = Known::at(&place)?.filter(|known| is_open(open, known));
        let place_now = place_now.with_context(|| {
            format!(
                "{} is not the file that is served as volume {name}: somebody has put another one \
                 in its place",
                place.display()
            )
        })?;
        let mode =
            place.metadata().with_context(|| format!("cannot look at {}", place.display()))?.mode();
        let copy = reflink::successor(&kept, &fresh, mode)?;
        let entry = Entry::Exchanged {
            path: fresh.clone(),
            file: FileMark::of(&copy.metadata()?),
            place: place_now,
        };
        self.noted(now, vec![entry], || {
            copy.publish()?;
            // It may have grown since; volumes do not shrink.
            let config = storage::with_size(&open.config, open.volume.caps().bytes());
            let volume = serve::open_successor(open, &at(&config, &fresh), &now.plan.data)?;
            // From the exchange on, this is the volume's file.
            mark::carry(&open.volume, &volume).at("mark", &fresh)?;
            self.exchange(now, Open::anew(config, volume, &now.plan.data), &fresh, &place)
        })
    }

    /// Lets a volume have the file `fresh` in place of `place`, which becomes `fresh`.
    fn exchange(&self, now: &Served, open: Open, fresh: &Path, place: &Path) -> Result<()> {
        let name = open.config.name.clone();
        let mut all = now.open.clone();
        let old = all.insert(name.clone(), open);
        let next = now.with(now.plan.clone(), all);
        let prepared = self.prepare(&next)?;
        // No write may go to the old file once the new one counts.
        let held = self.handle.hold(&name, HOLD)?;
        // The moment that counts.
        if let Err(failed) = files::exchange(fresh, place, files::sync_parent) {
            if !failed.visible {
                bail!("cannot exchange {} and {}: {failed}", fresh.display(), place.display());
            }
            self.remark(format!(
                "{} is rolled back, but that cannot be made stable ({failed}): should this machine \
                 crash now, what was written since the snapshot may come back",
                place.display()
            ));
        }
        self.conclude(prepared, next, Some(held));
        // What the old content has lost, the new one has not.
        old.iter().for_each(forget);
        Ok(())
    }

    /// Takes over the size that a device has by now.
    pub(super) fn look_again(
        &self,
        now: &Served,
        open: &Open,
        held: Option<HeldVolume>,
    ) -> Result<()> {
        let volume = storage::grow(open, &now.plan.data, None)?;
        let mut all = now.open.clone();
        all.insert(open.config.name.clone(), Open { volume, ..open.clone() });
        self.adopt(now.with(now.plan.clone(), all), held)
    }
}

/// Refuses what would hide that acknowledged writes of a volume may be lost. It is flushed first: nobody may have
/// heard of that yet.
///
/// # Errors
/// A plain sentence.
pub(super) fn refuse_failed(open: &Open, what: &str) -> Result<()> {
    if let Err(error) = open.volume.slow().sync() {
        open.not_stable(error.errno());
    }
    let faults = open.health.faults();
    if faults.iter().any(|fault| fault.cause == Cause::RolledBackInPart) && what != "a rollback" {
        let name = &open.config.name;
        return refuse(
            Code::NotServed,
            format!("a rollback of volume {name} was cut off, so {what} would hold nothing of use"),
            "roll it back first",
        );
    }
    if open.health.write_back().is_some() {
        let name = &open.config.name;
        return refuse(
            Code::WriteBackFailed,
            format!(
                "the write-back of volume {name} has failed, so acknowledged writes may be lost, and {what} would hide that"
            ),
            format!("`lunet volume reopen {name}` first"),
        );
    }
    Ok(())
}

/// The storage of before is not served any more: nor is what failed there.
pub(super) fn forget(old: &Open) {
    if let Err(error) = old.health.forget() {
        let name = &old.config.name;
        tracing::error!(volume = %name, %error, "the mark of a failed write-back cannot be removed");
    }
}

/// The file of a snapshot: beside that of its volume, since only files of one file system can share
/// their blocks.
pub fn path(volume: &Path, name: &str, snapshot: &str) -> PathBuf {
    files::parent(volume).join(format!("{name}@{snapshot}.img"))
}

/// What is asked about together for several volumes: a thousand volumes may lie in one directory, with a hundred thousand
/// snapshots, and hundreds in one pool of ZFS.
#[derive(Debug, Default)]
pub(super) struct Together {
    /// The snapshots in directories, each of which is read once.
    directories: BTreeMap<PathBuf, BTreeMap<String, Vec<String>>>,
    /// ZFS volumes that were not asked about yet.
    zvols: Vec<Dataset>,
    /// What `zfs` has said of them.
    listed: BTreeMap<Dataset, std::result::Result<Vec<ZfsSnapshot>, ZfsError>>,
}

impl Together {
    /// These volumes will be asked about.
    pub(super) fn about<'a>(volumes: impl Iterator<Item = &'a config::Volume>) -> Self {
        let zvol = |volume: &config::Volume| match &volume.backend {
            Backend::Block { path, .. } => Dataset::of_device(path).ok(),
            _ => None,
        };
        Self { zvols: volumes.filter_map(zvol).collect(), ..Self::default() }
    }

    /// The names of the snapshots of a volume.
    fn files(&mut self, file: &Path, volume: &str) -> Result<&[String]> {
        let directory = files::parent(file);
        if !self.directories.contains_key(directory) {
            self.directories.insert(directory.to_owned(), names_in(directory)?);
        }
        let found = self.directories.get(directory).and_then(|volumes| volumes.get(volume));
        Ok(found.map_or(&[], Vec::as_slice))
    }

    /// The snapshots of a ZFS volume.
    fn zvol(&mut self, zfs: &Zfs, dataset: &Dataset) -> Result<Vec<ZfsSnapshot>> {
        let all = std::mem::take(&mut self.zvols);
        // One alone says better what is wrong with it.
        if all.len() > 1 {
            self.listed = zfs.snapshots_of(&all);
        }
        let known = self.listed.remove(dataset);
        Ok(known.unwrap_or_else(|| zfs.snapshots(dataset))?)
    }
}

/// The names of all snapshots in a directory, by those of their volumes.
fn names_in(directory: &Path) -> Result<BTreeMap<String, Vec<String>>> {
    let failed = || format!("cannot read {}", directory.display());
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for entry in fs::read_dir(directory).with_context(failed)? {
        let file = entry.with_context(failed)?.file_name();
        let Some((volume, snapshot)) = names_of(&file) else { continue };
        match all.get_mut(volume) {
            Some(snapshots) => snapshots.push(snapshot.to_owned()),
            None => drop(all.insert(volume.to_owned(), vec![snapshot.to_owned()])),
        }
    }
    Ok(all)
}

/// The snapshots of a volume, the oldest first.
///
/// # Errors
/// The directory cannot be read, `zfs` fails, or the cluster does.
pub fn list(data: &Path, open: &Open) -> Result<Vec<Snapshot>> {
    list_with(data, open, &mut Together::default())
}

/// The same for one of several volumes.
///
/// # Errors
/// As for [`list`].
pub(super) fn list_with(
    data: &Path,
    open: &Open,
    together: &mut Together,
) -> Result<Vec<Snapshot>> {
    listed(storage::keeper(open, data), &open.config.name, together)
}

/// How many there are of a volume, which need not be open for it.
///
/// # Errors
/// As for [`list`].
pub(super) fn count_beside(
    data: &Path,
    volume: &config::Volume,
    together: &mut Together,
) -> Result<usize> {
    match storage::keeper_beside(volume, data) {
        Ok(Keeper::File(file)) => Ok(together.files(&file, &volume.name)?.len()),
        other => Ok(listed(other, &volume.name, together)?.len()),
    }
}

fn listed(keeper: Result<Keeper>, volume: &str, together: &mut Together) -> Result<Vec<Snapshot>> {
    match keeper {
        Ok(Keeper::File(file)) => files_of(&file, volume, together.files(&file, volume)?),
        Ok(Keeper::Zfs(zfs, dataset)) => {
            let known = together.zvol(&zfs, &dataset)?.into_iter();
            let one = |s: ZfsSnapshot| Snapshot {
                name: s.name,
                bytes: None,
                created: s.created,
                uid: Some(s.guid),
            };
            Ok(known.map(one).collect())
        }
        Ok(Keeper::Rbd(image)) => of_image(&image),
        // It has none.
        Err(_) => Ok(Vec::new()),
    }
}

/// The snapshots of an image, the oldest first.
///
/// # Errors
/// The cluster's.
pub fn of_image(volume: &lunet_backends::Volume) -> Result<Vec<Snapshot>> {
    let image = rbd::identity(volume).map_or_else(String::new, |(id, _)| id);
    let one = |s: rbd::Snapshot| Snapshot {
        name: s.name,
        bytes: Some(s.size),
        created: s.created,
        uid: Some(format!("{image}-{}", s.id)),
    };
    Ok(rbd::snapshots(volume)?.into_iter().map(one).collect())
}

fn files_of(file: &Path, volume: &str, names: &[String]) -> Result<Vec<Snapshot>> {
    let mut out = Vec::with_capacity(names.len());
    for name in names {
        let (name, place) = (name.clone(), path(file, volume, name));
        let found = match files::look_at_name(&place) {
            Found::There(found) => found,
            // It has gone meanwhile.
            Found::Absent => continue,
            // It may be there: a volume with snapshots is not deleted.
            Found::Unknown(error) => return Err(refused("look at", &place, &error)),
        };
        let created = found.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
        let created = created.unwrap_or_default().as_secs();
        // Nobody writes to a snapshot: no later file has both its number and its time.
        let nanoseconds = found.mtime() as i128 * 1_000_000_000 + i128::from(found.mtime_nsec());
        let uid = Some(format!("{:x}-{nanoseconds:x}", found.ino()));
        out.push(Snapshot { name, bytes: Some(found.len()), created, uid });
    }
    out.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
    Ok(out)
}

/// The names of a volume and its snapshot in that file, if it is one. No name of a volume has an `@`.
fn names_of(file: &OsStr) -> Option<(&str, &str)> {
    let (volume, rest) = file.to_str()?.split_once('@')?;
    Some((volume, rest.strip_suffix(".img")?))
}

/// What keeps a snapshot that is there.
pub(super) fn find(now: &Served, volume: &str, snapshot: &str) -> Result<Keeper> {
    let open = now.volume(volume)?;
    let keeper = storage::keeper(open, &now.plan.data)?;
    let all = list(&now.plan.data, open)?;
    if all.iter().any(|one| one.name == snapshot) {
        return Ok(keeper);
    }
    let names = all.iter().map(|one| one.name.as_str());
    let near = config::near_or_list(snapshot, names, &format!("lunet volume snapshots {volume}"));
    refuse(Code::NotFound, format!("there is no snapshot {volume}@{snapshot}{near}"), "")
}

/// True if this is the file that a volume has open.
pub(super) fn is_open(open: &Open, known: &Known) -> bool {
    let found = lunet_backends::opened(&open.volume).ok().flatten();
    found.is_some_and(|found| known.file.fits(&found))
}

/// The volume with another file.
fn at(config: &config::Volume, place: &Path) -> config::Volume {
    let mut config = config.clone();
    if let Backend::File { path, .. } = &mut config.backend {
        *path = Some(place.to_owned());
    }
    config
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn zfs_volumes_are_asked_about_together() {
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        fn run(arguments: &[&str]) -> std::result::Result<String, ZfsError> {
            CALLS.fetch_add(1, Ordering::Relaxed);
            let names = arguments.iter().filter(|one| one.starts_with("tank/"));
            Ok(names.map(|name| format!("{name}@s\t1\t0\t7\n")).collect())
        }
        let volume =
            |n| format!("[volumes.v{n}]\nbackend = 'block'\npath = '/dev/zvol/tank/v{n}'\n");
        let text: String = (0..100).map(volume).collect();
        let config = config::check(&(text + "[[target]]\nname = 'iqn.2026-11.l:x'\n"));
        let all = config.expect("it is right").volumes;
        let (zfs, mut together) = (Zfs::elsewhere(run), Together::about(all.iter()));
        let mut ask = |n| {
            let dataset = Dataset::new(&format!("tank/v{n}")).expect("a name");
            together.zvol(&zfs, &dataset).expect("they are listed").len()
        };
        assert!((0..100).all(|n| ask(n) == 1));
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
        // Of another one nobody knew.
        assert_eq!((ask(200), CALLS.load(Ordering::Relaxed)), (1, 2));
    }

    #[test]
    fn a_snapshot_lies_beside_its_volume_under_both_names() {
        let file = path(Path::new("/d/vm1.img"), "vm1", "monday");
        assert_eq!(file, Path::new("/d/vm1@monday.img"));
        assert_eq!(names_of(file.file_name().unwrap()), Some(("vm1", "monday")));
        assert_eq!(names_of(OsStr::new(".vm1@x.img.lunet-new")), None);
        assert_eq!(names_of(OsStr::new("vm1@x.qcow2")), None);
        assert_eq!(names_of(OsStr::new("vm1.img")), None);
    }
}
