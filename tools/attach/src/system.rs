//! The machine that is attached: its files, its programs and its devices.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use lunet_host::apply::{Fault, LiveMachine, Machine};
use lunet_os::process::{self, Failed};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// So much of each end of a device is looked at, in bytes: there are labels of ZFS, LVM, md, DRBD, LUKS, tables of partitions.
const ENDS: u64 = 16 << 20;
/// A device that is no larger is read whole, in bytes.
const WHOLE: u64 = 256 << 20;
/// So many samples are read of a larger one, at equal distances.
const SAMPLES: u64 = 4096;
/// Length of a sample in bytes.
const SAMPLE: u64 = 16 << 10;
/// Length of a read in bytes.
const PIECE: u64 = 1 << 20;

/// Most of the output of a program that is kept, in bytes.
const LONGEST: u64 = 1 << 20;

/// Where the lock is that keeps two runs from changing the machine at once. It leaves nothing behind after a reboot.
pub const RUN: &str = "/run/lunet-attach";

/// The lock's file, which is empty. Each program that is run has it as its standard input: so those are known that outlive a run
/// that was killed.
pub const LOCK: &str = "/run/lunet-attach/lock";

/// A program with its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The program.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// How long it may take, in seconds.
    pub limit: u64,
}

impl Call {
    /// A program with these arguments, which are separated by spaces, and half a minute.
    #[must_use]
    pub fn new(line: &str) -> Self {
        let mut words = line.split_whitespace().map(str::to_owned);
        Self { program: words.next().unwrap_or_default(), args: words.collect(), limit: 30 }
    }

    /// The same with further arguments, which may have spaces.
    #[must_use]
    pub fn with<T: ToString>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.to_string()));
        self
    }

    /// The same with another time limit, in seconds.
    #[must_use]
    pub const fn within(mut self, limit: u64) -> Self {
        self.limit = limit;
        self
    }
}

/// As it can be typed into a shell.
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.program)?;
        for arg in &self.args {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./:,@%".contains(c);
            match !arg.is_empty() && arg.chars().all(plain) {
                true => write!(f, " {arg}")?,
                false => write!(f, " '{}'", arg.replace('\'', r"'\''"))?,
            }
        }
        Ok(())
    }
}

/// What came of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// Its exit code.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// A machine that can be attached.
pub trait System {
    /// Its files and those of its kernel.
    fn machine(&self) -> &dyn Machine;

    /// Runs a program to its end, whatever its exit code is.
    ///
    /// # Errors
    /// It is not there, or takes longer than it may.
    fn start(&self, call: &Call) -> Result<Ran, Fault>;

    /// Makes a directory, with those above it.
    ///
    /// # Errors
    /// The system refuses.
    fn make_directory(&self, path: &str) -> Result<(), Fault>;

    /// Where a device has a byte that is not zero: of a small one all are looked at, of a large one both ends and samples between.
    ///
    /// # Errors
    /// It cannot be read.
    fn written(&self, device: &str) -> Result<Option<u64>, Fault>;

    /// Whether anything holds a device: a mount, in whatever namespace, LVM, md, a loop device, a target in the kernel.
    ///
    /// # Errors
    /// It cannot be opened.
    fn is_held(&self, device: &str) -> Result<bool, Fault>;

    /// Whether what is at a path is root's or this user's own, and nobody else can write it. So is what is not there.
    fn is_own(&self, path: &str) -> bool;

    /// Waits a moment for something that comes by itself; false if it has been waited long enough.
    fn wait(&self, since: Instant, limit: Duration) -> bool;

    /// Runs a program that has to succeed, and gives its output.
    ///
    /// # Errors
    /// It fails; the fault has what it said.
    fn run(&self, call: &Call) -> Result<String, Fault> {
        let ran = self.start(call)?;
        if ran.code == 0 {
            return Ok(ran.out);
        }
        let told: Vec<&str> = ran
            .err
            .lines()
            .chain(ran.out.lines())
            .map(str::trim_end)
            .filter(|line| !line.is_empty())
            .collect();
        let told = if told.is_empty() { "it said nothing".to_owned() } else { told.join("\n    ") };
        Err(Fault(format!("`{call}` failed with exit code {}:\n    {told}", ran.code)))
    }
}

/// The machine that this runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Live;

impl System for Live {
    fn machine(&self) -> &dyn Machine {
        &LiveMachine
    }

    fn start(&self, call: &Call) -> Result<Ran, Fault> {
        let path = std::env::var("PATH").unwrap_or_default();
        let input = File::open(LOCK).map_or_else(|_| Stdio::null(), Stdio::from);
        let mut command = std::process::Command::new(&call.program);
        command
            .args(&call.args)
            .env("LC_ALL", "C")
            .env("PATH", format!("{path}:/usr/local/sbin:/usr/sbin:/sbin"))
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let limit = Duration::from_secs(call.limit);
        let done = process::run(&mut command, limit, LONGEST).map_err(|failed| {
            Fault(match failed {
                Failed::Start(error) => {
                    format!("`{}` cannot be run: {}", call.program, words(&error))
                }
                Failed::Late(_) => format!("`{call}` {failed}"),
                Failed::Held(_) => {
                    format!("`{call}` {failed}: see that its server is reached, and try again")
                }
            })
        })?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = done.status.code().unwrap_or(-1);
        Ok(Ran { code, out: text(&done.stdout), err: text(&done.stderr) })
    }

    fn make_directory(&self, path: &str) -> Result<(), Fault> {
        fs::create_dir_all(path)
            .map_err(|error| Fault(format!("{path} cannot be made: {}", words(&error))))
    }

    fn written(&self, device: &str) -> Result<Option<u64>, Fault> {
        let look = || written(&mut File::open(device)?);
        look().map_err(|error| Fault(format!("{device} cannot be read: {}", words(&error))))
    }

    fn is_held(&self, device: &str) -> Result<bool, Fault> {
        // What claims a block device claims it for itself alone (open(2), O_EXCL).
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::open(device, flags, Mode::empty()) {
            Err(Errno::BUSY) => Ok(true),
            // A disk without its paths is not there, or cannot be opened, and cannot be held by that.
            Ok(_) | Err(Errno::NOENT | Errno::NXIO | Errno::NODEV | Errno::IO) => Ok(false),
            Err(error) => {
                Err(Fault(format!("{device} cannot be opened: {}", words(&error.into()))))
            }
        }
    }

    fn is_own(&self, path: &str) -> bool {
        match fs::metadata(path) {
            Ok(found) => {
                let owners = [0, rustix::process::geteuid().as_raw()];
                let by_group = found.mode() & 0o020 != 0 && found.gid() != 0;
                owners.contains(&found.uid()) && found.mode() & 0o002 == 0 && !by_group
            }
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    fn wait(&self, since: Instant, limit: Duration) -> bool {
        thread::sleep(Duration::from_millis(100));
        since.elapsed() < limit
    }
}

/// The first place that is looked at and has another byte than zero.
fn written(file: &mut File) -> io::Result<Option<u64>> {
    let len = file.seek(SeekFrom::End(0))?;
    // What lies between the samples is not read ahead.
    let _ = rustix::fs::fadvise(&*file, 0, None, rustix::fs::Advice::Random);
    let mut ranges = vec![(0, len)];
    if len > WHOLE {
        let step = len / SAMPLES;
        let samples = (1..SAMPLES).map(|number| (number * step, SAMPLE));
        ranges = [(0, ENDS), (len - ENDS, ENDS)].into_iter().chain(samples).collect();
    }
    let mut bytes = Vec::new();
    for (start, len) in ranges {
        let end = start + len;
        for at in (start..end).step_by(PIECE as usize) {
            file.seek(SeekFrom::Start(at))?;
            bytes.clear();
            Read::by_ref(file).take(PIECE.min(end - at)).read_to_end(&mut bytes)?;
            if let Some(within) = bytes.iter().position(|byte| *byte != 0) {
                return Ok(Some(at + within as u64));
            }
        }
    }
    Ok(None)
}

/// An error of the operating system's in words, without its number.
fn words(error: &io::Error) -> String {
    let text = error.to_string();
    let plain = text.split(" (os error").next().unwrap_or_default();
    let mut letters = plain.chars();
    let first = letters.next().map(|letter| letter.to_lowercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::io::{Seek, SeekFrom, Write};
    use std::os::unix::fs::PermissionsExt;

    use super::{Live, SAMPLES, System, WHOLE, written};

    #[test]
    fn what_others_can_write_is_not_ones_own() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("journal");
        let is_own = || Live.is_own(path.to_str().expect("UTF-8"));
        assert!(is_own(), "it is not there");
        fs::write(&path, "x").expect("a file");
        for (mode, own) in [(0o600, true), (0o644, true), (0o646, false)] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("a mode");
            assert_eq!(is_own(), own, "{mode:o}");
        }
        fs::set_permissions(&path, Permissions::from_mode(0o660)).expect("a mode");
        for (uid, gid, own) in [(0, 0, true), (0, 65534, false), (65534, 0, false)] {
            // Where this user may give files away.
            if std::os::unix::fs::chown(&path, Some(uid), Some(gid)).is_ok() {
                assert_eq!(is_own(), own, "{uid} {gid}");
            }
        }
    }

    #[test]
    fn a_byte_is_found_at_the_ends_and_wherever_a_sample_is() {
        let len = 1u64 << 30;
        let step = len / SAMPLES;
        for (len, at, found) in [
            (len, None, None::<()>),
            (len, Some((16 << 20) - 1), Some(())),
            (len, Some(len - (256 << 10)), Some(())),
            (len, Some(len / 2 + step + 100), Some(())),
            // Between two samples.
            (len, Some(len / 2 + step - 1), None),
            (WHOLE, Some(WHOLE / 2 + 77777), Some(())),
            (4096, Some(4095), Some(())),
            (0, None, None),
        ] {
            let mut file = tempfile::tempfile().expect("a file");
            file.set_len(len).expect("a length");
            if let Some(at) = at {
                file.seek(SeekFrom::Start(at)).expect("there");
                file.write_all(&[1]).expect("written");
            }
            assert_eq!(written(&mut file).expect("read"), found.and(at), "{len} {at:?}");
        }
    }
}
