//! Several volumes of one target under load at a time, through one crash after another.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, bail, ensure};

use super::load::Load;
use super::model::Model;
use crate::wire::{Login, Session};
use lunet_block::Random;

/// Until every volume has acknowledged a flush, and until one is there again after its restart. An emulated machine on busy cores.
const LIMIT: Duration = Duration::from_secs(120);

/// The longest time from the first flushes to the crash.
const LONGEST_LOAD: u64 = 1500;

/// What dies in a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The server's process.
    Server,
    /// The machine with its memory.
    Machine,
}

/// One volume with what is known of it.
pub struct Unit {
    model: Model,
    random: Random,
}

impl Unit {
    /// Logs in, as an initiator does that waits for a target to come back.
    fn open(&self, portal: &str, target: &str) -> Result<Session> {
        let deadline = Instant::now() + LIMIT;
        let qualifier = u16::from(self.model.lun());
        let login = Login { qualifier, patience: LIMIT, ..Login::new(portal, target) };
        loop {
            let opened = Session::open(&login)
                .and_then(|mut session| session.settle(self.model.lun()).map(|()| session));
            match opened {
                Err(error) if is_lost(&error) && Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(100));
                }
                other => return other.context("logging in"),
            }
        }
    }

    /// Changes and flushes until the connection is lost, which may be only after the crash has begun.
    fn until_lost(
        &mut self,
        session: &mut Session,
        stage: &Stage,
        flushed: &Sender<()>,
    ) -> Result<()> {
        let before = self.model.flushes;
        let mut told = false;
        let mut load = Load::new(&mut self.model, session, &mut self.random)?;
        let ended = load.run(|model| {
            if model.flushes > before && !told {
                told = true;
                // The listener has gone if another volume has failed.
                let _ = flushed.send(());
            }
            stage.over.load(Ordering::SeqCst)
        });
        match ended {
            Err(error) if is_lost(&error) && stage.crashing.load(Ordering::SeqCst) => Ok(()),
            Err(error) => Err(error.context(format!("LUN {} under load", self.model.lun()))),
            Ok(()) => bail!("the load was ended, and not by a crash"),
        }
    }
}

/// How far a round is.
#[derive(Default)]
struct Stage {
    /// From now on a lost connection is no fault.
    crashing: AtomicBool,
    /// Nobody crashes anything any more: the loads are to end.
    over: AtomicBool,
}

/// All volumes of a target.
pub struct Units {
    portal: String,
    target: String,
    units: Vec<Unit>,
    random: Random,
}

impl Units {
    /// LUNs from 0 on, whose first blocks are zeroes. In crashes of the machine, these may tear what was not flushed.
    pub fn new(portal: &str, target: &str, luns: u8, tears: &[u8], mut random: Random) -> Units {
        let model =
            |lun| if tears.contains(&lun) { Model::new(lun).tears() } else { Model::new(lun) };
        let units = (0..luns)
            .map(|lun| Unit { model: model(lun), random: Random::new(random.bits()) })
            .collect();
        Units { portal: portal.to_owned(), target: target.to_owned(), units, random }
    }

    /// Looks at every block of every volume, and gives a session with each.
    pub fn check(&mut self) -> Result<Vec<Session>> {
        let (portal, target) = (self.portal.as_str(), self.target.as_str());
        thread::scope(|scope| {
            let look = |unit: &mut Unit| {
                let mut session = unit.open(portal, target)?;
                unit.model.check(&mut session)?;
                Ok(session)
            };
            let all: Vec<_> =
                self.units.iter_mut().map(|unit| scope.spawn(move || look(unit))).collect();
            let (good, bad): (Vec<_>, Vec<_>) =
                all.into_iter().map(joined).partition(Result::is_ok);
            // What is wrong with each volume, not only with the first.
            let bad: Vec<_> = bad.into_iter().filter_map(Result::err).collect();
            let words = bad.iter().map(|error| format!("{error:#}")).collect::<Vec<_>>();
            ensure!(words.is_empty(), "{}", words.join("\n"));
            good.into_iter().collect()
        })
    }

    /// Puts load on all volumes, calls `crash` at a random moment, and returns when it has and the connections are gone.
    /// `crash` returns when the target is there again.
    pub fn round(
        &mut self,
        sessions: Vec<Session>,
        kind: Crash,
        crash: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let stage = Stage::default();
        let moment = Duration::from_millis(self.random.below(LONGEST_LOAD));
        let (flushed, flushes) = mpsc::channel();
        let count = self.units.len();
        thread::scope(|scope| {
            let loads: Vec<_> = (self.units.iter_mut().zip(sessions))
                .map(|(unit, mut session)| {
                    let (flushed, stage) = (flushed.clone(), &stage);
                    scope.spawn(move || unit.until_lost(&mut session, stage, &flushed))
                })
                .collect();
            drop(flushed);
            // A load that has failed says why when it is joined.
            let deadline = Instant::now() + LIMIT;
            let told = (0..count)
                .take_while(|_| {
                    let left = deadline.saturating_duration_since(Instant::now());
                    flushes.recv_timeout(left).is_ok()
                })
                .count();
            thread::sleep(moment);
            stage.crashing.store(true, Ordering::SeqCst);
            // Also after a failure: it is what ends the other loads.
            let crashed = crash();
            stage.over.store(crashed.is_err(), Ordering::SeqCst);
            loads.into_iter().map(joined).collect::<Result<Vec<()>>>()?;
            ensure!(told == count, "only {told} of {count} volumes flushed within {LIMIT:?}");
            crashed
        })?;
        if kind == Crash::Server {
            self.units.iter_mut().for_each(|unit| unit.model.only_the_server_died());
        }
        Ok(())
    }

    /// What was done, in words.
    pub fn summary(&self) -> String {
        let changes: u64 = self.units.iter().map(|unit| unit.model.changes()).sum();
        let flushes: Vec<_> =
            self.units.iter().map(|unit| unit.model.flushes.to_string()).collect();
        let torn: u64 = self.units.iter().map(|unit| unit.model.torn).sum();
        format!("{changes} changes, {} flushes acknowledged, {torn} torn", flushes.join("+"))
    }
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a thread panicked"))?
}

/// Does the error mean that the connection is gone, or could not be made?
fn is_lost(error: &Error) -> bool {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, UnexpectedEof,
    };
    error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()).any(|cause| {
        matches!(
            cause.kind(),
            BrokenPipe | ConnectionAborted | ConnectionRefused | ConnectionReset | UnexpectedEof
        )
    })
}
