//! `lunet-tools`: the doctor, the tuner, the benchmark, attach and what else works beside a server. `lunet` runs it for these
//! commands; both programs are of the same version.
#![forbid(unsafe_code)]

mod bench;
mod commands;
mod top;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use commands::{attach, bench as benchmark, doctor, man, parts, support, top as top_command, tune};
use lunet_cli::{Cli, Remote};
use lunet_os::program::{VERSION, VERSION_VARIABLE};

/// iSCSI and iSER target, tuner, doctor and benchmark for storage servers
#[derive(Parser)]
// Not the name of its own file: usage has to name what people run.
#[command(name = "lunet", bin_name = "lunet", version)]
struct Tools {
    #[command(flatten)]
    remote: Remote,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Find the links and drives that data passes, for the lunet that starts this
    #[command(hide = true)]
    Parts,
    /// Watch a running lunet: volumes, sessions and shards, with their rates
    Top(top_command::Top),
    /// Find out why this machine or a target is slow or at risk
    ///
    /// Exit code 0: no findings; 1: findings; 2: the checks could not be run.
    Doctor(doctor::Doctor),
    /// Measure paths and LUNs side by side, and find the bottleneck
    ///
    /// Exit code 0: everything was measured; 1: only a part, which was shown; 2: nothing.
    Bench(Box<benchmark::Bench>),
    /// Attach this machine to a disk of a target, and keep it attached
    ///
    /// The plan is shown first. What is done is written down before it is done, and `lunet detach` takes it back.
    /// Exit code 0: done, or as it was set; 1: it failed, and everything was taken back; 2: with --status, something differs.
    #[command(verbatim_doc_comment)]
    Attach(Box<attach::Attach>),
    /// Take back what `lunet attach` has done, and nothing else
    Detach(attach::Detach),
    /// Show, change and measure how this machine is tuned
    Tune {
        #[command(subcommand)]
        command: tune::TuneCommand,
    },
    /// Write what a bug report needs into a file, without secrets
    ///
    /// The configuration, the machine, what the doctor finds, statistics, sessions and the log of the
    /// service. It is a tar archive of texts that can be read first; it says what is in it.
    #[command(verbatim_doc_comment)]
    Support(support::Support),
    /// Write the manual pages
    #[command(hide = true)]
    Man(man::Man),
}

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    lunet_cli::answer_a_shell::<Tools>();
    if let Err(text) = check_version(std::env::var_os(VERSION_VARIABLE)) {
        let _ = writeln!(io::stderr(), "lunet: {text}");
        return lunet_cli::tools::not_run(&words);
    }
    let Tools { remote, command } = lunet_cli::parse(&words);
    if lunet_cli::owner::has_ended() {
        return ExitCode::FAILURE;
    }
    if let Command::Doctor(_) | Command::Bench(_) | Command::Attach(_) = command {
        // An address may have the user's secret in it.
        lunet_config::secrets::guard_memory();
    }
    let result = match command {
        Command::Parts => parts::run(),
        Command::Top(options) => top_command::run(&options),
        Command::Doctor(options) => doctor::run(&options, &remote),
        Command::Bench(options) => benchmark::run(&options, &remote),
        Command::Attach(options) => attach::attach(&options, &remote),
        Command::Detach(options) => attach::detach(&options, &remote),
        Command::Tune { command } => tune::run(command, &remote),
        Command::Support(options) => support::run(&options),
        Command::Man(options) => man::run(&options),
    };
    result.unwrap_or_else(|error| {
        for line in lunet_cli::failure(&error).lines() {
            let _ = writeln!(io::stderr(), "lunet: {line}");
        }
        ExitCode::FAILURE
    })
}

/// All commands, those of `lunet` as well, as people know them.
fn whole() -> clap::Command {
    let tools = Tools::command();
    tools.get_subcommands().fold(Cli::command(), |all, tool| {
        match all.find_subcommand(tool.get_name()).is_some() {
            true => all.mut_subcommand(tool.get_name(), |_| tool.clone()),
            false => all,
        }
    })
}

/// Refuses to work for a `lunet` of another version, whose options may mean something else.
fn check_version(expected: Option<OsString>) -> Result<(), String> {
    match expected {
        Some(other) if other != VERSION => Err(format!(
            "lunet is of version {}, and lunet-tools of version {VERSION}: install both from one package, or build both from one \
             commit",
            Path::new(&other).display()
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_refused_with_both_named() {
        assert_eq!(check_version(None), Ok(()));
        assert_eq!(check_version(Some(VERSION.into())), Ok(()));
        let text = check_version(Some("9.8.7".into())).unwrap_err();
        assert!(text.contains("9.8.7") && text.contains(VERSION), "{text}");
    }

    /// The help of `lunet` lists the tools, and each has the same words there as here.
    #[test]
    fn lunet_lists_every_tool_with_the_same_words() {
        let (lunet, tools) = (Cli::command(), Tools::command());
        let about = |command: &clap::Command| {
            let text = |text: Option<&clap::builder::StyledStr>| text.map(ToString::to_string);
            (text(command.get_about()), text(command.get_long_about()), command.is_hide_set())
        };
        for tool in tools.get_subcommands().filter(|tool| tool.get_name() != "parts") {
            let listed = lunet.find_subcommand(tool.get_name()).expect("lunet lists it");
            assert_eq!(about(listed), about(tool), "{}", tool.get_name());
        }
    }
}
