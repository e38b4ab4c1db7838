//! The loads: what runs, and what it moved.

use std::time::Duration;

use anyhow::{Context, Result};
use lunet_e2e::process::{output, pinned};

/// No load takes longer on any machine that is worth measuring.
const LIMIT: Duration = Duration::from_secs(180);

/// What drives a load.
#[derive(Clone, Copy, Debug)]
pub enum Tool {
    /// Random reads for a number of seconds.
    IscsiPerf,
    /// A number of sequential reads.
    QemuReads(u64),
    /// A number of sequential writes.
    QemuWrites(u64),
    /// Random reads or writes by lunet's own initiator, which does not bind, for a number of seconds.
    Own {
        /// Sessions, each at the load's depth.
        sessions: u32,
        /// Writes instead of reads.
        writes: bool,
    },
}

/// One load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// For the table and the JSON file.
    pub name: &'static str,
    /// What drives it.
    pub tool: Tool,
    /// Bytes of one operation.
    pub block: u64,
    /// Operations in flight at once.
    pub depth: u32,
}

/// All loads, in the order in which they run.
pub const LOADS: [Load; 5] = [
    Load { name: "4k random read, depth 32", tool: Tool::IscsiPerf, block: 4 << 10, depth: 32 },
    Load { name: "128k random read, depth 32", tool: Tool::IscsiPerf, block: 128 << 10, depth: 32 },
    DEPTH_ONE,
    Load {
        name: "4k read, depth 32 (qemu-img)",
        tool: Tool::QemuReads(120_000),
        block: 4 << 10,
        depth: 32,
    },
    Load {
        name: "128k write, depth 32 (qemu-img)",
        tool: Tool::QemuWrites(24_000),
        block: 128 << 10,
        depth: 32,
    },
];

/// The load that shows the latency.
pub const DEPTH_ONE: Load =
    Load { name: "4k random read, depth 1", tool: Tool::IscsiPerf, block: 4 << 10, depth: 1 };

/// What a load did.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// Operations.
    pub operations: f64,
    /// The time they took.
    pub elapsed: Duration,
}

/// Runs a load against a logical unit, with the client on core `core`.
pub fn run(load: &Load, url: &str, seconds: u32, core: usize) -> Result<Done> {
    match load.tool {
        Tool::IscsiPerf => {
            let mut command = pinned("iscsi-perf", Some(core));
            // All volumes of the benchmark have 512-byte blocks.
            command.args([
                "-r",
                "-m",
                &load.depth.to_string(),
                "-b",
                &(load.block / 512).to_string(),
            ]);
            command.args(["-t", &seconds.to_string(), url]);
            let text = output(&mut command, LIMIT)?;
            let rate = iscsi_perf_rate(&text).with_context(|| text.clone())?;
            Ok(Done {
                operations: rate * f64::from(seconds),
                elapsed: Duration::from_secs(seconds.into()),
            })
        }
        Tool::Own { sessions, writes } => own(load, url, seconds, (sessions, writes), core),
        Tool::QemuReads(count) => qemu(load, url, count, &[], core),
        Tool::QemuWrites(count) => qemu(load, url, count, &["-w"], core),
    }
}

/// Writes every block of the volume once: nobody shall read holes.
pub fn fill(url: &str, bytes: u64) -> Result<()> {
    const BLOCK: u64 = 1 << 20;
    let load = Load { name: "fill", tool: Tool::QemuWrites(0), block: BLOCK, depth: 8 };
    qemu(&load, url, bytes / BLOCK, &["-w", "--pattern=90"], 0).map(drop)
}

fn qemu(load: &Load, url: &str, count: u64, more: &[&str], core: usize) -> Result<Done> {
    let mut command = pinned("qemu-img", Some(core));
    command.args(["bench", "-t", "none", "-f", "raw", "-c", &count.to_string()]);
    command.args(["-d", &load.depth.to_string(), "-s", &load.block.to_string()]);
    let text = output(command.args(more).arg(url), LIMIT)?;
    let seconds = qemu_seconds(&text).with_context(|| text.clone())?;
    Ok(Done { operations: count as f64, elapsed: Duration::from_secs_f64(seconds) })
}

/// This program once more, as the client.
fn own(load: &Load, url: &str, seconds: u32, how: (u32, bool), core: usize) -> Result<Done> {
    let (sessions, writes) = how;
    let program = std::env::current_exe()?;
    let program = program.to_str().context("the program's path is not text")?;
    let mut command = pinned(program, Some(core));
    command.args(["load", url, &load.block.to_string(), &load.depth.to_string()]);
    command.args([&seconds.to_string(), "--sessions", &sessions.to_string()]);
    if writes {
        command.arg("--writes");
    }
    let text = output(&mut command, LIMIT)?;
    let operations = text.trim().parse().with_context(|| text.clone())?;
    Ok(Done { operations, elapsed: Duration::from_secs(seconds.into()) })
}

/// The last average that iscsi-perf prints.
fn iscsi_perf_rate(text: &str) -> Option<f64> {
    let (_, rest) = text.rsplit_once("iops average ")?;
    rest.split_whitespace().next()?.parse().ok()
}

fn qemu_seconds(text: &str) -> Option<f64> {
    let (_, rest) = text.split_once("Run completed in ")?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tools_results_are_found() {
        let perf = "\r00:00:01 - lba 3, iops current 9 (0 MB/s), iops average 56419 (220 MB/s)  \
                    \riops average 54626 (213 MB/s)   \n\nfinished.\n";
        assert_eq!(iscsi_perf_rate(perf), Some(54626.0));
        assert_eq!(qemu_seconds("Sending 1 ..\nRun completed in 0.322 seconds.\n"), Some(0.322));
        assert_eq!(iscsi_perf_rate("Read10/16 failed"), None);
    }
}
