//! Whose files lunet believes.
//!
//! Whoever writes the configuration decides what is served to whom, and whoever writes the data directory decides
//! what is written where, by links and marks. So both belong to the user that runs lunet.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Result, bail};

use crate::users;
use lunet_config::place::Layout;

/// Others may write.
const LOOSE: u32 = 0o022;

/// Refuses a configuration file that is neither root's nor this user's, or that others may write.
///
/// # Errors
/// A sentence with the next step.
pub fn configuration(path: &Path, found: &Metadata) -> Result<()> {
    check(path, "the configuration", found, &[0, user()])
}

/// Whose server a check of a configuration file speaks for: this user's, or, as root looks at the file of another user
/// without serving it, that user's.
///
/// # Errors
/// As [`configuration`], but that root may read what is anybody's.
pub fn checked(path: &Path, found: &Metadata) -> Result<u32> {
    let as_user = if user() == 0 { found.uid() } else { user() };
    check(path, "the configuration", found, &[0, as_user])?;
    Ok(as_user)
}

/// Refuses a data directory that is not this user's, or that others may write.
///
/// # Errors
/// A sentence with the next step.
pub fn data(path: &Path, found: &Metadata) -> Result<()> {
    data_of(path, found, user())
}

/// The same for the server of another user. A file of root's may be for any user's.
///
/// # Errors
/// A sentence with the next step.
pub fn data_of(path: &Path, found: &Metadata, owner: u32) -> Result<()> {
    let whose = if owner == 0 && user() == 0 { found.uid() } else { owner };
    check(path, "the data directory", found, &[whose])
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn check(path: &Path, what: &str, found: &Metadata, owners: &[u32]) -> Result<()> {
    let (name, mode) = (path.display(), found.mode() & 0o7777);
    if !owners.contains(&found.uid()) {
        let (owner, user) = (named(found.uid()), named(user()));
        let step = step(path, found.uid());
        bail!("{name}: {what} belongs to user {owner}, and this lunet runs as {user}: {step}");
    }
    if mode & LOOSE != 0 {
        bail!("{name}: other users may write {what} (mode {mode:04o}): `chmod go-w {name}`");
    }
    Ok(())
}

/// What to do about a file of another user. What is the machine's service's stays so.
fn step(path: &Path, owner: u32) -> String {
    let name = users::name(owner).unwrap_or_else(|| format!("'#{owner}'"));
    let as_owner = format!("run it as that user (`sudo -u {name} lunet ...`)");
    match is_of_service(path) {
        true => format!("{as_owner}, or start the service with `systemctl start lunet`"),
        false => format!("{as_owner}, or `chown {} {}`", user(), path.display()),
    }
}
/// Whether a path is one of the machine's service's.
pub fn is_of_service(path: &Path) -> bool {
    let service = Layout::of_service(|_| None);
    path == service.config || path.starts_with(service.data)
}

/// A user by number, and by name if there is one.
fn named(uid: u32) -> String {
    users::name(uid).map_or_else(|| uid.to_string(), |name| format!("{name} ({uid})"))
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
        assert!(error.to_string().contains("`chown "), "{error}");
    }

    #[test]
    fn what_is_the_services_is_not_to_be_given_away() {
        let told = step(Path::new("/etc/lunet/lunet.toml"), u32::MAX - 7);
        assert!(told.contains("`sudo -u '#4294967288' lunet ...`"), "{told}");
        assert!(told.contains("`systemctl start lunet`") && !told.contains("chown"), "{told}");
        assert!(step(Path::new("/home/a/lunet.toml"), 0).contains("`sudo -u root lunet ...`"));
    }
}
