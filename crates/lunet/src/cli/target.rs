//! `lunet target`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Subcommand;
use lunet::control::{Change, NewSecret, NewUser, Request};
use lunet::tables;

use super::{Ask, STRANGE, answer, print, prompt};

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
    /// Let initiators in to a target; the first entry shuts all others out
    Allow {
        /// The target
        target: String,
        /// Names (`*` stands for anything), addresses and networks
        #[arg(value_name = "INITIATOR", required = true)]
        initiators: Vec<String>,
        /// Although sessions of others end by it
        #[arg(long)]
        force: bool,
        /// Leave sessions that could not log in any more
        #[arg(long)]
        keep_sessions: bool,
        #[command(flatten)]
        ask: Ask,
    },
    /// Let initiators in no more; their sessions end
    Deny {
        /// The target
        target: String,
        /// Entries of its list
        #[arg(value_name = "INITIATOR", required = true)]
        initiators: Vec<String>,
        /// Leave sessions that could not log in any more
        #[arg(long)]
        keep_sessions: bool,
        #[command(flatten)]
        ask: Ask,
    },
    /// Let everybody in to a target that names nobody who may use it
    Open {
        /// The target
        target: String,
        #[command(flatten)]
        ask: Ask,
    },
    /// Show and change who may log in to a target with CHAP
    User {
        #[command(subcommand)]
        command: UserCommand,
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

#[derive(Subcommand)]
pub enum UserCommand {
    /// Show who may log in with CHAP, and where the secrets are; never the secrets
    List {
        /// The target [default: all]
        target: Option<String>,
        #[command(flatten)]
        ask: Ask,
    },
    /// Add a user; the secret is asked for, or read from standard input if that is no terminal
    Add {
        /// The target
        target: String,
        /// The user's name
        name: String,
        /// The secret is in this file, and stays there (its only line; for its owner alone)
        #[arg(long, value_name = "FILE")]
        secret_file: Option<PathBuf>,
        /// Only this initiator may use it: name, address or network; can be given more than once
        #[arg(long, value_name = "INITIATOR")]
        initiator: Vec<String>,
        /// The user is there: give it another secret
        #[arg(long)]
        replace: bool,
        /// Although sessions without CHAP end by it
        #[arg(long)]
        force: bool,
        /// Leave sessions that could not log in any more
        #[arg(long)]
        keep_sessions: bool,
        #[command(flatten)]
        ask: Ask,
    },
    /// Remove a user; its sessions end
    Remove {
        /// The target
        target: String,
        /// The user's name
        name: String,
        /// Although it is the only one, and nobody is asked for CHAP then
        #[arg(long)]
        force: bool,
        /// Leave its sessions
        #[arg(long)]
        keep_sessions: bool,
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
        TargetCommand::Allow { target, initiators, force, keep_sessions, ask } => {
            ask.change(Change::AllowInitiators { target, initiators, force, keep_sessions })
        }
        TargetCommand::Deny { target, initiators, keep_sessions, ask } => {
            ask.change(Change::DenyInitiators { target, initiators, keep_sessions })
        }
        TargetCommand::Open { target, ask } => ask.change(Change::OpenTarget { target }),
        TargetCommand::User { command } => user(command),
        TargetCommand::Map { target, lun, volume, ask } => {
            ask.change(Change::Map { target, lun, volume })
        }
        TargetCommand::Unmap { target, lun, force, ask } => {
            ask.change(Change::Unmap { target, lun, force })
        }
    }
}

fn user(command: UserCommand) -> Result<ExitCode> {
    match command {
        UserCommand::List { target, ask } => users(&ask, target.as_deref()),
        UserCommand::Add {
            target,
            name,
            secret_file,
            initiator,
            replace,
            force,
            keep_sessions,
            ask,
        } => {
            let secret = match secret_file {
                // The server may run in another directory.
                Some(file) => NewSecret::File(
                    std::path::absolute(file).context("cannot tell where the file is")?,
                ),
                None => NewSecret::Text(prompt::secret(&name)?),
            };
            let user = NewUser { name, secret, initiators: initiator, replace };
            ask.change(Change::AddUser { target, user, force, keep_sessions })
        }
        UserCommand::Remove { target, name, force, keep_sessions, ask } => {
            ask.change(Change::RemoveUser { target, name, force, keep_sessions })
        }
    }
}

fn users(ask: &Ask, target: Option<&str>) -> Result<ExitCode> {
    let mut all = ask.place.ask(&Request::Targets)?;
    if ask.json {
        if let (Some(name), Some(targets)) = (target, all.as_array_mut()) {
            targets.retain(|of| of["name"] == name);
        }
        print(&format!("{all:#}\n"))?;
    } else {
        print(&tables::users(&all, target).context(STRANGE)?)?;
    }
    Ok(ExitCode::SUCCESS)
}
