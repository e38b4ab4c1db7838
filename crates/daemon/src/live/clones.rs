//! Clones: new volumes with the content of others.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use lunet_api::{Code, Done};
use lunet_backends::snapshot as reflink;
use lunet_backends::zfs::{Dataset, Zfs};
use lunet_backends::{rbd, retry};
use toml_edit::Value;

use super::effects::{Consent, Weighed};
use super::identity::FileMark;
use super::journal::Entry;
use super::served::Open;
use super::storage::{self, Keeper};
use super::volumes::{check_designator, check_new, no_lun_yet};
use super::{Manager, Served, done, snapshots};
use crate::opening::{self, How};
use crate::trouble::{At, refuse};
use lunet_config::units;
use lunet_config::{Backend, edit};
use lunet_files as files;

/// A clone to make.
struct NewClone<'c> {
    /// Of what.
    volume: &'c str,
    name: &'c str,
    /// Its designator, if that is not to follow from its name.
    naa: Option<&'c str>,
}

impl Manager {
    pub(super) fn clone_volume(
        &self,
        now: &Served,
        volume: &str,
        snapshot: Option<&str>,
        name: &str,
        naa: Option<&str>,
    ) -> Result<Done> {
        let open = now.volume(volume)?;
        check_new(now, name)?;
        let new = NewClone { volume, name, naa };
        if let Some(group) = &open.config.group {
            return self.clone_of_group(now, &new, (open, group.as_str()), snapshot);
        }
        let keeper = match snapshot {
            Some(snapshot) => snapshots::find(now, volume, snapshot)?,
            None => storage::keeper(open, &now.plan.data)?,
        };
        if snapshot.is_none() {
            snapshots::refuse_failed(open, "a clone of it")?;
        }
        match (keeper, snapshot) {
            (Keeper::File(file), Some(snapshot)) => {
                let from = snapshots::path(&file, volume, snapshot);
                self.clone_file(now, &new, &from, None)?;
            }
            (Keeper::File(file), None) => self.clone_file(now, &new, &file, Some(open))?,
            (Keeper::Zfs(zfs, dataset), Some(snapshot)) => {
                self.clone_zvol(now, &new, &zfs, &dataset, snapshot)?;
            }
            (Keeper::Rbd(image), Some(snapshot)) => {
                self.clone_image(now, &new, open, &image, snapshot)?;
            }
            (Keeper::Zfs(..), None) => return snapshots_only("ZFS", &new),
            (Keeper::Rbd(_), None) => return snapshots_only("Ceph", &new),
        }
        let size = self.now().volume(name)?.volume.caps().bytes();
        let from = snapshot.map_or_else(String::new, |snapshot| format!("@{snapshot}"));
        let mut done = done(format!(
            "volume {name} of {} holds what {volume}{from} holds",
            units::exact_size(size)
        ));
        done.notes.push(no_lun_yet(name));
        Ok(done)
    }

    /// Clones a snapshot, or the volume that is `served` from this file.
    fn clone_file(
        &self,
        now: &Served,
        new: &NewClone<'_>,
        from: &Path,
        served: Option<&Open>,
    ) -> Result<()> {
        let name = new.name;
        if let Some(open) = served {
            storage::check_whole(open, from)?;
        }
        // Beside its source, since it shares its blocks.
        let place = files::parent(from).join(format!("{name}.img"));
        if !storage::is_absent(&place)? {
            return refuse(
                Code::Exists,
                format!("{} already exists", place.display()),
                "choose another name",
            );
        }
        let found = from.metadata().at("read", from)?;
        let mut keys: Vec<(&str, Value)> = vec![("backend", "file".into())];
        if place != now.plan.data.join(format!("{name}.img")) {
            // Relative paths of the configuration start in the data directory, not where we are.
            let place = std::path::absolute(&place).context("cannot tell where files are")?;
            keys.push(("path", place.to_str().context("the path is not UTF-8 text")?.into()));
        }
        keys.push(("size", edit::size(found.len())));
        let plan = self.clone_plan(now, new, &keys)?;
        let copy = match served {
            // Of the file that is open, whatever comes to be at its path meanwhile.
            Some(open) => reflink::copy_open(&open.volume, from, &place)?,
            None => reflink::copy(from, &place)?,
        };
        if let Some(open) = served {
            storage::check_copy(open, from, copy.metadata()?.len())?;
        }
        let made = Entry::Made { path: place, file: Some(FileMark::of(&copy.metadata()?)) };
        self.add_volume(now, plan, name, Some(made), |config, plan| {
            copy.publish()?;
            Ok(opening::open(config, &plan.data, How::Take)?)
        })
        .map(drop)
    }

    fn clone_zvol(
        &self,
        now: &Served,
        new: &NewClone<'_>,
        zfs: &Zfs,
        source: &Dataset,
        snapshot: &str,
    ) -> Result<()> {
        let name = new.name;
        let pool = source.to_string();
        let above = pool.rsplit_once('/').map_or("", |(above, _)| above);
        let dataset = Dataset::new(&format!("{above}/{name}"))?;
        let device: PathBuf = dataset.device();
        let path = device.to_str().context("the path is not UTF-8 text")?;
        let keys: [(&str, Value); 2] = [("backend", "block".into()), ("path", path.into())];
        let plan = self.clone_plan(now, new, &keys)?;
        zfs.clone_to(source, snapshot, &dataset)?;
        let added = self.add_volume(now, plan, name, None, |config, plan| {
            // The device comes a moment after the volume.
            let look = || if device.exists() { Ok(()) } else { Err(()) };
            let _ = retry::while_in_use(look, |()| true);
            Ok(opening::open(config, &plan.data, How::Take)?)
        });
        added.map(drop).inspect_err(|_| {
            if let Err(error) = zfs.destroy(&dataset) {
                tracing::warn!("the clone {dataset} is of no use, and stays: {error}");
            }
        })
    }

    /// Clones a snapshot of an image: beside that, under the volume's name.
    fn clone_image(
        &self,
        now: &Served,
        new: &NewClone<'_>,
        open: &Open,
        image: &lunet_backends::Volume,
        snapshot: &str,
    ) -> Result<()> {
        let name = new.name;
        let to = image_beside(open, new)?;
        let keys = keys_of(&to);
        let plan = self.clone_plan(now, new, &keys)?;
        rbd::clone_to(image, snapshot, &to)?;
        self.add_volume(now, plan, name, None, |config, plan| {
            Ok(opening::open(config, &plan.data, How::Take)?)
        })
        .map(drop)
        .with_context(|| format!("the image is made, and `rbd rm {}` removes it", to.plain()))
    }

    /// Clones a snapshot of an image of a failover group, at any gateway of it. The clone becomes a volume of the group, with the
    /// next LUN, where the gateways share what they serve; otherwise it is an image, and nobody's.
    fn clone_of_group(
        &self,
        now: &Served,
        new: &NewClone<'_>,
        (open, group): (&Open, &str),
        snapshot: Option<&str>,
    ) -> Result<Done> {
        let (volume, name) = (new.volume, new.name);
        let Some(snapshot) = snapshot else { return snapshots_only("Ceph", new) };
        snapshots::find(now, volume, snapshot)?;
        let to = image_beside(open, new)?;
        let config = &now.plan.config;
        let own = config.groups.iter().find(|own| own.name == group);
        let own = own.with_context(|| format!("there is no group {group}"))?;
        if !own.shared {
            self.stop_without("image", to.plain().as_str(), "is new")?;
            rbd::clone_to(&open.volume, snapshot, &to)?;
            let mut done =
                done(format!("image {} holds what {volume}@{snapshot} holds", to.plain()));
            done.notes.push(format!(
                "it is no volume yet, as each gateway of group {group} has a file of its own: `lunet volume create {name} \
                 --backend rbd --image {to}` makes it one of this gateway alone; to have it in the group, write it into the \
                 files of all gateways, and make the group anew"
            ));
            return Ok(done);
        }
        let target = &config.targets[own.target];
        let is_free = |lun: &u16| target.luns.iter().all(|(taken, _)| taken != lun);
        let lun = (0..=u16::MAX).find(is_free).context("there is no LUN left")?;
        let plan = self.edited_at(now, &target.name, Consent::default(), |editor| {
            let inherited = editor.inherited(volume)?;
            let inherited = inherited.iter().map(|(key, value)| (key.as_str(), value.clone()));
            let naa = new.naa.map(|naa| ("naa", naa.into()));
            let all: Vec<_> = keys_of(&to).into_iter().chain(naa).chain(inherited).collect();
            editor.add_volume(name, &all)?;
            editor.add_lun(&target.name, lun, name)
        })?;
        check_designator(now, &plan.plan.config, name)?;
        self.stop_with(&plan)?;
        rbd::clone_to(&open.volume, snapshot, &to)?;
        self.commit(now, plan, now.open.clone()).with_context(|| {
            format!("the image is made, and `rbd rm {}` removes it", to.plain())
        })?;
        Ok(done(format!(
            "volume {name} is LUN {lun} of {} at all gateways within seconds, and holds what {volume}@{snapshot} holds",
            target.name
        )))
    }

    /// The configuration with the clone in it.
    fn clone_plan(
        &self,
        now: &Served,
        new: &NewClone<'_>,
        keys: &[(&str, Value)],
    ) -> Result<Weighed> {
        let plan = self.edited(now, Consent::default(), |editor| {
            let inherited = editor.inherited(new.volume)?;
            let inherited = inherited.iter().map(|(key, value)| (key.as_str(), value.clone()));
            let naa = new.naa.map(|naa| ("naa", naa.into()));
            let all: Vec<_> = keys.iter().cloned().chain(naa).chain(inherited).collect();
            editor.add_volume(new.name, &all)
        })?;
        check_designator(now, &plan.plan.config, new.name)?;
        self.stop_with(&plan)?;
        Ok(plan)
    }
}

/// Whose clones are made of snapshots alone.
fn snapshots_only(whose: &str, new: &NewClone<'_>) -> Result<Done> {
    let (volume, name) = (new.volume, new.name);
    refuse(
        Code::Unsupported,
        format!("{whose} clones snapshots only"),
        format!(
            "`lunet volume snapshot {volume}@{name}` first, then `lunet volume clone {volume}@{name} {name}`"
        ),
    )
}

/// The image of a clone: beside that of its source, under the name of the volume.
fn image_beside(open: &Open, new: &NewClone<'_>) -> Result<rbd::ImageName> {
    let Backend::Rbd { image: from, .. } = &open.config.backend else {
        bail!("volume {} is no image of Ceph", new.volume);
    };
    from.beside(new.name).map_err(|refusal| {
        let text = format!("the image of volume {} {refusal}", new.name);
        lunet_api::Error::new(Code::Invalid, text).into()
    })
}

/// The keys of a volume that is this image.
fn keys_of(image: &rbd::ImageName) -> [(&'static str, Value); 2] {
    [("backend", "rbd".into()), ("image", image.to_string().into())]
}
