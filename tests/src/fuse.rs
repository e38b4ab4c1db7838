//! A logical unit as a file: `qemu-storage-daemon`'s FUSE export, and file systems mounted from it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::clients::{LONG, QemuLun, SHORT};
use crate::data::scratch;
use crate::process::{Running, leashed, output, run};

/// Until the storage daemon has exported, or ended.
const LIMIT: Duration = Duration::from_secs(20);

/// A logical unit that appears as a file. The session ends and the file goes when dropped.
pub struct Export {
    daemon: Running,
    file: PathBuf,
    // Dropped last: the directory of the mount point.
    _directory: TempDir,
}

impl Export {
    /// Logs in and exports the logical unit. Needs /dev/fuse, and fusermount3 where the caller is not root.
    pub fn start(lun: &QemuLun) -> Result<Export> {
        let directory = scratch("lunet-fuse-")?;
        let file = directory.path().join("lun");
        File::create(&file)?;
        let mut command = leashed(None);
        command.args(["qemu-storage-daemon", "--chardev", "stdio,id=m"]);
        command.args(["--blockdev", &format!("{lun},node-name=lun")]);
        let export =
            format!("type=fuse,id=e,node-name=lun,writable=on,mountpoint={}", file.display());
        command.args(["--export", &export]);
        // Options are handled in their order: the monitor's greeting says that the export stands.
        command.args(["--monitor", "chardev=m"]);
        let daemon = Running::spawn(&mut command)?;
        let deadline = Instant::now() + LIMIT;
        let greeted = daemon.stdout.find(deadline, |text| text.contains("\"QMP\"").then_some(()));
        // From here on the export's drop unmounts.
        let export = Export { daemon, file, _directory: directory };
        greeted.with_context(|| format!("no FUSE export: {}", export.daemon.stderr.text()))?;
        ensure!(fs::metadata(&export.file)?.len() > 0, "the export is not mounted");
        Ok(export)
    }

    /// The mounted file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// From now on the file answers nothing, as one on storage that hangs, until this is dropped.
    pub fn hang(&self) -> Result<()> {
        self.daemon.signal(Signal::STOP)
    }

    /// Flushes, logs out, and demands that all went well.
    pub fn stop(mut self) -> Result<()> {
        let status = self.daemon.terminate(LIMIT)?;
        ensure!(status.success(), "qemu-storage-daemon: {status}\n{}", self.daemon.stderr.text());
        Ok(())
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        // After an error in a test, when nobody waits for a flush to a server that may be gone. The mount that a killed
        // daemon leaves is taken away here, and if even that fails nothing more can be done.
        let _ = self.daemon.kill();
        // The file itself would say for a second what the kernel remembers of it.
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let file = self.file.to_str();
        if mounts.lines().any(|mount| mount.split(' ').nth(1) == file) {
            let _ = run(Command::new("fusermount3").args(["-u", "-z"]).arg(&self.file), SHORT);
        }
    }
}

/// A file system that a test mounts. Needs root. Unmounted when dropped.
pub struct Mounted {
    directory: TempDir,
    mounted: bool,
}

impl Mounted {
    /// Mounts the file system in `image` through a loop device.
    pub fn new(image: &Path) -> Result<Mounted> {
        Mounted::with(Command::new("mount").args(["-o", "loop"]).arg(image))
    }

    /// Makes an XFS file system of 512 MiB in a file of this directory, and mounts it. Its files can share blocks.
    pub fn xfs(dir: &Path) -> Result<Mounted> {
        let image = dir.join("xfs");
        File::create(&image)?.set_len(512 << 20)?;
        output(Command::new("mkfs.xfs").arg("-q").arg(&image), LONG)?;
        Mounted::new(&image)
    }

    /// Mounts one in memory, with room for this many MiB.
    pub fn in_memory(mib: u64) -> Result<Mounted> {
        let size = format!("size={mib}m");
        Mounted::with(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]))
    }

    fn with(command: &mut Command) -> Result<Mounted> {
        let directory = scratch("lunet-mount-")?;
        output(command.arg(directory.path()), LIMIT)?;
        Ok(Mounted { directory, mounted: true })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Unmounts, which writes everything back.
    pub fn unmount(mut self) -> Result<()> {
        output(Command::new("umount").arg(self.directory.path()), LIMIT)?;
        self.mounted = false;
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.mounted {
            let _ = run(Command::new("umount").arg("-l").arg(self.directory.path()), LIMIT);
        }
    }
}

/// A loop device over a file. Needs root. Detached when dropped.
pub struct LoopDevice(PathBuf);

impl LoopDevice {
    /// Attaches `file`, with this logical block size.
    pub fn new(file: &Path, sector_size: u32) -> Result<LoopDevice> {
        let mut command = Command::new("losetup");
        command.args(["--find", "--show", "--sector-size", &sector_size.to_string()]);
        let name = output(command.arg(file), LIMIT)?;
        Ok(LoopDevice(PathBuf::from(name.trim())))
    }

    /// `/dev/loopN`.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = run(Command::new("losetup").arg("--detach").arg(&self.0), LIMIT);
    }
}

/// Is this process root? Mounting and loop devices need it.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
