//! Which file a path leads to: names change hands, files do not.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use lunet_files::{self as files, Found};
use serde::{Deserialize, Serialize};

use super::patience::{Look, patiently};
use lunet_config::Config;

/// What tells a file from every other one on its file system, over restarts of the machine too: numbers of
/// devices change with them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileMark {
    inode: u64,
    /// When it was made, in nanoseconds since 1970, on file systems that know: inode numbers are used again.
    born: Option<u64>,
}

impl FileMark {
    /// Identifies a file by inode number and time of creation.
    pub fn of(found: &Metadata) -> Self {
        let born = found.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let born = born.and_then(|time| u64::try_from(time.as_nanos()).ok());
        Self { inode: found.ino(), born }
    }

    /// True if this is the file.
    pub fn fits(&self, found: &Metadata) -> bool {
        let other = Self::of(found);
        let born = self.born.zip(other.born).is_none_or(|(one, other)| one == other);
        self.inode == other.inode && born
    }
}

/// True if both are about one file. Only while the machine runs.
fn same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// The files that are not to be touched: those of the configuration, and what the server has open.
pub struct InUse {
    /// Volumes of the configuration, with their files, and what these are.
    configured: Vec<(String, PathBuf, Found)>,
    /// What is open; nothing for what hangs.
    open: Vec<(String, Option<Metadata>)>,
}

impl InUse {
    /// What a configuration uses with this data directory, and what volumes have open, by their names, or nothing of what
    /// does not say so because it hangs.
    pub fn new(config: &Config, data: &Path, open: Vec<(String, Option<Metadata>)>) -> Self {
        let paths = config.volumes.iter().filter_map(|volume| {
            let path = volume.path(data)?;
            let path = std::path::absolute(&path).unwrap_or(path);
            Some((volume.name.clone(), path))
        });
        let paths: Vec<(String, PathBuf)> = paths.collect();
        let look = |(_, path): &(String, PathBuf)| -> Look<_> {
            let path = path.clone();
            Box::new(move || files::look(&path))
        };
        let found = patiently(paths.iter().map(look).collect());
        let hangs = || Found::Unknown(ErrorKind::TimedOut.into());
        let configured = paths.into_iter().zip(found);
        let configured =
            configured.map(|((name, path), found)| (name, path, found.unwrap_or_else(hangs)));
        Self { configured: configured.collect(), open }
    }

    /// The volume of the configuration whose file this is.
    pub fn owner(&self, path: &Path, found: &Metadata) -> Option<&str> {
        let owns = |at: &Found| matches!(at, Found::There(at) if same(at, found));
        let owner = self.configured.iter().find(|(_, own, at)| own == path || owns(at));
        owner.map(|(name, ..)| name.as_str())
    }

    /// The volume that uses this file, or that may, because nobody can tell what its file is.
    pub fn user(&self, path: &Path, found: &Metadata) -> Option<&str> {
        let is_it = |at: &Option<Metadata>| at.as_ref().is_none_or(|at| same(at, found));
        let open = || self.open.iter().find(|(_, at)| is_it(at)).map(|(name, _)| name);
        let unknown = || {
            let mut all = self.configured.iter();
            all.find(|(.., at)| matches!(at, Found::Unknown(_))).map(|(name, ..)| name)
        };
        self.owner(path, found).or_else(|| open().or_else(unknown).map(String::as_str))
    }

    /// True if a volume of the configuration has this path.
    pub fn is_configured(&self, path: &Path) -> bool {
        self.configured.iter().any(|(_, own, _)| own == path)
    }
}
