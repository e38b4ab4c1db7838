//! Where and with what was measured.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use lunet_e2e::process::output;
use lunet_e2e::server;
use lunet_e2e::tgt::Tgt;
use serde::{Deserialize, Serialize};

const LIMIT: Duration = Duration::from_secs(20);

/// The machine and the versions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// The day, by the system's clock, in UTC.
    pub date: String,
    /// The processor.
    pub cpu: String,
    /// How many cores this program may use.
    pub cores: usize,
    /// Memory in GiB.
    pub memory_gib: u64,
    /// Runnable tasks on average in the minute before, which should be none.
    pub load_average: String,
    /// The kernel.
    pub kernel: String,
    /// The distribution.
    pub system: String,
    /// lunet's version.
    pub lunet: String,
    /// The commit that is checked out; `+` when files differ from it.
    pub commit: String,
    /// tgt's version.
    pub tgt: String,
    /// QEMU's version.
    pub qemu: String,
    /// libiscsi's version, as the package says.
    pub libiscsi: String,
}

/// Asks the machine.
pub fn look() -> Result<Machine> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo")?;
    let meminfo = fs::read_to_string("/proc/meminfo")?;
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let field = |text: &str, name: &str, separator: char| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(separator).map(|(_, value)| value.trim().trim_matches('"').to_owned())
    };
    let kib = field(&meminfo, "MemTotal", ':')
        .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    let unknown = || "unknown".to_owned();
    Ok(Machine {
        date: ask("date", &["-u", "+%F"])?,
        cpu: field(&cpuinfo, "model name", ':').unwrap_or_else(unknown),
        cores: std::thread::available_parallelism()?.get(),
        memory_gib: kib.unwrap_or_default() >> 20,
        load_average: load_average()?,
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
        system: field(&release, "PRETTY_NAME", '=').unwrap_or_else(unknown),
        lunet: server::version()?,
        commit: commit().unwrap_or_else(|_| unknown()),
        tgt: Tgt::version()?,
        qemu: ask("qemu-img", &["--version"])?,
        libiscsi: ask("dpkg-query", &["-W", "-f=${Version}", "libiscsi-bin"])
            .unwrap_or_else(|_| unknown()),
    })
}

fn load_average() -> Result<String> {
    let text = fs::read_to_string("/proc/loadavg")?;
    Ok(text.split_whitespace().next().unwrap_or_default().to_owned())
}

fn commit() -> Result<String> {
    let commit = ask("git", &["rev-parse", "--short=12", "HEAD"])?;
    let changed = ask("git", &["status", "--porcelain", "--untracked-files=no"])?;
    Ok(if changed.is_empty() { commit } else { commit + "+" })
}

fn ask(program: &str, arguments: &[&str]) -> Result<String> {
    let text = output(Command::new(program).args(arguments), LIMIT)?;
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}
