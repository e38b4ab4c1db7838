//! What a read costs the server.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lunet_e2e::wire::Session;
use lunet_e2e::wire::scsi::{GOOD, read16, sense_key};

use super::config::{self, MEMORY};
use super::figures::{Bound, Figures};
use super::storm::answer_pings;
use super::{COST, SLACK};
use crate::bench::spread::Spread;
use crate::bench::usage;

/// Reads that are under way at a time when several sessions read.
pub const SPREAD: usize = 64;

/// Those of one session.
const DEPTH: usize = 32;

const BLOCK: usize = 4096;
const SECTORS: u64 = 8;

/// Of each volume, so that all that is read stays in the page cache.
const PLACES: u64 = 16;

/// How long it is measured.
pub struct How {
    /// Rounds.
    pub rounds: usize,
    /// Each run.
    pub run: Duration,
    /// Volumes in files.
    pub luns: usize,
}

/// What a read may cost of a session that nothing in the processor's caches is of, by one that all is of.
const COLD: f64 = 2.5;

/// Who reads.
#[derive(Clone, Copy, Debug)]
enum Who {
    /// One session, many reads at a time.
    One,
    /// As many sessions as reads.
    Few,
    /// All sessions one after the other, as many at a time.
    All,
    /// The same, each another LUN of its target.
    AllLuns,
}

/// Reads by the few sessions of one server and the many of the other, in turns.
pub fn compare(
    pids: [u32; 2],
    [few, many]: [&mut Vec<Session>; 2],
    how: &How,
    figures: &mut Figures,
) -> Result<()> {
    let rows = [
        ("one session, 32 reads at a time", Who::One, Who::One),
        ("64 sessions, one read each", Who::Few, Who::Few),
        ("all sessions in turn, 64 at a time, against 64 sessions", Who::Few, Who::All),
        ("all sessions and LUNs in turn, against 64 sessions and LUNs", Who::AllLuns, Who::AllLuns),
    ];
    for (name, alone, crowded) in rows {
        let mut costs = [Vec::new(), Vec::new()];
        for round in 0..=how.rounds {
            // Those that a row leaves out would be taken for dead.
            [&mut *few, &mut *many].into_iter().try_for_each(|all| answer_pings(all))?;
            let one = cost(pids[0], few, alone, how)?;
            let other = cost(pids[1], many, crowded, how)?;
            // The first round warms up.
            if round > 0 {
                costs[0].push(one);
                costs[1].push(other);
            }
        }
        let ratios = costs[1].iter().zip(&costs[0]).map(|(other, one)| other / one).collect();
        let middle = |costs: &[f64]| Spread::of(costs.to_vec()).context("no rounds");
        let (one, other) = (middle(&costs[0])?, middle(&costs[1])?);
        let ratio = Spread::of(ratios).context("no rounds")?;
        let how = format!(
            "CPU time of the server's threads for a read of 4 KiB: {:.2} us among all sessions, {:.2} us among 64; ratios of {} rounds in turns: {}",
            other.median(),
            one.median(),
            how.rounds,
            ratio.ratio()
        );
        // Whose turn comes once in ten thousand finds nothing of its own in a cache.
        let most = match crowded {
            Who::One | Who::Few => 1.0 + (COST - 1.0) * SLACK,
            Who::All | Who::AllLuns => COLD,
        };
        figures.add(
            &format!("cost of a read: {name}"),
            ratio.median(),
            "times",
            &how,
            Bound::AtMost(most),
        );
    }
    Ok(())
}

/// CPU time of the server for each read, in us.
fn cost(pid: u32, sessions: &mut [Session], who: Who, how: &How) -> Result<f64> {
    let before = usage::cpu_of_threads(pid)?;
    let until = Instant::now() + how.run;
    let mut reads = 0;
    match who {
        Who::One => {
            while Instant::now() < until {
                reads += reads_of(&mut sessions[0], DEPTH, reads as u64)?;
            }
        }
        Who::Few => {
            let sessions = &mut sessions[..SPREAD];
            while Instant::now() < until {
                reads += in_turn(sessions, |_| MEMORY, reads as u64)?;
            }
        }
        Who::All | Who::AllLuns => {
            for number in (0..sessions.len() / SPREAD).cycle() {
                if Instant::now() >= until {
                    break;
                }
                let first = number * SPREAD;
                let lun = |at: usize| match who {
                    Who::AllLuns => lun_of(first + at, how.luns),
                    _ => MEMORY,
                };
                reads += in_turn(&mut sessions[first..first + SPREAD], lun, reads as u64)?;
            }
        }
    }
    let took = usage::cpu_of_threads(pid)? - before;
    Ok(took.as_secs_f64() * 1e6 / reads as f64)
}

/// One of the LUNs with files of a session's target.
fn lun_of(number: usize, all: usize) -> u8 {
    let luns = config::luns(all, number).min(usize::from(config::LARGE) - 1).max(1);
    (1 + number / config::TARGETS % luns) as u8
}

/// As many reads at a time on one session; how many.
fn reads_of(session: &mut Session, depth: usize, seed: u64) -> Result<usize> {
    for at in 0..depth as u64 {
        session.start(
            MEMORY,
            &read16((seed + at) % PLACES * SECTORS, SECTORS as u32),
            BLOCK,
            &[],
        )?;
    }
    for _ in 0..depth {
        finish(session)?;
    }
    Ok(depth)
}

/// One read on each session, all at a time; how many.
fn in_turn(sessions: &mut [Session], lun: impl Fn(usize) -> u8, seed: u64) -> Result<usize> {
    let read = read16(seed % PLACES * SECTORS, SECTORS as u32);
    for (at, session) in sessions.iter_mut().enumerate() {
        session.start(lun(at), &read, BLOCK, &[])?;
    }
    for session in &mut *sessions {
        finish(session)?;
    }
    Ok(sessions.len())
}

fn finish(session: &mut Session) -> Result<()> {
    let answer = session.finish()?;
    // The first command for a LUN may be told what has happened before it.
    let attention = sense_key(&answer) == Some(6);
    ensure!(attention || (answer.status == GOOD && answer.data.len() == BLOCK), "{answer:02x?}");
    Ok(())
}

/// One read, again if the session is told something first: how long it took.
pub fn read(session: &mut Session, place: u64) -> Result<Duration> {
    let begun = Instant::now();
    loop {
        let read = read16(place % PLACES * SECTORS, SECTORS as u32);
        let answer = session.execute(MEMORY, &read, BLOCK, &[])?;
        if answer.status == GOOD {
            return Ok(begun.elapsed());
        }
        ensure!(sense_key(&answer) == Some(6), "{answer:02x?}");
    }
}
