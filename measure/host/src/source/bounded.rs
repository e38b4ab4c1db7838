//! A command with a limit of time and of output.

use std::io;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use crate::pipe::{self, Reading};

/// How a command ended.
#[derive(Debug)]
pub struct Done {
    /// Its exit code; `None`: a signal ended it.
    pub code: Option<i32>,
    /// Its standard output, up to the limit.
    pub stdout: Vec<u8>,
    /// Its standard error, up to the limit; empty if it is not a pipe.
    pub stderr: Vec<u8>,
    /// Whether there was more output than the limit.
    pub cut: bool,
}

/// Runs a command whose standard output is a pipe. After `patience` it is killed.
///
/// # Errors
/// It cannot be started, or takes too long ([`io::ErrorKind::TimedOut`]).
pub fn run(command: &mut Command, patience: Duration, longest: u64) -> io::Result<Done> {
    let start = Instant::now();
    let mut child = command.spawn()?;
    // One byte more than the limit tells that there was more.
    let stdout = child.stdout.take().map(|pipe| pipe::read(pipe, longest + 1));
    let stderr = child.stderr.take().map(|pipe| pipe::read(pipe, longest + 1));
    let status = wait(&mut child, start, patience)?;
    let rest =
        |said: Option<Reading>| said.map(|said| said.within(pipe::GRACE)).unwrap_or_default();
    let (stdout, stderr) = (rest(stdout), rest(stderr));
    let cut = stdout.len() as u64 > longest;
    Ok(Done { code: status.code(), stdout, stderr, cut })
}

fn wait(child: &mut Child, start: Instant, patience: Duration) -> io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if start.elapsed() >= patience {
            let _ = child.kill();
            let _ = child.wait();
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(Duration::from_millis(2));
    }
}
