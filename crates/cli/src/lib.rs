//! The command line of lunet, and what its programs share: the commands that ask a running lunet, their answers as text, and
//! the client by which they ask.
//!
//! What only the server can do comes by [`Daemon`]: nothing here depends on the server.
#![forbid(unsafe_code)]

#[expect(missing_docs, reason = "the help of an option documents it; flattened ones have none")]
mod commands;
#[expect(missing_docs, reason = "the help of an option documents it; flattened ones have none")]
mod complete;
pub mod control;
pub mod interrupt;
pub mod job;
mod mistyped;
pub mod owner;
pub mod prompt;
mod remote;
pub mod tables;
pub mod tools;
pub mod watch;

#[expect(missing_docs, reason = "the help of an option documents it; flattened ones have none")]
mod config;
#[expect(missing_docs, reason = "the help of an option documents it; flattened ones have none")]
mod group;
#[expect(missing_docs, reason = "the help of an option documents it; flattened ones have none")]
mod portal;
#[expect(missing_docs, reason = "the help of an option documents it; flattened ones have none")]
mod sessions;
mod statistics;
#[expect(missing_docs, reason = "the help of an option documents it; flattened ones have none")]
mod target;
#[expect(missing_docs, reason = "the help of an option documents it; flattened ones have none")]
pub mod version;
#[expect(missing_docs, reason = "the help of an option documents it; flattened ones have none")]
mod volume;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser};
use control::Client;
use lunet_api::{Change, Done, SilentShard};
use lunet_config::place;
use lunet_config::units;
use lunet_iscsi::printable::{printable_json, printable_lines};
use serde::Serialize;
use zeroize::Zeroizing;

pub use commands::{
    Cli, ClientCommand, Command, Generator, SERVE_HELPER, SERVE_REST, Serve, ToolsCommand,
};
pub use complete::{Completions, answer_a_shell, asked as completion_asked};
pub use config::ConfigCommand;
pub use group::GroupCommand;
pub use mistyped::advised;
pub use portal::PortalCommand;
pub use remote::Remote;
pub use sessions::Sessions;
pub use statistics::{Stats, Verdict, interval};
pub use target::TargetCommand;
pub use version::Version;
pub use volume::VolumeCommand;

/// What the server's code does for commands that need no running server.
pub trait Daemon {
    /// Checks a configuration file as a start does, and prints what is wrong with it.
    ///
    /// # Errors
    /// The file cannot be read, or is not to be trusted.
    fn check_config(&self, file: &Path) -> Result<ExitCode>;

    /// Reads a configuration file that decides what is served: root's or this user's, which nobody else may write.
    ///
    /// # Errors
    /// The file cannot be read, or is not to be trusted.
    fn read_config(&self, file: &Path) -> Result<Zeroizing<String>>;

    /// Writes the record of a new failover group into its cluster. `shared` has the group's volumes and target. Gives what was
    /// done, as a sentence.
    ///
    /// # Errors
    /// The configuration is wrong, or the cluster refuses.
    fn create_group(
        &self,
        name: &str,
        gateways: u16,
        file: &Path,
        shared: Option<&Path>,
    ) -> Result<String>;

    /// The shared configuration of a failover group with its secrets, as the cluster has it.
    ///
    /// # Errors
    /// The configuration is wrong, or the cluster refuses.
    fn group_config(&self, name: &str, file: &Path) -> Result<Zeroizing<String>>;
}

/// Reads a command line, which a mistake in it ends, with advice.
pub fn parse<C: Parser>(words: &[OsString]) -> C {
    C::try_parse_from(words).unwrap_or_else(|error| advised(error, words, &C::command()).exit())
}

/// Runs a command.
///
/// # Errors
/// Why it failed, for people.
pub fn run(command: ClientCommand, daemon: &dyn Daemon) -> Result<ExitCode> {
    match command {
        ClientCommand::Config { command } => config::run(command, daemon),
        ClientCommand::Volume { command } => volume::run(command),
        ClientCommand::Target { command } => target::run(command),
        ClientCommand::Portal { command } => portal::run(command),
        ClientCommand::Group { command } => group::run(command, daemon),
        ClientCommand::Sessions(options) => sessions::run(options),
        ClientCommand::Stats(options) => statistics::stats(&options),
        ClientCommand::Verdict(options) => statistics::verdict(&options),
        ClientCommand::Version(options) => version::run(&options),
        ClientCommand::Completions(options) => complete::run(&options),
    }
}

/// The lines that say why a command failed. Names and words of strangers may be in them.
pub fn failure(error: &anyhow::Error) -> String {
    printable_lines(&units::plain(&format!("{error:#}"))).to_string()
}

/// Which lunet.
#[derive(Args)]
pub struct Where {
    /// Control socket of the running lunet [default: lunet.sock in --data]
    #[arg(long, value_name = "PATH", conflicts_with = "data")]
    socket: Option<PathBuf>,
    /// Data directory of the running lunet [default: $LUNET_DATA; else the lunet that runs in
    /// ./lunet-data, or the system's in /run/lunet or /var/lib/lunet]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    #[command(flatten)]
    remote: Remote,
}

/// Which lunet, and how to show its answer.
#[derive(Args)]
pub struct Ask {
    #[command(flatten)]
    place: Where,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

/// A change that may disrupt sessions.
#[derive(Args)]
pub struct Forced {
    /// Go ahead although sessions use what is removed, or others lose or gain access
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    ask: Ask,
}

/// A change of who may log in.
#[derive(Args)]
pub struct Rules {
    /// Keep sessions that the new rules would not let log in
    #[arg(long)]
    keep_sessions: bool,
    #[command(flatten)]
    with: Forced,
}

/// What cannot be undone wants a confirmation.
#[derive(Args)]
pub struct Sure {
    /// Confirm: the data that this replaces or deletes is lost
    #[arg(long)]
    yes: bool,
}

impl Sure {
    /// Refuses it otherwise.
    pub fn meant(&self, what: &str) -> Result<()> {
        if !self.yes {
            bail!("this {what}, which cannot be undone: add --yes if you mean it");
        }
        Ok(())
    }
}

/// The data directory that the environment names.
pub fn data_variable() -> Option<PathBuf> {
    std::env::var_os(place::VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from)
}

impl Where {
    /// The lunet of another machine, if one is named.
    pub fn elsewhere(&self) -> Result<Option<control::remote::Remote>> {
        let socket = self.socket.as_ref().map(|_| "--socket");
        self.remote.named(socket.or(self.data.as_ref().map(|_| "--data")))
    }

    /// The client of that lunet.
    ///
    /// # Errors
    /// None runs, or the options contradict each other.
    pub fn client(&self) -> Result<Client> {
        if let Some(remote) = self.elsewhere()? {
            return Ok(Client::remote(remote));
        }
        let variable = data_variable();
        let found =
            control::find(self.socket.as_deref(), self.data.as_deref(), variable.as_deref())?;
        Ok(Client::new(found))
    }
}

impl Ask {
    /// Has something changed, and says what was done.
    pub fn change(&self, change: Change) -> Result<ExitCode> {
        self.done(self.place.client()?.change(change)?)
    }

    /// Prints what was done, and what should be known of it.
    pub fn done(&self, done: Done) -> Result<ExitCode> {
        let code = match done.incomplete {
            true => ExitCode::from(NOT_EVERYWHERE),
            false => ExitCode::SUCCESS,
        };
        if self.json {
            print(&json_text(&done)?)?;
            return Ok(code);
        }
        print(&format!("{}\n", done.done))?;
        for note in done.notes {
            let _ = writeln!(io::stderr(), "lunet: note: {note}");
        }
        Ok(code)
    }
}

impl Rules {
    /// Has rules changed with this consent: `--force`, `--keep-sessions`.
    pub fn change(&self, change: impl FnOnce(bool, bool) -> Change) -> Result<ExitCode> {
        self.with.ask.change(change(self.with.force, self.keep_sessions))
    }
}

/// The exit code of a change that counts, and that not every gateway of a failover group serves by yet.
const NOT_EVERYWHERE: u8 = 3;

/// Asks, and prints the answer as a table or as JSON.
pub fn answer<T: Serialize>(
    ask: &Ask,
    question: impl FnOnce(&Client) -> Result<T, control::Error>,
    table: impl FnOnce(&T) -> String,
) -> Result<ExitCode> {
    let answer = question(&ask.place.client()?)?;
    print(&if ask.json { json_text(&answer)? } else { table(&answer) })?;
    Ok(ExitCode::SUCCESS)
}

/// A list, by its name, and whose part of it is missing.
#[derive(Serialize)]
struct Complete<'a, T> {
    #[serde(flatten)]
    list: BTreeMap<&'a str, &'a T>,
    silent_shards: &'a [SilentShard],
}

/// The same about what lives on all event loops: tells if one of them has not answered, and then it has not gone well.
/// In JSON the answer has this name, and `silent_shards` is beside it.
///
/// # Errors
/// The server's, or the terminal's.
pub fn answer_of_all<T: Serialize>(
    ask: &Ask,
    name: &str,
    question: impl FnOnce(&Client) -> Result<T, control::Error>,
    table: impl FnOnce(&T) -> String,
) -> Result<ExitCode> {
    let client = ask.place.client()?;
    let answer = question(&client)?;
    // Asked of whoever has just answered: one that has nothing more to say has not failed.
    let silent = client.stats().unwrap_or_default().silent_shards;
    print(&match ask.json {
        true => json_text(&Complete { list: [(name, &answer)].into(), silent_shards: &silent })?,
        false => table(&answer),
    })?;
    let Some(missing) = SilentShard::sentence(&silent) else { return Ok(ExitCode::SUCCESS) };
    eprintln!("lunet: incomplete: {missing}");
    Ok(ExitCode::FAILURE)
}

/// How many characters fit in a line of the terminal; `None` where standard output goes to a file or to
/// another program.
pub fn width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// JSON for people and programs: names in it come from the network, and steer no terminal.
pub fn json_text(answer: &impl Serialize) -> Result<String> {
    Ok(printable_json(&(serde_json::to_string_pretty(answer)? + "\n")))
}

/// Prints to standard output. A reader that has seen enough, as `head` has, is no error.
pub fn print(text: &str) -> Result<()> {
    print_more(text).map(drop)
}

/// The same; false if the reader has seen enough.
pub fn print_more(text: &str) -> Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("cannot write to standard output"),
    }
}
