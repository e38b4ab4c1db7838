//! System calls of a server, watched and made to fail: `strace`.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::process::{Running, leashed};

/// Until strace has attached or let go.
const LIMIT: Duration = Duration::from_secs(20);

/// Threads of a process that strace watches, until it is dropped.
pub struct Strace {
    process: Running,
}

/// The threads of a process whose names begin so.
pub fn threads(pid: u32, name: &str) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?;
        if fs::read_to_string(task.path().join("comm"))?.starts_with(name) {
            found.push(task.file_name().to_str().context("no number")?.parse()?);
        }
    }
    Ok(found)
}

/// Whether this process may trace others: a container may forbid it.
pub fn is_allowed() -> bool {
    let mut traced = leashed(None);
    traced.args(["strace", "-qq", "-o", "/dev/null", "true"]);
    crate::process::output(&mut traced, LIMIT).is_ok()
}

impl Strace {
    /// Attaches to threads; what they do is in the file `log`. `arguments` say which system calls and what happens to them.
    pub fn attach(threads: &[u32], log: &Path, arguments: &[&str]) -> Result<Strace> {
        let mut command = leashed(None);
        command.args(["strace", "-o"]).arg(log).args(arguments);
        for thread in threads {
            command.args(["-p", &thread.to_string()]);
        }
        let process = Running::spawn(&mut command)?;
        let attached = |text: &str| text.matches(" attached").count() >= threads.len();
        let stands = process
            .stderr
            .find(Instant::now() + LIMIT, |text| attached(text).then_some(()))
            .is_some();
        ensure!(stands, "strace does not attach: {}", process.stderr.text());
        Ok(Strace { process })
    }

    /// Lets go of the threads.
    pub fn detach(mut self) -> Result<()> {
        self.process.terminate(LIMIT).map(drop)
    }
}
