//! The report for a terminal.

use std::fmt::Write;

use super::{Finding, Report, State, Watched};
use crate::wrap;

/// So many findings of one check are told in full.
const SHOWN: usize = 3;

/// Findings first; with `verbose` also everything that was looked at.
pub fn page(report: &Report, verbose: bool) -> String {
    let mut out = String::new();
    if !report.could_look {
        out.push_str("Nothing can be seen of this machine: no kernel release and no memory.\n");
        return out;
    }
    if !report.machine.is_empty() {
        let _ = writeln!(out, "{}\n", report.machine);
    }
    for alike in report.findings.chunk_by(|a, b| a.check == b.check) {
        group(&mut out, alike);
    }
    if verbose {
        looked(&mut out, report);
    }
    let _ = writeln!(out, "{}", summary(report, verbose));
    out
}

/// The same of two looks, and what is old.
pub fn watched_page(watched: &Watched, verbose: bool) -> String {
    let mut out = page(&watched.report, verbose);
    if watched.old.is_empty() {
        return out;
    }
    let _ = writeln!(
        out,
        "\nOld: counted since start, but not or hardly in these {} seconds:",
        watched.seconds
    );
    for alike in watched.old.chunk_by(|a, b| a.check == b.check) {
        for finding in alike.iter().take(SHOWN) {
            wrap(&mut out, "  ", &format!("{}: {}", finding.check, finding.found));
        }
        if let Some(more) = alike.len().checked_sub(SHOWN).filter(|more| *more > 0) {
            let _ = writeln!(out, "  {}: the same of {more} more.", alike[0].check);
        }
    }
    out
}

/// Findings of one check: what was found for each, and once why it matters and how to fix it.
fn group(out: &mut String, alike: &[Finding]) {
    let Some(first) = alike.first() else { return };
    let named: Vec<&str> = alike.iter().filter_map(|finding| finding.about.as_deref()).collect();
    let about = match named.len() {
        0 => String::new(),
        1..=SHOWN => format!(" ({})", named.join(", ")),
        more => format!(" ({} and {} more)", named[..SHOWN].join(", "), more - SHOWN),
    };
    let _ = writeln!(out, "{} {}{about}", first.severity, first.check);
    for finding in alike.iter().take(SHOWN) {
        wrap(out, "  ", &finding.found);
    }
    if let Some(rest) = named.get(SHOWN..).filter(|rest| !rest.is_empty()) {
        wrap(out, "  ", &format!("The same of {}.", rest.join(", ")));
    }
    wrap(out, "  why: ", &first.why);
    // A command is to be copied, so it stays in one line.
    for (number, line) in first.fix.lines().enumerate() {
        let _ = writeln!(out, "{}{line}", if number == 0 { "  fix: " } else { "       " });
    }
    out.push('\n');
}

/// What was looked at, layer by layer.
fn looked(out: &mut String, report: &Report) {
    let mut layer = "";
    for looked in &report.looked {
        if looked.layer != layer {
            layer = &looked.layer;
            let _ = writeln!(out, "{layer}");
        }
        let mark = match looked.state {
            State::Finding => "! ",
            State::Healthy => "ok",
            State::Unknown => "? ",
            State::Absent => "- ",
            State::Broken => "!!",
        };
        let _ = writeln!(out, "  {mark} {}: {}", looked.check, looked.text);
    }
    out.push('\n');
}

fn summary(report: &Report, verbose: bool) -> String {
    let findings = match report.findings.len() {
        0 => "Nothing found.".to_owned(),
        1 => "1 finding.".to_owned(),
        count => format!("{count} findings."),
    };
    let healthy = report.count(State::Healthy);
    let unknown = report.count(State::Unknown);
    let broken = report.count(State::Broken);
    let mut text = format!("{findings} {} checks, {healthy} things in order", report.checks);
    if unknown > 0 {
        let _ = write!(text, ", {unknown} that could not be seen");
    }
    if broken > 0 {
        let _ = write!(text, ", {broken} checks that are wrong themselves");
    }
    text.push('.');
    if !verbose {
        text.push_str(" --verbose shows each.");
    }
    text
}
