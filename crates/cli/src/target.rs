//! `lunet target`

use std::path::PathBuf;
use std::process::ExitCode;

use crate::control::Client;
use crate::tables;
use anyhow::{Context, Result, bail};
use clap::Subcommand;
use lunet_api::{Change, NewSecret, NewUser};

use super::{Ask, Forced, Rules, answer, answer_of_all, complete, prompt};

#[derive(Subcommand)]
pub enum TargetCommand {
    /// List targets and their LUNs
    List(Ask),
    /// Create a target, in the configuration file too
    Create {
        /// iSCSI name of the target
        name: String,
        /// Alias, a description for people
        #[arg(long, value_name = "TEXT")]
        alias: Option<String>,
        /// Serve it over NVMe as well
        #[arg(long)]
        nvme: bool,
        #[command(flatten)]
        ask: Ask,
    },
    /// Delete a target, and keep its volumes
    Delete {
        /// iSCSI name of the target
        name: String,
        #[command(flatten)]
        with: Forced,
    },
    /// Allow initiators, or NVMe hosts, to use a target; the first entry of a list excludes all others
    Allow {
        /// Target
        #[arg(add = complete::target())]
        target: String,
        /// Names (`*` matches anything), addresses and networks of initiators; or NQNs of hosts
        #[arg(value_name = "INITIATOR", required = true)]
        initiators: Vec<String>,
        #[command(flatten)]
        rules: Rules,
    },
    /// Remove initiators, or NVMe hosts, from a target's list, and end their sessions
    Deny {
        /// Target
        #[arg(add = complete::target())]
        target: String,
        /// Entries of the list
        #[arg(value_name = "INITIATOR", required = true)]
        initiators: Vec<String>,
        #[command(flatten)]
        rules: Rules,
    },
    /// Open a target that has no access list to every initiator
    Open {
        /// Target
        #[arg(add = complete::target())]
        target: String,
        #[command(flatten)]
        ask: Ask,
    },
    /// Manage the CHAP users of targets
    User {
        #[command(subcommand)]
        command: UserCommand,
    },
    /// Map a volume to a LUN of a target
    Map {
        /// Target
        #[arg(add = complete::target())]
        target: String,
        /// LUN, 0 to 16383
        #[arg(value_parser = lun)]
        lun: u16,
        /// Volume
        #[arg(add = complete::volume())]
        volume: String,
        #[command(flatten)]
        with: Forced,
    },
    /// Unmap a LUN of a target, and keep its volume
    Unmap {
        /// Target
        #[arg(add = complete::target())]
        target: String,
        /// LUN
        #[arg(value_parser = lun)]
        lun: u16,
        #[command(flatten)]
        with: Forced,
    },
}

#[derive(Subcommand)]
pub enum UserCommand {
    /// List the CHAP users and the files of their secrets, never the secrets
    List {
        /// Target [default: all]
        #[arg(add = complete::target())]
        target: Option<String>,
        #[command(flatten)]
        ask: Ask,
    },
    /// Add a user; the secret is prompted for, or read from standard input if that is not a terminal
    Add {
        /// Target
        #[arg(add = complete::target())]
        target: String,
        /// Name of the user
        name: String,
        /// File with the secret, which stays there: one line, readable by its owner only
        #[arg(long, value_name = "FILE")]
        secret_file: Option<PathBuf>,
        /// Only this initiator may log in as the user: name, address or network; can be repeated
        #[arg(long, value_name = "INITIATOR")]
        initiator: Vec<String>,
        /// Replace the secret of an existing user
        #[arg(long)]
        replace: bool,
        #[command(flatten)]
        rules: Rules,
    },
    /// Remove a user, and end its sessions
    Remove {
        /// Target
        #[arg(add = complete::target())]
        target: String,
        /// Name of the user
        name: String,
        #[command(flatten)]
        rules: Rules,
    },
}

/// A LUN: between the target and the volume.
fn lun(text: &str) -> Result<u16, String> {
    let number = text.parse().ok().filter(|lun| *lun <= 16_383);
    number.ok_or_else(|| {
        "a LUN is a number from 0 to 16383; the order is `lunet target map TARGET LUN VOLUME` and `lunet target unmap \
         TARGET LUN`"
            .to_owned()
    })
}

pub fn run(command: TargetCommand) -> Result<ExitCode> {
    match command {
        TargetCommand::List(ask) => {
            answer_of_all(&ask, "targets", Client::targets, |all| tables::targets(all))
        }
        TargetCommand::Create { name, alias, nvme, ask } => {
            ask.change(Change::CreateTarget { name, alias, nvme })
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
                Some(_) if rules.with.ask.place.elsewhere()?.is_some() => bail!(
                    "--secret-file names a file that the server itself reads: give the secret of another machine's lunet on \
                     standard input, as in `lunet target user add TARGET NAME < FILE`"
                ),
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
    let of = |client: &Client| {
        let mut all = client.targets()?;
        all.retain(|of| target.is_none_or(|name| of.name == name));
        Ok(all)
    };
    answer(ask, of, |all| tables::users(all))
}
