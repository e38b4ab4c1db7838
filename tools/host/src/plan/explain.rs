//! The whole story of one rule.

use std::fmt::Write;

use super::text::paragraph;
use super::{Item, Verdict};
use crate::rules::Rule;

/// Everything that the rule's file says, and what it comes to on this machine.
pub fn explain(rule: &Rule, items: &[Item]) -> String {
    let mut out = format!("{}: {}\n", rule.id, rule.title);
    part(&mut out, "Why", &rule.reason.source);
    if let Some(advice) = &rule.advice {
        part(&mut out, "Advice only", &advice.source);
    }
    if let Some(set) = &rule.set {
        let mut text = format!("{}.", set.source());
        for (profile, value) in &rule.values {
            let _ = write!(text, " Profile {profile}: `{}`.", value.text());
        }
        part(&mut out, "Sets", &text);
        part(&mut out, "Works", &format!("{}.", rule.effect.words()));
    }
    if let Some(each) = &rule.each {
        let about = each.about.as_ref().map(|about| format!(" for which `{}`", about.text()));
        let text = format!("each of `{}`{}.", each.list.text(), about.unwrap_or_default());
        part(&mut out, "Ranges over", &text);
    }
    for (product, range) in &rule.releases {
        let mut text = String::new();
        if let Some(since) = &range.since {
            let _ = write!(text, "{product} since {since}. ");
        }
        if let Some(until) = &range.until {
            let _ = write!(text, "{product} before {until}.");
        }
        part(&mut out, "Releases", &text);
    }
    for need in &rule.needs {
        let text = format!("`{}`; otherwise: {}.", need.when.text(), need.otherwise.source);
        part(&mut out, "Needs", &text);
    }
    part(&mut out, "Risk", &rule.risk);
    part(&mut out, "Source", &rule.source);
    for line in &rule.recipe {
        part(&mut out, "Judges the recipe's line", line);
    }
    part(&mut out, "Comes from", &format!("{} (layer {})", rule.file, rule.layer));
    here(&mut out, items);
    out
}

fn part(out: &mut String, head: &str, text: &str) {
    let _ = writeln!(out, "  {head}");
    paragraph(out, text);
}

fn here(out: &mut String, items: &[Item]) {
    let _ = writeln!(out, "  On this machine");
    if items.is_empty() {
        paragraph(out, "does not apply: the rule is for another system.");
    }
    for item in items {
        let about = item.about.as_ref().map(|about| format!("{about}: ")).unwrap_or_default();
        let now = item.now.as_deref().unwrap_or("not set");
        let wanted = item.wanted.as_deref().unwrap_or_default();
        let text = match &item.verdict {
            Verdict::Change => format!("{about}{now}, should be {wanted}. {}", item.reason),
            Verdict::Good => format!("{about}{now}, as it should be."),
            Verdict::NotApplicable { because } => format!("{about}does not apply: {because}."),
            Verdict::Advice { advice } => format!("{about}{advice}"),
        };
        paragraph(out, &text);
    }
}
