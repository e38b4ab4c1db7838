//! What a gateway keeps of the configurations that its groups share, for a start without their clusters: files in the data
//! directory that nobody but its user may read, as there are secrets in them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use lunet_files as files;
use zeroize::Zeroizing;

use crate::trouble::{At, unread};
use lunet_config as config;

/// The directory, in the data directory.
const DIRECTORY: &str = "groups";
/// The longest file in bytes.
const MOST: u64 = 2 * lunet_group::MAX_TEXT as u64;

/// The file of a group.
fn path(data: &Path, group: &str) -> PathBuf {
    data.join(DIRECTORY).join(format!("{group}.toml"))
}

/// A configuration as it is served here.
pub fn here(group: &str, shared: lunet_group::Shared) -> config::Shared {
    let lunet_group::Shared { revision, text } = shared;
    config::Shared { group: group.to_owned(), revision, text }
}

/// The same as the cluster has it.
pub fn there(shared: &config::Shared) -> lunet_group::Shared {
    lunet_group::Shared { revision: shared.revision, text: shared.text.clone() }
}

/// What is kept of a group; `None` if nothing is.
///
/// # Errors
/// It cannot be read.
pub fn read(data: &Path, group: &str) -> Result<Option<config::Shared>> {
    let path = path(data, group);
    let Some(bytes) = files::read(&path, MOST).map_err(unread)? else { return Ok(None) };
    let found = lunet_group::Shared::decode(&Zeroizing::new(bytes));
    let found = found.with_context(|| format!("{} cannot be used", path.display()))?;
    Ok(Some(here(group, found)))
}

/// Keeps a configuration, in the place of the one before.
///
/// # Errors
/// It cannot be written.
pub fn keep(data: &Path, shared: &config::Shared) -> Result<()> {
    let path = path(data, &shared.group);
    let directory = files::parent(&path);
    files::make_directory(directory, 0o700).at("make", directory)?;
    let bytes = there(shared).encode()?;
    files::replace(&path, &bytes).at("write", &path)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_kept_is_read_and_is_for_this_user_alone() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path(), "vms").unwrap(), None);
        for (revision, text) in [(7, "[volumes.a]\n"), (8, "")] {
            let text = Zeroizing::new(text.to_owned());
            let one = config::Shared { group: "vms".into(), revision, text };
            keep(dir.path(), &one).unwrap();
            assert_eq!(read(dir.path(), "vms").unwrap(), Some(one));
        }
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(path(dir.path(), "vms")), 0o600);
        assert_eq!(mode(dir.path().join(DIRECTORY)), 0o700);
        fs::write(path(dir.path(), "vms"), "[volumes.a]\n").unwrap();
        let error = format!("{:#}", read(dir.path(), "vms").unwrap_err());
        assert!(error.contains("vms.toml cannot be used"), "{error}");
    }
}
