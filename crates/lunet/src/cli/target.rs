//! `lunet target`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Subcommand;
use lunet::control::{Change, NewSecret, NewUser, Request};
use lunet::tables;

use super::{Ask, Forced, Rules, STRANGE, answer, print, prompt};

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
        #[command(flatten)]
        with: Forced,
    },
    /// Let initiators in to a target; the first name or address of its list shuts out all others
    Allow {
        /// The target
        target: String,
        /// Names (`*` stands for anything), addresses and networks
        #[arg(value_name = "INITIATOR", required = true)]
        initiators: Vec<String>,
        #[command(flatten)]
        rules: Rules,
    },
    /// Take initiators off the list of a target; their sessions end
    Deny {
        /// The target
        target: String,
        /// Entries of its list
        #[arg(value_name = "INITIATOR", required = true)]
        initiators: Vec<String>,
        #[command(flatten)]
        rules: Rules,
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
        with: Forced,
    },
    /// Take a LUN away from a target; its volume stays
    Unmap {
        /// The target
        target: String,
        /// The number of the LUN
        lun: u16,
        #[command(flatten)]
        with: Forced,
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
        #[command(flatten)]
        rules: Rules,
    },
    /// Remove a user; its sessions end
    Remove {
        /// The target
        target: String,
        /// The user's name
        name: String,
        #[command(flatten)]
        rules: Rules,
    },
}

pub fn run(command: TargetCommand) -> Result<ExitCode> {
    match command {
        TargetCommand::List(ask) => answer(&ask, &Request::Targets, tables::targets),
        TargetCommand::Create { name, alias, ask } => {
            ask.change(Change::CreateTarget { name, alias })
        }
        TargetCommand::Delete { name, with } => {
            with.ask.change(Change::DeleteTarget { name, force: with.force })
        }
        TargetCommand::Allow { target, initiators, rules } => {
            rules.change(|force, keep_sessions| Change::AllowInitiators {
                target,
                initiators,
                force,
                keep_sessions,
            })
        }
        TargetCommand::Deny { target, initiators, rules } => {
            rules.change(|force, keep_sessions| Change::DenyInitiators {
                target,
                initiators,
                force,
                keep_sessions,
            })
        }
        TargetCommand::Open { target, ask } => ask.change(Change::OpenTarget { target }),
        TargetCommand::User { command } => user(command),
        TargetCommand::Map { target, lun, volume, with } => {
            with.ask.change(Change::Map { target, lun, volume, force: with.force })
        }
        TargetCommand::Unmap { target, lun, with } => {
            with.ask.change(Change::Unmap { target, lun, force: with.force })
        }
    }
}

fn user(command: UserCommand) -> Result<ExitCode> {
    match command {
        UserCommand::List { target, ask } => users(&ask, target.as_deref()),
        UserCommand::Add { target, name, secret_file, initiator, replace, rules } => {
            let secret = match secret_file {
                // The server may run in another directory.
                Some(file) => NewSecret::File(
                    std::path::absolute(file).context("cannot tell where the file is")?,
                ),
                None => NewSecret::Text(prompt::secret(&name)?),
            };
            let user = NewUser { name, secret, initiators: initiator, replace };
            rules.change(|force, keep_sessions| Change::AddUser {
                target,
                user,
                force,
                keep_sessions,
            })
        }
        UserCommand::Remove { target, name, rules } => rules.change(|force, keep_sessions| {
            Change::RemoveUser { target, name, force, keep_sessions }
        }),
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
