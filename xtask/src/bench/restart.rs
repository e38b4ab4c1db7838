//! `xtask restart`: the longest pause of I/O over a restart, as initiators see it.
//!
//! QEMU's storage daemons, which log in by libiscsi, are the initiators. Some of them have their LUN as a file, and fio writes
//! to that and verifies what it has written, one request at a time; the others are logged in. Each restart is done twice: as
//! by a service manager that keeps the sockets of portals, and as by one that does not.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use lunet_e2e::clients::QemuLun;
use lunet_e2e::fuse::Export;
use lunet_e2e::manager::ServiceManager;
use lunet_e2e::process::{Running, leashed};
use lunet_e2e::server::{GRACE, Serve, Server, free_port, url};
use serde_json::Value;
use tempfile::TempDir;

const TARGET: &str = "iqn.2026-11.local.lunet:restart";

/// QEMU is slow with more in one process.
const IDLE_IN_ONE: usize = 100;

/// How long all of them have to log in.
const LOGINS: Duration = Duration::from_secs(60);

/// fio writes so long before and after a restart, in seconds.
const AROUND: u64 = 4;

/// Options of `xtask restart`.
#[derive(Args)]
pub struct Arguments {
    /// Number of restarts of each kind
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Number of volumes, each of 32 MiB in a file
    #[arg(long, default_value_t = 100)]
    volumes: usize,
    /// Number of sessions
    #[arg(long, default_value_t = 200)]
    sessions: usize,
    /// How many of them write and verify all the time
    #[arg(long, default_value_t = 8)]
    writing: usize,
}

/// What one restart took, in seconds.
struct Took {
    stop: f64,
    start: f64,
    pause: f64,
}

/// Runs everything and prints the times.
pub fn run(arguments: &Arguments) -> Result<()> {
    let Arguments { rounds, volumes, sessions, writing } = *arguments;
    ensure!(
        writing <= volumes && writing <= sessions,
        "a volume and a session for each that writes"
    );
    println!(
        "{volumes} volumes, {sessions} sessions of QEMU with libiscsi, {writing} of them with fio (4 KiB writes, verified); \
         loopback, client and server on one machine.\n"
    );
    println!("| sockets kept | stop | start | longest pause of I/O |\n|---|---|---|---|");
    for _ in 0..rounds {
        for keeps in [true, false] {
            let Took { stop, start, pause } = restart(arguments, keeps)?;
            let word = if keeps { "yes" } else { "no" };
            println!("| {word} | {stop:.2} s | {start:.2} s | {pause:.2} s |");
        }
    }
    Ok(())
}

fn restart(arguments: &Arguments, keeps: bool) -> Result<Took> {
    let scratch = TempDir::with_prefix("lunet-restart-")?;
    let manager = ServiceManager::new(scratch.path())?;
    let data = scratch.path().join("data");
    std::fs::create_dir(&data)?;
    let config = config(arguments.volumes, free_port()?);
    let serve = || Serve::config(config.clone()).data(&data).quiet();
    let server = manager.start(serve(), &[])?;
    let (_, kept) = manager.told("FDSTORE=1")?;
    let mut kept = Vec::from([kept.context("no socket came")?]);
    if !keeps {
        // Without a copy of it nobody listens.
        kept.clear();
    }
    let portal = server.portal().to_owned();
    let exports = (0..arguments.writing).map(|lun| Export::start(&lun_of(&portal, lun)));
    let exports = exports.collect::<Result<Vec<_>>>()?;
    let idle = log_in(&portal, arguments)?;
    all_are_in(&server, arguments.sessions)?;
    let mut fio = write(&exports)?;
    std::thread::sleep(Duration::from_secs(AROUND));
    let begun = Instant::now();
    stop(server)?;
    let stopped = Instant::now();
    let server = manager.start(serve(), &kept)?;
    let started = Instant::now();
    let pause = longest(&mut fio)?;
    all_are_in(&server, arguments.sessions)?;
    exports.into_iter().try_for_each(Export::stop)?;
    drop(idle);
    stop(server)?;
    let seconds = |from: Instant, to: Instant| (to - from).as_secs_f64();
    Ok(Took { stop: seconds(begun, stopped), start: seconds(stopped, started), pause })
}

fn stop(mut server: Server) -> Result<()> {
    let status = server.process().terminate(GRACE)?;
    ensure!(status.success(), "after SIGTERM: {status}");
    Ok(())
}

fn config(volumes: usize, port: u16) -> String {
    let names: Vec<String> = (0..volumes).map(|at| format!("v{at}")).collect();
    let mut text =
        format!("[server]\nlog-level = \"warn\"\n[[portal]]\naddress = \"127.0.0.1:{port}\"\n");
    for name in &names {
        text += &format!("[volumes.{name}]\nbackend = \"file\"\nsize = \"32MiB\"\n");
    }
    text + &format!("[[target]]\nname = \"{TARGET}\"\nluns = {names:?}\n")
}

fn lun_of(portal: &str, lun: usize) -> QemuLun {
    QemuLun::new(&url(portal, TARGET, lun as u16))
}

/// Sessions that do nothing, each of an initiator of its own.
fn log_in(portal: &str, arguments: &Arguments) -> Result<Vec<Running>> {
    let wanted: Vec<usize> = (arguments.writing..arguments.sessions).collect();
    let start = |some: &[usize]| {
        let mut command = leashed(None);
        command.arg("qemu-storage-daemon");
        for number in some {
            let lun = number % arguments.volumes;
            command.arg("--blockdev").arg(format!(
                "driver=iscsi,node-name=n{number},transport=tcp,portal={portal},target={TARGET},lun={lun},\
                 initiator-name=iqn.2026-11.org.lunet:idle-{number}"
            ));
        }
        Running::spawn(&mut command)
    };
    wanted.chunks(IDLE_IN_ONE).map(start).collect()
}

fn all_are_in(server: &Server, sessions: usize) -> Result<()> {
    let begun = Instant::now();
    loop {
        let told: Value = serde_json::from_str(&server.tell(&["sessions", "--json"])?)?;
        let found = told["sessions"].as_array().map_or(0, Vec::len);
        if found == sessions {
            return Ok(());
        }
        ensure!(begun.elapsed() < LOGINS, "{found} of {sessions} sessions");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// fio on all of these files, for long enough.
fn write(exports: &[Export]) -> Result<Running> {
    let mut command = Command::new("fio");
    command.args(["--ioengine=psync", "--direct=1", "--rw=randwrite", "--bs=4k", "--size=16m"]);
    command.args(["--time_based", "--thread", "--output-format=json", "--fallocate=none"]);
    command.args(["--verify=crc32c", "--verify_backlog=64", "--verify_fatal=1"]);
    // Else fio leaves a file behind where it was started.
    command.arg("--verify_state_save=0");
    command.arg(format!("--runtime={}", 3 * AROUND));
    for (number, export) in exports.iter().enumerate() {
        command.arg(format!("--name=w{number}")).arg("--filename").arg(export.file());
    }
    Running::spawn(&mut command)
}

/// The longest that a request has taken, in seconds, once fio has ended without an error.
fn longest(fio: &mut Running) -> Result<f64> {
    let status = fio.wait(Duration::from_secs(120))?.context("fio has not ended")?;
    let text = fio.stdout.whole_text();
    ensure!(status.success(), "fio: {status}\n{text}{}", fio.stderr.text());
    let json = text.find('{').context("fio says nothing")?;
    let told: Value = serde_json::from_str(&text[json..])?;
    let jobs = told["jobs"].as_array().context("no jobs")?;
    ensure!(jobs.iter().all(|job| job["error"] == 0), "{text}");
    let times =
        jobs.iter().flat_map(|job| ["read", "write"].map(|way| &job[way]["clat_ns"]["max"]));
    Ok(times.filter_map(Value::as_f64).fold(0.0, f64::max) / 1e9)
}
