//! An event loop with nothing to do sleeps, whatever its sessions, limits and volumes were before.
//!
//! Debug builds stop a loop that looks again and again without sleeping. One that sleeps a millisecond each time, because a time was
//! forgotten that nobody needs any more, is found here: by how often it has waited, which is less on a slow machine, and never more.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lunet_e2e::nvme::{BLOCK, Host, Login as NvmeLogin};
use lunet_e2e::server::{Serve, Server, free_port};
use lunet_e2e::wire::{Login, Session};
use serde_json::Value;

const TARGET: &str = "iqn.2026-11.local.lunet:idle";
const SUBSYSTEM: &str = "nqn.2026-11.local.lunet:idle";

/// How long an idle server is looked at.
const SPAN: Duration = Duration::from_secs(3);

/// How often an idle loop may wake up in a second of its own time: ten times for time limits of its connections, which are looked at
/// every 0.1 s at the most, and once because it is asked each second whether it is there.
const EACH_SECOND: f64 = 11.0;

/// And besides, in all: for what was under way at the first look, for the second look, and for buffer memory that is given back once
/// in half a minute. A time that was forgotten wakes a loop a thousand times a second: a loop sleeps a millisecond at the least.
const BESIDES: f64 = 12.0;

fn serve(driver: &str) -> Result<(Server, String)> {
    let port = free_port()?;
    let server = Serve::config(format!(
        "[server]\nshards = 2\ndriver = \"{driver}\"\n\
         [[portal]]\naddress = \"127.0.0.1:0\"\n\
         [[portal]]\naddress = \"127.0.0.1:{port}\"\ntransport = [\"nvme-tcp\"]\n\
         [volumes.a]\nbackend = \"memory\"\nsize = \"16MiB\"\niops = 100\n\
         [volumes.b]\nbackend = \"file\"\nsize = \"16MiB\"\n\
         [[limit]]\neach = \"session\"\niops = 500\n\
         [[target]]\nname = \"{TARGET}\"\nprotocols = [\"iscsi\", \"nvme\"]\nluns = [\"a\", \"b\"]\n"
    ))
    .start()?;
    Ok((server, format!("127.0.0.1:{port}")))
}

/// The time of each event loop in seconds, and how often it has waited.
fn waits(server: &Server) -> Result<Vec<(f64, u64)>> {
    let stats: Value = serde_json::from_str(&server.tell(&["stats", "--json"])?)?;
    let loads = stats["loads"].as_array().context("the event loops")?;
    let of = |load: &Value| {
        let time = load["time_us"].as_f64().context("a time")?;
        Ok((time / 1e6, load["waits"].as_u64().context("waits")?))
    };
    loads.iter().map(of).collect()
}

/// Fails if a loop wakes up more often than it has reason to.
fn idles(server: &Server, when: &str) -> Result<()> {
    let before = waits(server)?;
    thread::sleep(SPAN);
    let after = waits(server)?;
    ensure!(before.len() >= 2 && before.len() == after.len(), "{before:?} {after:?}");
    for (shard, (then, now)) in before.iter().zip(&after).enumerate() {
        let (time, woken) = (now.0 - then.0, now.1 - then.1);
        let most = EACH_SECOND * time + BESIDES;
        println!(
            "{when}: event loop {shard} has waited {woken} times in {time:.1} s, of {most:.0}"
        );
        ensure!(
            woken as f64 <= most,
            "{when}: event loop {shard} has waited {woken} times in {time:.1} s, and has reason for {most:.0}"
        );
    }
    Ok(())
}

/// Reads and writes on both volumes over both protocols, more than the limits let through at once.
fn work(sessions: &mut [Session], host: &mut Host) -> Result<()> {
    for round in 0..10 {
        for session in sessions.iter_mut() {
            for lun in 0..2 {
                session.write(lun, round * 8, &[1; 8 * BLOCK], BLOCK)?;
                session.read(lun, round * 8, 8, BLOCK)?;
            }
        }
        for namespace in 1..=2 {
            host.write(namespace, round * 8, &[2; 8 * BLOCK])?;
        }
    }
    Ok(())
}

fn looks(driver: &str) -> Result<()> {
    let (server, nvme) = serve(driver)?;
    idles(&server, "without sessions")?;
    let mut sessions = Vec::new();
    for qualifier in 0..4 {
        let mut session =
            Session::open(&Login { qualifier, ..Login::new(server.portal(), TARGET) })?;
        session.settle(0)?;
        session.settle(1)?;
        sessions.push(session);
    }
    let mut host = Host::connect(&NvmeLogin::new(&nvme, SUBSYSTEM).by(1))?;
    work(&mut sessions, &mut host)?;
    idles(&server, "behind operations that waited for limits")?;
    server.tell(&["volume", "limit", "a", "--iops", "none"])?;
    work(&mut sessions, &mut host)?;
    idles(&server, "with a limit that was unset")?;
    server.tell(&["volume", "limit", "a", "--weight", "300", "--latency-target", "1ms"])?;
    work(&mut sessions, &mut host)?;
    idles(&server, "with shares")?;
    server.tell(&[
        "volume",
        "limit",
        "a",
        "--weight",
        "none",
        "--latency-target",
        "none",
        "--iops",
        "50",
    ])?;
    work(&mut sessions[..1], &mut host)?;
    drop((sessions, host));
    idles(&server, "when all sessions are gone")?;
    server.stop()?;
    Ok(())
}

#[test]
fn an_idle_server_sleeps() -> Result<()> {
    looks("auto")
}

#[test]
fn an_idle_server_on_epoll_sleeps() -> Result<()> {
    looks("epoll")
}
