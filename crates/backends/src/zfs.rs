//! Snapshots, clones and sizes of ZFS volumes (zvols), by the `zfs` command. All functions block.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use lunet_os::process::{self, Failed};
use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};

/// Where the names of zvols lead to their devices.
const NAMES: &str = "/dev/zvol";

/// Where `zfs` is on systems that do not have it in an ordinary user's PATH.
const SYSTEM: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// The longest name of a dataset, `zfs(8)`.
const MAX_NAME: usize = 255;

/// The arguments that list the snapshots of a volume, without its name.
const LIST: [&str; 11] = [
    "list",
    "-H",
    "-p",
    "-t",
    "snapshot",
    "-d",
    "1",
    "-s",
    "createtxg",
    "-o",
    "name,creation,used,guid",
];

/// The most volumes whose snapshots one command lists: their names have 32 KiB together at the most.
const AT_ONCE: usize = 128;

/// What is read of the command's output, in bytes.
const MAX_OUTPUT: u64 = 16 << 20;

/// How deep datasets lie in each other at most, `zfs(8)`.
const MAX_DEPTH: usize = 50;

/// Why something could not be done with a ZFS volume, in one sentence.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the variants' messages say what they and their fields mean")]
pub enum ZfsError {
    #[error(
        "the command zfs is not in {places}: install the ZFS tools, or add their place to PATH"
    )]
    NoCommand { places: String },
    #[error("{path}: it is not the device of a ZFS volume (below /dev/zvol, or one of /dev/zd*)")]
    NotAZvol { path: PathBuf },
    #[error(
        "\"{name}\" is not a name that ZFS takes: use letters, digits and any of _ . : - and do \
         not begin with a hyphen"
    )]
    Name { name: String },
    #[error("{command}: {message}")]
    Refused { command: String, message: String },
    #[error("{command}: no answer within {} seconds; see what zpool status says", limit.as_secs())]
    Hangs { command: String, limit: Duration },
    #[error("{command}: {error}")]
    Io { command: String, error: String },
    #[error("{command}: its answer cannot be understood: {line}")]
    Answer { command: String, line: String },
}

/// The name of a ZFS volume: `POOL/NAME`, perhaps deeper.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dataset(String);

impl Dataset {
    /// Takes a name.
    ///
    /// # Errors
    /// [`ZfsError::Name`] if ZFS, or the command line of `zfs`, would not take it.
    pub fn new(name: &str) -> Result<Self, ZfsError> {
        let valid = name.contains('/') && name.len() <= MAX_NAME && name.split('/').all(is_part);
        if valid {
            Ok(Self(name.to_owned()))
        } else {
            Err(ZfsError::Name { name: name.to_owned() })
        }
    }

    /// The volume whose device this is: a name below `/dev/zvol`, or what such a name leads to.
    ///
    /// # Errors
    /// [`ZfsError::NotAZvol`].
    pub fn of_device(device: &Path) -> Result<Self, ZfsError> {
        Self::of_device_below(device, Path::new(NAMES))
    }

    fn of_device_below(device: &Path, names: &Path) -> Result<Self, ZfsError> {
        let other = || ZfsError::NotAZvol { path: device.to_path_buf() };
        let found = match device.strip_prefix(names) {
            Ok(name) => Some(name.to_path_buf()),
            Err(_) => {
                let target = device.canonicalize().map_err(|_| other())?;
                find(names, &target, MAX_DEPTH)
                    .and_then(|path| Some(path.strip_prefix(names).ok()?.to_path_buf()))
            }
        };
        let name = found.and_then(|path| path.to_str().map(str::to_owned)).ok_or_else(other)?;
        Self::new(&name)
    }

    /// The device's path.
    pub fn device(&self) -> PathBuf {
        Path::new(NAMES).join(&self.0)
    }

    fn at(&self, snapshot: &str) -> Result<String, ZfsError> {
        let name = format!("{self}@{snapshot}");
        if is_part(snapshot) && name.len() <= MAX_NAME {
            Ok(name)
        } else {
            Err(ZfsError::Name { name: snapshot.to_owned() })
        }
    }
}

impl fmt::Display for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A part of a name. `.` and `..` would lead elsewhere in a path, a hyphen would begin an option.
fn is_part(name: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || b"_.:-".contains(&b);
    !matches!(name, "" | "." | "..") && !name.starts_with('-') && name.bytes().all(known)
}

/// The link below a directory that leads to a device.
fn find(directory: &Path, device: &Path, depth: usize) -> Option<PathBuf> {
    for entry in fs::read_dir(directory).ok()?.flatten() {
        let (path, kind) = (entry.path(), entry.file_type().ok()?);
        if kind.is_dir() && depth > 0 {
            if let Some(found) = find(&path, device, depth - 1) {
                return Some(found);
            }
        } else if path.canonicalize().is_ok_and(|target| target == device) {
            return Some(path);
        }
    }
    None
}

/// A snapshot of a ZFS volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZfsSnapshot {
    /// Its name: what stands behind the `@`.
    pub name: String,
    /// When it was taken, in seconds since 1970.
    pub created: u64,
    /// What would be free without it, in bytes.
    pub used: u64,
    /// What tells it from every other snapshot, also of the same name.
    pub guid: String,
}

/// The `zfs` command.
#[derive(Clone, Debug)]
pub struct Zfs(By);

/// Has the command run with these arguments in another process, and gives what it has printed.
pub type Elsewhere = fn(&[&str]) -> Result<String, ZfsError>;

#[derive(Clone, Debug)]
enum By {
    Program { program: PathBuf, limit: Duration },
    Elsewhere(Elsewhere),
}

impl Zfs {
    /// Finds the command in a PATH (that of the process, if none is given) or where systems keep
    /// it. A call of it may take as long as `limit`.
    ///
    /// # Errors
    /// [`ZfsError::NoCommand`].
    pub fn find(path: Option<&OsStr>, limit: Duration) -> Result<Self, ZfsError> {
        let own = std::env::var_os("PATH").unwrap_or_default();
        let mut places: Vec<PathBuf> = std::env::split_paths(path.unwrap_or(&own)).collect();
        if path.is_none() {
            places.extend(SYSTEM.map(PathBuf::from));
        }
        match places.iter().map(|place| place.join("zfs")).find(|file| file.is_file()) {
            Some(program) => Ok(Self(By::Program { program, limit })),
            None => {
                let places: Vec<_> = places.iter().map(|p| p.display().to_string()).collect();
                Err(ZfsError::NoCommand { places: places.join(":") })
            }
        }
    }

    /// The command, run by another process.
    pub fn elsewhere(run: Elsewhere) -> Self {
        Self(By::Elsewhere(run))
    }

    /// Runs the command for another process, if the arguments are such as a function here gives it. Gives what it has
    /// printed.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot), and [`ZfsError::Refused`] for other arguments.
    pub fn run_checked(&self, arguments: &[&str]) -> Result<String, ZfsError> {
        if is_known(arguments) {
            return self.run(arguments);
        }
        let message = "lunet does not run this".to_owned();
        Err(ZfsError::Refused { command: command(arguments), message })
    }

    /// Keeps the present content of a volume: `zfs snapshot`.
    ///
    /// # Errors
    /// [`ZfsError`], for all functions here: what the command says is in it.
    pub fn snapshot(&self, volume: &Dataset, snapshot: &str) -> Result<(), ZfsError> {
        self.run(&["snapshot", &volume.at(snapshot)?]).map(drop)
    }

    /// Makes a new volume with the content of a snapshot: `zfs clone`.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot).
    pub fn clone_to(&self, of: &Dataset, snapshot: &str, to: &Dataset) -> Result<(), ZfsError> {
        self.run(&["clone", &of.at(snapshot)?, &to.0]).map(drop)
    }

    /// Gives a volume the content of its latest snapshot: `zfs rollback`. ZFS refuses an earlier
    /// one, for which the later ones would have to go.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot).
    pub fn rollback(&self, volume: &Dataset, snapshot: &str) -> Result<(), ZfsError> {
        self.run(&["rollback", &volume.at(snapshot)?]).map(drop)
    }

    /// Removes a snapshot: `zfs destroy`.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot).
    pub fn destroy_snapshot(&self, volume: &Dataset, snapshot: &str) -> Result<(), ZfsError> {
        self.run(&["destroy", &volume.at(snapshot)?]).map(drop)
    }

    /// Removes a volume without snapshots: `zfs destroy`.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot).
    pub fn destroy(&self, volume: &Dataset) -> Result<(), ZfsError> {
        self.run(&["destroy", &volume.0]).map(drop)
    }

    /// Gives a volume another size in bytes, a multiple of its block size: `zfs set volsize`. Its
    /// device has it at once. The caller must not make it smaller.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot).
    pub fn resize(&self, volume: &Dataset, size: u64) -> Result<(), ZfsError> {
        self.run(&["set", &format!("volsize={size}"), &volume.0]).map(drop)
    }

    /// The snapshots of a volume, the oldest first: `zfs list`.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot).
    pub fn snapshots(&self, volume: &Dataset) -> Result<Vec<ZfsSnapshot>, ZfsError> {
        let arguments = [&LIST[..], &[&volume.0]].concat();
        let text = self.run(&arguments)?;
        let one = |line: &str| {
            let is_of = line.split_once('@').is_some_and(|(name, _)| name == volume.0);
            let odd = || ZfsError::Answer { command: command(&arguments), line: line.to_owned() };
            listed(line).filter(|_| is_of).ok_or_else(odd)
        };
        text.lines().map(one).collect()
    }

    /// The same of many volumes, by a command for each 128. A volume that is not in the answer has to be asked about alone: something
    /// was refused, and another volume may be the reason. Nobody is asked any more once a command has hung.
    pub fn snapshots_of(
        &self,
        volumes: &[Dataset],
    ) -> BTreeMap<Dataset, Result<Vec<ZfsSnapshot>, ZfsError>> {
        let mut all = BTreeMap::new();
        for (at, some) in volumes.chunks(AT_ONCE).enumerate() {
            match self.snapshots_of_some(some) {
                Ok(found) => {
                    all.extend(found.into_iter().map(|(volume, known)| (volume, Ok(known))));
                }
                Err(ZfsError::Hangs { limit, .. }) => {
                    let hangs = |volume: &Dataset| {
                        let command = command(&[&LIST[..], &[&volume.0]].concat());
                        (volume.clone(), Err(ZfsError::Hangs { command, limit }))
                    };
                    all.extend(volumes[at * AT_ONCE..].iter().map(hangs));
                    break;
                }
                Err(_) => {}
            }
        }
        all
    }

    fn snapshots_of_some(
        &self,
        volumes: &[Dataset],
    ) -> Result<BTreeMap<Dataset, Vec<ZfsSnapshot>>, ZfsError> {
        let names: Vec<&str> = volumes.iter().map(|volume| volume.0.as_str()).collect();
        let arguments = [&LIST[..], &names].concat();
        let text = self.run(&arguments)?;
        let odd =
            |line: &str| ZfsError::Answer { command: command(&arguments), line: line.to_owned() };
        if text.len() as u64 >= MAX_OUTPUT {
            return Err(odd("it is too long"));
        }
        let mut all: BTreeMap<_, _> = volumes.iter().map(|one| (one.clone(), Vec::new())).collect();
        for line in text.lines() {
            let of = line.split_once('@').map(|(volume, _)| Dataset(volume.to_owned()));
            let (Some(of), Some(known)) = (of, listed(line)) else { return Err(odd(line)) };
            all.get_mut(&of).ok_or_else(|| odd(line))?.push(known);
        }
        Ok(all)
    }

    /// Runs the command to its end, and gives what it has printed. Without a shell; its
    /// messages are to be in English.
    fn run(&self, arguments: &[&str]) -> Result<String, ZfsError> {
        let (program, limit) = match &self.0 {
            By::Program { program, limit } => (program, *limit),
            By::Elsewhere(run) => return run(arguments),
        };
        let fail = |error: io::Error| failed(arguments, &error);
        // In memory, so that a child cannot be held up by a full pipe nor hold us up by an open one.
        let output = || rustix::fs::memfd_create("zfs", MemfdFlags::CLOEXEC).map(File::from);
        let mut out = output().map_err(|e| fail(e.into()))?;
        let mut err = output().map_err(|e| fail(e.into()))?;
        let status = wait(program, arguments, (&out, &err), limit)?;
        let text = read_back(&mut out).map_err(fail)?;
        if status.success() {
            return Ok(text);
        }
        let said = read_back(&mut err).map_err(fail)?;
        let said: Vec<&str> = said.split_whitespace().collect();
        let message = if said.is_empty() { status.to_string() } else { said.join(" ") };
        Err(ZfsError::Refused { command: command(arguments), message })
    }
}

/// A snapshot as a line tells of it: `VOLUME@NAME`, when it was taken, what it takes, its number.
fn listed(line: &str) -> Option<ZfsSnapshot> {
    let mut fields = line.split('\t');
    let (_, name) = fields.next()?.split_once('@')?;
    let (created, used) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let guid = fields.next().filter(|guid| !guid.is_empty())?;
    Some(ZfsSnapshot { name: name.to_owned(), created, used, guid: guid.to_owned() })
}

fn wait(
    program: &Path,
    arguments: &[&str],
    (out, err): (&File, &File),
    limit: Duration,
) -> Result<ExitStatus, ZfsError> {
    let fail = |error: io::Error| failed(arguments, &error);
    let child = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(out.try_clone().map_err(fail)?)
        .stderr(err.try_clone().map_err(fail)?)
        .spawn()
        .map_err(fail)?;
    process::wait(child, limit).map_err(|failed| match failed {
        Failed::Start(error) => fail(error),
        Failed::Late(limit) | Failed::Held(limit) => {
            ZfsError::Hangs { command: command(arguments), limit }
        }
    })
}

/// Whether these are arguments that a function of [`Zfs`] makes: of a volume, or of a snapshot of one.
fn is_known(arguments: &[&str]) -> bool {
    let is_volume = |name: &str| Dataset::new(name).is_ok();
    let is_snapshot = |name: &str| {
        let Some((volume, snapshot)) = name.split_once('@') else { return false };
        is_volume(volume) && is_part(snapshot) && name.len() <= MAX_NAME
    };
    match arguments {
        ["snapshot" | "rollback", name] => is_snapshot(name),
        ["destroy", name] => is_snapshot(name) || is_volume(name),
        ["clone", of, to] => is_snapshot(of) && is_volume(to),
        ["set", size, name] => {
            let size = size.strip_prefix("volsize=").unwrap_or_default();
            size.parse::<u64>().is_ok_and(|bytes| bytes.to_string() == size) && is_volume(name)
        }
        _ => arguments.strip_prefix(&LIST).is_some_and(|names| {
            (1..=AT_ONCE).contains(&names.len()) && names.iter().all(|name| is_volume(name))
        }),
    }
}

fn failed(arguments: &[&str], error: &io::Error) -> ZfsError {
    ZfsError::Io { command: command(arguments), error: error.to_string() }
}

/// The command with its arguments, as it is told of.
pub fn command(arguments: &[&str]) -> String {
    format!("zfs {}", arguments.join(" "))
}

fn read_back(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(MAX_OUTPUT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests;
