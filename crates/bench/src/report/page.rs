//! The page: one file that needs no network, no font and no script.

pub(super) mod tables;

use super::format::{escape, percent};
use super::plots::{Figure, bars, curves, forest, histogram, percentiles, timeline};
use crate::model::{Load, Results, Unit, Verdict};
use crate::stats::{Comparison, Measure};

const STYLE: &str = include_str!("style.css");
/// So many verdicts and workloads are shown at once; the others are one touch away.
const OPEN: usize = 4;
/// More workloads than these are too many for a bar each.
const MANY: usize = 8;

/// The results as a page.
pub fn page(results: &Results) -> String {
    let names: Vec<&str> = results.targets.iter().map(|target| target.name.as_str()).collect();
    let title = format!("Benchmark: {}", names.join(", "));
    let day = results.started.replace('T', " ").replace('Z', " UTC");
    let rounds = match results.rounds() {
        1 => "one round".to_owned(),
        rounds => format!("{rounds} interleaved rounds"),
    };
    let when = format!(
        "{day}. Profile {}, {rounds}, {:.0} s in all. lunet {}.",
        results.profile, results.seconds, results.lunet
    );
    let body = [
        verdicts(results),
        overview(results),
        comparisons(results, "Against each other"),
        details(results),
        ceilings(results),
        targets(results),
        machines(results),
        commands(results),
    ];
    let notes: Vec<String> =
        results.notes.iter().cloned().chain(tables::disturbed(results)).collect();
    whole(&title, &when, &notes, &body.concat())
}

/// Head, body, and nothing from elsewhere.
pub(super) fn whole(title: &str, when: &str, notes: &[String], body: &str) -> String {
    let notes: String = notes.iter().map(|note| format!("<li>{}</li>", escape(note))).collect();
    let notes = if notes.is_empty() { notes } else { format!("<ul class=\"notes\">{notes}</ul>") };
    let (title, when) = (escape(title), escape(when));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>{title}</title><style>{STYLE}</style></head>\n<body><main><header><h1>{title}</h1>\
         <p class=\"when\">{when}</p>{notes}</header>{body}\
         <footer>Written by lunet bench. MiB = 2^20 bytes, GiB = 2^30 bytes. Figures of different days compare only by \
         ratios within one run.</footer></main></body></html>\n"
    )
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

fn verdicts(results: &Results) -> String {
    let cards: Vec<String> = results.verdicts.iter().map(verdict).collect();
    let (first, rest) = cards.split_at(cards.len().min(OPEN));
    if first.is_empty() {
        return String::new();
    }
    let mut body = format!("{}<div class=\"grid\">{}</div>", tally(results), first.concat());
    if !rest.is_empty() {
        body += &format!(
            "<details><summary>{} more</summary><div class=\"grid\">{}</div></details>",
            rest.len(),
            rest.concat()
        );
    }
    section("What binds", &body)
}

/// Of many verdicts: how often what binds.
fn tally(results: &Results) -> String {
    if results.verdicts.len() <= MANY {
        return String::new();
    }
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for verdict in &results.verdicts {
        let name = verdict.bound.map_or("cannot be told", crate::model::Bound::name);
        match counts.iter_mut().find(|(have, _)| *have == name) {
            Some((_, count)) => *count += 1,
            None => counts.push((name, 1)),
        }
    }
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let each = counts.iter().map(|(name, count)| format!("{name} {count}"));
    let each = each.collect::<Vec<_>>().join(", ");
    format!("<p>Of {} runs: {each}.</p>", results.verdicts.len())
}

fn verdict(verdict: &Verdict) -> String {
    let meter = |(at, load): (usize, &Load)| {
        let width = (load.share * 100.0).clamp(0.0, 100.0);
        let first = if at == 0 && verdict.bound.is_some() { " first" } else { "" };
        format!(
            "<li><div class=\"row\"><span>{}</span><b>{}</b></div>\
             <div class=\"meter{first}\"><i style=\"width:{width:.0}%\"></i></div>\
             <span class=\"soft\">{}</span></li>",
            escape(&load.name),
            percent(load.share),
            escape(&load.how)
        )
    };
    let layers: String = verdict.layers.iter().enumerate().map(meter).collect();
    let layers = match layers.as_str() {
        "" => layers,
        layers => format!("<details><summary>Each layer</summary><ul>{layers}</ul></details>"),
    };
    format!(
        "<article class=\"card verdict\"><div class=\"what\">{} \u{b7} {}</div><div class=\"says\">{}</div>\
         <p class=\"soft\">{}</p>{layers}</article>",
        escape(&verdict.target),
        escape(&verdict.workload),
        escape(&verdict.sentence),
        escape(&verdict.advice)
    )
}

fn overview(results: &Results) -> String {
    let plots = grid(&cards([bars(results, Unit::MibPerS), bars(results, Unit::Iops)]));
    // Of many workloads the curves say more than a bar for each.
    let plots = match results.workloads.len() {
        many if many > MANY => {
            format!("<details><summary>A bar for each workload</summary>{plots}</details>")
        }
        _ => plots,
    };
    let curves = grid(&cards(curves(results).into_iter().map(Some)));
    let table = tables::summaries(results);
    section("Results", &format!("{curves}{plots}{table}"))
}

pub(super) fn comparisons(results: &Results, title: &str) -> String {
    let figure = |measure: Measure| {
        let all: Vec<&Comparison> =
            results.comparisons.iter().filter(|one| one.measure == measure).collect();
        let mut name = measure.name().to_owned();
        name[..1].make_ascii_uppercase();
        let wish = if measure.more_is_better() { "more is better" } else { "less is better" };
        forest(&format!("{name} ({wish})"), &all)
    };
    let mut body = grid(&cards(Measure::ALL.map(figure)));
    let few = results.comparisons.iter().find(|one| one.effect.is_none());
    if let Some(few) = few.filter(|_| body.is_empty()) {
        body = format!(
            "<p class=\"soft\">{} and the others: {}. Six rounds are the fewest.</p>",
            escape(&few.other),
            escape(&few.words())
        );
    }
    if results.workloads.len() > MANY {
        body = format!("<details><summary>Ratios of all workloads</summary>{body}</details>");
    }
    section(title, &body)
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
        let few = results.workloads.len() <= MANY;
        let open = if few && at < OPEN { " open" } else { "" };
        let name = escape(&load.name);
        body += &format!("<details{open}><summary>{name}</summary>{none}{plots}</details>");
    }
    section("Each workload", &body)
}

fn ceilings(results: &Results) -> String {
    section("Ceilings", &tables::ceilings(results))
}

fn targets(results: &Results) -> String {
    let card = |target: &crate::model::Target| {
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
            let fact = |fact: &crate::model::Fact| {
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
    let command = |command: &crate::model::Command| {
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
        many => format!(
            "<details><summary>{many} commands</summary><div class=\"card\">{all}</div></details>"
        ),
    };
    section("Exact commands", &all)
}
