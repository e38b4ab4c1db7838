//! The results of a benchmark, as they are kept in a file.
//!
//! The form has a number, [`SCHEMA`]. New fields may join under the same number, so readers skip what they do not know; a
//! field that goes or changes its meaning makes a new number. Units are part of the names. docs/bench-json.md describes
//! the form for people who read it with other programs.

mod ceiling;
mod check;
mod choice;
mod latency;
mod run;
mod setup;
mod summary;

use std::path::Path;
use std::{fs, io};

use lunet_iscsi::printable::printable_json;
use serde::{Deserialize, Serialize};

pub use ceiling::{Bound, Ceiling, CeilingKind, Load, Unit, Verdict};
pub use check::{Flaw, check};
pub use choice::choice;
pub use latency::{Bucket, Latency, PERCENTS, Percentile};
pub use run::{Flow, Moment, Process, Role, Run, Sensor, System, Throttle};
pub use setup::{
    Command, Fact, Machine, Pattern, Section, Sync, Target, TargetKind, Workload, without_secret,
};

pub use summary::{Comparison, Measure, Summary, compare_results, interleaved, summarise};

/// The number of the form that this program writes and reads.
pub const SCHEMA: u32 = 1;

/// Everything that one benchmark found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The number of this form: [`SCHEMA`].
    pub schema: u32,
    /// The version of lunet that measured.
    pub lunet: String,
    /// When it began: UTC, as in RFC 3339.
    pub started: String,
    /// How long all of it took, in seconds.
    pub seconds: f64,
    /// `quick`, `recipe`, `sweep`, or what the caller calls it.
    pub profile: String,
    /// What the reader must know: what was scaled down, what could not be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Where it was measured.
    #[serde(default)]
    pub machines: Vec<Machine>,
    /// What was run, so that it can be run again.
    #[serde(default)]
    pub commands: Vec<Command>,
    /// What was measured.
    #[serde(default)]
    pub targets: Vec<Target>,
    /// With what.
    #[serde(default)]
    pub workloads: Vec<Workload>,
    /// Each measurement: one target, one workload, one round.
    #[serde(default)]
    pub runs: Vec<Run>,
    /// What each layer can carry.
    #[serde(default)]
    pub ceilings: Vec<Ceiling>,
    /// What limits each workload on each target.
    #[serde(default)]
    pub verdicts: Vec<Verdict>,
    /// The runs of all rounds together: follows from `runs`.
    #[serde(default)]
    pub summaries: Vec<Summary>,
    /// Each target against the first one: follows from `runs`.
    #[serde(default)]
    pub comparisons: Vec<Comparison>,
    /// Which of several transports to use, and why, in a sentence: follows from `runs`. Absent if they have but
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<String>,
}

/// Why a file of results cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It cannot be read or written.
    #[error("{path}: {error}")]
    Io {
        /// Path of the results file.
        path: String,
        /// What the system says.
        error: io::Error,
    },
    /// It is no JSON of this form.
    #[error("{path} holds no results of lunet bench: {error}")]
    Form {
        /// Path of the results file.
        path: String,
        /// What the reader says.
        error: serde_json::Error,
    },
    /// A later lunet wrote it.
    #[error(
        "{path} has form {schema}, and this lunet reads form {SCHEMA}: use the lunet that wrote it"
    )]
    Schema {
        /// Path of the results file.
        path: String,
        /// Schema version of the document.
        schema: u32,
    },
    /// It contradicts itself.
    #[error("{path}: {flaw}")]
    Flaw {
        /// Path of the results file.
        path: String,
        /// How.
        flaw: Flaw,
    },
}

/// What is read first: whether the rest can be read at all.
#[derive(Deserialize)]
struct Head {
    schema: u32,
}

impl Results {
    /// Works out what follows from the runs: summaries and comparisons.
    pub fn summarise(&mut self) {
        (self.summaries, self.comparisons) = summarise(self);
        self.choice = choice(self);
    }

    /// The runs of a target with a workload, in the order of the rounds.
    pub fn runs_of<'a>(&'a self, target: &str, workload: &str) -> Vec<&'a Run> {
        let of = |run: &&Run| run.target == target && run.workload == workload;
        let mut runs: Vec<&Run> = self.runs.iter().filter(of).collect();
        runs.sort_by_key(|run| run.round);
        runs
    }

    /// The summary of a target with a workload.
    pub fn summary<'a>(&'a self, target: &str, workload: &str) -> Option<&'a Summary> {
        self.summaries.iter().find(|of| of.target == target && of.workload == workload)
    }

    /// The workload of this name.
    pub fn workload<'a>(&'a self, name: &str) -> Option<&'a Workload> {
        self.workloads.iter().find(|workload| workload.name == name)
    }

    /// How many rounds there were.
    pub fn rounds(&self) -> u32 {
        self.runs.iter().map(|run| run.round).max().unwrap_or(0)
    }

    /// As JSON, for people and programs.
    ///
    /// # Panics
    /// Never: every field has a form in JSON.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("every field has a form in JSON");
        text.push('\n');
        // Names in it come from targets.
        printable_json(&text)
    }

    /// Reads what [`Results::to_json`] wrote; `path` is for the error alone.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn from_json(text: &str, path: &str) -> Result<Self, ReadError> {
        let form = |error| ReadError::Form { path: path.to_owned(), error };
        let head: Head = serde_json::from_str(text).map_err(form)?;
        if head.schema != SCHEMA {
            return Err(ReadError::Schema { path: path.to_owned(), schema: head.schema });
        }
        let mut results: Self = serde_json::from_str(text).map_err(form)?;
        check(&results).map_err(|flaw| ReadError::Flaw { path: path.to_owned(), flaw })?;
        results.summarise();
        Ok(results)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let name = path.display().to_string();
        let text = fs::read_to_string(path)
            .map_err(|error| ReadError::Io { path: name.clone(), error })?;
        Self::from_json(&text, &name)
    }
}

#[cfg(test)]
mod tests;
