//! What of the file system and the network a server may reach (Landlock).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};

use crate::plan::Plan;
use lunet_config::Backend;
use lunet_config::secrets;
use lunet_files as files;

/// The newest version of the interface whose rights we know.
const KNOWN: ABI = ABI::V6;

/// Directories at the top that are the system's own: a server reads what is named below of them, and nothing else.
const SYSTEM: &[&str] = &[
    "bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "root", "run", "sbin",
    "sys", "usr", "var",
];

/// Of these, where volumes may well be.
const AMONG_THEM: &[&str] = &["/dev", "/var/lib", "/var/opt", "/var/tmp"];

/// What it reads of them: libraries that are loaded at run time (RDMA), users and groups, the time zone, names, and what the kernel
/// and services tell.
const READ: &[&str] = &[
    "/etc/ceph",
    "/etc/group",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/libibverbs.d",
    "/etc/localtime",
    "/etc/machine-id",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/rdma",
    "/lib",
    "/lib64",
    "/proc",
    "/run",
    "/sys",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/share/zoneinfo",
];

/// What it uses besides: devices for RDMA, and those that are not there to be kept from anybody.
const DEVICES: &[&str] = &["/dev/infiniband", "/dev/null", "/dev/urandom", "/dev/zero"];

/// Where a server reads and writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Whatever is below these.
    used: BTreeSet<PathBuf>,
    /// Whatever is below these, only to be read.
    read: BTreeSet<PathBuf>,
    /// The names of what is below these.
    listed: BTreeSet<PathBuf>,
    /// Directories may be removed below these, if they are empty.
    removed: BTreeSet<PathBuf>,
}

impl Reach {
    /// What a plan needs. Where the configuration names no paths, there is besides everything but the system's
    /// directories, and there are all devices.
    pub fn of(plan: &Plan) -> Self {
        let mut reach = Self::default();
        let all = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        reach.read.extend(all(READ));
        // For the names in a backtrace.
        reach.read.extend(std::env::current_exe());
        reach.used.extend(all(DEVICES));
        // A name of a volume of ZFS is looked for there.
        reach.listed.insert("/dev".into());
        reach.used.insert(plan.data.clone());
        // A socket or a file that is replaced needs its directory.
        for file in [&plan.file, &plan.socket] {
            reach.used.insert(files::parent(file).to_path_buf());
        }
        for volume in &plan.config.volumes {
            // A file may be replaced by another one, and has files beside it.
            if let (Backend::File { .. }, Some(path)) = (&volume.backend, volume.path(&plan.data)) {
                let path = path.canonicalize().unwrap_or(path);
                reach.used.insert(files::parent(&path).to_path_buf());
            }
        }
        for volume in &plan.config.volumes {
            if let Backend::Rbd { conf, keyring, .. } = &volume.backend {
                reach.read.extend(conf.iter().chain(keyring).map(|file| with_its_directory(file)));
            }
        }
        for group in &plan.config.groups {
            let files = group.conf.iter().chain(&group.keyring);
            reach.read.extend(files.map(|file| with_its_directory(file)));
        }
        for group in &plan.config.pending {
            let files = group.conf.iter().chain(&group.keyring);
            reach.read.extend(files.map(|file| with_its_directory(file)));
        }
        let control = &plan.config.control;
        let certificate = control.certificate.iter().flat_map(|(one, key)| [one, key]);
        let secrets = secrets::files(&plan.config);
        for file in certificate.chain(&secrets) {
            reach.read.insert(with_its_directory(&files::parent(&plan.file).join(file)));
        }
        // A start that fails removes what it has made.
        reach.removed.insert(files::parent(&plan.data).to_path_buf());
        match &plan.config.sandbox.paths {
            Some(paths) => reach.used.extend(paths.iter().cloned()),
            None => {
                reach.used.extend(others(Path::new("/")));
                reach.used.extend(all(AMONG_THEM));
            }
        }
        reach
    }
}

impl Reach {
    /// Whether files at a path may be used.
    pub fn has(&self, path: &Path) -> bool {
        let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        // Of a file that is not there, its directory counts.
        let real = whole.ancestors().find_map(|part| part.canonicalize().ok()).unwrap_or(whole);
        let is_above =
            |used: &PathBuf| used.canonicalize().is_ok_and(|used| real.starts_with(used));
        self.used.iter().any(is_above)
    }
}

/// The directory of a file, since the file may be replaced; of one right in a directory of the system the file itself.
fn with_its_directory(file: &Path) -> PathBuf {
    let directory = files::parent(file);
    let is_systems = directory.parent().is_none_or(|above| above == Path::new("/"));
    if is_systems { file.to_path_buf() } else { directory.to_path_buf() }
}

/// The directories at the top that are not the system's own.
fn others(root: &Path) -> Vec<PathBuf> {
    let is_other = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        is_directory && !SYSTEM.iter().any(|system| name == *system)
    };
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    entries.filter(is_other).map(|entry| entry.path()).collect()
}

/// How far a kernel goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limited {
    /// All that we know of.
    Whole,
    /// What an older kernel has of it.
    Part,
    /// Nothing: the kernel has no Landlock, or it is off.
    Not,
}

/// Limits this thread, and all that it starts from now on.
///
/// # Errors
/// The kernel refuses what it says that it can do.
pub fn limit(reach: &Reach) -> Result<Limited> {
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))?
        .scope(Scope::Signal)?
        .create()?;
    let uses = AccessFs::from_all(KNOWN)
        & !(AccessFs::Execute | AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::MakeFifo);
    // The loader of libraries maps them to be run, which is no execution of theirs.
    let reads = AccessFs::ReadFile | AccessFs::ReadDir;
    let rules = add(rules, &reach.used, uses)?;
    let rules = add(rules, &reach.read, reads)?;
    let rules = add(rules, &reach.listed, AccessFs::ReadDir.into())?;
    let rules = add(rules, &reach.removed, AccessFs::RemoveDir.into())?;
    let files = rules.restrict_self()?.ruleset;
    // Clients of Ceph connect to their cluster. Their threads come from this one, which has the limits of now.
    lunet_backends::rbd::begin()?;
    lunet_group::begin()?;
    // Nobody else connects to anybody.
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessNet::ConnectTcp)?
        .create()?
        .restrict_self()?;
    Ok(match files {
        RulesetStatus::FullyEnforced => Limited::Whole,
        RulesetStatus::PartiallyEnforced => Limited::Part,
        RulesetStatus::NotEnforced => Limited::Not,
    })
}

/// Adds a rule for each path that is there.
fn add(
    mut rules: RulesetCreated,
    paths: &BTreeSet<PathBuf>,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated> {
    for path in paths {
        let Ok(fd) = PathFd::new(path) else { continue };
        let access = match path.is_dir() {
            true => access,
            false => access & AccessFs::from_file(KNOWN),
        };
        rules = rules.add_rule(PathBeneath::new(fd, access))?;
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_a_directory_is_within_reach() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("in")).unwrap();
        fs::create_dir(root.path().join("inner")).unwrap();
        let reach = Reach { used: [root.path().join("in")].into(), ..Reach::default() };
        for (path, within) in
            [("in", true), ("in/new/a.img", true), ("inner/a.img", false), ("in/../a.img", false)]
        {
            assert_eq!(reach.has(&root.path().join(path)), within, "{path}");
        }
    }

    #[test]
    fn the_systems_directories_are_not_among_the_others() {
        let root = tempfile::tempdir().unwrap();
        for name in ["etc", "usr", "root", "tank", "srv"] {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        fs::write(root.path().join("file"), "").unwrap();
        let mut found = others(root.path());
        found.sort();
        assert_eq!(found, [root.path().join("srv"), root.path().join("tank")]);
    }
}
