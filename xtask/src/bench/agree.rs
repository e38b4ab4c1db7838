//! `xtask agree`: fio and lunet's own initiator on the same LUN, which is slow enough that neither of them is the bottleneck.
//!
//! fio speaks no iSCSI, so its way is another one: NBD over a socket of this machine to `qemu-storage-daemon`, which speaks iSCSI by
//! libiscsi. Each of these adds some time to every operation, and the more the LUN takes itself, the less does that count. With one
//! operation at a time it goes through QEMU's FUSE export and the kernel as well.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use lunet_bench::report::{iops, time};
use lunet_bench::stats::{Effect, Estimate, effect};
use lunet_client::iscsi::{Initiator, Target};
use lunet_client::{Plan, Workload};
use lunet_e2e::clients::QemuLun;
use lunet_e2e::fuse::Export;
use lunet_e2e::process::{Running, leashed};
use lunet_e2e::server::{Serve, url};
use tempfile::TempDir;

use super::fio::{self, Flow};
use super::{TARGET_CORE, loads};

const TARGET: &str = "iqn.2026-11.local.lunet:agree";
const RAMP: Duration = Duration::from_millis(300);
const LIMIT: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// Options of `xtask agree`.
#[derive(Args)]
pub struct Arguments {
    /// Number of rounds; six are the fewest that give a confidence interval
    #[arg(long, default_value_t = 6)]
    rounds: u32,
    /// Duration of each run in seconds
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Minimum latency of the LUN, written as in lunet.toml; at queue depths above 1 a random time up to as much again is added,
    /// so that operations do not complete together and queue up at every hop
    #[arg(long, default_value = "10ms")]
    delay: String,
    /// Size of each of the two volumes in MiB, in memory
    #[arg(long, default_value_t = 512)]
    size: u64,
}

/// One load.
struct Load {
    block: u32,
    reads: bool,
    depth: u32,
}

const fn load(block: u32, reads: bool, depth: u32) -> Load {
    Load { block, reads, depth }
}

/// No deeper than 16: of one connection QEMU's NBD server takes no more at a time.
const LOADS: [Load; 7] = [
    load(4 << 10, true, 16),
    load(4 << 10, false, 16),
    load(16 << 10, true, 16),
    load(64 << 10, true, 8),
    load(64 << 10, false, 8),
    load(128 << 10, true, 8),
    load(128 << 10, false, 8),
];
/// Through FUSE as well, which QEMU serves one by one.
const SINGLE: [Load; 2] = [load(4 << 10, true, 1), load(4 << 10, false, 1)];

/// Who makes the load.
enum Client<'a> {
    Own(&'a str),
    Nbd(&'a Path),
    Fuse(&'a Path),
}

impl Client<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::Own(_) => "lunet's initiator",
            Self::Nbd(_) => "fio, NBD, QEMU, libiscsi",
            Self::Fuse(_) => "fio, FUSE, QEMU, libiscsi",
        }
    }
}

/// Runs everything and prints the table.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.rounds > 0 && arguments.seconds > 0, "rounds and seconds begin at 1");
    let scratch = TempDir::with_prefix("lunet-agree-")?;
    let (size, delay) = (arguments.size * MIB, &arguments.delay);
    let config = format!(
        "[server]\nlog-level = \"warn\"\n[[portal]]\naddress = \"127.0.0.1:0\"\n\
         [volumes.spread]\nbackend = \"memory\"\nsize = {size}\n\
         layers = [{{ delay = \"{delay}\", spread = \"{delay}\" }}]\n\
         [volumes.even]\nbackend = \"memory\"\nsize = {size}\nlayers = [{{ delay = \"{delay}\" }}]\n\
         [[target]]\nname = \"{TARGET}\"\nluns = [\"spread\", \"even\"]\n"
    );
    let server =
        Serve::config(config).data(scratch.path()).core(Some(TARGET_CORE)).quiet().start()?;
    let [spread, even] = [0, 1].map(|lun| url(server.portal(), TARGET, lun));
    let [many, one] = [&spread, &even].map(|lun| QemuLun::new(lun));
    let (deep, single) =
        (Nbd::start(&many, scratch.path(), "deep")?, Nbd::start(&one, scratch.path(), "single")?);
    for lun in [&spread, &even] {
        loads::fill(lun, size)?;
    }
    let fuse = Export::start(&one)?;
    println!(
        "| load | client | IOPS | mean latency | IOPS, fio / lunet | mean latency, fio / lunet |\n|---|---|---|---|---|---|"
    );
    for load in &LOADS {
        measure(load, &[Client::Own(&spread), Client::Nbd(&deep.socket)], arguments)?;
    }
    for load in &SINGLE {
        let clients = [Client::Own(&even), Client::Nbd(&single.socket), Client::Fuse(fuse.file())];
        measure(load, &clients, arguments)?;
    }
    println!(
        "\nEach operation of the LUN takes {delay} longer, and where several are on their way, up to {delay} more at random. Medians of \
         {} interleaved rounds of {} s, in brackets 95 % confidence; ratios of pairs, with 95 % confidence.",
        arguments.rounds, arguments.seconds
    );
    fuse.stop()
}

/// All clients in turns with one load; prints their rows.
fn measure(load: &Load, clients: &[Client<'_>], arguments: &Arguments) -> Result<()> {
    let mut samples: Vec<Vec<Flow>> = clients.iter().map(|_| Vec::new()).collect();
    for round in 0..arguments.rounds as usize {
        for turn in 0..clients.len() {
            let at = (turn + round) % clients.len();
            let sample = sample(&clients[at], load, arguments)
                .with_context(|| clients[at].name().to_owned())?;
            samples[at].push(sample);
        }
    }
    for (client, found) in clients.iter().zip(&samples) {
        let own = matches!(client, Client::Own(_));
        let column = |of: fn(&Flow) -> f64, told: fn(f64) -> String| {
            let figures: Vec<f64> = found.iter().map(of).collect();
            let ratio = match own {
                true => String::new(),
                false => ratio(&samples[0].iter().map(of).collect::<Vec<_>>(), &figures),
            };
            (spread(&figures, told), ratio)
        };
        let (speed, speed_ratio) = column(|sample| sample.iops, iops);
        let (mean, mean_ratio) = column(|sample| sample.mean_us, time);
        let kind = if load.reads { "reads" } else { "writes" };
        println!(
            "| {}k random {kind}, depth {} | {} | {speed} | {mean} | {speed_ratio} | {mean_ratio} |",
            load.block >> 10,
            load.depth,
            client.name()
        );
    }
    Ok(())
}

fn spread(figures: &[f64], told: fn(f64) -> String) -> String {
    Estimate::of(figures).map_or_else(String::new, |one| {
        format!("{} ({}-{})", told(one.median), told(one.low), told(one.high))
    })
}

fn ratio(own: &[f64], fio: &[f64]) -> String {
    let pairs: Vec<(f64, f64)> = own.iter().copied().zip(fio.iter().copied()).collect();
    match effect(&pairs) {
        None => "too few rounds".to_owned(),
        Some(Effect { mean, low, high }) => {
            format!("{:.3} ({:.3}-{:.3})", mean + 1.0, low + 1.0, high + 1.0)
        }
    }
}

fn sample(client: &Client<'_>, load: &Load, arguments: &Arguments) -> Result<Flow> {
    match client {
        Client::Own(url) => own(url, load, arguments),
        Client::Nbd(socket) => {
            let uri = format!("--uri=nbd+unix:///lun?socket={}", socket.display());
            fio(load, arguments, &["--ioengine=nbd", &uri])
        }
        Client::Fuse(file) => {
            let name = format!("--filename={}", file.display());
            fio(load, arguments, &["--ioengine=psync", "--direct=1", &name])
        }
    }
}

fn own(url: &str, load: &Load, arguments: &Arguments) -> Result<Flow> {
    let workload = Workload {
        depth: load.depth,
        reads_percent: if load.reads { 100 } else { 0 },
        runtime: Some(Duration::from_secs(arguments.seconds)),
        ramp: RAMP,
        ..Workload::new(load.block)
    };
    let plan = Plan::new(Initiator::from(Target::parse(url)?), workload);
    let outcome = lunet_client::run(&plan, &AtomicBool::new(false), |_| {})?;
    let failures = outcome.failures();
    ensure!(failures.is_empty(), "{}", failures.join("; "));
    let tally = if load.reads { &outcome.work.read } else { &outcome.work.write };
    ensure!(tally.operations > 0, "it did nothing");
    Ok(Flow {
        iops: tally.operations as f64 / outcome.elapsed.as_secs_f64(),
        mean_us: tally.latency.mean().as_secs_f64() * 1e6,
    })
}

fn fio(load: &Load, arguments: &Arguments, place: &[&str]) -> Result<Flow> {
    let mut command = Command::new("fio");
    command.arg(format!("--size={}M", arguments.size)).args(place);
    command.arg(format!("--runtime={}", arguments.seconds));
    command.arg(format!("--ramp_time={}ms", RAMP.as_millis()));
    fio::random(&mut command, load.reads, load.block.into(), load.depth)
}

/// A LUN as QEMU's NBD export. The daemon is killed when dropped.
struct Nbd {
    _daemon: Running,
    socket: PathBuf,
}

impl Nbd {
    fn start(lun: &QemuLun, dir: &Path, name: &str) -> Result<Self> {
        let socket = dir.join(name);
        let mut command = leashed(None);
        command.args(["qemu-storage-daemon", "--blockdev", &format!("{lun},node-name=lun")]);
        command.arg("--nbd-server").arg(format!("addr.type=unix,addr.path={}", socket.display()));
        command.args(["--export", "type=nbd,id=e,node-name=lun,name=lun,writable=on"]);
        // Options are handled in their order: the monitor's greeting says that the export stands.
        command.args(["--chardev", "stdio,id=m", "--monitor", "chardev=m"]);
        let daemon = Running::spawn(&mut command)?;
        let greeted = daemon
            .stdout
            .find(Instant::now() + LIMIT, |text| text.contains("\"QMP\"").then_some(()));
        greeted.with_context(|| format!("no NBD export: {}", daemon.stderr.text()))?;
        Ok(Self { _daemon: daemon, socket })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_has_its_interval() {
        let own = [100.0, 101.0, 99.0, 100.0, 102.0, 98.0];
        let fio = own.map(|one| one * 0.98);
        assert_eq!(ratio(&own, &fio), "0.980 (0.980-0.980)");
        assert_eq!(ratio(&own[..3], &fio[..3]), "too few rounds");
    }
}
