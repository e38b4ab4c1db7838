//! Commands that work on the machine of a lunet: jobs of its REST interface.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use crate::control::Error;
use crate::control::remote::{Remote, one_line};
use anyhow::{Context, Result, anyhow};
use lunet_api::Code;
use lunet_iscsi::printable::printable_lines;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{json_text, print};
use crate::interrupt::first_of_the_end;

/// Stopped by a signal, as shells count.
const STOPPED: u8 = 130;

/// How often it is asked how a job stands.
const PAUSE: Duration = Duration::from_millis(250);

/// A job, as far as it is shown.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Job {
    id: String,
    state: String,
    progress: Vec<String>,
    /// Lines of progress, with those that are not there any more.
    lines: usize,
    result: Option<Value>,
    error: Option<String>,
    exit: Option<u8>,
}

impl Job {
    fn runs(&self) -> bool {
        self.state == "running"
    }

    /// What has been said since so many lines were shown, as far as it is still known.
    fn since(&self, shown: usize) -> &[String] {
        let new = self.lines.saturating_sub(shown).min(self.progress.len());
        &self.progress[self.progress.len() - new..]
    }

    /// Shows that on standard error.
    fn show(&self, shown: &mut usize) {
        for line in self.since(*shown) {
            let _ = writeln!(io::stderr(), "{}", printable_lines(line));
        }
        *shown = self.lines;
    }
}

/// Runs a command as a job on the machine of that lunet, with its progress on standard error. Ctrl-C cancels it; the
/// second one leaves it alone and ends this program.
///
/// The exit code is that of the command.
pub fn run(remote: &Remote, kind: &str, options: &Value) -> Result<ExitCode> {
    let stop = first_of_the_end(STOPPED.into()).context("cannot catch signals")?;
    let new = json!({"kind": kind, "options": options});
    let mut job: Job = remote.other("POST", &["jobs"], Some(&new))?;
    let (mut shown, mut cancelled) = (0, false);
    while job.runs() {
        job.show(&mut shown);
        let method = match stop.load(Ordering::Relaxed) && !cancelled {
            true => "DELETE",
            false => {
                thread::sleep(PAUSE);
                "GET"
            }
        };
        let asked: Result<Job, Error> = remote.other(method, &["jobs", &job.id], None);
        match asked {
            Ok(now) => {
                cancelled |= method == "DELETE";
                job = now;
            }
            // It says so for a moment, and has nothing against the job.
            Err(Error::Refused(told))
                if matches!(told.code, Code::TooManyClients | Code::NotAnswered) => {}
            Err(error) => {
                return Err(anyhow!("{error}; job {} may still run there", job.id));
            }
        }
    }
    job.show(&mut shown);
    finish(&job)
}

/// Shows what a job has printed, and ends as it has.
fn finish(job: &Job) -> Result<ExitCode> {
    match &job.result {
        Some(Value::String(text)) => print(&printable_lines(text))?,
        Some(result) => print(&json_text(result)?)?,
        None => {}
    }
    let say = |text: &str| {
        let _ = writeln!(io::stderr(), "lunet: {}", one_line(text));
    };
    if job.state == "cancelled" {
        say(&format!("job {} is cancelled", job.id));
        return Ok(ExitCode::from(STOPPED));
    }
    match (job.exit, &job.error) {
        (Some(exit), _) => Ok(ExitCode::from(exit)),
        (None, error) => {
            let why = error.as_deref().unwrap_or("it was ended by a signal");
            Err(anyhow!("job {} has failed: {why}", job.id))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_shown_once() {
        let progress: Vec<String> = ["c", "c", "d"].map(str::to_owned).to_vec();
        let job = Job { progress, lines: 5, ..Job::default() };
        assert_eq!(job.since(0), ["c", "c", "d"], "two are not there any more");
        assert_eq!(job.since(3), ["c", "d"]);
        assert!(job.since(5).is_empty() && job.since(6).is_empty());
        // A server of before does not count them.
        assert!(Job { lines: 0, ..job }.since(0).is_empty());
    }
}
