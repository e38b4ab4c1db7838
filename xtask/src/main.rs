//! The project's own tools. `make bench` and `make conformance` call them.

#![forbid(unsafe_code)]

mod conformance;

use anyhow::Result;
use clap::Parser;

/// Tools for those who work on lunet.
#[derive(Parser)]
#[command(name = "xtask")]
enum Tool {
    /// Runs libiscsi's test suite against a volume and writes docs/conformance.md.
    Conformance(conformance::Arguments),
}

fn main() -> Result<()> {
    match Tool::parse() {
        Tool::Conformance(arguments) => conformance::run(arguments),
    }
}
