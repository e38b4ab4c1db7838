//! The `lunet` program: reads the command line, and says in one sentence why something failed.
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use lunet::control::{self, Request};
use lunet::{config, plan, serve, tables, units};
use serde_json::Value;

/// Block storage at wire speed, over iSCSI
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve volumes until SIGTERM or SIGINT
    ///
    /// Without --config, a sparse volume `demo` is kept under --data and served as LUN 0 of
    /// iqn.2026-11.local.lunet:demo, to this machine only. Needs no root.
    #[command(verbatim_doc_comment)]
    Serve(Serve),
    /// Check a configuration file
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Show who is connected to a running lunet
    Sessions(Ask),
    /// Show what a running lunet has done, for each volume
    Stats(Ask),
}

#[derive(Args)]
struct Serve {
    /// Configuration file, by custom lunet.toml
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory for volumes, identity and control socket [default: ./lunet-data]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Where to listen [default: 127.0.0.1:3260]; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", value_parser = config::parse_portal)]
    listen: Option<SocketAddr>,
    /// Size of the demo volume when it is made, as in 512MiB or 1.5TiB [default: 8GiB]
    #[arg(long, value_name = "SIZE", value_parser = demo_size, conflicts_with = "config")]
    size: Option<u64>,
    /// Control socket [default: lunet.sock in --data]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Say what is wrong with a configuration file, with line and key
    Check {
        /// The file
        file: PathBuf,
    },
}

#[derive(Args)]
struct Ask {
    /// Control socket of the running lunet [default: lunet.sock in --data]
    #[arg(long, value_name = "PATH", conflicts_with = "data")]
    socket: Option<PathBuf>,
    /// Data directory of the running lunet
    #[arg(long, value_name = "DIR", default_value = config::DEFAULT_DATA)]
    data: PathBuf,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(options) => serve::serve(&plan::Options {
            config: options.config,
            data: options.data,
            listen: options.listen,
            size: options.size,
            socket: options.socket,
        })
        .map(|()| ExitCode::SUCCESS),
        Command::Config { command: ConfigCommand::Check { file } } => check(&file),
        Command::Sessions(ask) => answer(&ask, Request::Sessions, tables::sessions),
        Command::Stats(ask) => answer(&ask, Request::Stats, tables::stats),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            // Without a place for the message there is still the exit code.
            for line in plain(&format!("{error:#}")).lines() {
                let _ = writeln!(io::stderr(), "lunet: {line}");
            }
            ExitCode::FAILURE
        }
    }
}

fn check(file: &Path) -> Result<ExitCode> {
    match plan::read_config(file) {
        Ok(config) => {
            print(&format!("{}: all right: {}", file.display(), config::summary(&config)))?;
            Ok(ExitCode::SUCCESS)
        }
        // The mistakes as compilers write them, for editors that jump to the line.
        Err(error) => {
            let wrong = error.downcast::<plan::Wrong>()?;
            let _ = writeln!(io::stderr(), "{wrong}");
            Ok(ExitCode::FAILURE)
        }
    }
}

fn answer(
    ask: &Ask,
    request: Request,
    table: fn(&Value) -> serde_json::Result<String>,
) -> Result<ExitCode> {
    let path = ask.socket.clone().unwrap_or_else(|| control::default_path(&ask.data));
    let answer = control::ask(&path, request)?;
    if ask.json {
        print(&format!("{answer:#}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let strange = "the running lunet is of another version: use that one, or --json";
    print(&table(&answer).context(strange)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints to standard output; a reader that has seen enough, as `head` has, is no error.
fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

fn demo_size(text: &str) -> Result<u64, String> {
    match units::parse_size(text)? {
        0 => Err("a volume needs at least one block".to_owned()),
        bytes if bytes % 512 != 0 => Err("must be a multiple of 512 bytes".to_owned()),
        bytes => Ok(bytes),
    }
}

/// The text without the operating system's error numbers.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut parts = text.split(" (os error ");
    out.extend(parts.next());
    for part in parts {
        out.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    out
}
