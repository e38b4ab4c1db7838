//! The page of tables about one benchmark.

use std::fmt::Write as _;

use lunet_bench::model::{Results, Section};
use lunet_bench::report::{iops, number, time};
use lunet_bench::stats::{Effect, Estimate, Measure, Summary, interleaved};

use super::idle::Idle;
use super::machine::About;
use super::peers::{BUSY, BUSY_POLL, Medium, NAMES};
use super::{CLIENT_CORE, LOADS, TARGET_CORE, called};

/// Everything that was found.
pub struct Report {
    /// Where and with what.
    pub about: About,
    /// How each server differs from one that runs as it comes.
    pub how: Vec<(&'static str, String)>,
    /// Sessions that do nothing.
    pub idles: Vec<Idle>,
    /// What `lunet bench` says.
    pub results: Results,
}

/// What the project has set itself, on the volume in memory: a ratio of lunet to tgt.
struct Goal {
    what: Measure,
    load: &'static str,
    lunet: &'static str,
    against: &'static str,
    wanted: f64,
}

const fn goal(load: &'static str, what: Measure, against: &'static str, wanted: f64) -> Goal {
    Goal { what, load, lunet: NAMES[0], against, wanted }
}

const GOALS: [Goal; 8] = [
    goal(LOADS[0], Measure::Throughput, NAMES[1], 3.3),
    goal(LOADS[0], Measure::ServerCpu, NAMES[1], 0.2),
    goal(LOADS[1], Measure::Throughput, NAMES[1], 2.5),
    goal(LOADS[1], Measure::ServerCpu, NAMES[1], 0.36),
    goal(LOADS[3], Measure::Throughput, NAMES[1], 4.5),
    goal(LOADS[3], Measure::Throughput, NAMES[2], 1.1),
    goal(LOADS[2], Measure::Latency, NAMES[1], 0.7),
    Goal { lunet: BUSY, ..goal(LOADS[2], Measure::Latency, NAMES[1], 0.4) },
];

impl Goal {
    /// What the page adds to the figure: nothing where the goal was reached.
    fn remark(&self, effect: Effect) -> &'static str {
        let reached = |part: f64| match self.what.more_is_better() {
            true => part + 1.0 >= self.wanted,
            false => part + 1.0 <= self.wanted,
        };
        match (reached(effect.mean), reached(effect.low) || reached(effect.high)) {
            (true, _) => "",
            (false, true) => " (whether it was reached cannot be told)",
            (false, false) => " (missed)",
        }
    }
}

/// Targets that stand side by side, and the lunet that they are compared with.
struct Group<'a> {
    title: String,
    base: String,
    names: Vec<&'a str>,
}

// Writing to a String cannot fail, here and below.
impl Report {
    /// The page.
    pub fn markdown(&self) -> String {
        let mut page = self.head();
        self.short(&mut page);
        self.goals(&mut page);
        for group in self.groups() {
            let _ = write!(page, "\n## {}\n", group.title);
            self.figures(&mut page, &group);
            self.ratios(&mut page, &group);
        }
        self.verdicts(&mut page);
        self.ceilings(&mut page);
        self.idle(&mut page);
        self.facts(&mut page);
        page
    }

    fn head(&self) -> String {
        let About { date, lunet, commit, tgt, load_average } = &self.about;
        let results = &self.results;
        let seconds = results.workloads.first().map_or(0.0, |load| load.seconds);
        format!(
            "# Benchmark of {date}\n\n\
             {lunet} (commit {commit}) against tgt {tgt}: servers on core {TARGET_CORE}, and `lunet bench` with lunet's own initiator on \
             core {CLIENT_CORE}. Loopback TCP. Load average before: {load_average}. Other targets, if there are any, run where \
             they run.\n\n\
             {} interleaved rounds of {seconds} s for each load and target; volumes were filled before. Medians, in brackets 95 % \
             confidence (of fewer than six rounds, the least and the greatest). Ratios are of pairs of runs in the same round. \
             s/GiB: seconds of processor time, user and system, of all threads, for each GiB.\n\n\
             Written by `make bench`, with [all runs]({date}.json) for `lunet bench compare` and [plots]({date}.html). The speed of a \
             shared machine moves by a factor from hour to hour: compare ratios and processor time per GiB, and not the \
             figures of two pages.\n",
            results.rounds()
        )
    }

    fn groups(&self) -> Vec<Group<'_>> {
        let names = || self.results.targets.iter().map(|target| target.name.as_str());
        let ours = |medium: Medium, name: &str| name.ends_with(&format!(", {}", medium.name()));
        let mut all: Vec<Group<'_>> = Medium::ALL
            .into_iter()
            .map(|medium| Group {
                title: format!("Volume in {}", medium.name()),
                base: called(NAMES[0], medium),
                names: names().filter(|name| ours(medium, name)).collect(),
            })
            .collect();
        let base = called(NAMES[0], Medium::Memory);
        let other = |name: &&str| Medium::ALL.into_iter().all(|medium| !ours(medium, name));
        let names: Vec<&str> = names().filter(|name| *name == base || other(name)).collect();
        if names.len() > 1 {
            all.push(Group { title: "Other targets".to_owned(), base, names });
        }
        all
    }

    /// lunet and tgt as they come, by the figure that says most about each load.
    fn short(&self, page: &mut String) {
        let [ours, theirs, _] = NAMES.map(|name| called(name, Medium::Memory));
        let busy = called(BUSY, Medium::Memory);
        page.push_str(
            "\n| volume in memory | lunet | tgt | lunet in parts of tgt |\n|---|---|---|---|\n",
        );
        for load in &self.results.workloads {
            let [Some(our), Some(their)] =
                [&ours, &theirs].map(|name| self.results.summary(name, &load.name))
            else {
                continue;
            };
            let alone = load.outstanding() == 1;
            let figure = |one: &Summary| match alone {
                true => one.latency_mean_us.map_or_else(|| "-".to_owned(), |us| time(us.median)),
                false if load.block_bytes > 16 << 10 => {
                    format!("{} MiB/s", number(one.mib_per_s.median))
                }
                false => format!("{} IOPS", iops(one.iops.median)),
            };
            let ratio = |name: &str, measure: Measure| {
                interleaved(&self.results, &load.name, (&theirs, name), measure)
                    .map_or_else(|| "-".to_owned(), |found| found.words())
            };
            let what = if alone { Measure::Latency } else { Measure::Throughput };
            let mut words = format!("{}: {}", what.name(), ratio(&ours, what));
            let _ = match alone {
                true => write!(words, "; with busy polling {}", ratio(&busy, what)),
                false => {
                    write!(words, "; server CPU per GiB: {}", ratio(&ours, Measure::ServerCpu))
                }
            };
            let (our, their) = (figure(our), figure(their));
            let _ = writeln!(page, "| {} | {our} | {their} | {words} |", load.name);
        }
    }

    fn goals(&self, page: &mut String) {
        page.push_str("\n## Against the goals (volume in memory)\n\n| load | what | lunet in parts of | goal | measured |\n|---|---|---|---|---|\n");
        for goal in &GOALS {
            let [base, other] = [goal.against, goal.lunet].map(|name| called(name, Medium::Memory));
            let found = interleaved(&self.results, goal.load, (&base, &other), goal.what);
            let Some(found) = found else { continue };
            let remark = found.effect.map_or("", |effect| goal.remark(effect));
            let _ = writeln!(
                page,
                "| {} | {}{} | {} | {} {} | {}{remark} |",
                goal.load,
                goal.what.name(),
                if goal.lunet == BUSY { ", busy polling" } else { "" },
                goal.against,
                if goal.what.more_is_better() { "at least" } else { "at most" },
                goal.wanted,
                found.words(),
            );
        }
    }

    fn figures(&self, page: &mut String, group: &Group<'_>) {
        page.push_str("\n| load | target | MiB/s | IOPS | mean latency | 99 % | client s/GiB | server s/GiB |\n|---|---|---|---|---|---|---|---|\n");
        for load in &self.results.workloads {
            for name in &group.names {
                let Some(one) = self.results.summary(name, &load.name) else { continue };
                let _ = writeln!(
                    page,
                    "| {} | {name} | {} | {} | {} | {} | {} | {} |",
                    load.name,
                    spread(Some(one.mib_per_s), number),
                    spread(Some(one.iops), iops),
                    spread(one.latency_mean_us, time),
                    spread(one.latency_p99_us, time),
                    spread(one.client_cpu_s_per_gib, number),
                    spread(one.server_cpu_s_per_gib, number),
                );
            }
        }
    }

    fn ratios(&self, page: &mut String, group: &Group<'_>) {
        let _ = write!(
            page,
            "\n| load | {} in parts of | throughput | mean latency | server CPU per GiB | client CPU per GiB |\n|---|---|---|---|---|---|\n",
            group.base
        );
        for load in &self.results.workloads {
            for name in group.names.iter().filter(|name| **name != group.base) {
                let ratio = |measure| {
                    interleaved(&self.results, &load.name, (name, &group.base), measure)
                        .map_or_else(|| "-".to_owned(), |found| found.words())
                };
                let _ = writeln!(
                    page,
                    "| {} | {name} | {} | {} | {} | {} |",
                    load.name,
                    ratio(Measure::Throughput),
                    ratio(Measure::Latency),
                    ratio(Measure::ServerCpu),
                    ratio(Measure::ClientCpu),
                );
            }
        }
    }

    fn verdicts(&self, page: &mut String) {
        page.push_str("\n## Bottlenecks\n\n| load | target | |\n|---|---|---|\n");
        for load in &self.results.workloads {
            for verdict in self.results.verdicts.iter().filter(|one| one.workload == load.name) {
                let _ =
                    writeln!(page, "| {} | {} | {} |", load.name, verdict.target, verdict.sentence);
            }
        }
    }

    fn ceilings(&self, page: &mut String) {
        page.push_str("\n## What each layer can carry\n\n| layer | ceiling | how it was got |\n|---|---|---|\n");
        let mut told: Vec<(&str, &str)> = Vec::new();
        for one in &self.results.ceilings {
            // One layer may hold for several targets.
            if told.contains(&(&one.name, &one.how)) {
                continue;
            }
            told.push((&one.name, &one.how));
            let (value, unit) = (number(one.value), one.unit.text());
            let _ = writeln!(page, "| {} | {value} {unit} | {} |", one.name, one.how);
        }
    }

    fn idle(&self, page: &mut String) {
        page.push_str("\n## Idle sessions\n\n| target | sessions | CPU seconds in 10 s | resident before, KiB | resident per session, KiB | proportional, KiB |\n|---|---|---|---|---|---|\n");
        for idle in &self.idles {
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

    fn facts(&self, page: &mut String) {
        page.push_str("\n## How the servers ran\n\n| target | settings |\n|---|---|\n");
        for (name, how) in &self.how {
            let _ = writeln!(page, "| {name} | {how} |");
        }
        let _ = writeln!(
            page,
            "\n'{BUSY}' waits up to {BUSY_POLL} for work before it sleeps, and has its volume in memory only.\n\n## The machine\n\n| | | |\n|---|---|---|"
        );
        let sections = self.results.machines.iter().flat_map(|machine| &machine.sections);
        for Section { title, facts } in sections {
            for fact in facts {
                let _ = writeln!(page, "| {title} | {} | {} |", fact.key, fact.value);
            }
        }
        page.push_str("\n## The command\n\n```sh\n");
        if let Some(command) = self.results.commands.first() {
            let _ = writeln!(page, "{}", command.line);
        }
        page.push_str("```\n");
        if !self.results.notes.is_empty() {
            page.push_str("\n## Notes\n\n");
        }
        for note in &self.results.notes {
            let _ = writeln!(page, "- {note}");
        }
    }
}

/// A figure with its interval.
fn spread(estimate: Option<Estimate>, told: impl Fn(f64) -> String) -> String {
    match estimate {
        None => "-".to_owned(),
        Some(one) if one.rounds == 1 => told(one.median),
        Some(one) => format!("{} ({}-{})", told(one.median), told(one.low), told(one.high)),
    }
}

#[cfg(test)]
mod tests;
