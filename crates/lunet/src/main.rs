//! The `lunet` program: reads the command line, and says in one sentence why something failed.
#![forbid(unsafe_code)]

mod cli;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use lunet::{config, log, plan, serve, units};

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
    /// Without a configuration, a sparse volume `demo` is kept under --data and served as LUN 0 of
    /// iqn.2026-11.local.lunet:demo, to this machine only. Needs no root.
    #[command(verbatim_doc_comment)]
    Serve(Serve),
    /// Check a configuration file, or let a running lunet take it over
    Config {
        #[command(subcommand)]
        command: cli::ConfigCommand,
    },
    /// Show and change the volumes of a running lunet
    Volume {
        #[command(subcommand)]
        command: cli::VolumeCommand,
    },
    /// Show and change the targets of a running lunet
    Target {
        #[command(subcommand)]
        command: cli::TargetCommand,
    },
    /// Show and change where a running lunet listens
    Portal {
        #[command(subcommand)]
        command: cli::PortalCommand,
    },
    /// Show who is connected to a running lunet, and end sessions
    Sessions(cli::Sessions),
    /// Show what a running lunet has done, for each volume
    Stats(cli::Stats),
    /// Watch a running lunet: volumes, sessions and shards, with their rates
    Top(cli::Top),
    /// Say why this machine, or a target, is slow or at risk
    ///
    /// Exit code 0: nothing found; 1: findings; 2: could not look.
    Doctor(cli::Doctor),
    /// Measure paths and LUNs side by side, and say what binds
    ///
    /// Exit code 0: all was measured; 1: not all, what there is was shown; 2: nothing was measured.
    Bench(Box<cli::Bench>),
    /// Look at this machine, and at how it is tuned
    Tune {
        #[command(subcommand)]
        command: cli::TuneCommand,
    },
}

#[derive(Args)]
struct Serve {
    /// Configuration file [default: lunet.toml in --data, if it is there]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory for volumes, identity and control socket [default: $LUNET_DATA, else ./lunet-data]
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
    /// Make the files of volumes that are new in the configuration; those that were made before are never
    /// made again
    #[arg(long)]
    create: bool,
    /// Let every machine that reaches a portal use targets that name nobody who may
    #[arg(long)]
    open: bool,
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    if let Command::Doctor(_) | Command::Bench(_) = command {
        // An address may have the user's secret in it.
        lunet::secrets::guard_memory();
    }
    let result = match command {
        Command::Serve(options) => serve::serve(&plan::Options {
            config: options.config,
            data: options.data,
            listen: options.listen,
            size: options.size,
            socket: options.socket,
            default_data: cli::data_variable(),
            create: options.create,
            open: options.open,
        })
        .map(|()| ExitCode::SUCCESS),
        Command::Config { command } => cli::config(command),
        Command::Volume { command } => cli::volume(command),
        Command::Target { command } => cli::target(command),
        Command::Portal { command } => cli::portal(command),
        Command::Sessions(options) => cli::sessions(options),
        Command::Stats(options) => cli::stats(&options),
        Command::Top(options) => cli::top(&options),
        Command::Doctor(options) => cli::doctor(&options),
        Command::Bench(options) => cli::bench(&options),
        Command::Tune { command } => cli::tune(command),
    };
    let code = result.unwrap_or_else(|error| {
        units::plain(&format!("{error:#}")).lines().for_each(log::tell);
        ExitCode::FAILURE
    });
    log::finish();
    code
}

fn demo_size(text: &str) -> Result<u64, String> {
    match units::parse_size(text)? {
        0 => Err("a volume needs at least one block".to_owned()),
        bytes if bytes % 512 != 0 => Err("must be a multiple of 512 bytes".to_owned()),
        bytes => Ok(bytes),
    }
}
