//! The samples, their medians and ratios, and the page about them.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::idle::Idle;
use super::loads::{DEPTH_ONE, LOADS};
use super::machine::Machine;
use super::peers::{BUSY, BUSY_POLL, Medium, NAMES};
use super::{Arguments, CLIENT_CORE, TARGET_CORE};

/// One run of one load against one target.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// From 1.
    pub round: u32,
    /// Which target.
    pub peer: String,
    /// `memory` or `file`.
    pub medium: String,
    /// Which load.
    pub load: String,
    /// Operations.
    pub per_second: f64,
    /// Data.
    pub mib_per_second: f64,
    /// Mean time of one operation, in microseconds.
    pub mean_latency_us: f64,
    /// CPU time of the target, user and system, in seconds.
    pub cpu_per_gib: f64,
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Where and with what.
    pub machine: Machine,
    /// How often everything was repeated.
    pub rounds: u32,
    /// How long each iscsi-perf run took.
    pub seconds: u32,
    /// Size of each volume.
    pub volume_mib: u64,
    /// Sessions that do nothing.
    pub idle: Vec<Idle>,
    /// Every single run.
    pub samples: Vec<Sample>,
}

/// What the project has set itself, on the volume in memory.
struct Goal {
    what: &'static str,
    load: &'static str,
    lunet: &'static str,
    against: &'static str,
    measure: fn(&Sample) -> f64,
    wanted: f64,
    at_least: bool,
}

const fn goal(
    what: &'static str,
    load: &'static str,
    against: &'static str,
    measure: fn(&Sample) -> f64,
    wanted: f64,
    at_least: bool,
) -> Goal {
    Goal { what, load, lunet: NAMES[0], against, measure, wanted, at_least }
}

const SPEED: fn(&Sample) -> f64 = |sample| sample.per_second;
const CPU: fn(&Sample) -> f64 = |sample| sample.cpu_per_gib;
const LATENCY: fn(&Sample) -> f64 = |sample| sample.mean_latency_us;

const GOALS: [Goal; 8] = [
    goal("IOPS", LOADS[0].name, NAMES[1], SPEED, 3.3, true),
    goal("CPU per GiB", LOADS[0].name, NAMES[1], CPU, 0.2, false),
    goal("throughput", LOADS[1].name, NAMES[1], SPEED, 2.5, true),
    goal("CPU per GiB", LOADS[1].name, NAMES[1], CPU, 0.36, false),
    goal("throughput", LOADS[4].name, NAMES[1], SPEED, 4.5, true),
    goal("throughput", LOADS[4].name, NAMES[2], SPEED, 1.1, true),
    goal("mean latency", DEPTH_ONE.name, NAMES[1], LATENCY, 0.7, false),
    Goal {
        what: "mean latency, busy polling",
        load: DEPTH_ONE.name,
        lunet: BUSY,
        against: NAMES[1],
        measure: LATENCY,
        wanted: 0.4,
        at_least: false,
    },
];

/// The middle, the least and the greatest of the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    median: f64,
    least: f64,
    greatest: f64,
}

impl Spread {
    /// Of these values; `None` if there are none.
    pub fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_by(f64::total_cmp);
        let (&least, &greatest) = (values.first()?, values.last()?);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            1 => values[middle],
            _ => (values[middle - 1] + values[middle]) / 2.0,
        };
        Some(Spread { median, least, greatest })
    }

    /// For tables of large counts.
    pub fn thousands(self) -> String {
        let Spread { median, least, greatest } = self;
        format!("{:.0}k ({:.0}k-{:.0}k)", median / 1e3, least / 1e3, greatest / 1e3)
    }

    /// For tables of ratios.
    pub fn ratio(self) -> String {
        let Spread { median, least, greatest } = self;
        format!("{median:.2} ({least:.2}-{greatest:.2})")
    }
}

impl Report {
    /// Puts it together.
    pub fn new(
        machine: Machine,
        arguments: &Arguments,
        idle: Vec<Idle>,
        samples: Vec<Sample>,
    ) -> Report {
        let Arguments { rounds, seconds, size, .. } = *arguments;
        Report { machine, rounds, seconds, volume_mib: size, idle, samples }
    }

    fn spread(
        &self,
        peer: &str,
        medium: Medium,
        load: &str,
        measure: fn(&Sample) -> f64,
    ) -> Option<Spread> {
        let samples = self.samples.iter().filter(|sample| {
            sample.peer == peer && sample.medium == medium.name() && sample.load == load
        });
        Spread::of(samples.map(measure).collect())
    }

    /// The page.
    pub fn markdown(&self) -> String {
        let m = &self.machine;
        let mut page = format!("# Benchmark of {}\n\n", m.date);
        // Writing to a String cannot fail, here and below.
        let _ = write!(
            page,
            "{} (commit {}) against tgt {}, both on core {TARGET_CORE}; clients ({}, libiscsi {}) on core {CLIENT_CORE}.\n\
             {}, {} cores, {} GiB, Linux {}, {}. Loopback TCP. Load average before: {}.\n\n\
             {} interleaved rounds; iscsi-perf for {} s each; volumes of {} MiB, written once before. \
             Medians, in brackets the least and the greatest.\n\
             'tgt tuned' has segments of 256 KiB, bursts of 1 MiB and InitialR2T=No. \
             '{BUSY}' waits up to {BUSY_POLL} for work before it sleeps.\n\n\
             Written by `make bench`. The speed of a shared machine moves by a factor from hour to hour: only the ratios and the CPU \
             time per GiB (user and system, all threads of the target) compare.\n",
            m.lunet,
            m.commit,
            m.tgt,
            m.qemu,
            m.libiscsi,
            m.cpu,
            m.cores,
            m.memory_gib,
            m.kernel,
            m.system,
            m.load_average,
            self.rounds,
            self.seconds,
            self.volume_mib,
        );
        self.goals(&mut page);
        for medium in Medium::ALL {
            let _ = write!(page, "\n## Volume in {}\n", medium.name());
            self.table(&mut page, medium, "operations per second", SPEED);
            self.table(&mut page, medium, "MiB/s", |sample| sample.mib_per_second);
            self.table(&mut page, medium, "mean latency, us", LATENCY);
            self.table(&mut page, medium, "CPU seconds per GiB", CPU);
        }
        self.idle(&mut page);
        page
    }

    fn goals(&self, page: &mut String) {
        page.push_str("\n## Against the goals (volume in memory)\n\n| load | what | against | goal | measured |\n|---|---|---|---|---|\n");
        for goal in &GOALS {
            let of = |peer| self.spread(peer, Medium::Memory, goal.load, goal.measure);
            let Some((ours, theirs)) = of(goal.lunet).zip(of(goal.against)) else { continue };
            let ratio = ours.median / theirs.median;
            let reached = if goal.at_least { ratio >= goal.wanted } else { ratio <= goal.wanted };
            let _ = writeln!(
                page,
                "| {} | {} | {} | {} {} | {ratio:.2}{} |",
                goal.load,
                goal.what,
                goal.against,
                if goal.at_least { "at least" } else { "at most" },
                goal.wanted,
                if reached { "" } else { " (missed)" },
            );
        }
    }

    fn table(&self, page: &mut String, medium: Medium, what: &str, measure: fn(&Sample) -> f64) {
        let [lunet, stock, tuned] = NAMES;
        let _ = write!(
            page,
            "\n| {what} | {lunet} | {stock} | {tuned} | {lunet}/{stock} | {lunet}/{tuned} |\n|---|---|---|---|---|---|\n"
        );
        for load in &LOADS {
            let cells = NAMES.map(|peer| self.spread(peer, medium, load.name, measure));
            let [Some(ours), Some(stock), Some(tuned)] = cells else { continue };
            let _ = writeln!(
                page,
                "| {} | {} | {} | {} | {:.2} | {:.2} |",
                load.name,
                cell(ours),
                cell(stock),
                cell(tuned),
                ours.median / stock.median,
                ours.median / tuned.median
            );
        }
        let busy = self.spread(BUSY, medium, DEPTH_ONE.name, measure);
        let stock = self.spread(stock, medium, DEPTH_ONE.name, measure);
        if let Some((busy, stock)) = busy.zip(stock) {
            let ratio = busy.median / stock.median;
            let name = DEPTH_ONE.name;
            let _ = writeln!(page, "| {name}, {BUSY} | {} | | | {ratio:.2} | |", cell(busy));
        }
    }

    fn idle(&self, page: &mut String) {
        page.push_str("\n## Idle sessions\n\n| target | sessions | CPU seconds in 10 s | resident before, KiB | resident per session, KiB | proportional, KiB |\n|---|---|---|---|---|---|\n");
        for idle in &self.idle {
            let _ = writeln!(
                page,
                "| {} | {} | {:.2} | {} | {:.1} | {:.1} |",
                idle.peer,
                idle.sessions,
                idle.cpu_seconds,
                idle.rss_before_kib,
                idle.rss_per_session_kib,
                idle.pss_per_session_kib
            );
        }
    }
}

fn cell(spread: Spread) -> String {
    let digits = match spread.median {
        ..10.0 => 3,
        ..1000.0 => 1,
        _ => 0,
    };
    let Spread { median, least, greatest } = spread;
    format!("{median:.digits$} ({least:.digits$}-{greatest:.digits$})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        let spread =
            |values: &[f64]| Spread::of(values.to_vec()).map(|s| (s.median, s.least, s.greatest));
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some((2.0, 1.0, 3.0)));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), Some((2.5, 1.0, 4.0)));
        assert_eq!(spread(&[]), None);
    }
}
