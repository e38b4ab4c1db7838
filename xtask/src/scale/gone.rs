//! Everybody logs out: what the server keeps of their memory.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use lunet_e2e::wire::Session;

use super::figures::{Bound, Figures};
use super::{Arguments, Crowd, SLACK, connect_hosts, storm};
use crate::bench::usage;

/// How often all of them come and go.
const ROUNDS: usize = 3;

/// The server gives memory back some 10 s after the last has gone.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(500);

/// What is aimed at: percent of what they took.
const LEFT: f64 = 15.0;

/// Has all sessions and controllers come and go on a server of their own, again and again.
pub fn rounds(crowd: Crowd, arguments: &Arguments, figures: &mut Figures) -> Result<()> {
    let pid = crowd.server.pid();
    let before = usage::memory(pid)?.rss;
    for round in 1..=ROUNDS {
        let mut sessions = storm::log_in(&crowd.server, arguments.sessions)?.sessions;
        sessions.iter_mut().try_for_each(|session| session.settle(0))?;
        let hosts = connect_hosts(&crowd, arguments.controllers)?;
        storm::answer_pings(&mut sessions)?;
        let taken = usage::memory(pid)?.rss.saturating_sub(before).max(1);
        drop(hosts);
        sessions.into_iter().try_for_each(Session::logout)?;
        let until = Instant::now() + PATIENCE;
        let percent = loop {
            let left = usage::memory(pid)?.rss.saturating_sub(before);
            let percent = 100.0 * left as f64 / taken as f64;
            if percent <= LEFT || Instant::now() >= until {
                break percent;
            }
            thread::sleep(PAUSE);
        };
        let how = format!(
            "growth of resident memory since the start, of {} MiB that all sessions and controllers took; {} s at the most after the last has logged out",
            taken >> 10,
            PATIENCE.as_secs()
        );
        let what = format!("memory left when all have gone, round {round}");
        figures.add(&what, percent, "%", &how, Bound::AtMost(LEFT * SLACK));
    }
    crowd.server.stop()?;
    Ok(())
}
