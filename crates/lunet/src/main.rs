//! The `lunet` program: reads the command line, and says in one sentence why something failed.
#![forbid(unsafe_code)]

mod cli;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};
use lunet::control::{JOB_VARIABLE, Layout};
use lunet::{config, log, plan, serve, units};
use lunet_iscsi::printable::printable_lines;
use rustix::process::{
    Resource, Rlimit, Signal, getppid, getrlimit, set_parent_process_death_signal, setrlimit,
};

/// iSCSI and iSER target, tuner, doctor and benchmark for storage servers
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    remote: cli::Remote,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve volumes until SIGTERM or SIGINT
    ///
    /// Without a configuration, a sparse volume `demo` is made in --data and served as LUN 0 of
    /// iqn.2026-11.local.lunet:demo, to this machine only. Root is not needed.
    #[command(verbatim_doc_comment)]
    Serve(Serve),
    /// Serve the REST interface of the lunet that starts this
    #[cfg(feature = "control")]
    #[command(name = lunet::rest::COMMAND, hide = true)]
    ServeRest,
    /// Find the links and drives that data passes, for the lunet that starts this
    #[command(name = lunet::parts::COMMAND, hide = true)]
    Parts,
    /// Do for the lunet that starts this what it may not do itself
    #[command(name = lunet::helper::COMMAND, hide = true)]
    ServeHelper,
    /// Check, reload or show the configuration
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
    /// Show and change the portals of a running lunet
    Portal {
        #[command(subcommand)]
        command: cli::PortalCommand,
    },
    /// Show and move the failover groups that a running lunet is a gateway of
    Group {
        #[command(subcommand)]
        command: cli::GroupCommand,
    },
    /// Show and end the sessions of a running lunet
    Sessions(cli::Sessions),
    /// Show the statistics of a running lunet, by volume
    Stats(cli::Stats),
    /// Watch a running lunet: volumes, sessions and shards, with their rates
    Top(cli::Top),
    /// Say what binds a running lunet now: storage, a limit, network, shards, or the initiators
    Verdict(cli::Verdict),
    /// Find out why this machine or a target is slow or at risk
    ///
    /// Exit code 0: no findings; 1: findings; 2: the checks could not be run.
    Doctor(cli::Doctor),
    /// Measure paths and LUNs side by side, and find the bottleneck
    ///
    /// Exit code 0: everything was measured; 1: only a part, which was shown; 2: nothing.
    Bench(Box<cli::Bench>),
    /// Attach this machine to a disk of a target, and keep it attached
    ///
    /// The plan is shown first. What is done is written down before it is done, and `lunet detach` takes it back.
    /// Exit code 0: done, or as it was set; 1: it failed, and everything was taken back; 2: with --status, something differs.
    #[command(verbatim_doc_comment)]
    Attach(Box<cli::Attach>),
    /// Take back what `lunet attach` has done, and nothing else
    Detach(cli::Detach),
    /// Show, change and measure how this machine is tuned
    Tune {
        #[command(subcommand)]
        command: cli::TuneCommand,
    },
    /// Show the version, and with --json what was built in
    Version(cli::Version),
    /// Write what a bug report needs into a file, without secrets
    ///
    /// The configuration, the machine, what the doctor finds, statistics, sessions and the log of the
    /// service. It is a tar archive of texts that can be read first; it says what is in it.
    #[command(verbatim_doc_comment)]
    Support(cli::Support),
    /// Print the script by which a shell completes commands, and the names of volumes and targets
    #[command(hide = true)]
    Completions(cli::Completions),
    /// Write the manual pages
    #[command(hide = true)]
    Man(cli::Man),
    /// Write a drop-in of lunet.service from the configuration, for systemd
    #[command(hide = true)]
    SystemdGenerator(cli::Generator),
}

#[derive(Args)]
struct Serve {
    /// Configuration file [default: lunet.toml in --data, if it exists; with --service /etc/lunet/lunet.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory for volumes, identity and control socket [default: $LUNET_DATA, else ./lunet-data]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Address to listen on [default: 127.0.0.1:3260]; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", value_parser = config::parse_portal)]
    listen: Option<SocketAddr>,
    /// Address to listen on for NVMe over TCP [default: 127.0.0.1:4420, or none with --listen]; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", value_parser = listen_nvme)]
    listen_nvme: Option<SocketAddr>,
    /// Address of the REST interface and the page [default: 127.0.0.1:3261, or none with --listen]; port 0 takes a free
    /// one, `none` is none
    #[cfg(feature = "control")]
    #[arg(long, value_name = "ADDR:PORT|none", value_parser = config::parse_control_option)]
    listen_control: Option<config::ControlAt>,
    /// Size of the demo volume when it is created, such as 512MiB or 1.5TiB [default: 8GiB]
    #[arg(long, value_name = "SIZE", value_parser = demo_size, conflicts_with = "config")]
    size: Option<u64>,
    /// Control socket [default: lunet.sock in --data]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Create the files of volumes that are new in the configuration; files that lunet has created before
    /// are never created again
    #[arg(long)]
    create: bool,
    /// Let every initiator use targets that have no access list, not only those on this machine
    #[arg(long)]
    open: bool,
    /// Serve as this machine's service: configuration /etc/lunet/lunet.toml, data /var/lib/lunet, control socket
    /// /run/lunet/lunet.sock, unless the service manager or the configuration names others
    #[arg(long)]
    service: bool,
    /// User to become before anything is read: the data directory and the configuration are that user's. Root starts it
    #[arg(long, value_name = "USER")]
    user: Option<String>,
}

impl Serve {
    fn plan(self) -> plan::Options {
        plan::Options {
            config: self.config,
            data: self.data,
            listen: self.listen,
            listen_nvme: self.listen_nvme,
            #[cfg(feature = "control")]
            listen_control: self.listen_control,
            #[cfg(not(feature = "control"))]
            listen_control: None,
            size: self.size,
            socket: self.socket,
            default_data: cli::data_variable(),
            create: self.create,
            open: self.open,
            service: self.service.then(|| Layout::of_service(|name| std::env::var_os(name))),
            user: self.user,
        }
    }
}

fn main() -> ExitCode {
    cli::answer_a_shell::<Cli>();
    let Cli { remote, command } = Cli::try_parse().unwrap_or_else(|error| {
        let words: Vec<_> = std::env::args_os().collect();
        cli::advised(error, &words, &Cli::command()).exit()
    });
    if is_nobodys() {
        return ExitCode::FAILURE;
    }
    if let Command::Doctor(_) | Command::Bench(_) | Command::Attach(_) = command {
        // An address may have the user's secret in it.
        lunet::secrets::guard_memory();
    }
    let result = match command {
        Command::Serve(options) => remote
            .only_here("`lunet serve`")
            .and_then(|()| serve::serve(&options.plan()))
            .map(|()| ExitCode::SUCCESS),
        #[cfg(feature = "control")]
        Command::ServeRest => lunet::rest::run().map(|()| ExitCode::SUCCESS),
        Command::Parts => cli::parts(),
        Command::ServeHelper => lunet::helper::run().map(|()| ExitCode::SUCCESS),
        Command::Config { command } => cli::config(command),
        Command::Volume { command } => cli::volume(command),
        Command::Target { command } => cli::target(command),
        Command::Portal { command } => cli::portal(command),
        Command::Group { command } => cli::group(command),
        Command::Sessions(options) => cli::sessions(options),
        Command::Stats(options) => cli::stats(&options),
        Command::Top(options) => cli::top(&options),
        Command::Verdict(options) => cli::verdict(&options),
        Command::Doctor(options) => cli::doctor(&options, &remote),
        Command::Bench(options) => cli::bench(&options, &remote),
        Command::Attach(options) => cli::attach(&options, &remote),
        Command::Detach(options) => cli::detach(&options, &remote),
        Command::Tune { command } => cli::tune(command, &remote),
        Command::Version(options) => cli::version(&options),
        Command::Support(options) => cli::support(&options),
        Command::Completions(options) => cli::completions(&options),
        Command::Man(options) => cli::man::<Cli>(&options),
        Command::SystemdGenerator(options) => cli::generate(&options),
    };
    let code = result.unwrap_or_else(|error| {
        // Names and words of strangers may stand in it.
        printable_lines(&units::plain(&format!("{error:#}"))).lines().for_each(log::fail);
        ExitCode::FAILURE
    });
    log::finish();
    code
}

/// True of a job whose interface has ended. One whose interface ends later is told to end.
fn is_nobodys() -> bool {
    let of: Option<i32> = std::env::var(JOB_VARIABLE).ok().and_then(|text| text.parse().ok());
    let Some(of) = of else { return false };
    // A job has a use for more memory than the interface. Best effort: it may have what there is.
    let limit = getrlimit(Resource::Data);
    let _ = setrlimit(Resource::Data, Rlimit { current: limit.maximum, ..limit });
    // Best effort: without it, a job goes on for nobody.
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
    // What a job itself has started has another parent.
    let is_own = getppid().is_some_and(|parent| parent.as_raw_nonzero().get() == of);
    let stat = std::fs::read_to_string(format!("/proc/{of}/stat")).unwrap_or_default();
    !is_own && (stat.is_empty() || stat.contains(") Z "))
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
