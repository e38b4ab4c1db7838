//! `lunet top`, `lunet stats`

use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::Args;
use lunet::control::Request;
use lunet::watch::{self, lines::lines, rates};
use lunet::{tables, units};
use lunet_iscsi::printable::printable_json;

use super::{Ask, Where, answer, print_more};

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

/// What `lunet top` shows, and how often.
#[derive(Args)]
pub struct Top {
    #[command(flatten)]
    place: Where,
    /// Refresh interval [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "1s", hide_default_value = true)]
    interval: Duration,
}

/// `lunet stats`
pub fn stats(options: &Stats) -> Result<ExitCode> {
    if !options.follow {
        return answer(&options.ask, &Request::Stats, tables::stats);
    }
    let path = options.ask.place.socket()?;
    let mut before = watch::look(&path)?;
    loop {
        thread::sleep(options.interval);
        let after = watch::look(&path)?;
        if let Some(rates) = rates::between(&before, &after) {
            let seconds =
                SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
            let text = if options.ask.json {
                let line = serde_json::json!({ "time": seconds, "rates": rates });
                printable_json(&format!("{line}\n"))
            } else {
                lines(&rates, &format!("{} UTC", units::date(seconds)))
            };
            if !print_more(&text)? {
                return Ok(ExitCode::SUCCESS);
            }
        } else {
            let _ =
                writeln!(io::stderr(), "lunet: note: lunet was started anew: counting from here");
        }
        before = after;
    }
}

/// `lunet top`
pub fn top(options: &Top) -> Result<ExitCode> {
    watch::terminal::top(&options.place.socket()?, options.interval)?;
    Ok(ExitCode::SUCCESS)
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = units::parse_duration(text)?;
    if !(Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&time) {
        return Err("write a time from 100ms to 1h".to_owned());
    }
    Ok(time)
}
