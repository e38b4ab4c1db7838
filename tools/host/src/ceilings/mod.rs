//! What each layer of a machine can carry, and which one is the narrowest.
//!
//! Every figure is worked out from facts, and says how. A layer whose facts are missing has no
//! ceiling; it may still be the one that binds, and the page says so.

mod assumed;
mod drives;
mod network;
mod parts;
mod processor;
mod speeds;
pub mod what_if;

use std::fmt::Write;

use serde::Serialize;

use crate::expr::rate;
use crate::facts::Facts;
use crate::wrap;

use assumed::Assumed;
use drives::Figures;
pub(crate) use drives::reads_at_most;
pub use parts::parts;
pub use processor::{Measured, measure};
use speeds::drive_speed;

/// What a layer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The drives of a pool.
    #[default]
    Drives,
    /// Memory.
    Memory,
    /// The processors.
    Processor,
    /// The slots of the network cards.
    Pcie,
    /// The wires.
    Network,
    /// All sessions of one host.
    Host,
    /// One session.
    Session,
}

/// What a layer carries in each direction, in bytes per second.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Layer {
    /// Its name: `drives of tank`.
    pub name: String,
    /// What it is.
    pub kind: Kind,
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
    /// Whether it concerns a single session, or a single host, and not the whole machine.
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
    fn new(kind: Kind, name: impl Into<String>) -> Self {
        let one_session = matches!(kind, Kind::Host | Kind::Session);
        Self { name: name.into(), kind, one_session, ..Self::default() }
    }

    fn step(&mut self, sentence: String) {
        self.steps.push(sentence);
    }

    /// The same in both directions, at the same time too: a full-duplex link.
    fn each_way(&mut self, rate: f64) {
        (self.read, self.write, self.both) = (Some(rate), Some(rate), Some(rate));
    }
}

/// What the ceilings are worked out from.
#[derive(Clone, Copy)]
struct View<'a> {
    facts: &'a Facts,
    measured: Option<&'a Measured>,
    /// What the model assumes where nobody can know.
    assumed: Assumed,
    /// What a model of drives moves that no table knows.
    figures: Option<&'a Figures>,
}

/// The ceilings of a machine; with what was measured on it, if it is at hand.
pub fn ceilings(facts: &Facts, measured: Option<&Measured>) -> Ceilings {
    of(&View { facts, measured, assumed: Assumed::default(), figures: None })
}

fn of(view: &View<'_>) -> Ceilings {
    let mut layers = drives::pools(view);
    layers.push(processor::memory(view));
    layers.push(processor::processor(view));
    layers.extend(network::cards(view));
    layers.push(network::wires(view));
    layers.push(network::one_session(view));
    layers.extend(network::one_host(view));
    let binds = |direction| narrowest(&layers, direction).map(|layer| layer.name.clone());
    Ceilings {
        binds_reads: binds(Direction::Reads),
        binds_writes: binds(Direction::Writes),
        binds_both: binds(Direction::Both),
        binds_one_session: binds(Direction::OneSession),
        layers,
    }
}

/// What is asked of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Reads alone, of all sessions together.
    Reads,
    /// Writes alone, of all sessions together.
    Writes,
    /// Both at once, each.
    Both,
    /// Reads of one session.
    OneSession,
}

impl Direction {
    const ALL: [Self; 4] = [Self::Reads, Self::Writes, Self::Both, Self::OneSession];

    /// What the layer carries of it.
    fn of(self, layer: &Layer) -> Option<f64> {
        match self {
            Self::Reads | Self::OneSession => layer.read,
            Self::Writes => layer.write,
            Self::Both => layer.both,
        }
    }

    /// Whether it passes the layer.
    fn passes(self, layer: &Layer) -> bool {
        match self {
            Self::OneSession => layer.kind != Kind::Host,
            _ => !layer.one_session,
        }
    }
}

/// The layer that binds: of those that are known, the first that carries least.
fn narrowest(layers: &[Layer], direction: Direction) -> Option<&Layer> {
    let passed = layers.iter().filter(|layer| direction.passes(layer));
    let known = passed.filter_map(|layer| Some((layer, direction.of(layer)?)));
    known.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(layer, _)| layer)
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
