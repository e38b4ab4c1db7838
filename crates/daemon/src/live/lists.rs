//! What there is, for the commands that show it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
#[cfg(feature = "control")]
use std::path::PathBuf;
use std::sync::PoisonError;

use anyhow::Result;
use lunet_api::{
    Configuration, Erasure, ErasureState, Fault, Limit, Limited, Lun, MappedAs, Reach as For,
    SecretPlace, Snapshot, Target, User, Volume, WriteCache,
};
#[cfg(feature = "control")]
use lunet_api::{Place, Room};
use lunet_backends::layers::{ALWAYS, Effect, Layer, Ops, Rate, Which};
use lunet_backends::rbd;
use lunet_scsi::Sanitation;
use lunet_volume::Cause;
use zeroize::Zeroizing;

#[cfg(feature = "control")]
use super::aside::Aside;
use super::nvme::hosts_in_words;
use super::served::{Open, backend};
use super::snapshots::{self, Together};
use super::{Manager, Served, report};
use crate::identity;
use crate::opening::Unserved;
use lunet_config::access::Source;
use lunet_config::edit::Editor;
use lunet_config::{self as config, Access, Backend, Reach};

/// The rates that a volume is limited to, by itself and by its layers.
fn limits(volume: &config::Volume) -> Vec<Limit> {
    let own = super::limits::of(volume);
    let limit =
        |bytes_per_s, operations_per_s| Limit { on: Limited::All, bytes_per_s, operations_per_s };
    let bytes = own.bytes_per_s.map(|rate| limit(Some(rate), None));
    let operations = own.iops.map(|rate| limit(None, Some(rate)));
    bytes.into_iter().chain(operations).chain(of_layers(&volume.layers)).collect()
}

/// The rates that layers keep all reads, all writes or both to. Limits of a part of them are no limit of the whole.
fn of_layers(layers: &[Layer]) -> Vec<Limit> {
    let limit = |layer: &Layer| {
        let Effect::Limit(rate) = layer.effect else { return None };
        let whole = layer.range.is_none() && layer.which == Which::Share(ALWAYS);
        let on = match layer.ops {
            Ops { read: true, write: true, .. } => Limited::All,
            Ops { read: true, .. } => Limited::Read,
            Ops { write: true, .. } => Limited::Write,
            _ => return None,
        };
        whole.then(|| match rate {
            Rate::Bytes(rate) => Limit { on, bytes_per_s: Some(rate.get()), ..Limit::default() },
            Rate::Operations(rate) => {
                Limit { on, operations_per_s: Some(rate.get()), ..Limit::default() }
            }
        })
    };
    layers.iter().filter_map(limit).collect()
}

/// How writes are answered.
fn write_cache(open: &Open, through: bool) -> WriteCache {
    match (open.volume.caps().write_cache, open.config.write_cache) {
        (false, _) => WriteCache::None,
        (true, false) => WriteCache::Off,
        (true, true) if through => WriteCache::OffByInitiator,
        (true, true) => WriteCache::On,
    }
}

/// That a volume is being sanitized or formatted, or should be: it serves nothing else then.
fn erasure(sanitations: &[(String, Sanitation, Option<u16>)], volume: &str) -> Option<Erasure> {
    let (_, stands, progress) = sanitations.iter().find(|(name, ..)| name == volume)?;
    let state = match stands {
        Sanitation::None => return None,
        Sanitation::Running => ErasureState::Sanitizing,
        Sanitation::Formatting => ErasureState::Formatting,
        Sanitation::Unformatted => ErasureState::FormatUnfinished,
        Sanitation::Failed { .. } => ErasureState::SanitizeFailed,
    };
    Some(Erasure { state, progress: progress.map(|done| f64::from(done) / 65536.0) })
}

/// What is wrong with the storage of a volume.
fn faults(open: &Open) -> Vec<Fault> {
    open.health.faults().into_iter().map(report::fault).collect()
}

/// True if it is told as a fault why its unit is as one that is not formatted.
fn is_rolled_back_in_part(open: &Open) -> bool {
    open.health.faults().iter().any(|fault| fault.cause == Cause::RolledBackInPart)
}

/// Who may log in with CHAP, and where the secrets are.
fn users(access: &Access) -> Vec<User> {
    let user = |user: &lunet_config::access::User| {
        let (secret, file) = match &user.login.secret {
            Source::Here(_) => (SecretPlace::Configuration, None),
            Source::File(path) => (SecretPlace::File, Some(path)),
            Source::Read { file: Some(path), .. } => (SecretPlace::File, Some(path)),
            Source::Environment(_) | Source::Read { file: None, .. } => {
                (SecretPlace::Environment, None)
            }
        };
        User {
            name: user.login.name.clone(),
            secret,
            file: file.map(|path| path.display().to_string()),
            initiators: user.initiators.to_string(),
        }
    };
    access.users.iter().map(user).collect()
}

/// Where each volume is a LUN, or a namespace of a subsystem that is no target, and how many sessions those have.
struct Mapped<'n> {
    places: BTreeMap<&'n str, Vec<MappedAs>>,
    sessions: BTreeMap<String, u64>,
}

impl<'n> Mapped<'n> {
    fn new(now: &'n Served, sessions: BTreeMap<String, u64>) -> Self {
        let config = &now.plan.config;
        let luns = config.targets.iter().flat_map(|target| {
            target.luns.iter().map(|(lun, at)| (*at, target.name.as_str(), *lun))
        });
        let alone = config.nvme.subsystems.iter().filter(|subsystem| subsystem.target.is_none());
        let namespaces = alone.flat_map(|subsystem| {
            // Identifiers of namespaces end at 1024.
            subsystem.namespaces.iter().map(|(nsid, at)| (*at, &*subsystem.nqn, *nsid as u16))
        });
        let mut places: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (at, target, lun) in luns.chain(namespaces) {
            let place = MappedAs { target: target.to_owned(), lun };
            places.entry(&*config.volumes[at].name).or_default().push(place);
        }
        Self { places, sessions }
    }

    fn places(&self, volume: &str) -> Vec<MappedAs> {
        self.places.get(volume).cloned().unwrap_or_default()
    }

    /// How many sessions see the volume.
    fn sessions(&self, volume: &str) -> u64 {
        let places = self.places.get(volume).into_iter().flatten();
        let targets: BTreeSet<&str> = places.map(|place| &*place.target).collect();
        targets.into_iter().filter_map(|target| self.sessions.get(target)).sum()
    }
}

/// What SCSI initiators know a volume by.
fn naa(now: &Served, config: &config::Volume) -> String {
    identity::of_volume(&now.machine, config).naa.to_string()
}

/// What NVMe hosts know it by.
fn uuid(now: &Served, config: &config::Volume) -> String {
    let names = lunet_front_iscsi::names::names(&identity::of_volume(&now.machine, config));
    identity::written(names.uuid)
}

/// A volume that is not served, in the form of the others.
fn unserved(now: &Served, one: &Unserved, mapped: &Mapped<'_>) -> Volume {
    let (config, failure) = (&one.config, &one.failure);
    let text = format!("not served: {}", failure.text());
    Volume {
        name: config.name.clone(),
        backend: backend(config),
        size_bytes: one.size.unwrap_or(0),
        used_bytes: None,
        block_size: config.block_size.unwrap_or(512),
        read_only: config.read_only,
        write_cache: WriteCache::None,
        faults: Some(vec![Fault { state: failure.kind.state(), since: one.since, text }]),
        erasure: None,
        limits: limits(config),
        own_limits: super::limits::of(config),
        path: config.path(&now.plan.data).map(|path| path.display().to_string()),
        luns: mapped.places(&config.name),
        sessions: mapped.sessions(&config.name),
        snapshots: 0,
        naa: Some(naa(now, config)),
        uuid: Some(uuid(now, config)),
    }
}

/// What a volume takes of its file system.
#[derive(Clone, Default)]
pub(super) struct Taken {
    /// Bytes of its file.
    bytes: Option<u64>,
    snapshots: u64,
}

/// What is looked at together: each may hang by itself.
#[cfg(feature = "control")]
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Where {
    /// Files of a directory.
    Directory(PathBuf),
    /// Pools and devices.
    Devices,
    /// Images of the cluster with this configuration of Ceph.
    Cluster(Option<PathBuf>),
}

/// What volumes take.
#[cfg(feature = "control")]
pub(super) type Files = BTreeMap<Where, Aside<Vec<(String, Taken)>>>;

/// What is looked at for a volume.
enum Looked {
    /// Nothing of what is served is held meanwhile: a look that hangs keeps no such volume open.
    Beside(Box<config::Volume>),
    /// An image that is open: it is not closed while it is asked, nor while its cluster is away.
    Image(lunet_backends::Volume),
}

impl Looked {
    fn of(open: &Open) -> Self {
        match open.config.backend {
            Backend::Rbd { .. } => Self::Image(open.volume.clone()),
            _ => Self::Beside(Box::new(open.config.clone())),
        }
    }

    #[cfg(feature = "control")]
    fn beside(&self) -> Option<&config::Volume> {
        match self {
            Self::Beside(volume) => Some(volume),
            Self::Image(_) => None,
        }
    }

    fn taken(&self, data: &Path, together: &mut Together) -> Taken {
        let (bytes, snapshots) = match self {
            Self::Beside(volume) => {
                let is_file = matches!(volume.backend, Backend::File { .. });
                let path = volume.path(data).filter(|_| is_file);
                let file = path.and_then(|path| path.metadata().ok());
                let snapshots = snapshots::count_beside(data, volume, together);
                (file.map(|file| file.blocks() * 512), snapshots)
            }
            Self::Image(volume) => {
                (rbd::used(volume), snapshots::of_image(volume).map(|all| all.len()))
            }
        };
        Taken { bytes, snapshots: snapshots.map_or(0, |count| count as u64) }
    }
}

#[cfg(feature = "control")]
impl Where {
    fn of(volume: &config::Volume, data: &Path) -> Self {
        match (&volume.backend, volume.path(data)) {
            (Backend::Rbd { conf, .. }, _) => Self::Cluster(conf.clone()),
            (_, Some(path)) => Self::Directory(lunet_files::parent(&path).to_owned()),
            (_, None) => Self::Devices,
        }
    }
}

impl Manager {
    /// The volumes, by name.
    pub fn volumes(&self) -> Vec<Volume> {
        let now = self.now();
        let through = self.handle.written_through();
        let sanitations = lunet_front_iscsi::sanitations(&self.handle);
        let mut taken = self.taken(&now);
        let mapped = Mapped::new(&now, self.sessions_by_target());
        let served = now.open.iter().map(|(name, open)| {
            let caps = open.volume.caps();
            let path = open.config.path(&now.plan.data);
            let taken = taken.remove(name).unwrap_or_default();
            Volume {
                name: name.clone(),
                backend: backend(&open.config),
                size_bytes: caps.bytes(),
                used_bytes: taken.bytes,
                block_size: caps.block_size,
                read_only: caps.read_only,
                write_cache: write_cache(open, through.contains(name)),
                faults: Some(faults(open)),
                erasure: erasure(&sanitations, name).filter(|_| !is_rolled_back_in_part(open)),
                limits: limits(&open.config),
                own_limits: super::limits::of(&open.config),
                path: path.map(|path| path.display().to_string()),
                luns: mapped.places(name),
                sessions: mapped.sessions(name),
                snapshots: taken.snapshots,
                naa: Some(naa(&now, &open.config)),
                uuid: Some(uuid(&now, &open.config)),
            }
        });
        let unserved = now.unserved.values().map(|one| unserved(&now, one, &mapped));
        let mut all: Vec<Volume> = served.chain(unserved).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// What the volumes that are served take of their file systems. One that hangs leaves out no volumes but its own.
    #[cfg(feature = "control")]
    fn taken(&self, now: &Served) -> BTreeMap<String, Taken> {
        let data = &now.plan.data;
        let mut places: BTreeMap<Where, Vec<(String, Looked)>> = BTreeMap::new();
        for (name, open) in &now.open {
            let place = Where::of(&open.config, data);
            places.entry(place).or_default().push((name.clone(), Looked::of(open)));
        }
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.retain(|place, _| places.contains_key(place));
        let asked = places.into_iter().map(|(place, volumes)| {
            let (aside, data) = (files.entry(place).or_default().clone(), data.clone());
            aside.begin(move || {
                let beside = volumes.iter().filter_map(|(_, looked)| looked.beside());
                let mut together = Together::about(beside);
                let look =
                    |(name, looked): (String, Looked)| (name, looked.taken(&data, &mut together));
                volumes.into_iter().map(look).collect()
            });
            aside
        });
        let asked: Vec<_> = asked.collect();
        drop(files);
        asked.into_iter().filter_map(|aside| aside.found()).flatten().collect()
    }

    /// The simulator's file systems do not hang.
    #[cfg(not(feature = "control"))]
    fn taken(&self, now: &Served) -> BTreeMap<String, Taken> {
        let mut together = Together::about(now.open.values().map(|open| &open.config));
        let one = |(name, open): (&String, &Open)| {
            (name.clone(), Looked::of(open).taken(&now.plan.data, &mut together))
        };
        now.open.iter().map(one).collect()
    }

    /// The room for new volumes in the data directory.
    #[cfg(feature = "control")]
    pub fn room(&self) -> Option<Room> {
        let data = self.now().plan.data.clone();
        self.room.begin(move || {
            let found = rustix::fs::statvfs(&data).ok()?;
            let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
            Some(Room { size_bytes: bytes(found.f_blocks), available_bytes: bytes(found.f_bavail) })
        });
        self.room.found()?
    }

    /// Where the volumes that are served are kept, those without a path left out.
    #[cfg(feature = "control")]
    pub fn places(&self) -> Vec<Place> {
        let now = self.now();
        let place = |(name, open): (&String, &Open)| {
            let path = open.config.path(&now.plan.data)?;
            Some(Place { volume: name.clone(), path: path.to_str()?.to_owned() })
        };
        now.open.iter().filter_map(place).collect()
    }

    /// The snapshots of a volume or of all, the oldest of each first.
    ///
    /// # Errors
    /// There is no such volume, or a directory cannot be read.
    pub fn snapshots(&self, volume: Option<&str>) -> Result<Vec<Snapshot>> {
        let now = self.now();
        if let Some(name) = volume {
            now.volume(name)?;
        }
        let wanted = || now.open.iter().filter(|(name, _)| volume.is_none_or(|v| v == *name));
        let mut together = Together::about(wanted().map(|(_, open)| &open.config));
        let mut out = Vec::new();
        for (name, open) in wanted() {
            let all = snapshots::list_with(&now.plan.data, open, &mut together)?;
            out.extend(all.into_iter().map(|one| Snapshot {
                volume: name.clone(),
                snapshot: one.name,
                size_bytes: one.bytes,
                created: one.created,
                uid: one.uid,
            }));
        }
        Ok(out)
    }

    /// The targets with their LUNs, in the order of the configuration.
    pub fn targets(&self) -> Vec<Target> {
        let now = self.now();
        let config = &now.plan.config;
        let sessions = self.sessions_by_target();
        let target = |target: &lunet_config::Target| {
            let subsystem = config.nvme.of_target(&target.name);
            let lun = |(lun, at): &(u16, usize)| {
                let volume = config.volumes[*at].name.clone();
                let size_bytes = now.open.get(&volume).map(|open| open.volume.caps().bytes());
                Lun { lun: *lun, volume, size_bytes }
            };
            Target {
                name: target.name.clone(),
                alias: target.alias.clone(),
                reach: match target.reach() {
                    Reach::Named => For::Named,
                    Reach::Everybody => For::Everybody,
                    Reach::ThisMachine => For::ThisMachine,
                },
                luns: target.luns.iter().map(lun).collect(),
                sessions: sessions.get(&target.name).copied().unwrap_or(0),
                initiators: Some(target.access.initiators.to_string()),
                users: users(&target.access),
                mutual: target.access.mutual.as_ref().map(|own| own.name.clone()),
                nqn: subsystem.map(|found| found.nqn.clone()),
                hosts: subsystem.map(|found| hosts_in_words(&found.hosts)),
            }
        };
        config.targets.iter().map(target).collect()
    }

    /// The configuration in force.
    pub fn configuration(&self) -> Configuration {
        let now = self.now();
        let shown = |text: &str| {
            Editor::new(text).map(|mut editor| {
                editor.hide_secrets();
                editor.text()
            })
        };
        // It is in force, so it can be read.
        let text = shown(&Self::text(&now)).unwrap_or_default();
        let found = self.file_text().ok().flatten();
        let other = found.filter(|found| now.plan.text.as_ref() != Some(found));
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let pending = other.as_ref().filter(|other| written.as_ref() == Some(*other));
        let version =
            |text: &Zeroizing<String>| format!("{:016x}", self.versions.hash_one(text.as_str()));
        let table: toml::Table = text.parse().unwrap_or_default();
        let config = match serde_json::to_value(table) {
            Ok(serde_json::Value::Object(config)) => config,
            _ => serde_json::Map::new(),
        };
        let path = |path: &std::path::Path| {
            std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
        };
        Configuration {
            file: path(&self.file),
            embedded: now.plan.text.is_none(),
            text,
            config,
            pending: pending.and_then(|text| shown(text).ok()),
            pending_version: other.as_ref().map(version),
            data: path(&now.plan.data),
            socket: path(&now.plan.socket),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    #[test]
    fn only_limits_of_all_reads_or_writes_are_told() {
        let rate = NonZeroU64::new(1000).expect("not 0");
        let bytes = Layer::new(Effect::Limit(Rate::Bytes(rate)), Ops::ALL);
        let reads = Layer::new(Effect::Limit(Rate::Operations(rate)), Ops::READ);
        let part = Layer { which: Which::Share(5), ..bytes.clone() };
        let place = Layer { range: Some(0..512), ..bytes.clone() };
        let flushes = Layer::new(Effect::Limit(Rate::Operations(rate)), Ops::FLUSH);
        let told =
            of_layers(&[bytes, reads, part, place, flushes, Layer::new(Effect::Hang, Ops::ALL)]);
        let expected = [
            Limit { on: Limited::All, bytes_per_s: Some(1000), operations_per_s: None },
            Limit { on: Limited::Read, bytes_per_s: None, operations_per_s: Some(1000) },
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn what_erases_a_volume_is_told_with_its_progress() {
        let stand = |stands, progress| [("vm1".to_owned(), stands, progress)];
        let told = |stands, progress| erasure(&stand(stands, progress), "vm1");
        let under_way = |state| Some(Erasure { state, progress: Some(0.25) });
        assert_eq!(told(Sanitation::Formatting, Some(0x4000)), under_way(ErasureState::Formatting));
        assert_eq!(told(Sanitation::Running, Some(0x4000)), under_way(ErasureState::Sanitizing));
        let stopped = |state| Some(Erasure { state, progress: None });
        let unfinished = stopped(ErasureState::FormatUnfinished);
        assert_eq!(told(Sanitation::Unformatted, None), unfinished);
        let failed = told(Sanitation::Failed { restricted: true }, None);
        assert_eq!(failed, stopped(ErasureState::SanitizeFailed));
        assert_eq!(told(Sanitation::None, None), None);
        assert_eq!(erasure(&stand(Sanitation::Formatting, Some(0)), "vm2"), None);
    }
}
