//! The program fio.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lunet_os::process;
use lunet_os::process::pipe::{self, Reading};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::{FioError, made};

/// How often somebody looks whether it has ended.
const LOOK: Duration = Duration::from_millis(20);
/// After SIGTERM fio may take so long to end its I/O before it is killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is told while it runs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Moment {
    /// It runs.
    Runs {
        /// Process ID.
        pid: i32,
        /// For so many seconds.
        passed: f64,
    },
    /// It has ended and was not waited for yet.
    Ended,
}

/// Runs fio, and says what it printed.
pub(super) fn run(
    args: &[String],
    limit: Duration,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(f64),
) -> Result<String, FioError> {
    watched(args, limit, stop, &mut |moment| {
        if let Moment::Runs { passed, .. } = moment {
            progress(passed);
        }
    })
}

/// The same, with more to see.
pub(super) fn watched(
    args: &[String],
    limit: Duration,
    stop: &AtomicBool,
    see: &mut dyn FnMut(Moment),
) -> Result<String, FioError> {
    let mut child = Command::new("fio")
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|_| FioError::Missing)?;
    made::runs(child.id());
    let out = child.stdout.take().map(|pipe| pipe::read(pipe, u64::MAX));
    let err = child.stderr.take().map(|pipe| pipe::read(pipe, u64::MAX));
    let waited = wait(&child, limit, stop, see);
    match waited {
        // Nobody has waited for it yet: the number is still its own.
        Ok(()) => made::ended(child.id()),
        Err(_) => ask_to_end(&mut child),
    }
    let ended = process::end(child).map_err(|error| FioError::Failed(error.to_string()))?;
    // Ctrl-C reaches fio as well, which then ends early and says nothing of it.
    if stop.load(Ordering::Relaxed) {
        return Err(FioError::Stopped);
    }
    waited?;
    let status = ended.ok_or(FioError::Late(limit.as_secs()))?;
    let text = |said: Option<Reading>| {
        let bytes = said.map(|said| said.within(pipe::GRACE)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (out, err) = (text(out), text(err));
    if status.success() {
        return Ok(out);
    }
    let mut said = err.lines().chain(out.lines()).map(str::trim);
    let line = said.find(|line| !line.is_empty() && !line.starts_with(['{', '"']));
    Err(FioError::Failed(line.map_or_else(|| status.to_string(), str::to_owned)))
}

fn wait(
    child: &Child,
    limit: Duration,
    stop: &AtomicBool,
    see: &mut dyn FnMut(Moment),
) -> Result<(), FioError> {
    let began = Instant::now();
    let number = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(FioError::Missing)?;
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    loop {
        match waitid(WaitId::Pid(number), look) {
            Ok(None) => {}
            // An error says that there is nothing to wait for.
            Ok(Some(_)) | Err(_) => {
                see(Moment::Ended);
                return Ok(());
            }
        }
        if stop.load(Ordering::Relaxed) {
            return Err(FioError::Stopped);
        }
        let passed = began.elapsed();
        if passed > limit {
            return Err(FioError::Late(limit.as_secs()));
        }
        see(Moment::Runs { pid: number.as_raw_nonzero().get(), passed: passed.as_secs_f64() });
        thread::sleep(LOOK);
    }
}

/// fio ends its jobs at SIGTERM; killed, it would leave them.
fn ask_to_end(child: &mut Child) {
    let number = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(number) = number {
        let _ = rustix::process::kill_process(number, rustix::process::Signal::TERM);
    }
    made::ended(child.id());
    let began = Instant::now();
    while began.elapsed() < PATIENCE && matches!(child.try_wait(), Ok(None)) {
        thread::sleep(LOOK);
    }
}
