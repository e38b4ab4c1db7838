//! Work that takes its time: the commands of the program, each run as a child process of its own.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lunet_api::{Code, Error};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::sync::Notify;

use crate::access::clock;
use crate::app::App;
use crate::problem::Problem;
use crate::service::{Identity, Principal, Role};

/// Jobs that run at one time.
const AT_ONCE: usize = 2;

/// Of these, those that were begun by others than administrators.
const OF_OTHERS: usize = 1;

/// Jobs that are remembered.
const KEPT: usize = 20;

/// The largest result, in bytes.
const RESULT: usize = 1 << 20;

/// Lines of progress, and their length in bytes.
const LINES: usize = 200;
const LINE: usize = 512;

/// How long a job has to end when it is cancelled.
const GRACE: Duration = Duration::from_secs(5);

/// How bad what the doctor finds can be.
const SEVERITIES: [&str; 3] = ["risk", "slow", "note"];

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum JobKind {
    /// `lunet doctor`
    Doctor,
    /// `lunet tune plan`
    TunePlan,
    /// `lunet tune apply`
    TuneApply,
    /// `lunet tune rollback`
    TuneRollback,
    /// `lunet tune verify`
    TuneVerify,
    /// `lunet tune prove`
    TuneProve,
    /// `lunet bench`
    Bench,
}

/// How a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub(crate) enum JobState {
    /// It runs.
    Running,
    /// It has ended, and there is a result.
    Done,
    /// It has ended without one.
    Failed,
    /// It was cancelled.
    Cancelled,
}

/// What is asked of a job. Each kind has its own options; others are refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct JobOptions {
    /// Of `doctor`, `tune-plan` and `bench`: the result is a text for people instead of JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<bool>,
    /// Of `doctor`: show what each layer can carry instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    ceilings: Option<bool>,
    /// Of `doctor`: also show what is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    verbose: Option<bool>,
    /// Of `tune-plan`: also show what is right already, and what does not apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    all: Option<bool>,
    /// Of `tune-plan`, `tune-apply` and `tune-prove`: `throughput`, `latency` or `mixed`; of `bench`: `quick`, `recipe` or
    /// `sweep`.
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<String>,
    /// Of `tune-plan`, `tune-apply` and `tune-prove`: these rules or layers; of `bench`: workloads with these words in their
    /// names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    only: Vec<String>,
    /// Of `tune-plan`, `tune-apply` and `tune-prove`: not these rules or layers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    except: Vec<String>,
    /// Of `tune-apply` and `tune-prove`: the changes persist across reboots.
    #[serde(skip_serializing_if = "Option::is_none")]
    persist: Option<bool>,
    /// Of `bench`: files, devices and URLs, at least one; of `tune-prove`: one directory, file or device.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    targets: Vec<String>,
    /// Of `bench`: rounds, 1 to 100; of `tune-prove`: 6 to 200.
    #[serde(skip_serializing_if = "Option::is_none")]
    rounds: Option<u32>,
    /// Of `bench`: milliseconds of each run, 100 to 3600000; of `tune-prove` as well, in whole seconds, rounded up.
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime_ms: Option<u32>,
    /// Of `bench`: bytes that each job works on: a multiple of 4096, 1 MiB at least; of `tune-prove`: of the temporary file.
    #[serde(skip_serializing_if = "Option::is_none")]
    size_bytes: Option<u64>,
    /// Of `bench`: write nothing. True if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    read_only: Option<bool>,
    /// Of `bench`: overwrite these of the targets although they hold data.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    destroy: Vec<String>,
}

/// A job to begin.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct NewJob {
    /// What it does.
    pub(crate) kind: JobKind,
    /// How.
    #[serde(default)]
    pub(crate) options: JobOptions,
}

/// A job.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct Job {
    /// Its number.
    pub(crate) id: String,
    /// What it does.
    pub(crate) kind: JobKind,
    /// How it stands.
    pub(crate) state: JobState,
    /// Who has begun it.
    pub(crate) by: String,
    /// When it began, in seconds since 1970, UTC.
    pub(crate) started: u64,
    /// When it ended.
    pub(crate) ended: Option<u64>,
    /// What it has said, the last 200 lines.
    pub(crate) progress: Vec<String>,
    /// How many lines it has said.
    #[serde(default)]
    pub(crate) lines: u64,
    /// What the command has printed: its JSON, or its text. Also of one that has failed, if it has printed anything.
    #[cfg_attr(test, schema(value_type = Option<Value>))]
    pub(crate) result: Option<Value>,
    /// Why there is no result.
    pub(crate) error: Option<String>,
    /// The command's exit code.
    pub(crate) exit: Option<i32>,
}

struct Entry {
    job: Job,
    /// Who has begun it.
    owner: Identity,
    /// An administrator has.
    by_administrator: bool,
    cancel: Arc<Notify>,
    /// Somebody wants it to end.
    cancelled: bool,
    /// Its result is a text for people.
    as_text: bool,
}

/// The jobs, the latest last.
pub(crate) struct Jobs {
    program: Option<PathBuf>,
    environment: Vec<(OsString, OsString)>,
    all: Mutex<(u64, VecDeque<Entry>)>,
}

impl JobKind {
    /// What one has to be to begin it.
    pub(crate) const fn role(self) -> Role {
        match self {
            Self::Doctor | Self::TunePlan | Self::TuneVerify => Role::Viewer,
            Self::TuneApply | Self::TuneRollback | Self::TuneProve | Self::Bench => {
                Role::Administrator
            }
        }
    }

    /// The word in JSON.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Doctor => "doctor",
            Self::TunePlan => "tune-plan",
            Self::TuneApply => "tune-apply",
            Self::TuneRollback => "tune-rollback",
            Self::TuneVerify => "tune-verify",
            Self::TuneProve => "tune-prove",
            Self::Bench => "bench",
        }
    }

    /// What a command has printed, if it has succeeded: findings and changes to make are exit codes, too. What is refused
    /// on its command line has the same codes, but prints no JSON.
    fn result(self, exit: i32, bytes: &[u8], as_text: bool) -> Option<Value> {
        let may = match self {
            Self::Doctor | Self::Bench => matches!(exit, 0 | 1),
            Self::TunePlan | Self::TuneVerify => matches!(exit, 0 | 2),
            Self::TuneApply | Self::TuneRollback | Self::TuneProve => exit == 0,
        };
        match self {
            _ if !may => None,
            Self::TuneApply | Self::TuneRollback => Some(text(bytes)),
            _ if as_text => printed(bytes),
            Self::Doctor | Self::Bench | Self::TunePlan | Self::TuneVerify | Self::TuneProve => {
                serde_json::from_slice(bytes).ok()
            }
        }
    }
}

fn text(bytes: &[u8]) -> Value {
    Value::String(String::from_utf8_lossy(bytes).into_owned())
}

/// What a command has printed, if it is anything: JSON, or text.
fn printed(bytes: &[u8]) -> Option<Value> {
    (!bytes.is_empty()).then(|| serde_json::from_slice(bytes).unwrap_or_else(|_| text(bytes)))
}

/// Refuses what could be taken for an option, or for several values.
fn word(text: &str) -> Result<&str, Problem> {
    let strange = text.is_empty() || text.len() > 1024 || text.starts_with('-');
    match strange || text.contains(|c: char| c.is_control()) {
        true => Err(Problem::invalid(format!("{text:?} cannot be a value of an option"))),
        false => Ok(text),
    }
}

/// The words of a command.
struct Words(Vec<String>);

impl Words {
    fn of(text: &str) -> Self {
        Self(text.split(' ').map(str::to_owned).collect())
    }

    fn flag(&mut self, name: &str, is: bool) {
        if is {
            self.0.push(name.to_owned());
        }
    }

    fn all(&mut self, name: &str, values: Vec<String>) -> Result<(), Problem> {
        for value in values {
            self.0.push(format!("{name}={}", word(&value)?));
        }
        Ok(())
    }

    /// One of some words.
    fn one(&mut self, name: &str, value: Option<String>, of: &[&str]) -> Result<(), Problem> {
        let Some(value) = value else { return Ok(()) };
        if !of.contains(&value.as_str()) {
            let text = format!("{value:?} is none of {}", of.join(", "));
            return Err(Problem::invalid(text));
        }
        self.0.push(format!("{name}={value}"));
        Ok(())
    }

    /// Which rules of the tuner are meant, and for what.
    fn rules(&mut self, profile: &str, options: &mut JobOptions) -> Result<(), Problem> {
        self.one(profile, options.profile.take(), &["throughput", "latency", "mixed"])?;
        self.all("--only", std::mem::take(&mut options.only))?;
        self.all("--except", std::mem::take(&mut options.except))
    }

    /// A number within its bounds.
    fn number(
        &mut self,
        (name, value): (&str, Option<u64>),
        of: RangeInclusive<u64>,
        unit: &str,
    ) -> Result<(), Problem> {
        let Some(value) = value else { return Ok(()) };
        if !of.contains(&value) {
            let text = format!("{value} is not from {} to {}", of.start(), of.end());
            return Err(Problem::invalid(text));
        }
        self.0.push(format!("{name}={value}{unit}"));
        Ok(())
    }
}

impl NewJob {
    /// The words of the command. What a command would refuse is refused here, as far as that can be told.
    fn arguments(&self) -> Result<Vec<String>, Problem> {
        // What is not taken below, this kind of job does not have.
        let mut options = self.options.clone();
        let mut words = Words::of(match self.kind {
            JobKind::Doctor => "doctor",
            JobKind::TunePlan => "tune plan",
            JobKind::TuneApply => "tune apply",
            JobKind::TuneRollback => "tune rollback",
            JobKind::TuneVerify => "tune verify --json",
            JobKind::TuneProve => "tune prove --json",
            JobKind::Bench => "bench",
        });
        if matches!(self.kind, JobKind::Doctor | JobKind::TunePlan | JobKind::Bench) {
            words.flag("--json", options.text.take() != Some(true));
        }
        match self.kind {
            JobKind::Doctor => {
                words.flag("--ceilings", options.ceilings.take().unwrap_or_default());
                words.flag("--verbose", options.verbose.take().unwrap_or_default());
            }
            JobKind::TuneRollback | JobKind::TuneVerify => {}
            JobKind::TunePlan => {
                words.rules("--profile", &mut options)?;
                words.flag("--all", options.all.take().unwrap_or_default());
            }
            JobKind::TuneApply => {
                words.rules("--profile", &mut options)?;
                words.flag("--persist", options.persist.take().unwrap_or_default());
            }
            JobKind::TuneProve => prove(&mut options, &mut words)?,
            JobKind::Bench => bench(&mut options, &mut words)?,
        }
        if options != JobOptions::default() {
            let text = format!("{} has no such option", self.kind.as_str());
            return Err(Problem::invalid(text));
        }
        Ok(words.0)
    }
}

/// The words for the options of a proof.
fn prove(options: &mut JobOptions, words: &mut Words) -> Result<(), Problem> {
    words.rules("--for", options)?;
    words.flag("--persist", options.persist.take().unwrap_or_default());
    words.number(("--rounds", options.rounds.take().map(u64::from)), 6..=200, "")?;
    let seconds = options.runtime_ms.take().map(|ms| u64::from(ms.div_ceil(1000)));
    words.number(("--seconds", seconds), 1..=3600, "")?;
    words.number(("--size", options.size_bytes.take()), 4096..=1 << 62, "")?;
    let [path] = options.targets.as_slice() else {
        let text = "say in `targets` which one directory, file or device is measured on";
        return Err(Problem::invalid(text));
    };
    words.0.push(word(path)?.to_owned());
    options.targets.clear();
    Ok(())
}

/// The words for the options of a benchmark.
fn bench(options: &mut JobOptions, words: &mut Words) -> Result<(), Problem> {
    words.one("--profile", options.profile.take(), &["quick", "recipe", "sweep"])?;
    words.all("--only", std::mem::take(&mut options.only))?;
    words.number(("--rounds", options.rounds.take().map(u64::from)), 1..=100, "")?;
    let runtime = options.runtime_ms.take().map(u64::from);
    words.number(("--runtime", runtime), 100..=3_600_000, "ms")?;
    let size = options.size_bytes.take();
    if size.is_some_and(|size| size % 4096 != 0) {
        return Err(Problem::invalid("size_bytes is a multiple of 4096"));
    }
    words.number(("--size", size), 1 << 20..=1 << 62, "")?;
    words.flag("--read-only", options.read_only.take().unwrap_or(true));
    words.all("--destroy", std::mem::take(&mut options.destroy))?;
    if options.targets.is_empty() {
        return Err(Problem::invalid("say in `targets` what is to be measured"));
    }
    for target in std::mem::take(&mut options.targets) {
        words.0.push(word(&target)?.to_owned());
    }
    Ok(())
}

impl Jobs {
    pub(crate) fn new(program: Option<PathBuf>, environment: Vec<(OsString, OsString)>) -> Self {
        Self { program, environment, all: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, (u64, VecDeque<Entry>)> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn list(&self) -> Vec<Job> {
        self.lock().1.iter().rev().map(|entry| entry.job.clone()).collect()
    }

    pub(crate) fn find(&self, id: &str) -> Result<Job, Problem> {
        let all = self.lock();
        let found = all.1.iter().find(|entry| entry.job.id == id);
        found.map(|entry| entry.job.clone()).ok_or_else(|| no_job(id))
    }

    /// How many findings of each severity the last run of the doctor had; `None` if none has ended.
    pub(crate) fn findings(&self) -> Option<BTreeMap<String, u64>> {
        let all = self.lock();
        let mut runs = all.1.iter().rev().filter(|entry| entry.job.kind == JobKind::Doctor);
        let findings = runs.find_map(|entry| entry.job.result.as_ref()?["findings"].as_array())?;
        let mut count: BTreeMap<String, u64> =
            SEVERITIES.map(|severity| (severity.to_owned(), 0)).into();
        let severities = findings.iter().filter_map(|finding| finding["severity"].as_str());
        for severity in severities {
            count.entry(severity.to_owned()).and_modify(|known| *known += 1);
        }
        Some(count)
    }

    /// The number of a job that is to begin.
    pub(crate) fn reserve(&self) -> String {
        let mut all = self.lock();
        all.0 += 1;
        all.0.to_string()
    }

    /// Begins a job with a number that was reserved.
    ///
    /// # Errors
    /// Its options are wrong, too many run, or the program cannot be started.
    pub(crate) fn begin(
        app: &Arc<App>,
        who: &Principal,
        (id, new): (String, &NewJob),
    ) -> Result<Job, Problem> {
        let arguments = new.arguments()?;
        let cancel = Arc::new(Notify::new());
        let job = {
            let mut all = app.jobs.lock();
            let entries = &mut all.1;
            room(entries, who)?;
            let child = app.jobs.spawn(&arguments)?;
            while entries.len() >= KEPT {
                let Some(at) = oldest(entries) else { break };
                entries.remove(at);
            }
            let job = Job {
                id,
                kind: new.kind,
                state: JobState::Running,
                by: who.name.clone(),
                started: clock(),
                ended: None,
                progress: Vec::new(),
                lines: 0,
                result: None,
                error: None,
                exit: None,
            };
            let entry = Entry {
                job: job.clone(),
                owner: who.identity(),
                by_administrator: who.role == Role::Administrator,
                cancel: cancel.clone(),
                cancelled: false,
                as_text: new.options.text == Some(true),
            };
            entries.push_back(entry);
            tokio::spawn(run(Arc::clone(app), job.id.clone(), child, cancel));
            job
        };
        app.events.send("job", &job);
        Ok(job)
    }

    /// Ends a job. One that has ended stays as it is.
    ///
    /// # Errors
    /// There is none, or it is not for this one to end it.
    pub(crate) fn cancel(&self, who: &Principal, id: &str) -> Result<Job, Problem> {
        let mut all = self.lock();
        let found = all.1.iter_mut().find(|entry| entry.job.id == id);
        let entry = found.ok_or_else(|| no_job(id))?;
        if entry.owner != who.identity() && who.role != Role::Administrator {
            return Err(Problem::forbidden(
                "only who has begun a job and administrators cancel it",
            ));
        }
        if entry.job.state == JobState::Running {
            entry.cancelled = true;
            entry.cancel.notify_one();
        }
        Ok(entry.job.clone())
    }

    /// Starts the program, in a process group of its own.
    fn spawn(&self, arguments: &[String]) -> Result<Child, Problem> {
        let Some(program) = &self.program else {
            return Err(Error::new(Code::Unsupported, "this server runs no jobs").into());
        };
        let mut command = Command::new(program);
        command.args(arguments).envs(self.environment.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0);
        command.spawn().map_err(|error| {
            let text = format!("cannot start {}: {error}", program.display());
            Error::new(Code::Failed, text).into()
        })
    }

    /// Runs a command that ends soon, and takes what it prints.
    ///
    /// # Errors
    /// It cannot be started, does not end in time, or prints no JSON.
    pub(crate) async fn ask(&self, arguments: &[String], time: Duration) -> Result<Value, Problem> {
        let mut child = self.spawn(arguments)?;
        let group = group(&child);
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let read = async { tokio::join!(all_of(stdout), lines_of(stderr, |_| {})).0 };
        let read = tokio::time::timeout(time, read).await;
        signal(group, Signal::KILL);
        let failed = |text: &str| Problem::from(Error::new(Code::Failed, text));
        let Ok(read) = read else { return Err(Problem::late()) };
        let bytes = read.map_err(|error| failed(&error.to_string()))?;
        serde_json::from_slice(&bytes).map_err(|_| failed("the command has printed no JSON"))
    }

    fn line(&self, id: &str, line: String) {
        let mut all = self.lock();
        if let Some(entry) = all.1.iter_mut().find(|entry| entry.job.id == id) {
            entry.job.lines += 1;
            let lines = &mut entry.job.progress;
            if lines.len() >= LINES {
                lines.remove(0);
            }
            lines.push(line);
        }
    }

    /// A job has ended. Gives what is told of it: without its result.
    fn ended(&self, id: &str, end: io::Result<(Vec<u8>, Option<i32>)>) -> Option<Job> {
        let mut all = self.lock();
        let entry = all.1.iter_mut().find(|entry| entry.job.id == id)?;
        let job = &mut entry.job;
        job.ended = Some(clock());
        job.state = JobState::Failed;
        match end {
            _ if entry.cancelled => job.state = JobState::Cancelled,
            Ok((bytes, exit)) => {
                job.exit = exit;
                job.result = exit.and_then(|exit| job.kind.result(exit, &bytes, entry.as_text));
                if job.result.is_some() {
                    job.state = JobState::Done;
                } else {
                    job.error = Some(why(&job.progress));
                    job.result = printed(&bytes);
                }
            }
            Err(error) => job.error = Some(error.to_string()),
        }
        Some(Job { result: None, ..job.clone() })
    }
}

/// Refuses a job for which there is no room now.
fn room(entries: &VecDeque<Entry>, who: &Principal) -> Result<(), Problem> {
    let running = || entries.iter().filter(|entry| entry.job.state == JobState::Running);
    let others = running().filter(|entry| !entry.by_administrator).count();
    let text = if running().count() >= AT_ONCE {
        format!("{AT_ONCE} jobs are running, and no more can")
    } else if others >= OF_OTHERS && who.role != Role::Administrator {
        "a job is running, and the place for another one is for administrators".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::new(Code::TooManyClients, text).fix("wait for one to end").into())
}

/// The job that is forgotten first: of those that have ended, the oldest of whoever has most of them. So nobody has
/// the jobs of others forgotten.
fn oldest(entries: &VecDeque<Entry>) -> Option<usize> {
    let ended = || entries.iter().enumerate().filter(|(_, one)| one.job.state != JobState::Running);
    let of = |owner: &Identity| ended().filter(|(_, one)| one.owner == *owner).count();
    ended().min_by_key(|(at, one)| (Reverse(of(&one.owner)), *at)).map(|(at, _)| at)
}

/// What a command has said of its failure: the line that begins with `error:`, or the last.
fn why(progress: &[String]) -> String {
    let told = progress.iter().rev().find(|line| line.starts_with("error:"));
    let line = told.or(progress.last()).map(String::as_str);
    line.unwrap_or("the command has failed").to_owned()
}

fn no_job(id: &str) -> Problem {
    Problem::not_found(format!("there is no job {id}"))
}

/// The process group of a child.
fn group(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?))
}

fn signal(group: Option<Pid>, signal: Signal) {
    if let Some(group) = group {
        // It may have ended by itself.
        let _ = kill_process_group(group, signal);
    }
}

/// A job that is not seen to its end, as the interface ends before: it is told to end, and puts back what it has changed.
struct Unfinished(Option<Pid>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        signal(self.0, Signal::TERM);
    }
}

/// Sees a job to its end.
async fn run(app: Arc<App>, id: String, mut child: Child, cancel: Arc<Notify>) {
    let group = group(&child);
    let mut unfinished = Unfinished(group);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let work = async {
        let lines = lines_of(stderr, |line| app.jobs.line(&id, line));
        let (bytes, ()) = tokio::join!(all_of(stdout), lines);
        let status = child.wait().await?;
        Ok((bytes?, status.code()))
    };
    let end = cancellable(work, &cancel, group, GRACE).await;
    // It has ended, and another process may have its number from now on, or it is given up.
    unfinished.0 = None;
    if let Some(told) = app.jobs.ended(&id, end) {
        app.events.send("job", &told);
    }
}

/// Sees work of processes to its end. When it is cancelled they are asked to end, and killed after `grace`. Those that the
/// kernel holds then, for storage that does not answer, are given up after the same time again.
async fn cancellable<T>(
    work: impl Future<Output = io::Result<T>>,
    cancel: &Notify,
    group: Option<Pid>,
    grace: Duration,
) -> io::Result<T> {
    tokio::pin!(work);
    tokio::select! {
        end = &mut work => return end,
        () = cancel.notified() => {}
    }
    for with in [Signal::TERM, Signal::KILL] {
        signal(group, with);
        if let Ok(end) = tokio::time::timeout(grace, &mut work).await {
            return end;
        }
    }
    Err(io::Error::other("it was killed, and waits in the kernel for storage that does not answer"))
}

/// All that a stream has, within the bound of a result.
async fn all_of(stream: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    if let Some(stream) = stream {
        stream.take(RESULT as u64 + 1).read_to_end(&mut out).await?;
    }
    match out.len() > RESULT {
        true => Err(io::Error::other("the result is larger than 1 MiB")),
        false => Ok(out),
    }
}

/// Gives each line of a stream, cut to its bound.
async fn lines_of(stream: Option<impl AsyncRead + Unpin>, mut each: impl FnMut(String)) {
    let Some(mut stream) = stream else { return };
    let (mut chunk, mut line) = ([0; 4096], Vec::new());
    let mut end = |line: &mut Vec<u8>| {
        let text = String::from_utf8_lossy(line);
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        let text: String = text.chars().map(plain).collect();
        if !text.trim().is_empty() {
            each(text.trim_end().to_owned());
        }
        line.clear();
    };
    while let Ok(n @ 1..) = stream.read(&mut chunk).await {
        for byte in &chunk[..n] {
            match byte {
                b'\n' | b'\r' => end(&mut line),
                byte if line.len() < LINE => line.push(*byte),
                _ => {}
            }
        }
    }
    end(&mut line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cancelled_job_that_the_kernel_holds_is_given_up() {
        let cancel = Notify::new();
        cancel.notify_one();
        let held = std::future::pending::<io::Result<()>>();
        let ended = cancellable(held, &cancel, None, Duration::from_millis(1));
        let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
        let error = ended.expect("it is not waited for").unwrap_err().to_string();
        assert!(error.contains("waits in the kernel"), "{error}");
    }

    fn arguments(text: &str) -> Result<String, Problem> {
        let job: NewJob = serde_json::from_str(text).unwrap();
        job.arguments().map(|words| words.join(" "))
    }

    #[test]
    fn options_become_words_and_nothing_else_does() {
        for (job, words) in [
            (r#"{"kind":"doctor"}"#, "doctor --json"),
            (r#"{"kind":"doctor","options":{"ceilings":true}}"#, "doctor --json --ceilings"),
            (
                r#"{"kind":"tune-plan","options":{"profile":"latency","only":["network","zfs"]}}"#,
                "tune plan --json --profile=latency --only=network --only=zfs",
            ),
            (r#"{"kind":"doctor","options":{"text":true,"verbose":true}}"#, "doctor --verbose"),
            (r#"{"kind":"tune-plan","options":{"text":true,"all":true}}"#, "tune plan --all"),
            (r#"{"kind":"tune-apply","options":{"persist":true}}"#, "tune apply --persist"),
            (r#"{"kind":"tune-rollback"}"#, "tune rollback"),
            (r#"{"kind":"tune-verify"}"#, "tune verify --json"),
            (
                r#"{"kind":"tune-prove","options":{"targets":["/mnt"],"profile":"latency","only":["zfs"],"rounds":6,
                    "runtime_ms":1500,"size_bytes":4096}}"#,
                "tune prove --json --for=latency --only=zfs --rounds=6 --seconds=2 --size=4096 /mnt",
            ),
            (
                r#"{"kind":"bench","options":{"targets":["/dev/null"],"rounds":2,"runtime_ms":100}}"#,
                "bench --json --rounds=2 --runtime=100ms --read-only /dev/null",
            ),
        ] {
            assert_eq!(arguments(job).unwrap(), words);
        }
        for job in [
            r#"{"kind":"doctor","options":{"persist":true}}"#,
            r#"{"kind":"tune-rollback","options":{"only":["x"]}}"#,
            r#"{"kind":"tune-rollback","options":{"text":true}}"#,
            r#"{"kind":"bench","options":{"targets":["/dev/null"],"verbose":true}}"#,
            r#"{"kind":"bench"}"#,
            r#"{"kind":"tune-prove"}"#,
            r#"{"kind":"tune-prove","options":{"targets":["/a","/b"]}}"#,
            r#"{"kind":"tune-verify","options":{"persist":true}}"#,
            r#"{"kind":"tune-plan","options":{"persist":true}}"#,
            r#"{"kind":"bench","options":{"targets":["--html=/etc/passwd"]}}"#,
            r#"{"kind":"tune-plan","options":{"only":["a\nb"]}}"#,
            r#"{"kind":"tune-plan","options":{"profile":"quick"}}"#,
            r#"{"kind":"tune-apply","options":{"profile":""}}"#,
            r#"{"kind":"bench","options":{"targets":["/x"],"profile":"mixed"}}"#,
            r#"{"kind":"bench","options":{"targets":["/x"],"rounds":0}}"#,
            r#"{"kind":"bench","options":{"targets":["/x"],"rounds":101}}"#,
            r#"{"kind":"bench","options":{"targets":["/x"],"runtime_ms":99}}"#,
            r#"{"kind":"bench","options":{"targets":["/x"],"size_bytes":4096}}"#,
            r#"{"kind":"bench","options":{"targets":["/x"],"size_bytes":1048577}}"#,
        ] {
            assert!(arguments(job).is_err(), "{job}");
        }
        let strange = r#"{"kind":"doctor","options":{"root":"/etc"}}"#;
        assert!(serde_json::from_str::<NewJob>(strange).is_err());
    }
}
