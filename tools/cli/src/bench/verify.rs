//! Whether a LUN or a namespace keeps what is written to it: `lunet bench verify`.
//!
//! The own initiator or host writes blocks that say where they belong and which write they come from, reads them in
//! between, and reads everything back at the end. What is wrong has a name ([`Fault`]).

use std::fmt::Write;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lunet_bench::safety::Destroy;
use lunet_client::verify::{Fault, VerifyOutcome};
use lunet_client::{BlockSize, Outcome, Stage, Workload};
use serde_json::json;

use super::Refused;
use super::look;
use super::remote::{Logins, Remote, Unit};
use lunet_config::units;

/// So many findings are shown one by one; all are counted.
const SHOWN: usize = 20;
/// A flush after so many writes.
const FLUSH_EVERY: u32 = 64;

/// What to check, and how hard.
#[derive(Debug)]
pub struct Options {
    /// The LUN or namespace.
    pub target: Remote,
    /// How to log in.
    pub login: Logins,
    /// It may be overwritten although it holds data.
    pub destroy: bool,
    /// Bytes from its beginning that are worked on; all of it if it is smaller.
    pub size: u64,
    /// How long it is written and read before everything is read back.
    pub runtime: Duration,
    /// Operations of each session or queue under way.
    pub depth: u32,
    /// Sessions, or queues.
    pub jobs: u32,
}

/// What was found.
#[derive(Debug)]
pub struct Report {
    address: String,
    outcome: Outcome,
    verify: VerifyOutcome,
    /// Why it ended before its time.
    ended: Option<String>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Done {
    /// It reads back, and writes no more.
    pub reads_back: bool,
    /// The part of this that is done, 0 to 1.
    pub part: f64,
    /// MiB in the last second.
    pub rate: f64,
}

/// Writes, reads and checks.
///
/// # Errors
/// The volume was refused or cannot be reached: nothing was written.
pub fn run(
    options: &Options,
    stop: &AtomicBool,
    told: &mut dyn FnMut(Done),
) -> Result<Report, Refused> {
    let address = options.target.to_string();
    let named = if options.destroy { vec![address.clone()] } else { Vec::new() };
    let unit =
        look::unit(&options.target, &options.login, Some(&Destroy::new(named))).map_err(Refused)?;
    if unit.read_only {
        return Err(Refused(format!("{address} takes no writes: nothing of it can be verified")));
    }
    let load = load(options, &unit);
    let runtime = options.runtime.as_secs_f64();
    let outcome = options.target.load(&options.login, load, stop, |progress| {
        let reads_back = progress.stage == Stage::ReadBack;
        let loaded = (progress.elapsed.as_secs_f64() / runtime).min(1.0);
        let part = if reads_back { progress.done.unwrap_or(0.0) } else { loaded };
        let seconds = progress.second.length.as_secs_f64().max(1e-3);
        let rate = progress.second.work.bytes() as f64 / f64::from(1 << 20) / seconds;
        told(Done { reads_back, part, rate });
    });
    let outcome = outcome.map_err(|error| Refused(format!("{address}: {error}")))?;
    let ended = match outcome.failures()[..] {
        [] if outcome.interrupted => Some("it was interrupted".to_owned()),
        [] => None,
        ref all => Some(all.join("; ")),
    };
    let verify = outcome.verify.clone().unwrap_or_default();
    Ok(Report { address, outcome, verify, ended })
}

/// Reads and writes half and half, mostly small ones.
fn load(options: &Options, unit: &Unit) -> Workload {
    let small = unit.block_size.max(4096);
    let most = unit.max_transfer.map_or(u32::MAX, |most| u32::try_from(most).unwrap_or(u32::MAX));
    let large = (64 << 10).min(most / small * small).max(small);
    let parts = u64::from(large) * u64::from(options.jobs);
    let bytes = options.size.min(unit.bytes) / parts * parts;
    let blocks = [(small, 3), (large, 1)].map(|(bytes, weight)| BlockSize { bytes, weight });
    let load = Workload {
        blocks: blocks.to_vec(),
        reads_percent: 50,
        depth: options.depth,
        jobs: options.jobs,
        runtime: Some(options.runtime),
        flush_every: Some(FLUSH_EVERY),
        verify: Some(lunet_client::Verify::default()),
        ..Workload::new(small)
    };
    load.within(0..bytes)
}

impl Report {
    /// Everything that was written was there, and everything was looked at.
    pub fn is_right(&self) -> bool {
        self.verify.wrong() == 0 && self.is_complete()
    }

    fn is_complete(&self) -> bool {
        self.ended.is_none() && !self.verify.incomplete
    }

    /// Why not all was looked at.
    pub fn ended(&self) -> Option<&str> {
        match &self.ended {
            Some(why) => Some(why),
            None if self.verify.incomplete => Some("not everything could be read back"),
            None => None,
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let Self { address, outcome, verify, .. } = self;
        let block = outcome.geometry.block_size;
        let work = &outcome.work;
        let mut text = format!(
            "{address}: {} written in {} writes and {} flushes, {} read in {} reads, in {}\n",
            units::size(work.write.bytes),
            units::count(work.write.operations),
            units::count(work.flush.operations),
            units::size(work.read.bytes),
            units::count(work.read.operations),
            units::duration(Duration::from_secs(outcome.elapsed.as_secs_f64().round() as u64)),
        );
        let checked = units::count(verify.checked);
        let _ = match verify.wrong() {
            0 => writeln!(
                text,
                "compared {checked} blocks of {block} bytes, read back included: all held what was written last"
            ),
            wrong => writeln!(
                text,
                "{} blocks of {block} bytes were WRONG ({checked} were compared; what was wrong was looked at with all of \
                 its write)",
                units::count(wrong)
            ),
        };
        for (fault, count) in Fault::ALL.into_iter().zip(verify.faults).filter(|(_, n)| *n > 0) {
            let _ = writeln!(text, "  {}: {} blocks", fault.name(), units::count(count));
        }
        for finding in verify.findings.iter().take(SHOWN) {
            let _ = writeln!(text, "  {finding}, after {:.1} s", finding.at.as_secs_f64());
        }
        if verify.findings.len() > SHOWN {
            let _ = writeln!(text, "  and more: --json has {} of them", verify.findings.len());
        }
        text
    }

    /// For programs.
    pub fn json(&self) -> String {
        let Self { address, outcome, verify, .. } = self;
        let faults: serde_json::Map<String, serde_json::Value> = Fault::ALL
            .into_iter()
            .zip(verify.faults)
            .map(|(fault, count)| (fault.name().to_ascii_lowercase(), count.into()))
            .collect();
        let finding = |finding: &lunet_client::verify::Finding| {
            json!({
                "fault": finding.fault.name().to_ascii_lowercase(),
                "lba": finding.lba,
                "blocks": finding.blocks,
                "lasting": finding.lasting,
                "at_s": finding.at.as_secs_f64(),
                "text": finding.to_string(),
            })
        };
        let told = json!({
            "target": address,
            "complete": self.is_complete(),
            "ended": self.ended(),
            "seconds": outcome.elapsed.as_secs_f64(),
            "block_bytes": outcome.geometry.block_size,
            "written_bytes": outcome.work.write.bytes,
            "read_bytes": outcome.work.read.bytes,
            "flushes": outcome.work.flush.operations,
            "compared_blocks": verify.checked,
            "wrong_blocks": verify.wrong(),
            "faults": faults,
            "findings": verify.findings.iter().map(finding).collect::<Vec<_>>(),
        });
        format!("{told:#}\n")
    }
}
