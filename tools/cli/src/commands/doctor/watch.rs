//! `lunet doctor --watch` and `--since`: two looks at one machine.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lunet_config::units::parse_duration;
use lunet_host::doctor::{self, Checks};
use lunet_host::facts::{Facts, facts};
use lunet_host::source::{Live, Source, Tree};
use serde_json::json;

use super::{Doctor, answer, more};
use lunet_cli::interrupt::first_of_the_end;

/// The least and the most time between two looks.
const SPANS: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(3600);

/// A second signal ends the program, as shells count it.
const STOPPED: i32 = 130;

/// How often the time that is left is shown, and signals are looked for.
const TICK: Duration = Duration::from_millis(100);

/// Reads how long to wait between the looks.
pub fn span(text: &str) -> Result<Duration, String> {
    let span = parse_duration(text).map_err(|error| error.to_string())?;
    // Rates are of whole seconds.
    match SPANS.contains(&span) && span.subsec_nanos() == 0 {
        true => Ok(span),
        false => Err("the looks are 1 second to 1 hour apart, in whole seconds".to_owned()),
    }
}

/// Two looks at this machine.
pub fn watch(options: &Doctor, span: Duration) -> Result<ExitCode> {
    let stop = first_of_the_end(STOPPED).context("cannot catch signals")?;
    let first = Instant::now();
    let before = facts(&Live);
    wait(first, span, &stop);
    let second = Instant::now();
    let after = facts(&Live);
    // Each counter is read at the same place of both looks, so between their beginnings.
    let passed = second.duration_since(first).as_secs_f64().round();
    // At most an hour and a look.
    compare(options, &before, &after, (passed as i64).max(1))
}

/// The second look is at this machine or at a capture, the first one is in a capture.
pub fn since(options: &Doctor, earlier: &Path) -> Result<ExitCode> {
    let tree = Tree::open(earlier)?;
    let before = facts(&tree);
    let (now, after) = match &options.root {
        Some(root) => {
            let tree = Tree::open(root)?;
            (tree.now(), facts(&tree))
        }
        None => (Live.now(), facts(&Live)),
    };
    let by_clock = now.zip(tree.now()).map(|(now, then)| now - then);
    let by_uptime = after.load.uptime_seconds.zip(before.load.uptime_seconds);
    let Some(seconds) = by_clock.or(by_uptime.map(|(now, then)| now - then)) else {
        bail!("{}: it does not say when it was captured", earlier.display());
    };
    compare(options, &before, &after, seconds)
}

fn compare(options: &Doctor, before: &Facts, after: &Facts, seconds: i64) -> Result<ExitCode> {
    let mut checks = Checks::embedded()?;
    more(&mut checks, options.checks.as_deref())?;
    let watched = doctor::watch(before, after, seconds, &checks, &Checks::of_watching()?)?;
    let text = match options.json {
        true => format!("{:#}\n", json!(watched)),
        false => doctor::watched_page(&watched, options.verbose),
    };
    answer(&watched.report, &text)
}

/// Waits until so much time has passed, or a signal comes.
fn wait(from: Instant, span: Duration, stop: &AtomicBool) {
    let terminal = io::stderr().is_terminal();
    let mut shown = None;
    while let Some(left) = span.checked_sub(from.elapsed()).filter(|left| !left.is_zero()) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let seconds = left.as_secs() + 1;
        if terminal && shown != Some(seconds) {
            let line = format!("\r\x1b[Ksecond look in {seconds} s (Ctrl-C: now)");
            let _ = io::stderr().write_all(line.as_bytes());
            shown = Some(seconds);
        }
        thread::sleep(left.min(TICK));
    }
    if terminal {
        let _ = io::stderr().write_all(b"\r\x1b[K");
    }
}
