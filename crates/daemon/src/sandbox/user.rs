//! The user that serves, and the capabilities that are left.

use std::fs;

use anyhow::{Context, Result, anyhow};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set,
    set_capabilities, set_keep_capabilities, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};

/// A user of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The number.
    pub uid: u32,
    /// The number of its group.
    pub gid: u32,
    /// The numbers of its other groups.
    pub groups: Vec<u32>,
}

/// What a server keeps of its capabilities, whoever it runs as:
/// - CAP_IPC_LOCK: buffers that RDMA devices and io_uring hold in memory, beyond RLIMIT_MEMLOCK.
/// - CAP_NET_BIND_SERVICE: a portal with a port below 1024, now or later.
const KEPT: CapabilitySet = CapabilitySet::IPC_LOCK.union(CapabilitySet::NET_BIND_SERVICE);

/// What it keeps besides if it stays root:
/// - CAP_DAC_OVERRIDE: volumes that belong to other users.
/// - CAP_FOWNER: to replace such a file, and to keep its mode.
/// - CAP_CHOWN: sockets for groups (`read-group`, `admin-group`), and the owner of a file that is replaced.
const OF_ROOT: CapabilitySet =
    CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::FOWNER).union(CapabilitySet::CHOWN);

/// The highest capability that a kernel may have.
const LAST: u32 = 63;

impl User {
    /// Finds a user by its name or its number in /etc/passwd and /etc/group.
    ///
    /// # Errors
    /// There is none.
    pub fn find(name: &str) -> Result<Self> {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Self::find_in(name, &read("/etc/passwd"), &read("/etc/group")).ok_or_else(|| {
            anyhow!(
                "this machine has no user {name}, which --user names: make it with `useradd --system {name}`"
            )
        })
    }

    fn find_in(name: &str, users: &str, groups: &str) -> Option<Self> {
        let fields = |line: &'_ str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
        let of = |line: &Vec<String>| {
            line.first().is_some_and(|n| n == name) || line.get(2).is_some_and(|n| n == name)
        };
        let line = users.lines().map(fields).find(of)?;
        let name = line.first()?;
        let member = |line: &Vec<String>| {
            line.get(3).is_some_and(|members| members.split(',').any(|one| one == name))
        };
        let others = groups.lines().map(fields).filter(member);
        Some(Self {
            uid: line.get(2)?.parse().ok()?,
            gid: line.get(3)?.parse().ok()?,
            groups: others.filter_map(|line| line.get(2)?.parse().ok()).collect(),
        })
    }

    /// Whether this process runs as that user already.
    pub fn is_here(&self) -> bool {
        rustix::process::geteuid().as_raw() == self.uid
    }

    /// This thread, which is the only one, is that user's from now on. It keeps the capabilities of a server, and one by which
    /// the kernel may load the module of TLS.
    ///
    /// # Errors
    /// This process may not become that user.
    pub fn become_it(&self) -> Result<()> {
        self.try_it().with_context(|| {
            format!("cannot become user {}: start lunet as root, or without --user", self.uid)
        })?;
        keep(KEPT | CapabilitySet::NET_ADMIN)
    }

    fn try_it(&self) -> rustix::io::Result<()> {
        // Afterwards nobody may.
        clear_bounding_set()?;
        set_keep_capabilities(true)?;
        let group = Gid::from_raw(self.gid);
        let mut groups: Vec<Gid> = self.groups.iter().map(|group| Gid::from_raw(*group)).collect();
        groups.push(group);
        set_thread_groups(&groups)?;
        set_thread_res_gid(group, group, group)?;
        let user = Uid::from_raw(self.uid);
        set_thread_res_uid(user, user, user)?;
        set_keep_capabilities(false)
    }
}

/// What is not in the bounding set does not come back by running a program. Only who may set capabilities can take something
/// out, and nobody else has to: programs give no more any more.
fn clear_bounding_set() -> rustix::io::Result<()> {
    for number in 0..=LAST {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            Ok(()) | Err(Errno::PERM | Errno::INVAL) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Gives up all capabilities but these.
fn keep(kept: CapabilitySet) -> Result<()> {
    let now = capabilities(None)?;
    // A service manager that left none may have forbidden to change them, too.
    without(&now, kept)
        .map_or(Ok(()), |sets| set_capabilities(None, sets).context("cannot give up capabilities"))
}

/// The sets without all but these; `None` if there is nothing to give up.
fn without(now: &CapabilitySets, kept: CapabilitySet) -> Option<CapabilitySets> {
    let left = now.permitted & kept;
    let has_more = now.permitted != left || now.effective != left || !now.inheritable.is_empty();
    has_more.then_some(CapabilitySets {
        effective: left,
        permitted: left,
        inheritable: CapabilitySet::empty(),
    })
}

/// Gives up the capabilities that are not needed. There is one thread.
///
/// # Errors
/// The kernel refuses.
pub fn give_up() -> Result<()> {
    clear_bounding_set()?;
    let is_root = rustix::process::geteuid().is_root();
    keep(if is_root { KEPT | OF_ROOT } else { KEPT })
}

/// The capabilities that this thread has, by their names without `CAP_`, in small letters.
pub fn left() -> Vec<String> {
    let all = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    all.iter_names().map(|(name, _)| name.to_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_nothing_to_give_up_changes_nothing() {
        let none = CapabilitySet::empty();
        let has = |permitted, inheritable| CapabilitySets {
            effective: permitted,
            permitted,
            inheritable,
        };
        assert!(without(&has(none, none), KEPT).is_none());
        assert!(without(&has(KEPT, none), KEPT).is_none());
        for more in [has(KEPT | CapabilitySet::SYS_ADMIN, none), has(KEPT, CapabilitySet::KILL)] {
            let left = without(&more, KEPT).expect("there is something to give up");
            assert_eq!((left.permitted, left.effective, left.inheritable), (KEPT, KEPT, none));
        }
        let idle = CapabilitySets { effective: none, ..has(KEPT, none) };
        assert!(without(&idle, KEPT).is_some(), "it has them, and does not use them yet");
    }

    #[test]
    fn a_user_has_its_groups() {
        let users = "root:x:0:0::/root:/bin/sh\nlunet:x:990:991::/:/sbin/nologin\n";
        let groups = "disk:x:6:lunet,x\nrdma:x:7:lunet\nlunet:x:991:\nother:x:8:lunett\n";
        let lunet = User { uid: 990, gid: 991, groups: vec![6, 7] };
        for name in ["lunet", "990"] {
            assert_eq!(User::find_in(name, users, groups), Some(lunet.clone()), "{name}");
        }
        for name in ["", "x", "991", "lune"] {
            assert_eq!(User::find_in(name, users, groups), None, "{name}");
        }
    }
}
