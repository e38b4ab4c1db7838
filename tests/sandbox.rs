//! What somebody can do who has taken a server over: nothing but serve. A debug build tries it from inside.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::chown;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lunet_e2e::data::scratch;
use lunet_e2e::fuse::{LoopDevice, is_root};
use lunet_e2e::process::children;
use lunet_e2e::server::{Serve, Server, free_port};
use lunet_e2e::wire::{Login, Session};
use rustix::process::{Pid, Signal, kill_process};

/// Attempts take no time; the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(30);

/// EPERM, EACCES and ENOSYS: it was refused, and got nowhere near its arguments.
const REFUSED: [&str; 3] = ["1", "13", "38"];

/// The user that serves in these tests: everybody's machine has it (nobody).
const NOBODY: u32 = 65534;

const CONFIG: &str = "[server]\nshards = 1\nshutdown-grace = '0s'\n[volumes.a]\nbackend = 'memory'\nsize = '1MiB'\n\
                      [[portal]]\naddress = '127.0.0.1:0'\n\
                      [[target]]\nname = 'iqn.2026-11.local.lunet:t'\nluns = ['a']\n";

const TARGET: &str = "iqn.2026-11.local.lunet:t";

/// All attempts from inside a server with this configuration, and what has come of each.
fn attempts(serve: Serve) -> Result<(Server, Vec<(String, String)>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let outside = scratch("lunet-outside-")?;
    let file = outside.path().join("file");
    fs::write(&file, "x")?;
    let asked = format!("{} {}", listener.local_addr()?, file.display());
    let mut server = serve.environment("LUNET_TEST_ATTEMPTS", &asked).start()?;
    let over = |text: &str| text.contains("attempts: over").then(|| text.to_owned());
    let output = server.process().stdout.find(Instant::now() + PATIENCE, over);
    let text = output.context("nothing was tried: this needs a debug build of lunet")?;
    let of = |line: &str| {
        let (what, result) = line.strip_prefix("attempt: ")?.rsplit_once(": ")?;
        Some((what.to_owned(), result.to_owned()))
    };
    Ok((server, text.lines().filter_map(of).collect()))
}

/// Everything was refused, but for those attempts.
fn refused(all: &[(String, String)], but: &[impl AsRef<str>]) -> Result<()> {
    ensure!(all.len() > 200, "{} attempts", all.len());
    let is_through = |(what, result): &&(String, String)| {
        let known = but.iter().any(|one| one.as_ref() == what);
        !known && !REFUSED.contains(&result.as_str())
    };
    let through: Vec<_> = all.iter().filter(is_through).collect();
    ensure!(through.is_empty(), "{through:?}");
    Ok(())
}

#[test]
fn a_server_that_is_taken_over_can_do_nothing_else() -> Result<()> {
    if !is_root() {
        eprintln!("skipped: needs root");
        return Ok(());
    }
    let (mut server, all) = attempts(Serve::config(format!("{CONFIG}[sandbox]\npaths = []\n")))?;
    refused(&all, &[""; 0])?;
    // The log has a writer of its own.
    let line = "user 0; capabilities: chown, dac_override, fowner";
    let log = &server.process().stderr;
    let said = log.find(Instant::now() + PATIENCE, |log| log.contains(line).then_some(()));
    ensure!(said.is_some(), "{}", log.text());
    server.stop()?;
    Ok(())
}

#[test]
fn the_user_that_serves_has_no_more_than_it_needs() -> Result<()> {
    if !is_root() {
        eprintln!("skipped: needs root");
        return Ok(());
    }
    let data = scratch("lunet-user-")?;
    chown(data.path(), Some(NOBODY), Some(NOBODY))?;
    let config = data.path().join("lunet.toml");
    // A group that this user is not in, and that it has no capability to give a socket to.
    let group = "[control]\nread-group = 'daemon'\n";
    fs::write(&config, format!("{CONFIG}{group}[sandbox]\npaths = []\n"))?;
    chown(&config, Some(NOBODY), Some(NOBODY))?;
    let serve = Serve::default().data(data.path());
    let (server, all) = attempts(serve.arguments(&["--user", &NOBODY.to_string()]))?;
    refused(&all, &[""; 0])?;
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid()))?;
    let line = |name: &str| status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    ensure!(line("Uid:").split_whitespace().skip(1).all(|uid| uid == NOBODY.to_string()));
    // CAP_NET_BIND_SERVICE and CAP_IPC_LOCK.
    for set in ["CapPrm:", "CapEff:"] {
        ensure!(line(set).ends_with("0000000000004400"), "{status}");
    }
    ensure!(line("CapBnd:").ends_with("0000000000000000"), "{status}");
    ensure!(line("NoNewPrivs:").ends_with('1') && line("Seccomp:").ends_with('2'), "{status}");
    // The device is root's, and there is no rule for /dev: the helper opens it.
    let image = data.path().join("image");
    fs::File::create(&image)?.set_len(1 << 20)?;
    let device = LoopDevice::new(&image, 512)?;
    let at = device.path().to_str().context("it has a name")?;
    server.tell(&["volume", "create", "b", "--backend", "block", "--path", at])?;
    let told = server.refuses(&["volume", "create", "c", "--size", "1MiB", "--path", "/etc/c"])?;
    ensure!(told.contains("`paths` of [sandbox]"), "{told}");
    server.stop()?;
    Ok(())
}

/// What root starts by hand may use any directory but the system's.
#[test]
fn a_server_without_a_configured_sandbox_leaves_the_system_alone() -> Result<()> {
    if !is_root() {
        eprintln!("skipped: needs root");
        return Ok(());
    }
    let (server, all) = attempts(Serve::config(CONFIG))?;
    let outside = ["write a file outside", "remove a file outside"];
    let through: Vec<String> = ["Server", "Shard"]
        .iter()
        .flat_map(|role| outside.map(|what| format!("{role}: {what}")))
        .collect();
    refused(&all, &through)?;
    server.stop()?;
    Ok(())
}

/// What the helper does not do any more is refused; sessions and the end of the server are as before.
#[test]
fn the_helper_may_die() -> Result<()> {
    let address = format!("127.0.0.1:{}", free_port()?);
    let mut server =
        Serve::config(CONFIG).arguments(&["--listen-control", address.as_str()]).start()?;
    let mut session = Session::open(&Login::new(server.portal(), TARGET))?;
    session.settle(0)?;
    TcpStream::connect(&address).context("the REST interface is there")?;
    let [helper] = children(server.pid())?[..] else { bail!("the server has one child") };
    let helper = Pid::from_raw(helper.try_into()?).context("no process has this number")?;
    kill_process(helper, Signal::KILL)?;
    session.write(0, 0, &[1; 512], 512)?;
    server.tell(&["volume", "create", "b", "--backend", "memory", "--size", "1MiB"])?;
    session.write(0, 1, &[2; 512], 512)?;
    // What cannot come back is told, once, with what to do, and whoever connects is refused and does not wait.
    let ended = |text: &str| text.contains("the helper process has ended").then_some(());
    let told = server.process().stderr.find(Instant::now() + PATIENCE, ended);
    ensure!(told.is_some(), "nothing was told of the helper's end");
    let begun = Instant::now();
    while TcpStream::connect(&address).is_ok() {
        ensure!(
            begun.elapsed() < PATIENCE,
            "the REST interface is listened for, and nobody answers"
        );
        sleep(Duration::from_millis(10));
    }
    ensure!(!server.process().stderr.text().contains("it is started again"));
    let stats = server.tell(&["stats"])?;
    ensure!(stats.contains("the helper process has ended"), "{stats}");
    server.stop()?;
    Ok(())
}
