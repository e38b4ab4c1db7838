//! Whose files lunet believes.
//!
//! Whoever writes the configuration decides what is served to whom, and whoever writes the data directory decides
//! what is written where, by links and marks. So both belong to the user that runs lunet.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Result, bail};

/// Others may write.
const LOOSE: u32 = 0o022;

/// Refuses a configuration file that is neither root's nor this user's, or that others may write.
///
/// # Errors
/// A sentence with the next step.
pub fn configuration(path: &Path, found: &Metadata) -> Result<()> {
    check(path, "the configuration", found, &[0, user()])
}

/// Refuses a data directory that is not this user's, or that others may write.
///
/// # Errors
/// A sentence with the next step.
pub fn data(path: &Path, found: &Metadata) -> Result<()> {
    check(path, "the data directory", found, &[user()])
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn check(path: &Path, what: &str, found: &Metadata, owners: &[u32]) -> Result<()> {
    let (name, owner, mode) = (path.display(), found.uid(), found.mode() & 0o7777);
    if !owners.contains(&owner) {
        let user = user();
        bail!(
            "{name}: {what} belongs to user {owner}, and lunet runs as user {user}: run lunet as \
             user {owner}, or `chown {user} {name}`"
        );
    }
    if mode & LOOSE != 0 {
        bail!("{name}: other users may write {what} (mode {mode:04o}): `chmod go-w {name}`");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use tempfile::TempDir;

    #[test]
    fn what_others_may_write_or_have_made_is_refused() {
        let dir = TempDir::new().unwrap();
        for (mode, right) in
            [(0o700, true), (0o755, true), (0o775, false), (0o702, false), (0o1777, false)]
        {
            fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
            let found = dir.path().metadata().unwrap();
            for result in [data(dir.path(), &found), configuration(dir.path(), &found)] {
                assert_eq!(result.is_ok(), right, "{mode:o}");
                let Err(error) = result else { continue };
                assert!(error.to_string().contains("`chmod go-w "), "{error}");
            }
        }
        // Neither root nor whoever runs the tests.
        let found = dir.path().metadata().unwrap();
        let error = check(dir.path(), "it", &found, &[user().wrapping_add(1)]).unwrap_err();
        assert!(error.to_string().contains("belongs to user"), "{error}");
    }
}
