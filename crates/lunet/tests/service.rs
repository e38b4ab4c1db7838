//! What the built program is to a service manager, a shell and an administrator who has installed it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const TARGET: &str = "[[target]]\nname = 'iqn.2026-11.l:x'\nluns = ['vm1']\n";
const VOLUMES: &str = "[volumes.vm1]\nbackend = 'null'\nsize = '1MiB'\n";

fn lunet(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lunet"));
    command.args(arguments).env_remove("LUNET_DATA").env_remove("LUNET_SERVER");
    command
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a name in UTF-8")
}

/// Text that was printed by a command that has to work.
#[track_caller]
fn printed(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("a text")
}

/// A server in a folder of its own; killed at the end.
struct Server {
    folder: TempDir,
    child: Child,
}

impl Server {
    /// Starts it with a configuration, and returns when it is ready.
    fn start(config: &str, environment: impl FnOnce(&mut Command, &Path)) -> Self {
        let folder = TempDir::new().expect("a folder");
        let file = folder.path().join("lunet.toml");
        fs::write(&file, config).expect("it is written");
        fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("they are set");
        let mut command = lunet(&["serve", "--listen", "127.0.0.1:0", "--config", path(&file)]);
        command.args(["--data", path(&folder.path().join("data"))]);
        environment(&mut command, folder.path());
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
        let mut first = String::new();
        let out = child.stdout.as_mut().expect("a pipe");
        BufReader::new(out).read_line(&mut first).expect("a line");
        assert!(first.contains("is ready"), "{first}");
        Self { folder, child }
    }

    fn data(&self) -> String {
        path(&self.folder.path().join("data")).to_owned()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is there");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_service_manager_is_told_how_the_server_is() {
    let folder = TempDir::new().expect("a folder");
    let place = folder.path().join("notify");
    let manager = UnixDatagram::bind(&place).expect("a socket");
    manager.set_read_timeout(Some(Duration::from_secs(60))).expect("it is set");
    // Waits for a message that begins like this; others may come before it.
    let until = |start: &str| loop {
        let mut message = [0; 512];
        let length = manager.recv(&mut message).unwrap_or_else(|error| panic!("{start}: {error}"));
        let message = String::from_utf8_lossy(&message[..length]).into_owned();
        if message.starts_with(start) {
            return message;
        }
    };
    let server = Server::start(&format!("{VOLUMES}{TARGET}"), |command, _| {
        command.env("NOTIFY_SOCKET", &place).env("WATCHDOG_USEC", "300000");
    });
    until("READY=1");
    assert_eq!(until("WATCHDOG=1"), "WATCHDOG=1\nSTATUS=serving 1 volume, 0 sessions");
    until("WATCHDOG=1");
    server.signal(Signal::HUP);
    assert!(until("RELOADING=1").contains("MONOTONIC_USEC="));
    until("READY=1");
    server.signal(Signal::TERM);
    until("STOPPING=1");
}

#[test]
fn a_shell_completes_names_of_the_running_server() {
    let server = Server::start(&format!("{VOLUMES}{TARGET}"), |_, _| {});
    let complete = |words: &[&str]| {
        let mut command = lunet(&["--", "lunet"]);
        command.args(words).env("COMPLETE", "bash").env("LUNET_DATA", server.data());
        command.env("_CLAP_COMPLETE_INDEX", words.len().to_string()).env("_CLAP_IFS", "\n");
        command.env("_CLAP_COMPLETE_COMP_TYPE", "9").env("_CLAP_COMPLETE_SPACE", "true");
        printed(command.output().expect("it runs"))
    };
    assert_eq!(complete(&["volume", "resize", "v"]).trim(), "vm1");
    assert_eq!(complete(&["target", "map", "iqn.2026"]).trim(), "iqn.2026-11.l:x");
    assert_eq!(complete(&["volume", "resize", "x"]).trim(), "");
    assert_eq!(complete(&["verd"]).trim(), "verdict");
    for shell in ["bash", "zsh", "fish"] {
        let script = printed(lunet(&["completions", shell]).output().expect("it runs"));
        assert!(script.contains("COMPLETE") && script.contains("lunet"), "{script}");
    }
}

#[test]
fn each_command_has_a_manual_page() {
    let folder = TempDir::new().expect("a folder");
    let run = lunet(&["man", path(folder.path())]).output().expect("it runs");
    assert_eq!(printed(run), "");
    for page in ["lunet", "lunet-serve", "lunet-volume-create", "lunet-tune-reapply"] {
        let text = fs::read_to_string(folder.path().join(format!("{page}.1"))).expect(page);
        assert!(text.contains(".SH SYNOPSIS"), "{page}: {text}");
    }
    // What packages and systemd call is no command for people.
    assert!(!folder.path().join("lunet-man.1").exists());
}

#[test]
fn programs_read_the_version() {
    let text = printed(lunet(&["version", "--json"]).output().expect("it runs"));
    let about: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(about["version"], env!("CARGO_PKG_VERSION"));
    assert!(about["transports"].as_array().expect("a list").contains(&"nvme-rdma".into()));
    let plain = printed(lunet(&["version"]).output().expect("it runs"));
    assert_eq!(plain, printed(lunet(&["--version"]).output().expect("it runs")));
}

#[test]
fn a_report_has_no_secret() {
    let (inline, kept) = ("planted-secret-1", "planted-secret-2");
    let users = format!(
        "[[target.user]]\nname = 'anna'\nsecret = '{inline}'\n[[target.user]]\nname = 'bert'\nsecret-file = 'bert'\n"
    );
    // Where a secret does not belong, it is found by what it is.
    let alias = format!("alias = 'not {inline} but'\n");
    let server = Server::start(&format!("{VOLUMES}{TARGET}{alias}{users}"), |_, folder| {
        let file = folder.join("bert");
        fs::write(&file, kept).expect("it is written");
        fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("they are set");
    });
    let file = server.folder.path().join("report.tar");
    let support = || lunet(&["support", path(&file), "--data", &server.data()]).output();
    let told = printed(support().expect("it runs"));
    let archive = fs::read(&file).expect("it is there");
    assert_eq!(fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o600);
    let text = String::from_utf8_lossy(&archive);
    // The machine's other lunets, such as that of the test below, are in it as well.
    assert!(!text.contains(inline) && !text.contains(kept), "a secret is in the report");
    assert!(text.contains("anna") && text.contains("not *** but"), "what else is there stays");
    let listed = Command::new("tar").arg("--list").arg("--file").arg(&file).output();
    let listed = printed(listed.expect("tar runs"));
    let names: Vec<&str> =
        listed.lines().filter_map(|line| line.strip_prefix("lunet-support/")).collect();
    for name in
        ["version.json", "lunet.toml", "sessions.json", "verdict.txt", "doctor.txt", "log.txt"]
    {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    assert!(names.iter().all(|name| told.contains(&format!("  {name} "))), "{told}");
    // A report that is there is not written over.
    assert!(!support().expect("it runs").status.success());
}

#[test]
fn a_report_tells_of_failover_groups_and_has_no_secret_of_theirs() {
    let secret = "planted-secret-3";
    // As a gateway keeps it: there is no cluster, and so it serves nothing of the group.
    let shared = format!(
        "# lunet group configuration, format 1, revision 7\n[volumes.a]\nbackend = 'rbd'\nimage = 'rbd://p/a'\n\
         [[target]]\nname = 'iqn.2026-11.l:g'\nluns = ['a']\nalias = 'not {secret} but'\n\
         [[target.user]]\nname = 'anna'\nsecret = '{secret}'\n"
    );
    let group = "[server]\nalua = 'implicit'\n[group.vms]\nrecord = 'rbd://p/vms'\ngateway = 1\nshared = true\n\
                 ceph-conf = '/nowhere/ceph.conf'\n";
    let server = Server::start(&format!("{VOLUMES}{TARGET}{group}"), |_, folder| {
        let kept = folder.join("data/groups");
        fs::create_dir_all(&kept).expect("it is made");
        fs::write(kept.join("vms.toml"), &shared).expect("it is written");
    });
    let file = server.folder.path().join("report.tar");
    let support = lunet(&["support", path(&file), "--data", &server.data()]).output();
    let told = printed(support.expect("it runs"));
    let archive = fs::read(&file).expect("it is there");
    let text = String::from_utf8_lossy(&archive);
    assert!(!text.contains(secret), "a secret is in the report");
    for words in [
        "\"record\": \"rbd://p/vms\"",
        "revision 7",
        "anna",
        "not *** but",
        "group vms\nnot known: ",
    ] {
        assert!(text.contains(words), "{words}");
    }
    for name in ["groups.json", "groups.toml", "gateways.txt"] {
        assert!(told.contains(&format!("  {name} ")), "{name}: {told}");
    }
}
