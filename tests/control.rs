//! `lunet sessions` and `lunet stats` tell what really happens.

use std::net::TcpStream;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use lunet_e2e::clients::{LONG, SHORT};
use lunet_e2e::process::{Running, output, run};
use lunet_e2e::server::{DEMO_TARGET, Serve, Server, lunet_binary};
use lunet_e2e::wire::{Login, Session};
use serde_json::Value;

fn ask(server: &Server, what: &str, json: bool) -> Result<String> {
    let data = server.directory().context("the server has no directory of its own")?;
    let mut command = Command::new(lunet_binary()?);
    command.arg(what).arg("--data").arg(data);
    if json {
        command.arg("--json");
    }
    output(&mut command, SHORT)
}

#[test]
fn sessions_shows_who_is_connected_and_what_was_negotiated() -> Result<()> {
    let server = Serve::demo("64M").start()?;
    let login = Login { header_digest: true, ..Login::new(server.portal(), DEMO_TARGET) };
    let mut first = Session::open(&login)?;
    first.settle(0)?;
    let second = Session::open(&Login { qualifier: 1, header_digest: false, ..login.clone() })?;

    let answer: Value = serde_json::from_str(&ask(&server, "sessions", true)?)?;
    let sessions = answer["sessions"].as_array().context("not an array")?;
    ensure!(sessions.len() == 2, "{answer:#}");
    for session in sessions {
        ensure!(session["initiator"] == login.initiator, "{session:#}");
        ensure!(session["target"] == DEMO_TARGET, "{session:#}");
        ensure!(session["transport"] == "tcp", "{session:#}");
        ensure!(session["portal"] == server.portal(), "{session:#}");
    }
    let with_digest = answer.to_string().matches("[\"HeaderDigest\",\"CRC32C\"]").count();
    ensure!(with_digest == 1, "{answer:#}");
    let table = ask(&server, "sessions", false)?;
    ensure!(table.contains(login.initiator) && table.contains("CRC32C"), "{table}");

    second.logout()?;
    first.logout()?;
    let answer: Value = serde_json::from_str(&ask(&server, "sessions", true)?)?;
    ensure!(answer["sessions"].as_array().is_some_and(Vec::is_empty), "{answer:#}");
    ensure!(answer["silent_shards"] == serde_json::json!([]), "{answer:#}");
    server.stop()?;
    Ok(())
}

#[test]
fn stats_counts_operations_and_bytes() -> Result<()> {
    let server = Serve::demo("64M").start()?;
    let mut session = Session::open(&Login::new(server.portal(), DEMO_TARGET))?;
    session.settle(0)?;
    for n in 0..10 {
        session.write(0, n * 8, &[1; 4096], 512)?;
    }
    for _ in 0..7 {
        session.read(0, 0, 16, 512)?;
    }
    session.flush(0)?;

    let answer: Value = serde_json::from_str(&ask(&server, "stats", true)?)?;
    let volume = &answer["volumes"][0];
    ensure!(volume["name"] == "demo" && volume["size_bytes"] == 64 << 20, "{answer:#}");
    ensure!(volume["write"]["ops"] == 10 && volume["write"]["bytes"] == 10 * 4096, "{answer:#}");
    ensure!(volume["read"]["ops"] == 7 && volume["read"]["bytes"] == 7 * 8192, "{answer:#}");
    ensure!(volume["flushes"] == 1 && answer["sessions"] == 1, "{answer:#}");
    ensure!(ask(&server, "stats", false)?.contains("demo"));
    session.logout()?;
    server.stop()?;
    Ok(())
}

#[test]
fn a_server_without_descriptors_says_so() -> Result<()> {
    const MOST: usize = 96;
    let server = Serve::config(
        "[server]\nshards = 1\nlogin-timeout = \"300s\"\n[[portal]]\naddress = \"127.0.0.1:0\"\n\
         [volumes.a]\nbackend = \"null\"\nsize = \"1MiB\"\n\
         [[target]]\nname = \"iqn.2026-11.local.lunet:few\"\nluns = [\"a\"]\n",
    )
    .by(&["sh", "-c", &format!("ulimit -n {MOST}; exec \"$@\""), "sh"])
    .start()?;
    let asked = ["stats", "--json"];
    server.tell(&asked)?;
    // Those that find no descriptor wait in the queue of the listener.
    let mut clients = Vec::new();
    for _ in 0..MOST {
        clients.push(TcpStream::connect(server.portal())?);
    }
    let deadline = Instant::now() + LONG;
    let told = loop {
        let answer = server.command(&asked)?;
        if answer.stderr.contains("no descriptor left") {
            break answer.stderr;
        }
        ensure!(Instant::now() < deadline, "{}", answer.stderr);
        if !answer.is_success() {
            // An event loop was quicker than the answer to take the last one.
            clients.remove(0);
        }
    };
    let all = format!("connections and volumes have all of {MOST} that it may have open");
    ensure!(told.contains(&all) && told.contains("raise the limit (`LimitNOFILE="), "{told}");
    drop(clients);
    // It answers again when connections have ended.
    while !server.command(&asked)?.is_success() {
        ensure!(Instant::now() < deadline, "the descriptors have not come back");
    }
    server.stop()?;
    Ok(())
}

#[test]
fn without_a_server_there_is_one_plain_sentence() -> Result<()> {
    let dir = lunet_e2e::data::scratch("lunet-nobody-")?;
    let mut command = Command::new(lunet_binary()?);
    command.arg("stats").arg("--data").arg(dir.path());
    let finished = lunet_e2e::process::run(&mut command, SHORT)?;
    ensure!(finished.status.and_then(|s| s.code()) == Some(1), "{}", finished.describe());
    ensure!(finished.stderr.lines().count() == 1, "{}", finished.describe());
    Ok(())
}

#[test]
fn stats_can_be_followed() -> Result<()> {
    let server = Serve::demo("64M").start()?;
    let data = server.directory().context("the server has no directory of its own")?;
    let mut command = Command::new(lunet_binary()?);
    command.args(["stats", "--follow", "--interval", "200ms", "--json", "--data"]).arg(data);
    let mut follow = Running::spawn(&mut command)?;
    let mut session = Session::open(&Login::new(server.portal(), DEMO_TARGET))?;
    session.settle(0)?;
    let deadline = Instant::now() + SHORT;
    let (mut seen, mut read) = (0, 0.0);
    while read == 0.0 {
        for _ in 0..20 {
            session.read(0, 0, 16, 512)?;
        }
        let whole =
            |text: &str| text.lines().nth(seen).filter(|_| text.ends_with('\n')).map(str::to_owned);
        let line = follow.stdout.find(deadline, whole).context("no line")?;
        let line: Value = serde_json::from_str(&line)?;
        let rates = &line["rates"];
        let volume = &rates["volumes"][0];
        ensure!(volume["name"] == "demo" && rates["seconds"].as_f64() >= Some(0.2), "{line:#}");
        ensure!(rates["shards"].as_array().is_some_and(|shards| !shards.is_empty()), "{line:#}");
        read += volume["read"]["bytes_per_second"].as_f64().context("no rate")?;
        seen += 1;
    }
    session.logout()?;
    server.stop()?;
    // And it says why there is no more.
    let status = follow.wait(SHORT)?.context("it goes on without a server")?;
    ensure!(status.code() == Some(1), "{status}");
    ensure!(follow.stderr.whole_text().contains("no lunet is running"));
    Ok(())
}

#[test]
fn top_draws_on_a_terminal_and_leaves_at_q() -> Result<()> {
    let server = Serve::demo("64M").start()?;
    let data = server.directory().context("the server has no directory of its own")?;
    let lunet = lunet_binary()?;
    let no_terminal = run(Command::new(&lunet).arg("top").arg("--data").arg(data), SHORT)?;
    ensure!(no_terminal.describe().contains("needs a terminal"), "{}", no_terminal.describe());
    // util-linux's `script` gives it a terminal, on which somebody strikes a key once the volume is there.
    let seen = data.join("seen");
    let line = format!(
        "(until [ -e '{0}' ]; do sleep 0.1; done; printf q) | script -qec \"stty cols 120 rows 30; '{1}' top --data '{2}'\" /dev/null",
        seen.display(),
        lunet.display(),
        data.display()
    );
    let mut command = Command::new("timeout");
    let mut top = Running::spawn(command.args(["60", "bash", "-c", &line]).env("TERM", "xterm"))?;
    let deadline = Instant::now() + SHORT;
    let drawn = top.stdout.find(deadline, |text| text.contains("demo").then_some(()));
    ensure!(drawn.is_some(), "{}{}", top.stdout.text(), top.stderr.text());
    std::fs::write(&seen, "")?;
    let status = top.wait(SHORT)?.context("it goes on after q")?;
    ensure!(status.success(), "{status}: {}", top.stdout.text());
    server.stop()?;
    Ok(())
}
