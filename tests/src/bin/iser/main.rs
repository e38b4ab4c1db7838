//! An initiator over RDMA that does what the kernel's never would: for the lab, where `suites/iser-faults.sh`
//! runs it against lunet over soft RoCE.
//!
//! `iser FROM TO TARGET TRIAL [NUMBER]`: from this machine's address to a portal; the trials are in `TRIALS`.

mod client;

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lunet_iscsi::initiator::Event;

use client::{Client, Direction, MEMORY};

/// Each is run with a connected device; the number is how often.
type Trial = fn(&mut Client, u64) -> Result<()>;

const TRIALS: [(&str, Trial); 5] = [
    ("many", many),
    ("crowd", crowd),
    ("wrong-key", wrong_key),
    ("logout", logout),
    ("hold", hold),
];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("iser: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [from, to, target, trial, rest @ ..] = args.as_slice() else {
        bail!("usage: iser FROM TO TARGET TRIAL [NUMBER]");
    };
    let from: IpAddr = from.parse().with_context(|| format!("{from} is no address"))?;
    let to: SocketAddr = to.parse().with_context(|| format!("{to} is no portal"))?;
    let number = match rest.first() {
        Some(text) => text.parse().with_context(|| format!("{text} is no number"))?,
        None => 100,
    };
    match TRIALS.iter().find(|(name, _)| name == trial) {
        Some((_, trial)) => trial(&mut Client::new(from, to, target)?, number),
        None => bail!("there is no trial {trial}"),
    }
}

/// Connections come and go, in all the ways in which they can.
fn many(client: &mut Client, count: u64) -> Result<()> {
    let pattern: Vec<u8> = (0..512).map(|i| (i * 7 + 3) as u8).collect();
    let mut session = client.logged_in()?;
    client.memory().write(0, &pattern);
    client.run(&mut session, (Direction::Write, 8, 1))?;
    client.log_out(session)?;
    for round in 0..count {
        let ended = match round % 5 {
            0 => read_and_log_out(client, &pattern),
            1 => read_and_vanish(client),
            // Neither a login nor a word.
            2 => client.connected().map(|session| client.vanish(session)),
            // Before the target's answer.
            3 => client.ask().map(|session| client.vanish(session)),
            _ => client.logged_in().and_then(|session| client.hang_up(session)),
        };
        ended.with_context(|| format!("connection {round}"))?;
    }
    println!("{count} connections");
    Ok(())
}

/// So many sessions at once, each of which is served.
fn crowd(client: &mut Client, count: u64) -> Result<()> {
    let mut sessions = Vec::new();
    for n in 0..count {
        sessions.push(client.logged_in().with_context(|| format!("session {n}"))?);
    }
    println!("crowded");
    for (n, session) in sessions.iter_mut().enumerate() {
        for way in [Direction::Write, Direction::Read] {
            client.run(session, (way, 0, 64)).with_context(|| format!("session {n}"))?;
        }
    }
    for session in sessions {
        client.log_out(session)?;
    }
    println!("{count} sessions");
    Ok(())
}

fn read_and_log_out(client: &mut Client, pattern: &[u8]) -> Result<()> {
    let mut session = client.logged_in()?;
    client.memory().zero(0, 512);
    client.run(&mut session, (Direction::Read, 8, 1))?;
    let mut found = vec![0; 512];
    client.memory().read(0, &mut found);
    ensure!(found == pattern, "the block has changed");
    client.log_out(session)
}

fn read_and_vanish(client: &mut Client) -> Result<()> {
    let mut session = client.logged_in()?;
    for _ in 0..4 {
        client.submit(&mut session, (Direction::Read, 0, 256), 0)?;
    }
    client.vanish(session);
    Ok(())
}

/// Commands whose memory has another key than they say: their connection ends, and nothing is moved.
fn wrong_key(client: &mut Client, _: u64) -> Result<()> {
    client.memory().zero(0, MEMORY);
    for way in [Direction::Read, Direction::Write] {
        let mut session = client.logged_in()?;
        client.submit(&mut session, (way, 0, 128), 0xff)?;
        client.until(&mut session, |seen| matches!(seen, Event::Failed(_)))?;
        // This end hears of it first, and would hang up on a target that has not heard of it yet.
        client.until_left(&mut session)?;
        client.vanish(session);
    }
    let mut found = vec![1; MEMORY as usize];
    client.memory().read(0, &mut found);
    ensure!(found.iter().all(|byte| *byte == 0), "something was written");
    // The server serves the next one.
    let mut session = client.logged_in()?;
    client.run(&mut session, (Direction::Read, 0, 128))?;
    client.log_out(session)
}

/// A logout with reads and writes under way.
fn logout(client: &mut Client, _: u64) -> Result<()> {
    let mut session = client.logged_in()?;
    for way in [Direction::Read, Direction::Write].repeat(4) {
        client.submit(&mut session, (way, 0, 1024), 0)?;
    }
    client.log_out(session)
}

/// Reads and writes under way, until the process is killed.
fn hold(client: &mut Client, _: u64) -> Result<()> {
    let mut session = client.logged_in()?;
    for way in [Direction::Read, Direction::Write].repeat(4) {
        client.submit(&mut session, (way, 0, 1024), 0)?;
    }
    println!("holding");
    std::thread::sleep(Duration::from_secs(600));
    Ok(())
}
