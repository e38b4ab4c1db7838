//! `lunet bench`

mod bar;
mod compare;
mod login;
mod net;
mod output;
mod scale;
mod verify;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use crate::bench::given::{self, Access, Given};
use crate::bench::scale::Scale;
use crate::bench::{self, End, Options};
use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Subcommand, ValueEnum};
use lunet_bench::fio;
use lunet_bench::profiles::Profile;
use lunet_bench::report;
use lunet_cli::control;
use lunet_config::units::{self, Grain};
use lunet_os::cpus::Cpus;
use serde_json::json;
use signal_hook::flag;
use signal_hook::iterator::Signals;

use bar::Bar;
use login::LoginOptions;
pub use login::host_nqn;
use lunet_cli::interrupt::of_the_end;
use lunet_cli::{Remote, job, print};
use output::Page;

/// Nothing was measured.
const NOTHING: u8 = 2;
/// Not everything was measured.
const PARTIAL: u8 = 1;

/// What `lunet bench` measures.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Bench {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    measure: Measure,
}

#[derive(Subcommand)]
enum Verb {
    /// Measure the network between two machines
    Net(net::Net),
    /// Compare two files of results
    Compare(compare::Compare),
    /// Measure what each number of shards carries, on this machine over loopback
    Scale(scale::Scale),
    /// Verify that a LUN or a namespace keeps what is written to it
    Verify(verify::Verify),
}

#[derive(Args)]
struct Measure {
    /// A file, a directory, a block device (measured by fio), iscsi://[USER[%SECRET]@]HOST[:PORT][/TARGET[/LUN]], or
    /// nvme-tcp://HOST[:PORT][/NQN[/NSID]], over RDMA iser:// and nvme-rdma://; NAME= in front is its name in the results
    #[arg(value_name = "[NAME=]TARGET", required = true)]
    targets: Vec<String>,
    /// Also measure this LUN or namespace, which serves the given path, in the same rounds
    #[arg(long, value_name = "URL")]
    through: Option<String>,
    /// Workloads: quick (a minute), recipe (the fio command of the how-to in docs/tune.md), sweep (all depths and sizes)
    #[arg(long, value_enum, default_value_t = Which::Quick)]
    profile: Which,
    /// Number of rounds, 1 to 100 [default: 6, the fewest that give a confidence interval]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Duration of each run, 100ms to 1h [default: from the profile]
    #[arg(long, value_name = "TIME", value_parser = runtime)]
    runtime: Option<Duration>,
    /// Size that each job works on, such as 256MiB [default: from the profile]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// Only workloads with these words in their names; can be repeated
    #[arg(long, value_name = "WORDS")]
    only: Vec<String>,
    /// Write nothing: mixed workloads only read, write workloads are left out
    #[arg(long)]
    read_only: bool,
    /// Overwrite this target, given by name or address, although it holds data; can be repeated
    #[arg(long, value_name = "TARGET")]
    destroy: Vec<String>,
    /// Create a file at a path that does not exist, and remove it at the end
    #[arg(long)]
    create: bool,
    /// Where `lunet bench net serve` runs, to measure what the network can carry
    #[arg(long, value_name = "HOST[:PORT]", value_parser = net::address)]
    net: Option<SocketAddr>,
    /// A LUN or namespace with the null backend, to measure what the protocol can carry
    #[arg(long, value_name = "URL")]
    null: Option<String>,
    /// Run the load generator on these processors only, such as 0-3,8
    #[arg(long, value_name = "LIST")]
    cpus: Option<Cpus>,
    /// Process ID of a server on this machine, if it is not the listening process; can be repeated
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    server_pid: Vec<i32>,
    /// Control socket of the lunet that serves the target, if it is not found; can be repeated
    #[arg(long, value_name = "SOCKET")]
    control: Vec<PathBuf>,
    #[command(flatten)]
    login: LoginOptions,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
    /// Also write the results as a self-contained HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Which {
    Quick,
    Recipe,
    Sweep,
}

impl Which {
    fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Recipe => "recipe",
            Self::Sweep => "sweep",
        }
    }
}

fn runtime(text: &str) -> Result<Duration, String> {
    let time = Duration::from_millis(units::parse_whole(text, Grain::Millisecond)?);
    if !(Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&time) {
        return Err("write a time from 100ms to 1h".to_owned());
    }
    Ok(time)
}

fn size(text: &str) -> Result<u64, String> {
    match units::parse_size(text)? {
        bytes if bytes < 1 << 20 => Err("a job works on 1MiB at least".to_owned()),
        bytes if bytes % 4096 != 0 => Err("write a multiple of 4KiB".to_owned()),
        bytes => Ok(bytes),
    }
}

/// Exit code 0: everything was measured; 1: only a part, which was shown; 2: nothing.
pub fn run(options: &Bench, remote: &Remote) -> Result<ExitCode> {
    let here = || remote.only_here("this command of `lunet bench`");
    let done = match &options.verb {
        Some(Verb::Net(net)) => here().and_then(|()| net::run(net)),
        Some(Verb::Compare(compare)) => here().and_then(|()| compare::run(compare)),
        Some(Verb::Scale(scale)) => here().and_then(|()| scale::run(scale)),
        Some(Verb::Verify(verify)) => here().and_then(|()| verify::run(verify)),
        None => match remote.named(None) {
            Ok(Some(server)) => options.measure.there(&server),
            Ok(None) => measure(&options.measure),
            Err(error) => Err(error),
        },
    };
    match done {
        Err(error) => {
            say(&format!("{error:#}"));
            Ok(ExitCode::from(NOTHING))
        }
        done => done,
    }
}

/// A sentence on standard error.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "lunet: {}", units::plain(text));
}

/// Set by the first of the [signals](of_the_end) that end it; the second one ends the program at once, without what it has made.
fn stop() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let mut signals = Signals::new(of_the_end()).context("cannot catch signals")?;
    for signal in of_the_end() {
        flag::register(signal, Arc::clone(&stop)).context("cannot catch signals")?;
    }
    let impatient = move || {
        if signals.forever().nth(1).is_some() {
            fio::abandon();
            std::process::exit(PARTIAL.into());
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(impatient).context("no thread")?;
    Ok(stop)
}

fn measure(arguments: &Measure) -> Result<ExitCode> {
    let options = arguments.options()?;
    let page = arguments.html.as_deref().map(Page::check).transpose()?;
    let stop = stop()?;
    let bar = Bar::new();
    let measured = bench::run(&options, &stop, &mut |step| bar.show(step));
    bar.clear();
    let (results, end) = measured.map_err(|refused| anyhow!(refused.0))?;
    match arguments.json {
        true => print(&results.to_json())?,
        false => print(&report::table(&results, lunet_cli::width()))?,
    }
    if let Some(page) = &page {
        page.write(&report::page(&results))?;
    }
    Ok(match end {
        End::Complete => ExitCode::SUCCESS,
        End::Partial(why) => {
            say(&format!("not everything was measured: {why}"));
            ExitCode::from(PARTIAL)
        }
    })
}

impl Measure {
    /// Measures on the machine of another lunet.
    fn there(&self, server: &control::remote::Remote) -> Result<ExitCode> {
        let only_here = [
            (self.through.is_some(), "--through"),
            (self.create, "--create"),
            (self.net.is_some(), "--net"),
            (self.null.is_some(), "--null"),
            (self.cpus.is_some(), "--cpus"),
            (!self.server_pid.is_empty(), "--server-pid"),
            (!self.control.is_empty(), "--control"),
            (self.html.is_some(), "--html"),
            (!self.login.is_empty(), "options of the login"),
        ];
        if let Some((_, option)) = only_here.iter().find(|(given, _)| *given) {
            bail!(
                "a benchmark on the machine of another lunet takes no {option}: leave it out, or run `lunet bench` there"
            );
        }
        let mut options = json!({
            "targets": self.targets,
            "profile": self.profile.name(),
            "only": self.only,
            "read_only": self.read_only,
            "destroy": self.destroy,
            "text": !self.json,
        });
        let mut set = |name: &str, value: Option<u64>| {
            if let Some(value) = value {
                options[name] = value.into();
            }
        };
        set("rounds", self.rounds.map(u64::from));
        set("runtime_ms", self.runtime.map(|time| time.as_millis() as u64));
        set("size_bytes", self.size);
        job::run(server, "bench", &options)
    }

    fn options(&self) -> Result<Options> {
        // Behind an option a verb is taken for a target.
        if let Some(verb @ ("net" | "compare" | "verify")) =
            self.targets.first().map(String::as_str)
        {
            bail!(
                "{verb} is a verb and has options of its own: write it first; ./{verb} is a file"
            );
        }
        let access = self.login.access()?;
        let parse = |text: &str| Given::parse(text, &access).map_err(|error| anyhow!(error));
        let (targets, names) = self.called(&access)?;
        let null = self.null.as_deref().map(parse).transpose()?;
        if null.as_ref().is_some_and(|null| matches!(null, Given::Path(_))) {
            bail!("--null wants an address: iscsi://HOST/TARGET/LUN or nvme-tcp://HOST/NQN/NSID");
        }
        if let Some(cpus) = &self.cpus {
            cpus.check()?;
        }
        let scale = Scale {
            rounds: self.rounds,
            runtime: self.runtime,
            size: self.size,
            only: self.only.clone(),
            read_only: self.read_only,
        };
        let profile = Profile::named(self.profile.name()).context("no such profile")?;
        let (profile, notes) = scale.apply(profile)?;
        let labels: Vec<Option<&str>> =
            self.targets.iter().map(|text| given::labelled(text).ok()?.0).collect();
        let labelled = labels.iter().zip(&targets);
        let labels: Vec<_> =
            labelled.filter_map(|(label, given)| Some(((*label)?, given))).collect();
        let destroy = self.destroy.iter().map(|text| given::meant(text, &labels, &access));
        let destroy = destroy.collect();
        Ok(Options {
            through: self.through.is_some(),
            targets,
            names,
            profile,
            notes,
            destroy,
            create: self.create,
            net: self.net,
            words: self.words(null.as_ref()),
            only: self.only.clone(),
            null,
            login: self.login.login(),
            cpus: self.cpus.clone(),
            servers: self.server_pid.clone(),
            controls: self.control.clone(),
        })
    }

    /// The targets, and what they are called.
    fn called(&self, access: &Access) -> Result<(Vec<Given>, Vec<String>)> {
        let parse = |text: &str| Given::parse(text, access).map_err(|error| anyhow!(error));
        let labelled = self.targets.iter().map(|text| given::labelled(text));
        let labelled = labelled.collect::<Result<Vec<_>, _>>()?;
        let (labels, places): (Vec<_>, Vec<&str>) = labelled.into_iter().unzip();
        let mut targets = places.into_iter().map(parse).collect::<Result<Vec<_>>>()?;
        let Some(url) = self.through.as_deref().map(parse).transpose()? else {
            let names = given::called(&targets, &labels)?;
            return Ok((targets, names));
        };
        match (&targets[..], &url) {
            ([Given::Path(_)], Given::Url(_)) => targets.push(url),
            _ => bail!(
                "--through compares one path with the LUN that is served from it: lunet bench PATH --through \
                 iscsi://HOST/TARGET/LUN"
            ),
        }
        if let Some(Some(label)) = labels.first() {
            bail!("--through calls the two local and served: leave {label}= out");
        }
        Ok((targets, ["local", "served"].map(str::to_owned).to_vec()))
    }

    /// The options that make the same workloads again.
    fn words(&self, null: Option<&Given>) -> Vec<String> {
        let mut words = vec![format!("--profile={}", self.profile.name())];
        words.extend(self.rounds.map(|rounds| format!("--rounds={rounds}")));
        words.extend(self.runtime.map(|time| format!("--runtime={}ms", time.as_millis())));
        words.extend(self.size.map(|size| format!("--size={size}")));
        words.extend(self.read_only.then(|| "--read-only".to_owned()));
        words.extend(self.create.then(|| "--create".to_owned()));
        words.extend(null.map(|null| format!("--null={}", null.name())));
        words.extend(self.net.map(|net| format!("--net={net}")));
        words.extend(self.cpus.as_ref().map(|cpus| format!("--cpus={cpus}")));
        words.extend(self.login.words());
        words
    }
}

#[cfg(test)]
mod tests;
