//! `xtask transports`: NVMe over TCP against iSCSI over TCP, on one volume of one server, in one interleaved run.
//!
//! The server has one core and lunet's load generator, which does not bind, another one. The figures of CPU time are the server's
//! whole process, so that what the other protocol's threads take counts too.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;
use lunet_e2e::server::{Serve, free_port, url};
use tempfile::TempDir;

use super::compare::{Place, Sample, depths, rounds_of};
use super::spread::Spread;
use super::{SUBSYSTEM, TARGET, TARGET_CORE, loads, machine};

const HEADER: &str = "| load | iSCSI: IOPS | NVMe/TCP: IOPS | ratio | iSCSI: IOPS per CPU second | NVMe/TCP: IOPS per CPU second | ratio |\n\
                      |---|---|---|---|---|---|---|\n";

/// Options of `xtask transports`.
#[derive(Args)]
pub struct Arguments {
    /// Number of rounds
    #[arg(long, default_value_t = 7)]
    rounds: u32,
    /// Duration of each timed run in seconds
    #[arg(long, default_value_t = 2)]
    seconds: u32,
    /// Only rows that contain this, such as '4k random reads' or 'depth 32,' [default: all]; can be repeated
    #[arg(long)]
    only: Vec<String>,
    /// Size of the volume in MiB
    #[arg(long, default_value_t = 512)]
    size: u64,
    /// A file for the table, too
    #[arg(long)]
    out: Option<PathBuf>,
    /// Directory for the server's data
    #[arg(long, default_value = "target")]
    scratch: PathBuf,
}

/// Runs everything and prints a table.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.rounds > 0 && arguments.seconds > 0, "rounds and seconds begin at 1");
    let about = machine::look()?;
    std::fs::create_dir_all(&arguments.scratch)?;
    let data = TempDir::with_prefix_in("lunet-bench-", &arguments.scratch)?;
    let (size, port) = (arguments.size << 20, free_port()?);
    let config = format!(
        "[server]\nlog-level = \"warn\"\n[[portal]]\naddress = \"127.0.0.1:0\"\n\
         [[portal]]\naddress = \"127.0.0.1:{port}\"\ntransport = [\"nvme-tcp\"]\n\
         [volumes.memory]\nbackend = \"memory\"\nsize = {size}\n\
         [[target]]\nname = \"{TARGET}\"\nprotocols = [\"iscsi\", \"nvme\"]\nluns = [\"memory\"]\n"
    );
    let server = Serve::config(config).data(data.path()).core(Some(TARGET_CORE)).quiet().start()?;
    let place = |name, url| Place { name, pid: server.pid(), url };
    let iscsi = url(server.portal(), TARGET, 0);
    loads::fill(&iscsi, size)?;
    let places = [
        place("iSCSI", iscsi),
        place("NVMe/TCP", format!("nvme-tcp://127.0.0.1:{port}/{SUBSYSTEM}/1")),
    ];
    let mut table = HEADER.to_owned();
    eprint!("{table}");
    for (name, load) in depths() {
        if arguments.only.is_empty() || arguments.only.iter().any(|part| name.contains(part)) {
            let rounds = rounds_of(&places, &load, arguments.rounds, arguments.seconds)?;
            let (speed, cpu) =
                (cells(&rounds, |it| it.per_second), cells(&rounds, |it| it.per_cpu));
            let row = format!("| {name} | {speed} | {cpu} |\n");
            eprint!("{row}");
            table += &row;
        }
    }
    table += &format!(
        "\nA volume of {} MiB in memory, over loopback; the server on one core, lunet's load generator on another one. The \
         ratios are NVMe/TCP by iSCSI. Each cell is the median of {} rounds of {} s, in brackets the least and the greatest.\n",
        arguments.size, arguments.rounds, arguments.seconds
    );
    println!("{table}");
    if let Some(out) = &arguments.out {
        std::fs::write(out, about.title("NVMe over TCP and iSCSI") + &table)?;
    }
    server.stop()?;
    Ok(())
}

/// Three cells: one, the other, and what it is for each round of the first.
fn cells(rounds: &[[Sample; 2]], measure: fn(&Sample) -> f64) -> String {
    let spread =
        |figure: &dyn Fn(&[Sample; 2]) -> f64| Spread::of(rounds.iter().map(figure).collect());
    let thousands = |which: usize| {
        spread(&|round| measure(&round[which])).map_or_else(String::new, Spread::thousands)
    };
    let ratio = spread(&|[one, other]| measure(other) / measure(one))
        .map_or_else(String::new, Spread::ratio);
    format!("{} | {} | {ratio}", thousands(0), thousands(1))
}
