//! `lunet config`

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Subcommand;
use lunet::control::{Change, Preview, Request, VERSION};
use lunet::{config, plan, tables};

use super::{Ask, STRANGE, Where, print};

#[derive(Subcommand)]
pub enum ConfigCommand {
    /// Say what is wrong with a configuration file, with line and key
    Check {
        /// The file
        file: PathBuf,
    },
    /// Let a running lunet read its configuration file again, and serve what it says now
    Apply {
        /// Only say what would change, and whose sessions would end
        #[arg(long)]
        dry_run: bool,
        /// Although sessions use volumes, LUNs or targets that would be gone
        #[arg(long)]
        force: bool,
        /// Leave sessions that could not log in by the new rules
        #[arg(long)]
        keep_sessions: bool,
        #[command(flatten)]
        ask: Ask,
    },
    /// Print the configuration that a running lunet has in force
    Show {
        #[command(flatten)]
        place: Where,
    },
}

pub fn run(command: ConfigCommand) -> Result<ExitCode> {
    match command {
        ConfigCommand::Check { file } => check(&file),
        ConfigCommand::Apply { dry_run, force, keep_sessions, ask } => {
            let change = Change::Apply { force, keep_sessions };
            if dry_run { preview(&ask, change) } else { ask.change(change) }
        }
        ConfigCommand::Show { place } => {
            let answer = place.ask(&Request::Config)?;
            let text = answer.get("text").and_then(|text| text.as_str()).context(STRANGE)?;
            print(text)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Says what a change would do.
fn preview(ask: &Ask, change: Change) -> Result<ExitCode> {
    let answer = ask.place.ask(&Request::Preview { version: VERSION, change })?;
    let preview: Preview = serde_json::from_value(answer.clone()).context(STRANGE)?;
    match ask.json {
        true => print(&format!("{answer:#}\n"))?,
        false => print(&tables::preview(&preview))?,
    }
    Ok(if preview.refused.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn check(file: &Path) -> Result<ExitCode> {
    match plan::read_config(file) {
        Ok(config) => {
            print(&format!("{}: all right: {}", file.display(), config::summary(&config)))?;
            Ok(ExitCode::SUCCESS)
        }
        // The mistakes as compilers write them, for editors that jump to the line.
        Err(error) => {
            let wrong = error.downcast::<plan::Wrong>()?;
            let _ = writeln!(io::stderr(), "{wrong}");
            Ok(ExitCode::FAILURE)
        }
    }
}
