//! `lunet top`

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lunet_cli::{Where, interval};

use crate::top;

/// What `lunet top` shows, and how often.
#[derive(Args)]
pub struct Top {
    #[command(flatten)]
    place: Where,
    /// Refresh interval [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "1s", hide_default_value = true)]
    interval: Duration,
}

/// Runs it until the user quits.
///
/// # Errors
/// No server answers at the start, or the terminal fails.
pub fn run(options: &Top) -> Result<ExitCode> {
    top::top(&options.place.client()?, options.interval)?;
    Ok(ExitCode::SUCCESS)
}
