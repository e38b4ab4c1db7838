//! `lunet completions`, and the names that a shell completes: those of the volumes and targets of the running lunet.

use std::env;
use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use crate::control::{self, Client};
use anyhow::{Context, Result};
use clap::{Args, CommandFactory};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::Shells;

use super::{data_variable, print};

/// The variable of the environment by which a shell asks for completions.
const VARIABLE: &str = "COMPLETE";

#[derive(Args)]
pub struct Completions {
    /// Shell: bash, zsh or fish
    #[arg(value_parser = ["bash", "zsh", "fish"])]
    shell: String,
}

/// The command line that a shell asks completions for, which follows `--`; none if no shell asks.
pub fn asked() -> Option<Vec<OsString>> {
    env::var_os(VARIABLE)?;
    Some(env::args_os().skip_while(|word| word != "--").skip(1).collect())
}

/// Answers a shell that asks for completions, and ends the program then.
pub fn answer_a_shell<C: CommandFactory>() {
    CompleteEnv::with_factory(C::command).var(VARIABLE).complete();
}

/// Prints what has a shell ask.
pub fn run(options: &Completions) -> Result<ExitCode> {
    let shells = Shells::builtins();
    let shell = shells.completer(&options.shell).context("this shell is not known")?;
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, "lunet", "lunet", "lunet", &mut script)?;
    print(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Completes the name of a volume.
pub fn volume() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        names(typed, |client| Ok(client.volumes()?.into_iter().map(|volume| volume.name).collect()))
    })
}

/// Completes the name of a target.
pub fn target() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        names(typed, |client| Ok(client.targets()?.into_iter().map(|target| target.name).collect()))
    })
}

/// The names that begin with what is typed. Without a running lunet there are none, and no word of it: the user types.
fn names(
    typed: &OsStr,
    all: impl Fn(&Client) -> Result<Vec<String>, control::Error>,
) -> Vec<CompletionCandidate> {
    let Some(typed) = typed.to_str() else { return Vec::new() };
    let socket = control::find(None, None, data_variable().as_deref());
    let all = socket.and_then(|socket| all(&Client::new(socket))).unwrap_or_default();
    let fits = all.into_iter().filter(|name| name.starts_with(typed));
    fits.map(CompletionCandidate::new).collect()
}
