//! The helper's end: what it does when it is asked. It runs with the rights of whoever has started the server.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use lunet_backends::zfs::{Zfs, ZfsError};

use super::{Ask, PROGRAM, Setup, ZFS_TIME, stdin};
use crate::signals::Signals;
use crate::{holder, sandbox, talk};

/// Questions that are answered at one time. More of them are not answered.
const QUESTIONS: usize = 64;

/// How long a process that says nothing more has to end.
const REAPED: Duration = Duration::from_secs(1);

/// Answers the server at the other end of standard input, until that is gone.
///
/// # Errors
/// There is no such server.
pub fn run() -> Result<()> {
    sandbox::close().context("cannot give up privileges")?;
    let stream = stdin().context("this command is for `lunet serve`, which starts it")?;
    // Whoever ends the server ends this process, too; signals are for the server.
    let _signals = Signals::catch().context("cannot catch signals")?;
    let setup: Arc<Setup> = Arc::new(talk::receive(&stream).context("no setup came")?);
    let running = Arc::new(AtomicUsize::new(0));
    while let Ok(files) = talk::receive_sockets(&stream) {
        let (setup, counted) = (Arc::clone(&setup), Arc::clone(&running));
        let number = running.fetch_add(1, Ordering::AcqRel);
        let work = move || {
            // Whoever asks sees the end of the stream if there is no answer.
            let _ = answer(files, &setup);
            counted.fetch_sub(1, Ordering::AcqRel);
        };
        if number >= QUESTIONS || lunet_os::thread::spawn("helper-ask", work).is_err() {
            running.fetch_sub(1, Ordering::AcqRel);
        }
    }
    // Before the server sees the end of the stream: then nothing holds a file system that it was started in.
    let _ = rustix::process::chdir("/");
    let _ = File::open("/dev/null").map(rustix::stdio::dup2_stderr);
    drop(stream);
    Ok(())
}

pub(super) fn answer(files: Vec<OwnedFd>, setup: &Setup) -> io::Result<()> {
    let mut files = files.into_iter();
    let stream = UnixStream::from(files.next().ok_or(io::ErrorKind::InvalidInput)?);
    let asked = talk::receive(&stream)?;
    if talk::is_left(&stream) {
        // This process was stopped meanwhile, and the change that has asked has failed.
        return Ok(());
    }
    match asked {
        Ask::Rest => rest(&stream, files.next(), setup),
        Ask::Zfs(arguments) => talk::send(&stream, &zfs(&arguments)),
        #[cfg(feature = "control")]
        Ask::Parts(of) => {
            let found = crate::parts::found(&of).map_err(|error| format!("{error:#}"));
            talk::send(&stream, &found)
        }
        Ask::Names(names) => talk::send(&stream, &names.read().ok()),
        Ask::Holder(address) => talk::send(&stream, &holder::who(address)),
        #[cfg(feature = "control")]
        Ask::Announce(portals) if portals.len() > super::announce::PORTALS => {
            let text = format!("there are more than {} portals", super::announce::PORTALS);
            talk::send(&stream, &Err::<(), String>(text))
        }
        #[cfg(feature = "control")]
        Ask::Announce(portals) => super::announce::run(&stream, &portals, setup),
        Ask::Device(path, write, generic) => match devices(&path, write, generic) {
            Ok(files) => {
                talk::send(&stream, &Ok::<(), i32>(()))?;
                talk::send_sockets(&stream, &files)
            }
            Err(error) => {
                let number = error.raw_os_error().unwrap_or(libc::EPERM);
                talk::send(&stream, &Err::<(), i32>(number))
            }
        },
    }
}

/// Starts the process of the REST interface and stays with it: the kernel ends it with this thread.
fn rest(stream: &UnixStream, input: Option<OwnedFd>, setup: &Setup) -> io::Result<()> {
    let input = input.ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(PROGRAM);
    command.arg0("lunet").arg(super::REST).stdin(input).stdout(Stdio::null());
    if let Some((user, group)) = setup.user {
        command.uid(user).gid(group);
    }
    let started = command.spawn();
    // Its standard input goes with the command: the other end has to see its end.
    drop(command);
    let child = match started {
        Ok(child) => child,
        Err(error) => {
            let text = format!("cannot start its process, {PROGRAM}: {error}");
            return talk::send(stream, &Err::<(), String>(text));
        }
    };
    talk::send(stream, &Ok::<(), String>(()))?;
    // The server is done with it, or has ended.
    let _ = talk::receive::<()>(stream);
    let ended = match lunet_os::process::wait(child, REAPED) {
        Ok(status) => status.to_string(),
        Err(failed) => format!("it {failed}"),
    };
    talk::send(stream, &ended)
}

fn zfs(arguments: &[String]) -> Result<String, ZfsError> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Zfs::find(None, ZFS_TIME)?.run_checked(&arguments)
}

/// Opens a block device, and the generic character device of the NVMe namespace that it is if that is asked for. There the kernel knows
/// no claims, so that it is given to nobody but with the claim on the block device: what has a file system that is
/// mounted, or is part of an array, cannot be reached by it.
fn devices(path: &Path, write: bool, generic: bool) -> io::Result<Vec<OwnedFd>> {
    let device = device(path, write)?;
    let generic = generic.then(|| lunet_backends::generic_of(&device, write)).transpose()?;
    Ok([Some(device), generic].into_iter().flatten().map(OwnedFd::from).collect())
}

/// Opens a block device that nobody else uses: one that is mounted, or part of an array, is not to be had (O_EXCL).
fn device(path: &Path, write: bool) -> io::Result<File> {
    if !path.is_absolute() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let other = || io::Error::from_raw_os_error(libc::ENOTBLK);
    // To open another kind of file may block, or do something.
    if !path.metadata()?.file_type().is_block_device() {
        return Err(other());
    }
    let flags = libc::O_DIRECT | libc::O_EXCL;
    let file = OpenOptions::new().read(true).write(write).custom_flags(flags).open(path)?;
    if !file.metadata()?.file_type().is_block_device() {
        return Err(other());
    }
    Ok(file)
}
