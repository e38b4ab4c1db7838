//! `xtask scale`: many LUNs and many sessions on one server, and what they cost.
//!
//! Two servers of the same configuration stand side by side. One of them gets all sessions, the other one a few: what an operation
//! costs is measured on both in turns, so that only their number differs. Everything is over loopback, the load generator runs on the
//! processors of the servers, and the sessions are its own: hosts of Linux would need as many kernels.

mod asks;
mod changes;
mod config;
mod figures;
mod gone;
mod load;
mod storm;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use lunet_e2e::nvme;
use lunet_e2e::server::{Serve, Server};
use lunet_e2e::wire::Session;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;

use crate::bench::machine;
use crate::bench::usage;
use config::Shape;
use figures::{Bound, Figures};

/// How long the sessions are watched that do nothing.
const WATCHED: Duration = Duration::from_secs(10);

/// Descriptors of a server beside those of sessions and volumes.
const OTHERS: usize = 1000;

/// Volumes in files of a server on which nothing is read.
const FEW_LUNS: usize = 100;

/// What is aimed at.
const STORM_SECONDS: f64 = 10.0;
const SESSION_KIB: f64 = 16.0;
const COST: f64 = 1.1;

/// A read that waits longer has been held up by a change.
const LONGEST_READ: f64 = 1.0;

/// Machines differ, so the run fails at twice of what is aimed at.
const SLACK: f64 = 2.0;

/// Options of `xtask scale`.
#[derive(Args)]
pub struct Arguments {
    /// Number of iSCSI sessions
    #[arg(long, default_value_t = 10_000)]
    sessions: usize,
    /// Number of controllers of NVMe/TCP, each with an admin queue and an I/O queue
    #[arg(long, default_value_t = 128)]
    controllers: usize,
    /// Number of volumes in files, each of which is a LUN; one more is in memory
    #[arg(long, default_value_t = 1000)]
    luns: usize,
    /// Number of shards
    #[arg(long, default_value_t = 8)]
    shards: usize,
    /// Number of snapshots of the volumes
    #[arg(long, default_value_t = 100_000)]
    snapshots: usize,
    /// Number of changes while reads run
    #[arg(long, default_value_t = 1000)]
    changes: usize,
    /// Number of rounds of the comparison of costs
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Duration of each run of the comparison in milliseconds
    #[arg(long, default_value_t = 700)]
    millis: u64,
    /// Directory for the volumes' files
    #[arg(long, default_value = "/var/tmp")]
    scratch: std::path::PathBuf,
    /// Directory for the file of 4 PiB, on a file system that has files of that size: not ext4
    #[arg(long, default_value = "/dev/shm")]
    large: std::path::PathBuf,
}

/// Runs everything, prints the figures, and fails if a bound is broken.
pub fn run(arguments: &Arguments) -> Result<()> {
    raise_limit(arguments)?;
    let about = machine::look()?;
    let scratch = TempDir::with_prefix_in("lunet-scale-", &arguments.scratch)?;
    let large = TempDir::with_prefix_in("lunet-scale-", &arguments.large)?;
    let shape = Shape {
        luns: arguments.luns,
        shards: arguments.shards,
        sessions: arguments.sessions,
        large: large.path().join("large.img"),
    };
    let mut figures = Figures::default();
    let few_luns = Shape { luns: arguments.luns.min(FEW_LUNS), ..shape.clone() };
    let (come_and_go, _) = start_one("gone", &few_luns, &scratch)?;
    gone::rounds(come_and_go, arguments, &mut figures)?;
    let (mut crowded, mut alone) = start(&shape, &scratch, &mut figures)?;
    asks::large(&crowded, &mut figures)?;
    asks::report_luns(&crowded, &mut figures)?;
    let mut few = storm::log_in(&alone.server, load::SPREAD)?.sessions;
    let mut many = fill(&crowded, arguments, &mut figures)?;
    storm::beside(&mut [&mut few, &mut many.sessions], || {
        let snapshots = (arguments.luns, arguments.snapshots);
        asks::snapshots(&crowded, snapshots, &mut figures)?;
        asks::all(&mut crowded, &mut alone, &mut figures)
    })?;
    let servers = [alone.server.pid(), crowded.server.pid()];
    let run = Duration::from_millis(arguments.millis);
    let how = load::How { rounds: arguments.rounds, run, luns: arguments.luns };
    load::compare(servers, [&mut few, &mut many.sessions], &how, &mut figures)?;
    changes::run(&crowded.server, &mut many.sessions, arguments.changes, &mut figures)?;
    end(crowded, alone, many, &mut figures)?;
    print!("{}{}", about.title("Many sessions, many LUNs"), figures.table());
    figures.verdict()
}

/// A server, and where its REST interface is.
pub struct Crowd {
    server: Server,
    nvme: String,
}

/// All who are logged in.
struct Everybody {
    sessions: Vec<Session>,
    hosts: Vec<nvme::Host>,
}

/// A session is a descriptor here and one of the server, which has each volume's file open once for each shard.
fn raise_limit(arguments: &Arguments) -> Result<()> {
    let files = arguments.luns * (arguments.shards + 6);
    let needed = (arguments.sessions + 2 * arguments.controllers + files + OTHERS) as u64;
    let maximum = getrlimit(Resource::Nofile).maximum;
    if maximum.is_none_or(|maximum| maximum >= needed) {
        let limit = Rlimit { current: maximum, maximum };
        return setrlimit(Resource::Nofile, limit).context("RLIMIT_NOFILE cannot be raised");
    }
    let limit = Rlimit { current: Some(needed), maximum: Some(needed) };
    setrlimit(Resource::Nofile, limit).with_context(|| {
        format!("{needed} descriptors are needed (RLIMIT_NOFILE): run it as root, or with fewer --sessions or --luns")
    })
}

/// Starts a server of this name, and tells how long it took.
fn start_one(name: &str, shape: &Shape, scratch: &TempDir) -> Result<(Crowd, Duration)> {
    let data = scratch.path().join(name);
    std::fs::create_dir(&data)?;
    let port = lunet_e2e::server::free_port()?;
    let shape = Shape { large: shape.large.with_extension(name), ..shape.clone() };
    let begun = Instant::now();
    let serve = Serve::config(shape.text(port)).data(&data).quiet();
    let server = serve.arguments(&["--listen-control", "127.0.0.1:0"]).start()?;
    let took = begun.elapsed();
    Ok((Crowd { server, nvme: format!("127.0.0.1:{port}") }, took))
}

fn start(shape: &Shape, scratch: &TempDir, figures: &mut Figures) -> Result<(Crowd, Crowd)> {
    let (crowded, first) = start_one("crowded", shape, scratch)?;
    let (alone, _) = start_one("alone", shape, scratch)?;
    let how = format!(
        "`lunet serve --create` of {} volumes up to its ready line, which makes their files",
        shape.luns + 2
    );
    figures.add("first start", first.as_secs_f64(), "s", &how, Bound::None);
    Ok((crowded, alone))
}

/// Logs everybody in, and watches what they cost.
fn fill(crowd: &Crowd, arguments: &Arguments, figures: &mut Figures) -> Result<Everybody> {
    let pid = crowd.server.pid();
    let before = usage::memory(pid)?;
    let cpu = usage::cpu_of_threads(pid)?;
    let logged_in = storm::log_in(&crowd.server, arguments.sessions)?;
    let cpu = usage::cpu_of_threads(pid)? - cpu;
    let mut sessions = logged_in.sessions;
    let how = format!(
        "{} sessions, {} of them logging in at a time, from {} addresses, to {} targets; up to the last one in its full feature phase",
        arguments.sessions,
        storm::THREADS * storm::AT_ONCE,
        storm::ADDRESSES,
        config::TARGETS
    );
    figures.add(
        "login storm",
        logged_in.took.as_secs_f64(),
        "s",
        &how,
        Bound::AtMost(STORM_SECONDS * SLACK),
    );
    figures.add(
        "logins that had to be tried again",
        logged_in.again as f64,
        "",
        "the server closed the connection, or refused the login",
        Bound::None,
    );
    let each = cpu.as_secs_f64() * 1e6 / arguments.sessions as f64;
    figures.add(
        "CPU time of a login",
        each,
        "us",
        "of the server's threads, over the storm",
        Bound::None,
    );
    sessions.iter_mut().try_for_each(|session| session.settle(0))?;
    let after = usage::memory(pid)?;
    let each = (after.rss as f64 - before.rss as f64) / arguments.sessions as f64;
    figures.add(
        "memory of an idle session",
        each,
        "KiB",
        "growth of the server's resident memory by all sessions, one TEST UNIT READY each, divided",
        Bound::AtMost(SESSION_KIB * SLACK),
    );
    let hosts = watch_hosts(crowd, arguments.controllers, figures)?;
    storm::answer_pings(&mut sessions)?;
    let cpu = usage::cpu_of_threads(pid)?;
    thread::sleep(WATCHED);
    let cpu = usage::cpu_of_threads(pid)? - cpu;
    let how = format!(
        "of the server's threads in {} s, all sessions idle; pings, default interval, are in it as they come",
        WATCHED.as_secs()
    );
    figures.add("CPU time beside idle sessions", cpu.as_secs_f64(), "s", &how, Bound::None);
    storm::answer_pings(&mut sessions)?;
    Ok(Everybody { sessions, hosts })
}

/// Controllers with an I/O queue, of as many hosts, one after another.
fn connect_hosts(crowd: &Crowd, count: usize) -> Result<Vec<nvme::Host>> {
    ensure!(count <= usize::from(u8::MAX), "at most 255 controllers");
    let connect = |number: usize| -> Result<nvme::Host> {
        let login = nvme::Login::new(&crowd.nvme, &config::subsystem(number));
        let mut host = nvme::Host::connect(&login.by(u8::try_from(number + 1)?))?;
        host.read(1, 0, 8)?;
        Ok(host)
    };
    (0..count).map(connect).collect()
}

/// The same, and what they cost.
fn watch_hosts(crowd: &Crowd, count: usize, figures: &mut Figures) -> Result<Vec<nvme::Host>> {
    let begun = Instant::now();
    let before = usage::memory(crowd.server.pid())?;
    let hosts = connect_hosts(crowd, count)?;
    let took = begun.elapsed().as_secs_f64() * 1e3 / count.max(1) as f64;
    figures.add(
        "connect of an NVMe/TCP controller",
        took,
        "ms",
        "one after another, with an I/O queue and a read, beside all sessions",
        Bound::None,
    );
    let after = usage::memory(crowd.server.pid())?;
    let each = (after.rss as f64 - before.rss as f64) / count.max(1) as f64;
    figures.add(
        "memory of an idle controller",
        each,
        "KiB",
        "as for sessions; two queues",
        Bound::None,
    );
    Ok(hosts)
}

/// Stops and starts again.
fn end(crowd: Crowd, alone: Crowd, many: Everybody, figures: &mut Figures) -> Result<()> {
    alone.server.stop()?;
    let Everybody { mut sessions, mut hosts } = many;
    storm::answer_pings(&mut sessions)?;
    for session in &mut sessions {
        session.settle(0)?;
    }
    hosts.iter_mut().try_for_each(|host| host.read(1, 0, 8).map(drop))?;
    figures.add(
        "sessions that are still there at the end",
        sessions.len() as f64,
        "",
        "each has answered a command",
        Bound::None,
    );
    drop(hosts);
    let logout = Instant::now();
    let count = sessions.len();
    sessions.into_iter().try_for_each(Session::logout)?;
    let each = logout.elapsed().as_secs_f64() * 1e6 / count as f64;
    figures.add("logout", each, "us", "one after another", Bound::None);
    let data = crowd.server.data().to_owned();
    let begun = Instant::now();
    crowd.server.stop()?;
    figures.add(
        "stop",
        begun.elapsed().as_secs_f64(),
        "s",
        "SIGTERM to the end, no sessions",
        Bound::None,
    );
    let begun = Instant::now();
    let own = data.join("lunet.toml");
    let serve = Serve::default().data(&data).quiet();
    let path = own.to_str().context("the directory's name is not UTF-8")?;
    let server = serve.arguments(&["--config", path]).start()?;
    figures.add(
        "start",
        begun.elapsed().as_secs_f64(),
        "s",
        "`lunet serve` up to its ready line, the volumes' files are there",
        Bound::None,
    );
    server.stop()?;
    Ok(())
}
