//! `lunet config`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::control::Client;
use anyhow::{Context, Result, bail};
use clap::Subcommand;
use lunet_api::{Change, Preview};
use lunet_config as config;
use lunet_config::place::Layout;
use zeroize::Zeroizing;

use super::{Ask, Daemon, Forced, Remote, Rules, answer, json_text, print};
use crate::{control, tables};

/// The most copies of a file that migrations leave.
const COPIES: u32 = 99;

#[derive(Subcommand)]
pub enum ConfigCommand {
    /// Check a configuration file, and report each mistake with its line and key
    ///
    /// With --server the lunet there checks it, and says what it would change if it were applied.
    Check {
        /// Configuration file [default: that of this machine's service, /etc/lunet/lunet.toml]
        file: Option<PathBuf>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Bring a configuration file of an earlier version to the present one, and keep a copy of it
    Migrate {
        /// Configuration file [default: that of this machine's service, /etc/lunet/lunet.toml]
        file: Option<PathBuf>,
        /// Show what would change, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Make a running lunet reload its configuration file
    Apply {
        /// Show what would change and whose sessions would end, and change nothing
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        rules: Rules,
    },
    /// Print the configuration of a running lunet, without secrets
    Show(Ask),
}

pub fn run(command: ConfigCommand, daemon: &dyn Daemon) -> Result<ExitCode> {
    match command {
        ConfigCommand::Check { file, remote } => {
            let file = file.unwrap_or_else(of_service);
            match remote.named(None)? {
                Some(server) => check_there(&file, &server),
                None => daemon.check_config(&file),
            }
        }
        ConfigCommand::Migrate { file, dry_run } => {
            migrate(&file.unwrap_or_else(of_service), dry_run, daemon)
        }
        ConfigCommand::Apply { dry_run: false, rules } => {
            rules.change(|force, keep_sessions| Change::Apply { force, keep_sessions })
        }
        ConfigCommand::Apply { dry_run: true, rules } => {
            let Rules { keep_sessions, with: Forced { force, ask } } = rules;
            preview(&ask, Change::Apply { force, keep_sessions })
        }
        ConfigCommand::Show(ask) => answer(&ask, Client::config, |shown| shown.text.clone()),
    }
}

/// The configuration of this machine's service.
pub(crate) fn of_service() -> PathBuf {
    Layout::of_service(|_| None).config
}

/// Rewrites a file of an earlier version. The copy is there before the file changes.
fn migrate(file: &Path, dry_run: bool, daemon: &dyn Daemon) -> Result<ExitCode> {
    let name = file.display();
    let text = daemon.read_config(file)?;
    let failed = || format!("cannot migrate {name}");
    let Some(migrated) = config::migrate::migrate(&text).with_context(failed)? else {
        print(&format!("{name}: of version {}: nothing to do\n", config::schema::VERSION))?;
        return Ok(ExitCode::SUCCESS);
    };
    let mut told: String =
        migrated.changes.iter().map(|change| format!("{name}: {change}\n")).collect();
    if !dry_run {
        let copy = keep_copy(file, text.as_bytes()).with_context(failed)?;
        lunet_files::replace_known(file, Some(text.as_bytes()), migrated.text.as_bytes())
            .with_context(failed)?;
        told += &format!("{name}: as it was: {}\n", copy.display());
    }
    print(&told)?;
    Ok(ExitCode::SUCCESS)
}

/// Copies a file to `FILE.before`, or to `FILE.before-2` and so on where another copy is.
fn keep_copy(file: &Path, text: &[u8]) -> Result<PathBuf> {
    let name = |n: u32| {
        let mut name = file.as_os_str().to_owned();
        name.push(".before");
        if n > 1 {
            name.push(format!("-{n}"));
        }
        PathBuf::from(name)
    };
    for n in 1..=COPIES {
        let copy = name(n);
        match lunet_files::read(&copy, config::MAX_BYTES) {
            Ok(Some(there)) if there == text => return Ok(copy),
            Ok(None) => {
                lunet_files::replace_known(&copy, None, text)?;
                return Ok(copy);
            }
            Ok(Some(_)) | Err(_) => {}
        }
    }
    bail!("there are {COPIES} copies of earlier migrations: remove those beside {}", file.display())
}

/// Says what a change would do.
fn preview(ask: &Ask, change: Change) -> Result<ExitCode> {
    show(&ask.place.client()?.preview(change)?, ask.json)
}

fn show(preview: &Preview, json: bool) -> Result<ExitCode> {
    match json {
        true => print(&json_text(preview)?)?,
        false => print(&tables::preview(preview))?,
    }
    Ok(if preview.refused.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Has the lunet of another machine check a file that is on this one.
fn check_there(file: &Path, server: &control::remote::Remote) -> Result<ExitCode> {
    // There may be secrets in it.
    let text = lunet_os::fs::read_text(file, config::MAX_BYTES).map(Zeroizing::new);
    let text = text.with_context(|| format!("cannot read {}", file.display()))?;
    show(&server.check(&text)?, false)
}
