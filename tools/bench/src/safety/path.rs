//! A file, a directory or a block device.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use lunet_os::process::{self, Failed};
use rustix::fs::{major, minor};

use super::blocks::{Blocks, content};
use super::{Destroy, Refusal};

/// How long `blkid` may take: it reads a few blocks, of a disk that may have to spin up.
const BLKID_TIME: Duration = Duration::from_secs(60);
/// The most that it has to say, in bytes.
const BLKID_LONGEST: u64 = 1 << 20;

/// What must stay free of a file system of `size` bytes: a full one harms more than a benchmark is worth. 5 %, but of a large one no more
/// than what other programs write meanwhile.
pub(super) fn kept_free(size: u64) -> u64 {
    (size / 20).min(1 << 30)
}

/// Holds a device as long as it is written to: nobody can mount it meanwhile.
#[derive(Debug)]
pub struct Guard {
    _held: Option<File>,
}

/// Whether this path may be written to, with `bytes` of new files if it is a directory or not there yet. `name` is the path as
/// the caller gave it.
///
/// # Errors
/// See [`Refusal`].
pub fn path(name: &str, bytes: u64, destroy: &Destroy) -> Result<Guard, Refusal> {
    let given = Path::new(name);
    let io = |error| Refusal::Io { place: name.to_owned(), error };
    let unfit = |what: String| Refusal::Unfit { place: name.to_owned(), what };
    let about = match fs::metadata(given) {
        Ok(about) => about,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let folder = given.parent().filter(|folder| !folder.as_os_str().is_empty());
            room(name, folder.unwrap_or(Path::new(".")), bytes)?;
            return Ok(Guard { _held: None });
        }
        Err(error) => return Err(io(error)),
    };
    let kind = about.file_type();
    if kind.is_dir() {
        room(name, given, bytes)?;
        return Ok(Guard { _held: None });
    }
    let real = fs::canonicalize(given).map_err(io)?;
    if kind.is_block_device() {
        return device(name, &real, &about, destroy);
    }
    if kind.is_file() {
        return file(name, &real, &about, destroy);
    }
    Err(unfit("is neither a file nor a directory nor a block device".to_owned()))
}

fn room(name: &str, folder: &Path, bytes: u64) -> Result<(), Refusal> {
    let io = |error: io::Error| Refusal::Io { place: name.to_owned(), error };
    let about = rustix::fs::statvfs(folder).map_err(|error| io(error.into()))?;
    let free = about.f_bavail * about.f_frsize;
    let keep = kept_free(about.f_blocks * about.f_frsize);
    if free >= bytes.saturating_add(keep) {
        return Ok(());
    }
    let mib = |bytes: u64| bytes >> 20;
    let what = format!(
        "has {} MiB free, and {} MiB are needed with {} MiB of the file system left over: choose a smaller size or another place",
        mib(free),
        mib(bytes),
        mib(keep)
    );
    Err(Refusal::Unfit { place: name.to_owned(), what })
}

/// So many bytes, in words that make no small file a large one.
fn amount(bytes: u64) -> String {
    match bytes {
        1 => "1 byte".to_owned(),
        0..=0xf_ffff => format!("{bytes} bytes"),
        bytes => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
    }
}

/// Refuses what is in use, whoever named it.
fn unused(name: &str, user: Option<String>) -> Result<(), Refusal> {
    match user {
        Some(what) => Err(Refusal::Used { place: name.to_owned(), what }),
        None => Ok(()),
    }
}

fn file(name: &str, real: &Path, about: &Metadata, destroy: &Destroy) -> Result<Guard, Refusal> {
    unused(name, swap(real))?;
    unused(name, loop_of(real))?;
    unused(name, locked(about))?;
    if about.len() > 0 && !destroy.names(name) {
        let what = format!("{} of a file that was there before", amount(about.len()));
        return Err(Refusal::Data { place: name.to_owned(), what });
    }
    Ok(Guard { _held: None })
}

fn device(name: &str, real: &Path, about: &Metadata, destroy: &Destroy) -> Result<Guard, Refusal> {
    let io = |error| Refusal::Io { place: name.to_owned(), error };
    unused(name, mounted(real, about.rdev()))?;
    unused(name, swap(real))?;
    unused(name, holders(about.rdev()))?;
    // The kernel itself says no if somebody else has the device, or a partition of it, for himself.
    let exclusive = rustix::fs::OFlags::EXCL.bits() as i32;
    let held = OpenOptions::new().read(true).write(true).custom_flags(exclusive).open(real);
    let held = match held {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => {
            let what =
                "the kernel or another program has it, or a part of it, for itself".to_owned();
            return Err(Refusal::Used { place: name.to_owned(), what });
        }
        held => held.map_err(io)?,
    };
    if !destroy.names(name) {
        let size = rustix::fs::seek(&held, rustix::fs::SeekFrom::End(0))
            .map_err(|error| io(error.into()))?;
        let mut blocks = Device { file: &held, size };
        let found = match blkid(real).map_err(io)? {
            Some(found) => Some(found),
            None => content(&mut blocks).map_err(io)?,
        };
        if let Some(what) = found {
            return Err(Refusal::Data { place: name.to_owned(), what });
        }
    }
    Ok(Guard { _held: Some(held) })
}

struct Device<'a> {
    file: &'a File,
    size: u64,
}

impl Blocks for Device<'_> {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&mut self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, at)
    }
}

/// What util-linux knows: far more formats than this program. `None` if it finds nothing, or is not there.
fn blkid(real: &Path) -> io::Result<Option<String>> {
    let mut command = Command::new("blkid");
    command.args(["--probe", "--output", "export"]).arg(real);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let told = match process::run(&mut command, BLKID_TIME, BLKID_LONGEST) {
        Ok(told) => told,
        Err(Failed::Start(_)) => return Ok(None),
        // A device that does not answer may hold anything.
        Err(late) => return Err(io::Error::other(format!("blkid {late}"))),
    };
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    let of = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    Ok(match (of("TYPE"), of("PTTYPE"), told.status.code()) {
        (Some(kind), ..) => Some(format!("a signature of {kind} (blkid)")),
        (None, Some(table), _) => Some(format!("a partition table of type {table} (blkid)")),
        // Several at once.
        (None, None, Some(8)) => Some("several signatures (blkid)".to_owned()),
        _ => None,
    })
}

/// Where a device, or a partition of it, is mounted.
fn mounted(real: &Path, device: u64) -> Option<String> {
    let own = format!("{}:{}", major(device), minor(device));
    let parts = parts(device);
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines().find_map(|line| {
        // proc_pid_mountinfo(5): the third field is the device, the fifth where; after the dash kind and source.
        let fields: Vec<&str> = line.split(' ').collect();
        let source = line.split_once(" - ")?.1.split(' ').nth(1)?;
        let number = *fields.get(2)?;
        let fits =
            number == own || Path::new(source) == real || parts.iter().any(|part| part == number);
        fits.then(|| format!("it is mounted at {}: unmount it first", fields[4]))
    })
}

/// The numbers of a disk's partitions.
fn parts(device: u64) -> Vec<String> {
    let folder = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let number = |entry: io::Result<fs::DirEntry>| {
        let path = entry.ok()?.path();
        path.join("partition").exists().then(|| fs::read_to_string(path.join("dev")).ok())?
    };
    entries.filter_map(number).map(|text| text.trim().to_owned()).collect()
}

/// Devices that are made of this one: device mapper, md, multipath.
fn holders(device: u64) -> Option<String> {
    let mut numbers = parts(device);
    numbers.push(format!("{}:{}", major(device), minor(device)));
    numbers.iter().find_map(|number| {
        let folder = format!("/sys/dev/block/{number}/holders");
        let mut names = fs::read_dir(folder)
            .ok()?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let holder = names.next()?;
        Some(format!("{holder} is made of it"))
    })
}

/// Whether the kernel swaps to it.
fn swap(real: &Path) -> Option<String> {
    let text = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mut names = text.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    let fits = names.any(|name| Path::new(name) == real);
    fits.then(|| "the kernel swaps to it: swapoff first".to_owned())
}

/// The loop device behind which a file is.
fn loop_of(real: &Path) -> Option<String> {
    let entries = fs::read_dir("/sys/block").ok()?;
    entries.filter_map(Result::ok).find_map(|entry| {
        let backing = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        let name = entry.file_name().into_string().ok()?;
        (Path::new(backing.trim_end()) == real)
            .then(|| format!("it is behind the loop device {name}: detach it first"))
    })
}

/// Whether a program has locked a file, as servers do with their volumes.
fn locked(about: &Metadata) -> Option<String> {
    let mut text = String::new();
    File::open("/proc/locks").and_then(|mut file| file.read_to_string(&mut text)).ok()?;
    // `1: FLOCK  ADVISORY  WRITE 123 fe:01:4567 0 EOF`: the device in hexadecimal, then the inode.
    let own = format!("{:02x}:{:02x}:{}", major(about.dev()), minor(about.dev()), about.ino());
    text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let at = fields.iter().position(|field| *field == own)?;
        let pid = fields.get(at.checked_sub(1)?)?;
        // A lock of an open file belongs to no process: -1.
        let who = if *pid == "-1" { "a program".to_owned() } else { format!("process {pid}") };
        Some(format!("{who} has locked it: stop what serves it first"))
    })
}
