//! What sessions cost that do nothing.

use std::thread;
use std::time::Duration;

use anyhow::Result;
use lunet_bench::model::{Fact, Section};
use lunet_e2e::server::target_of;
use lunet_e2e::wire::scsi::TEST_UNIT_READY;
use lunet_e2e::wire::{Login, Session};

use super::peers::{Medium, Peer};
use super::usage;

const SESSIONS: u16 = 100;
const WATCHED: Duration = Duration::from_secs(10);

/// The cost of a hundred idle sessions.
#[derive(Clone, Debug)]
pub struct Idle {
    /// Which target.
    pub peer: String,
    /// How many sessions.
    pub sessions: u16,
    /// How long the CPU time was watched, in seconds.
    pub watched_seconds: f64,
    /// CPU time in that time, in seconds; the resolution is 0.01.
    pub cpu_seconds: f64,
    /// Resident memory before the sessions, in KiB.
    pub rss_before_kib: u64,
    /// Growth of the resident memory by each session, in KiB.
    pub rss_per_session_kib: f64,
    /// The same of the proportional set size.
    pub pss_per_session_kib: f64,
}

/// Opens the sessions, watches, closes them.
pub fn measure(peer: &Peer) -> Result<Idle> {
    let (portal, url) = (peer.portal(), peer.url(Medium::Memory));
    let login = |qualifier| Login { qualifier, ..Login::new(&portal, target_of(&url)) };
    let open = |qualifier| -> Result<Session> {
        let mut session = Session::open(&login(qualifier))?;
        // A command brings every session to its normal state; its answer does not matter here.
        session.execute(0, &TEST_UNIT_READY, 0, &[])?;
        Ok(session)
    };
    // The first session pays for what all share.
    let _first = open(0)?;
    let before = usage::memory(peer.pid())?;
    let sessions = (1..=SESSIONS).map(open).collect::<Result<Vec<_>>>()?;
    let after = usage::memory(peer.pid())?;
    let cpu = usage::cpu(peer.pid())?;
    thread::sleep(WATCHED);
    let cpu = usage::cpu(peer.pid())? - cpu;
    drop(sessions);
    let each = |before: u64, after: u64| (after as f64 - before as f64) / f64::from(SESSIONS);
    Ok(Idle {
        peer: peer.name.to_owned(),
        sessions: SESSIONS,
        watched_seconds: WATCHED.as_secs_f64(),
        cpu_seconds: cpu.as_secs_f64(),
        rss_before_kib: before.rss,
        rss_per_session_kib: each(before.rss, after.rss),
        pss_per_session_kib: each(before.pss, after.pss),
    })
}

impl Idle {
    /// For the results.
    pub fn section(all: &[Self]) -> Section {
        let fact = |idle: &Self| Fact {
            key: idle.peer.clone(),
            value: format!(
                "{} sessions: {:.2} s of processor time in {:.0} s, {:.1} KiB resident each",
                idle.sessions, idle.cpu_seconds, idle.watched_seconds, idle.rss_per_session_kib
            ),
        };
        let facts = all.iter().map(fact).collect();
        Section { title: "sessions that do nothing".to_owned(), facts }
    }
}
