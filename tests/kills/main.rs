//! `kill -9` while what is served changes, again and again: what comes up is what was acknowledged last or what was
//! being asked for, never a mixture of both, and it always comes up.
//!
//! Two clients are at work when the server dies: one changes the configuration, volumes and snapshots, the other
//! persistent reservations. `LUNET_E2E_KILLS` says how many times; `LUNET_E2E_SEED` repeats the choices.

mod changes;
mod reservations;
mod state;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use lunet_block::Random;
use lunet_e2e::data::scratch;
use lunet_e2e::fuse::{Mounted, is_root};
use lunet_e2e::process::{output, was_killed};
use lunet_e2e::server::{Serve, Server};
use rustix::process::{Pid, Signal, kill_process};

use changes::Changes;
use reservations::Reservations;
use state::{FILE, State};

/// How often the server is killed in a run that asks for nothing else.
const KILLS: u64 = 10;

/// The longest time that the server lives after both clients have begun, in microseconds. Most changes take a few
/// milliseconds, so most kills hit one.
const LIFE: u64 = 100_000;

/// Something that has one acknowledged state, and perhaps one that is being asked for.
pub struct Either<T> {
    known: T,
    asked: Option<T>,
}

impl<T: Clone + PartialEq> Either<T> {
    fn new(known: T) -> Self {
        Self { known, asked: None }
    }

    /// Before a request is sent.
    fn ask(&mut self, next: T) {
        self.asked = Some(next);
    }

    /// The request was answered.
    fn done(&mut self) {
        if let Some(next) = self.asked.take() {
            self.known = next;
        }
    }

    /// Takes over what was found. False if that is neither of the two; otherwise whether it is what was asked for.
    fn settle(&mut self, found: &T) -> Option<bool> {
        let asked = self.asked.take();
        if self.known == *found {
            return Some(false);
        }
        let came = asked.as_ref() == Some(found);
        self.known = found.clone();
        came.then_some(true)
    }
}

/// Stops a client that meets an error only because the server is dead.
fn unless_dead<T>(result: Result<T>, dead: &AtomicBool) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(_) if dead.load(Ordering::Acquire) => Ok(None),
        Err(error) => Err(error),
    }
}

/// One life of the server: both clients at work, then the kill.
fn life(
    server: Server,
    changes: &mut Changes,
    reservations: &mut Reservations,
    random: &mut Random,
) -> Result<()> {
    let pid = i32::try_from(server.pid()).ok().and_then(Pid::from_raw).context("no pid")?;
    let time = Duration::from_micros(random.below(LIFE));
    let (dead, portal) = (AtomicBool::new(false), server.portal().to_owned());
    thread::scope(|scope| {
        let one = scope.spawn(|| changes.work(&portal, &dead));
        let two = scope.spawn(|| reservations.work(&portal, &dead));
        thread::sleep(time);
        dead.store(true, Ordering::Release);
        kill_process(pid, Signal::KILL)?;
        for client in [one, two] {
            client.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        Ok::<_, anyhow::Error>(())
    })?;
    let status = server.kill()?;
    ensure!(was_killed(status), "the server had ended before: {status}");
    Ok(())
}

/// The directory for data: on XFS, where there are snapshots, if we may mount it.
fn directory(scratch: &Path) -> Result<(PathBuf, Option<Mounted>)> {
    if !is_root() {
        println!("left out: snapshots, clones and rollbacks, since only root may mount");
        return Ok((scratch.join("data"), None));
    }
    let image = scratch.join("xfs");
    std::fs::File::create(&image)?.set_len(1 << 30)?;
    let mut make = std::process::Command::new("mkfs.xfs");
    output(make.arg("-q").arg(&image), Duration::from_secs(60))?;
    let mounted = Mounted::new(&image)?;
    Ok((mounted.path().join("data"), Some(mounted)))
}

#[test]
fn what_comes_up_was_acknowledged_or_asked_for() -> Result<()> {
    let kills = std::env::var("LUNET_E2E_KILLS").ok().and_then(|text| text.parse().ok());
    let kills: u64 = kills.unwrap_or(KILLS);
    let mut random = lunet_e2e::random_from_environment();
    let scratch = scratch("lunet-kills-")?;
    let (data, mounted) = directory(scratch.path())?;
    std::fs::create_dir(&data)?;
    let mut changes = Changes::new(&data, mounted.is_some(), Random::new(random.bits()))?;
    let mut reservations = Reservations::new(Random::new(random.bits()));
    for round in 0..=kills {
        let serve = if round == 0 { Serve::config(FILE) } else { Serve::default() };
        let server = serve.data(&data).quiet().start().with_context(|| {
            format!("round {round}: it does not come up; asked for: {:?}", changes.last)
        })?;
        let found = State::look(server.data())?;
        changes.settle(&found).with_context(|| format!("round {round}"))?;
        reservations.settle(server.portal()).with_context(|| format!("round {round}"))?;
        if round == kills {
            server.stop()?;
            break;
        }
        life(server, &mut changes, &mut reservations, &mut random)
            .with_context(|| format!("round {round}, at work on {:?}", changes.last))?;
    }
    println!("{kills} kills; {}; {}", changes.report(), reservations.report());
    drop(mounted);
    Ok(())
}
