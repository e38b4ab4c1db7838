//! Control groups with a quota: of processor time, or of a drive's operations. Version 1 of them, or version 2.

use std::fs;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// All groups have such names, and then the number of the program that made them.
const PREFIX: &str = "lunet-planted-";
const MOUNT: &str = "/sys/fs/cgroup";
const PERIOD_US: u32 = 100_000;
/// How long the kernel may take to forget who was in a group.
const EMPTY: Duration = Duration::from_secs(5);

/// A control group of this program. Those who are in it go back to the one above when it is dropped.
pub struct Group {
    path: PathBuf,
}

impl Group {
    /// A group that has this share of one processor.
    pub fn processor(share: f64) -> Result<Group> {
        let quota = (f64::from(PERIOD_US) * share) as u32;
        let old = Path::new(MOUNT).join("cpu");
        if old.join("cpu.cfs_quota_us").exists() || old.join("cpu.shares").exists() {
            let group = Group::at(&old)?;
            group.set("cpu.cfs_period_us", &PERIOD_US.to_string())?;
            group.set("cpu.cfs_quota_us", &quota.to_string())?;
            return Ok(group);
        }
        let group = Group::unified("cpu")?;
        group.set("cpu.max", &format!("{quota} {PERIOD_US}"))?;
        Ok(group)
    }

    /// A group that reads so many times each second from the device below this path.
    pub fn reads(place: &Path, per_second: u32) -> Result<Group> {
        let device = fs::metadata(place)?.st_dev();
        // As in makedev(3), for numbers as small as those of drives.
        let (major, minor) = ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xfff00));
        ensure!(major > 0, "{} is on no drive: set TMPDIR to a directory that is", place.display());
        let old = Path::new(MOUNT).join("blkio");
        if old.join("blkio.throttle.read_iops_device").exists() {
            let group = Group::at(&old)?;
            let line = format!("{major}:{minor} {per_second}");
            group.set("blkio.throttle.read_iops_device", &line)?;
            return Ok(group);
        }
        let group = Group::unified("io")?;
        group.set("io.max", &format!("{major}:{minor} riops={per_second}"))?;
        Ok(group)
    }

    fn unified(controller: &str) -> Result<Group> {
        let mount = Path::new(MOUNT);
        if !mount.join("cgroup.controllers").exists() {
            bail!(
                "there is no controller \"{controller}\" of control groups below {MOUNT}: mount one"
            );
        }
        // It may be handed down already.
        let _ = fs::write(mount.join("cgroup.subtree_control"), format!("+{controller}"));
        Group::at(mount)
    }

    fn at(parent: &Path) -> Result<Group> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("{PREFIX}{}-{number}", std::process::id()));
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Group { path })
    }

    fn set(&self, file: &str, value: &str) -> Result<()> {
        let path = self.path.join(file);
        fs::write(&path, value)
            .with_context(|| format!("cannot write {value} to {}", path.display()))
    }

    /// Moves a process into it, with all its threads.
    pub fn take(&self, pid: u32) -> Result<()> {
        self.set("cgroup.procs", &pid.to_string())
    }

    /// The words before a command that run it in the group.
    pub fn words(&self) -> Vec<String> {
        let script = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.path.display());
        ["sh", "-c", &script, "planted"].map(str::to_owned).to_vec()
    }
}

/// Whether a name is of a program that is gone: it was killed, and could not remove what it had planted.
pub fn is_left(name: &str) -> bool {
    let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
    pid.is_some_and(|pid| pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists())
}

/// Removes groups that are left.
pub fn sweep() {
    for parent in ["", "cpu", "blkio"].map(|controller| Path::new(MOUNT).join(controller)) {
        let entries = fs::read_dir(&parent).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_name().to_str().is_some_and(is_left)) {
            drop(Group { path: entry.path() });
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let deadline = Instant::now() + EMPTY;
        loop {
            let members = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
            if let Some(parent) = self.path.parent() {
                for pid in members.split_whitespace() {
                    let _ = fs::write(parent.join("cgroup.procs"), pid);
                }
            }
            if fs::remove_dir(&self.path).is_ok() || !self.path.exists() {
                return;
            }
            if Instant::now() > deadline {
                eprintln!("{} is left: remove it with rmdir", self.path.display());
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}
