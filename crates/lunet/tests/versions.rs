//! The commands and servers of other versions, as the crate `api` has captured them.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::{self, JoinHandle};

use serde_json::{Value, json};
use tempfile::TempDir;

/// What a server of version 1 answered.
fn captured(name: &str) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../api/tests/version-1");
    let text = fs::read_to_string(folder.join(format!("{name}.txt"))).expect("what was captured");
    let answer = text.lines().nth(1).expect("an answer");
    serde_json::from_str(answer).expect("JSON")
}

/// A server that gives one answer to whatever comes first, and tells what that was.
fn server(answer: &Value) -> (TempDir, PathBuf, JoinHandle<Value>) {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("s");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let line = format!("{answer}\n");
    let serve = move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut request = String::new();
        BufReader::new(&stream).read_line(&mut request).expect("a request");
        stream.write_all(line.as_bytes()).expect("it is taken");
        serde_json::from_str(&request).expect("JSON")
    };
    (folder, socket, thread::spawn(serve))
}

fn lunet(arguments: &[&str], socket: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lunet"));
    command.args(arguments).arg("--socket").arg(socket).output().expect("it runs")
}

/// What a command prints of an answer, and what it has asked.
fn told(arguments: &[&str], answer: &Value) -> (String, Value) {
    let (_folder, socket, asked) = server(answer);
    let output = lunet(arguments, &socket);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    (String::from_utf8(output.stdout).expect("a text"), asked.join().expect("it was asked"))
}

fn refused(arguments: &[&str], answer: &Value) -> String {
    let (_folder, socket, asked) = server(answer);
    let output = lunet(arguments, &socket);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
    asked.join().expect("it was asked");
    String::from_utf8(output.stderr).expect("a text")
}

#[test]
fn a_server_of_version_1_is_understood() {
    for (name, arguments) in [
        ("sessions", &["sessions"][..]),
        ("stats", &["stats"]),
        ("volumes", &["volume", "list"]),
        ("snapshots", &["volume", "snapshots"]),
        ("targets", &["target", "list"]),
        ("portals", &["portal", "list"]),
        ("config", &["config", "show"]),
        ("preview", &["config", "apply", "--dry-run"]),
        ("create-volume", &["volume", "create", "vm2", "--size", "1MiB"]),
    ] {
        let answer = captured(name);
        let (text, asked) = told(arguments, &answer);
        assert!(!text.is_empty() && asked["request"].is_string(), "{name}: {asked}");
        let json = [arguments, &["--json"]].concat();
        let printed: Value = serde_json::from_str(&told(&json, &answer).0).expect("JSON");
        // A list of what lives on all event loops stands beside which of them have not answered.
        let said = match name {
            "sessions" | "targets" => &printed[name],
            _ => &printed,
        };
        assert_eq!(said, &answer["ok"], "{name}: all that it has said");
    }
    let text = refused(&["volume", "create", "vm2"], &captured("exists"));
    assert_eq!(text, "lunet: there is a volume \"vm2\" already: choose another name\n");
    let text = refused(&["target", "unmap", "t", "1"], &captured("later-change"));
    assert!(text.starts_with("lunet: the running lunet is older than this command"), "{text}");
}

#[test]
fn a_newer_server_is_understood_or_told_to_be_newer() {
    let mut answer = captured("volumes");
    answer["api"] = json!(99);
    answer["ok"][0]["encrypted"] = json!(true);
    answer["ok"][0]["backend"] = json!("rbd");
    let (text, asked) = told(&["volume", "list"], &answer);
    assert!(text.contains(" rbd "), "{text}");
    assert_eq!(asked, json!({ "api": lunet_api::VERSION, "request": "volumes" }));

    let error = json!({ "code": "on-fire", "message": "it burns", "fix": "run", "since": 1 });
    let text = refused(&["volume", "list"], &json!({ "api": 99, "error": error }));
    assert_eq!(text, "lunet: it burns: run\n");
    let text = refused(&["volume", "list"], &json!({ "api": 99, "ok": { "volumes": [] } }));
    assert!(text.contains("this command is older than the running lunet"), "{text}");
}
