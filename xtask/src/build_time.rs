//! `xtask build-time`: what the builds of a contributor cost, in a fresh clone.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use tempfile::TempDir;

/// Clock ticks of /proc a second (`USER_HZ`, proc_pid_stat(5)).
const TICKS: f64 = 100.0;

#[derive(Args)]
pub struct Arguments {
    /// Also build what `make test` runs (about as long as everything else)
    #[arg(long)]
    tests: bool,
    /// The commit to build
    #[arg(long, value_name = "COMMIT", default_value = "HEAD")]
    commit: String,
}

/// A build, what is changed before it, and the arguments of cargo.
struct Build {
    name: &'static str,
    /// A source file that gets one more line of code.
    change: Option<&'static str>,
    cargo: &'static [&'static str],
}

const SERVER: &[&str] = &["build", "--locked", "--release", "-p", "lunet"];
const TOOLS: &[&str] = &["build", "--locked", "--release", "-p", "lunet-tools"];
const TESTS: &[&str] = &["test", "--locked", "--workspace", "--no-run"];

const BUILDS: [Build; 5] = [
    Build { name: "server, fresh", change: None, cargo: SERVER },
    Build {
        name: "server, after a line in iscsi",
        change: Some("crates/iscsi/src/lib.rs"),
        cargo: SERVER,
    },
    Build {
        name: "server, after a line in cli",
        change: Some("crates/cli/src/lib.rs"),
        cargo: SERVER,
    },
    Build { name: "tools, beside the server", change: None, cargo: TOOLS },
    Build { name: "tests, fresh", change: None, cargo: TESTS },
];

/// Builds in a clone of the repository with a target folder of its own. Crates are downloaded before the clock starts.
pub fn run(arguments: &Arguments) -> Result<()> {
    let folder = TempDir::new_in("/var/tmp").context("cannot create a folder in /var/tmp")?;
    let clone = folder.path().join("lunet");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    succeed(Command::new("git").args(["clone", "-q"]).arg(&root).arg(&clone))?;
    succeed(Command::new("git").arg("-C").arg(&clone).args(["checkout", "-q", &arguments.commit]))?;
    succeed(cargo(&clone).args(["fetch", "--locked"]))?;
    println!("| build | wall | CPU |\n|---|---|---|");
    for build in BUILDS.iter().filter(|build| arguments.tests || build.cargo != TESTS) {
        if let Some(file) = build.change {
            change(&clone.join(file))?;
        }
        let (started, before) = (Instant::now(), cpu_of_children()?);
        succeed(cargo(&clone).args(build.cargo))?;
        let (wall, cpu) = (started.elapsed().as_secs_f64(), cpu_of_children()? - before);
        println!("| {} | {wall:.0} s | {cpu:.0} s |", build.name);
    }
    for name in ["lunet", "lunet-tools"] {
        let path = clone.join("target/release").join(name);
        succeed(Command::new("strip").arg(&path))?;
        println!("{name}: {:.1} MB stripped", fs::metadata(&path)?.len() as f64 / 1e6);
    }
    Ok(())
}

fn cargo(clone: &Path) -> Command {
    let mut command = Command::new("cargo");
    command.arg("-q").current_dir(clone).env("CARGO_TARGET_DIR", clone.join("target"));
    command
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// Appends a line that every crate which uses this one sees.
fn change(file: &Path) -> Result<()> {
    let mut source = OpenOptions::new().append(true).open(file)?;
    writeln!(source, "\n/// A change.\npub const CHANGED: u32 = 1;")?;
    Ok(())
}

/// CPU seconds of the programs that this one has run, with theirs, user and system.
fn cpu_of_children() -> Result<f64> {
    let stat = fs::read_to_string(PathBuf::from("/proc/self/stat"))?;
    // The name in brackets may have spaces. The fields behind it begin with the third, cutime and cstime are the 16th and 17th.
    let fields = stat.rsplit_once(") ").context("/proc/self/stat has another form")?.1;
    let ticks = fields.split(' ').skip(13).take(2).map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>()? / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_child_is_counted() {
        let before = cpu_of_children().unwrap();
        let busy = "i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done";
        succeed(Command::new("sh").args(["-c", busy])).unwrap();
        assert!(cpu_of_children().unwrap() > before);
    }
}
