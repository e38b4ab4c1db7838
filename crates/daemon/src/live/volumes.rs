//! Volumes come, grow and go.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use lunet_api::{Code, Done, NewVolume};
use lunet_backends::rbd;
use lunet_backends::zfs::Dataset;
use lunet_block::Size;
use toml_edit::Value;

use super::effects::{Consent, Weighed, named};
use super::journal::{Entry, Known};
use super::served::Open;
use super::sessions::concerning;
use super::{Manager, Served, counted, done, limits, snapshots, storage};
use crate::opening::{self, Failure, How};
use crate::trouble::{At, refuse, refused};
use crate::{failures, identity, record, serve};
use lunet_config::{self as config, Backend, edit};
use lunet_config::{names, units};
use lunet_files::{self as files, Found};

impl Manager {
    pub(super) fn create_volume(&self, now: &Served, new: &NewVolume) -> Result<Done> {
        let name = &new.name;
        check_new(now, name)?;
        let mut keys: Vec<(&str, Value)> = vec![("backend", new.backend.as_str().into())];
        let files = [
            ("path", &new.path),
            ("ceph-conf", &new.ceph_conf),
            ("ceph-keyring", &new.ceph_keyring),
        ];
        for (key, file) in files {
            if let Some(file) = file {
                keys.push((key, file.to_str().context("the path is not UTF-8 text")?.into()));
            }
        }
        keys.extend(new.image.as_deref().map(|image| ("image", image.into())));
        keys.extend(new.ceph_user.as_deref().map(|user| ("ceph-user", user.into())));
        let found = existing(now, new)?;
        // An image has its own size, and one that is to be made gets it.
        let is_image = new.backend == lunet_api::Backend::Rbd;
        let (image, size) = if is_image { (new.size, None) } else { (None, new.size.or(found)) };
        keys.extend(size.map(|bytes| ("size", edit::size(bytes))));
        keys.extend(new.full.then(|| ("provisioning", "full".into())));
        keys.extend(new.block_size.map(|bytes| ("block-size", i64::from(bytes).into())));
        keys.extend(new.read_only.then(|| ("read-only", true.into())));
        keys.extend(new.write_through.then(|| ("write-cache", "off".into())));
        keys.extend(new.naa.as_deref().map(|naa| ("naa", naa.into())));
        keys.extend(limits::keys_of_new(&new.limits)?);
        let plan = self.edited(now, Consent::default(), |editor| editor.add_volume(name, &keys))?;
        check_designator(now, &plan.plan.config, name)?;
        let made = if found.is_none() { file_of(&plan.plan, name) } else { None };
        let made = made.map(|path| Entry::Made { path, file: None });
        let opened = self.add_volume(now, plan, name, made, |volume, plan| {
            if let Some((place, size)) = serve::image_of(volume).zip(image) {
                rbd::create(&place, size)?;
                tracing::info!(volume = %name, "the image {} of {} is made", place.name, Size(size));
            }
            let opened = opening::open(volume, &plan.data, How::Make);
            Ok(opened.map_err(Failure::of_new_volume)?)
        })?;
        let mut done = done(format!(
            "volume {name} of {} is created",
            units::exact_size(opened.volume.caps().bytes())
        ));
        done.notes.push(no_lun_yet(name));
        Ok(done)
    }

    /// Adds the volume that `plan` has and `now` has not. `made` is what `prepare` makes.
    pub(super) fn add_volume(
        &self,
        now: &Served,
        next: Weighed,
        name: &str,
        made: Option<Entry>,
        prepare: impl FnOnce(&config::Volume, &crate::plan::Plan) -> Result<lunet_backends::Volume>,
    ) -> Result<Open> {
        self.stop_with(&next)?;
        let plan = &next.plan;
        let config = plan.config.volumes.iter().find(|volume| volume.name == name);
        let config = config.context("the volume is not in the configuration")?.clone();
        // A volume of this name may have been there long ago, and with it its reservations.
        failures::set_aside(&plan.data, name)
            .with_context(|| format!("cannot keep what failed under the name {name} before"))?;
        for stale in serve::kept(&plan.data, name) {
            files::remove(&stale).at("remove", &stale)?;
        }
        let entries = made.into_iter().chain([traces(&config, &plan.data)]).collect();
        self.noted(now, entries, || {
            let volume = prepare(&config, &next.plan)?;
            let opened = Open::new(config, volume, &mut failures::Marks::of(&now.plan.data));
            let mut open = now.open.clone();
            open.insert(name.to_owned(), opened.clone());
            self.commit(now, next, open)?;
            Ok(opened)
        })
    }

    pub(super) fn resize_volume(
        &self,
        now: &Served,
        name: &str,
        size: Option<u64>,
    ) -> Result<Done> {
        let open = now.volume(name)?;
        let before = open.volume.caps().bytes();
        match size {
            Some(size) if size < before => {
                return refuse(
                    Code::Unsupported,
                    format!(
                        "volume {name} has {}, and volumes do not shrink: what lies behind the new end would be lost",
                        units::exact_size(before)
                    ),
                    "make a smaller volume and copy what it needs",
                );
            }
            Some(size) if size == before => {
                return Ok(done(format!(
                    "volume {name} has {} already",
                    units::exact_size(before)
                )));
            }
            _ => {}
        }
        match (&open.config.backend, size) {
            (Backend::Block { .. } | Backend::Rbd { .. }, None) => {
                self.look_again(now, open, None)?;
            }
            (Backend::Rbd { image, .. }, Some(size)) => {
                lunet_backends::rbd::resize(&open.volume, size)?;
                self.look_again(now, open, None).with_context(|| {
                    format!(
                        "{image} has its new size, but lunet cannot take it over: `lunet volume resize {name}` tries \
                         again"
                    )
                })?;
            }
            (Backend::Block { path, .. }, Some(size)) => {
                let Ok(dataset) = Dataset::of_device(path) else {
                    return refuse(
                        Code::Unsupported,
                        format!("volume {name} has the size of its device"),
                        format!(
                            "make that larger, then `lunet volume resize {name}` without a size"
                        ),
                    );
                };
                storage::zfs()?.resize(&dataset, size)?;
                self.look_again(now, open, None).with_context(|| {
                    format!(
                        "{dataset} has its new size, but lunet cannot take it over: `lunet volume \
                         resize {name}` tries again"
                    )
                })?;
            }
            (_, None) => {
                return refuse(
                    Code::Invalid,
                    format!("say how large volume {name} should be"),
                    format!("`lunet volume resize {name} SIZE`"),
                );
            }
            (Backend::Memory { .. }, _) => {
                return refuse(
                    Code::Unsupported,
                    format!("volume {name} is in memory, which does not grow"),
                    "delete the volume, and create it anew",
                );
            }
            (_, Some(size)) => self.grow(now, open, size)?,
        }
        let after = self.now().volume(name)?.volume.caps().bytes();
        Ok(done(format!("volume {name} has {} now", units::exact_size(after))))
    }

    fn grow(&self, now: &Served, open: &Open, size: u64) -> Result<()> {
        let name = &open.config.name;
        let plan = self.edited(now, Consent::default(), |editor| editor.set_size(name, size))?;
        self.stop_with(&plan)?;
        let entry = match file_of(&plan.plan, name) {
            Some(path) => storage::grown(open, path, size)?,
            None => None,
        };
        let entries = entry.into_iter().collect();
        self.noted(now, entries, || {
            let volume = storage::grow(open, &now.plan.data, Some(size))?;
            let config = storage::with_size(&open.config, size);
            let mut all = now.open.clone();
            all.insert(name.clone(), open.with(config, volume));
            self.commit(now, plan, all)
        })
    }

    /// The storage is opened anew, and what a failed write-back began is over. Refused while the storage still
    /// fails: the next flush would end the same way.
    pub(super) fn reopen_volume(&self, now: &Served, name: &str) -> Result<Done> {
        let open = now.volume(name)?;
        let before = open.health.write_back();
        let slow = open.volume.slow();
        // A second flush that succeeds proves nothing: the kernel tells each open file once, and drops the pages.
        if let Err(error) = slow.sync() {
            if before.is_none() {
                open.not_stable(error.errno());
                return refuse(
                    Code::WriteBackFailed,
                    format!(
                        "volume {name} is not reopened: this was the first flush to hear that its write-back failed ({error}), and acknowledged writes may be lost"
                    ),
                    "see to the storage (`dmesg`, free space), then reopen it again to end that state",
                );
            }
            // What is lost is known to be lost already. This asks whether the storage takes a flush by now.
            if let Err(error) = slow.sync() {
                return refuse(
                    Code::WriteBackFailed,
                    format!("volume {name} is not reopened: {error} even now"),
                    "see to the storage first (`dmesg`, free space), then try again",
                );
            }
        }
        let volume = storage::grow(open, &now.plan.data, None)?;
        let anew = Open::anew(open.config.clone(), volume, &now.plan.data);
        let mut all = now.open.clone();
        all.insert(name.to_owned(), anew.clone());
        self.adopt(now.with(now.plan.clone(), all), None)?;
        snapshots::forget(open);
        failures::forget(&now.plan.data, &anew.config);
        // What failed while the shards changed over may have been told to their old channels alone.
        if let Err(error) = slow.sync() {
            anew.not_stable(error.errno());
            return refuse(
                Code::WriteBackFailed,
                format!(
                    "volume {name} was reopened, and its storage failed again at once: {error}"
                ),
                "",
            );
        }
        let Some(fault) = before else {
            return Ok(done(format!("volume {name} is reopened; nothing had failed")));
        };
        let mut done = done(format!("volume {name} is reopened: it can be flushed again"));
        done.notes.push(format!(
            "what was written until now and not flushed before {} (UTC) may be lost: check the file systems on the \
             volume, or restore them",
            units::date(fault.since)
        ));
        Ok(done)
    }

    pub(super) fn delete_volume(
        &self,
        now: &Served,
        name: &str,
        keep_data: bool,
        force: bool,
    ) -> Result<Done> {
        // What is in the place of a volume that is not served is not known to be its data.
        let unserved = now.unserved.get(name);
        let config = match unserved {
            Some(unserved) => &unserved.config,
            None => &now.volume(name)?.config,
        };
        self.refuse_used(now, name, "delete it", force)?;
        refuse_named(now, name)?;
        let is_file = matches!(config.backend, Backend::File { .. }) && unserved.is_none();
        let snapshots = match is_file && !keep_data {
            true => super::snapshots::list(&now.plan.data, now.volume(name)?)?,
            false => Vec::new(),
        };
        if !snapshots.is_empty() {
            return refuse(
                Code::Exists,
                format!("volume {name} has {}", counted(snapshots.len(), "snapshot")),
                format!(
                    "delete them first (`lunet volume snapshots {name}` shows them), or leave everything in place with --keep-data"
                ),
            );
        }
        let luns: Vec<(String, u16)> =
            now.luns_of(name).map(|(target, lun)| (target.to_owned(), lun)).collect();
        let consent = Consent { force, ..Consent::default() };
        let plan = self.edited(now, consent, |editor| {
            for (target, lun) in &luns {
                editor.remove_lun(target, *lun)?;
            }
            editor.remove_volume(name)
        })?;
        self.stop_with(&plan)?;
        let file = config.path(&now.plan.data).filter(|_| is_file);
        // What lunet was not to write it is not to delete either.
        let file = file.filter(|_| !keep_data && !config.read_only);
        let (file, left) = match file {
            Some(file) if is_foreign(now.volume(name)?, &file)? => (None, Some(file)),
            file => (file, None),
        };
        let mut kept = serve::kept(&now.plan.data, name).to_vec();
        // What has failed is the storage: as long as that is there, so is its mark.
        let mark = failures::mark(&now.plan.data, name);
        kept.retain(|path| file.is_some() || *path != mark);
        kept.extend(file.iter().map(|file| lunet_backends::sidecar::path(file)));
        let data = match &file {
            Some(file) => data_of(file)?,
            None => Vec::new(),
        };
        let entries = vec![Entry::Gone { volume: name.to_owned(), data, kept }];
        let sessions = plan.sessions.clone();
        self.noted(now, entries, || {
            let mut open = now.open.clone();
            open.remove(name);
            self.commit(now, plan, open)
        })?;
        let foreign = left.is_some();
        if let Some(left) = left {
            self.remark(format!(
                "{} is not the file that was served as volume {name}, and was left alone",
                left.display()
            ));
        }
        let mut done = match (&file, kept_in(config, &now.plan.data).filter(|_| !foreign)) {
            (Some(file), _) => done(format!("volume {name} is gone, and so is {}", file.display())),
            (None, Some(kept)) => {
                done(format!("volume {name} is gone; its data is still in {kept}"))
            }
            (None, None) => done(format!("volume {name} is gone")),
        };
        done.notes.extend(luns.iter().map(|(target, lun)| format!("it was LUN {lun} of {target}")));
        Ok(concerning(done, sessions))
    }

    /// Refuses what would hurt sessions, unless they were meant.
    pub(super) fn refuse_used(
        &self,
        now: &Served,
        volume: &str,
        what: &str,
        force: bool,
    ) -> Result<()> {
        let targets: Vec<&str> = now.luns_of(volume).map(|(target, _)| target).collect();
        let mut sessions = self.known_sessions(force)?;
        sessions.retain(|session| session.target.as_deref().is_some_and(|t| targets.contains(&t)));
        let sessions = sessions.into_iter().map(|session| (session.initiator, session.peer));
        let mut sessions: Vec<(String, String)> = sessions.collect();
        sessions.extend(self.hosts_on(now, volume, force)?);
        if !sessions.is_empty() && !force {
            let see = if sessions.len() == 1 { "sees" } else { "see" };
            return refuse(
                Code::InUse,
                format!(
                    "{} {see} volume {volume} ({})",
                    counted(sessions.len(), "session"),
                    named(sessions.iter().map(|(name, peer)| (name.as_str(), peer.as_str())))
                ),
                format!("log out there first, or {what} all the same with --force"),
            );
        }
        Ok(())
    }
}

/// Refuses a name that no volume can have, or that one has.
pub(super) fn check_new(now: &Served, name: &str) -> Result<()> {
    names::check_volume_name(name).map_err(|text| lunet_api::Error::new(Code::Invalid, text))?;
    if now.open.contains_key(name) || now.unserved.contains_key(name) {
        return refuse(
            Code::Exists,
            format!("there is a volume \"{name}\" already"),
            "choose another name",
        );
    }
    Ok(())
}

/// Refuses a chosen designator that another volume has by its name: initiators would take the two for one. Two chosen ones
/// are compared where the configuration is checked.
pub(super) fn check_designator(now: &Served, config: &config::Config, name: &str) -> Result<()> {
    let volumes = config.volumes.iter();
    let (new, mut others): (Vec<_>, Vec<_>) = volumes.partition(|volume| volume.name == name);
    let Some(naa) = new.first().and_then(|new| new.naa) else { return Ok(()) };
    others.retain(|other| identity::of_volume(&now.machine, other).naa == naa);
    match others.first() {
        None => Ok(()),
        Some(other) => refuse(
            Code::Exists,
            format!("volume {} has the designator {naa} already", other.name),
            "choose another one",
        ),
    }
}

pub(super) fn no_lun_yet(name: &str) -> String {
    format!("it is no LUN yet: `lunet target map TARGET LUN {name}`")
}

/// The size in bytes of the file that is to become a volume as it is; `None` if one is to be made.
fn existing(now: &Served, new: &NewVolume) -> Result<Option<u64>> {
    if new.backend != lunet_api::Backend::File {
        return Ok(None);
    }
    let file = new.path.clone().unwrap_or_else(|| format!("{}.img", new.name).into());
    let path = now.plan.data.join(file);
    match (files::look(&path), new.size) {
        (Found::Unknown(error), _) => {
            refuse(Code::Invalid, refused("look at", &path, &error).to_string(), "")
        }
        (Found::There(found), None) => Ok(Some(found.len())),
        (Found::There(_), Some(_)) => refuse(
            Code::Exists,
            format!("{} already exists", path.display()),
            "leave --size out to take it as it is, or name another --path",
        ),
        (Found::Absent, None) => refuse(
            Code::NotFound,
            format!("{}: there is no such file", path.display()),
            "say with --size how large a new one should be",
        ),
        (Found::Absent, Some(_)) => Ok(None),
    }
}

/// True if another file than the one that is served stands in its place.
fn is_foreign(open: &Open, file: &Path) -> Result<bool> {
    let failed = || format!("cannot look at {}, so nothing was deleted", file.display());
    match file.canonicalize() {
        Ok(path) => {
            let found = Known::at(&path).with_context(failed)?;
            Ok(found.is_some_and(|known| !snapshots::is_open(open, &known)))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(failed),
    }
}

/// The file of a volume, and, if it is a link, what that leads to.
fn data_of(file: &Path) -> Result<Vec<Known>> {
    let failed = || format!("cannot look at {}, so nothing was deleted", file.display());
    let own = Known::at(file).with_context(failed)?;
    let behind = match file.canonicalize() {
        Ok(path) => Known::at(&path).with_context(failed)?,
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(failed),
    };
    let same = |one: &Known| behind.as_ref().is_some_and(|behind| behind.file == one.file);
    let own = own.filter(|own| !same(own));
    Ok(behind.iter().chain(&own).cloned().collect())
}

/// What opening a new volume leaves beside its data, as far as it is not there already: it goes if the volume does
/// not come to be.
pub(super) fn traces(config: &config::Volume, data: &Path) -> Entry {
    let beside = match config.backend {
        Backend::File { .. } => config.path(data).map(|file| lunet_backends::sidecar::path(&file)),
        _ => None,
    };
    let paths = [Some(record::path(data, &config.name)), beside].into_iter().flatten();
    let kept = paths.filter(|path| path.symlink_metadata().is_err()).collect();
    Entry::Gone { volume: config.name.clone(), data: Vec::new(), kept }
}

/// The file of a file volume.
pub(super) fn file_of(plan: &crate::plan::Plan, name: &str) -> Option<PathBuf> {
    let volume = plan.config.volumes.iter().find(|volume| volume.name == name)?;
    matches!(volume.backend, Backend::File { .. }).then(|| volume.path(&plan.data)).flatten()
}

/// Where the data of a volume that goes is still to be found.
fn kept_in(config: &config::Volume, data: &Path) -> Option<String> {
    match config.path(data).filter(|path| path.exists()) {
        Some(path) => Some(path.display().to_string()),
        None => Some(serve::image_of(config)?.name.to_string()),
    }
}

/// Refuses where a `[[subsystem]]` shows a volume: no command takes a namespace out of one.
fn refuse_named(now: &Served, name: &str) -> Result<()> {
    let config = &now.plan.config;
    let alone = config.nvme.subsystems.iter().filter(|subsystem| subsystem.target.is_none());
    for subsystem in alone {
        let shown = subsystem.namespaces.iter().find(|(_, at)| config.volumes[*at].name == name);
        if let Some((nsid, _)) = shown {
            return refuse(
                Code::InUse,
                format!("volume {name} is namespace {nsid} of the subsystem {}", subsystem.nqn),
                "take it out of `namespaces` there with `lunet config apply` first",
            );
        }
    }
    Ok(())
}
