//! Starting, stopping, and starts that must fail with one plain sentence and exit code 1.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lunet_e2e::clients::{QemuLun, SHORT};
use lunet_e2e::data::scratch;
use lunet_e2e::fuse::Export;
use lunet_e2e::process::{Running, run};
use lunet_e2e::server::{DEMO_TARGET, GRACE, Serve, lunet_binary};
use lunet_e2e::wire::{Login, Pdu, Session, opcode};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// Demands exit code 1 and one line that contains `words`.
fn refused(mut process: Running, words: &str) -> Result<()> {
    let status = process.wait(SHORT)?;
    let text = process.stderr.whole_text();
    ensure!(status.and_then(|s| s.code()) == Some(1), "{status:?}: {text}");
    // The log may say something too.
    let said: Vec<&str> = text.lines().filter(|line| line.starts_with("lunet: ")).collect();
    ensure!(said.len() == 1 && said[0].contains(words), "one line with `{words}`, not: {text}");
    ensure!(!text.contains("panicked"), "{text}");
    Ok(())
}

/// Who has stopped lunet can unmount what it was started in: its helper is gone from there, too, which one that does not run
/// shows.
#[test]
fn the_server_ends_after_its_helper() -> Result<()> {
    let dir = scratch("lunet-ended-")?;
    let place = fs::canonicalize(dir.path())?;
    let at = place.to_str().context("the directory's name is not UTF-8")?;
    let inside = || -> Result<Vec<Pid>> {
        let processes = fs::read_dir("/proc")?.flatten().map(|one| one.path());
        let here =
            processes.filter(|one| fs::read_link(one.join("cwd")).is_ok_and(|at| at == place));
        let number = |one: PathBuf| one.file_name()?.to_str()?.parse().ok();
        Ok(here.filter_map(number).filter_map(Pid::from_raw).collect())
    };
    for runs in [false, true] {
        let server = Serve::demo("16MiB").by(&["env", "--chdir", at]).quiet().start()?;
        let is_helper = |pid: &Pid| {
            let line = fs::read_to_string(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
            line.is_ok_and(|line| line.split('\0').nth(1) == Some("serve-helper"))
        };
        let helper = inside()?.into_iter().find(is_helper).context("there is no helper")?;
        if !runs {
            kill_process(helper, Signal::STOP)?;
        }
        let begun = Instant::now();
        let ended = server.stop();
        let waited = begun.elapsed();
        if !runs {
            kill_process(helper, Signal::CONT)?;
        }
        ended?;
        if runs {
            ensure!(inside()?.is_empty(), "somebody has stayed");
        } else {
            ensure!(waited >= Duration::from_secs(1), "{waited:?} for a helper that did not run");
            while test_kill_process(helper).is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
        }
    }
    Ok(())
}

fn stops_with_open_sessions(signal: Signal) -> Result<()> {
    const GRACE: Duration = Duration::from_secs(3);
    const TARGET: &str = "iqn.2026-11.local.lunet:t";
    let config = format!(
        "[server]\nshutdown-grace = \"3s\"\n\
         [[portal]]\naddress = \"127.0.0.1:0\"\n\
         [volumes.a]\nbackend = \"file\"\nsize = \"64MiB\"\n\
         [[target]]\nname = \"{TARGET}\"\nluns = [\"a\"]\n"
    );
    let dir = scratch("lunet-stop-")?;
    let mut server = Serve::config(config.clone()).data(dir.path()).start()?;
    let mut sessions = Vec::new();
    for qualifier in 0..8 {
        let portal = server.portal().to_owned();
        let mut session = Session::open(&Login { qualifier, ..Login::new(&portal, TARGET) })?;
        session.settle(0)?;
        let data = [qualifier as u8 + 1; 4096];
        session.write(0, u64::from(qualifier) * 8, &data, 512)?;
        sessions.push(session);
    }
    // A discovery session and a connection that has said nothing are open too.
    let portal = server.portal().to_owned();
    let _discovery = Session::open(&Login { target: None, ..Login::new(&portal, TARGET) })?;
    let _silent = std::net::TcpStream::connect(&portal)?;

    let start = Instant::now();
    server.process().signal(signal)?;
    let status = server.process().wait(GRACE + Duration::from_secs(10))?;
    let took = start.elapsed();
    ensure!(status.is_some_and(|s| s.success()), "{status:?} after {took:?}");
    // Nobody logs out here, so the grace is used up, but not much more.
    ensure!(took < GRACE + Duration::from_secs(5), "{took:?}");
    drop(server);

    let server = Serve::config(config).data(dir.path()).start()?;
    let mut session = Session::open(&Login::new(server.portal(), TARGET))?;
    session.settle(0)?;
    for n in 0..8_u8 {
        let found = session.read(0, u64::from(n) * 8, 8, 512)?;
        ensure!(found == [n + 1; 4096], "block {n} is not there after the restart");
    }
    session.logout()?;
    server.stop()?;
    Ok(())
}

/// True if the process has exited, threads that hang inside the kernel left aside.
fn has_ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_none_or(|rest| rest.trim_start().starts_with(['Z', 'X']) || rest.is_empty())
}

/// A file system that answers nothing any more, with writes and flushes at it.
#[test]
fn sigterm_ends_it_within_the_grace_although_a_volume_hangs() -> Result<()> {
    const TARGET: &str = "iqn.2026-11.local.lunet:t";
    let below = Serve::demo("64M").start()?;
    let export = Export::start(&QemuLun::new(below.url()))?;
    let config = format!(
        "[server]\nshutdown-grace = \"2s\"\n[[portal]]\naddress = \"127.0.0.1:0\"\n\
         [volumes.hung]\nbackend = \"file\"\npath = \"{}\"\ncache = \"direct\"\n\
         [volumes.sound]\nbackend = \"file\"\nsize = \"8MiB\"\n\
         [[target]]\nname = \"{TARGET}\"\nluns = [\"hung\", \"sound\"]\n",
        export.file().display()
    );
    let mut server = Serve::config(config).quiet().start()?;
    let mut session = Session::open(&Login::new(server.portal(), TARGET))?;
    session.settle(0)?;
    session.settle(1)?;
    session.write(0, 0, &[1; 4096], 512)?;
    export.hang()?;
    for lba in 1..5_u8 {
        let write = [0x2A, 0, 0, 0, 0, lba * 8, 0, 0, 8, 0];
        session.start(0, &write, 4096, &[2; 4096])?;
    }
    session.start(0, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0, &[])?;
    let pid = server.pid();
    let start = Instant::now();
    server.process().signal(Signal::TERM)?;
    // The kernel keeps what it has to close on that file system until the file system is gone.
    while !has_ended(pid) {
        let running = start.elapsed() < GRACE;
        ensure!(running, "it still runs: {}", server.process().stderr.text());
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(export);
    let status = server.process().wait(SHORT)?;
    let log = server.process().stderr.whole_text();
    ensure!(status.and_then(|s| s.code()) == Some(1), "{status:?}: {log}");
    ensure!(log.contains("volume=hung") && !log.contains("volume=sound"), "{log}");
    below.stop()?;
    Ok(())
}

#[test]
fn sigterm_ends_it_within_the_grace() -> Result<()> {
    stops_with_open_sessions(Signal::TERM)
}

#[test]
fn sigint_ends_it_within_the_grace() -> Result<()> {
    stops_with_open_sessions(Signal::INT)
}

#[test]
fn a_second_signal_ends_it_at_once() -> Result<()> {
    let mut server = Serve::demo("64M").start()?;
    let portal = server.portal().to_owned();
    let mut session = Session::open(&Login::new(&portal, DEMO_TARGET))?;
    session.settle(0)?;
    server.process().signal(Signal::TERM)?;
    // The request to log out shows that the first signal has arrived.
    session.receive()?;
    let start = Instant::now();
    server.process().signal(Signal::TERM)?;
    let status = server.process().wait(SHORT)?;
    ensure!(status.and_then(|s| s.code()) == Some(1), "{status:?}");
    ensure!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    Ok(())
}

#[test]
fn an_idle_server_stops_at_once() -> Result<()> {
    let server = Serve::demo("64M").start()?;
    let mut session = Session::open(&Login::new(server.portal(), DEMO_TARGET))?;
    session.settle(0)?;
    session.logout()?;
    let start = Instant::now();
    server.stop()?;
    ensure!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    Ok(())
}

#[test]
fn a_port_in_use_is_refused() -> Result<()> {
    let server = Serve::demo("64M").start()?;
    let (second, _dir) = Serve::at(server.portal(), "64M").spawn()?;
    refused(second, server.portal())
}

#[test]
fn a_volume_open_in_another_lunet_is_refused() -> Result<()> {
    let dir = scratch("lunet-twice-")?;
    let server = Serve::demo("64M").data(dir.path()).start()?;
    let (second, _) = Serve::demo("64M").data(dir.path()).spawn()?;
    refused(second, "lunet")?;
    // The first one does not mind.
    Session::open(&Login::new(server.portal(), DEMO_TARGET))?.logout()?;
    server.stop()?;
    Ok(())
}

#[test]
fn a_missing_configuration_file_is_refused() -> Result<()> {
    let arguments = ["--config", "/nonexistent/lunet.toml"];
    let (process, _dir) = Serve::default().arguments(&arguments).spawn()?;
    refused(process, "/nonexistent/lunet.toml")
}

#[test]
fn a_missing_block_device_is_refused() -> Result<()> {
    let config = "[volumes.a]\nbackend = \"block\"\npath = \"/dev/nonexistent\"\n\
                  [[portal]]\naddress = \"127.0.0.1:0\"\n\
                  [[target]]\nname = \"iqn.2026-11.local.lunet:t\"\nluns = [\"a\"]\n";
    let (process, _dir) = Serve::config(config).spawn()?;
    refused(process, "/dev/nonexistent")
}

#[test]
fn too_little_space_is_refused() -> Result<()> {
    let config = "[volumes.a]\nbackend = \"file\"\nsize = \"4000TiB\"\nprovisioning = \"full\"\n\
                  [[portal]]\naddress = \"127.0.0.1:0\"\n\
                  [[target]]\nname = \"iqn.2026-11.local.lunet:t\"\nluns = [\"a\"]\n";
    let (process, _dir) = Serve::config(config).spawn()?;
    refused(process, "a.img")
}

#[test]
fn a_mistake_in_the_configuration_is_named_with_line_and_key() -> Result<()> {
    let dir = scratch("lunet-config-")?;
    let path = dir.path().join("lunet.toml");
    fs::write(&path, "[[target]]\nname = \"iqn.2026-11.local.lunet:t\"\nlunz = [\"a\"]\n")?;
    let mut command = Command::new(lunet_binary()?);
    let finished = run(command.args(["config", "check"]).arg(&path), SHORT)?;
    let text = format!("{}{}", finished.stdout, finished.stderr);
    ensure!(finished.status.and_then(|s| s.code()) == Some(1), "{}", finished.describe());
    ensure!(text.contains(":3: target.lunz"), "{text}");
    Ok(())
}

/// A pager that is not paged on, a terminal that is held: standard error takes nothing any more.
#[test]
fn a_reader_of_stderr_that_stops_harms_nobody() -> Result<()> {
    // The pipe is full before the server says its first word.
    let fill = "head -c 65536 /dev/zero >&2; exec \"$@\"";
    let mut server = Serve::demo("64M").by(&["sh", "-c", fill, "sh"]).unread().quiet().start()?;
    let portal = server.portal().to_owned();
    // Many more lines than any buffer on the way has room for, if all were written.
    for qualifier in 0..40 {
        let login = Login { target: None, qualifier, ..Login::new(&portal, DEMO_TARGET) };
        Session::open(&login)?.logout()?;
    }
    let mut session = Session::open(&Login::new(&portal, DEMO_TARGET))?;
    session.settle(0)?;
    session.write(0, 8, &[7; 4096], 512)?;
    ensure!(session.read(0, 8, 8, 512)? == [7; 4096], "I/O goes on");
    session.logout()?;
    let start = Instant::now();
    let status = server.process().terminate(GRACE)?;
    ensure!(status.success(), "after SIGTERM: {status}");
    ensure!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    Ok(())
}

/// Lines that are queued when the server ends get out.
#[test]
fn the_last_line_of_the_log_is_written() -> Result<()> {
    let mut server = Serve::demo("64M").quiet().start()?;
    server.process().terminate(GRACE)?;
    let log = server.process().stderr.whole_text();
    let last = log.lines().last().unwrap_or_default();
    ensure!(last.contains("all volumes are flushed and closed"), "{log}");
    Ok(())
}

/// Who may log in without authentication cannot fill the log.
#[test]
fn anonymous_logins_do_not_fill_the_log() -> Result<()> {
    const LOGINS: u16 = 600;
    const MOST: usize = 32 << 10;
    let mut server = Serve::demo("64M").quiet().start()?;
    let portal = server.portal().to_owned();
    for qualifier in 0..LOGINS {
        let target = (qualifier % 2 == 0).then_some(DEMO_TARGET);
        let login = Login { target, qualifier, ..Login::new(&portal, DEMO_TARGET) };
        Session::open(&login)?.logout()?;
    }
    // One more of each kind says how many were left out, or the server does in a while.
    let deadline = Instant::now() + SHORT;
    let left_out = server.process().stderr.find(deadline, |log| {
        let lines = log.lines().filter(|line| line.contains("unlogged="));
        let counts = lines.filter_map(|line| line.split("unlogged=").nth(1)?.parse::<u64>().ok());
        let left_out = counts.sum::<u64>();
        (left_out > u64::from(LOGINS) / 2).then_some(left_out)
    });
    let log = server.process().stderr.text();
    ensure!(log.len() < MOST, "{} bytes of log for {LOGINS} logins", log.len());
    ensure!(left_out.is_some(), "what was left out is not counted: {log}");
    server.stop()?;
    Ok(())
}

/// Resident memory of a process, in bytes.
fn resident(pid: u32) -> Result<usize> {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm"))?;
    let pages = statm.split(' ').nth(1).unwrap_or_default().parse::<usize>()?;
    Ok(pages * rustix::param::page_size())
}

/// Sends pings, and reads none of the answers, until the server takes no more.
fn ping_in_vain(session: &mut Session) -> Result<()> {
    const MOST: usize = 32 << 20;
    let mut ping = Pdu::new(opcode::NOP_OUT | 0x40);
    ping.header[1] = 0x80;
    ping.set_word(16, 7);
    ping.set_word(20, u32::MAX);
    ping.set_word(24, session.cmd_sn());
    ping.data = vec![1; 4096];
    let bytes = ping.encode(false, false);
    let stream = session.stream();
    stream.set_nonblocking(true)?;
    let (mut sent, mut tries) = (0, 0);
    while sent < MOST && tries < 4 {
        match stream.write(&bytes[sent % bytes.len()..]) {
            Ok(n) => (sent, tries) = (sent + n, 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                tries += 1;
                std::thread::sleep(Duration::from_millis(25));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// A client that asks and does not read its answers is not heard until it does.
#[test]
fn answers_that_nobody_reads_take_little_memory() -> Result<()> {
    const SESSIONS: u16 = 24;
    const EACH: usize = 1 << 20;
    let server = Serve::demo("64M").start()?;
    let portal = server.portal().to_owned();
    let mut sessions = Vec::new();
    for qualifier in 0..SESSIONS {
        let target = (qualifier % 3 > 0).then_some(DEMO_TARGET);
        sessions.push(Session::open(&Login {
            target,
            qualifier,
            ..Login::new(&portal, DEMO_TARGET)
        })?);
    }
    let before = resident(server.pid())?;
    for session in &mut sessions {
        ping_in_vain(session)?;
    }
    let grown = resident(server.pid())?.saturating_sub(before);
    ensure!(grown < usize::from(SESSIONS) * EACH, "{} KiB for {SESSIONS} sessions", grown >> 10);
    drop(sessions);
    let mut session = Session::open(&Login::new(&portal, DEMO_TARGET))?;
    session.ping()?;
    session.logout()?;
    server.stop()?;
    Ok(())
}
