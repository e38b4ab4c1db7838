//! What is planted, and what the verdict has to name.

use std::any::Any;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use lunet_e2e::data::scratch;
use lunet_e2e::process::{Running, leashed};
use lunet_e2e::server::{Serve, Server, url};
use tempfile::TempDir;

use super::Planted;
use super::group::Group;
use super::net::{self, Wire};
use super::relay::Relay;

const TARGET: &str = "iqn.2026-11.local.lunet:planted";
const CLIENT_CORE: &str = "0";
const SERVER_CORE: usize = 1;

/// A load: the profile that has it, and its name there, as `--read-only` leaves it.
pub struct Load {
    /// `--profile`.
    pub profile: &'static str,
    /// `--only`.
    pub name: &'static str,
}

const SMALL: Load = Load { profile: "quick", name: "4k random reads, depth 32" };
const LARGE: Load = Load { profile: "quick", name: "128k random reads, depth 32" };
const ALONE: Load = Load { profile: "quick", name: "4k random reads, depth 1" };
/// A depth of 32 leaves a server time between one client's turns.
const MANY: Load = Load { profile: "sweep", name: "4k random reads, depth 32, 8 jobs" };

/// A bottleneck.
pub struct Case {
    /// For `--only`.
    pub name: &'static str,
    /// For the table.
    pub planted: &'static str,
    /// The same, as somebody else would do it.
    pub how: &'static str,
    /// The load that shows it.
    pub workload: Load,
    /// `bound` of the verdict.
    pub bounds: &'static [&'static str],
    /// What the name of the layer has to say besides.
    pub whose: &'static str,
    /// Does it.
    pub plant: fn() -> Result<Planted>,
}

/// All of them.
pub const CASES: &[Case] = &[
    Case {
        name: "slow drive",
        planted: "a drive that takes 4 ms",
        how: "layer `delay = \"4ms\"` of the volume",
        workload: SMALL,
        bounds: &["drive-latency"],
        whose: "",
        plant: || served("layers = [{ delay = \"4ms\" }]", &[]),
    },
    Case {
        name: "throttled drive",
        planted: "a drive that reads 2,000 times a second",
        how: "a directory, fio in a control group (`blkio.throttle`, `io.max`)",
        workload: SMALL,
        bounds: &["drive"],
        whose: "",
        plant: throttled_drive,
    },
    Case {
        name: "limit of bytes",
        planted: "a limit of 40 MiB/s",
        how: "layer `limit = \"40MiB\"`",
        workload: LARGE,
        bounds: &["limit"],
        whose: "",
        plant: || served("layers = [{ limit = \"40MiB\" }]", &[]),
    },
    Case {
        name: "limit of operations",
        planted: "a limit of 3,000 reads a second",
        how: "layer `iops = 3000`",
        workload: SMALL,
        bounds: &["limit"],
        whose: "",
        plant: || served("layers = [{ iops = 3000, on = \"read\" }]", &[]),
    },
    Case {
        name: "narrow network",
        planted: "a network of 400 Mbit/s",
        how: "two network namespaces, `tc qdisc ... tbf`, `--net`",
        workload: LARGE,
        bounds: &["network"],
        whose: "",
        plant: narrow_network,
    },
    Case {
        name: "far network",
        planted: "a network with a round trip of 8 ms",
        how: "a relay that holds every byte for 4 ms, `--net`",
        workload: SMALL,
        bounds: &["network-latency"],
        whose: "",
        plant: far_network,
    },
    Case {
        name: "quota of the server",
        planted: "15 % of a processor for the server",
        how: "control group (`cpu.cfs_quota_us`, `cpu.max`)",
        workload: SMALL,
        bounds: &["quota"],
        whose: "server",
        plant: server_quota,
    },
    Case {
        name: "quota of the client",
        planted: "10 % of a processor for the client",
        how: "the same",
        workload: SMALL,
        bounds: &["quota"],
        whose: "client",
        plant: client_quota,
    },
    Case {
        name: "busy server",
        planted: "a server of one thread",
        how: "one shard on one processor, 8 sessions from another one",
        workload: MANY,
        bounds: &["server-cpu"],
        whose: "",
        plant: busy_server,
    },
    Case {
        name: "busy client",
        planted: "a load generator of one thread",
        how: "fio on a directory in memory",
        workload: SMALL,
        bounds: &["client-cpu"],
        whose: "",
        plant: busy_client,
    },
    Case {
        name: "busy machine",
        planted: "other programs on all processors",
        how: "three busy loops for each processor",
        workload: SMALL,
        bounds: &["machine-cpu"],
        whose: "",
        plant: busy_machine,
    },
    Case {
        name: "queue depth",
        planted: "one operation at a time",
        how: "depth 1",
        workload: ALONE,
        bounds: &["queue-depth"],
        whose: "",
        plant: || served("", &[]),
    },
    Case {
        name: "digest",
        planted: "CRC32C of all data",
        how: "`--digest data`",
        workload: LARGE,
        bounds: &["digest"],
        whose: "",
        plant: || served("", &["--digest", "data"]),
    },
    Case {
        name: "window",
        planted: "4 commands at a time in one session",
        how: "`[iscsi] queue-depth = 4` and `delay = \"1ms\"`",
        workload: SMALL,
        bounds: &["single-session"],
        whose: "",
        plant: window,
    },
    Case {
        name: "protocol",
        planted: "nothing but the protocol",
        how: "a volume that stores nothing, measured against itself (`--null`)",
        workload: MANY,
        // Where storage and network cost nothing, a processor carries the protocol.
        bounds: &["protocol", "server-cpu"],
        whose: "",
        plant: protocol,
    },
];

/// A configuration with one volume in memory of this name's options, as LUN 0, and one that stores nothing, as LUN 1.
fn config(server: &str, volume: &str, listen: &str) -> String {
    format!(
        "[server]\nlog-level = \"warn\"\n{server}\n[[portal]]\naddress = \"{listen}:0\"\n\
         [volumes.mem]\nbackend = \"memory\"\nsize = \"64MiB\"\n{volume}\n\
         [volumes.null]\nbackend = \"null\"\nsize = \"64MiB\"\n\
         [[target]]\nname = \"{TARGET}\"\nluns = [\"mem\", \"null\"]\n"
    )
}

fn start(server: &str, volume: &str, core: Option<usize>) -> Result<Server> {
    Serve::config(config(server, volume, "127.0.0.1")).core(core).quiet().start()
}

fn lun(server: &Server, number: u16) -> String {
    url(server.portal(), TARGET, number)
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn planted(before: Vec<String>, arguments: &[&str], guards: Vec<Box<dyn Any>>) -> Planted {
    Planted { before, arguments: words(arguments), _guards: guards }
}

/// A volume in memory with these keys, measured with these options.
fn served(volume: &str, options: &[&str]) -> Result<Planted> {
    let server = start("", volume, None)?;
    let target = lun(&server, 0);
    let arguments = [&[target.as_str(), "--read-only"], options].concat();
    Ok(planted(Vec::new(), &arguments, vec![Box::new(server)]))
}

fn throttled_drive() -> Result<Planted> {
    let dir = scratch("lunet-planted-")?;
    let group = Group::reads(dir.path(), 2000)?;
    let place = dir.path().to_str().context("the directory's name is not UTF-8")?.to_owned();
    Ok(planted(group.words(), &[&place], vec![Box::new(group), Box::new(dir)]))
}

fn narrow_network() -> Result<Planted> {
    let wire = Wire::new(400)?;
    let there = wire.words();
    let serve = Serve::config(config("", "", &wire.address())).quiet();
    let server = serve.by(&[&there[0], &there[1]]).start()?;
    let (net, place) = net::serve(&there, &wire.address())?;
    let (target, pid) = (lun(&server, 0), server.pid().to_string());
    let arguments = [&target, "--read-only", "--net", &place, "--server-pid", &pid];
    Ok(planted(Vec::new(), &arguments, vec![Box::new(server), Box::new(net), Box::new(wire)]))
}

fn far_network() -> Result<Planted> {
    let one_way = Duration::from_millis(4);
    let server = start("", "", None)?;
    let (net, place) = net::serve(&[], "127.0.0.1")?;
    let (near, there) = (Relay::start(server.portal(), one_way)?, Relay::start(&place, one_way)?);
    let (target, pid) = (url(&near.address(), TARGET, 0), server.pid().to_string());
    let there_at = there.address();
    let arguments = [&target, "--read-only", "--net", &there_at, "--server-pid", &pid];
    let guards: Vec<Box<dyn Any>> =
        vec![Box::new(near), Box::new(there), Box::new(server), Box::new(net)];
    Ok(planted(Vec::new(), &arguments, guards))
}

fn server_quota() -> Result<Planted> {
    let group = Group::processor(0.15)?;
    let server = start("", "", None)?;
    group.take(server.pid())?;
    let target = lun(&server, 0);
    Ok(planted(Vec::new(), &[&target, "--read-only"], vec![Box::new(server), Box::new(group)]))
}

fn client_quota() -> Result<Planted> {
    let group = Group::processor(0.1)?;
    let server = start("", "", None)?;
    let target = lun(&server, 0);
    Ok(planted(group.words(), &[&target, "--read-only"], vec![Box::new(server), Box::new(group)]))
}

fn busy_server() -> Result<Planted> {
    let server = start("shards = 1", "", Some(SERVER_CORE))?;
    let target = lun(&server, 0);
    let arguments = [&target, "--read-only", "--cpus", CLIENT_CORE];
    Ok(planted(Vec::new(), &arguments, vec![Box::new(server)]))
}

fn busy_client() -> Result<Planted> {
    let dir = TempDir::with_prefix_in("lunet-planted-", "/dev/shm")?;
    let place = dir.path().to_str().context("the directory's name is not UTF-8")?.to_owned();
    Ok(planted(Vec::new(), &[&place], vec![Box::new(dir)]))
}

fn busy_machine() -> Result<Planted> {
    let server = start("", "", None)?;
    let target = lun(&server, 0);
    let mut guards: Vec<Box<dyn Any>> = vec![Box::new(server)];
    for _ in 0..3 * std::thread::available_parallelism()?.get() {
        let mut command: Command = leashed(None);
        command.args(["sh", "-c", "while :; do :; done"]);
        guards.push(Box::new(Running::spawn(&mut command)?));
    }
    Ok(planted(Vec::new(), &[&target, "--read-only"], guards))
}

fn window() -> Result<Planted> {
    let server = start("[iscsi]\nqueue-depth = 4", "layers = [{ delay = \"1ms\" }]", None)?;
    let target = lun(&server, 0);
    Ok(planted(Vec::new(), &[&target, "--read-only"], vec![Box::new(server)]))
}

fn protocol() -> Result<Planted> {
    let server = start("shards = 1", "", Some(SERVER_CORE))?;
    let target = lun(&server, 1);
    let arguments = [&target, "--read-only", "--cpus", CLIENT_CORE, "--null", &target];
    Ok(planted(Vec::new(), &arguments, vec![Box::new(server)]))
}
