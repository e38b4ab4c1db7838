//! Many clients at once, and bad ones among them.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use lunet_block::Random;
use lunet_e2e::clients::{QemuLun, copy_in, copy_out, inquiry, qemu_io};
use lunet_e2e::data::{random_file, same_bytes, scratch};
use lunet_e2e::server::{DEMO_TARGET, Serve};
use lunet_e2e::wire::{Login, Pdu, Session, opcode};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::Value;

const SESSIONS: u64 = 64;

/// Runs `work` in `SESSIONS` threads; the first error wins.
fn at_once(work: impl Fn(u64) -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..SESSIONS).map(|n| scope.spawn(move || work(n))).collect();
        for (n, thread) in threads.into_iter().enumerate() {
            let result = thread.join().map_err(|_| anyhow!("client {n} panicked"))?;
            result.with_context(|| format!("client {n}"))?;
        }
        Ok(())
    })
}

#[test]
fn sixty_four_sessions_write_and_read_at_once() -> Result<()> {
    const OPERATIONS: u64 = 200;
    const BLOCK: usize = 512;
    const REGION: u64 = 4096;
    let server = Serve::demo("1G").start()?;
    let portal = server.portal();
    let logged_in = Barrier::new(SESSIONS as usize);
    at_once(|n| {
        let mut login = Login::new(portal, DEMO_TARGET);
        login.qualifier = u16::try_from(n)?;
        let session = Session::open(&login);
        // Whoever fails to log in must not keep the others waiting.
        logged_in.wait();
        let mut session = session?;
        session.settle(0)?;
        let mut random = Random::new(n);
        let mut mirror = vec![0; REGION as usize * BLOCK];
        for i in 0..OPERATIONS {
            let blocks = 1 + random.below(128);
            let first = random.below(REGION - blocks);
            let bytes = first as usize * BLOCK..(first + blocks) as usize * BLOCK;
            let lba = n * REGION + first;
            if i % 2 == 0 {
                mirror[bytes.clone()].fill_with(|| random.bits() as u8);
                session.write(0, lba, &mirror[bytes], BLOCK)?;
            } else {
                let data = session.read(0, lba, blocks as u32, BLOCK)?;
                ensure!(data == mirror[bytes], "operation {i}: other data at {lba}");
            }
        }
        session.flush(0)?;
        session.logout()
    })?;
    server.stop()?;
    Ok(())
}

#[test]
fn sixty_four_qemu_processes_write_and_read_at_once() -> Result<()> {
    let server = Serve::demo("1G").start()?;
    at_once(|n| {
        let lun = QemuLun::new(server.url());
        let place = format!("{}M 4M", n * 4);
        let pattern = n + 1;
        let text = qemu_io(
            &lun,
            &[
                format!("write -P {pattern} {place}"),
                "flush".into(),
                format!("read -P {pattern} {place}"),
            ],
        )?;
        ensure!(!text.contains("failed"), "{text}");
        ensure!(text.contains("read 4194304/4194304 bytes"), "{text}");
        Ok(())
    })?;
    server.stop()?;
    Ok(())
}

/// A shell lets a program have 1,024 descriptors, and more if it asks.
#[test]
fn more_sessions_than_the_usual_limit_of_descriptors_log_in() -> Result<()> {
    const MANY: u16 = 300;
    let server = Serve::demo("64M").by(&["prlimit", "--nofile=128:4096"]).start()?;
    let open = |qualifier| {
        Session::open(&Login { qualifier, ..Login::new(server.portal(), DEMO_TARGET) })
            .with_context(|| format!("session {qualifier}"))
    };
    let mut sessions = (0..MANY).map(open).collect::<Result<Vec<_>>>()?;
    sessions.iter_mut().try_for_each(|session| session.settle(0))?;
    sessions.into_iter().try_for_each(Session::logout)?;
    server.stop()?;
    Ok(())
}

/// Memory of a process that no file is behind and that is resident, in KiB.
fn anonymous_memory(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.with_context(|| format!("no RssAnon: {status}"))
}

/// A server runs for months, and thousands of sessions may come and go: what they took must not stay.
#[test]
fn memory_of_sessions_that_have_gone_is_given_back() -> Result<()> {
    const MANY: u16 = 400;
    const ROUNDS: u16 = 3;
    /// It is given back some 10 s after the last has gone; the machine may be busy.
    const PATIENCE: Duration = Duration::from_secs(90);
    let server = Serve::demo("64M").start()?;
    let names: Vec<String> = (0..MANY).map(|n| format!("iqn.2026-11.org.lunet:host-{n}")).collect();
    let log_in = |some: &[String]| -> Result<Vec<Session>> {
        let login = |name| Login { initiator: name, ..Login::new(server.portal(), DEMO_TARGET) };
        let opened = some.iter().map(|name| Session::open(&login(name.as_str())));
        let mut sessions = opened.collect::<Result<Vec<_>>>()?;
        sessions.iter_mut().try_for_each(|session| session.settle(0))?;
        Ok(sessions)
    };
    // What the first sessions make the server allocate once is not theirs.
    log_in(&names[..8])?.into_iter().try_for_each(Session::logout)?;
    let before = anonymous_memory(server.pid())?;
    for round in 0..ROUNDS {
        let sessions = log_in(&names)?;
        let top = anonymous_memory(server.pid())?;
        ensure!(
            top > before + 4 * u64::from(MANY),
            "sessions cost nothing: {before}, then {top} KiB"
        );
        sessions.into_iter().try_for_each(Session::logout)?;
        let until = Instant::now() + PATIENCE;
        let bound = before + (top - before) / 2;
        while anonymous_memory(server.pid())? > bound {
            let left = anonymous_memory(server.pid())?;
            ensure!(
                Instant::now() < until,
                "round {round}: {before} KiB before, {top} with all sessions, {left} long after they have gone"
            );
            thread::sleep(Duration::from_millis(200));
        }
    }
    server.stop()?;
    Ok(())
}

/// What a bad client does with a fresh connection. Errors are what it deserves.
fn misbehave(stream: &mut TcpStream, n: u64, random: &mut Random) -> Result<()> {
    let login = Login::new("", DEMO_TARGET).request().encode(false, false);
    match n % 7 {
        // Garbage.
        0 => {
            let garbage: Vec<u8> = (0..5000).map(|_| random.bits() as u8).collect();
            stream.write_all(&garbage)?;
        }
        // Half a header.
        1 => stream.write_all(&login[..31])?,
        // A login without its data segment.
        2 => stream.write_all(&login[..60])?,
        // A login whose data segment is larger than any text may be.
        3 => {
            let mut long = login.clone();
            long[5..8].fill(0xff);
            stream.write_all(&long)?;
            stream.write_all(&[b'A'; 40_000])?;
        }
        // A command before the login.
        4 => Pdu::new(opcode::SCSI_COMMAND).send(stream, false, false)?,
        // Additional header segments that do not come.
        5 => {
            let mut ahs = login.clone();
            ahs[4] = 0xff;
            stream.write_all(&ahs)?;
        }
        // Nothing at all.
        _ => return Ok(()),
    }
    let mut answer = [0; 512];
    let _ = stream.read(&mut answer)?;
    Ok(())
}

/// What a bad client does after a correct login.
fn misbehave_logged_in(portal: &str, n: u64) -> Result<()> {
    let mut login = Login::new(portal, DEMO_TARGET);
    login.initiator = "iqn.2026-11.local.lunet:bad";
    let mut session = Session::open(&login)?;
    let mut pdu = Pdu::new(opcode::SCSI_COMMAND);
    pdu.header[1] = 0xa1;
    pdu.header[32] = 0x8a;
    // The sequence number is right: only what follows is wrong.
    pdu.set_word(24, 1);
    match n % 5 {
        // A write whose data never comes.
        0 => pdu.set_word(20, 1 << 30),
        // More immediate data than was ever agreed on.
        1 => pdu.data = vec![0; 1 << 20],
        // Data for no command.
        2 => pdu.header[0] = opcode::DATA_OUT,
        // An opcode that does not exist.
        3 => pdu.header[0] = 0x1f,
        // A sequence number far outside the window.
        _ => pdu.set_word(24, 0x7000_0000),
    }
    session.send(&pdu)?;
    session.stream().set_read_timeout(Some(Duration::from_millis(100)))?;
    session.receive().map(drop)
}

#[test]
fn bad_clients_harm_nobody_else() -> Result<()> {
    const SIZE: u64 = 256 << 20;
    let server = Serve::demo("256M").start()?;
    let portal = server.portal();
    let lun = QemuLun::new(server.url());
    let dir = scratch("lunet-copy-")?;
    let (there, back) = (dir.path().join("there"), dir.path().join("back"));
    random_file(&there, SIZE)?;
    let done = AtomicBool::new(false);
    let attacks = AtomicU64::new(0);
    let random = std::sync::Mutex::new(lunet_e2e::random_from_environment());
    thread::scope(|scope| {
        for kind in 0..2 {
            let (done, attacks, random) = (&done, &attacks, &random);
            scope.spawn(move || {
                // The connections stay open until the end: the half-open ones are the point.
                let mut kept = Vec::new();
                let mut n = 0;
                while !done.load(Ordering::Relaxed) {
                    n += 1;
                    attacks.fetch_add(1, Ordering::Relaxed);
                    if kind == 1 {
                        let _ = misbehave_logged_in(portal, n);
                        continue;
                    }
                    let Ok(mut stream) = TcpStream::connect(portal) else { continue };
                    let _ = stream.set_read_timeout(Some(Duration::from_millis(20)));
                    let mut random = random.lock().unwrap_or_else(PoisonError::into_inner);
                    let _ = misbehave(&mut stream, n, &mut random);
                    if kept.len() < 200 {
                        kept.push(stream);
                    }
                }
            });
        }
        let good = (|| {
            for _ in 0..3 {
                copy_in(&there, &lun)?;
                copy_out(&lun, &back)?;
                same_bytes(&there, &back, SIZE)?;
            }
            inquiry(server.url(), None)
        })();
        done.store(true, Ordering::Relaxed);
        good
    })?;
    let attacks = attacks.into_inner();
    println!("{attacks} bad connections");
    ensure!(attacks > 20, "only {attacks} bad connections: nothing was tested");
    server.stop()?;
    Ok(())
}

/// Connects on a processor, so often. Over loopback the packets are received on that which sends them.
fn connected_on(processor: usize, portal: &str, count: usize) -> Result<Vec<TcpStream>> {
    let connect = || {
        let mut one = CpuSet::new();
        one.set(processor);
        sched_setaffinity(None, &one)?;
        (0..count).map(|_| Ok(TcpStream::connect(portal)?)).collect()
    };
    thread::scope(|scope| scope.spawn(connect).join().map_err(|_| anyhow!("it panicked"))?)
}

#[test]
fn a_connection_has_the_shard_on_the_processor_that_its_packets_arrive_on() -> Result<()> {
    let usable = sched_getaffinity(None)?;
    let usable: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| usable.is_set(*cpu)).collect();
    let [first, second, ..] = usable[..] else {
        eprintln!("SKIPPED: there is one processor alone");
        return Ok(());
    };
    let server = Serve::config(format!(
        "[server]\nprocessors = \"{second},{first}\"\nlogin-timeout = \"5min\"\n\
         [[portal]]\naddress = \"127.0.0.1:0\"\n\
         [volumes.a]\nbackend = \"memory\"\nsize = \"1MiB\"\n\
         [[target]]\nname = \"{DEMO_TARGET}\"\nluns = [\"a\"]\n"
    ))
    .start()?;
    let portal = server.portal();
    let are_as = |wanted: [u64; 2]| -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let stats: Value = serde_json::from_str(&server.tell(&["stats", "--json"])?)?;
            let loads = stats["loads"].as_array().context("the shards")?;
            let found: Vec<_> =
                loads.iter().filter_map(|load| load["connections"].as_u64()).collect();
            if found == wanted {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{found:?} connections, and not {wanted:?}");
            thread::sleep(Duration::from_millis(20));
        }
    };
    // Shards are on the processors in ascending order; with the fewest alone there would be one on each.
    let _two = connected_on(second, portal, 2)?;
    are_as([0, 2])?;
    let _one = connected_on(first, portal, 1)?;
    are_as([1, 2])?;
    // One processor gets at most twice as many as the other, and two more.
    let _many = connected_on(first, portal, 21)?;
    are_as([16, 8])
}
