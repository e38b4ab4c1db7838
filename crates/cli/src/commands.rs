//! The command line of `lunet`: its commands and options.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use lunet_config::{self as config, units};

use crate::tools::Tool;
use crate::{
    Completions, ConfigCommand, GroupCommand, PortalCommand, Remote, Sessions, Stats,
    TargetCommand, Verdict, Version, VolumeCommand,
};

/// The hidden command of the REST interface's process.
pub const SERVE_REST: &str = "serve-rest";

/// The hidden command of the helper.
pub const SERVE_HELPER: &str = "serve-helper";

/// iSCSI and iSER target, tuner, doctor and benchmark for storage servers
#[derive(Parser)]
#[command(name = "lunet", version)]
pub struct Cli {
    /// Which lunet.
    #[command(flatten)]
    pub remote: Remote,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of `lunet`.
#[derive(Subcommand)]
pub enum Command {
    /// Serve volumes until SIGTERM or SIGINT
    ///
    /// Without a configuration, a sparse volume `demo` is made in --data and served as LUN 0 of
    /// iqn.2026-11.local.lunet:demo, to this machine only. Root is not needed.
    #[command(verbatim_doc_comment)]
    Serve(Serve),
    /// Serve the REST interface of the lunet that starts this
    #[command(name = SERVE_REST, hide = true)]
    ServeRest,
    /// Do for the lunet that starts this what it may not do itself
    #[command(name = SERVE_HELPER, hide = true)]
    ServeHelper,
    /// Write a drop-in of lunet.service from the configuration, for systemd
    #[command(hide = true)]
    SystemdGenerator(Generator),
    /// Those that ask a running lunet, or this machine's files.
    #[command(flatten)]
    Client(ClientCommand),
    /// Those of the tools.
    #[command(flatten)]
    Tools(ToolsCommand),
}

/// The commands that ask a running lunet, or look at its files.
#[derive(Subcommand)]
pub enum ClientCommand {
    /// Check, reload or show the configuration
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Show and change the volumes of a running lunet
    Volume {
        #[command(subcommand)]
        command: VolumeCommand,
    },
    /// Show and change the targets of a running lunet
    Target {
        #[command(subcommand)]
        command: TargetCommand,
    },
    /// Show and change the portals of a running lunet
    Portal {
        #[command(subcommand)]
        command: PortalCommand,
    },
    /// Show and move the failover groups that a running lunet is a gateway of
    Group {
        #[command(subcommand)]
        command: GroupCommand,
    },
    /// Show and end the sessions of a running lunet
    Sessions(Sessions),
    /// Show the statistics of a running lunet, by volume
    Stats(Stats),
    /// Say what binds a running lunet now: storage, a limit, network, shards, or the initiators
    Verdict(Verdict),
    /// Show the version, and with --json what was built in
    Version(Version),
    /// Print the script by which a shell completes commands, and the names of volumes and targets
    #[command(hide = true)]
    Completions(Completions),
}

/// The commands of the [tools](crate::tools), as the help lists them.
#[derive(Subcommand)]
pub enum ToolsCommand {
    /// Watch a running lunet: volumes, sessions and shards, with their rates
    #[command(disable_help_flag = true)]
    Top(Tool),
    /// Find out why this machine or a target is slow or at risk
    ///
    /// Exit code 0: no findings; 1: findings; 2: the checks could not be run.
    #[command(disable_help_flag = true)]
    Doctor(Tool),
    /// Measure paths and LUNs side by side, and find the bottleneck
    ///
    /// Exit code 0: everything was measured; 1: only a part, which was shown; 2: nothing.
    #[command(disable_help_flag = true)]
    Bench(Tool),
    /// Attach this machine to a disk of a target, and keep it attached
    ///
    /// The plan is shown first. What is done is written down before it is done, and `lunet detach` takes it back.
    /// Exit code 0: done, or as it was set; 1: it failed, and everything was taken back; 2: with --status, something differs.
    #[command(verbatim_doc_comment)]
    #[command(disable_help_flag = true)]
    Attach(Tool),
    /// Take back what `lunet attach` has done, and nothing else
    #[command(disable_help_flag = true)]
    Detach(Tool),
    /// Show, change and measure how this machine is tuned
    #[command(disable_help_flag = true)]
    Tune(Tool),
    /// Write what a bug report needs into a file, without secrets
    ///
    /// The configuration, the machine, what the doctor finds, statistics, sessions and the log of the
    /// service. It is a tar archive of texts that can be read first; it says what is in it.
    #[command(verbatim_doc_comment)]
    #[command(disable_help_flag = true)]
    Support(Tool),
    /// Write the manual pages
    #[command(hide = true)]
    #[command(disable_help_flag = true)]
    Man(Tool),
}

impl ToolsCommand {
    /// The command's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Top(_) => "top",
            Self::Doctor(_) => "doctor",
            Self::Bench(_) => "bench",
            Self::Attach(_) => "attach",
            Self::Detach(_) => "detach",
            Self::Tune(_) => "tune",
            Self::Support(_) => "support",
            Self::Man(_) => "man",
        }
    }
}

/// The options of `lunet serve`.
#[derive(Args)]
pub struct Serve {
    /// Configuration file [default: lunet.toml in --data, if it exists; with --service /etc/lunet/lunet.toml]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Directory for volumes, identity and control socket [default: $LUNET_DATA, else ./lunet-data]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Address to listen on [default: 127.0.0.1:3260]; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", value_parser = config::parse_portal)]
    pub listen: Option<SocketAddr>,
    /// Address to listen on for NVMe over TCP [default: 127.0.0.1:4420, or none with --listen]; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", value_parser = listen_nvme)]
    pub listen_nvme: Option<SocketAddr>,
    /// Address of the REST interface and the page [default: 127.0.0.1:3261, or none with --listen]; port 0 takes a free
    /// one, `none` is none
    #[arg(long, value_name = "ADDR:PORT|none", value_parser = config::parse_control_option)]
    pub listen_control: Option<config::ControlAt>,
    /// Size of the demo volume when it is created, such as 512MiB or 1.5TiB [default: 8GiB]
    #[arg(long, value_name = "SIZE", value_parser = demo_size, conflicts_with = "config")]
    pub size: Option<u64>,
    /// Control socket [default: lunet.sock in --data]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Create the files of volumes that are new in the configuration; files that lunet has created before
    /// are never created again
    #[arg(long)]
    pub create: bool,
    /// Let every initiator use targets that have no access list, not only those on this machine
    #[arg(long)]
    pub open: bool,
    /// Serve as this machine's service: configuration /etc/lunet/lunet.toml, data /var/lib/lunet, control socket
    /// /run/lunet/lunet.sock, unless the service manager or the configuration names others
    #[arg(long)]
    pub service: bool,
    /// User to become before anything is read: the data directory and the configuration are that user's. Root starts it
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
}

/// The options of `lunet systemd-generator`.
#[derive(Args)]
pub struct Generator {
    /// Directory for units that stand behind those of the administrator; systemd gives two more
    #[arg(num_args = 1..=3, required = true, value_name = "DIR")]
    pub directories: Vec<PathBuf>,
    /// Configuration of the service
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// List of the devices that the service may open
    #[arg(long, value_name = "FILE", default_value = "/etc/lunet-devices.conf")]
    pub devices: PathBuf,
    /// Table of file systems
    #[arg(long, value_name = "FILE", default_value = "/etc/fstab")]
    pub fstab: PathBuf,
}

/// An address at which namespaces are to be reached: no option can name a portal for a subsystem.
fn listen_nvme(text: &str) -> Result<SocketAddr, String> {
    let address = config::parse_nvme_portal(text)?;
    match config::is_for_discovery(address) {
        true => Err(format!(
            "port {} is for discovery, and no host could connect to a subsystem there: use another one, such as 4420",
            address.port()
        )),
        false => Ok(address),
    }
}

fn demo_size(text: &str) -> Result<u64, String> {
    match units::parse_size(text)? {
        0 => Err("a volume needs at least one block".to_owned()),
        bytes if bytes % 512 != 0 => Err("must be a multiple of 512 bytes".to_owned()),
        bytes => Ok(bytes),
    }
}
