//! The ceilings for a terminal.

use std::fmt::Write;

use super::{Ceilings, Layer};
use crate::expr::rate;
use crate::wrap;

/// A table, the layer that binds, and how each figure comes about.
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
