//! The bottleneck, in sentences.

use crate::model::{Bound, Load, Results, Verdict};
use crate::report::format::{escape, percent};

use crate::model::Comparison;
use crate::stats::Judgement;

use super::{MANY, OPEN, folded, section};

pub(super) fn verdicts(results: &Results) -> String {
    let cards: Vec<String> = findings(results).iter().map(|same| finding(same)).collect();
    let (first, rest) = cards.split_at(cards.len().min(OPEN));
    if first.is_empty() {
        return String::new();
    }
    let mut body = format!("{}<div class=\"grid\">{}</div>", tally(results), first.concat());
    if !rest.is_empty() {
        let rest_of_them = format!("<div class=\"grid\">{}</div>", rest.concat());
        body += &folded(&format!("{} more", rest.len()), &rest_of_them, false);
    }
    section("Bottlenecks", &body)
}

/// Of a comparison: what is better, what worse, and how much of it cannot be told.
pub(super) fn changes(results: &Results) -> String {
    let all = &results.comparisons;
    if all.is_empty() {
        return "<p>Nothing in the first file has a target and a workload of the same name in the second.</p>"
            .to_owned();
    }
    let better = |one: &&Comparison| match one.judgement {
        Judgement::More => one.measure.more_is_better(),
        Judgement::Less => !one.measure.more_is_better(),
        _ => false,
    };
    let told = |one: &&Comparison| matches!(one.judgement, Judgement::More | Judgement::Less);
    let of = all.iter().filter(told).map(|one| (better(&one), one));
    let (good, bad): (Vec<_>, Vec<_>) = of.partition(|(better, _)| *better);
    let line = |(better, one): &(bool, &Comparison)| {
        let class = if *better { "better" } else { "worse" };
        format!(
            "<li><b class=\"{class}\">{class}</b>: {} the {} of {}, {}</li>",
            escape(&one.words()),
            one.measure.name(),
            escape(&one.other),
            escape(&one.workload)
        )
    };
    let lines: Vec<String> = bad.iter().chain(&good).map(line).collect();
    let (first, others) = lines.split_at(lines.len().min(MANY));
    let (good, bad, all) = (good.len(), bad.len(), all.len());
    let mut body = format!(
        "<p>Of {all} figures: {good} better, {bad} worse, {} that cannot be told from noise.</p>",
        all - good - bad
    );
    if !first.is_empty() {
        body += &format!("<ul class=\"changes\">{}</ul>", first.concat());
    }
    if !others.is_empty() {
        let list = format!("<ul class=\"changes\">{}</ul>", others.concat());
        body += &folded(&format!("{} more", others.len()), &list, false);
    }
    format!("<div class=\"card changed\">{body}</div>")
}

/// Of many verdicts: how often each bottleneck.
fn tally(results: &Results) -> String {
    if results.verdicts.len() <= MANY {
        return String::new();
    }
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for verdict in &results.verdicts {
        let name = verdict.bound.map_or("cannot be told", Bound::name);
        match counts.iter_mut().find(|(have, _)| *have == name) {
            Some((_, count)) => *count += 1,
            None => counts.push((name, 1)),
        }
    }
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let all = results.verdicts.len();
    let row = |(name, count): &(&str, usize)| {
        let width = *count as f64 / all as f64 * 100.0;
        format!(
            "<li><div class=\"row\"><span>{}</span><b>{count}</b></div>\
             <div class=\"meter first\"><i style=\"width:{width:.0}%\"></i></div></li>",
            escape(name)
        )
    };
    let rows: String = counts.iter().map(row).collect();
    format!(
        "<div class=\"card tally\"><h3>What bound {all} pairs of target and workload, and how many of them</h3><ul>{rows}</ul></div>"
    )
}

/// Verdicts with one cause: of one target, bound by the same, with the same advice. In the order of the first of each.
fn findings(results: &Results) -> Vec<Vec<&Verdict>> {
    let mut findings: Vec<Vec<&Verdict>> = Vec::new();
    let cause = |one: &Verdict| (one.target.clone(), one.bound, one.advice.clone());
    for verdict in &results.verdicts {
        match findings.iter_mut().find(|same| cause(same[0]) == cause(verdict)) {
            Some(same) => same.push(verdict),
            None => findings.push(vec![verdict]),
        }
    }
    findings
}

/// One cause, whatever the number of workloads that it holds for.
fn finding(same: &[&Verdict]) -> String {
    let (first, several) = match same {
        [] => return String::new(),
        [one] => return verdict(one),
        [first, ..] => (first, same.len()),
    };
    let says = match first.bound {
        Some(bound) => format!("Bound by {} in {several} workloads", bound.name()),
        None => format!("The bottleneck of {several} workloads cannot be determined"),
    };
    let each: String = same
        .iter()
        .map(|one| {
            format!(
                "<li><div class=\"what\">{}</div><span class=\"soft\">{}</span>{}</li>",
                escape(&one.workload),
                escape(&one.sentence),
                layers(one)
            )
        })
        .collect();
    format!(
        "<article class=\"card verdict\"><div class=\"what\">{}</div><div class=\"says\">{}</div>\
         <p class=\"soft\">{}</p><details><summary>Each workload</summary><ul>{each}</ul></details></article>",
        escape(&first.target),
        escape(&says),
        escape(&first.advice)
    )
}

/// How much of each layer is in use.
fn layers(verdict: &Verdict) -> String {
    let layers: String =
        verdict.layers.iter().enumerate().map(|(at, load)| meter(verdict, at, load)).collect();
    match layers.as_str() {
        "" => layers,
        layers => format!("<details><summary>Each layer</summary><ul>{layers}</ul></details>"),
    }
}

fn verdict(verdict: &Verdict) -> String {
    let layers = layers(verdict);
    format!(
        "<article class=\"card verdict\"><div class=\"what\">{} \u{b7} {}</div><div class=\"says\">{}</div>\
         <p class=\"soft\">{}</p>{layers}</article>",
        escape(&verdict.target),
        escape(&verdict.workload),
        escape(&verdict.sentence),
        escape(&verdict.advice)
    )
}

/// How much of a layer is in use.
fn meter(verdict: &Verdict, at: usize, load: &Load) -> String {
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
}
