//! Users and groups of this machine, as its files name them.

use std::fs;
use std::io;

use serde::{Deserialize, Serialize};

use crate::helper;
use lunet_config::{Config, Mistake};

/// The files that name them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Names {
    /// /etc/passwd.
    Users,
    /// /etc/group.
    Groups,
}

impl Names {
    /// The file, as this process finds it.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(self) -> io::Result<String> {
        fs::read_to_string(match self {
            Self::Users => "/etc/passwd",
            Self::Groups => "/etc/group",
        })
    }

    /// The same, by the helper if need be: useradd(8) puts another file in the place of this one, which the sandbox of a
    /// server that runs does not know.
    fn get(self) -> String {
        self.read().ok().or_else(|| helper::names(self)).unwrap_or_default()
    }
}

/// The name of a user, if /etc/passwd has it.
pub fn name(uid: u32) -> Option<String> {
    name_in(uid, &Names::Users.get()).map(str::to_owned)
}

/// The number of a group: of one in /etc/group by its name, of others, such as those of a directory service, by the
/// number itself.
pub fn group(name: &str) -> Option<u32> {
    group_in(name, &Names::Groups.get())
}

/// Looks whether the groups that a configuration names are there.
///
/// # Errors
/// A mistake for each that is not.
pub fn check_groups(config: &Config) -> Result<(), Vec<Mistake>> {
    let named = config.control.read_group.iter().chain(&config.control.admin_group);
    let lost = named.filter(|one| group(&one.name).is_none());
    let mistakes: Vec<Mistake> = lost
        .map(|one| {
            one.mistake(format!(
                "this machine has no group \"{0}\": make it with `groupadd --system {0}`, or give the number of a group",
                one.name
            ))
        })
        .collect();
    if mistakes.is_empty() { Ok(()) } else { Err(mistakes) }
}

fn name_in(uid: u32, users: &str) -> Option<&str> {
    let uid = uid.to_string();
    let line = users.lines().find(|line| line.split(':').nth(2) == Some(&uid))?;
    line.split(':').next()
}

fn group_in(name: &str, groups: &str) -> Option<u32> {
    let line = groups.lines().find(|line| line.split(':').next() == Some(name));
    let number = line.and_then(|line| line.split(':').nth(2)).unwrap_or(name);
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names_and_groups_numbers() {
        let users = "root:x:0:0:root:/root:/bin/sh\nstore:x:1000:1000::/:/bin/sh\n";
        assert_eq!((name_in(1000, users), name_in(1, users)), (Some("store"), None));
        let groups = "root:x:0:\nlunet-read:x:990:anna,bert\n";
        let of = |name| group_in(name, groups);
        assert_eq!((of("lunet-read"), of("lunet"), of("7")), (Some(990), None, Some(7)));
        assert_eq!((of(""), of("-1"), of("root:x")), (None, None, None));
    }
}
