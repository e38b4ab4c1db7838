//! One lunet at a time writes to a file; many may read it.
//!
//! Whoever can open a file for reading can lock it, with `flock` or otherwise: a backup program, or somebody who means
//! harm. So the lock that counts is on the [sidecar](crate::sidecar) of the volume's file, which nobody else can
//! open. The volume's own file is locked too, for lunets that reach it by another hard link or are
//! older than the sidecar; a lock of another program on it is passed over, and told.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::{OpenError, retry, sidecar};

/// How often a file is looked for anew that goes while it is being locked.
const ATTEMPTS: u32 = 8;

/// The right to a volume's file, as long as this lives.
#[derive(Debug)]
pub(crate) struct Lock {
    /// Open, and locked.
    _file: File,
}

/// Takes the lock on the place of a volume's file. `None` if no file can be kept beside it, or if it is only
/// read and nobody has written it from here.
pub(crate) fn take(path: &Path, read_only: bool) -> Result<Option<Lock>, OpenError> {
    for _ in 0..ATTEMPTS {
        let opened = match read_only {
            true => lunet_os::fs::open_regular(&sidecar::path(path)).map(Some),
            false => sidecar::open(path),
        };
        // Where it cannot be made, the volume's own file must do.
        let Ok(Some(file)) = opened else { return Ok(None) };
        let in_use = |e: &Errno| *e == Errno::WOULDBLOCK;
        match retry::while_in_use(|| flock(&file, operation(read_only)), in_use) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(OpenError::Locked { path: path.to_path_buf() }),
            Err(_) => return Ok(None),
        }
        // Who deletes a volume removes this file: a lock on what is gone is none.
        let same = |there: fs::Metadata| {
            file.metadata().is_ok_and(|f| (f.dev(), f.ino()) == (there.dev(), there.ino()))
        };
        if sidecar::path(path).symlink_metadata().is_ok_and(same) {
            return Ok(Some(Lock { _file: file }));
        }
    }
    Err(OpenError::Locked { path: path.to_path_buf() })
}

/// Who holds the lock on the sidecar of a volume's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SidecarLock {
    /// Nobody: there can be no sidecar.
    Nobody,
    /// This volume.
    This,
    /// The volume that this one replaces, which may also hold the lock on the file itself.
    Replaced,
}

/// Locks the volume's own file. Gives back a sentence if another program has a lock on it.
pub(crate) fn take_own(
    path: &Path,
    file: &File,
    read_only: bool,
    sidecar: SidecarLock,
) -> Result<Option<String>, OpenError> {
    if sidecar == SidecarLock::Replaced {
        // If that fails, the old volume has it, and the sidecar is locked after that.
        let _ = flock(file, operation(read_only));
        return Ok(None);
    }
    let ours = sidecar == SidecarLock::This;
    let inode = file.metadata().map_err(|e| OpenError::from_io(path, "look at the file", e))?.ino();
    // A lunet that was killed lets go in a moment; a stranger may take hours.
    let waits = |e: &Errno| *e == Errno::WOULDBLOCK && !(ours && holder(inode) == Holder::Stranger);
    match retry::while_in_use(|| flock(file, operation(read_only)), waits) {
        Ok(()) => Ok(None),
        Err(Errno::WOULDBLOCK) if ours && holder(inode) != Holder::Lunet => {
            // Keeps an older lunet out where that is possible.
            let _ = flock(file, FlockOperation::NonBlockingLockShared);
            Ok(Some(format!(
                "{}: another program has a lock on the volume's file, which is passed over: it can \
                 read what is being written",
                path.display()
            )))
        }
        Err(Errno::WOULDBLOCK) => Err(OpenError::Locked { path: path.to_path_buf() }),
        Err(e) => Err(OpenError::from_io(path, "lock the file", e.into())),
    }
}

const fn operation(read_only: bool) -> FlockOperation {
    match read_only {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    }
}

/// Who has a lock on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Lunet,
    Stranger,
    /// It cannot be seen from here: it is ending, or in another container.
    Unknown,
}

/// Who has an flock on the file with this inode number, as the kernel tells (proc_locks(5)).
fn holder(inode: u64) -> Holder {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let mut holders = pids(&locks, inode).map(kind).collect::<Vec<_>>();
    holders.sort_unstable_by_key(|holder| match holder {
        Holder::Lunet => 0,
        Holder::Stranger => 1,
        Holder::Unknown => 2,
    });
    holders.first().copied().unwrap_or(Holder::Unknown)
}

/// The process that has an flock on a file, as far as the kernel tells.
pub fn holding(file: &File) -> Option<u32> {
    let inode = file.metadata().ok()?.ino();
    pids(&fs::read_to_string("/proc/locks").ok()?, inode).next()
}

/// The processes with an flock on this inode. Lines are `1: FLOCK ADVISORY WRITE 708 08:01:1234 0 EOF`; those
/// that wait for one have an arrow behind the number.
fn pids(locks: &str, inode: u64) -> impl Iterator<Item = u32> + '_ {
    locks.lines().filter_map(move |line| {
        let mut words = line.split_whitespace().skip(1);
        let (kind, _, _) = (words.next()?, words.next()?, words.next()?);
        let pid = words.next()?.parse().ok()?;
        let found: u64 = words.next()?.rsplit(':').next()?.parse().ok()?;
        (kind == "FLOCK" && found == inode).then_some(pid)
    })
}

fn kind(pid: u32) -> Holder {
    if pid == std::process::id() {
        return Holder::Lunet;
    }
    let process = Path::new("/proc").join(pid.to_string());
    let (Ok(name), Ok(found)) = (fs::read_to_string(process.join("comm")), process.metadata())
    else {
        return Holder::Unknown;
    };
    // Anybody can call a program lunet.
    let trusted = [0, rustix::process::geteuid().as_raw()].contains(&found.uid());
    if trusted && name.starts_with("lunet") { Holder::Lunet } else { Holder::Stranger }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_read_from_the_kernels_table() {
        let table = "1: FLOCK  ADVISORY  WRITE 708 08:01:1234 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 709 08:01:1234 0 EOF\n\
                     2: POSIX  ADVISORY  READ 710 08:01:1234 0 EOF\n\
                     3: FLOCK  ADVISORY  READ 711 fe:00:99 0 EOF\nnonsense\n";
        assert_eq!(pids(table, 1234).collect::<Vec<_>>(), [708]);
        assert_eq!(pids(table, 99).collect::<Vec<_>>(), [711]);
        assert_eq!(kind(std::process::id()), Holder::Lunet);
        assert_eq!(kind(u32::MAX), Holder::Unknown);
    }
}
