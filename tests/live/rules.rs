//! Who may do what changes while sessions run: whoever is not let in any more goes, and is named.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lunet_e2e::clients::SHORT;
use lunet_e2e::process::{Finished, run};
use lunet_e2e::server::{Serve, Server, lunet_binary};
use lunet_e2e::wire::handshake::Chap;
use lunet_e2e::wire::scsi::TEST_UNIT_READY;
use lunet_e2e::wire::{Login, Session};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{FILE, LUNS_CHANGED, ONE, TWO, luns, open, ready, text, told};

const USER: &str = "[[target.user]]\nname = 'alice'\nsecret = 'a secret of 16 b'\n";

/// Demands that a session ends within its grace.
pub fn ends(session: &mut Session) -> Result<()> {
    let ended = (0..1000).any(|_| {
        thread::sleep(Duration::from_millis(10));
        session.execute(0, &TEST_UNIT_READY, 0, &[]).is_err()
    });
    ensure!(ended, "the session goes on");
    Ok(())
}

fn json(server: &Server, arguments: &[&str]) -> Result<Value> {
    let text = server.tell(&[arguments, &["--json"]].concat())?;
    serde_json::from_str(&text).context(text)
}

#[test]
fn chap_that_comes_ends_sessions_without_it_or_names_them() -> Result<()> {
    let server = Serve::config(FILE).start()?;
    let path = server.data().join("lunet.toml");
    let (mut one, mut two) = (open(&server, ONE, 0)?, open(&server, TWO, 0)?);
    let guarded = format!("{FILE}{USER}");
    fs::write(&path, &guarded)?;
    // Only said: the last target is the second.
    let said = server.tell(&["config", "apply", "--dry-run"])?;
    ensure!(said.contains("user alice of iqn.2026-11.local.lunet:two is new"), "{said}");
    ensure!(said.contains(" ends: it has logged in without CHAP"), "{said}");
    ensure!(said.lines().filter(|line| line.contains("session ")).count() == 1, "{said}");
    ensure!(server.tell(&["config", "show"])? == FILE && ready(&mut two, 0)?.is_none());
    let preview = json(&server, &["config", "apply", "--dry-run"])?;
    ensure!(preview["sessions"][0]["fate"] == "ends" && preview["refused"].is_null(), "{preview}");
    ensure!(preview["changes"][0]["what"] == "user", "{preview}");

    // On request it stays, and is named; what comes later and does not concern it ends nothing.
    let applied = server.command(&["config", "apply", "--keep-sessions"])?;
    ensure!(applied.stderr.contains("stays all the same"), "{}", applied.describe());
    ensure!(server.tell(&["config", "show"])?.contains("not shown"));
    ensure!(Session::open(&Login { qualifier: 7, ..Login::new(server.portal(), TWO) }).is_err());
    server.tell(&["volume", "create", "x", "--size", "1MiB"])?;
    ensure!(ready(&mut two, 0)?.is_none(), "it was to stay");

    // With other rules it goes, and the session with CHAP is the only one.
    let chap = Some(Chap::new("alice", "a secret of 16 b"));
    let login = Login { chap, qualifier: 8, ..Login::new(server.portal(), TWO) };
    let mut proved = Session::open(&login)?;
    let text = fs::read_to_string(&path)?;
    fs::write(&path, format!("{text}initiators = ['iqn.*']\n"))?;
    let done = json(&server, &["config", "apply"])?;
    ensure!(done["sessions"].as_array().is_some_and(|all| all.len() == 1), "{done}");
    ends(&mut two)?;
    proved.settle(0)?;
    // A secret that is another counts for those who have used the old one.
    let text = fs::read_to_string(&path)?;
    fs::write(&path, text.replace("a secret of 16 b", "another of 16 by"))?;
    let done = json(&server, &["config", "apply"])?;
    ensure!(done["sessions"][0]["why"] == "its user has another secret now", "{done}");
    ends(&mut proved)?;
    ensure!(ready(&mut one, 0)?.is_none(), "another target's session was told");
    server.stop()?;
    Ok(())
}

#[test]
fn what_is_in_use_goes_from_the_file_with_consent_only() -> Result<()> {
    let mut server = Serve::config(FILE).quiet().start()?;
    let path = server.data().join("lunet.toml");
    let (mut one, mut two) = (open(&server, ONE, 0)?, open(&server, TWO, 0)?);
    let without = FILE
        .replace("[volumes.b]\nbackend = 'file'\nsize = '32MiB'     # for now\n", "")
        .replace("luns = { 0 = 'b' }", "");
    for (text, words) in [
        (without.clone(), "1 session uses volume b as LUN 0 of iqn.2026-11.local.lunet:two"),
        (FILE.replace("{ 0 = 'b' }", "{ 0 = 'a' }"), "1 session uses volume b as LUN 0"),
        (FILE.replace("{ 0 = 'b' }", "{ 1 = 'b' }"), "1 session uses volume b as LUN 0"),
        (FILE.replace("lunet:two", "lunet:new"), "uses target iqn.2026-11.local.lunet:two"),
    ] {
        fs::write(&path, &text)?;
        let error = server.refuses(&["config", "apply"])?;
        ensure!(error.contains(words) && error.contains("`lunet config apply --force`"), "{error}");
        ensure!(error.contains("from 127.0.0.1:"), "who is not named: {error}");
        ensure!(server.tell(&["config", "show"])? == FILE && ready(&mut two, 0)?.is_none());
    }
    fs::write(&path, &without)?;
    let shown = server.command(&["config", "apply", "--dry-run"])?;
    ensure!(shown.stdout.contains("it would be refused: 1 session"), "{}", shown.describe());
    ensure!(shown.stdout.contains("loses LUN 0 (volume b)"), "{}", shown.describe());
    let pid = i32::try_from(server.pid()).ok().and_then(Pid::from_raw).context("no pid")?;
    kill_process(pid, Signal::HUP)?;
    let told_so = "change by SIGHUP: apply: refused: 1 session uses volume b";
    let words = |text: &str| text.contains(told_so).then_some(());
    let found = server.process().stderr.find(Instant::now() + SHORT, words);
    ensure!(found.is_some(), "{}", server.process().stderr.text());
    ensure!(ready(&mut two, 0)?.is_none());
    fs::write(&path, FILE)?;
    let error = server.refuses(&["target", "unmap", TWO, "0"])?;
    ensure!(error.contains("1 session uses volume b") && error.contains("--force"), "{error}");

    fs::write(&path, &without)?;
    let done = server.tell(&["config", "apply", "--force"])?;
    let lost = |text: &str| {
        let mut lines = text.lines().filter(|line| line.contains("by this change, session "));
        lines.any(|line| line.contains("loses LUN 0 (volume b)")).then_some(())
    };
    let found = server.process().stderr.find(Instant::now() + SHORT, lost);
    ensure!(found.is_some(), "{}", server.process().stderr.text());
    ensure!(done.contains("volume b is gone"), "{done}");
    ensure!(luns(&mut two)?.is_empty() && ready(&mut one, 0)?.is_none());
    server.stop()?;
    Ok(())
}

#[test]
fn sessions_are_ended_by_number_and_by_initiator() -> Result<()> {
    let server = Serve::config(FILE).start()?;
    let (mut one, mut two) = (open(&server, ONE, 0)?, open(&server, TWO, 0)?);
    let sessions = json(&server, &["sessions"])?;
    let of = |target: &str| {
        let all = sessions["sessions"].as_array()?;
        all.iter().find(|session| session["target"] == target)
    };
    let number = of(TWO).context("no session")?["tsih"].to_string();
    let shown = server.tell(&["sessions"])?;
    ensure!(shown.contains(&format!("TSIH {number}")), "{shown}");
    let done = json(&server, &["sessions", "end", &number])?;
    ensure!(done["sessions"][0]["target"] == TWO, "{done}");
    ends(&mut two)?;
    ensure!(ready(&mut one, 0)?.is_none());
    let error = server.refuses(&["sessions", "end", &number])?;
    ensure!(error.contains("there is no session") && error.contains("`lunet sessions`"), "{error}");
    let initiator = of(ONE).context("no session")?["initiator"].clone();
    server.tell(&["sessions", "end", "--initiator", initiator.as_str().context("no name")?])?;
    ends(&mut one)?;
    // It was shown the door, and not shut out.
    let mut again = open(&server, ONE, 0)?;
    server.tell(&["target", "map", ONE, "1", "b"])?;
    told(&mut again, 0, LUNS_CHANGED)?;
    server.stop()?;
    Ok(())
}

/// Runs a command with a line on its standard input.
fn with_input(server: &Server, arguments: &[&str], input: &str) -> Result<Finished> {
    let file = server.data().join("input");
    fs::write(&file, input)?;
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" \"$@\" < \"$INPUT\""]).env("INPUT", &file);
    command.arg(lunet_binary()?).args(arguments).arg("--data").arg(server.data());
    let finished = run(&mut command, SHORT)?;
    fs::remove_file(&file)?;
    Ok(finished)
}

fn log_in(server: &Server, qualifier: u16, chap: Option<Chap<'_>>) -> Result<Session> {
    let initiator = if qualifier < 10 { A } else { B };
    Session::open(&Login { initiator, qualifier, chap, ..Login::new(server.portal(), TWO) })
}

const A: &str = "iqn.2026-11.local.lunet:host-a";
const B: &str = "iqn.2026-11.local.lunet:host-b";

#[test]
fn initiators_are_let_in_and_shut_out_by_command() -> Result<()> {
    let server = Serve::config(FILE).start()?;
    let mut a = log_in(&server, 1, None)?;
    a.settle(0)?;
    // The first entry would shut the one out that is there.
    let error = server.refuses(&["target", "allow", TWO, B])?;
    ensure!(error.contains(A) && error.contains("--keep-sessions"), "{error}");
    ensure!(text(&server)? == FILE && ready(&mut a, 0)?.is_none());
    let done = server.tell(&["target", "allow", TWO, B, A])?;
    ensure!(done.contains(&format!("target {TWO} is for {B}, {A}, without CHAP")), "{done}");
    ensure!(!done.contains("work together"), "{done}");
    let list = format!("luns = {{ 0 = 'b' }}\ninitiators = [\"{B}\", \"{A}\"]\n");
    ensure!(text(&server)? == FILE.replace("luns = { 0 = 'b' }\n", &list), "{}", text(&server)?);
    let mut b = log_in(&server, 11, None)?;
    b.settle(0)?;
    let denied = json(&server, &["target", "deny", TWO, A])?;
    ensure!(denied["sessions"][0]["initiator"] == A, "{denied}");
    ends(&mut a)?;
    ensure!(log_in(&server, 2, None).is_err() && ready(&mut b, 0)?.is_none());
    let error = server.refuses(&["target", "deny", TWO, A])?;
    ensure!(error.contains("is not in the list"), "{error}");
    let error = server.refuses(&["target", "allow", TWO, "10.0.0.0/40"])?;
    ensure!(error.contains("prefix of 0 to 32 bits"), "{error}");
    // The last one leaves nobody, and not everybody; the way back is told.
    let done = server.command(&["target", "deny", TWO, B])?;
    ensure!(done.stdout.contains("is for nobody"), "{}", done.describe());
    ensure!(
        done.stderr.contains(&format!("`lunet target allow {TWO} INITIATOR`")),
        "{}",
        done.stderr
    );
    ensure!(done.stderr.contains("take `initiators` out of"), "{}", done.stderr);
    ends(&mut b)?;
    ensure!(log_in(&server, 12, None).is_err());
    server.tell(&["target", "allow", TWO, "*:host-a"])?;
    log_in(&server, 3, None)?.logout()?;
    server.stop()?;
    Ok(())
}

/// Nobody is logged in; still a command that is to let one more in shuts nobody out, and one that is to shut one
/// out lets nobody in, without being told to.
#[test]
fn rules_that_narrow_or_widen_by_surprise_are_told_before() -> Result<()> {
    let open = FILE.replace("luns = { 0 = 'b' }\n", "luns = { 0 = 'b' }\nopen = true\n");
    let server = Serve::config(&open).start()?;
    let refused = |arguments: &[&str], words: &[&str]| -> Result<()> {
        let before = text(&server)?;
        let error = server.refuses(&[&["target"], arguments].concat())?;
        for word in words.iter().chain(&["--force"]) {
            ensure!(error.contains(word), "{arguments:?}: {error}");
        }
        ensure!(text(&server)? == before, "{arguments:?} has changed the file");
        Ok(())
    };
    let tell = |arguments: &[&str]| server.command(&[&["target"], arguments].concat());
    // Everybody is in: the first entry shuts out all others.
    refused(&["allow", TWO, A], &["would be for iqn", "shuts out all other names"])?;
    tell(&["allow", TWO, "127.0.0.0/8", "--force"])?.success()?;
    log_in(&server, 1, None)?.logout()?;
    // A name beside an address narrows the list.
    let words = format!("would be for {A}, coming from 127.0.0.0/8, without CHAP");
    refused(&["allow", TWO, A], &[&words, "shuts out all other names", "work together"])?;
    log_in(&server, 11, None)?.logout()?;
    let done = tell(&["allow", TWO, A, "--force"])?;
    ensure!(done.stdout.contains("coming from 127.0.0.0/8, without CHAP"), "{}", done.describe());
    ensure!(done.stderr.contains("must have one of the names and come from"), "{}", done.stderr);
    ensure!(log_in(&server, 12, None).is_err());
    // The last name that goes leaves the addresses, for every name.
    refused(&["deny", TWO, A], &["would be for all from 127.0.0.0/8", "lets in every name"])?;
    ensure!(log_in(&server, 13, None).is_err());
    tell(&["deny", TWO, A, "127.0.0.0/8"])?.success()?;
    tell(&["allow", TWO, "*:host-*", A])?.success()?;
    let still = tell(&["deny", TWO, A])?;
    ensure!(
        still.stderr.contains(&format!("still in its list: {A} (by *:host-*)")),
        "{}",
        still.stderr
    );
    // The portal is on loopback: nobody could come from there.
    refused(&["allow", ONE, "192.0.2.0/24"], &["nobody could log in", "from this machine alone"])?;
    let done = tell(&["allow", ONE, "127.0.0.0/8"])?;
    ensure!(done.stderr.contains("until now it was for this machine alone"), "{}", done.describe());
    log_in(&server, 4, None)?.logout()?;
    server.stop()?;
    Ok(())
}

#[test]
fn users_come_with_their_secrets_and_go() -> Result<()> {
    let server = Serve::config(FILE).start()?;
    let add = |words: &[&str], secret: &str| {
        with_input(&server, &[&["target", "user", "add", TWO], words].concat(), secret)
    };
    let secrets = || -> Result<usize> { Ok(fs::read_dir(server.data().join("secrets"))?.count()) };
    let mut plain = log_in(&server, 1, None)?;
    let refused = add(&["alice"], "a secret of 16 b\n")?;
    ensure!(refused.stderr.contains("has logged in without CHAP"), "{}", refused.describe());
    ensure!(secrets()? == 0 && text(&server)? == FILE, "a refused change has left a secret");
    let refused = add(&["alice"], "too short\n")?;
    ensure!(refused.stderr.contains("a secret of 9 bytes"), "{}", refused.describe());
    let added = add(&["alice", "--force", "--json"], "a secret of 16 b\n")?.success()?;
    ensure!(added.contains("\"fate\": \"ends\"") && !added.contains("16 b"), "{added}");
    ends(&mut plain)?;
    let chap = |secret| Some(Chap::new("alice", secret));
    let mut alice = log_in(&server, 2, chap("a secret of 16 b"))?;
    alice.settle(0)?;
    ensure!(!text(&server)?.contains("16 b"), "the secret is in the configuration");
    let listed = server.tell(&["target", "user", "list", TWO])?;
    ensure!(listed.contains("alice") && listed.contains(".secret"), "{listed}");
    // Another secret shuts out who knows the old one; one file stays.
    add(&["alice", "--replace"], "another of 16 by\n")?.success()?;
    ends(&mut alice)?;
    ensure!(secrets()? == 1 && log_in(&server, 3, chap("a secret of 16 b")).is_err());
    let mut alice = log_in(&server, 4, chap("another of 16 by"))?;
    alice.settle(0)?;
    // A second one, whose secret is in a file of the administrator's.
    let file = server.data().join("bob.secret");
    fs::write(&file, "bobs secret of 20 by\n")?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
    let place = file.to_str().context("no text")?;
    server.tell(&["target", "user", "add", TWO, "bob", "--secret-file", place])?;
    log_in(&server, 5, Some(Chap::new("bob", "bobs secret of 20 by")))?.logout()?;
    server.tell(&["target", "user", "remove", TWO, "bob"])?;
    ensure!(file.exists(), "it is not lunet's to remove");
    let error = server.refuses(&["target", "user", "remove", TWO, "alice"])?;
    ensure!(error.contains("only user") && error.contains("--force"), "{error}");
    ensure!(ready(&mut alice, 0)?.is_none());
    ensure!(error.contains("the target is for this machine alone"), "{error}");
    let done = server.tell(&["target", "user", "remove", TWO, "alice", "--force"])?;
    ensure!(done.contains("is for this machine alone, without CHAP"), "{done}");
    let error = server.refuses(&["target", "deny", TWO, A])?;
    ensure!(error.contains("is for this machine alone"), "{error}");
    ensure!(secrets()? == 0 && text(&server)? == FILE, "{}", text(&server)?);
    server.stop()?;
    Ok(())
}

#[test]
fn a_target_that_names_nobody_is_opened_by_command() -> Result<()> {
    let server = Serve::config(FILE).start()?;
    let mut session = log_in(&server, 1, None)?;
    session.settle(0)?;
    let done = server.tell(&["target", "open", TWO])?;
    ensure!(done.contains(&format!("target {TWO} is for everybody, without CHAP")), "{done}");
    let opened = FILE.replace("luns = { 0 = 'b' }\n", "luns = { 0 = 'b' }\nopen = true\n");
    ensure!(text(&server)? == opened, "{}", text(&server)?);
    let targets = json(&server, &["target", "list"])?["targets"].take();
    ensure!(targets[1]["for"] == "everybody" && targets[0]["for"] == "this-machine", "{targets}");
    let again = server.tell(&["target", "open", TWO])?;
    ensure!(again.contains("is open to everybody already") && text(&server)? == opened, "{again}");
    ensure!(ready(&mut session, 0)?.is_none(), "nobody is concerned");
    // A target that names somebody stays theirs.
    server.tell(&["target", "allow", ONE, A])?;
    let error = server.refuses(&["target", "open", ONE])?;
    ensure!(error.contains(&format!("is for {A}, without CHAP: only one that names")), "{error}");
    let error = server.refuses(&["target", "open", "iqn.2026-11.local.lunet:none"])?;
    ensure!(error.contains("there is no target"), "{error}");
    server.stop()?;
    Ok(())
}
