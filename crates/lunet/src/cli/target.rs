//! `lunet target`

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use lunet::control::{Change, Request};
use lunet::tables;

use super::{Ask, answer};

#[derive(Subcommand)]
pub enum TargetCommand {
    /// Show the targets and their LUNs
    List(Ask),
    /// Make a target, and write it into the configuration
    Create {
        /// Its iSCSI name
        name: String,
        /// A name for people
        #[arg(long, value_name = "TEXT")]
        alias: Option<String>,
        #[command(flatten)]
        ask: Ask,
    },
    /// Delete a target; its volumes stay
    Delete {
        /// Its iSCSI name
        name: String,
        /// Although sessions use it: they end
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        ask: Ask,
    },
    /// Make a volume a LUN of a target
    Map {
        /// The target
        target: String,
        /// The number of the LUN, 0 to 16383
        lun: u16,
        /// The volume
        volume: String,
        #[command(flatten)]
        ask: Ask,
    },
    /// Take a LUN away from a target; its volume stays
    Unmap {
        /// The target
        target: String,
        /// The number of the LUN
        lun: u16,
        /// Although sessions use it: they lose it
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        ask: Ask,
    },
}

pub fn run(command: TargetCommand) -> Result<ExitCode> {
    match command {
        TargetCommand::List(ask) => answer(&ask, &Request::Targets, tables::targets),
        TargetCommand::Create { name, alias, ask } => {
            ask.change(Change::CreateTarget { name, alias })
        }
        TargetCommand::Delete { name, force, ask } => {
            ask.change(Change::DeleteTarget { name, force })
        }
        TargetCommand::Map { target, lun, volume, ask } => {
            ask.change(Change::Map { target, lun, volume })
        }
        TargetCommand::Unmap { target, lun, force, ask } => {
            ask.change(Change::Unmap { target, lun, force })
        }
    }
}
