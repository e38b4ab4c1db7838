//! The report for a terminal.

use std::fmt::Write;

use super::{Report, State};
use crate::text::wrap;

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
    for finding in &report.findings {
        let about = finding.about.as_deref().map(|about| format!(" ({about})")).unwrap_or_default();
        let _ = writeln!(out, "{} {}{about}", finding.severity, finding.check);
        wrap(&mut out, "  ", &finding.found);
        wrap(&mut out, "  why: ", &finding.why);
        wrap(&mut out, "  mend: ", &finding.fix);
        out.push('\n');
    }
    if verbose {
        looked(&mut out, report);
    }
    let _ = writeln!(out, "{}", summary(report, verbose));
    out
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
