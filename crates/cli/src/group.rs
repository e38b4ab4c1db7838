//! `lunet group`

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Subcommand;
use lunet_api::SecretText;
use lunet_config as config;
use zeroize::Zeroizing;

use super::config::of_service;
use super::{Ask, Daemon, answer, print};
use crate::control::Client;
use crate::tables;

#[derive(Subcommand)]
pub enum GroupCommand {
    /// List the failover groups: what this gateway is in each, and who owns it
    List(Ask),
    /// List the gateways of a group: which are there now, what each is, and by which revision it serves
    Gateways {
        /// Its name in the configuration of the gateway that is asked
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        ask: Ask,
    },
    /// Write the record of a new group into its cluster, from the configuration of this gateway
    Create {
        /// Its name in the configuration
        #[arg(value_name = "NAME")]
        name: String,
        /// How many gateways the group may have: their numbers are 1 to N
        #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
        gateways: u16,
        /// Configuration file [default: that of this machine's service, /etc/lunet/lunet.toml]
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Volumes and target of a group with `shared = true`, which are written into the cluster
        #[arg(long, value_name = "FILE")]
        shared: Option<PathBuf>,
    },
    /// Let a group have more gateways, by the gateway that owns it: initiators see a pause
    Grow {
        /// Its name in the configuration of the gateway that is asked
        #[arg(value_name = "NAME")]
        name: String,
        /// How many gateways the group may have from then on: their numbers are 1 to N
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
        gateways: u16,
        #[command(flatten)]
        ask: Ask,
    },
    /// Show, replace or edit the configuration that the gateways of a group share, without its secrets
    Config {
        /// Its name in the configuration of the gateway that is asked
        #[arg(value_name = "NAME")]
        name: String,
        /// Replace it by this file; if that begins with the line of a revision, only that one
        #[arg(long, value_name = "FILE")]
        set: Option<PathBuf>,
        /// Edit it with $VISUAL or $EDITOR
        #[arg(long, conflicts_with = "set")]
        edit: bool,
        /// Replace it although sessions lose what they use
        #[arg(long)]
        force: bool,
        /// Show it with its secrets, as the cluster has it, which is asked by the user and keyring of the configuration file
        #[arg(long, conflicts_with_all = ["set", "edit", "force", "json"])]
        secrets: bool,
        /// Configuration file, for --secrets [default: that of this machine's service, /etc/lunet/lunet.toml]
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        #[command(flatten)]
        ask: Ask,
    },
    /// Have a group go to another gateway in good order: initiators see a pause
    Move {
        /// Its name in the configuration of the gateway that is asked
        #[arg(value_name = "NAME")]
        name: String,
        /// The number of the gateway
        #[arg(value_name = "GATEWAY", value_parser = clap::value_parser!(u16).range(1..))]
        gateway: u16,
        #[command(flatten)]
        ask: Ask,
    },
    /// Have this gateway take a group, whatever its owner does: that one is shut out of the cluster
    TakeOver {
        /// Its name in the configuration
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        ask: Ask,
    },
}

pub fn run(command: GroupCommand, daemon: &dyn Daemon) -> Result<ExitCode> {
    match command {
        GroupCommand::List(ask) => answer(&ask, Client::groups, |all| tables::groups(all)),
        GroupCommand::Gateways { name, ask } => {
            answer(&ask, |client| client.gateways(name), |all| tables::gateways(all))
        }
        GroupCommand::Create { name, gateways, config, shared } => {
            let file = config.unwrap_or_else(of_service);
            let done = daemon.create_group(&name, gateways, &file, shared.as_deref())?;
            print(&format!("{done}\n"))?;
            Ok(ExitCode::SUCCESS)
        }
        GroupCommand::Config { name, secrets: true, config, .. } => {
            print(&daemon.group_config(&name, &config.unwrap_or_else(of_service))?)?;
            Ok(ExitCode::SUCCESS)
        }
        GroupCommand::Config { name, set: Some(file), force, ask, .. } => {
            let text = SecretText::new(read(&file)?);
            ask.done(ask.place.client()?.set_group_config(name, text, force)?)
        }
        GroupCommand::Config { name, edit: true, force, ask, .. } => edit(&name, force, &ask),
        GroupCommand::Config { name, ask, .. } => {
            answer(&ask, |client| client.group_config(name), |shown| shown.text.clone())
        }
        GroupCommand::Grow { name, gateways, ask } => answer(
            &ask,
            |client| client.grow_group(name, gateways),
            |done| format!("{}\n", done.done),
        ),
        GroupCommand::Move { name, gateway, ask } => answer(
            &ask,
            |client| client.move_group(name, gateway),
            |done| format!("{}\n", done.done),
        ),
        GroupCommand::TakeOver { name, ask } => {
            answer(&ask, |client| client.take_over_group(name), |done| format!("{}\n", done.done))
        }
    }
}

/// A text with secrets.
fn read(file: &Path) -> Result<Zeroizing<String>> {
    let text = lunet_os::fs::read_text(file, config::MAX_BYTES).map(Zeroizing::new);
    text.with_context(|| format!("cannot read {}", file.display()))
}

/// Has somebody edit the configuration of a group, and writes it. What was refused stays in its file.
fn edit(name: &str, force: bool, ask: &Ask) -> Result<ExitCode> {
    let client = ask.place.client()?;
    let before = client.group_config(name.to_owned())?.text;
    let editor = ["VISUAL", "EDITOR"].iter().find_map(env::var_os);
    let editor = editor.filter(|editor| !editor.is_empty()).unwrap_or_else(|| OsString::from("vi"));
    // Nobody else may read it: there may be new secrets in it.
    let folder = env::temp_dir().join(format!("lunet-{}-{name}", std::process::id()));
    let made = fs::DirBuilder::new().mode(0o700).create(&folder);
    made.with_context(|| format!("cannot make {} for the text", folder.display()))?;
    let file = folder.join("group.toml");
    let mut made = fs::File::create_new(&file).context("cannot write the text")?;
    made.write_all(before.as_bytes()).context("cannot write the text")?;
    drop(made);
    // An editor may be a command with options, as for git.
    let mut command = Command::new("sh");
    command.arg("-c").arg("exec $0 \"$1\"").arg(&editor).arg(&file);
    let ended = command.status().context("cannot start the editor")?;
    ensure!(ended.success(), "the editor has failed: what it has left is in {}", file.display());
    let text = read(&file)?;
    if *text == before {
        fs::remove_dir_all(&folder)?;
        print("nothing was changed\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    let done = client.set_group_config(name.to_owned(), SecretText::new(text), force);
    let done = done.with_context(|| format!("your text is in {}", file.display()))?;
    fs::remove_dir_all(&folder)?;
    ask.done(done)
}
