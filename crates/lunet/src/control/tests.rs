use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

struct Fixed;

impl Source for Fixed {
    fn answer(&self, who: Asker, request: Request) -> Result<Value, String> {
        Ok(match request {
            Request::Sessions => json!([{"initiator": "iqn.x:a"}]),
            // Larger than a socket buffer, so that sending takes more than one write.
            Request::Stats => json!("x".repeat(1 << 20)),
            Request::Config => return Err("there is none".to_owned()),
            Request::Targets => json!([who.uid, who.pid]),
            other => json!(other),
        })
    }
}

fn started() -> (TempDir, PathBuf, ControlServer) {
    let dir = TempDir::new().unwrap();
    let path = default_path(dir.path());
    let mut server = ControlServer::bind(&path).unwrap();
    server.serve(Fixed).unwrap();
    (dir, path, server)
}

fn raw(path: &Path, request: &[u8]) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn each_request_gets_its_answer() {
    let (_dir, path, _server) = started();
    assert_eq!(ask(&path, &Request::Sessions).unwrap(), json!([{"initiator": "iqn.x:a"}]));
    assert_eq!(ask(&path, &Request::Stats).unwrap().as_str().map(str::len), Some(1 << 20));
}

#[test]
fn a_change_travels_whole_and_a_refusal_is_a_sentence() {
    let (_dir, path, _server) = started();
    let new = NewVolume { name: "a".into(), backend: "file".into(), ..NewVolume::default() };
    let change = Change::CreateVolume(new);
    let answer = ask(&path, &Request::Change { version: VERSION, change }).unwrap();
    let words = r#"{"change":{"backend":"file","block_size":null,"do":"create-volume","full":false,
        "name":"a","path":null,"read_only":false,"size":null,
        "write_through":false},"request":"change","version":1}"#;
    assert_eq!(answer, serde_json::from_str::<Value>(words).unwrap());
    assert_eq!(ask(&path, &Request::Config).unwrap_err().to_string(), "there is none");
    for request in [
        r#"{"request":"change","version":1}"#,
        r#"{"request":"change","version":1,"change":{"do":"unmap","target":"t","lun":65536}}"#,
        r#"{"request":"change","version":1,"change":{"do":"unmap","target":"t","lun":1,"x":1}}"#,
    ] {
        let answer = raw(&path, format!("{request}\n").as_bytes());
        assert!(answer.starts_with("{\"error\":\"this is no request"), "{answer}");
    }
}

#[test]
fn the_wire_is_a_line_of_json_each_way() {
    let (_dir, path, _server) = started();
    let answer = raw(&path, b"{\"request\":\"sessions\"}\nwhatever follows");
    assert_eq!(answer, "{\"ok\":[{\"initiator\":\"iqn.x:a\"}]}\n");
}

#[test]
fn what_is_no_request_is_answered_with_an_error() {
    let (_dir, path, _server) = started();
    for request in [&b"\n"[..], b"hello\n", b"{\"request\":\"shutdown\"}\n", b"\xff\xfe\n", b"[]\n"]
    {
        let answer = raw(&path, request);
        assert!(answer.starts_with("{\"error\":\"this is no request"), "{answer}");
    }
    let answer = raw(&path, &[b'x'; 16385]);
    assert!(answer.contains("at most 16384 bytes"), "{answer}");
}

#[test]
fn silent_clients_hold_up_nobody() {
    let (_dir, path, _server) = started();
    let _silent: Vec<_> = (0..7).map(|_| UnixStream::connect(&path).unwrap()).collect();
    assert!(ask(&path, &Request::Sessions).is_ok());
}

#[test]
fn clients_beyond_the_bound_are_told_so() {
    let (_dir, path, _server) = started();
    let _silent: Vec<_> = (0..8).map(|_| UnixStream::connect(&path).unwrap()).collect();
    let refused = ask(&path, &Request::Sessions).unwrap_err();
    assert!(refused.to_string().contains("too many clients"), "{refused}");
}

#[test]
fn only_the_owner_may_use_the_socket_and_it_goes_with_the_server() {
    let (_dir, path, server) = started();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(server);
    assert!(!path.exists());
    let error = ask(&path, &Request::Stats).unwrap_err();
    assert!(error.to_string().contains("no lunet is running"), "{error}");
}

#[test]
fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
    let dir = TempDir::new().unwrap();
    let path = default_path(dir.path());
    drop(UnixListener::bind(&path).unwrap());
    let error = ask(&path, &Request::Stats).unwrap_err();
    assert!(error.to_string().contains("no lunet is running"), "{error}");

    let mut server = ControlServer::bind(&path).unwrap();
    let error = ControlServer::bind(&path).unwrap_err();
    assert!(error.to_string().contains("another lunet is running"), "{error}");
    server.serve(Fixed).unwrap();
    assert!(ask(&path, &Request::Sessions).is_ok(), "the live server was left alone");
}

#[test]
fn paths_that_cannot_be_sockets_are_refused_in_a_sentence() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let error = ControlServer::bind(&file).unwrap_err();
    assert!(error.to_string().contains("not a socket"), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");

    let long = dir.path().join("x".repeat(108));
    for error in [ControlServer::bind(&long).unwrap_err(), ask(&long, &Request::Stats).unwrap_err()]
    {
        assert!(error.to_string().contains("107 are allowed"), "{error}");
    }

    let error = ControlServer::bind(&dir.path().join("no/where")).unwrap_err();
    assert!(error.to_string().contains("cannot listen"), "{error}");
}

#[test]
fn the_server_knows_who_asks() {
    let (_dir, path, _server) = started();
    let answer = ask(&path, &Request::Targets).unwrap();
    assert_eq!(answer, json!([rustix::process::geteuid().as_raw(), std::process::id()]));
}
