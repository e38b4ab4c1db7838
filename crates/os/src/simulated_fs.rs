//! The file system of a simulated world: real files, whose names and contents are volatile until they are synced.
//!
//! A file that was written has what it contained when it was last synced, a part of the new content, or all of it after
//! a power loss. Operations on names take effect in their order within a directory, as in a file system with a journal: from
//! some point on all of them are undone. An operation on two directories takes effect in both or in neither.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags, XattrFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::simulated::{self, Process};

/// What is left of unsynced changes after a power loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Nothing.
    All,
    /// Everything: the kernel had written it by then.
    Nothing,
    /// Any part: of blocks and contents any, of names all up to some point.
    Some,
}

/// What may go wrong with files and directories, in a thousand calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFaults {
    /// Reads and looks that fail with EIO.
    pub read: u64,
    /// Files that cannot be made or written for want of space: ENOSPC, with any part of the bytes in the file.
    pub full: u64,
    /// Syncs of files that fail with EIO: the kernel tells of it once, and what was not stable is not written any more.
    pub sync: u64,
    /// Syncs of directories that fail with EIO: what was not stable may become so or not.
    pub sync_directory: u64,
    /// Calls that take seconds.
    pub slow: u64,
}

/// A file, whatever its name is: device and inode.
pub type FileKey = (u64, u64);

/// What of a file is not stable.
#[derive(Debug, Default)]
struct Volatile {
    /// What it contained before the first write that is not stable; `None` if its length alone has changed.
    before: Option<Vec<u8>>,
    /// The lengths it was given since it was last stable, that of then first. The present one may be another.
    lengths: Vec<u64>,
    /// The kernel has failed to write it, and takes it for written.
    lost: bool,
    /// Attributes, as they are on stable storage.
    attributes: BTreeMap<String, Option<Vec<u8>>>,
}

/// An operation on names.
#[derive(Debug)]
enum Operation {
    Made {
        path: PathBuf,
    },
    /// What is in a directory goes with it, to where nobody looks.
    MadeDirectory {
        path: PathBuf,
        gone: PathBuf,
    },
    Removed {
        path: PathBuf,
        kept: PathBuf,
    },
    RemovedDirectory {
        path: PathBuf,
    },
    Renamed {
        from: PathBuf,
        to: PathBuf,
        displaced: Option<PathBuf>,
    },
    Exchanged {
        one: PathBuf,
        other: PathBuf,
    },
}

#[derive(Debug, Default)]
struct State {
    /// What is below is tracked.
    root: Option<PathBuf>,
    /// Where files stay that have lost their last name, but may get it back.
    removed: PathBuf,
    /// How many there were.
    count: u64,
    faults: FileFaults,
    /// Operations that are not stable, the oldest first.
    journal: Vec<Operation>,
    files: HashMap<FileKey, Volatile>,
    /// Directories that were asked for, and the same without links: nobody in a world makes links.
    directories: HashMap<PathBuf, PathBuf>,
    /// Files that were synced, or could not be, and nobody has asked for yet.
    synced: Vec<(FileKey, bool)>,
    /// Calls that have failed on purpose.
    failed: u64,
}

/// The files of a world.
#[derive(Debug, Default)]
pub struct FileSystem(Mutex<State>);

/// The files of the world that the calling thread belongs to, if it keeps any.
pub(crate) fn here() -> Option<Arc<FileSystem>> {
    let files = simulated::is_here().then(simulated::part::<FileSystem>)?;
    let tracks = files.lock().root.is_some();
    tracks.then_some(files)
}

/// The same, if this path is among them.
pub(crate) fn of(path: &Path) -> Option<Arc<FileSystem>> {
    let files = here()?;
    let directory = files.parent(path).ok()?;
    let tracks = files.lock().root.as_ref().is_some_and(|root| directory.starts_with(root));
    tracks.then_some(files)
}

fn key(file: &File) -> io::Result<FileKey> {
    let found = file.metadata()?;
    Ok((found.dev(), found.ino()))
}

/// All that a file contains, wherever its cursor is.
fn content(file: &File) -> io::Result<Vec<u8>> {
    // The descriptor may be one for writing alone.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
    fs::read(path)
}

/// Lets time pass, as a call to the system does.
fn passes(slow: u64) {
    let micros = match () {
        () if happens(slow) => 1_000_000 + simulated::below(8_000_000),
        () if simulated::below(30) == 0 => 1000 + simulated::below(50_000),
        () => 10 + simulated::below(300),
    };
    crate::thread::sleep(Duration::from_micros(micros));
}

/// True so often in a thousand. Never for the thread that runs the world.
fn happens(often: u64) -> bool {
    often > 0 && simulated::process() != Process(0) && simulated::below(1000) < often
}

impl FileSystem {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tracks what is below a folder from now on. What loses its name stays in the folder `removed`, on the same file
    /// system, until that is stable.
    ///
    /// # Errors
    /// The system's.
    pub fn track(&self, folder: &Path, removed: &Path) -> io::Result<()> {
        let mut state = self.lock();
        state.root = Some(folder.canonicalize()?);
        state.removed = removed.to_owned();
        Ok(())
    }

    /// What goes wrong from now on.
    pub fn disturb(&self, faults: FileFaults) {
        self.lock().faults = faults;
    }

    /// How many calls have failed on purpose.
    pub fn failed(&self) -> u64 {
        self.lock().failed
    }

    /// The directory of a path, without links.
    fn parent(&self, path: &Path) -> io::Result<PathBuf> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let known = self.lock().directories.get(parent).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let found = parent.canonicalize()?;
        self.lock().directories.insert(parent.to_owned(), found.clone());
        Ok(found)
    }

    /// A path by a directory without links.
    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.parent(path)?.join(name))
    }

    /// Whether a call fails on purpose.
    fn fails(&self, often: u64) -> bool {
        let fails = happens(often);
        self.lock().failed += u64::from(fails);
        fails
    }

    /// Files that were synced, or could not be, since this was asked last: for whoever tracks their blocks.
    pub fn take_synced(&self) -> Vec<(FileKey, bool)> {
        std::mem::take(&mut self.lock().synced)
    }

    /// The blocks of a file were flushed, and with them its length, by another way than [`sync`](crate::fs::sync).
    pub fn flushed(&self, file: FileKey) {
        let mut state = self.lock();
        let Some(volatile) = state.files.get_mut(&file) else { return };
        volatile.stable();
        if volatile.attributes.is_empty() && !volatile.is_changed() {
            state.files.remove(&file);
        }
    }

    /// The power is lost: what was not synced is there or not.
    ///
    /// # Errors
    /// The system's; files were changed by another way.
    pub fn power_loss(&self, loss: Loss) -> io::Result<()> {
        let mut state = self.lock();
        let Some(root) = state.root.clone() else { return Ok(()) };
        let mut cut = BTreeSet::new();
        let undone = |operation: &Operation| {
            let directories = operation.directories();
            let goes = match loss {
                Loss::All => true,
                Loss::Nothing => false,
                Loss::Some => {
                    directories.iter().any(|directory| cut.contains(directory))
                        || simulated::below(4) == 0
                }
            };
            if goes {
                cut.extend(directories);
            }
            goes
        };
        let journal = std::mem::take(&mut state.journal);
        let (undone, done): (Vec<_>, Vec<_>) = journal.into_iter().partition(undone);
        for operation in undone.into_iter().rev() {
            operation.undo()?;
        }
        done.into_iter().for_each(|operation| operation.is_stable());
        let mut files = std::mem::take(&mut state.files);
        drop(state);
        for path in files_below(&root)? {
            let found = fs::symlink_metadata(&path)?;
            if let Some(volatile) = files.remove(&(found.dev(), found.ino())) {
                volatile.lose(&path, loss)?;
            }
        }
        Ok(())
    }

    pub(crate) fn open(&self, path: &Path, options: &OpenOptions) -> io::Result<File> {
        let faults = self.begin();
        let place = self.absolute(path)?;
        let is_there = place.symlink_metadata().is_ok();
        if !is_there && self.fails(faults.full) {
            return Err(Errno::NOSPC.into());
        }
        let file = options.open(path)?;
        if !is_there {
            self.lock().made(place, key(&file)?);
        }
        Ok(file)
    }

    /// Some time has passed since a call began. What goes wrong now.
    fn begin(&self) -> FileFaults {
        let faults = self.lock().faults;
        passes(faults.slow);
        // They may have become others meanwhile.
        self.lock().faults
    }

    pub(crate) fn before_write(&self, mut file: &File, len: usize) -> io::Result<()> {
        let faults = self.begin();
        self.lock().changes(file)?;
        if self.fails(faults.full) {
            let part = simulated::below(len as u64 + 1) as usize;
            io::Write::write_all(&mut file, &vec![0; part])?;
            return Err(Errno::NOSPC.into());
        }
        Ok(())
    }

    pub(crate) fn before_set_len(&self, file: &File, len: u64) -> io::Result<()> {
        let faults = self.begin();
        let (now, key) = (file.metadata()?.len(), key(file)?);
        if len > now && self.fails(faults.full) {
            return Err(Errno::NOSPC.into());
        }
        let mut state = self.lock();
        let volatile = state.files.entry(key).or_default();
        volatile.lengths.push(now);
        Ok(())
    }

    pub(crate) fn before_reserve(&self) -> rustix::io::Result<()> {
        if self.fails(self.begin().full) { Err(Errno::NOSPC) } else { Ok(()) }
    }

    pub(crate) fn before_attribute(&self, file: &File, name: &str) -> rustix::io::Result<()> {
        self.begin();
        let mut value = [0; 256];
        let before = rustix::fs::fgetxattr(file, name, &mut value[..]).ok();
        let before = before.map(|len| value[..len].to_vec());
        let key = key(file).map_err(|_| Errno::IO)?;
        let mut state = self.lock();
        state.files.entry(key).or_default().attributes.entry(name.to_owned()).or_insert(before);
        Ok(())
    }

    pub(crate) fn before_read(&self) -> io::Result<()> {
        if self.fails(self.begin().read) { Err(Errno::IO.into()) } else { Ok(()) }
    }

    pub(crate) fn sync(&self, file: &File, attributes: bool) -> io::Result<()> {
        let faults = self.begin();
        let key = key(file)?;
        let good = !self.fails(faults.sync);
        let mut state = self.lock();
        state.synced.push((key, good));
        let Some(volatile) = state.files.get_mut(&key) else {
            return if good { Ok(()) } else { Err(Errno::IO.into()) };
        };
        if !good {
            volatile.lost = volatile.is_changed();
            return Err(Errno::IO.into());
        }
        volatile.stable();
        if attributes {
            volatile.attributes.clear();
        }
        if volatile.attributes.is_empty() && !volatile.is_changed() {
            state.files.remove(&key);
        }
        Ok(())
    }

    pub(crate) fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let faults = self.begin();
        let path = path.canonicalize()?;
        let bad = self.fails(faults.sync_directory);
        if !bad || simulated::below(2) == 0 {
            self.lock().stable(path);
        }
        if bad { Err(Errno::IO.into()) } else { Ok(()) }
    }

    pub(crate) fn rename(&self, from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
        self.begin();
        let (from, to) = (self.absolute(from)?, self.absolute(to)?);
        let mut state = self.lock();
        if flags.contains(RenameFlags::EXCHANGE) {
            rustix::fs::renameat_with(CWD, &from, CWD, &to, flags)?;
            state.journal.push(Operation::Exchanged { one: from, other: to });
            return Ok(());
        }
        let displaced = match to.symlink_metadata() {
            Ok(_) if !flags.contains(RenameFlags::NOREPLACE) => Some(state.keep(&to)?),
            _ => None,
        };
        let renamed = rustix::fs::renameat_with(CWD, &from, CWD, &to, flags);
        if let (Err(_), Some(kept)) = (&renamed, &displaced) {
            fs::remove_file(kept)?;
        }
        renamed?;
        state.journal.push(Operation::Renamed { from, to, displaced });
        Ok(())
    }

    pub(crate) fn remove(&self, path: &Path) -> io::Result<()> {
        self.begin();
        let path = self.absolute(path)?;
        if path.symlink_metadata()?.is_dir() {
            return fs::remove_file(path);
        }
        let mut state = self.lock();
        let kept = state.keep(&path)?;
        fs::remove_file(&path)?;
        state.journal.push(Operation::Removed { path, kept });
        Ok(())
    }
}

impl FileSystem {
    pub(crate) fn create_directory(&self, path: &Path, mode: u32) -> io::Result<()> {
        let faults = self.begin();
        if self.fails(faults.full) {
            return Err(Errno::NOSPC.into());
        }
        DirBuilder::new().mode(mode).create(path)?;
        let path = self.absolute(path)?;
        let mut state = self.lock();
        state.count += 1;
        let gone = state.removed.join(state.count.to_string());
        state.journal.push(Operation::MadeDirectory { path, gone });
        Ok(())
    }

    pub(crate) fn remove_directory(&self, path: &Path) -> io::Result<()> {
        self.begin();
        let path = self.absolute(path)?;
        fs::remove_dir(&path)?;
        self.lock().journal.push(Operation::RemovedDirectory { path });
        Ok(())
    }
}

impl State {
    /// A new file has this name. It may have the number of one that is gone.
    fn made(&mut self, path: PathBuf, file: FileKey) {
        let volatile =
            Volatile { before: Some(Vec::new()), lengths: vec![0], ..Volatile::default() };
        self.files.insert(file, volatile);
        self.journal.push(Operation::Made { path });
    }

    /// Notes what a file contains before that changes.
    fn changes(&mut self, file: &File) -> io::Result<()> {
        let volatile = self.files.entry(key(file)?).or_default();
        volatile.lost = false;
        if volatile.before.is_none() {
            volatile.before = Some(content(file)?);
        }
        Ok(())
    }

    /// A second name for a file that loses its own.
    fn keep(&mut self, path: &Path) -> io::Result<PathBuf> {
        self.count += 1;
        let kept = self.removed.join(self.count.to_string());
        fs::hard_link(path, &kept)?;
        Ok(kept)
    }

    /// The names in a directory are stable, and what had to be so before them.
    fn stable(&mut self, directory: PathBuf) {
        let mut directories = BTreeSet::from([directory]);
        let mut left = Vec::new();
        for operation in std::mem::take(&mut self.journal).into_iter().rev() {
            let own = operation.directories();
            if own.iter().any(|directory| directories.contains(directory)) {
                directories.extend(own);
                operation.is_stable();
            } else {
                left.push(operation);
            }
        }
        left.reverse();
        self.journal = left;
    }
}

impl Operation {
    fn directories(&self) -> BTreeSet<PathBuf> {
        let paths = match self {
            Self::Made { path }
            | Self::MadeDirectory { path, .. }
            | Self::Removed { path, .. }
            | Self::RemovedDirectory { path } => [path, path],
            Self::Renamed { from, to, .. } => [from, to],
            Self::Exchanged { one, other } => [one, other],
        };
        paths.into_iter().filter_map(|path| path.parent().map(Path::to_owned)).collect()
    }

    fn undo(self) -> io::Result<()> {
        match self {
            Self::Made { path } => fs::remove_file(path),
            Self::MadeDirectory { path, gone } => fs::rename(path, gone),
            Self::RemovedDirectory { path } => fs::create_dir(path),
            Self::Removed { path, kept } => fs::rename(kept, path),
            Self::Exchanged { one, other } => {
                Ok(rustix::fs::renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
            }
            Self::Renamed { from, to, displaced } => {
                fs::rename(&to, from)?;
                displaced.map_or(Ok(()), |kept| fs::rename(kept, to))
            }
        }
    }

    /// What it has taken a name from gets that back no more.
    fn is_stable(&self) {
        if let Self::Removed { kept, .. } | Self::Renamed { displaced: Some(kept), .. } = self {
            // Nobody looks there if it stays.
            let _ = fs::remove_file(kept);
        }
    }
}

impl Volatile {
    /// What it contains is stable, but for what the kernel has given up.
    fn stable(&mut self) {
        if !self.lost {
            (self.before, self.lengths) = (None, Vec::new());
        }
    }

    fn is_changed(&self) -> bool {
        self.before.is_some() || !self.lengths.is_empty()
    }

    /// Gives a file what a power loss leaves of it.
    fn lose(self, path: &Path, loss: Loss) -> io::Result<()> {
        let file = File::options().read(true).write(true).open(path)?;
        for (name, value) in &self.attributes {
            if loss == Loss::All || loss == Loss::Some && simulated::below(2) == 0 {
                restore(&file, name, value.as_deref())?;
            }
        }
        if !self.is_changed() || loss == Loss::Nothing && !self.lost {
            return Ok(());
        }
        let choice = if loss == Loss::Some { simulated::below(4) } else { 0 };
        let now = file.metadata()?.len();
        match (&self.before, choice) {
            // A length is set at once or not at all.
            (None, choice) => self.shorten(&file, choice),
            (Some(before), choice) if before.is_empty() && self.lengths.len() > 1 => {
                self.shorten(&file, choice)
            }
            // All of the old, nothing, a part, or all of the new.
            (Some(before), 0) => {
                file.set_len(before.len() as u64)?;
                file.write_all_at(before, 0)
            }
            (Some(_), 1) => file.set_len(0),
            (Some(_), 2) => file.set_len(simulated::below(now + 1)),
            (Some(_), _) => Ok(()),
        }
    }

    /// Gives a file one of the lengths that it had, or leaves it as it is.
    fn shorten(&self, file: &File, choice: u64) -> io::Result<()> {
        let length = self.lengths.get(choice as usize % (self.lengths.len() + 1));
        length.map_or(Ok(()), |length| file.set_len(*length))
    }
}

/// Gives a file back an attribute as it was, or its absence.
fn restore(file: &File, name: &str, value: Option<&[u8]>) -> io::Result<()> {
    let restored = match value {
        Some(value) => rustix::fs::fsetxattr(file, name, value, XattrFlags::empty()),
        None => rustix::fs::fremovexattr(file, name),
    };
    match restored {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        other => Ok(other?),
    }
}

/// All files below a folder, in an order that does not change.
fn files_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.append(&mut files_below(&entry.path())?);
        } else if entry.file_type()?.is_file() {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}
