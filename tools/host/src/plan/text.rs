//! A plan as people read it.

use std::fmt::Write;

use lunet_bench::report::wrapped;

use super::{Item, Plan, Verdict};
use crate::rules::{Effect, Setting};

/// How wide a line may be.
const WIDTH: usize = 110;

/// Spaces in front of a paragraph.
const INDENT: usize = 6;

/// The plan as a text. `all` also shows what is as it should be, and what does not apply.
pub fn write(plan: &Plan, all: bool) -> String {
    let mut out = String::new();
    let count = |wanted: fn(&Verdict) -> bool| {
        plan.items.iter().filter(|item| wanted(&item.verdict)).count()
    };
    let changes = count(|verdict| *verdict == Verdict::Change);
    let good = count(|verdict| *verdict == Verdict::Good);
    let advice = count(|verdict| matches!(verdict, Verdict::Advice { .. }));
    let not = plan.items.len() - changes - good - advice;
    let _ = writeln!(
        out,
        "Profile {}: {changes} to change, {good} as they should be, {advice} for you to consider, \
         {not} do not apply here.",
        plan.profile
    );
    section(&mut out, plan, "To change", |verdict| *verdict == Verdict::Change);
    freebsd(&mut out, plan);
    section(&mut out, plan, "To consider", |verdict| matches!(verdict, Verdict::Advice { .. }));
    if all {
        section(&mut out, plan, "As it should be", |verdict| *verdict == Verdict::Good);
        let not = |verdict: &Verdict| matches!(verdict, Verdict::NotApplicable { .. });
        section(&mut out, plan, "Does not apply", not);
    }
    out
}

/// The lines for the files of FreeBSD: lunet does not set anything there.
fn freebsd(out: &mut String, plan: &Plan) {
    let lines = |of_loader: bool| -> Vec<String> {
        let line = |item: &Item| match (&item.setting, &item.wanted) {
            (Some(setting @ Setting::FreeBsd { loader, .. }), Some(wanted))
                if *loader == of_loader =>
            {
                Some(setting.freebsd_line(wanted))
            }
            _ => None,
        };
        plan.changes().filter_map(line).collect()
    };
    let (sysctl, loader) = (lines(false), lines(true));
    if sysctl.is_empty() && loader.is_empty() {
        return;
    }
    out.push_str("\nlunet does not change anything on FreeBSD: these are the lines to add.\n");
    for (file, kind, when, lines) in [
        ("/etc/sysctl.conf", "sysctl", "at once with `service sysctl restart`", sysctl),
        ("/boot/loader.conf", "loader", "after a reboot", loader),
    ] {
        if !lines.is_empty() {
            let _ =
                writeln!(out, "  {file} (TrueNAS CORE: System > Tunables, type {kind}), {when}");
            lines.iter().for_each(|line| out.push_str(&format!("      {line}\n")));
        }
    }
}

fn section(out: &mut String, plan: &Plan, head: &str, wanted: fn(&Verdict) -> bool) {
    let mut items = plan.items.iter().filter(|item| wanted(&item.verdict)).peekable();
    if items.peek().is_none() {
        return;
    }
    let _ = writeln!(out, "\n{head}");
    let mut before: Option<&Item> = None;
    for item in items {
        // Things of one kind, such as eight drives, share what is said about them.
        let again = before.is_some_and(|before| told(before) == told(item));
        if !again {
            if let Some(before) = before {
                story(out, before);
            }
            if before.is_none_or(|before| before.rule != item.rule) {
                let _ = writeln!(out, "  {}: {}", item.rule, item.title);
            }
        }
        line(out, item);
        before = Some(item);
    }
    if let Some(before) = before {
        story(out, before);
    }
}

/// What is said of a thing, without its name.
fn told(item: &Item) -> (&str, String) {
    let about = item.about.as_deref().unwrap_or("\0");
    let verdict = match &item.verdict {
        Verdict::NotApplicable { because } => because,
        Verdict::Advice { advice } => advice,
        Verdict::Change | Verdict::Good => "",
    };
    (&item.rule, format!("{verdict} {}", item.reason).replace(about, "\0"))
}

/// What it is and what it should be.
fn line(out: &mut String, item: &Item) {
    let Some(setting) = &item.setting else {
        if let Some(about) = &item.about {
            let _ = writeln!(out, "      {about}");
        }
        return;
    };
    let now = item.now.as_deref().unwrap_or("not set");
    let _ = match &item.wanted {
        Some(wanted) if item.verdict == Verdict::Change => {
            writeln!(out, "      {setting}: {now} -> {wanted}")
        }
        _ => writeln!(out, "      {setting}: {now}"),
    };
}

/// Why, and what may go wrong.
fn story(out: &mut String, item: &Item) {
    match &item.verdict {
        Verdict::NotApplicable { because } => {
            paragraph(out, &format!("Does not apply: {because}."));
            return;
        }
        Verdict::Advice { advice } => paragraph(out, advice),
        Verdict::Change | Verdict::Good => {}
    }
    paragraph(out, &item.reason);
    if item.verdict == Verdict::Change {
        let when = match item.effect {
            Effect::Live => String::new(),
            effect => format!(" Works {}.", effect.words()),
        };
        paragraph(out, &format!("Risk: {}{when}", item.risk));
    }
}

/// Breaks a text into lines.
pub(super) fn paragraph(out: &mut String, text: &str) {
    let words: Vec<&str> = text.split_whitespace().collect();
    *out += &wrapped(&words.join(" "), Some(WIDTH), INDENT, INDENT);
}
