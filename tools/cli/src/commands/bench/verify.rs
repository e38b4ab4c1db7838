//! `lunet bench verify`

use std::process::ExitCode;
use std::time::Duration;

use crate::bench::given::{self, Given};
use crate::bench::{Step, verify};
use anyhow::{Result, anyhow, bail};
use clap::Args;

use super::bar::Bar;
use super::login::LoginOptions;
use super::{PARTIAL, runtime, say, size, stop};
use lunet_cli::print;

/// Reading back takes about so much of the time that writing took.
const READ_BACK: f64 = 0.2;

#[derive(Args)]
pub struct Verify {
    /// iscsi://[USER[%SECRET]@]HOST[:PORT][/TARGET[/LUN]] or nvme-tcp://HOST[:PORT][/NQN[/NSID]]; over
    /// RDMA iser:// and nvme-rdma://
    #[arg(value_name = "URL")]
    target: String,
    /// Size that is written and read, from the beginning of the LUN or namespace
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    size: u64,
    /// Duration of the load before everything is read back, 100ms to 1h
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = runtime)]
    runtime: Duration,
    /// Queue depth of each session or queue, 1 to 1024
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
    /// Number of iSCSI sessions, or of I/O queues of NVMe, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    jobs: u32,
    /// The address again: overwrite it although it holds data
    #[arg(long, value_name = "URL")]
    destroy: Option<String>,
    #[command(flatten)]
    login: LoginOptions,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

/// Exit code 0: all that was written was there; 1: something was wrong, or not all was looked at; 2: nothing was done.
pub fn run(options: &Verify) -> Result<ExitCode> {
    let wanted = options.wanted()?;
    let stop = stop()?;
    let bar = Bar::new();
    let all = options.runtime.as_secs_f64() * (1.0 + READ_BACK);
    let report = verify::run(&wanted, &stop, &mut |done| {
        let loaded = 1.0 / (1.0 + READ_BACK);
        let (what, part) = match done.reads_back {
            false => ("writing and reading", done.part * loaded),
            true => ("reading everything back", loaded + done.part * (1.0 - loaded)),
        };
        let left_s = all * (1.0 - part);
        bar.show(&Step { what: what.into(), done: part, left_s, rate: Some(done.rate) });
    });
    bar.clear();
    let report = report.map_err(|refused| anyhow!(refused.0))?;
    print(&if options.json { report.json() } else { report.text() })?;
    if let Some(why) = report.ended() {
        say(&format!("not everything was verified: {why}"));
    }
    Ok(if report.is_right() { ExitCode::SUCCESS } else { ExitCode::from(PARTIAL) })
}

impl Verify {
    fn wanted(&self) -> Result<verify::Options> {
        let access = self.login.access()?;
        let given = Given::parse(&self.target, &access).map_err(|error| anyhow!(error))?;
        let destroy = self.destroy.as_deref().map(|text| given::meant(text, &[], &access));
        if let Some(other) = destroy.as_ref().filter(|name| **name != given.name()) {
            bail!("--destroy {other} is not what is verified: write it as the address is written");
        }
        let Given::Url(target) = given else {
            bail!(
                "{} cannot be verified: give an address, iscsi://HOST/TARGET/LUN or nvme-tcp://HOST/NQN/NSID (over RDMA: iser://, nvme-rdma://)",
                self.target
            );
        };
        Ok(verify::Options {
            target: *target,
            login: self.login.login(),
            destroy: destroy.is_some(),
            size: self.size,
            runtime: self.runtime,
            depth: self.depth,
            jobs: self.jobs,
        })
    }
}
