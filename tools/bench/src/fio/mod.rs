//! Runs fio on a file, a directory or a block device.

mod args;
mod child;
mod location;
mod logs;
mod made;
mod parse;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lunet_os::process::{self, Failed};

use crate::model::{self, Role, Run, Workload};
use crate::profiles::{Engine, Style};
use crate::system::{Root, Watch, has_children};

pub use args::{arguments, shell};
pub use location::Location;
pub use made::abandon;

/// Why fio brought no result.
#[derive(Debug, thiserror::Error)]
pub enum FioError {
    /// There is no fio.
    #[error("there is no fio here: install the package fio first")]
    Missing,
    /// Somebody stopped it.
    #[error("stopped")]
    Stopped,
    /// It did not end in time.
    #[error(
        "fio has not ended {0} s after its time: the storage does not answer, see the kernel's log"
    )]
    Late(u64),
    /// It failed.
    #[error("fio: {0}")]
    Failed(String),
    /// What it says cannot be read.
    #[error("fio's output is not understood ({0}): this lunet knows fio 3.1 to 3.40")]
    Output(String),
    /// The file, directory or device cannot be used.
    #[error("{0}")]
    Location(String),
}

/// fio on one location.
#[derive(Debug)]
pub struct Fio<'a> {
    location: &'a Location,
    style: Style,
    /// Servers that are watched besides, on this machine.
    servers: Vec<i32>,
    /// The processors that fio's jobs may use, as `0-3,8`; any, if there are none.
    cpus: Option<String>,
    stop: &'a AtomicBool,
}

/// How far a run is: seconds that have passed, and seconds in all.
pub type Progress<'a> = &'a mut dyn FnMut(f64, f64);

/// Where the kernel does not name children, fio is taken to run after this, in seconds.
const SLOW_START: f64 = 0.5;
/// fio may take so much longer than its run time, for the layout of files and outstanding I/O.
const GRACE: Duration = Duration::from_secs(60);
/// Saying its version may take so long.
const VERSION_TIME: Duration = Duration::from_secs(30);
/// No version is longer, in bytes.
const LONGEST_VERSION: u64 = 4096;
/// Laying out files may take so long.
const LAYOUT: Duration = Duration::from_secs(30 * 60);

/// fio's version, as it says it: `fio-3.33`.
///
/// # Errors
/// There is none.
pub fn version() -> Result<String, FioError> {
    let mut command = Command::new("fio");
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let told =
        process::run(&mut command, VERSION_TIME, LONGEST_VERSION).map_err(
            |failed| match failed {
                Failed::Start(_) => FioError::Missing,
                late => FioError::Failed(late.to_string()),
            },
        )?;
    Ok(String::from_utf8_lossy(&told.stdout).trim().to_owned())
}

/// Runs fio once with arguments of the caller's own, for `seconds`. Only what fio itself measures is told.
///
/// # Errors
/// See [`FioError`].
pub fn measure(args: &[String], seconds: f64, stop: &AtomicBool) -> Result<Run, FioError> {
    let limit = Duration::from_secs_f64(seconds) + GRACE;
    let args = [args, &["--output-format=json".to_owned()]].concat();
    parse::results(&child::run(&args, limit, stop, &mut |_| {})?)
}

/// Fills so many bytes of a file or device, so that no read finds a hole.
///
/// # Errors
/// See [`FioError`].
pub fn fill(location: &Location, bytes: u64, stop: &AtomicBool) -> Result<(), FioError> {
    let mut args = args::fill("--name=fill".to_owned(), location);
    args.extend([location.argument(), format!("--size={bytes}")]);
    child::run(&args, LAYOUT, stop, &mut |_| {}).map(drop)
}

impl<'a> Fio<'a> {
    /// Runs at this location. `servers` are processes on this machine that are watched with it; `stop` ends a run early.
    ///
    /// # Errors
    /// There is no fio.
    pub fn new(
        location: &'a Location,
        style: Style,
        servers: Vec<i32>,
        stop: &'a AtomicBool,
    ) -> Result<Self, FioError> {
        version()?;
        Ok(Self { location, style, servers, cpus: None, stop })
    }

    /// The same with its jobs on these processors alone, written as `0-3,8`.
    pub fn on_cpus(self, cpus: Option<String>) -> Self {
        Self { cpus, ..self }
    }

    fn arguments(&self, workload: &Workload, logs: Option<&Path>) -> Vec<String> {
        let mut all = arguments(workload, self.location, self.style, logs);
        all.extend(self.cpus.as_ref().map(|cpus| format!("--cpus_allowed={cpus}")));
        all
    }

    /// The command of a workload, as a line for a shell.
    pub fn command(&self, workload: &Workload) -> model::Command {
        let line = self.arguments(workload, None);
        let line = std::iter::once("fio".to_owned()).chain(line);
        let what = format!("{} on {}", workload.name, self.location.path().display());
        model::Command { what, line: shell(line) }
    }

    /// The command that makes and fills the files of a workload. Workloads with the same one have the same files.
    pub fn layout(&self, workload: &Workload) -> model::Command {
        let line = args::layout(workload, self.location);
        let line = shell(std::iter::once("fio".to_owned()).chain(line));
        model::Command { what: format!("the files in {}", self.location.path().display()), line }
    }

    /// Makes and fills the files that the workload reads, so that no read finds a hole. Does nothing where files are there
    /// already.
    ///
    /// # Errors
    /// See [`FioError`].
    pub fn prepare(&self, workload: &Workload, progress: Progress<'_>) -> Result<(), FioError> {
        if !self.location.made() {
            return Ok(());
        }
        let args = args::layout(workload, self.location);
        child::run(&args, LAYOUT, self.stop, &mut |passed| progress(passed, 0.0)).map(drop)
    }

    /// Runs a workload once. The caller numbers the round.
    ///
    /// # Errors
    /// See [`FioError`].
    pub fn run(&self, workload: &Workload, progress: Progress<'_>) -> Result<Run, FioError> {
        let logs = Logs::new()?;
        let mut args = self.arguments(workload, Some(logs.prefix()));
        args.push("--output-format=json+".to_owned());
        let all = workload.seconds + workload.ramp_seconds;
        let (mut begun, mut watch, mut usage) = (None, None, None);
        let limit = Duration::from_secs_f64(all) + GRACE;
        let root = Root::default();
        let told = child::watched(&args, limit, self.stop, &mut |moment| match moment {
            child::Moment::Runs { pid, passed } => {
                // fio starts for a while; when there are jobs, it begins.
                if begun.is_none() && (passed >= SLOW_START || has_children(&root, pid)) {
                    begun = Some(passed);
                }
                let ran = begun.map_or(0.0, |begun| passed - begun);
                if begun.is_some()
                    && usage.is_none()
                    && watch.is_none()
                    && ran >= workload.ramp_seconds
                {
                    watch = Some(Watch::start(&root, &self.concerned(pid)));
                }
                // And it ends for a while, in which nothing is moved.
                if ran >= all {
                    usage = usage.take().or_else(|| watch.take().map(Watch::finish));
                }
                progress(ran.min(all), all);
            }
            // fio is a zombie now: its own and its children's time can still be read.
            child::Moment::Ended => {
                usage = usage.take().or_else(|| watch.take().map(Watch::finish))
            }
        })?;
        let mut run = parse::results(&told)?;
        run.workload.clone_from(&workload.name);
        run.timeline = logs::timeline(logs.prefix(), args::log_ms(workload));
        if let Some(usage) = usage {
            run.processes = usage.processes;
            if self.style.engine == Engine::Libaio {
                own_time(&told, &mut run);
            }
            run.others = usage.others;
            run.system = Some(usage.system);
        }
        Ok(run)
    }

    fn concerned(&self, fio: i32) -> Vec<(i32, Role)> {
        let servers = self.servers.iter().map(|pid| (*pid, Role::Server));
        std::iter::once((fio, Role::Client)).chain(servers).collect()
    }
}

/// What fio's jobs say of their own processor time is exact for the time that they measured, as long as no other threads work for
/// them.
fn own_time(told: &str, run: &mut Run) {
    let Some(own) = parse::own_time(told) else { return };
    for client in run.processes.iter_mut().filter(|process| process.role == Role::Client) {
        (client.user_s, client.system_s) = (own.user_s, own.system_s);
        client.busiest_thread = own.job_share;
    }
}

/// A directory for the logs of one run.
#[derive(Debug)]
struct Logs(PathBuf);

impl Logs {
    fn new() -> Result<Self, FioError> {
        let path = location::fresh(&std::env::temp_dir(), "lunet-bench-logs")
            .map_err(|error| FioError::Location(error.to_string()))?;
        made::note(&path);
        Ok(Self(path.join("log")))
    }

    fn prefix(&self) -> &Path {
        &self.0
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        if let Some(folder) = self.0.parent() {
            made::remove(folder);
        }
    }
}

#[cfg(test)]
mod tests;
