//! What is asked of storage while it is served.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use lunet_api::Code;
use lunet_backends::zfs::{Dataset, Zfs};
use lunet_backends::{OpenError, Standing, Volume};
use lunet_block::Size;

use super::identity::FileMark;
use super::journal::{Entry, Known};
use super::served::{Open, backend};
use crate::trouble::{refuse, refused};
use crate::{failures, helper, serve};
use lunet_config::{self as config, Backend};
use lunet_files::{self as files, Found};
use lunet_volume::Cause;

/// What keeps the snapshots of a volume.
pub enum Keeper {
    /// Files that share their blocks with this one.
    File(PathBuf),
    /// ZFS.
    Zfs(Zfs, Dataset),
    /// Ceph: its image.
    Rbd(Volume),
}

/// What keeps the snapshots of a volume.
///
/// # Errors
/// It can have none.
pub fn keeper(open: &Open, data: &Path) -> Result<Keeper> {
    match open.config.backend {
        Backend::Rbd { .. } => Ok(Keeper::Rbd(open.volume.clone())),
        _ => keeper_beside(&open.config, data),
    }
}

/// The same of a volume that need not be open for it.
///
/// # Errors
/// It can have none.
pub fn keeper_beside(volume: &config::Volume, data: &Path) -> Result<Keeper> {
    let name = &volume.name;
    match (&volume.backend, volume.path(data)) {
        (Backend::File { .. }, Some(path)) => Ok(Keeper::File(path)),
        (Backend::Block { path, .. }, _) => {
            let Ok(dataset) = Dataset::of_device(path) else {
                return refuse(
                    Code::Unsupported,
                    format!(
                        "{} is no ZFS volume: snapshots need one, or a file on XFS or btrfs",
                        path.display()
                    ),
                    "",
                );
            };
            Ok(Keeper::Zfs(zfs()?, dataset))
        }
        _ => refuse(
            Code::Unsupported,
            format!(
                "volume {name} is of the kind \"{}\", which has no snapshots: they need a file on XFS or btrfs, a ZFS volume, or an image of Ceph",
                backend(volume)
            ),
            "",
        ),
    }
}

/// The `zfs` command. The server itself may run no program.
pub fn zfs() -> Result<Zfs> {
    match helper::is_there() {
        true => Ok(Zfs::elsewhere(helper::zfs)),
        false => Ok(Zfs::find(None, helper::ZFS_TIME)?),
    }
}

/// True if there is nothing at a path.
///
/// # Errors
/// It cannot be told. A file system that does not answer may hold everything.
pub fn is_absent(path: &Path) -> Result<bool> {
    match files::look(path) {
        Found::There(_) => Ok(false),
        Found::Absent => Ok(true),
        Found::Unknown(error) => Err(refused("look at", path, &error)),
    }
}

/// What the journal is to know of a file that grows.
///
/// # Errors
/// It cannot be looked at.
pub fn grown(open: &Open, path: PathBuf, to: u64) -> Result<Option<Entry>> {
    let found =
        lunet_backends::opened(&open.volume).map_err(|error| refused("look at", &path, &error))?;
    let from = open.volume.caps().bytes();
    Ok(found.map(|found| Entry::Grown {
        known: Known { path, file: FileMark::of(&found) },
        from,
        to,
    }))
}

/// Refuses a volume that has lost its storage: only `recreate` and `adopt` say what becomes of it.
///
/// # Errors
/// What has become of the storage.
pub fn check_kept(open: &Open) -> Result<()> {
    let storage = |cause: &Cause| !matches!(cause, Cause::WriteBack { .. });
    let lost = open.health.faults().into_iter().map(|fault| fault.cause).find(storage);
    let Some(cause) = lost else { return Ok(()) };
    let name = &open.config.name;
    refuse(
        Code::NotServed,
        format!("volume {name}: {cause}"),
        "bring the right one back and restart lunet, or see `lunet volume adopt` and `lunet volume recreate`",
    )
}

/// Refuses a volume whose file is not whole at its path: a copy of what is there would not be one of the volume.
///
/// # Errors
/// What is wrong, or that the file cannot be looked at.
pub fn check_whole(open: &Open, path: &Path) -> Result<()> {
    check_kept(open)?;
    let (name, path_text) = (&open.config.name, path.display());
    let found = lunet_backends::standing(&open.volume, path)
        .map_err(|error| refused("look at", path, &error))?;
    match found {
        Standing::Sound => Ok(()),
        Standing::CutShort { bytes } => refuse(
            Code::NotServed,
            format!(
                "{path_text} was cut to {}, which is less than volume {name}: there is nothing whole to copy",
                Size(bytes)
            ),
            "",
        ),
        Standing::Removed | Standing::Elsewhere | Standing::Replaced => refuse(
            Code::NotServed,
            format!("{path_text} is not the file that is served as volume {name}"),
            "bring that back first",
        ),
    }
}

/// Refuses a copy of `bytes` bytes that was made just now from the file of a volume, unless both are whole.
///
/// # Errors
/// As [`check_whole`].
pub fn check_copy(open: &Open, path: &Path, bytes: u64) -> Result<()> {
    check_whole(open, path)?;
    if bytes < open.volume.caps().bytes() {
        bail!("{} was cut while it was copied: nothing was kept", path.display());
    }
    Ok(())
}

/// A volume with more room, on the same storage; without a size, that which the storage has by now.
pub fn grow(open: &Open, data: &Path, size: Option<u64>) -> Result<Volume> {
    check_kept(open)?;
    let config = size.map_or_else(|| open.config.clone(), |size| with_size(&open.config, size));
    lunet_backends::grow(&open.volume, &serve::spec(&config, data)).map_err(|error| {
        if let OpenError::NotStable { error, .. } = &error {
            open.not_stable(failures::errno(error));
        }
        anyhow!("volume {}: {error}", config.name)
    })
}

/// The same volume with another size in bytes.
pub fn with_size(config: &config::Volume, bytes: u64) -> config::Volume {
    let mut config = config.clone();
    match &mut config.backend {
        Backend::File { size, .. } => *size = Some(bytes),
        Backend::Memory { size } | Backend::Null { size } => *size = bytes,
        Backend::Block { .. } | Backend::Rbd { .. } => {}
    }
    config
}
