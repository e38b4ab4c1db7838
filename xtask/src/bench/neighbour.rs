//! `xtask neighbour`: how fast a volume is while another one on the same shard does not answer.
//!
//! Two servers of one build, one of them with a volume that is full of writes that hang. The figure is the median of the
//! rounds' ratios, as in `xtask compare`.

use anyhow::{Context, Result, ensure};
use clap::Args;
use lunet_e2e::server::{Serve, Server, url};
use lunet_e2e::wire::scsi::write16;
use lunet_e2e::wire::{Login, Session};
use tempfile::TempDir;

use super::loads::{self, LOADS, Load};
use super::spread::Spread;
use super::{CLIENT_CORE, TARGET_CORE, usage};

const TARGET: &str = "iqn.2026-11.local.lunet:neighbour";
const MEASURED: u16 = 0;
const HANGS: u8 = 1;

/// Together more than a volume takes at a time, so that some wait in front of it too.
const SESSIONS: u16 = 12;
const WRITES: usize = 100;

/// Options of `xtask neighbour`.
#[derive(Args)]
pub struct Arguments {
    /// Number of rounds
    #[arg(long, default_value_t = 7)]
    rounds: u32,
    /// Duration of each iscsi-perf run in seconds
    #[arg(long, default_value_t = 2)]
    seconds: u32,
    /// Size of the volumes in MiB, in memory
    #[arg(long, default_value_t = 256)]
    size: u64,
}

/// Runs everything and prints the ratios.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.rounds > 0 && arguments.seconds > 0, "rounds and seconds begin at 1");
    let size = arguments.size << 20;
    let scratch = TempDir::with_prefix("lunet-neighbour-")?;
    let alone = serve(&scratch, "alone", size)?;
    let beside = serve(&scratch, "beside", size)?;
    for server in [&alone, &beside] {
        loads::fill(&measured(server), size)?;
    }
    // The connections stay open to the end.
    let hanging = (1..=SESSIONS).map(|n| hang(&beside, n)).collect::<Result<Vec<_>>>()?;
    println!(
        "| load | operations per second beside a volume that hangs | CPU time of an operation |\n|---|---|---|"
    );
    for load in &LOADS {
        let ratios = (1..=arguments.rounds)
            .map(|round| ratio([&alone, &beside], load, round, arguments.seconds))
            .collect::<Result<Vec<_>>>()?;
        let column = |at: usize| Spread::of(ratios.iter().map(|pair| pair[at]).collect());
        let (speed, cpu) = column(0).zip(column(1)).context("no rounds")?;
        println!("| {} | {} | {} |", load.name, speed.ratio(), cpu.ratio());
    }
    println!(
        "\nbeside it / alone: the median of {} rounds, in brackets the least and the greatest. {} writes hang.",
        arguments.rounds,
        hanging.len() * WRITES
    );
    Ok(())
}

fn serve(scratch: &TempDir, name: &str, size: u64) -> Result<Server> {
    let data = scratch.path().join(name);
    std::fs::create_dir(&data)?;
    let config = format!(
        "[server]\nlog-level = \"warn\"\n[iscsi]\nping-interval = \"0s\"\n\
         [[portal]]\naddress = \"127.0.0.1:0\"\n\
         [volumes.measured]\nbackend = \"memory\"\nsize = {size}\n\
         [volumes.hangs]\nbackend = \"memory\"\nsize = {size}\nlayers = [{{ hang = \"write\" }}]\n\
         [[target]]\nname = \"{TARGET}\"\nluns = {{ {MEASURED} = \"measured\", {HANGS} = \"hangs\" }}\n"
    );
    Serve::config(config).data(&data).core(Some(TARGET_CORE)).quiet().start()
}

fn measured(server: &Server) -> String {
    url(server.portal(), TARGET, MEASURED)
}

/// A session whose writes never end.
fn hang(server: &Server, number: u16) -> Result<Session> {
    let login = Login { qualifier: number, ..Login::new(server.portal(), TARGET) };
    let mut session = Session::open(&login)?;
    // The unit attention of a new session. TEST UNIT READY does not touch the storage.
    session.settle(HANGS)?;
    for n in 0..WRITES as u64 {
        let lba = (u64::from(number) * WRITES as u64 + n) * 8;
        session.start(HANGS, &write16(lba, 8), 0, &[0x5A; 4096])?;
    }
    Ok(session)
}

/// Both, one after the other; who begins changes with the rounds. The ratios of speed and of CPU time.
fn ratio(servers: [&Server; 2], load: &Load, round: u32, seconds: u32) -> Result<[f64; 2]> {
    let [alone, beside] = servers;
    let take = |server: &Server| -> Result<[f64; 2]> {
        let before = usage::cpu(server.pid())?;
        let done = loads::run(load, &measured(server), seconds, CLIENT_CORE)?;
        let cpu = usage::cpu(server.pid())? - before;
        ensure!(done.operations > 0.0, "{} did nothing", load.name);
        let speed = done.operations / done.elapsed.as_secs_f64();
        Ok([speed, cpu.as_secs_f64() / done.operations])
    };
    let ([speed, cpu], [base_speed, base_cpu]) = if round % 2 == 0 {
        let base = take(alone)?;
        (take(beside)?, base)
    } else {
        (take(beside)?, take(alone)?)
    };
    Ok([speed / base_speed, cpu / base_cpu])
}
