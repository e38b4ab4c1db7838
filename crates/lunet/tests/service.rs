//! What the built program is to a service manager.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
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

/// A server in a folder of its own; killed at the end.
struct Server {
    _folder: TempDir,
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
        Self { _folder: folder, child }
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
