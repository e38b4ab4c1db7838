//! `xtask drive`: what volumes in files make of a disk, beside fio on the same disk.
//!
//! fio reads and writes a file with O_DIRECT by io_uring, so that it and the disk are all there is. lunet serves two files of the same size and
//! directory, one bypassing the page cache and one through it, which is emptied of that file before each run. lunet has one core and its load
//! generator another one; fio has lunet's.

use std::fs::{File, create_dir_all};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use lunet_e2e::process::pinned;
use lunet_e2e::server::{Serve, Server, url};
use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;

use super::compare::{self, Place, Sample};
use super::loads::{Load, Tool};
use super::spread::Spread;
use super::{TARGET, TARGET_CORE, fio, loads, usage};

const MIB: u64 = 1 << 20;

/// Options of `xtask drive`.
#[derive(Args)]
pub struct Arguments {
    /// Number of rounds
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Duration of each run in seconds
    #[arg(long, default_value_t = 2)]
    seconds: u32,
    /// Only rows that contain this, such as '4k random reads' or 'depth 32'; can be repeated [default: all]
    #[arg(long)]
    only: Vec<String>,
    /// Size of each of the three files in MiB
    #[arg(long, default_value_t = 2048)]
    size: u64,
    /// A line for `[server]`, such as 'busy-poll = "0s"'
    #[arg(long, default_value = "")]
    setting: String,
    /// Directory of the files, on the disk in question
    #[arg(long, default_value = "target")]
    scratch: PathBuf,
}

/// Who reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Fio,
    Direct,
    Buffered,
}

impl Way {
    const ALL: [Self; 3] = [Self::Fio, Self::Direct, Self::Buffered];

    fn file(self) -> &'static str {
        match self {
            Self::Fio => "fio.img",
            Self::Direct => "direct.img",
            Self::Buffered => "buffered.img",
        }
    }
}

/// Runs everything and prints a table.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.rounds > 0 && arguments.seconds > 0, "rounds and seconds begin at 1");
    create_dir_all(&arguments.scratch)?;
    let files = TempDir::with_prefix_in("lunet-drive-", &arguments.scratch)?;
    let size = arguments.size * MIB;
    let server = serve(arguments, files.path(), size)?;
    for way in Way::ALL {
        match lun(way) {
            Some(lun) => loads::fill(&url(server.portal(), TARGET, lun), size)?,
            None => fill(&files.path().join(way.file()), size)?,
        }
    }
    println!(
        "| load | fio on the disk: IOPS, and CPU for each | `direct`: IOPS, lunet / fio | its CPU for each | `buffered`, nothing cached | its CPU for each |\n\
         |---|---|---|---|---|---|"
    );
    for (name, load) in rows() {
        if !arguments.only.is_empty() && !arguments.only.iter().any(|part| name.contains(part)) {
            continue;
        }
        let round = |_| {
            let take = |way| sample(way, &load, arguments, &server, files.path());
            Ok([take(Way::Fio)?, take(Way::Direct)?, take(Way::Buffered)?])
        };
        let rounds: Vec<[Sample; 3]> = (0..arguments.rounds).map(round).collect::<Result<_>>()?;
        println!("| {name} | {} |", cells(&rounds).join(" | "));
    }
    println!(
        "\nFiles of {} MiB; each cell is the median of {} interleaved rounds of {} s, in brackets the least and the greatest.",
        arguments.size, arguments.rounds, arguments.seconds
    );
    server.stop()?;
    Ok(())
}

fn serve(arguments: &Arguments, files: &Path, size: u64) -> Result<Server> {
    let config = format!(
        "[server]\nlog-level = \"warn\"\n{}\n[[portal]]\naddress = \"127.0.0.1:0\"\n\
         [volumes.direct]\nbackend = \"file\"\ncache = \"direct\"\nsize = {size}\n\
         [volumes.buffered]\nbackend = \"file\"\nsize = {size}\n\
         [[target]]\nname = \"{TARGET}\"\nluns = {{ 0 = \"direct\", 1 = \"buffered\" }}\n",
        arguments.setting
    );
    Serve::config(config).data(files).core(Some(TARGET_CORE)).quiet().start()
}

fn lun(way: Way) -> Option<u16> {
    match way {
        Way::Fio => None,
        Way::Direct => Some(0),
        Way::Buffered => Some(1),
    }
}

/// Blocks that were written once: reading and writing others is something else.
fn fill(path: &Path, size: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let block = vec![0x5A; MIB as usize];
    for _ in 0..size / MIB {
        file.write_all(&block)?;
    }
    Ok(file.sync_all()?)
}

/// Reads of 4 KiB at all depths, and some of the others.
fn rows() -> Vec<(String, Load)> {
    let row = |block: u64, writes: bool, depth: u32| {
        let kind = if writes { "writes" } else { "reads" };
        let name = format!("{}k random {kind}, depth {depth}", block >> 10);
        (name, Load { name: "drive", tool: Tool::Own { sessions: 1, writes }, block, depth })
    };
    let small = [1, 2, 4, 8, 16, 32, 64].map(|depth| row(4 << 10, false, depth));
    let writes = [1, 8, 32].map(|depth| row(4 << 10, true, depth));
    let large = [1, 8].map(|depth| row(128 << 10, false, depth));
    let mut all: Vec<_> = small.into_iter().chain(writes).chain(large).collect();
    all.push(row(128 << 10, true, 8));
    all
}

fn sample(
    way: Way,
    load: &Load,
    arguments: &Arguments,
    server: &Server,
    files: &Path,
) -> Result<Sample> {
    let path = files.join(way.file());
    let file = File::open(&path).with_context(|| path.display().to_string())?;
    file.sync_all()?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    match lun(way) {
        None => of_fio(&path, load, arguments.seconds),
        Some(lun) => {
            let url = url(server.portal(), TARGET, lun);
            let place = Place { name: way.file(), pid: server.pid(), url };
            compare::sample(&place, load, arguments.seconds)
        }
    }
}

/// The CPU time is that of fio.
fn of_fio(path: &Path, load: &Load, seconds: u32) -> Result<Sample> {
    let before = usage::children()?;
    let mut command = pinned("fio", Some(TARGET_CORE));
    command.args(["--ioengine=io_uring", "--direct=1", "--allow_file_create=0"]);
    command.arg(format!("--filename={}", path.display())).arg(format!("--runtime={seconds}"));
    let writes = matches!(load.tool, Tool::Own { writes: true, .. });
    let flow = fio::random(&mut command, !writes, load.block, load.depth)?;
    let cpu = (usage::children()? - before).as_secs_f64();
    let operations = flow.iops * f64::from(seconds);
    Ok(Sample {
        per_second: flow.iops,
        per_cpu: operations / cpu,
        cpu_per_gib: cpu / (operations * load.block as f64 / f64::from(1 << 30)),
    })
}

/// fio's figures, and for each volume the ratio of its IOPS, and its CPU time.
fn cells(rounds: &[[Sample; 3]]) -> Vec<String> {
    let spread =
        |figure: &dyn Fn(&[Sample; 3]) -> f64| Spread::of(rounds.iter().map(figure).collect());
    let text =
        |spread: Option<Spread>, told: fn(Spread) -> String| spread.map_or_else(String::new, told);
    let us = |which: usize| {
        let median = spread(&|round| 1e6 / round[which].per_cpu).map_or(0.0, Spread::median);
        format!("{median:.1} us")
    };
    let iops = text(spread(&|round| round[0].per_second), Spread::thousands);
    let mut cells = vec![format!("{iops}, {}", us(0))];
    for which in [1, 2] {
        cells.push(text(
            spread(&|round| round[which].per_second / round[0].per_second),
            Spread::ratio,
        ));
        cells.push(us(which));
    }
    cells
}
