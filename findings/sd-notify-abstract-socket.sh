#!/bin/sh
# The Rust crate sd-notify 0.5.0 and a NOTIFY_SOCKET in the abstract namespace.
#
# sd_notify(3): where $NOTIFY_SOCKET begins with "@", the socket is in the abstract namespace of AF_UNIX, and "@" stands for the
# leading null byte. The crate takes "@name" as a path of the file system: notify() fails with ENOENT, and a manager that listens
# at such a socket never hears that the service is ready. A path works.
#
# Seen with: sd-notify 0.5.0.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/src"
cat >"$work/Cargo.toml" <<'TOML'
[package]
name = "abstract-socket"
edition = "2021"
[dependencies]
sd-notify = "=0.5.0"
[workspace]
TOML
cat >"$work/src/main.rs" <<'RUST'
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// What reaches a manager that listens at `socket`, whose name for clients is `name`.
fn notified(socket: &UnixDatagram, name: &str) -> String {
    std::env::set_var("NOTIFY_SOCKET", name);
    let sent = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut text = [0; 64];
    let arrived = socket.recv(&mut text).map(|n| String::from_utf8_lossy(&text[..n]).into_owned());
    let sent = sent.map_err(|error| error.kind());
    let arrived = arrived.map(|text| text.trim().to_owned()).unwrap_or_else(|_| "nothing".to_owned());
    format!("{sent:?}, arrived: {arrived}")
}

fn main() {
    let name = format!("notify-{}", std::process::id());
    let path = std::env::temp_dir().join(&name);
    let by_path = UnixDatagram::bind(&path).unwrap();
    println!("path: {}", notified(&by_path, path.to_str().unwrap()));
    std::fs::remove_file(&path).unwrap();
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let by_name = UnixDatagram::bind_addr(&address).unwrap();
    println!("abstract: {}", notified(&by_name, &format!("@{name}")));
}
RUST
CARGO_TARGET_DIR="$work/target" cargo run -q --manifest-path "$work/Cargo.toml" >"$work/seen"
cat "$work/seen"
cat >"$work/expected" <<'TEXT'
path: Ok(()), arrived: READY=1
abstract: Err(NotFound), arrived: nothing
TEXT
diff "$work/expected" "$work/seen"
