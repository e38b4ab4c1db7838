//! What each layer of a machine can carry, and which one is the narrowest.
//!
//! Every figure is worked out from facts, and says how. A layer whose facts are missing has no
//! ceiling; it may still be the one that binds, and the page says so.

mod drives;
mod network;
mod parts;
mod processor;
mod speeds;

use std::fmt::Write;

use serde::Serialize;

use crate::expr::rate;
use crate::facts::Facts;
use crate::wrap;

pub(crate) use drives::reads_at_most;
pub use parts::parts;
pub use processor::{Measured, measure};
use speeds::drive_speed;

/// What a layer carries in each direction, in bytes per second.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Layer {
    /// Its name: `drives of tank`.
    pub name: String,
    /// Reads alone: from the drives to the initiator.
    pub read: Option<f64>,
    /// Writes alone.
    pub write: Option<f64>,
    /// Each of both, when as much is read as written at the same time, in records at random.
    pub both: Option<f64>,
    /// How the figures come about, a sentence each.
    pub steps: Vec<String>,
    /// What is missing for it.
    pub missing: Option<String>,
    /// Whether it concerns a single session and not the whole machine.
    pub one_session: bool,
}

/// What each layer of a machine can do at most.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Ceilings {
    /// From the drives to the wire.
    pub layers: Vec<Layer>,
    /// The layer that binds reads of the whole machine.
    pub binds_reads: Option<String>,
    /// The layer that binds writes.
    pub binds_writes: Option<String>,
    /// The layer that binds when both are done at once.
    pub binds_both: Option<String>,
    /// The layer that binds a single session.
    pub binds_one_session: Option<String>,
}

impl Layer {
    fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    fn step(&mut self, sentence: String) {
        self.steps.push(sentence);
    }

    /// The same in both directions, at the same time too: a full-duplex link.
    fn each_way(&mut self, rate: f64) {
        (self.read, self.write, self.both) = (Some(rate), Some(rate), Some(rate));
    }
}

/// The ceilings of a machine; with what was measured on it, if it is at hand.
pub fn ceilings(facts: &Facts, measured: Option<&Measured>) -> Ceilings {
    let mut layers = drives::pools(facts);
    layers.push(processor::memory(facts, measured));
    layers.push(processor::processor(facts));
    layers.extend(network::cards(facts));
    layers.extend(network::wires(facts));
    layers.push(network::one_session(facts));
    let mut ceilings = Ceilings { layers, ..Ceilings::default() };
    let shared = |layer: &&Layer| !layer.one_session;
    let narrowest = |of: fn(&Layer) -> Option<f64>, among: &dyn Fn(&&Layer) -> bool| {
        let known = ceilings.layers.iter().filter(|layer| among(layer) && of(layer).is_some());
        known.min_by(|a, b| of(a).partial_cmp(&of(b)).unwrap_or(std::cmp::Ordering::Equal))
    };
    let name = |layer: Option<&Layer>| layer.map(|layer| layer.name.clone());
    let reads = name(narrowest(|layer| layer.read, &shared));
    let writes = name(narrowest(|layer| layer.write, &shared));
    let both = name(narrowest(|layer| layer.both, &shared));
    let session = name(narrowest(|layer| layer.read, &|_| true));
    ceilings.binds_reads = reads;
    ceilings.binds_writes = writes;
    ceilings.binds_both = both;
    ceilings.binds_one_session = session;
    ceilings
}

/// The ceilings for a terminal: a table, the layer that binds, and how each figure comes about.
pub fn page(ceilings: &Ceilings) -> String {
    let mut out = String::new();
    let width = ceilings.layers.iter().map(|layer| layer.name.len()).max().unwrap_or(5).max(5);
    let head = ("layer", "reads", "writes", "both at once, each");
    let _ = writeln!(out, "{:width$}  {:>10}  {:>10}  {:>18}", head.0, head.1, head.2, head.3);
    let show = |rate_: Option<f64>| rate_.map_or_else(|| "-".to_owned(), rate);
    for layer in &ceilings.layers {
        let (read, write, both) = (show(layer.read), show(layer.write), show(layer.both));
        let _ = writeln!(out, "{:width$}  {read:>10}  {write:>10}  {both:>18}", layer.name);
    }
    out.push('\n');
    for (what, name) in [
        ("Reads are", &ceilings.binds_reads),
        ("Writes are", &ceilings.binds_writes),
        ("Reads and writes at once are", &ceilings.binds_both),
        ("One session is", &ceilings.binds_one_session),
    ] {
        if let Some(name) = name {
            let _ = writeln!(out, "{what} bound by: {name}.");
        }
    }
    out.push('\n');
    for layer in &ceilings.layers {
        let _ = writeln!(out, "{}", layer.name);
        for sentence in sentences(layer) {
            wrap(&mut out, "  ", &sentence);
        }
    }
    out
}

fn sentences(layer: &Layer) -> Vec<String> {
    let missing = layer.missing.iter().map(|what| format!("Not known: {what}."));
    layer.steps.iter().cloned().chain(missing).collect()
}

#[cfg(test)]
mod tests;
