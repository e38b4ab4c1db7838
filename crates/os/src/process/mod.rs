//! Programs that are run. None is waited for without a limit.
//!
//! A program that waits inside the kernel for storage or a server that does not answer (state D) does not even end when
//! it is killed. It is given up then, and whoever has run it goes on.

pub mod pipe;

use std::fmt;
use std::io;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pipe::Reading;

/// So long the end of a program that was killed is waited for.
const KILLED: Duration = Duration::from_secs(1);

/// The longest pause between two looks at whether a program has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Programs that were given up. Each is looked at again when another one is waited for, so that it is no zombie for good.
static LEFT: Mutex<Vec<Child>> = Mutex::new(Vec::new());

/// How a program ended, and what it has said.
#[derive(Debug)]
pub struct Done {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output, up to the limit; empty if it is not a pipe.
    pub stdout: Vec<u8>,
    /// Its standard error, up to the limit; empty if it is not a pipe.
    pub stderr: Vec<u8>,
    /// There was more on standard output than the limit.
    pub cut: bool,
}

/// Why a program has not done what it was run for.
#[derive(Debug)]
pub enum Failed {
    /// It cannot be started.
    Start(io::Error),
    /// It did not end within this time, and was killed.
    Late(Duration),
    /// It did not end within this time, nor when it was killed: the kernel holds it. It is not waited for any more.
    Held(Duration),
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(error) => write!(f, "cannot be run: {error}"),
            Self::Late(limit) => {
                write!(f, "did not end within {} s, and was killed", limit.as_secs())
            }
            Self::Held(limit) => write!(
                f,
                "did not end within {} s, and waits in the kernel for storage or a server that does not answer",
                limit.as_secs()
            ),
        }
    }
}

impl std::error::Error for Failed {}

/// Runs a program. What it writes to pipes is kept, up to `longest` bytes of each. After `limit` it is killed.
///
/// # Errors
/// It cannot be started, or takes longer than it may.
pub fn run(command: &mut Command, limit: Duration, longest: u64) -> Result<Done, Failed> {
    let mut child = command.spawn().map_err(Failed::Start)?;
    // One byte more than the limit tells that there was more.
    let stdout = child.stdout.take().map(|pipe| pipe::read(pipe, longest.saturating_add(1)));
    let stderr = child.stderr.take().map(|pipe| pipe::read(pipe, longest));
    let status = wait(child, limit)?;
    let rest =
        |said: Option<Reading>| said.map(|said| said.within(pipe::GRACE)).unwrap_or_default();
    let (mut stdout, stderr) = (rest(stdout), rest(stderr));
    let cut = stdout.len() as u64 > longest;
    stdout.truncate(usize::try_from(longest).unwrap_or(usize::MAX));
    Ok(Done { status, stdout, stderr, cut })
}

/// Waits for the end of a program. After `limit` it is killed.
///
/// # Errors
/// It takes longer than it may.
pub fn wait(mut child: Child, limit: Duration) -> Result<ExitStatus, Failed> {
    reap();
    // As the standard library does: it may wait for the end of what it reads.
    drop(child.stdin.take());
    if let Some(status) = within(&mut child, limit).map_err(Failed::Start)? {
        return Ok(status);
    }
    match end(child).map_err(Failed::Start)? {
        Some(_) => Err(Failed::Late(limit)),
        None => Err(Failed::Held(limit)),
    }
}

/// Kills a program and waits for its end; `None` if the kernel holds it, which is not waited for.
///
/// # Errors
/// The system's: it is no child of this process any more.
pub fn end(mut child: Child) -> io::Result<Option<ExitStatus>> {
    // It has ended already if this fails.
    let _ = child.kill();
    let ended = within(&mut child, KILLED)?;
    if ended.is_none() {
        LEFT.lock().unwrap_or_else(PoisonError::into_inner).push(child);
    }
    Ok(ended)
}

/// How a program has ended, if it does so within this time.
fn within(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let since = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let left = limit.saturating_sub(since.elapsed());
        if left.is_zero() {
            return Ok(None);
        }
        thread::sleep(pause.min(left));
        pause = (pause * 2).min(LOOK);
    }
}

/// Lets go of programs that were given up and have ended since.
fn reap() {
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::process::Stdio;

    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    use tempfile::TempDir;

    use super::*;

    /// A file system of FUSE that answers nothing but the greeting. A program with a request that was read waits for its
    /// answer, even when it is killed.
    struct Silent {
        device: File,
        place: TempDir,
    }

    impl Silent {
        /// `None` where this user may not mount.
        fn mounted() -> Option<Self> {
            let device = File::options().read(true).write(true).open("/dev/fuse").ok()?;
            let place = TempDir::new().expect("a directory");
            let fd = device.as_raw_fd();
            let options =
                std::ffi::CString::new(format!("fd={fd},rootmode=40000,user_id=0,group_id=0"));
            let (options, flags) = (options.expect("no zero"), MountFlags::NOSUID);
            mount(c"silent", place.path(), c"fuse", flags, options.as_c_str()).ok()?;
            let mut silent = Self { device, place };
            let unique = silent.read();
            // linux/fuse.h: struct fuse_out_header, and struct fuse_init_out of version 7.31.
            let mut answer = [0; 80];
            answer[..4].copy_from_slice(&80u32.to_ne_bytes());
            answer[8..16].copy_from_slice(&unique);
            answer[16..20].copy_from_slice(&7u32.to_ne_bytes());
            answer[20..24].copy_from_slice(&31u32.to_ne_bytes());
            answer[36..40].copy_from_slice(&4096u32.to_ne_bytes());
            silent.device.write_all(&answer).expect("the kernel takes the greeting");
            Some(silent)
        }

        /// Takes a request; its number.
        fn read(&mut self) -> [u8; 8] {
            let mut request = vec![0; 64 << 10];
            let len = self.device.read(&mut request).expect("a request");
            assert!(len >= 16, "{len}");
            request[8..16].try_into().expect("eight bytes")
        }
    }

    impl Drop for Silent {
        fn drop(&mut self) {
            // What waits for it goes on when the device is closed.
            let _ = unmount(self.place.path(), UnmountFlags::DETACH);
        }
    }

    /// A shell that waits for a word and says it.
    fn listener() -> Child {
        let mut shell = Command::new("sh");
        shell.args(["-c", "read word; echo $word"]).stdin(Stdio::piped());
        shell.stdout(Stdio::null()).spawn().expect("a shell")
    }

    #[test]
    fn a_program_that_the_kernel_holds_is_given_up_and_reaped_when_it_ends() {
        // Only root may mount.
        let Some(mut silent) = Silent::mounted() else { return };
        let mut command = Command::new("cat");
        command.arg(silent.place.path().join("x")).stderr(Stdio::null());
        let child = command.spawn().expect("cat");
        let id = child.id();
        let ours = || {
            let left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
            left.iter().any(|child| child.id() == id)
        };
        silent.read();
        let limit = Duration::from_millis(1);
        let held = wait(child, limit).expect_err("it waits for an answer");
        assert!(matches!(held, Failed::Held(one) if one == limit), "{held}");
        assert!(ours());
        drop(silent);
        let since = Instant::now();
        while ours() && since.elapsed() < Duration::from_secs(30) {
            assert!(wait(listener(), Duration::from_secs(60)).expect("ends").code().is_some());
        }
        assert!(!ours(), "it is a zombie");
    }

    #[test]
    fn a_program_that_takes_too_long_is_killed() {
        let mut child = listener();
        let input = child.stdin.take();
        let late = wait(child, Duration::from_millis(1)).expect_err("nobody says a word");
        assert!(matches!(late, Failed::Late(_)), "{late}");
        drop(input);
    }

    #[test]
    fn output_is_kept_up_to_the_limit() {
        let said = |longest| {
            let mut command = Command::new("sh");
            command.args(["-c", "printf 12345; printf ab >&2; exit 3"]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            run(&mut command, Duration::from_secs(60), longest).expect("it ends")
        };
        let all = said(5);
        assert_eq!((all.status.code(), all.cut), (Some(3), false));
        assert_eq!((&*all.stdout, &*all.stderr), (&b"12345"[..], &b"ab"[..]));
        let cut = said(4);
        assert_eq!((&*cut.stdout, cut.cut), (&b"1234"[..], true));
        let none = run(&mut Command::new("/no/such/program"), Duration::ZERO, 1);
        assert!(matches!(none, Err(Failed::Start(_))));
    }
}
