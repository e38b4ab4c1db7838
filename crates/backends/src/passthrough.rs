//! Finds the way past the block layer to an NVMe namespace.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lunet_ring::{Namespace, Passthrough, Unpassable};
use rustix::fs::{ioctl_blksszget, major, minor};

use crate::device::{self, Claimed};
use crate::sysfs::{self, Nvme};
use crate::{OpenError, VolumeSpec};

/// Where the kernel tells about devices.
const SYS: &str = "/sys";

/// A namespace that takes the reads and writes of a block device, and what was known of it when that was found out.
#[derive(Clone)]
pub(crate) struct Passing {
    pub namespace: Namespace,
    nvme: Nvme,
    sys: PathBuf,
    /// The last look has found no namespace. What was missing may have been a descriptor to read with: the next one decides.
    missed: Arc<AtomicBool>,
}

impl Passing {
    /// Has it take no more commands if it is not what it was, of which `device` is the block device, and says why, once. A command
    /// is made of numbers of blocks, which the kernel does not check: on blocks of another length it would be another range.
    pub fn look(&self, device: &File) -> Option<String> {
        if self.namespace.is_left() {
            return None;
        }
        let why = self.change(device)?;
        self.namespace.leave();
        Some(format!(
            "passthrough: {why} since the volume was opened, so reads and writes go through the block layer from now on"
        ))
    }

    fn change(&self, device: &File) -> Option<String> {
        // Where nobody knows, nothing is said.
        let number = device.metadata().ok()?.rdev();
        let (major, minor) = (major(number), minor(number));
        match sysfs::nvme(&self.sys, major, minor) {
            Ok(now) if now.takes_what_was_made_for(&self.nvme) => {
                self.missed.store(false, Ordering::Relaxed);
            }
            Ok(_) => {
                return Some(
                    "the namespace, or what it takes in one command, has changed".to_owned(),
                );
            }
            Err(why) => {
                let again = self.missed.swap(true, Ordering::Relaxed);
                return again.then(|| format!("{why}, which has changed"));
            }
        }
        let (block, was) = (ioctl_blksszget(device).ok()?, self.namespace.block());
        (block != was).then(|| format!("its blocks have {block} bytes, and no longer {was},"))
    }
}

/// Why reads and writes go through the block layer: for an administrator.
#[derive(Debug, thiserror::Error)]
enum Unpassed {
    #[error("{0}")]
    Namespace(&'static str),
    #[error("/dev/{generic}: {error}")]
    Generic { generic: String, error: io::Error },
    #[error("/dev/{generic}: {error}")]
    Unpassable { generic: String, error: Unpassable },
}

/// What was found.
pub(crate) struct Found {
    pub claimed: Claimed,
    /// `None` if reads and writes go through the block layer.
    pub passing: Option<Passing>,
    /// What should be known of that.
    pub notes: Vec<String>,
}

/// Claims a device, and finds its namespace if the volume is to have reads and writes as NVMe commands.
///
/// # Errors
/// The device cannot be claimed.
pub(crate) fn find(spec: &VolumeSpec, path: &Path, sys: &Path) -> Result<Found, OpenError> {
    let Some(wanted) = spec.passthrough else {
        let claimed = device::claim(spec, path)?;
        return Ok(Found { claimed, passing: None, notes: Vec::new() });
    };
    let told = |text: &str| format!("{}: passthrough: {text}", path.display());
    let (claimed, generic) = claim(spec, path, sys)?;
    let mut notes = Vec::new();
    let found = passing(spec, sys, wanted, (&claimed, generic), &mut |text| notes.push(told(text)));
    match found {
        Ok(passing) => Ok(Found { claimed, passing: Some(passing), notes }),
        Err(why) => {
            let notes = vec![told(&format!("{why}; reads and writes go through the block layer"))];
            Ok(Found { claimed, passing: None, notes })
        }
    }
}

/// Claims a device, and opens the generic character device beside it if there is one. Where that is for the
/// [opener](device::open_devices_with) alone, it claims the device and hands out both, or an error of its own; nothing is given
/// up for that which others could take meanwhile.
fn claim(
    spec: &VolumeSpec,
    path: &Path,
    sys: &Path,
) -> Result<(Claimed, Option<io::Result<File>>), OpenError> {
    let number = device::find(path)?.rdev();
    let nvme = sysfs::nvme(sys, major(number), minor(number)).ok();
    let tried = nvme.map(|nvme| open_as_found(&nvme, !spec.read_only));
    let denied =
        matches!(&tried, Some(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied);
    let Some(open) = device::opener().filter(|_| denied) else {
        return Ok((device::claim(spec, path)?, tried));
    };
    match device::claim_both(spec, path, open) {
        Ok((claimed, generic)) => Ok((claimed, Some(Ok(generic)))),
        Err(error) if device::is_busy(&error) => Err(OpenError::InUse { path: path.to_path_buf() }),
        Err(error) => Ok((device::claim(spec, path)?, Some(Err(error)))),
    }
}

/// The namespace of a device that is claimed, whose generic character device was opened if the path led to a namespace then. Says why the
/// drive interrupts if it was to be polled.
fn passing(
    spec: &VolumeSpec,
    sys: &Path,
    wanted: Passthrough,
    (claimed, generic): (&Claimed, Option<io::Result<File>>),
    say: &mut dyn FnMut(&str),
) -> Result<Passing, Unpassed> {
    let nvme = sysfs::nvme(sys, major(claimed.number), minor(claimed.number))
        .map_err(Unpassed::Namespace)?;
    let generic = match generic {
        Some(opened) => opened.and_then(|generic| checked(&nvme, generic)),
        None => open_as_found(&nvme, !spec.read_only),
    };
    let generic =
        generic.map_err(|error| Unpassed::Generic { generic: nvme.generic.clone(), error })?;
    let generic = Arc::new(generic);
    let by = |how| check(&nvme, &claimed.device, &generic, how);
    let polled = match (wanted, no_polling(&nvme)) {
        (Passthrough::Interrupt, _) => None,
        (Passthrough::Polled, Some(why)) => Some(Err(Unpassed::Namespace(why))),
        (Passthrough::Polled, None) => Some(by(wanted)),
    };
    let namespace = match polled {
        Some(Ok(namespace)) => namespace,
        Some(Err(why)) => {
            say(&format!("{why}, so the drive interrupts instead"));
            by(Passthrough::Interrupt)?
        }
        None => by(Passthrough::Interrupt)?,
    };
    Ok(Passing { namespace, nvme, sys: sys.to_path_buf(), missed: Arc::default() })
}

/// Why commands to a drive cannot be polled for; `None` if they can.
fn no_polling(nvme: &Nvme) -> Option<&'static str> {
    if !nvme.polls {
        return Some(
            "the drive has no queues that can be polled, which come with nvme.poll_queues=N on the kernel's command line",
        );
    }
    let release = rustix::system::uname();
    let keeps_apart = release.release().to_str().is_ok_and(keeps_rings_apart);
    (!keeps_apart).then_some(
        "this kernel may end a command of one ring for another one that polls the same queue, which Linux 6.12.35 and 6.16 mend",
    )
}

/// True if a kernel of this release ends a polled command in the ring that it came from: commit 9ce6c9875f3e of Linux 6.16, and of
/// 6.12.35. Of other series it is not known.
fn keeps_rings_apart(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let mut next = || numbers.next().and_then(Result::ok);
    let (Some(major), Some(minor)) = (next(), next()) else { return false };
    let patch = next().unwrap_or(0);
    (major, minor) >= (6, 16) || (major, minor) == (6, 12) && patch >= 35
}

/// Opens the generic character device of the NVMe namespace that an open block device is, for writing too if `write` is true.
/// The caller has claimed the block device.
///
/// # Errors
/// It is no such namespace, or the operating system's.
pub fn generic_of(device: &File, write: bool) -> io::Result<File> {
    let number = device.metadata()?.rdev();
    let nvme = sysfs::nvme(Path::new(SYS), major(number), minor(number))
        .map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
    open_as_found(&nvme, write)
}

/// Opens the generic character device that has the number which the kernel tells.
fn open_as_found(nvme: &Nvme, write: bool) -> io::Result<File> {
    let path = Path::new("/dev").join(&nvme.generic);
    // To open another kind of file may block, or do something.
    if !is_generic(nvme, &path.metadata()?) {
        return Err(io::Error::other("another device has its name"));
    }
    checked(nvme, OpenOptions::new().read(true).write(write).open(&path)?)
}

/// An open generic character device, if it is that of the namespace.
fn checked(nvme: &Nvme, generic: File) -> io::Result<File> {
    match is_generic(nvme, &generic.metadata()?) {
        true => Ok(generic),
        false => Err(io::Error::other("it is of another namespace than the block device")),
    }
}

fn is_generic(nvme: &Nvme, found: &Metadata) -> bool {
    let number = (major(found.rdev()), minor(found.rdev()));
    found.file_type().is_char_device() && number == nvme.number
}

/// Sees whether a device takes commands, and for the same namespace as the block device.
fn check(
    nvme: &Nvme,
    device: &File,
    generic: &Arc<File>,
    how: Passthrough,
) -> Result<Namespace, Unpassed> {
    let name = || nvme.generic.clone();
    let block = ioctl_blksszget(device)
        .map_err(|error| Unpassed::Generic { generic: name(), error: error.into() })?;
    let namespace = Namespace::new(Arc::clone(generic), nvme.id, block, nvme.most, how);
    namespace.check(device).map_err(|error| Unpassed::Unpassable { generic: name(), error })?;
    Ok(namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_keep_rings_apart_are_known_by_their_release() {
        for release in ["6.12.35", "6.12.95+deb12-amd64", "6.16.0", "6.18.5", "7.0.1-1-pve", "6.17"]
        {
            assert!(keeps_rings_apart(release), "{release}");
        }
        for release in
            ["6.12.34-amd64", "6.1.0-53-amd64", "6.8.12-9-pve", "6.15.9", "5.15", "", "x"]
        {
            assert!(!keeps_rings_apart(release), "{release}");
        }
    }

    #[test]
    fn a_namespace_that_is_another_one_takes_no_more_commands() {
        let root = sysfs::nvme_tree(&[]);
        let nvme = sysfs::nvme(root.path(), 259, 1).unwrap();
        // Its number is not that of the namespace in the tree.
        let device = tempfile::tempfile().unwrap();
        let generic = Arc::new(File::open("/dev/null").unwrap());
        let namespace = Namespace::new(generic, 1, 512, 4096, Passthrough::Interrupt);
        let sys = root.path().to_path_buf();
        let missed = Arc::default();
        let passing = Passing { namespace: namespace.clone(), nvme, sys, missed };
        assert!(passing.look(&device).is_none() && !namespace.is_left(), "it may be a shortage");
        let why = passing.look(&device).unwrap();
        assert!(why.contains("not a whole NVMe namespace"), "{why}");
        assert!(namespace.is_left() && passing.look(&device).is_none(), "it is said once");
    }

    #[test]
    fn what_is_no_namespace_has_no_generic_device() {
        let error = generic_of(&tempfile::tempfile().unwrap(), true).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
    }
}
