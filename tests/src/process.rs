//! Child processes with a time limit and captured output.
//!
//! No test may hang, and no test may leave a process behind. So every child is either run to its end under a limit
//! ([`run`]), or held by a [`Running`] that kills it when dropped.

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// How long an ended child's output is still read.
const DRAIN: Duration = Duration::from_secs(5);

/// What a child left behind.
#[derive(Debug)]
pub struct Finished {
    /// `None`: it was killed at its time limit.
    pub status: Option<ExitStatus>,
    /// Everything it wrote to its standard output.
    pub stdout: String,
    /// Everything it wrote to its standard error.
    pub stderr: String,
    /// From start to end.
    pub elapsed: Duration,
    command: String,
}

impl Finished {
    /// True if the child has ended by itself, without an error.
    pub fn is_success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// The standard output, or an error that shows all output when the child failed or ran into its limit.
    pub fn success(self) -> Result<String> {
        match self.status {
            Some(status) if status.success() => Ok(self.stdout),
            _ => Err(anyhow!(self.describe())),
        }
    }

    /// One text with the command, how it ended, and its output.
    pub fn describe(&self) -> String {
        let end = match self.status {
            Some(status) => status.to_string(),
            None => format!("killed at its time limit after {:?}", self.elapsed),
        };
        format!("{}: {end}\n--- stdout\n{}--- stderr\n{}", self.command, self.stdout, self.stderr)
    }
}

/// Runs `command` to its end, at most for `limit`; then it is killed.
pub fn run(command: &mut Command, limit: Duration) -> Result<Finished> {
    let mut running = Running::spawn(command)?;
    let start = Instant::now();
    let status = running.wait(limit)?;
    if status.is_none() {
        running.kill()?;
    }
    Ok(Finished {
        status,
        elapsed: start.elapsed(),
        stdout: running.stdout.whole_text(),
        stderr: running.stderr.whole_text(),
        command: running.command.clone(),
    })
}

/// Runs `command` to its end and demands success; gives its standard output.
pub fn output(command: &mut Command, limit: Duration) -> Result<String> {
    run(command, limit)?.success()
}

/// The bytes that a child has written to one of its pipes so far.
#[derive(Clone)]
pub struct Capture(Arc<(Mutex<Captured>, Condvar)>);

#[derive(Default)]
struct Captured {
    bytes: Vec<u8>,
    closed: bool,
    /// Nothing is read for now.
    held: bool,
}

impl Capture {
    fn start(mut pipe: impl Read + Send + 'static, held: bool) -> Capture {
        let capture = Capture(Arc::default());
        capture.lock().held = held;
        let writer = capture.clone();
        thread::spawn(move || {
            let mut piece = [0; 4096];
            // An error ends the capture as the end of the file does: the child's status tells the rest.
            while let Ok(n @ 1..) = {
                writer.wait_while_held();
                pipe.read(&mut piece)
            } {
                writer.lock().bytes.extend_from_slice(&piece[..n]);
                writer.0.1.notify_all();
            }
            writer.lock().closed = true;
            writer.0.1.notify_all();
        });
        capture
    }

    fn wait_while_held(&self) {
        let held = self.0.1.wait_while(self.lock(), |captured| captured.held);
        drop(held.unwrap_or_else(PoisonError::into_inner));
    }

    /// Reads on, if the child was [spawned](Running::spawn_unread) without a reader.
    pub fn read_on(&self) {
        self.lock().held = false;
        self.0.1.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Captured> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has been written so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.lock().bytes).into_owned()
    }

    /// Everything that an ended child has written.
    ///
    /// Only a grandchild that holds the pipe open can make this wait, and not for long.
    pub fn whole_text(&self) -> String {
        let _ = self.find(Instant::now() + DRAIN, |_| None::<()>);
        self.text()
    }

    /// Waits until `look` finds what it wants in the output. `None`: the pipe closed or the deadline passed first.
    pub fn find<T>(&self, deadline: Instant, mut look: impl FnMut(&str) -> Option<T>) -> Option<T> {
        let mut captured = self.lock();
        loop {
            if let Some(found) = look(&String::from_utf8_lossy(&captured.bytes)) {
                return Some(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if captured.closed || left.is_zero() {
                return None;
            }
            let waited = self.0.1.wait_timeout(captured, left);
            captured = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A child that runs until it is stopped. Killed and reaped when dropped.
pub struct Running {
    child: Child,
    ended: Option<ExitStatus>,
    command: String,
    /// Its standard output.
    pub stdout: Capture,
    /// Its standard error.
    pub stderr: Capture,
}

impl Running {
    /// Starts `command` with both outputs captured. Its standard input is empty unless the command set one.
    pub fn spawn(command: &mut Command) -> Result<Running> {
        Running::spawn_with(command, false)
    }

    /// The same, but nobody reads its standard error until [`Capture::read_on`].
    pub fn spawn_unread(command: &mut Command) -> Result<Running> {
        Running::spawn_with(command, true)
    }

    fn spawn_with(command: &mut Command, held: bool) -> Result<Running> {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let text = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start `{text}`"))?;
        let stdout = child.stdout.take().context("no standard output")?;
        let stderr = child.stderr.take().context("no standard error")?;
        Ok(Running {
            child,
            ended: None,
            command: text,
            stdout: Capture::start(stdout, false),
            stderr: Capture::start(stderr, held),
        })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The command line, for messages.
    pub fn command(&self) -> &str {
        &self.command
    }

    /// Waits for the end, at most for `limit`. `None`: still running.
    pub fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            let pidfd = pidfd_open(self.rustix_pid()?, PidfdFlags::empty())?;
            let deadline = Instant::now() + limit;
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                let timeout = Timespec::try_from(left)?;
                let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
                match poll(&mut fds, Some(&timeout)) {
                    Ok(0) => return Ok(None),
                    Ok(_) => break,
                    Err(rustix::io::Errno::INTR) => {}
                    Err(e) => return Err(e.into()),
                }
            }
            self.ended = Some(self.child.wait()?);
        }
        Ok(self.ended)
    }

    /// Sends SIGTERM and demands the end within `limit`.
    pub fn terminate(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        match self.wait(limit)? {
            Some(status) => Ok(status),
            None => bail!("`{}` still runs {limit:?} after SIGTERM", self.command),
        }
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        ensure!(self.ended.is_none(), "`{}` has already ended", self.command);
        Ok(kill_process(self.rustix_pid()?, signal)?)
    }

    /// Sends SIGKILL and waits for the end.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        if let Some(status) = self.ended {
            return Ok(status);
        }
        self.child.kill()?;
        let status = self.child.wait()?;
        self.ended = Some(status);
        Ok(status)
    }

    fn rustix_pid(&self) -> Result<Pid> {
        let raw = i32::try_from(self.child.id())?;
        Pid::from_raw(raw).context("a process id of 0")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Nothing can be done about an error here, and the child is most likely gone then.
        let _ = self.kill();
    }
}

/// The words before a server's command: it dies with the thread that starts it, and runs on one core when asked.
///
/// `setpriv --pdeathsig` is what keeps a killed test run from leaving servers behind.
pub fn leashed(core: Option<usize>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]);
    if let Some(core) = core {
        command.args(["taskset", "-c", &core.to_string()]);
    }
    command
}

/// A client command, on one core when asked.
pub fn pinned(program: &str, core: Option<usize>) -> Command {
    match core {
        None => Command::new(program),
        Some(core) => {
            let mut command = Command::new("taskset");
            command.args(["-c", &core.to_string(), program]);
            command
        }
    }
}

/// The processes that a process has started, and that still run.
///
/// # Errors
/// There is no such process.
pub fn children(pid: u32) -> Result<Vec<u32>> {
    let mut out = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end meanwhile.
        let children = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace() {
            out.push(child.parse()?);
        }
    }
    Ok(out)
}

/// `true` when `status` says that the process was ended by SIGKILL.
pub fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::KILL.as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_hangs_is_killed_at_its_limit() -> Result<()> {
        let finished = run(Command::new("sleep").arg("60"), Duration::from_millis(50))?;
        assert!(finished.status.is_none());
        assert!(finished.elapsed < Duration::from_secs(10));
        Ok(())
    }

    #[test]
    fn output_and_status_are_kept() -> Result<()> {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo out; echo err >&2; exit 3"]);
        let finished = run(&mut shell, Duration::from_secs(10))?;
        assert_eq!(finished.status.and_then(|s| s.code()), Some(3));
        assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("out\n", "err\n"));
        assert!(finished.success().is_err());
        Ok(())
    }

    #[test]
    fn a_dropped_child_is_gone() -> Result<()> {
        let running = Running::spawn(Command::new("sleep").arg("60"))?;
        let proc = format!("/proc/{}", running.pid());
        assert!(std::path::Path::new(&proc).exists());
        drop(running);
        assert!(!std::path::Path::new(&proc).exists());
        Ok(())
    }
}
