//! What was measured with, as far as `lunet bench` does not say it itself.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use lunet_bench::model::{Fact, Section};
use lunet_e2e::process::output;
use lunet_e2e::server;
use lunet_e2e::tgt::Tgt;

const LIMIT: Duration = Duration::from_secs(20);

/// Programs, and the state of the machine before.
#[derive(Clone, Debug)]
pub struct About {
    /// The day, by the system's clock, in UTC.
    pub date: String,
    /// lunet's version.
    pub lunet: String,
    /// The commit that is checked out; `+` when files differ from it.
    pub commit: String,
    /// tgt's version.
    pub tgt: String,
    /// Runnable tasks on average in the minute before, which should be none.
    pub load_average: String,
}

/// Asks the machine.
pub fn look() -> Result<About> {
    let load = fs::read_to_string("/proc/loadavg")?;
    Ok(About {
        date: ask("date", &["-u", "+%F"])?,
        lunet: server::version()?,
        commit: commit().unwrap_or_else(|_| "unknown".to_owned()),
        tgt: Tgt::version()?,
        load_average: load.split_whitespace().next().unwrap_or_default().to_owned(),
    })
}

impl About {
    /// The beginning of a page about transports.
    pub fn title(&self, of: &str) -> String {
        let Self { date, lunet, commit, load_average, .. } = self;
        format!(
            "# {of}, {date}\n\n{lunet} (commit {commit}). Load average before: {load_average}.\n\n"
        )
    }

    /// For the results.
    pub fn section(&self) -> Section {
        let fact = |key: &str, value: &str| Fact { key: key.to_owned(), value: value.to_owned() };
        Section {
            title: "benchmark".to_owned(),
            facts: vec![
                fact("commit", &self.commit),
                fact("tgt", &self.tgt),
                fact("load average before", &self.load_average),
            ],
        }
    }
}

fn commit() -> Result<String> {
    let commit = ask("git", &["rev-parse", "--short=12", "HEAD"])?;
    let changed = ask("git", &["status", "--porcelain", "--untracked-files=no"])?;
    Ok(if changed.is_empty() { commit } else { commit + "+" })
}

fn ask(program: &str, arguments: &[&str]) -> Result<String> {
    let text = output(Command::new(program).args(arguments), LIMIT)?;
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}
