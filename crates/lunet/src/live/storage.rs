//! What is asked of storage while it is served.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use lunet_backends::Volume;
use lunet_backends::zfs::{Dataset, Zfs};

use super::identity::FileMark;
use super::journal::{Entry, Known};
use super::served::{Open, backend};
use crate::config::{self, Backend};
use crate::serve;
use lunet_target::files::{self, Found};

/// How long the `zfs` command may take. It waits for the pool, which may be busy.
const ZFS_TIME: Duration = Duration::from_secs(60);

/// What keeps the snapshots of a volume.
pub enum Keeper {
    /// Files that share their blocks with this one.
    File(PathBuf),
    /// ZFS.
    Zfs(Zfs, Dataset),
}

/// What keeps the snapshots of a volume.
///
/// # Errors
/// It can have none.
pub fn keeper(open: &Open, data: &Path) -> Result<Keeper> {
    let name = &open.config.name;
    match (&open.config.backend, open.config.path(data)) {
        (Backend::File { .. }, Some(path)) => Ok(Keeper::File(path)),
        (Backend::Block { path }, _) => {
            let Ok(dataset) = Dataset::of_device(path) else {
                bail!(
                    "{} is no ZFS volume: snapshots need one, or a file on XFS or btrfs",
                    path.display()
                )
            };
            Ok(Keeper::Zfs(zfs()?, dataset))
        }
        _ => bail!(
            "volume {name} is of the kind \"{}\", which has no snapshots: they need a file on XFS or \
             btrfs, or a ZFS volume",
            backend(&open.config)
        ),
    }
}

/// The `zfs` command.
pub fn zfs() -> Result<Zfs> {
    Ok(Zfs::find(None, ZFS_TIME)?)
}

/// True if there is nothing at a path.
///
/// # Errors
/// It cannot be told. A file system that does not answer may hold everything.
pub fn is_absent(path: &Path) -> Result<bool> {
    match files::look(path) {
        Found::There(_) => Ok(false),
        Found::Absent => Ok(true),
        Found::Unknown(error) => Err(anyhow!("cannot look at {}: {error}", path.display())),
    }
}

/// What the journal is to know of a file that grows.
///
/// # Errors
/// It cannot be looked at.
pub fn grown(open: &Open, path: PathBuf, to: u64) -> Result<Option<Entry>> {
    let found = lunet_backends::opened(&open.volume)
        .map_err(|error| anyhow!("cannot look at {}: {error}", path.display()))?;
    let from = open.volume.caps().bytes();
    Ok(found.map(|found| Entry::Grown {
        known: Known { path, file: FileMark::of(&found) },
        from,
        to,
    }))
}

/// A volume with more room, on the same storage; without a size, that which the storage has by now.
pub fn grow(open: &Open, data: &Path, size: Option<u64>) -> Result<Volume> {
    let config = size.map_or_else(|| open.config.clone(), |size| with_size(&open.config, size));
    lunet_backends::grow(&open.volume, &serve::spec(&config, data))
        .map_err(|error| anyhow!("volume {}: {error}", config.name))
}

/// The same volume with another size in bytes.
pub fn with_size(config: &config::Volume, bytes: u64) -> config::Volume {
    let mut config = config.clone();
    match &mut config.backend {
        Backend::File { size, .. } => *size = Some(bytes),
        Backend::Memory { size } | Backend::Null { size } => *size = bytes,
        Backend::Block { .. } => {}
    }
    config
}
