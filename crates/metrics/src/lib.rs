//! What a running server has counted, as Prometheus reads it: a pure function of its answers.
//!
//! Names follow Prometheus' conventions: base units, and `_total` for what only grows. docs/metrics.md lists them. Labels
//! have values from configurations and from fixed lists of words; names of initiators, which come from the network, are
//! labels only on request, and only so many of them.
#![forbid(unsafe_code)]

mod groups;
mod server;
mod text;
mod volumes;

use lunet_api::{Group, Session, Stats, Verdict, Volume};

pub use self::text::Format;
use self::text::Text;

/// Initiators that have labels of their own. The rest is counted as one without a name.
const MOST_INITIATORS: usize = 256;

/// What is known of a server at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    /// The version of the program.
    pub version: &'a str,
    /// What it has counted, with its portals.
    pub stats: &'a Stats,
    /// Its volumes, for what they take up.
    pub volumes: &'a [Volume],
    /// The failover groups that it is a gateway of.
    pub groups: &'a [Group],
    /// Its sessions.
    pub sessions: &'a [Session],
    /// What binds it, if that is known.
    pub verdict: Option<&'a Verdict>,
    /// How many findings of each severity the doctor's last run had; `None` if there was none.
    pub findings: Option<&'a [(&'a str, u64)]>,
    /// Names initiators.
    pub by_initiator: bool,
}

/// All metrics as OpenMetrics text.
pub fn render(snapshot: &Snapshot<'_>) -> String {
    render_as(snapshot, Format::OpenMetrics)
}

/// All metrics in this format.
pub fn render_as(snapshot: &Snapshot<'_>, format: Format) -> String {
    let mut text = Text::new(format);
    server::about(&mut text, snapshot);
    server::sessions(&mut text, snapshot);
    server::protocols(&mut text, snapshot.stats);
    server::shards(&mut text, &snapshot.stats.loads);
    server::portals(&mut text, &snapshot.stats.portals);
    server::parts(&mut text, &snapshot.stats.parts);
    volumes::operations(&mut text, snapshot.stats);
    volumes::storage(&mut text, snapshot);
    volumes::time(&mut text, snapshot.stats);
    // Who has no group has no such metrics.
    if !snapshot.groups.is_empty() {
        groups::all(&mut text, snapshot.groups);
    }
    if let Some(verdict) = snapshot.verdict {
        volumes::verdict(&mut text, verdict);
    }
    text.end()
}

#[cfg(test)]
mod tests;
