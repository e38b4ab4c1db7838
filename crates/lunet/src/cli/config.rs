//! `lunet config`

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Subcommand;
use lunet::control::{Change, Request};
use lunet::{config, plan};

use super::{STRANGE, Where, print};

#[derive(Subcommand)]
pub enum ConfigCommand {
    /// Say what is wrong with a configuration file, with line and key
    Check {
        /// The file
        file: PathBuf,
    },
    /// Let a running lunet read its configuration file again, and serve what it says now
    Apply {
        #[command(flatten)]
        place: Where,
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
        ConfigCommand::Apply { place } => place.change(Change::Apply),
        ConfigCommand::Show { place } => {
            let answer = place.ask(&Request::Config)?;
            let text = answer.get("text").and_then(|text| text.as_str()).context(STRANGE)?;
            print(text)?;
            Ok(ExitCode::SUCCESS)
        }
    }
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
