//! `lunet bench`: measures paths by fio, LUNs and namespaces by the own initiator and host in interleaved rounds, measures what each layer can
//! carry, and names the bottleneck.
//!
//! | module | what |
//! |---|---|
//! | `given` | what the caller names |
//! | `scale` | shorter, smaller, without writes |
//! | `look` | whether it may be written to |
//! | `remote` | LUNs and namespaces, whatever protocol leads to them |
//! | `served` | one of them as a target of the runner |
//! | `control` | what a lunet server tells of its volume |
//! | `convert` | what the initiator has seen, as results |
//! | `after` | drives, protocol and what else a verdict wants to know, behind the rounds |
//! | `here` | servers on this machine |
//! | `model` | agreement with `lunet doctor --ceilings` |
//! | `curve` | what each number of shards carries |
//! | `verify` | whether a LUN or a namespace keeps what is written to it |

mod after;
mod ceilings;
mod control;
mod convert;
pub mod curve;
mod extras;
pub mod given;
pub mod here;
mod look;
pub mod model;
pub mod remote;
pub mod scale;
mod served;
pub mod verify;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use lunet_bench::fio::{self, Location};
use lunet_bench::model::{Ceiling, Command, Fact, Machine, Results, SCHEMA, Section};
use lunet_bench::profiles::Profile;
use lunet_bench::runner::{self, Generator, Local};
use lunet_bench::system::{self, Root};
use lunet_os::cpus::Cpus;

use self::control::Control;
use self::given::Given;
use self::look::Looked;
use self::remote::Logins;
use self::served::Served;
use lunet_config::units;

/// What to measure, and how.
#[derive(Debug)]
pub struct Options {
    /// Paths and LUNs, the first one is what the others are compared with.
    pub targets: Vec<Given>,
    /// What they are called in the results, each name once: see [`given::called`].
    pub names: Vec<String>,
    /// The second target is served from the place that the first one is.
    pub through: bool,
    /// What to run; the notes say how it differs from the profile of this name.
    pub profile: Profile,
    /// See [`scale::Scale::apply`].
    pub notes: Vec<String>,
    /// What may be overwritten, by the names of [`Given::name`].
    pub destroy: Vec<String>,
    /// Whether files that are not there may be made.
    pub create: bool,
    /// Where `lunet bench net serve` runs, for the network's ceiling.
    pub net: Option<SocketAddr>,
    /// A volume that stores nothing, for the protocol's ceiling.
    pub null: Option<Given>,
    /// How the own initiator and host log in.
    pub login: Logins,
    /// The processors on which the load is made; all that this process may use, if it does not matter.
    pub cpus: Option<Cpus>,
    /// Servers on this machine, if they are not those that listen at the targets' ports.
    pub servers: Vec<i32>,
    /// Control sockets of lunet servers, if they are not those of the servers on this machine.
    pub controls: Vec<PathBuf>,
    /// The options of the command line without its targets, without secrets, without `--only`.
    pub words: Vec<String>,
    /// Which workloads of the profile were asked for; all, if empty.
    pub only: Vec<String>,
}

/// How far it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What is done.
    pub what: String,
    /// The part of everything that is done, 0 to 1.
    pub done: f64,
    /// What is left, in seconds.
    pub left_s: f64,
    /// MiB/s of the last run of this target with this workload.
    pub rate: Option<f64>,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Everything was measured.
    Complete,
    /// Something is missing, for this reason; what was measured before it is in the results.
    Partial(String),
}

/// Nothing was measured, in a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

impl From<String> for Refused {
    fn from(sentence: String) -> Self {
        Self(sentence)
    }
}

/// The rounds are this part of the whole time; the rest are ceilings.
const ROUNDS_PART: f64 = 0.8;

/// Measures.
///
/// # Errors
/// A target was refused or cannot be reached: nothing was written, nothing was measured.
pub fn run(
    options: &Options,
    stop: &AtomicBool,
    told: &mut dyn FnMut(&Step),
) -> Result<(Results, End), Refused> {
    let began = Instant::now();
    let mut results = head(options);
    let looked = look::all(options, &mut results.notes).map_err(Refused)?;
    let names = options.names.clone();
    let locations = locations(&looked)?;
    let mut served = served(options, &looked, &names, stop)?;
    watch_servers(options, &mut served, &mut results.notes);
    ask_servers(options, &mut served).map_err(Refused)?;
    results.machines = vec![machine(&served)];
    told(&step("memory, processor and network", 0.0, options));
    results.ceilings = layers(options, &served, &mut results.notes);
    results.ceilings.extend(served.iter().flat_map(|one| one.limits(&options.profile.workloads)));
    let mut generators =
        generators(options, &looked, &names, &locations, &served, stop).map_err(Refused)?;
    let mut shown = |progress: &runner::Progress<'_>| told(&of_rounds(progress, options));
    let measured = runner::measure(&mut results, &options.profile, &mut generators, &mut shown);
    drop(generators);
    let end = match measured {
        Ok(()) => {
            let mut after =
                after::After { options, locations: &locations, served: &mut served, stop };
            after.measure(&names, &mut results, told)
        }
        Err(_) if results.runs.is_empty() && stop.load(Ordering::Relaxed) => {
            return Err(Refused("interrupted before anything was measured".to_owned()));
        }
        Err(error) if results.runs.is_empty() => return Err(Refused(error.to_string())),
        Err(error) => {
            after::judge(&mut results, &after::Known::default());
            End::Partial(match stop.load(Ordering::Relaxed) {
                true => format!("interrupted in round {}", error.round),
                false => error.to_string(),
            })
        }
    };
    if let End::Partial(why) = &end {
        results.notes.push(format!("Not complete: {why}."));
    }
    results.notes.extend(agreement(&served, &locations, &results));
    results.seconds = began.elapsed().as_secs_f64();
    Ok((results, end))
}

/// What can be said before anything is looked at.
fn head(options: &Options) -> Results {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let words = ["lunet", "bench"].map(str::to_owned).into_iter();
    let usual = given::names(&options.targets);
    let shown = |(one, (name, usual)): (&Given, (&String, &String))| {
        let location = match one {
            Given::Path(path) => path.display().to_string(),
            Given::Url(target) => target.shown(),
        };
        match name == usual || options.through {
            true => location,
            false => format!("{name}={location}"),
        }
    };
    let through = if options.through { Some("--through".to_owned()) } else { None };
    let named = options.targets.iter().zip(options.names.iter().zip(&usual));
    let mut targets: Vec<String> = named.map(shown).collect();
    targets.splice(1.min(targets.len())..1.min(targets.len()), through);
    let only = options.only.iter().map(|words| format!("--only={words}"));
    let line = fio::shell(words.chain(options.words.iter().cloned()).chain(only).chain(targets));
    Results {
        schema: SCHEMA,
        lunet: env!("CARGO_PKG_VERSION").to_owned(),
        started: units::date(now).replace(' ', "T") + "Z",
        notes: options.notes.clone(),
        commands: vec![Command { what: "all of it".to_owned(), line }],
        ..Results::default()
    }
}

fn locations(looked: &[Looked]) -> Result<Vec<Option<Location>>, Refused> {
    let location = |one: &Looked| match one {
        Looked::Path { path, .. } => {
            Location::new(path).map(Some).map_err(|error| Refused(error.to_string()))
        }
        Looked::Lun(..) => Ok(None),
    };
    looked.iter().map(location).collect()
}

fn served<'a>(
    options: &Options,
    looked: &[Looked],
    names: &[String],
    stop: &'a AtomicBool,
) -> Result<Vec<Served<'a>>, Refused> {
    let fill = options.profile.workloads.iter().any(lunet_bench::model::Workload::writes);
    let mut all = Vec::new();
    for (one, name) in looked.iter().zip(names) {
        let Looked::Lun(target, unit) = one else { continue };
        let mut served = Served::new(name, (**target).clone(), unit.clone(), stop);
        served.fill = fill;
        served.login = options.login.clone();
        served.cpus.clone_from(&options.cpus);
        served.options.clone_from(&options.words);
        served.fix_digests().map_err(|error| Refused(format!("{name}: {error}")))?;
        all.push(served);
    }
    Ok(all)
}

/// Whose processor time belongs to the served targets.
fn watch_servers(options: &Options, served: &mut [Served<'_>], notes: &mut Vec<String>) {
    for one in served {
        let address = one.address();
        let local = here::is_here(address.host(), address.port());
        one.servers = match (options.servers.is_empty(), local) {
            (false, _) => options.servers.clone(),
            (true, true) => here::listeners(address.port()),
            (true, false) => Vec::new(),
        };
        if one.servers.is_empty() && local {
            notes.push(format!(
                "{}: the server on this machine was not found among the processes that this user may see (a target in the \
                 kernel has none): its processor time is not in the figures. --server-pid PID names it.",
                one.name
            ));
        } else if one.servers.is_empty() {
            notes.push(format!(
                "{}: the server is another machine: its processors cannot be seen from here.",
                one.name
            ));
        }
    }
}

/// Where the servers are lunet's and may be asked, they tell limits and latencies.
///
/// # Errors
/// A socket that was named does not answer, or serves none of the targets.
fn ask_servers(options: &Options, served: &mut [Served<'_>]) -> Result<(), String> {
    for socket in &options.controls {
        let mut known = false;
        for one in served.iter_mut() {
            let found = Control::find(socket, one.unit()).map_err(|error| error.to_string())?;
            known |= found.is_some();
            one.control = found.or(one.control.take());
        }
        if !known {
            return Err(format!(
                "the server at --control {} serves none of these targets: name the socket of theirs",
                socket.display()
            ));
        }
    }
    for one in served.iter_mut().filter(|one| one.control.is_none()) {
        let sockets = one.servers.iter().flat_map(|pid| control::sockets(*pid));
        // Other servers have other sockets, which answer something else or nothing.
        let found = |socket: PathBuf| Control::find(&socket, one.unit()).ok()?;
        one.control = sockets.collect::<Vec<_>>().into_iter().find_map(found);
    }
    Ok(())
}

fn machine(served: &[Served<'_>]) -> Machine {
    let local = served.iter().any(|one| !one.servers.is_empty());
    let role = if local { "client and server" } else { "client" };
    let mut sections = system::facts(&Root::default());
    let fact = |key: &str, value: String| Fact { key: key.to_owned(), value };
    let mut software = vec![fact("lunet", env!("CARGO_PKG_VERSION").to_owned())];
    software.extend(fio::version().ok().map(|version| fact("fio", version)));
    let units = served.iter().map(|one| {
        let unit = one.unit();
        fact(&one.name, format!("{}, {}", unit.product, units::size(unit.bytes)))
    });
    software.extend(units);
    sections.push(Section { title: "software".to_owned(), facts: software });
    Machine { role: role.to_owned(), sections }
}

/// Memory and processor; and the network for each target that it can be measured for. Measured before the rounds and behind
/// them.
fn layers(options: &Options, served: &[Served<'_>], notes: &mut Vec<String>) -> Vec<Ceiling> {
    let mut all = ceilings::compute();
    let here = |one: &&Served<'_>| here::is_here(one.address().host(), one.address().port());
    let concerned: Vec<&Served<'_>> = match options.net {
        Some(_) => served.iter().collect(),
        None => served.iter().filter(here).collect(),
    };
    let remote = served.iter().find(|one| !here(one));
    if let (None, Some(remote)) = (options.net, remote) {
        let host = remote.address().host();
        notes.push(format!(
            "The network to {host} was not measured: run lunet bench net serve there, and give --net {host}."
        ));
    }
    if concerned.is_empty() {
        return all;
    }
    match ceilings::network(options.net) {
        Ok(one) => all.extend(concerned.iter().map(|served| ceilings::of(&one, &served.name))),
        Err(error) => notes.push(format!("The network was not measured: {error}.")),
    }
    all
}

/// What the runner runs, in the order of the targets.
fn generators<'a>(
    options: &Options,
    looked: &[Looked],
    names: &[String],
    locations: &'a [Option<Location>],
    served: &[Served<'a>],
    stop: &'a AtomicBool,
) -> Result<Vec<Box<dyn Generator + 'a>>, String> {
    let mut luns = served.iter();
    let mut all: Vec<Box<dyn Generator + 'a>> = Vec::new();
    for ((one, location), name) in looked.iter().zip(locations).zip(names) {
        match (one, location) {
            (Looked::Path { .. }, Some(location)) => {
                let style = options.profile.style;
                let local = Local::new(name, location, style, Vec::new(), stop);
                let cpus = options.cpus.as_ref().map(Cpus::to_string);
                all.push(Box::new(local.map_err(|error| error.to_string())?.on_cpus(cpus)));
            }
            _ => all.extend(
                luns.next().map(|lun| -> Box<dyn Generator + 'a> { Box::new(lun.clone()) }),
            ),
        }
    }
    Ok(all)
}

fn of_rounds(progress: &runner::Progress<'_>, options: &Options) -> Step {
    let what = match progress.round {
        0 => format!("{}: filling for {}", progress.target, progress.workload),
        round => format!(
            "round {round} of {}: {}, {}",
            progress.rounds, progress.target, progress.workload
        ),
    };
    let after = options.profile.seconds(options.targets.len()) * (1.0 / ROUNDS_PART - 1.0);
    Step {
        what,
        done: progress.done * ROUNDS_PART,
        left_s: progress.left_s + after,
        rate: progress.last_mib_per_s,
    }
}

/// A step outside of the rounds.
fn step(what: &str, done: f64, options: &Options) -> Step {
    let all = options.profile.seconds(options.targets.len()) / ROUNDS_PART;
    Step { what: what.to_owned(), done, left_s: all * (1.0 - done), rate: None }
}

/// What the doctor's model says to it, where the machine that it is of takes part.
fn agreement(
    served: &[Served<'_>],
    locations: &[Option<Location>],
    results: &Results,
) -> Vec<String> {
    let remote =
        served.iter().any(|one| !here::is_here(one.address().host(), one.address().port()));
    let local = locations.iter().any(Option::is_some)
        || served.iter().any(|one| here::is_here(one.address().host(), one.address().port()));
    if !local {
        return vec![
            "The model of lunet doctor --ceilings is of the machine that it runs on, and the targets are elsewhere: run it \
             there to compare."
                .to_owned(),
        ];
    }
    let facts = lunet_host::facts::facts(&lunet_host::source::Live);
    let measured = lunet_host::ceilings::measure();
    let ceilings = lunet_host::ceilings::ceilings(&facts, Some(&measured));
    // What is served from here stands on drives of this machine, or on none.
    let scope = model::Scope { drives: true, network: remote };
    model::agreement(&ceilings, results, scope)
}
