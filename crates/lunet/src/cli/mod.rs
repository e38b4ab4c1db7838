//! The commands that speak to a running lunet, and those that look at the machine.

mod attach;
mod bench;
mod complete;
mod config;
mod doctor;
mod generator;
mod group;
mod job;
mod man;
mod mistyped;
#[cfg(test)]
mod pages;
mod parts;
mod portal;
mod prompt;
mod remote;
mod sessions;
mod support;
mod target;
mod tune;
mod version;
mod volume;
mod watch;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use lunet::control::{self, Client};
use lunet_api::{Change, Done, SilentShard};
use lunet_iscsi::printable::printable_json;
use serde::Serialize;

pub use attach::{Attach, Detach, attach, detach};
pub use bench::{Bench, run as bench};
pub use complete::{Completions, answer_a_shell, run as completions};
pub use config::{ConfigCommand, run as config};
pub use doctor::{Doctor, run as doctor};
pub use generator::{Generator, run as generate};
pub use group::{GroupCommand, run as group};
pub use man::{Man, run as man};
pub use mistyped::advised;
pub use parts::run as parts;
pub use portal::{PortalCommand, run as portal};
pub use remote::Remote;
pub use sessions::{Sessions, run as sessions};
pub use support::{Support, run as support};
pub use target::{TargetCommand, run as target};
pub use tune::{TuneCommand, run as tune};
pub use version::{Version, run as version};
pub use volume::{VolumeCommand, run as volume};
pub use watch::{Stats, Top, Verdict, stats, top, verdict};

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
    fn meant(&self, what: &str) -> Result<()> {
        if !self.yes {
            bail!("this {what}, which cannot be undone: add --yes if you mean it");
        }
        Ok(())
    }
}

/// The data directory that the environment names.
pub fn data_variable() -> Option<PathBuf> {
    std::env::var_os(control::VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from)
}

impl Where {
    /// The lunet of another machine, if one is named.
    fn elsewhere(&self) -> Result<Option<control::remote::Remote>> {
        let socket = self.socket.as_ref().map(|_| "--socket");
        self.remote.named(socket.or(self.data.as_ref().map(|_| "--data")))
    }

    fn client(&self) -> Result<Client> {
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
    fn change(&self, change: Change) -> Result<ExitCode> {
        self.done(self.place.client()?.change(change)?)
    }

    /// Prints what was done, and what should be known of it.
    fn done(&self, done: Done) -> Result<ExitCode> {
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
    fn change(&self, change: impl FnOnce(bool, bool) -> Change) -> Result<ExitCode> {
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
fn width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// JSON for people and programs: names in it come from the network, and steer no terminal.
fn json_text(answer: &impl Serialize) -> Result<String> {
    Ok(printable_json(&(serde_json::to_string_pretty(answer)? + "\n")))
}

/// Prints to standard output. A reader that has seen enough, as `head` has, is no error.
pub fn print(text: &str) -> Result<()> {
    print_more(text).map(drop)
}

/// The same; false if the reader has seen enough.
fn print_more(text: &str) -> Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("cannot write to standard output"),
    }
}
