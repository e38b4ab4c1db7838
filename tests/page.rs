//! The REST interface of a real server, from its first start to a LUN that an initiator uses.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lunet_e2e::clients::{QemuLun, inquiry, size};
use lunet_e2e::data::scratch;
use lunet_e2e::fuse::{Mounted, is_root};
use lunet_e2e::nvme::{Host as NvmeHost, Login as NvmeLogin};
use lunet_e2e::process::children;
use lunet_e2e::rest::{Page, exchange};
use lunet_e2e::server::{GRACE, Serve, Server, free_port, lunet_binary, url};
use lunet_e2e::wire::{Login, Session};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
const TARGET: &str = "iqn.2026-11.local.lunet:new";
const PATIENCE: Duration = Duration::from_secs(60);

fn serve(config: &str) -> Serve {
    Serve::config(config).arguments(&["--listen-control", "127.0.0.1:0"])
}

const CONFIG: &str = "[[portal]]\naddress = '127.0.0.1:0'\n[volumes.old]\nbackend = 'memory'\nsize = '1MiB'\n\
                      [[target]]\nname = 'iqn.2026-11.local.lunet:old'\nluns = ['old']\n";

/// From an empty page to a LUN in use, and everything of it in the audit log.
#[test]
fn from_the_first_start_to_a_lun_in_use() -> Result<()> {
    let dir = scratch("lunet-page-")?;
    let mounted = if is_root() { Some(Mounted::xfs(dir.path())?) } else { None };
    let data = mounted.as_ref().map_or(dir.path(), |mounted| mounted.path()).join("data");
    fs::create_dir(&data)?;
    let mut server = serve(CONFIG).data(&data).start()?;
    let mut page = Page::of(&mut server)?;
    ensure!(page.get("/api/v1/first-start")? == json!({"needed": true}));
    ensure!(page.ask("GET", "/api/v1/volumes", &Value::Null)?.status == 401);
    page.begin()?;
    ensure!(page.get("/readyz")?["ready"] == true);

    let preview = page.tell(
        "POST",
        "/api/v1/volumes?dry_run=true",
        json!({"name": "vm1", "size": 64 * MIB}),
    )?;
    ensure!(
        preview["changes"][0] == json!({"what": "volume", "name": "vm1", "change": "is new"}),
        "{preview}"
    );
    ensure!(page.get("/api/v1/volumes")?.as_array().map(Vec::len) == Some(1), "nothing was made");
    ensure!(!data.join("vm1.img").exists());
    page.tell("POST", "/api/v1/volumes", json!({"name": "vm1", "size": 64 * MIB}))?;
    page.tell("POST", "/api/v1/targets", json!({"name": TARGET}))?;
    page.tell("PUT", &format!("/api/v1/targets/{TARGET}/luns/3"), json!({"volume": "vm1"}))?;
    let name = "iqn.2026-11.local.test:host";
    let who = json!({"initiators": ["iqn.2026-11.local.test:other"]});
    page.tell("POST", &format!("/api/v1/targets/{TARGET}/initiators"), who)?;

    // Refused, seen to be refused, and let in.
    let login = Login { initiator: name, ..Login::new(server.portal(), TARGET) };
    ensure!(Session::open(&login).is_err(), "it is not in the list");
    let refused = page.get("/api/v1/refused")?;
    ensure!(refused[0]["initiator"] == name && refused[0]["target"] == TARGET, "{refused}");
    let initiators = format!("/api/v1/targets/{TARGET}/initiators");
    let preview =
        page.tell("POST", &format!("{initiators}?dry_run=true"), json!({"initiators": [name]}))?;
    ensure!(preview["changes"][0]["change"] == "is for other initiators", "{preview}");
    ensure!(Session::open(&login).is_err(), "it was only foretold");
    page.tell("POST", &initiators, json!({"initiators": [name]}))?;
    let mut session = Session::open(&login)?;
    session.settle(3)?;
    session.write(3, 0, &[1; 4096], 512)?;
    ensure!(page.get("/api/v1/sessions")?[0]["initiator"] == name);
    let used = page.ask("DELETE", "/api/v1/volumes/vm1?dry_run=true", &Value::Null)?;
    let reason = used.json["refused"].as_str().unwrap_or_default().to_owned();
    ensure!(reason.contains("session"), "{}", used.json);
    ensure!(page.ask("DELETE", "/api/v1/volumes/vm1", &Value::Null)?.json["code"] == "in-use");

    if mounted.is_some() {
        let snapshots = "/api/v1/volumes/vm1/snapshots";
        let preview =
            page.tell("POST", &format!("{snapshots}?dry_run=true"), json!({"snapshot": "s"}))?;
        ensure!(preview["changes"][0]["name"] == "vm1@s", "{preview}");
        ensure!(page.get(snapshots)? == json!([]));
        page.tell("POST", snapshots, json!({"snapshot": "s"}))?;
        session.write(3, 0, &[2; 4096], 512)?;
        page.tell("POST", "/api/v1/volumes/vm1/rollback", json!({"snapshot": "s", "force": true}))?;
        ensure!(session.read(3, 0, 8, 512)? == [1; 4096], "not what the snapshot holds");
    }
    audited(&page, &server, mounted.is_some())
}

/// A token does what its role may, and the audit log has everything, of the command line, too.
fn audited(page: &Page, server: &Server, snapshots: bool) -> Result<()> {
    let made =
        page.tell("POST", "/api/v1/tokens", json!({"name": "backup", "role": "operator"}))?;
    let token = made["token"].as_str().context("no token")?.to_owned();
    let robot = page.with_token(token);
    robot.tell("PATCH", "/api/v1/volumes/vm1", json!({"size": 80 * MIB}))?;
    ensure!(robot.ask("DELETE", "/api/v1/volumes/vm1", &Value::Null)?.status == 403);
    server.tell(&["volume", "create", "byhand", "--size", "1MiB"])?;
    let begun = Instant::now();
    let audit = loop {
        let audit = page.get("/api/v1/audit?limit=1000")?;
        if audit[0]["what"].as_str().is_some_and(|what| what.contains("byhand")) {
            break audit;
        }
        ensure!(begun.elapsed() < PATIENCE, "{audit}");
        std::thread::sleep(Duration::from_millis(10));
    };
    let lines = audit.as_array().context("a list")?;
    let has = |who: &str, what: &str| {
        let of = |line: &Value, key: &str| line[key].as_str().unwrap_or_default().to_owned();
        lines
            .iter()
            .any(|line| of(line, "who").starts_with(who) && of(line, "what").starts_with(what))
    };
    for (who, what) in [
        ("root", "first-start"),
        ("root (session)", "create-volume name=\"vm1\""),
        ("root (session)", "create-target"),
        ("root (session)", "map"),
        ("root (session)", "allow-initiators"),
        ("root (session)", "delete-volume"),
        ("root (session)", "create-token name=\"backup\""),
        ("backup (token)", "resize-volume name=\"vm1\""),
        ("", "create-volume name=\"byhand\""),
    ] {
        ensure!(has(who, what), "{who}: {what}: {audit:#}");
    }
    ensure!(!snapshots || has("root (session)", "rollback"), "{audit:#}");
    let refused = lines
        .iter()
        .find(|line| line["what"].as_str().is_some_and(|what| what.starts_with("delete-volume")));
    let outcome = refused.and_then(|line| line["outcome"].as_str()).unwrap_or_default();
    ensure!(outcome.starts_with("refused: "), "{outcome}");
    Ok(())
}

/// What libiscsi and QEMU see of a volume that the interface has made; accounts and volumes outlive the server.
#[test]
fn foreign_initiators_use_what_the_interface_has_made() -> Result<()> {
    let mut server = serve(CONFIG).start()?;
    let mut page = Page::of(&mut server)?;
    page.begin()?;
    page.tell(
        "POST",
        "/api/v1/volumes",
        json!({"name": "vm1", "size": 64 * MIB, "write_through": true}),
    )?;
    page.tell(
        "PUT",
        "/api/v1/targets/iqn.2026-11.local.lunet:old/luns/1",
        json!({"volume": "vm1"}),
    )?;
    let lun = url(server.portal(), "iqn.2026-11.local.lunet:old", 1);
    ensure!(inquiry(&lun, None)?.contains("LUNET"));
    ensure!(size(&QemuLun::new(&lun))? == 64 * MIB);
    page.tell("PATCH", "/api/v1/volumes/vm1", json!({"size": 96 * MIB}))?;
    ensure!(size(&QemuLun::new(&lun))? == 96 * MIB);
    configured(&page)?;
    let job = page.tell("POST", "/api/v1/jobs", json!({"kind": "doctor"}))?;
    let path = format!("/api/v1/jobs/{}", job["id"].as_str().context("no number")?);
    let begun = Instant::now();
    let job = loop {
        let job = page.get(&path)?;
        if job["state"] != "running" {
            break job;
        }
        ensure!(begun.elapsed() < Duration::from_secs(180), "the doctor does not end");
        std::thread::sleep(Duration::from_millis(100));
    };
    ensure!(job["state"] == "done" && job["result"].is_object(), "{job}");
    Ok(())
}

/// The configuration is checked, written by whoever has read it, and applied.
fn configured(page: &Page) -> Result<()> {
    let config = page.ask("GET", "/api/v1/config", &Value::Null)?;
    let tag = config.head.lines().find_map(|line| line.strip_prefix("etag: "));
    ensure!(
        tag.is_some()
            && config.json["text"].as_str().is_some_and(|text| text.contains("[volumes.vm1]"))
    );
    let text = format!(
        "{}\n[volumes.more]\nbackend = 'null'\nsize = '5MiB'\n",
        config.json["text"].as_str().unwrap_or_default()
    );
    let preview = page.tell("POST", "/api/v1/config/check", json!({"text": text}))?;
    ensure!(preview["changes"][0]["name"] == "more", "{preview}");
    let wrong =
        page.ask("POST", "/api/v1/config/check", &json!({"text": "[volumes.more]\nsize = 1\n"}))?;
    ensure!(
        wrong.status == 422
            && wrong.json["message"].as_str().is_some_and(|text| text.contains("lunet.toml:")),
        "{}",
        wrong.json
    );
    ensure!(
        page.get("/api/v1/volumes")?.as_array().map(Vec::len) == Some(2),
        "it was only checked"
    );
    let tag = tag.context("no ETag")?;
    let put = |tag: &str, size: &str| -> Result<(u16, String)> {
        let text = json!({"text": text.replace("'5MiB'\n", &format!("'{size}'\n"))});
        let match_ = format!("If-Match: {tag}\r\n");
        let answer = page.ask_with("PUT", "/api/v1/config", &text, &match_)?;
        let tag = answer.head.lines().find_map(|line| line.strip_prefix("etag: "));
        Ok((answer.status, tag.unwrap_or_default().to_owned()))
    };
    let (status, written) = put(tag, "2MiB")?;
    ensure!((status, put(tag, "3MiB")?.0) == (200, 412), "nobody overwrites what they do not know");
    let shown = page.get("/api/v1/config")?;
    ensure!(shown["pending"].as_str().is_some_and(|text| text.contains("'2MiB'")), "{shown}");
    ensure!(put(&written, "3MiB")?.0 == 200, "what was written may be written again");
    ensure!(page.get("/api/v1/volumes")?.as_array().map(Vec::len) == Some(2), "it is not applied");
    page.tell("POST", "/api/v1/config/apply", Value::Null)?;
    ensure!(page.get("/api/v1/volumes/more")?["size_bytes"] == 3 * MIB);
    ensure!(page.get("/api/v1/config")?["pending"].is_null(), "it is in force");
    ensure!(put(tag, "4MiB")?.0 == 412, "it is another configuration now");
    Ok(())
}

/// The names below a directory, with their sizes; not what the interface itself keeps.
fn names(data: &Path) -> Result<Vec<(String, u64)>> {
    let mut out = Vec::new();
    let mut folders = vec![data.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let (path, kind) = entry.map(|entry| (entry.path(), entry.file_type()))?;
            match kind?.is_dir() {
                true if path.ends_with("control") => {}
                true => folders.push(path),
                false => out.push((path.display().to_string(), path.metadata()?.len())),
            }
        }
    }
    out.sort();
    Ok(out)
}

/// Each change that can be foretold, with something of what is told of it.
#[rustfmt::skip]
const FORETOLD: &[(&str, &str, &str, &str)] = &[
    ("POST", "volumes", r#"{"name":"a","size":1048576}"#, "is new"),
    ("PATCH", "volumes/file", r#"{"size":8388608}"#, "has 8 MiB now"),
    ("DELETE", "volumes/file", "", "is gone, and so is its data"),
    ("DELETE", "volumes/file?keep_data=true", "", "its data is still in"),
    ("POST", "targets", r#"{"name":"iqn.2026-11.l:y","nvme":true}"#, "is new"),
    ("DELETE", "targets/iqn.2026-11.l:spare", "", "is gone"),
    ("PUT", "targets/iqn.2026-11.l:spare/luns/9", r#"{"volume":"file"}"#, "is volume file"),
    ("DELETE", "targets/iqn.2026-11.l:x/luns/0", "", "is gone"),
    ("POST", "targets/iqn.2026-11.l:x/initiators", r#"{"initiators":["iqn.a:1"]}"#, "is for other initiators"),
    ("POST", "targets/iqn.2026-11.l:x/users", r#"{"name":"u","secret":{"text":"a secret of 16 b"}}"#, "is new"),
    ("POST", "targets/iqn.2026-11.l:x/open", "", "is open to everybody"),
    ("POST", "portals", r#"{"address":"127.0.0.2:40999"}"#, "is new"),
    ("POST", "config/apply", "", "changes"),
];

#[test]
fn what_is_only_foretold_leaves_no_trace() -> Result<()> {
    let config = "[[portal]]\naddress = '127.0.0.1:0'\n[volumes.file]\nbackend = 'file'\nsize = '4MiB'\n\
                  [[target]]\nname = 'iqn.2026-11.l:x'\nluns = ['file']\n[[target]]\nname = 'iqn.2026-11.l:spare'\n";
    let mut server = serve(config).start()?;
    let mut page = Page::of(&mut server)?;
    page.begin()?;
    let data = server.data().to_owned();
    let (before, shown) = (names(&data)?, page.get("/api/v1/config")?["text"].clone());
    for (method, path, body, words) in FORETOLD {
        let sign = if path.contains('?') { '&' } else { '?' };
        let body = serde_json::from_str(body).unwrap_or(Value::Null);
        let told = page.tell(method, &format!("/api/v1/{path}{sign}dry_run=true"), body)?;
        ensure!(told.to_string().contains(words) && told["refused"].is_null(), "{path}: {told}");
    }
    for path in ["reopen", "recreate", "adopt"] {
        let told =
            page.ask("POST", &format!("/api/v1/volumes/file/{path}?dry_run=true"), &Value::Null)?;
        ensure!(told.status == 422 && told.json["code"] == "unsupported", "{path}: {}", told.json);
    }
    let missing = page.ask("DELETE", "/api/v1/volumes/none?dry_run=true", &Value::Null)?;
    ensure!(missing.status == 404, "{}", missing.json);
    let after = names(&data)?;
    ensure!(after == before, "{before:?} {after:?}");
    ensure!(page.get("/api/v1/config")?["text"] == shown);
    // What comes next is not foretold but done.
    page.tell("POST", "/api/v1/volumes", json!({"name": "a", "size": MIB}))?;
    ensure!(page.get("/api/v1/volumes")?.as_array().map(Vec::len) == Some(2));
    Ok(())
}

/// The process of the interface, which the server's helper has started, once it is another one than `not`.
fn process_of(server: &Server, not: Option<Pid>) -> Result<Pid> {
    let helper = child_of(server.pid(), "serve-helper", None)?;
    child_of(helper.as_raw_nonzero().get().try_into()?, "serve-rest", not)
}

/// A child of a process that runs this command of lunet, once there is one other than `not`.
fn child_of(parent: u32, command: &str, not: Option<Pid>) -> Result<Pid> {
    let begun = Instant::now();
    loop {
        for child in children(parent)? {
            let pid = Pid::from_raw(child.try_into()?).context("no number")?;
            let line = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
            let is_it = line.split(|byte| *byte == 0).nth(1) == Some(command.as_bytes());
            if is_it && not != Some(pid) {
                return Ok(pid);
            }
        }
        ensure!(begun.elapsed() < PATIENCE, "there is no process for {command}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a process has ended.
fn gone(process: Pid) -> Result<()> {
    let begun = Instant::now();
    while test_kill_process(process).is_ok() {
        // It may wait for whoever adopts it to hear of its end.
        let state = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
        if state.is_ok_and(|state| state.contains(") Z ")) {
            break;
        }
        ensure!(begun.elapsed() < PATIENCE, "it is still there");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The interface is killed, and then it hangs: sessions and commands go on, what was changed meanwhile is in the audit log,
/// and the end of the server is as it always is.
#[test]
fn what_happens_to_the_interface_happens_to_no_volume() -> Result<()> {
    let mut server = serve(CONFIG).start()?;
    let mut page = Page::of(&mut server)?;
    page.begin()?;
    let mut session = Session::open(&Login::new(server.portal(), "iqn.2026-11.local.lunet:old"))?;
    session.settle(0)?;
    let first = process_of(&server, None)?;
    kill_process(first, Signal::TERM)?;
    ensure!(page.get("/readyz")?["ready"] == true, "its end is the server's");
    kill_process(first, Signal::KILL)?;
    session.write(0, 0, &[1; 4096], 512)?;
    let second = process_of(&server, Some(first))?;
    let login = json!({"name": "root", "password": "a good password"});
    let reply = page.ask("POST", "/api/v1/login", &login)?;
    page.takes(&reply)?;

    kill_process(second, Signal::STOP)?;
    server.tell(&["volume", "create", "meanwhile", "--size", "1MiB"])?;
    ensure!(session.read(0, 0, 8, 512)? == [1; 4096]);
    kill_process(second, Signal::KILL)?;
    let third = process_of(&server, Some(second))?;
    let reply = page.ask("POST", "/api/v1/login", &login)?;
    page.takes(&reply)?;
    let begun = Instant::now();
    while !page.get("/api/v1/audit")?.to_string().contains("meanwhile") {
        ensure!(begun.elapsed() < PATIENCE, "the audit log lacks a change");
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(third, Signal::STOP)?;
    session.write(0, 8, &[2; 4096], 512)?;
    server.stop()?;
    let gone = test_kill_process(third) == Err(rustix::io::Errno::SRCH);
    ensure!(gone, "the process of the interface outlives the server");
    Ok(())
}

/// A server that is killed leaves no interface behind, even if that hangs.
#[test]
fn the_interface_ends_with_its_server() -> Result<()> {
    let server = serve(CONFIG).start()?;
    let process = process_of(&server, None)?;
    kill_process(process, Signal::STOP)?;
    server.kill()?;
    gone(process)
}

/// A job of an interface that is killed is nobody's: it ends, too, and does not run beside those of the next one.
#[test]
fn jobs_end_with_the_interface() -> Result<()> {
    let mut server = serve(CONFIG).start()?;
    let mut page = Page::of(&mut server)?;
    page.begin()?;
    let lun = url(server.portal(), "iqn.2026-11.local.lunet:old", 0);
    let options = json!({"targets": [lun], "rounds": 100, "runtime_ms": 600_000});
    page.tell("POST", "/api/v1/jobs", json!({"kind": "bench", "options": options}))?;
    let process = process_of(&server, None)?;
    let job = child_of(process.as_raw_nonzero().get().cast_unsigned(), "bench", None)?;
    ensure!(data_limit(process)? == (1 << 30).to_string(), "what it may have is bounded");
    // A job may have more, once it has begun.
    let begun = Instant::now();
    while data_limit(job)? == data_limit(process)? {
        ensure!(begun.elapsed() < PATIENCE, "a job has the limit of the interface");
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(process, Signal::KILL)?;
    gone(job)?;
    process_of(&server, Some(process)).map(drop)
}

/// The memory for data that a process may have (getrlimit(2)), in bytes or `unlimited`.
fn data_limit(process: Pid) -> Result<String> {
    let limits = fs::read_to_string(format!("/proc/{}/limits", process.as_raw_nonzero()))?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max data size"));
    let soft = line.and_then(|line| line.split_whitespace().next()).context("no such limit")?;
    Ok(soft.to_owned())
}

/// Volumes are served without an interface, if that cannot be had.
#[test]
fn damaged_accounts_keep_no_volume_away() -> Result<()> {
    let dir = scratch("lunet-page-")?;
    fs::create_dir_all(dir.path().join("control"))?;
    let accounts = dir.path().join("control/accounts.json");
    fs::write(&accounts, "{")?;
    let mut server = serve(CONFIG).data(dir.path()).start()?;
    let mut session = Session::open(&Login::new(server.portal(), "iqn.2026-11.local.lunet:old"))?;
    session.settle(0)?;
    session.write(0, 0, &[1; 4096], 512)?;
    let told = server.process().stderr.find(Instant::now() + PATIENCE, |text| {
        text.lines()
            .find(|line| line.contains("the REST interface does not serve"))
            .map(str::to_owned)
    });
    let told = told.context("nobody is told")?;
    ensure!(told.matches("accounts.json").count() == 1, "{told}");
    let said = server.process().stdout.text();
    ensure!(!said.contains("page: "), "it does not serve: {said}");
    // It is looked again, and what was mended is used.
    fs::remove_file(&accounts)?;
    let found = server
        .process()
        .stderr
        .find(Instant::now() + PATIENCE, |text| text.contains("first-start code: ").then_some(()));
    found.context("the interface does not come")?;
    server.stop().map(drop)
}

/// Two servers on one machine: the one that asks for an address that is taken does not start, and one that was given a
/// portal and nothing else has no page.
#[test]
fn a_page_is_where_it_was_asked_for_or_there_is_none() -> Result<()> {
    let mut server = serve(CONFIG).start()?;
    let page = Page::of(&mut server)?;
    let second = Serve::config(CONFIG).arguments(&["--listen-control", &page.address]);
    let (mut process, _folder) = second.spawn()?;
    let status = process.wait(PATIENCE)?.context("it does not end")?;
    ensure!(
        !status.success() && process.stderr.whole_text().contains(&page.address),
        "{}",
        process.stderr.text()
    );
    // Neither has a server of a test that says nothing of it: the default port is one for all of them.
    for plain in [Serve::demo("1M"), Serve::config(CONFIG)] {
        let mut plain = plain.start()?;
        plain.tell(&["volume", "create", "more", "--size", "1MiB"])?;
        let folder = plain.data().join("control");
        plain.process().terminate(GRACE)?;
        let told = plain.process().stdout.whole_text();
        ensure!(
            !told.contains("page: ") && !folder.exists(),
            "nobody has asked for a page: {told}"
        );
    }
    Ok(())
}

/// A host that a subsystem is not for is seen to be refused, as an initiator is.
#[test]
fn hosts_that_are_refused_are_seen_beside_initiators() -> Result<()> {
    let portal = format!("127.0.0.1:{}", free_port()?);
    let nqn = "nqn.2026-11.local.lunet:new";
    let config = format!(
        "{CONFIG}initiators = ['iqn.2026-11.local.test:other']\n[[portal]]\naddress = '{portal}'\ntransport = ['nvme-tcp']\n\
         [[subsystem]]\nnqn = '{nqn}'\nnamespaces = ['old']\nhosts = ['nqn.2026-11.org.lunet:e2e-1']\n"
    );
    let mut server = serve(&config).start()?;
    let mut page = Page::of(&mut server)?;
    page.begin()?;
    let host = NvmeLogin::new(&portal, nqn);
    drop(NvmeHost::connect(&host.clone().by(1)).context("it is for this one")?);
    ensure!(page.get("/api/v1/refused")? == json!([]));
    ensure!(NvmeHost::connect(&host.clone().by(2)).is_err(), "it is for another one");
    let refused = page.get("/api/v1/refused")?;
    let one = &refused[0];
    ensure!(one["protocol"] == "nvme" && one["initiator"] == host.clone().by(2).host, "{refused}");
    ensure!(one["target"] == nqn && one["address"] == "127.0.0.1", "{refused}");
    ensure!(one["why"] == "the subsystem is not for this host", "{refused}");
    let login = Login::new(server.portal(), "iqn.2026-11.local.lunet:old");
    ensure!(Session::open(&login).is_err(), "it is not in the list");
    let both = page.get("/api/v1/refused")?;
    let mut protocols: Vec<&str> = both
        .as_array()
        .context("a list")?
        .iter()
        .filter_map(|one| one["protocol"].as_str())
        .collect();
    protocols.sort_unstable();
    ensure!(protocols == ["iscsi", "nvme"], "{both}");
    Ok(())
}

/// A host that proves itself with another secret is seen to be refused, with the reason.
#[test]
fn hosts_with_another_secret_are_seen() -> Result<()> {
    const OWN: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
    const OTHER: &str = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";
    let portal = format!("127.0.0.1:{}", free_port()?);
    let (nqn, host) = ("nqn.2026-11.local.lunet:new", "nqn.2026-11.org.lunet:e2e-1");
    let config = format!(
        "{CONFIG}[[portal]]\naddress = '{portal}'\ntransport = ['nvme-tcp']\n\
         [[subsystem]]\nnqn = '{nqn}'\nnamespaces = ['old']\nhosts = [{{ nqn = '{host}', secret = '{OWN}' }}]\n"
    );
    let mut server = serve(&config).start()?;
    let mut page = Page::of(&mut server)?;
    page.begin()?;
    let look = |secret: &str| {
        let mut command = Command::new(lunet_binary()?);
        command.args(["doctor", &format!("nvme-tcp://{portal}/{nqn}"), "--host-nqn", host]);
        lunet_e2e::process::run(command.env("LUNET_DHCHAP_SECRET", secret), PATIENCE)
    };
    let knows = look(OWN)?;
    ensure!(page.get("/api/v1/refused")? == json!([]), "{}", knows.describe());
    let guesses = look(OTHER)?;
    ensure!(guesses.status.and_then(|status| status.code()) != Some(0), "{}", guesses.describe());
    let refused = page.get("/api/v1/refused")?;
    let one = &refused[0];
    ensure!(
        one["protocol"] == "nvme" && one["initiator"] == host && one["target"] == nqn,
        "{refused}"
    );
    let why = one["why"].as_str().unwrap_or_default();
    ensure!(why.contains("secret") || why.contains("prove"), "{refused}");
    Ok(())
}

/// What a client of a Unix socket is answered: status and body.
fn over(socket: &Path, method: &str, path: &str, body: &Value) -> Result<(u16, Value)> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let reply = exchange(stream, (method, path), "Host: localhost\r\n", body)?;
    Ok((reply.status, reply.json))
}

/// Commands go by these sockets where the control socket is not for their user. Takes away that of the administrators.
fn a_member_needs_no_option(data: &Path, group: u32) -> Result<()> {
    let (is_root, control) = (data.metadata()?.uid() == 0, data.join("lunet.sock"));
    fs::set_permissions(data, Permissions::from_mode(0o750))?;
    // Root may use any socket, so it is somebody else then.
    let denied = if is_root { 0o600 } else { 0 };
    fs::set_permissions(&control, Permissions::from_mode(denied))?;
    let ask = |words: &[&str]| {
        let mut command = Command::new(lunet_binary()?);
        command.args(words).env("LUNET_DATA", data);
        if is_root {
            command.uid(65_534).gid(group);
        }
        let output = command.output()?;
        let said = [output.stdout, output.stderr].concat();
        anyhow::Ok((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
    };
    let created = ask(&["volume", "create", "vm2", "--size", "1MiB"])?;
    ensure!(created.0 && created.1.starts_with("volume vm2 of 1 MiB is created\n"), "{created:?}");
    fs::remove_file(data.join("admin.sock"))?;
    let (done, listed) = ask(&["volume", "list"])?;
    ensure!(done && listed.contains("vm2"), "{listed}");
    let (done, refused) = ask(&["volume", "delete", "vm2", "--yes"])?;
    ensure!(!done && refused.contains("needs the role"), "{refused}");
    fs::remove_file(data.join("read.sock"))?;
    let (done, denied) = ask(&["volume", "list"])?;
    ensure!(!done && denied.contains("members of the groups"), "{denied}");
    Ok(())
}

/// Groups of users have sockets, also where the interface has no address.
#[test]
fn groups_use_unix_sockets_without_a_token() -> Result<()> {
    let dir = scratch("lunet-page-")?;
    // The group of whoever runs the tests: only root may give a socket to any other.
    let group = dir.path().metadata()?.gid();
    let config = format!(
        "{CONFIG}[control]\nlisten = []\nread-group = '{group}'\nadmin-group = '{group}'\n"
    );
    let server = Serve::config(config).data(dir.path()).start()?;
    let (read, admin) = (dir.path().join("read.sock"), dir.path().join("admin.sock"));
    for socket in [&read, &admin] {
        let found = socket.metadata()?;
        ensure!((found.mode() & 0o777, found.gid()) == (0o660, group), "{found:?}");
    }
    let volume = json!({"name": "vm1", "size": MIB});
    ensure!(over(&read, "GET", "/api/v1/volumes", &Value::Null)?.1[0]["name"] == "old");
    ensure!(over(&read, "POST", "/api/v1/volumes", &volume)?.0 == 403);
    ensure!(over(&admin, "POST", "/api/v1/volumes", &volume)?.0 == 201);
    let uid = dir.path().metadata()?.uid();
    let begun = Instant::now();
    loop {
        let audit = over(&admin, "GET", "/api/v1/audit", &Value::Null)?.1;
        let entry = &audit[0];
        let who = entry["who"].as_str().unwrap_or_default();
        if who.ends_with(&format!(" (uid {uid})")) && entry["address"].is_null() {
            ensure!(entry["what"].as_str().is_some_and(|what| what.contains("vm1")), "{audit}");
            break;
        }
        ensure!(begun.elapsed() < PATIENCE, "{audit}");
        std::thread::sleep(Duration::from_millis(10));
    }
    a_member_needs_no_option(dir.path(), group)?;
    let _ = server.stop()?;
    ensure!(!read.exists() && !admin.exists(), "the sockets stay");
    let file = dir.path().join("wrong.toml");
    fs::write(
        &file,
        "[control]\nread-group = 'no-such-group'\n[[target]]\nname = 'iqn.2026-11.l:x'\n",
    )?;
    let checked = Command::new(lunet_binary()?).args(["config", "check"]).arg(&file).output()?;
    let told = String::from_utf8_lossy(&checked.stderr).into_owned();
    ensure!(!checked.status.success(), "{told}");
    ensure!(told.contains(":2: control.read-group: this machine has no group"), "{told}");
    Ok(())
}
