//! Disks of a simulated world: real files, whose writes are volatile until they are flushed.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lunet_os::simulated::{self, FileSystem, Loss};
use serde::{Deserialize, Serialize};

use super::Simulated;
use crate::ring::{DiskOp, Refused};
use crate::{Buf, Event, FileId, Token, Treatment};

/// What is written at once or not at all, in bytes.
const SECTOR: u64 = 512;

/// What may go wrong on a disk, in a thousand operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// Reads that fail with EIO.
    pub read: u64,
    /// Writes that fail with EIO, with any part of them on the disk.
    pub write: u64,
    /// Writes that fail with ENOSPC.
    pub full: u64,
    /// Flushes that fail: the kernel tells of it once, and what was not stable is not written any more.
    pub flush: u64,
    /// Reads and writes that end short.
    pub short: u64,
    /// Operations that take seconds.
    pub slow: u64,
    /// Operations that take minutes.
    pub hang: u64,
}

/// What a sector may contain after a power loss.
#[derive(Debug, Default)]
struct Sector {
    /// Its contents since it was last stable, the oldest first. The present one is in the file.
    older: Vec<Vec<u8>>,
    /// The kernel has failed to write it, and takes it for written.
    lost: bool,
}

#[derive(Debug, Default)]
struct State {
    faults: Faults,
    sectors: BTreeMap<u64, Sector>,
    /// A descriptor of its own: that of the process may be closed.
    file: Option<File>,
}

/// The disks of a world.
#[derive(Debug, Default)]
pub struct Disks(Mutex<HashMap<(u64, u64), State>>);

impl Disks {
    fn lock(&self) -> MutexGuard<'_, HashMap<(u64, u64), State>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, file: &File, look: impl FnOnce(&mut State) -> T) -> io::Result<T> {
        self.take_synced();
        let found = file.metadata()?;
        Ok(look(self.lock().entry((found.dev(), found.ino())).or_default()))
    }

    /// Takes notice of files that were synced by a path of their own.
    fn take_synced(&self) {
        let synced = simulated::part::<FileSystem>().take_synced();
        let mut disks = self.lock();
        for (file, good) in synced {
            match disks.get_mut(&file) {
                Some(state) if good => state.flushed(),
                Some(state) => state.flush_failed(),
                None => {}
            }
        }
    }

    /// What goes wrong on this file from now on.
    ///
    /// # Errors
    /// The system's: it cannot be looked at.
    pub fn disturb(&self, file: &File, faults: Faults) -> io::Result<()> {
        self.with(file, |state| state.faults = faults)
    }

    /// True if the kernel has given up something of this file, which it tells once.
    ///
    /// # Errors
    /// The system's: it cannot be looked at.
    pub fn has_lost(&self, file: &File) -> io::Result<bool> {
        self.with(file, |state| state.sectors.values().any(|sector| sector.lost))
    }

    /// The world comes to its end: lets go of everything.
    pub fn end(&self) {
        self.lock().clear();
    }

    /// The descriptors of its own.
    pub fn descriptors(&self) -> Vec<i32> {
        self.lock().values().filter_map(|state| Some(state.file.as_ref()?.as_raw_fd())).collect()
    }

    /// The power is lost: what was not flushed is there or not, in blocks and then in [names and
    /// lengths](FileSystem::power_loss) of files.
    ///
    /// # Errors
    /// The system's.
    pub fn power_loss(&self, loss: Loss) -> io::Result<()> {
        self.take_synced();
        let mut disks = self.lock();
        let mut names: Vec<(u64, u64)> = disks.keys().copied().collect();
        names.sort_unstable();
        for name in names {
            let Some(state) = disks.get_mut(&name) else { continue };
            let sectors = std::mem::take(&mut state.sectors);
            let Some(file) = &state.file else { continue };
            for (number, sector) in sectors {
                let versions = sector.older.len() as u64;
                let chosen = match loss {
                    Loss::All => 0,
                    Loss::Nothing if !sector.lost => continue,
                    Loss::Nothing => 0,
                    Loss::Some => simulated::below(versions + 1),
                };
                if let Some(bytes) = sector.older.get(chosen as usize) {
                    file.write_all_at(bytes, number * SECTOR)?;
                }
            }
        }
        simulated::part::<FileSystem>().power_loss(loss)
    }
}

impl State {
    /// Notes what the sectors of a range contain before they change.
    fn note(&mut self, file: &Arc<File>, offset: u64, len: u64) -> io::Result<()> {
        if self.file.is_none() {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            self.file = Some(File::options().read(true).write(true).open(path)?);
        }
        for number in offset / SECTOR..(offset + len).div_ceil(SECTOR) {
            let mut bytes = vec![0; SECTOR as usize];
            let mut filled = 0;
            while filled < bytes.len() {
                match file.read_at(&mut bytes[filled..], number * SECTOR + filled as u64)? {
                    0 => break,
                    n => filled += n,
                }
            }
            let sector = self.sectors.entry(number).or_default();
            sector.lost = false;
            sector.older.push(bytes);
        }
        Ok(())
    }

    /// How long an operation takes, in microseconds.
    fn lateness(&self) -> u64 {
        let Faults { slow, hang, .. } = self.faults;
        match () {
            () if happens(hang) => 20_000_000 + simulated::below(200_000_000),
            () if happens(slow) => 1_000_000 + simulated::below(8_000_000),
            () if simulated::below(50) == 0 => 1000 + simulated::below(100_000),
            () => 10 + simulated::below(400),
        }
    }

    /// What was written is stable, but for what the kernel has given up.
    fn flushed(&mut self) {
        self.sectors.retain(|_, sector| sector.lost);
    }

    /// The kernel gives up what it has not written.
    fn flush_failed(&mut self) {
        self.sectors.values_mut().for_each(|sector| sector.lost = true);
    }
}

pub(super) struct Disk {
    serial: u64,
    token: Token,
    buf: Option<Buf>,
    op: DiskOp,
    file: u32,
    /// What it has led to, if that has happened.
    done: Option<Result<usize, i32>>,
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// True so often in a thousand.
fn happens(often: u64) -> bool {
    often > 0 && simulated::below(1000) < often
}

impl Disk {
    /// Does it.
    fn act(&mut self, file: &Arc<File>) {
        let disks = simulated::part::<Disks>();
        let acted = disks.with(file, |state| match &self.op {
            DiskOp::Read { offset, len } => {
                let buf = self.buf.as_mut().ok_or(libc::EINVAL)?;
                if happens(state.faults.read) {
                    return Err(libc::EIO);
                }
                let len = short(state, *len);
                file.read_at(&mut buf[..len], *offset).map_err(|e| errno(&e))
            }
            DiskOp::Write { offset, range } => {
                let buf = self.buf.as_ref().ok_or(libc::EINVAL)?;
                let len = short(state, range.len());
                let bytes = &buf[range.start..range.start + len];
                write(state, file, *offset, bytes)
            }
            DiskOp::SyncData if happens(state.faults.flush) => {
                state.flush_failed();
                Err(libc::EIO)
            }
            DiskOp::SyncData => {
                state.flushed();
                let found = file.metadata().map_err(|e| errno(&e))?;
                simulated::part::<FileSystem>().flushed((found.dev(), found.ino()));
                Ok(0)
            }
            DiskOp::Allocate { mode, offset, len } => {
                state.note(file, *offset, *len).map_err(|e| errno(&e))?;
                let (at, len) = (*offset as i64, *len as i64);
                // SAFETY: the descriptor is open, and the call touches no memory.
                match unsafe { libc::fallocate(file.as_raw_fd(), *mode, at, len) } {
                    0 => Ok(0),
                    _ => Err(crate::sys::last_errno()),
                }
            }
            DiskOp::Discard { .. } => Err(libc::EOPNOTSUPP),
        });
        self.done = Some(acted.unwrap_or_else(|error| Err(errno(&error))));
    }
}

/// A length, or a part of it.
fn short(state: &State, len: usize) -> usize {
    let sectors = len as u64 / SECTOR;
    if sectors > 1 && happens(state.faults.short) {
        return (SECTOR * (1 + simulated::below(sectors - 1))) as usize;
    }
    len
}

fn write(state: &mut State, file: &Arc<File>, offset: u64, bytes: &[u8]) -> Result<usize, i32> {
    if happens(state.faults.full) {
        return Err(libc::ENOSPC);
    }
    state.note(file, offset, bytes.len() as u64).map_err(|e| errno(&e))?;
    if happens(state.faults.write) {
        let part = simulated::below(bytes.len() as u64 / SECTOR + 1) * SECTOR;
        file.write_all_at(&bytes[..part as usize], offset).map_err(|e| errno(&e))?;
        return Err(libc::EIO);
    }
    file.write_all_at(bytes, offset).map_err(|e| errno(&e))?;
    Ok(bytes.len())
}

impl Simulated {
    pub(crate) fn add_file(&mut self, file: Arc<File>, _: Treatment) -> FileId {
        self.files.add(file)
    }

    pub(crate) fn remove_file(&mut self, id: FileId) {
        self.files.remove(id);
    }

    pub(crate) fn disk(
        &mut self,
        id: FileId,
        op: DiskOp,
        buf: Option<Buf>,
        token: Token,
    ) -> Result<(), Refused> {
        let Some(file) = self.files.begin(id).cloned() else {
            return Err(Refused { buf, errno: libc::EBADF });
        };
        self.serial += 1;
        let serial = self.serial;
        let mut disk = Disk { serial, token, buf, op, file: id.0.index, done: None };
        let late = simulated::part::<Disks>().with(&file, |state| state.lateness());
        // What a flush covers is what had been written when it was asked for, or more.
        if simulated::below(2) == 0 && !matches!(disk.op, DiskOp::SyncData) {
            disk.act(&file);
        }
        self.disks.insert(disk);
        let micros = late.unwrap_or_default();
        let teller = self.teller.clone();
        let due = move || teller.tell(|news| news.disks.push(serial));
        simulated::at(Duration::from_micros(micros), due);
        Ok(())
    }

    pub(crate) fn cancel(&mut self, token: Token) {
        if simulated::below(4) != 0 {
            // It was with the device already.
            return;
        }
        let named =
            |(at, disk): (usize, &Disk)| (disk.token == token && disk.done.is_none()).then_some(at);
        let found: Vec<usize> = self.disks.iter().filter_map(named).collect();
        for at in found {
            let disk = self.disks.remove(at);
            self.files.ends(disk.file);
            let result = Err(libc::ECANCELED);
            self.ended.push(Event::Disk { token, buf: disk.buf, result });
        }
    }

    /// The time of an operation has come.
    pub(super) fn disk_due(&mut self, serial: u64, events: &mut Vec<Event>) {
        let found = self.disks.iter().find(|(_, disk)| disk.serial == serial).map(|(at, _)| at);
        let Some(at) = found else { return };
        let Some(file) = self.files.at(self.disks[at].file).cloned() else {
            return;
        };
        let mut disk = self.disks.remove(at);
        if disk.done.is_none() {
            disk.act(&file);
        }
        self.files.ends(disk.file);
        let result = disk.done.unwrap_or(Err(libc::EIO));
        events.push(Event::Disk { token: disk.token, buf: disk.buf, result });
    }
}

/// Closes what a killed process had open below a folder: its threads never drop it. Not these descriptors.
pub fn close_files(folder: &std::path::Path, but: &[i32]) {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let open = entries.flatten().filter_map(|entry| {
        let number: i32 = entry.file_name().to_str()?.parse().ok()?;
        let path = std::fs::read_link(entry.path()).ok()?;
        (path.starts_with(folder) && !but.contains(&number)).then_some(number)
    });
    for number in open.collect::<Vec<_>>() {
        // SAFETY: its owner is on the stack or the heap of a thread that never runs again.
        unsafe { libc::close(number) };
    }
}
