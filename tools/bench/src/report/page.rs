//! The page: one file that needs no network, no font and no script.

pub(super) mod glance;
pub(super) mod tables;
mod verdicts;

use super::format::escape;
use super::plots::{Figure, bars, curves, forest, histogram, percentiles, timeline};
use crate::model::{Command, Fact, Machine, Results, Target};
use crate::model::{Comparison, Measure};

const STYLE: &str = include_str!("style.css");
/// So many verdicts and workloads are shown at once; the others are one touch away.
const OPEN: usize = 6;
/// More workloads than these are too many for a bar each.
const MANY: usize = 8;

/// The results as one HTML page that loads nothing.
pub fn page(results: &Results) -> String {
    let names: Vec<&str> = results.targets.iter().map(|target| target.name.as_str()).collect();
    let title = format!("Benchmark: {}", names.join(" · "));
    let body = [
        at_a_glance(results),
        verdicts::verdicts(results),
        overview(results),
        section("Against each other", &comparisons(results)),
        rest(results),
    ];
    whole(&title, &headings(results), &body.concat())
}

/// Two files in one: what is different comes first.
pub(super) fn compared(results: &Results, labels: (&str, &str)) -> String {
    let title = format!("Benchmarks compared: {} and {}", labels.0, labels.1);
    let changed = verdicts::changes(results) + &comparisons(results);
    let body = [
        section("What is different", &changed),
        at_a_glance(results),
        overview(results),
        verdicts::verdicts(results),
        rest(results),
    ];
    whole(&title, &headings(results), &body.concat())
}

fn at_a_glance(results: &Results) -> String {
    let choice = results.choice.as_ref();
    let choice = choice.map_or_else(String::new, |told| format!("<p>{}</p>", escape(told)));
    let all = [glance::tiles(results), choice, warning(results), glance::matrix(results)];
    section("At a glance", &all.concat())
}

/// What is looked up, not read.
fn rest(results: &Results) -> String {
    let all = [
        details(results),
        section("All figures", &tables::summaries(results)),
        section("What each layer can carry", &tables::ceilings(results)),
        notes(results),
        targets(results),
        machines(results),
        commands(results),
    ];
    all.concat()
}

/// Head, body, and nothing from elsewhere.
fn whole(title: &str, when: &[String], body: &str) -> String {
    let when: String =
        when.iter().map(|line| format!("<p class=\"when\">{}</p>", escape(line))).collect();
    let title = escape(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>{title}</title><style>{STYLE}</style></head>\n<body><main><header><h1>{title}</h1>{when}</header>{body}\
         <footer>Written by lunet bench. MiB = 2^20 bytes, GiB = 2^30 bytes. Figures of different days compare only by \
         ratios within one run.</footer></main></body></html>\n"
    )
}

/// When, how and on what: the lines below the title.
fn headings(results: &Results) -> Vec<String> {
    let day = results.started.replace('T', " ").replace('Z', " UTC");
    let rounds = match results.rounds() {
        1 => "one round".to_owned(),
        rounds => format!("{rounds} interleaved rounds"),
    };
    let mut lines = vec![format!(
        "{day} \u{b7} profile {}, {rounds}, {:.0} s in all \u{b7} lunet {}",
        results.profile, results.seconds, results.lunet
    )];
    let fact = |machine: &Machine, part: &str, key: &str| {
        let facts = machine.sections.iter().filter(|one| one.title == part);
        let mut facts = facts.flat_map(|one| &one.facts);
        facts.find(|one| one.key == key).map(|one| one.value.clone())
    };
    lines.extend(results.machines.iter().filter_map(|machine| {
        let told = [
            fact(machine, "processor", "model"),
            fact(machine, "processor", "processors (threads)")
                .map(|count| format!("{count} threads")),
            fact(machine, "memory", "size"),
            fact(machine, "system", "distribution"),
            fact(machine, "system", "kernel").map(|kernel| format!("Linux {kernel}")),
        ];
        let told: Vec<String> = told.into_iter().flatten().collect();
        (!told.is_empty()).then(|| format!("{}: {}", machine.role, told.join(", ")))
    }));
    lines
}

/// What makes the figures worth less: nobody may miss it.
fn warning(results: &Results) -> String {
    let told = results.notes.iter().filter(|note| serious(note)).cloned();
    let told: String = told
        .chain(tables::disturbed(results))
        .map(|note| format!("<p>{}</p>", escape(&note)))
        .collect();
    if told.is_empty() {
        told
    } else {
        format!("<div class=\"warning\" role=\"note\">{told}</div>")
    }
}

fn serious(note: &str) -> bool {
    note.contains("Not complete")
}

fn notes(results: &Results) -> String {
    let notes = results.notes.iter().filter(|note| !serious(note));
    let notes: String = notes.map(|note| format!("<li>{}</li>", escape(note))).collect();
    if notes.is_empty() {
        return notes;
    }
    section("Notes", &format!("<ul class=\"notes\">{notes}</ul>"))
}

fn section(title: &str, body: &str) -> String {
    match body {
        "" => String::new(),
        body => format!("<section><h2>{}</h2>{body}</section>", escape(title)),
    }
}

fn cards(figures: impl IntoIterator<Item = Option<Figure>>) -> String {
    figures.into_iter().flatten().map(|figure| figure.html()).collect()
}

fn grid(all: &str) -> String {
    if all.is_empty() { String::new() } else { format!("<div class=\"grid\">{all}</div>") }
}

/// What is long and not for everybody.
fn folded(summary: &str, body: &str, open: bool) -> String {
    let (open, summary) = (if open { " open" } else { "" }, escape(summary));
    format!("<details{open}><summary>{summary}</summary>{body}</details>")
}

fn overview(results: &Results) -> String {
    let bars = grid(&cards(results.workloads.iter().map(|load| bars(results, load))));
    // Of many workloads the curves say more than a bar for each.
    let bars = match results.workloads.len() {
        many if many > MANY && !bars.is_empty() => folded("Bars of each workload", &bars, false),
        _ => bars,
    };
    let curves = grid(&cards(curves(results).into_iter().map(Some)));
    let body = curves + &bars;
    if body.is_empty() {
        return body;
    }
    let how = match results.rounds() {
        1 => "One round: nothing can be said about the spread.",
        few if (few as usize) < crate::stats::FEWEST => {
            "Medians of the rounds; the thin line reaches from the least to the greatest: too few rounds for an interval."
        }
        _ => "Medians of the rounds; the thin line is the interval of 95 % confidence.",
    };
    section("How fast", &format!("<p class=\"soft\">{}</p>{body}", escape(how)))
}

fn comparisons(results: &Results) -> String {
    let figure = |measure: Measure| {
        let all: Vec<&Comparison> =
            results.comparisons.iter().filter(|one| one.measure == measure).collect();
        let mut name = measure.name().to_owned();
        name[..1].make_ascii_uppercase();
        let wish = if measure.more_is_better() { "more is better" } else { "less is better" };
        forest(&format!("{name} ({wish})"), &all)
    };
    let body = grid(&cards(Measure::ALL.map(figure)));
    if !body.is_empty() {
        return match results.workloads.len() {
            many if many > MANY => folded("Ratios of all workloads", &body, false),
            _ => body,
        };
    }
    let few = results.comparisons.iter().find(|one| one.effect.is_none());
    few.map_or_else(String::new, |few| {
        format!("<p class=\"soft\">Not compared: {}, six are the fewest.</p>", escape(&few.words()))
    })
}

fn details(results: &Results) -> String {
    let mut body = String::new();
    for (at, load) in results.workloads.iter().enumerate() {
        let plots = cards([
            percentiles(results, &load.name),
            histogram(results, &load.name),
            timeline(results, &load.name),
        ]);
        let machine = tables::processes(results, &load.name);
        let plots = grid(&(plots + &machine));
        if plots.is_empty() {
            continue;
        }
        let none = match results
            .runs
            .iter()
            .any(|run| run.workload == load.name && run.latency().is_some())
        {
            true => "",
            false => {
                "<p class=\"soft\">The tool did not look at the clock (gtod_reduce): there are no latencies.</p>"
            }
        };
        // The first one shows what there is to see; all of them would be a long way on a phone.
        let open = at == 0 && results.workloads.len() <= MANY;
        body += &folded(&load.name, &format!("{none}{plots}"), open);
    }
    section("Each workload", &body)
}

fn targets(results: &Results) -> String {
    let card = |target: &Target| {
        let digest = if target.data_digest { "<dt>data digest</dt><dd>CRC32C</dd>" } else { "" };
        format!(
            "<div class=\"card\"><h3>{}</h3><dl><dt>where</dt><dd>{}</dd><dt>measured with</dt><dd>{}</dd>{digest}</dl></div>",
            escape(&target.name),
            escape(&target.location),
            escape(&target.tool)
        )
    };
    let cards: String = results.targets.iter().map(card).collect();
    let body =
        if cards.is_empty() { cards } else { format!("<div class=\"grid small\">{cards}</div>") };
    section("Targets", &body)
}

fn machines(results: &Results) -> String {
    let mut body = String::new();
    for machine in &results.machines {
        let mut cards = String::new();
        for part in &machine.sections {
            let fact = |fact: &Fact| {
                format!("<dt>{}</dt><dd>{}</dd>", escape(&fact.key), escape(&fact.value))
            };
            let facts: String = part.facts.iter().map(fact).collect();
            let title = escape(&part.title);
            cards += &format!("<div class=\"card\"><h3>{title}</h3><dl>{facts}</dl></div>");
        }
        let role = escape(&machine.role);
        body += &format!("<h3>{role}</h3><div class=\"grid small\">{cards}</div>");
    }
    section("Machine", &body)
}

fn commands(results: &Results) -> String {
    let command = |command: &Command| {
        format!(
            "<div class=\"soft\">{}</div><pre>{}</pre>",
            escape(&command.what),
            escape(&command.line)
        )
    };
    let all: String = results.commands.iter().map(command).collect();
    let all = match results.commands.len() {
        0 => all,
        few if few <= OPEN => format!("<div class=\"card\">{all}</div>"),
        many => {
            folded(&format!("{many} commands"), &format!("<div class=\"card\">{all}</div>"), false)
        }
    };
    section("Exact commands", &all)
}

#[cfg(test)]
mod tests;
