//! A network namespace at the end of a wire that carries so much and no more.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lunet_e2e::process::{Running, leashed, output};
use lunet_e2e::server::lunet_binary;

use super::group::is_left;

const LIMIT: Duration = Duration::from_secs(20);

/// A namespace with one interface, joined to this one. Removed when dropped.
pub struct Wire {
    name: String,
    near: String,
    far: String,
    subnet: String,
}

impl Wire {
    /// A wire of this rate in each direction, in Mbit/s.
    pub fn new(mbit: u32) -> Result<Wire> {
        let pid = std::process::id();
        // Of the block for benchmarks (RFC 2544), which nobody routes.
        let subnet = format!("198.18.{}", pid % 256);
        let name = format!("lunet-planted-{pid}");
        // An interface's name has 15 characters at most.
        let wire = Wire { name, near: format!("lp{pid}n"), far: format!("lp{pid}f"), subnet };
        ip(&["netns", "add", &wire.name])?;
        let (near, far, name) = (&wire.near, &wire.far, &wire.name);
        ip(&["link", "add", near, "type", "veth", "peer", "name", far, "netns", name])?;
        ip(&["addr", "add", &format!("{}.1/24", wire.subnet), "dev", near])?;
        ip(&["link", "set", near, "up"])?;
        ip(&["-n", name, "addr", "add", &wire.far_net(), "dev", far])?;
        ip(&["-n", name, "link", "set", far, "up"])?;
        ip(&["-n", name, "link", "set", "lo", "up"])?;
        let rate = format!("{mbit}mbit");
        let shape = |within: &[&str], device: &str| {
            let mut command = Command::new("tc");
            command.args(within).args(["qdisc", "add", "dev", device, "root", "tbf"]);
            command.args(["rate", &rate, "burst", "256kb", "latency", "20ms"]);
            output(&mut command, LIMIT).map(drop)
        };
        shape(&[], near)?;
        shape(&["-n", name], far)?;
        Ok(wire)
    }

    fn far_net(&self) -> String {
        format!("{}.2/24", self.subnet)
    }

    /// The address at the other end.
    pub fn address(&self) -> String {
        format!("{}.2", self.subnet)
    }

    /// The words before a command that run it at the other end.
    pub fn words(&self) -> [String; 2] {
        ["nsenter".to_owned(), format!("--net=/run/netns/{}", self.name)]
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // One end takes the other with it, at once: a namespace may live on for a while.
        let _ = ip(&["link", "del", &self.near]);
        if let Err(error) = ip(&["netns", "del", &self.name]) {
            eprintln!("the network namespace {} is left: {error:#}", self.name);
        }
    }
}

/// Removes namespaces that a killed program has left; the interfaces go with them.
pub fn sweep() {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    for name in names.filter(|name| is_left(name)) {
        let _ = ip(&["netns", "del", &name]);
    }
}

fn ip(words: &[&str]) -> Result<()> {
    output(Command::new("ip").args(words), LIMIT).map(drop)
}

/// `lunet bench net serve`, which may be run elsewhere. Returns where it listens.
pub fn serve(before: &[String], address: &str) -> Result<(Running, String)> {
    let mut command = leashed(None);
    command.args(before).arg(lunet_binary()?);
    command.args(["bench", "net", "serve", "--listen", &format!("{address}:0")]);
    let serving = Running::spawn(&mut command)?;
    let place = serving.stdout.find(Instant::now() + LIMIT, |text| {
        let (_, rest) = text.split_once("listens at ")?;
        Some(rest.split_once(',')?.0.to_owned())
    });
    let place = place.with_context(|| format!("it does not listen: {}", serving.stderr.text()))?;
    Ok((serving, place))
}
