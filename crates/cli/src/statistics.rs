//! `lunet stats`, `lunet verdict`

use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::control::Client;
use crate::tables;
use crate::watch::{self, lines::lines, rates};
use anyhow::{Context, Result};
use clap::Args;
use lunet_api::Interval;
use lunet_api::rates::Sample;
use lunet_config::units;
use lunet_iscsi::printable::printable_json;

use super::{Ask, answer, json_text, print, print_more};

/// How long `lunet verdict` waits for a server that looks for its links and drives.
const PARTS: Duration = Duration::from_secs(5);

/// How `lunet stats` shows what was done.
#[derive(Args)]
pub struct Stats {
    #[command(flatten)]
    ask: Ask,
    /// Print the rates of each interval until interrupted
    #[arg(long)]
    follow: bool,
    /// Length of an interval [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = interval, requires = "follow", default_value = "1s", hide_default_value = true)]
    interval: Duration,
}

/// `lunet stats`
pub fn stats(options: &Stats) -> Result<ExitCode> {
    if !options.follow {
        return answer(&options.ask, Client::stats, tables::stats);
    }
    let client = options.ask.place.client()?;
    let mut before = watch::look(&client)?;
    loop {
        thread::sleep(options.interval);
        let after = watch::look(&client)?;
        if let Some(rates) = rates::between(&before, &after) {
            let seconds =
                SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
            let text = if options.ask.json {
                let interval = Interval { time: seconds, rates };
                printable_json(&(serde_json::to_string(&interval)? + "\n"))
            } else {
                let told = lunet_verdict::between(&before, &after);
                lines(&rates, told.as_ref(), &format!("{} UTC", units::date(seconds)))
            };
            if !print_more(&text)? {
                return Ok(ExitCode::SUCCESS);
            }
        } else {
            let _ = writeln!(io::stderr(), "lunet: note: lunet was restarted: counting from here");
        }
        before = after;
    }
}

/// What `lunet verdict` judges.
#[derive(Args)]
pub struct Verdict {
    #[command(flatten)]
    ask: Ask,
    /// How long to watch, in seconds [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3600), default_value = "1", hide_default_value = true)]
    seconds: u64,
}

/// `lunet verdict`
pub fn verdict(options: &Verdict) -> Result<ExitCode> {
    let client = options.ask.place.client()?;
    let before = first_look(&client)?;
    thread::sleep(Duration::from_secs(options.seconds));
    let after = watch::look(&client)?;
    let told = lunet_verdict::between(&before, &after)
        .context("lunet was restarted meanwhile: ask again")?;
    print(&if options.ask.json { json_text(&told)? } else { tables::verdict(&told) })?;
    Ok(ExitCode::SUCCESS)
}

/// A look from which the links and drives are known, if they can be in a few seconds: a server that was not asked for long
/// has to look for them.
fn first_look(client: &Client) -> Result<Sample> {
    let begun = Instant::now();
    loop {
        let sample = watch::look(client)?;
        if !sample.stats.parts_wanted || begun.elapsed() > PARTS {
            return Ok(sample);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// An interval between two looks at the statistics, from an option.
///
/// # Errors
/// It is no time, or too short or too long.
pub fn interval(text: &str) -> Result<Duration, String> {
    let time = units::parse_duration(text)?;
    if !(Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&time) {
        return Err("write a time from 100ms to 1h".to_owned());
    }
    Ok(time)
}
