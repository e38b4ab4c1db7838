//! Puts load on the volumes of a target through one crash after another, and says whether anything is lost that may not be.
//!
//! ```text
//! witness ADDRESS:PORT TARGET LUNS ROUNDS server|machine [LUN ...]
//! ```
//!
//! The last are those that may tear what was not flushed.
//!
//! It says `crash` when it is time, and goes on with its load. Whoever started it then kills the server, or the whole machine with
//! what its memory holds, starts it again, and answers `back`. The exit code is 0 if after every crash all blocks held what they may.

use std::env;
use std::io::{Write, stdin, stdout};

use anyhow::{Context, Result, bail, ensure};
use lunet_e2e::witness::{Crash, Units};

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [portal, target, luns, rounds, kind, tears @ ..] = arguments.as_slice() else {
        bail!("usage: witness ADDRESS:PORT TARGET LUNS ROUNDS server|machine [LUN ...]");
    };
    let tears = tears.iter().map(|lun| lun.parse()).collect::<Result<Vec<u8>, _>>()?;
    let kind = match kind.as_str() {
        "server" => Crash::Server,
        "machine" => Crash::Machine,
        other => bail!("{other}: server or machine"),
    };
    let rounds: u32 = rounds.parse().context("ROUNDS")?;
    let random = lunet_e2e::random_from_environment();
    let mut units = Units::new(portal, target, luns.parse()?, &tears, random);
    let mut sessions = units.check().context("before the first crash")?;
    for round in 1..=rounds {
        units.round(sessions, kind, crash).with_context(|| format!("round {round}"))?;
        sessions = units.check().with_context(|| format!("after crash {round}"))?;
        say(&format!("crash {round} of {rounds}: {}", units.summary()))?;
    }
    Ok(())
}

fn crash() -> Result<()> {
    say("crash")?;
    let mut answer = String::new();
    stdin().read_line(&mut answer)?;
    ensure!(answer.trim() == "back", "the target has not come back: {answer:?}");
    Ok(())
}

fn say(line: &str) -> Result<()> {
    println!("{line}");
    Ok(stdout().flush()?)
}
