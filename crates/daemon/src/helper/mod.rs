//! The helper: a process that does for the server what the [sandbox](crate::sandbox) keeps the server from.
//!
//! It is started before the server gives up anything, and stays what the server was. What may be asked of it is [`Ask`], and
//! no more: it starts the REST interface's process, runs the `zfs` command, names the program that listens on a port, reads
//! who the users and groups are, finds the links and drives that data passes, opens block devices, and has Avahi announce portals. It believes nothing that it is told: names are checked again, and neither a program nor an argument of its
//! own comes from the server.
//!
//! Each question has a pair of sockets of its own, whose one end is handed to the helper: questions do not wait for each
//! other, and none waits without an end. What nobody waits for any more is not done. The helper ends with the server. If it ends before, sessions go on: there are no more snapshots of ZFS volumes, no
//! new devices of others, and no REST interface until the server is started again.

#[cfg(feature = "control")]
mod announce;
mod process;

use std::fs::File;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
#[cfg(feature = "control")]
use lunet_api::{Part, PartsOf};
use lunet_backends::zfs::ZfsError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use crate::talk;
use crate::users::Names;

pub use self::process::run;

/// The command that processes of the server are started with: this program, even if another one has taken its place since.
pub const PROGRAM: &str = "/proc/self/exe";

/// Where what is written is gone.
const NOTHING: &str = "/dev/null";

/// The hidden command of the helper.
pub const COMMAND: &str = "serve-helper";

/// The hidden command of the REST interface's process.
pub const REST: &str = "serve-rest";

/// How long the `zfs` command may take. It waits for the pool, which may be busy.
pub const ZFS_TIME: Duration = Duration::from_secs(60);

/// How long the helper may take to end. What holds it up, in the kernel perhaps, does not hold up the server.
const PARTING: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// How long the helper may take to answer anything else, or to take a question. A device is opened by its driver, which may
/// have to wake it.
const TIME: Duration = Duration::from_secs(30);

/// How much longer than its command an answer about it may take.
const OVERHEAD: Duration = Duration::from_secs(10);

/// The first thing that the helper is told.
#[derive(Debug, Serialize, Deserialize)]
struct Setup {
    /// The user and group that the REST interface's process runs as, if these are not the helper's own.
    user: Option<(u32, u32)>,
}

/// What the helper is asked.
#[derive(Debug, Serialize, Deserialize)]
enum Ask {
    /// To start the process of the REST interface. The open file that comes with it is its standard input. The answer is a
    /// `Result<(), String>`; what the server says next, or its end, ends the process, which is answered by how it has ended.
    Rest,
    /// To run the `zfs` command with these arguments, of which it has to know the form. The answer is what it has printed, a
    /// `Result<String, ZfsError>`.
    Zfs(Vec<String>),
    /// Who listens at an address. The answer is an `Option<String>`.
    Holder(SocketAddr),
    /// What users or groups the machine has. The answer is an `Option<String>`, the file's text.
    Names(Names),
    /// To find the links and drives that the data of these passes. The answer is a `Result<Vec<Part>, String>`.
    #[cfg(feature = "control")]
    Parts(PartsOf),
    /// To open a block device for reading, and for writing if the second value is true; if the third one is true, and the device is a
    /// whole NVMe namespace, its generic character device as well. The answer is a `Result<(), i32>` with an error number, and
    /// the open files after it.
    Device(PathBuf, bool, bool),
    /// To announce these portals by mDNS until the stream is closed. The answer is a `Result<(), String>` once they are
    /// published, and a `String` when that has ended.
    #[cfg(feature = "control")]
    Announce(Vec<SocketAddr>),
}

/// The way to the helper.
struct Helper {
    stream: UnixStream,
    /// Held while a question is handed over: one at a time.
    asking: Mutex<()>,
    process: u32,
}

static HELPER: OnceLock<Helper> = OnceLock::new();

impl Helper {
    /// The process at the other end, which takes a question within this time. One that is stopped takes nothing: who waits
    /// for that keeps all others from asking.
    fn new(stream: UnixStream, process: u32, limit: Duration) -> io::Result<Self> {
        stream.set_write_timeout(Some(limit))?;
        Ok(Self { stream, asking: Mutex::new(()), process })
    }

    /// Asks something, with an open file perhaps. Gives the way on which the answer comes, which waits no longer than this.
    fn ask(&self, ask: &Ask, with: Option<OwnedFd>, limit: Duration) -> io::Result<UnixStream> {
        let (here, there) = UnixStream::pair()?;
        here.set_read_timeout(Some(limit))?;
        here.set_write_timeout(Some(limit))?;
        let files: Vec<OwnedFd> = [Some(there.into()), with].into_iter().flatten().collect();
        let one = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        talk::send_sockets(&self.stream, &files)?;
        drop(one);
        drop(files);
        talk::send(&here, ask)?;
        Ok(here)
    }

    /// Why it has not answered in time, for the administrator.
    fn late(&self) -> String {
        let process = self.process;
        match is_stopped(process) {
            true => format!(
                "the helper process (pid {process}) is stopped and does not answer: let it go on with `kill -CONT {process}`, \
                 or restart lunet"
            ),
            false => format!(
                "the helper process (pid {process}) has not answered in time: what it was asked for may hang; restart lunet \
                 if that goes on"
            ),
        }
    }
}

/// Starts the helper. The first of a process counts. The caller has no thread that holds files which must not be inherited.
///
/// # Errors
/// The process cannot be started.
pub fn start(user: Option<(u32, u32)>) -> Result<()> {
    let (here, there) = UnixStream::pair()?;
    // Opened here, for that the error names it: of a process that cannot be started it would name the program.
    let nothing = File::options().write(true).open(NOTHING).with_context(|| {
        format!("cannot open {NOTHING}: it is to be a device that everybody may read and write: `ls -l {NOTHING}`")
    })?;
    let child = Command::new(PROGRAM)
        .arg0("lunet")
        .arg(COMMAND)
        .stdin(OwnedFd::from(there))
        .stdout(nothing)
        .spawn()
        .with_context(|| format!("cannot start the helper process, {PROGRAM}"))?;
    talk::send(&here, &Setup { user })?;
    // The server waits for its end by the stream ([`end`]).
    let process = child.id();
    drop(child);
    let _ = HELPER.set(Helper::new(here, process, TIME)?);
    lunet_backends::open_devices_with(device);
    Ok(())
}

/// Whether there is a helper: there is none in a command of the command line, or in a simulated world.
pub fn is_there() -> bool {
    HELPER.get().is_some()
}

/// Whether there was a helper that has ended. The server may not start another one.
pub fn has_ended() -> bool {
    HELPER.get().is_some_and(|helper| talk::is_left(&helper.stream))
}

/// Has the helper end, and waits for that: it was started where the server was, which nobody can unmount until then.
pub fn end() {
    let Some(helper) = HELPER.get() else { return };
    // It has ended already if this fails.
    let _ = helper.stream.shutdown(Shutdown::Write);
    let mut fds = [PollFd::new(&helper.stream, PollFlags::RDHUP)];
    let _ = poll(&mut fds, Some(&PARTING));
}

/// Asks the helper, if there is one.
fn ask(ask: &Ask, with: Option<OwnedFd>, limit: Duration) -> io::Result<UnixStream> {
    HELPER.get().ok_or(io::ErrorKind::NotConnected)?.ask(ask, with, limit)
}

/// Why there is no answer, for the administrator.
fn gone(error: io::Error) -> io::Error {
    let text = match HELPER.get().filter(|_| is_late(&error)) {
        Some(helper) => helper.late(),
        None => format!("the helper process does not answer ({error}): restart lunet"),
    };
    io::Error::new(error.kind(), text)
}

/// Whether a wait has ended because its time was over.
fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// True for a process that a signal or a debugger has stopped, as far as it can be seen.
fn is_stopped(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['T', 't']))
}

/// Has `zfs` run with these arguments.
///
/// # Errors
/// As for [`Zfs`](lunet_backends::zfs::Zfs), or there is no helper any more.
pub fn zfs(arguments: &[&str]) -> Result<String, ZfsError> {
    let owned = arguments.iter().map(ToString::to_string).collect();
    let answer =
        ask(&Ask::Zfs(owned), None, ZFS_TIME + OVERHEAD).and_then(|stream| talk::receive(&stream));
    answer.unwrap_or_else(|error| {
        let command = lunet_backends::zfs::command(arguments);
        Err(ZfsError::Io { command, error: gone(error).to_string() })
    })
}

/// Has a block device opened, and the generic character device beside it perhaps.
fn device(path: &Path, write: bool, generic: bool) -> io::Result<(File, Option<File>)> {
    let stream = ask(&Ask::Device(path.to_owned(), write, generic), None, TIME).map_err(gone)?;
    let opened: std::result::Result<(), i32> = talk::receive(&stream).map_err(gone)?;
    opened.map_err(io::Error::from_raw_os_error)?;
    let mut files = talk::receive_sockets(&stream).map_err(gone)?.into_iter().map(File::from);
    let device = files.next().ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok((device, files.next()))
}

/// Who listens at an address, if there is a helper that may know.
pub fn holder(address: SocketAddr) -> Option<String> {
    let stream = ask(&Ask::Holder(address), None, TIME).ok()?;
    talk::receive(&stream).ok()?
}

/// The file that names users or groups, if there is a helper and it may read it.
pub fn names(of: Names) -> Option<String> {
    let stream = ask(&Ask::Names(of), None, TIME).ok()?;
    talk::receive(&stream).ok()?
}

/// The links and drives that the data of these passes.
///
/// # Errors
/// Why that is not known.
#[cfg(feature = "control")]
pub fn parts(of: PartsOf) -> Result<Vec<Part>> {
    let stream = ask(&Ask::Parts(of), None, ZFS_TIME + OVERHEAD).map_err(gone)?;
    let found: std::result::Result<_, String> = talk::receive(&stream).map_err(gone)?;
    found.map_err(anyhow::Error::msg)
}

/// The process of the REST interface, which the helper has started.
pub struct Rest(UnixStream);

impl Rest {
    /// Has it started, with this as its standard input.
    ///
    /// # Errors
    /// It cannot be started, or there is no helper any more.
    pub fn start(stdin: OwnedFd) -> Result<Self> {
        let stream = ask(&Ask::Rest, Some(stdin), TIME).map_err(gone)?;
        let started: std::result::Result<(), String> = talk::receive(&stream).map_err(gone)?;
        started.map_err(anyhow::Error::msg)?;
        Ok(Self(stream))
    }

    /// Waits for its end, and ends it if that takes too long. Says how it has ended.
    ///
    /// # Errors
    /// The helper has ended.
    pub fn reap(self) -> io::Result<String> {
        talk::send(&self.0, &()).and_then(|()| talk::receive(&self.0)).map_err(gone)
    }
}

/// Portals that are announced by mDNS, until this is dropped.
#[cfg(feature = "control")]
pub struct Announced(UnixStream);

#[cfg(feature = "control")]
impl Announced {
    /// Has them announced, and waits until they are.
    ///
    /// # Errors
    /// Avahi or `avahi-publish` is missing or refuses, or the helper has ended.
    pub fn start(portals: &[SocketAddr]) -> Result<Self> {
        let stream = ask(&Ask::Announce(portals.to_vec()), None, TIME).map_err(gone)?;
        let started: std::result::Result<(), String> = talk::receive(&stream).map_err(gone)?;
        started.map_err(anyhow::Error::msg)?;
        Ok(Self(stream))
    }

    /// Why they are no longer announced; none while they are.
    pub fn ended(&self) -> Option<String> {
        talk::is_left(&self.0).then(|| {
            talk::receive(&self.0).unwrap_or_else(|_| "the helper process has ended".to_owned())
        })
    }
}

#[cfg(feature = "control")]
impl Drop for Announced {
    /// Returns when Avahi was told, so that the same can be announced again.
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Write);
        let mut fds = [PollFd::new(&self.0, PollFlags::RDHUP)];
        let _ = poll(&mut fds, Some(&PARTING));
    }
}

/// Standard input as a socket, which belongs to nobody else from now on.
///
/// # Errors
/// It is none.
pub(crate) fn stdin() -> io::Result<UnixStream> {
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    stream.peer_addr()?;
    // What this process starts has nothing to say there.
    rustix::stdio::dup2_stdin(File::open(NOTHING)?)?;
    // What a terminal has to say is for the server.
    rustix::process::setsid()?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Stdio};

    use super::*;

    /// A process in the helper's place; it ends with the test.
    struct Stopped(Child);

    impl Stopped {
        fn new() -> Self {
            let mut command = Command::new("sleep");
            let child = command.arg("600").stdin(Stdio::null()).spawn().unwrap();
            let one = Self(child);
            one.signal(rustix::process::Signal::STOP);
            while !is_stopped(one.0.id()) {
                std::thread::yield_now();
            }
            one
        }

        fn signal(&self, signal: rustix::process::Signal) {
            let pid = rustix::process::Pid::from_child(&self.0);
            rustix::process::kill_process(pid, signal).unwrap();
        }
    }

    impl Drop for Stopped {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    #[test]
    fn a_stopped_helper_holds_nobody_up_and_does_nothing_late() {
        let short = Duration::from_millis(50);
        let process = Stopped::new();
        let (here, there) = UnixStream::pair().unwrap();
        let helper = Helper::new(here, process.0.id(), short).unwrap();
        let given_up = helper.ask(&Ask::Names(Names::Users), None, short).unwrap();
        let error = talk::receive::<Option<String>>(&given_up).unwrap_err();
        assert!(is_late(&error), "{error}");
        let told = helper.late();
        let go_on = format!("`kill -CONT {}`", process.0.id());
        assert!(told.contains("is stopped") && told.contains(&go_on), "{told}");
        drop(given_up);
        // It takes no more than fits into the socket, and who asks then is refused in time as well.
        let refused = (0..100_000)
            .find_map(|_| helper.ask(&Ask::Names(Names::Users), None, short).err())
            .expect("it is full");
        assert!(is_late(&refused), "{refused}");
        process.signal(rustix::process::Signal::CONT);
        while is_stopped(process.0.id()) {
            std::thread::yield_now();
        }
        assert!(helper.late().contains("has not answered in time"));
        // It goes on, and sees that nobody waits for the question any more: an answer would be an error.
        let files = talk::receive_sockets(&there).unwrap();
        process::answer(files, &Setup { user: None }).unwrap();
    }
}
