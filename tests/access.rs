//! An initiator sees and reaches what is its own: every way in that is not meant to be one, and what it is answered.
//! The table of docs/access.md is held to what really happens.

#[path = "access/tries.rs"]
mod tries;

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lunet_e2e::clients::SHORT;
use lunet_e2e::data::scratch;
use lunet_e2e::process::{Running, output, run};
use lunet_e2e::server::{DEMO_TARGET, Serve, Server, lunet_binary};
use lunet_e2e::wire::handshake::{Chap, hex};
use lunet_e2e::wire::{Login, Session};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

const GUARDED: &str = "iqn.2026-11.local.lunet:guarded";
const STRONG: &str = "iqn.2026-11.local.lunet:strong";
const LISTED: &str = "iqn.2026-11.local.lunet:listed";
const NEARBY: &str = "iqn.2026-11.local.lunet:nearby";
const HOST_A: &str = "iqn.2026-11.local.lunet:host-a";
const HOST_B: &str = "iqn.2026-11.local.lunet:host-b";

const ALICE: (&str, &str) = ("alice", "alices-own-secret");
const BOB: (&str, &str) = ("bob", "bobs-own-secret");
const STORAGE: (&str, &str) = ("storage", "the-targets-secret");
const FINDER: (&str, &str) = ("finder", "a-secret-to-find");

const CONFIG: &str = r#"
[server]
log-level = "trace"
shards = 2

[[portal]]
address = "127.0.0.1:0"

[volumes.a]
backend = "memory"
size = "8MiB"

[volumes.b]
backend = "memory"
size = "8MiB"

[[target]]
name = "iqn.2026-11.local.lunet:guarded"
luns = { 0 = "a", 1 = { volume = "b", initiators = ["*:host-a"] } }
[[target.user]]
name = "alice"
secret-file = "alice.secret"
[[target.user]]
name = "bob"
secret-env = "LUNET_TEST_SECRET"
initiators = ["*:host-b"]
[target.mutual]
name = "storage"
secret = "the-targets-secret"

[[target]]
name = "iqn.2026-11.local.lunet:strong"
luns = ["a"]
chap-algorithms = ["sha256", "sha3-256"]
user = [{ name = "alice", secret-file = "alice.secret" }]

[[target]]
name = "iqn.2026-11.local.lunet:listed"
luns = ["b"]
initiators = ["iqn.2026-11.local.lunet:host-a"]

[[target]]
name = "iqn.2026-11.local.lunet:nearby"
luns = ["b"]
initiators = ["127.0.0.1", "127.0.2.0/24"]

[discovery]
initiators = ["127.0.0.0/16"]
user = [{ name = "finder", secret-file = "finder.secret" }]
"#;

/// The server of this page, in a directory with its secrets.
fn start() -> Result<(Server, TempDir)> {
    let dir = scratch("lunet-access-")?;
    for (name, secret) in [ALICE, FINDER] {
        let path = dir.path().join(format!("{name}.secret"));
        fs::write(&path, format!("{secret}\n"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    }
    let serve = Serve::config(CONFIG).data(dir.path()).environment("LUNET_TEST_SECRET", BOB.1);
    Ok((serve.quiet().start()?, dir))
}

/// As host A, from an address of its own, so that no try makes another wait.
fn login(portal: &str, number: u8) -> Login<'_> {
    let from = Some(Ipv4Addr::new(127, 0, 1, number));
    Login { initiator: HOST_A, from, ..Login::new(portal, GUARDED) }
}

/// What the table of the page says: each try with its answer.
fn documented() -> Vec<(String, String)> {
    let page = include_str!("../docs/access.md");
    let (_, table) =
        page.split_once("| attempt | answer |\n|---|---|\n").expect("the page has the table");
    let rows = table.lines().take_while(|line| line.starts_with("| "));
    let cells = |line: &str| {
        let mut cells = line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned());
        (cells.next().unwrap_or_default(), cells.next().unwrap_or_default())
    };
    rows.map(cells).collect()
}

#[test]
fn each_unauthorised_try_gets_the_documented_answer() -> Result<()> {
    let (mut server, dir) = start()?;
    let portal = server.portal().to_owned();
    let mut happened = Vec::new();
    for (number, (name, attempt)) in tries::TRIES.iter().enumerate() {
        let answer =
            attempt(&login(&portal, number as u8 + 1)).with_context(|| format!("try: {name}"))?;
        happened.push(((*name).to_owned(), answer));
    }
    assert_eq!(documented(), happened);

    // What is right still gets in, in both directions.
    let chap = Chap { target: Some(STORAGE), ..Chap::new(ALICE.0, ALICE.1) };
    let session = Session::open(&Login { chap: Some(chap), ..login(&portal, 200) })?;
    session.logout()?;
    let false_target = Chap { target: Some((STORAGE.0, "another-secret")), ..chap };
    let error = Session::open(&Login { chap: Some(false_target), ..login(&portal, 201) });
    ensure!(error.is_err_and(|e| e.to_string().contains("the target is another")));

    // The failures were counted by their reasons.
    let mut command = Command::new(lunet_binary()?);
    command.args(["stats", "--json", "--data"]).arg(dir.path());
    let stats: Value = serde_json::from_str(&output(&mut command, SHORT)?)?;
    let count = |key: &str| stats["protocol"][key].as_u64().unwrap_or_default();
    let answered = |status: &str| {
        let times = happened.iter().filter(|(_, answer)| answer.starts_with(status)).count();
        times as u64
    };
    // Guessing of secrets and of names takes five to be stopped.
    assert_eq!(count("login_auth_failures"), answered("`0201`") + 5, "{stats:#}");
    assert_eq!(count("login_not_found"), answered("`0203`") + 5, "{stats:#}");
    assert_eq!(count("login_forbidden"), answered("`0202`"), "{stats:#}");
    assert_eq!(count("login_throttled"), 2, "{stats:#}");

    // Neither the log, which was to tell everything, nor the command line has a secret in it.
    let command_line = fs::read_to_string(format!("/proc/{}/cmdline", server.pid()))?;
    let status = server.process().terminate(Duration::from_secs(15))?;
    ensure!(status.success(), "{status}");
    let told =
        format!("{}{}", server.process().stdout.whole_text(), server.process().stderr.whole_text());
    ensure!(told.contains("login refused: unknown CHAP name or wrong secret"), "{told}");
    ensure!(told.contains(&format!("initiator=\"{HOST_A}\"")), "{told}");
    for (_, secret) in [ALICE, BOB, STORAGE, FINDER] {
        for text in [secret, &hex(secret.as_bytes())[2..], &format!("{:?}", secret.as_bytes())] {
            ensure!(!told.contains(text) && !command_line.contains(text), "{text} in {told}");
        }
    }
    ensure!(!told.contains("CHAP_R"), "{told}");
    Ok(())
}

/// Who guesses is stopped; others on other addresses, and the same one elsewhere, are not.
#[test]
fn guessing_stops_the_guesser_alone() -> Result<()> {
    let (server, _dir) = start()?;
    let portal = server.portal();
    let open = |number, target, secret| {
        let chap = Some(Chap::new(ALICE.0, secret));
        Session::open(&Login { target: Some(target), chap, ..login(portal, number) })
    };
    for _ in 0..5 {
        let refused = open(1, GUARDED, "a wrong secret").err().context("a wrong secret opens")?;
        ensure!(refused.to_string().contains("status 0201"), "{refused}");
    }
    let refused = open(1, GUARDED, ALICE.1).err().context("it does not wait")?;
    ensure!(refused.to_string().contains("status 0301"), "{refused}");
    open(2, GUARDED, ALICE.1)?.logout()?;
    open(1, STRONG, ALICE.1)?.logout()?;
    server.stop()?;
    Ok(())
}

/// libiscsi's tools and QEMU, with their names and secrets.
#[test]
fn stock_clients_log_in_with_chap() -> Result<()> {
    let (server, _dir) = start()?;
    let portal = server.portal();
    let url = |(name, secret): (&str, &str), target: &str, lun: u8| {
        format!("iscsi://{name}%{secret}@{portal}/{target}/{lun}")
    };
    let inquiry = |initiator: &str, url: &str| {
        let mut command = Command::new("iscsi-inq");
        command.args(["-i", initiator, url]);
        command
    };
    let mut right = inquiry(HOST_A, &url(ALICE, GUARDED, 0));
    ensure!(output(&mut right, SHORT)?.contains("Vendor:LUNET"));
    // Mutual authentication, where libiscsi checks the target too.
    right.env("LIBISCSI_CHAP_TARGET_USERNAME", STORAGE.0);
    right.env("LIBISCSI_CHAP_TARGET_PASSWORD", STORAGE.1);
    ensure!(output(&mut right, SHORT)?.contains("Vendor:LUNET"));
    right.env("LIBISCSI_CHAP_TARGET_PASSWORD", "not-the-targets");
    let wrong = run(&mut right, SHORT)?;
    ensure!(!wrong.status.context("it hangs")?.success(), "{}", wrong.describe());
    // What must not get in.
    let secret = (ALICE.0, "alices-old-secret");
    for (initiator, url) in [
        (HOST_A, url(secret, GUARDED, 0)),
        (HOST_A, url(BOB, GUARDED, 0)),
        (HOST_A, format!("iscsi://{portal}/{GUARDED}/0")),
        // libiscsi has MD5 alone.
        (HOST_A, url(ALICE, STRONG, 0)),
        (HOST_B, format!("iscsi://{portal}/{LISTED}/0")),
        // Its LUN is hidden.
        (HOST_B, url(BOB, GUARDED, 1)),
    ] {
        let refused = run(&mut inquiry(initiator, &url), SHORT)?;
        let failed = refused.status.context("it hangs")?;
        let shown = refused.stdout.contains("DIRECT_ACCESS");
        ensure!(!failed.success() || !shown, "{url}: {}", refused.describe());
    }
    let mut bobs = inquiry(HOST_B, &url(BOB, GUARDED, 0));
    ensure!(output(&mut bobs, SHORT)?.contains("Vendor:LUNET"));
    // Discovery with its own name; only what the initiator may reach is in the list.
    let list = |initiator: &str, host: &str| {
        let mut command = Command::new("iscsi-ls");
        run(command.args(["-i", initiator]).arg(format!("iscsi://{host}")), SHORT)
    };
    let found = list(HOST_B, &format!("{}%{}@{portal}", FINDER.0, FINDER.1))?.success()?;
    ensure!(
        found.contains(GUARDED) && found.contains(NEARBY) && !found.contains(LISTED),
        "{found}"
    );
    let found = list(HOST_A, &format!("{}%{}@{portal}", FINDER.0, FINDER.1))?.success()?;
    ensure!(found.contains(LISTED), "{found}");
    ensure!(list(HOST_A, portal)?.success().is_err(), "discovery without a secret");
    // QEMU.
    let image = |secret: &str| {
        let mut command = Command::new("qemu-img");
        let file = format!(
            "driver=iscsi,transport=tcp,portal={portal},target={GUARDED},lun=0,user={},\
             password-secret=s,initiator-name={HOST_A}",
            ALICE.0
        );
        command.args(["info", "--object", &format!("secret,id=s,data={secret}"), "--image-opts"]);
        command.arg(file);
        run(&mut command, SHORT)
    };
    ensure!(image(ALICE.1)?.success()?.contains("8 MiB"));
    ensure!(image("alices-old-secret")?.success().is_err());
    server.stop()?;
    Ok(())
}

/// Secrets that others may read, or that are not there, keep the server from starting.
#[test]
fn secrets_are_looked_after() -> Result<()> {
    let refused = |change: &dyn Fn(&TempDir) -> Result<()>, variable: bool| -> Result<String> {
        let dir = scratch("lunet-access-")?;
        for (name, secret) in [ALICE, FINDER] {
            let path = dir.path().join(format!("{name}.secret"));
            fs::write(&path, secret)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        }
        change(&dir)?;
        let mut serve = Serve::config(CONFIG).data(dir.path());
        if variable {
            serve = serve.environment("LUNET_TEST_SECRET", BOB.1);
        }
        let (mut process, _) = serve.spawn()?;
        let status = process.wait(SHORT)?.context("it serves")?;
        ensure!(!status.success());
        let text = process.stderr.whole_text();
        ensure!(!text.contains(ALICE.1) && !text.contains(STORAGE.1), "{text}");
        Ok(text.replace(dir.path().to_str().unwrap_or("?"), "DIR"))
    };
    let missing = refused(&|_| Ok(()), false)?;
    let words = "target.user.secret-env: the environment has no LUNET_TEST_SECRET";
    ensure!(missing.contains(words), "{missing}");
    let exposed = |dir: &TempDir| -> Result<()> {
        let path = dir.path().join("alice.secret");
        Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o644))?)
    };
    let text = refused(&exposed, true)?;
    ensure!(text.contains("others may read DIR/alice.secret (mode 0644)"), "{text}");
    let gone =
        |dir: &TempDir| -> Result<()> { Ok(fs::remove_file(dir.path().join("finder.secret"))?) };
    let text = refused(&gone, true)?;
    ensure!(text.contains("discovery.user.secret-file: cannot read DIR/finder.secret"), "{text}");
    Ok(())
}

/// An address that is not of the loopback network, in a network namespace of the server's own.
const OWN: &str = "192.0.2.9";

/// One that clients come to from `OWN`: for the server, they are on another machine.
const ELSEWHERE: &str = "192.0.2.7";

/// Makes the namespace's addresses, and goes on as the command that follows.
fn network() -> String {
    format!(
        "ip link set lo up && ip addr add {OWN}/32 dev lo && ip addr add {ELSEWHERE}/32 dev lo && \
         ip route replace local {ELSEWHERE} dev lo table local src {OWN} && exec \"$@\""
    )
}

/// The option of `unshare` for it.
fn alone() -> &'static str {
    if rustix::process::geteuid().is_root() { "-n" } else { "-rn" }
}

/// A command in the server's network namespace.
fn within(server: &Server, client: &[&str]) -> Command {
    let pid = server.pid().to_string();
    let mut command = Command::new("nsenter");
    if !rustix::process::geteuid().is_root() {
        command.args(["-U", "--preserve-credentials"]);
    }
    command.args(["-t", &pid, "-n", "--"]).args(client);
    command
}

/// What a client there prints, and whether it succeeded.
fn beside(server: &Server, client: &[&str]) -> Result<(bool, String)> {
    let finished = run(&mut within(server, client), SHORT)?;
    let worked = finished.status.is_some_and(|status| status.success());
    Ok((worked, finished.stdout + &finished.stderr))
}

/// A target that names nobody who may use it: on whatever address it listens, this machine sees it, and other machines do not.
#[test]
fn a_target_that_names_nobody_is_for_this_machine_alone() -> Result<()> {
    let network = network();
    for open in [false, true] {
        let arguments: &[&str] = if open { &["--open"] } else { &[] };
        let serve = Serve::at("0.0.0.0:0", "16M").arguments(arguments).quiet();
        let mut server = serve.by(&["unshare", alone(), "sh", "-c", &network, "sh"]).start()?;
        let port = server.portal().rsplit(':').next().unwrap_or_default().to_owned();
        for (address, seen) in [("127.0.0.1", true), (OWN, true), (ELSEWHERE, open)] {
            let portal = format!("iscsi://{address}:{port}");
            let (_, listed) = beside(&server, &["iscsi-ls", "-s", &portal])?;
            ensure!(listed.contains(DEMO_TARGET) == seen, "{address}, {open}: {listed}");
            let lun = format!("{portal}/{DEMO_TARGET}/0");
            let (worked, said) = beside(&server, &["iscsi-inq", &lun])?;
            ensure!(worked == seen, "{address}, {open}: {said}");
        }
        let why = "the target says nothing of who may use it, so it is for this machine alone";
        let warning =
            if open { "is open: whoever can reach" } else { "is closed to other machines" };
        let told = format!("{ELSEWHERE}:{port}");
        let warns =
            |log: &str| log.lines().any(|line| line.contains(warning) && line.contains(&told));
        // The log has a writer of its own.
        let whole = |log: &str| (warns(log) && (open || log.contains(why))).then_some(());
        server.process().stderr.find(Instant::now() + SHORT, whole);
        let log = server.process().stderr.text();
        let warned = warns(&log);
        ensure!(warned, "{open}: {log}");
        ensure!(log.contains(why) != open, "{open}: {log}");
        let shown = if open { "open to everybody" } else { "for this machine alone" };
        let targets = server.tell(&["target", "list"])?;
        ensure!(targets.contains(shown), "{targets}");
        server.stop()?;
    }
    Ok(())
}

/// The dry run asks what the event loops ask: a target that closes ends sessions from other machines, and they are
/// named before, and asked for.
#[test]
fn a_target_that_closes_ends_sessions_as_the_dry_run_says() -> Result<()> {
    let text = "[[portal]]\naddress = '0.0.0.0:0'\n[volumes.a]\nbackend = 'memory'\nsize = '8MiB'\n\
                [[target]]\nname = 'iqn.2026-11.local.lunet:x'\nluns = ['a']\nopen = true\n";
    let serve = Serve::config(text).quiet();
    let server = serve.by(&["unshare", alone(), "sh", "-c", &network(), "sh"]).start()?;
    let port = server.portal().rsplit(':').next().unwrap_or_default().to_owned();
    let lun = |address: &str| format!("iscsi://{address}:{port}/iqn.2026-11.local.lunet:x/0");
    let load = |address: &str| Running::spawn(&mut within(&server, &["iscsi-perf", &lun(address)]));
    let (_far, _near) = (load(ELSEWHERE)?, load(OWN)?);
    let json = |arguments: &[&str]| -> Result<Value> {
        let text = server.command(&[arguments, &["--json"]].concat())?.stdout;
        serde_json::from_str(&text).context(text)
    };
    // Both come from the same address: whose own the portal's is decides.
    let sessions = || -> Result<Vec<(String, Value)>> {
        let all = json(&["sessions"])?;
        let all = all["sessions"].as_array().into_iter().flatten();
        let at_work = all.filter(|one| one["target"] == "iqn.2026-11.local.lunet:x");
        let portal = |one: &Value| one["portal"].as_str().unwrap_or_default().to_owned();
        Ok(at_work.map(|one| (portal(one), one["tsih"].clone())).collect())
    };
    let until = |count: usize| {
        let deadline = Instant::now() + SHORT;
        loop {
            let now = sessions()?;
            if now.len() == count || Instant::now() > deadline {
                return anyhow::Ok(now);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let both = until(2)?;
    let far = both.iter().find(|(portal, _)| portal.starts_with(ELSEWHERE));
    let (_, far) = far.with_context(|| format!("no sessions: {both:?}"))?;
    fs::write(server.data().join("lunet.toml"), text.replace("open = true\n", ""))?;
    let foretold = json(&["config", "apply", "--dry-run"])?;
    let who = foretold["sessions"].as_array().context("no sessions")?;
    ensure!(who.len() == 1 && who[0]["fate"] == "ends", "{foretold}");
    ensure!(who[0]["session"] == *far, "{foretold} and {both:?}");
    let refused = foretold["refused"].as_str().unwrap_or_default();
    ensure!(refused.contains("for this machine alone") && refused.contains("--force"), "{refused}");
    ensure!(server.refuses(&["config", "apply"])?.contains("for this machine alone"));
    ensure!(sessions()?.len() == 2, "a change that was refused has ended a session");
    let done = json(&["config", "apply", "--force"])?;
    ensure!(done["sessions"] == foretold["sessions"], "{done} and {foretold}");
    let left = until(1)?;
    ensure!(left.len() == 1 && left[0].0.starts_with(OWN), "{left:?}");
    server.stop()?;
    Ok(())
}

/// What each command and SIGHUP has changed, and on whose behalf.
#[test]
fn every_change_is_in_the_log_with_who_made_it() -> Result<()> {
    let mut server = Serve::demo("16M").quiet().start()?;
    server.tell(&["volume", "create", "extra", "--size", "1MiB"])?;
    server.refuses(&["volume", "create", "extra", "--size", "1MiB"])?;
    server.process().signal(Signal::HUP)?;
    let who = format!("(uid {}, pid ", rustix::process::geteuid().as_raw());
    let create = "create-volume name=\"extra\" backend=\"file\" size=1048576: ";
    let deadline = Instant::now() + SHORT;
    let all = server.process().stderr.find(deadline, |log| {
        let changes = log.lines().filter(|line| line.contains("change by"));
        let changes: Vec<String> = changes.map(str::to_owned).collect();
        (changes.len() == 3 || changes.iter().any(|line| line.contains("SIGHUP")))
            .then_some(changes)
    });
    let all = all.context("no line of the log")?;
    ensure!(all.len() == 3, "{all:?}");
    ensure!(all[0].contains(&who) && all[0].contains(create), "{}", all[0]);
    ensure!(all[1].contains(&who) && all[1].contains(create), "{}", all[1]);
    ensure!(all[1].contains(": refused: ") && !all[0].contains("refused"), "{all:?}");
    ensure!(all[2].contains("change by SIGHUP: apply: "), "{}", all[2]);
    server.stop()?;
    Ok(())
}
