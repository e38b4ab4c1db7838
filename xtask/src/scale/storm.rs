//! Everybody logs in at once.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use lunet_e2e::server::Server;
use lunet_e2e::wire::{Login, Opening, Session};

use super::config;

/// Addresses that sessions come from, as from so many hosts.
pub const ADDRESSES: usize = 64;

/// Threads that log in. More of them than processors would only take them from the server.
pub const THREADS: usize = 2;

/// Logins that a thread has begun and not ended. Hosts answer at once; here one answers after the other, and those that wait for their
/// turn must be fewer than the server lets log in at a time.
pub const AT_ONCE: usize = 256;

/// How often a host tries, and what it waits in between.
const TRIES: usize = 100;
const PAUSE: Duration = Duration::from_millis(50);

/// How often those that do nothing answer what the server asks of them.
const PINGS: Duration = Duration::from_secs(1);

/// How it went.
pub struct LoggedIn {
    /// The sessions, in the order of their numbers.
    pub sessions: Vec<Session>,
    /// From the first connection to the last login.
    pub took: Duration,
    /// Logins that had to be tried once more.
    pub again: usize,
}

/// Logs so many in, as fast as they can.
pub fn log_in(server: &Server, sessions: usize) -> Result<LoggedIn> {
    let begun = Instant::now();
    let each = sessions.div_ceil(THREADS).max(1);
    let numbers: Vec<usize> = (0..sessions).collect();
    let portal = server.portal();
    let parts = thread::scope(|scope| {
        let threads: Vec<_> =
            numbers.chunks(each).map(|part| scope.spawn(move || part_of(portal, part))).collect();
        let ended =
            threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("it panicked"))?);
        ended.collect::<Result<Vec<_>>>()
    })?;
    let took = begun.elapsed();
    let (mut sessions, mut again) = (Vec::new(), 0);
    for (part, tried) in parts {
        sessions.extend(part);
        again += tried;
    }
    Ok(LoggedIn { sessions, took, again })
}

fn part_of(portal: &str, numbers: &[usize]) -> Result<(Vec<Session>, usize)> {
    let mut sessions: Vec<Option<Session>> = numbers.iter().map(|_| None).collect();
    let mut again = 0;
    for _ in 0..TRIES {
        let missing: Vec<usize> = (0..numbers.len()).filter(|at| sessions[*at].is_none()).collect();
        if missing.is_empty() {
            return Ok((sessions.into_iter().flatten().collect(), again));
        }
        let mut last = None;
        for some in missing.chunks(AT_ONCE) {
            let begun: Vec<_> = some.iter().map(|at| (*at, begin(portal, numbers[*at]))).collect();
            for (at, opening) in begun {
                match opening.and_then(Opening::finish) {
                    Ok(session) => sessions[at] = Some(session),
                    Err(error) => last = Some(error),
                }
            }
        }
        let Some(error) = last else { continue };
        let left = sessions.iter().filter(|session| session.is_none()).count();
        eprintln!("  {left} logins are tried again: {error:#}");
        again += left;
        thread::sleep(PAUSE);
    }
    bail!("not all could log in");
}

fn begin(portal: &str, number: usize) -> Result<Opening> {
    let [low, high] = [number % ADDRESSES, number / ADDRESSES / 250].map(|part| part as u8);
    let initiator = format!("iqn.2026-11.org.lunet:host-{number}");
    let target = config::target(number);
    let login = Login {
        initiator: &initiator,
        from: Some(Ipv4Addr::new(127, 1, high, low + 1)),
        ..Login::new(portal, &target)
    };
    Opening::begin(&login).with_context(|| format!("session {number}"))
}

/// Answers what the server has asked of sessions that do nothing.
pub fn answer_pings(sessions: &mut [Session]) -> Result<()> {
    sessions.iter_mut().try_for_each(Session::answer_pings)
}

/// The same, again and again until it is done.
pub fn keep(all: &mut [&mut [Session]], done: &AtomicBool) -> Result<()> {
    while !done.load(Ordering::Relaxed) {
        all.iter_mut().try_for_each(|sessions| answer_pings(sessions))?;
        thread::sleep(PINGS);
    }
    Ok(())
}

/// Keeps sessions alive while something else is done that may take long.
pub fn beside<T>(all: &mut [&mut [Session]], work: impl FnOnce() -> Result<T>) -> Result<T> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let kept = scope.spawn(|| keep(all, &done));
        let worked = work();
        done.store(true, Ordering::Relaxed);
        kept.join().map_err(|_| anyhow!("whoever answers pings has panicked"))??;
        worked
    })
}
