//! The commands that another program has: `lunet doctor` runs `lunet-tools doctor`, as git and cargo run their subcommands.
//!
//! What follows is that program's: it reads the same command line, with the options before the command, and its exit code is
//! the command's.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use clap::Args;
use lunet_os::program;

use crate::Remote;

/// The commands of the tools.
const COMMANDS: [&str; 8] =
    ["attach", "bench", "detach", "doctor", "man", "support", "top", "tune"];

/// Those whose exit code 1 has another meaning than failure.
const GRADED: [&str; 2] = ["bench", "doctor"];

/// The exit code of these if they did not run.
const NOT_RUN: u8 = 2;

/// The words behind such a command, which only the tools understand.
#[derive(Args)]
pub struct Tool {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// The command of the tools that a command line names, the program first: `lunet doctor`, `lunet help doctor`.
pub fn named(words: &[OsString]) -> Option<&'static str> {
    let options = Remote::augment_args(clap::Command::new("lunet"));
    let takes_value = |word: &str| {
        let name = word.strip_prefix("--");
        name.is_some_and(|name| options.get_opts().any(|option| option.get_long() == Some(name)))
    };
    let mut words = words.iter().skip(1).map_while(|word| word.to_str());
    while let Some(word) = words.next() {
        if takes_value(word) {
            words.next();
        } else if let Some(command) = COMMANDS.into_iter().find(|command| *command == word) {
            return Some(command);
        } else if word != "help" && !word.split_once('=').is_some_and(|(name, _)| takes_value(name))
        {
            return None;
        }
    }
    None
}

/// Runs the tools in place of this program, with the same command line. Comes back only if they cannot be run.
pub fn run(command: &str, words: &[OsString]) -> ExitCode {
    let error = match program::tools() {
        Ok(mut tools) => {
            let error = tools.args(words.iter().skip(1)).exec();
            refusal(&tools, &error)
        }
        Err(error) => error.to_string(),
    };
    let text = crate::failure(&anyhow::Error::msg(error));
    let _ = writeln!(io::stderr(), "lunet: {text}");
    code_of(command)
}

/// The exit code of a command line of the tools that was refused as a whole.
pub fn not_run(words: &[OsString]) -> ExitCode {
    code_of(named(words).unwrap_or_default())
}

fn code_of(command: &str) -> ExitCode {
    match GRADED.contains(&command) {
        true => ExitCode::from(NOT_RUN),
        false => ExitCode::FAILURE,
    }
}

/// Lets the tools answer a shell that asks for completions. Without the tools there are none, and no message: the user types.
pub fn complete(words: &[OsString]) -> ExitCode {
    if let Ok(mut tools) = program::tools() {
        let _ = tools.args(words.iter().skip(1)).exec();
    }
    ExitCode::SUCCESS
}

fn refusal(tools: &Command, error: &io::Error) -> String {
    let path = Path::new(tools.get_program()).display();
    match error.kind() {
        ErrorKind::PermissionDenied => format!(
            "cannot run {path}: {error}: make it executable (`chmod +x {path}`), on a file system that is mounted without noexec"
        ),
        _ => format!("cannot run {path}: {error}: install the package lunet again"),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    fn of(line: &str) -> Option<&'static str> {
        named(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn a_tool_is_found_behind_options_and_help() {
        assert_eq!(of("lunet doctor"), Some("doctor"));
        assert_eq!(of("lunet --server https://a --token-file=b tune apply"), Some("tune"));
        assert_eq!(of("lunet help bench"), Some("bench"));
        for line in [
            "lunet",
            "lunet volume list",
            "lunet help volume",
            "lunet --server doctor",
            "lunet --help doctor",
        ] {
            assert_eq!(of(line), None, "{line}");
        }
    }

    /// The list here and the commands that the help shows are the same.
    #[test]
    fn every_tool_is_a_command_and_every_such_command_a_tool() {
        let cli = Cli::command();
        let stands_for_tool = |command: &clap::Command| command.is_disable_help_flag_set();
        let mut names: Vec<&str> = cli
            .get_subcommands()
            .filter(|one| stands_for_tool(one))
            .map(clap::Command::get_name)
            .collect();
        names.sort_unstable();
        assert_eq!(names, COMMANDS);
    }
}
