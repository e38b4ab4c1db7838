//! Jobs and events.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use lunet_control::Limits;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::support::{Login, PATIENCE, Server, Wanted, start, until};

/// A program in the place of lunet.
const PROGRAM: &str = r#"#!/bin/sh
case "$*" in
  *--only=none*) echo "error: no rule and no layer is called none" >&2; echo "For more information, try --help" >&2; exit 2 ;;
esac
case "$1 $2 $3" in
  "doctor --json ") echo "looking at drives" >&2; echo "looking at cards" >&2; echo '{"findings":[]}'; exit 1 ;;
  "doctor --json --ceilings") exec sleep 1000 ;;
  "tune plan --json") echo '{"changes":[]}'; exit 2 ;;
  "tune rollback ") echo "Kept: a"; echo "cannot do it" >&2; exit 1 ;;
  "tune verify --json") echo '{"drift":[1]}'; exit 2 ;;
  "tune prove --json") echo '{"steps":[]}' ;;
  "tune apply ") echo "a: b: c -> d" ;;
  "tune facts --json") echo '{"cpu":2}' ;;
  bench*) head -c 2000000 /dev/zero | tr '\0' 'x' ;;
esac
"#;

fn program(folder: &TempDir) -> PathBuf {
    let path = folder.path().join("program");
    std::fs::write(&path, PROGRAM).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn started() -> (TempDir, Server, Login) {
    let folder = TempDir::new().unwrap();
    let limits = Limits { interval: Duration::from_millis(50), ..Limits::default() };
    let server = start(Wanted { program: Some(program(&folder)), limits, ..Wanted::default() });
    let login = server.begin();
    (folder, server, login)
}

fn begin(server: &Server, login: &Login, job: Value) -> Value {
    let reply = server.ask("POST", "/api/v1/jobs").by(login).json(&job).send();
    assert_eq!(reply.status, 202, "{reply:?}");
    let job = reply.json();
    let place = format!("/api/v1/jobs/{}", job["id"].as_str().unwrap());
    assert_eq!(reply.header("location"), Some(place.as_str()));
    job
}

fn end(server: &Server, login: &Login, job: &Value) -> Value {
    let path = format!("/api/v1/jobs/{}", job["id"].as_str().unwrap());
    until(|| {
        let job = server.get(&path).by(login).send().json();
        (job["state"] != "running").then_some(job)
    })
}

#[test]
fn a_job_has_progress_and_a_result() {
    let (_folder, server, login) = started();
    let run = |job: Value| end(&server, &login, &begin(&server, &login, job));
    let doctor = run(json!({"kind": "doctor"}));
    assert_eq!((&doctor["state"], &doctor["exit"]), (&json!("done"), &json!(1)), "{doctor}");
    assert_eq!(doctor["result"], json!({"findings": []}));
    assert_eq!(doctor["progress"], json!(["looking at drives", "looking at cards"]));
    assert_eq!(doctor["lines"], 2);
    let plan = run(json!({"kind": "tune-plan"}));
    assert_eq!((&plan["state"], &plan["result"]), (&json!("done"), &json!({"changes": []})));
    let wrong = run(json!({"kind": "tune-plan", "options": {"only": ["none"]}}));
    assert_eq!((&wrong["state"], &wrong["result"]), (&json!("failed"), &json!(null)), "{wrong}");
    assert_eq!(wrong["error"], "error: no rule and no layer is called none");
    let profile = json!({"kind": "tune-plan", "options": {"profile": "fast"}});
    let refused = server.ask("POST", "/api/v1/jobs").by(&login).json(&profile).send();
    assert_eq!((refused.status, &refused.json()["code"]), (422, &json!("invalid")));
    let verified = run(json!({"kind": "tune-verify"}));
    assert_eq!(
        (&verified["state"], &verified["result"]),
        (&json!("done"), &json!({"drift": [1]})),
        "drift is an answer, and no failure"
    );
    let options = json!({"targets": ["/mnt"], "rounds": 6});
    let proof = run(json!({"kind": "tune-prove", "options": options}));
    assert_eq!(proof["result"], json!({"steps": []}), "{proof}");
    let apply = run(json!({"kind": "tune-apply"}));
    assert_eq!(apply["result"], "a: b: c -> d\n");
    let failed = run(json!({"kind": "tune-rollback"}));
    assert_eq!((&failed["state"], &failed["error"]), (&json!("failed"), &json!("cannot do it")));
    assert_eq!(failed["result"], "Kept: a\n", "what it has printed is kept");
    let large = run(json!({"kind": "bench", "options": {"targets": ["/dev/null"]}}));
    assert_eq!((&large["state"], &large["result"]), (&json!("failed"), &json!(null)), "{large}");
    assert!(large["error"].as_str().unwrap().contains("1 MiB"), "{large}");
    let facts = server.get("/api/v1/facts").by(&login).send();
    assert_eq!(facts.json(), json!({"cpu": 2}));
    let what: Vec<_> = server.audit(5).into_iter().map(|line| line["what"].clone()).collect();
    assert_eq!(
        what[1..],
        ["tune-prove", "tune-apply", "tune-rollback", "bench"],
        "who only looks is not written down"
    );
    assert_eq!(server.get("/api/v1/jobs").by(&login).send().json().as_array().unwrap().len(), 8);
}

#[test]
fn jobs_are_few_and_end_when_they_are_cancelled() {
    let (_folder, server, login) = started();
    let long = json!({"kind": "doctor", "options": {"ceilings": true}});
    let (one, two) = (begin(&server, &login, long.clone()), begin(&server, &login, long.clone()));
    let third = server.ask("POST", "/api/v1/jobs").by(&login).json(&long).send();
    assert_eq!((third.status, &third.json()["code"]), (503, &json!("too-many-clients")));
    let (_, viewer) = server.token(&login, "viewer", 600);
    let path = |job: &Value| format!("/api/v1/jobs/{}", job["id"].as_str().unwrap());
    let other = server.ask("DELETE", &path(&one)).bearer(&viewer).send();
    assert_eq!(other.status, 403, "it is not this one's");
    for kind in ["tune-apply", "tune-rollback", "tune-prove", "bench"] {
        let reply =
            server.ask("POST", "/api/v1/jobs").bearer(&viewer).json(&json!({"kind": kind})).send();
        assert_eq!(reply.status, 403, "{kind}");
    }
    for job in [&one, &two] {
        assert_eq!(server.ask("DELETE", &path(job)).by(&login).send().status, 200);
        assert_eq!(end(&server, &login, job)["state"], "cancelled");
    }
    let next =
        server.ask("POST", "/api/v1/jobs").bearer(&viewer).json(&json!({"kind": "doctor"})).send();
    assert_eq!(next.status, 202, "there is room again");
    assert_eq!(next.json()["by"], "t-viewer");
}

#[test]
fn a_place_for_a_job_is_kept_for_administrators_and_nobody_ends_the_job_of_a_namesake() {
    let (_folder, server, login) = started();
    let long = json!({"kind": "doctor", "options": {"ceilings": true}});
    let (_, viewer) = server.token(&login, "viewer", 600);
    let (_, namesake) = server.token(&login, "viewer", 600);
    let (_, operator) = server.token(&login, "operator", 600);
    let ask = server.ask("POST", "/api/v1/jobs").json(&long);
    let job = ask.clone().bearer(&viewer).send();
    assert_eq!(job.status, 202, "{job:?}");
    for token in [&viewer, &namesake, &operator] {
        let refused = ask.clone().bearer(token).send();
        assert_eq!((refused.status, &refused.json()["code"]), (503, &json!("too-many-clients")));
    }
    drop(begin(&server, &login, long.clone()));
    assert_eq!(ask.by(&login).send().status, 503, "two run");
    let path = job.header("location").unwrap().to_owned();
    let cancel = |token: &str| server.ask("DELETE", &path).bearer(token).send().status;
    assert_eq!((cancel(&namesake), cancel(&viewer)), (403, 200));
}

/// Nobody has the results of others forgotten by beginning many jobs.
#[test]
fn who_begins_many_jobs_has_its_own_forgotten() {
    let (_folder, server, login) = started();
    let first = begin(&server, &login, json!({"kind": "tune-plan"}));
    drop(end(&server, &login, &first));
    let (_, viewer) = server.token(&login, "viewer", 600);
    let doctor =
        server.ask("POST", "/api/v1/jobs").bearer(&viewer).json(&json!({"kind": "doctor"}));
    for _ in 0..25 {
        let job = until(|| Some(doctor.send()).filter(|reply| reply.status == 202)).json();
        drop(end(&server, &login, &job));
    }
    assert_eq!(end(&server, &login, &first)["state"], "done");
}

/// Streams of events keep their places however many strangers connect, and one account has only some of them.
#[test]
fn who_listens_keeps_the_connection() {
    let interval = Duration::from_millis(20);
    let limits =
        Limits { interval, connections: 3, readers: 8, readers_of_one: 2, ..Limits::default() };
    let server = start(Wanted { limits, ..Wanted::default() });
    let login = server.begin();
    let other = server.token(&login, "viewer", 600).1;
    let mut readers: Vec<_> = (0..2).map(|_| listen(&server, &login)).collect();
    readers.iter_mut().for_each(|reader| drop(event(reader, "interval")));
    let third = server.get("/api/v1/events").by(&login).send();
    assert_eq!((third.status, &third.json()["code"]), (503, &json!("too-many-clients")));
    let silent: Vec<_> = (0..20).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    assert_eq!(server.get("/healthz").send().status, 200);
    readers.iter_mut().for_each(|reader| drop(event(reader, "interval")));
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&server.get("/api/v1/events").bearer(&other).bytes()).unwrap();
    let mut theirs = BufReader::new(stream);
    drop(event(&mut theirs, "interval"));
    // All three listen now: there is no place that could be given up.
    let refused = server.get("/healthz").send();
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    drop(silent);
}

/// Reads events until one has this name; gives its data.
fn event(reader: &mut BufReader<TcpStream>, name: &str) -> Value {
    let mut found = false;
    loop {
        let mut line = String::new();
        assert_ne!(reader.read_line(&mut line).unwrap(), 0, "the stream has ended");
        match line.trim_end().split_once(": ") {
            Some(("event", one)) => found = one == name,
            Some(("data", data)) if found => return serde_json::from_str(data).unwrap(),
            _ => {}
        }
    }
}

fn listen(server: &Server, login: &Login) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&server.get("/api/v1/events").by(login).bytes()).unwrap();
    BufReader::new(stream)
}

#[test]
fn whoever_listens_hears_of_intervals_changes_and_jobs() {
    let (_folder, server, login) = started();
    let mut reader = listen(&server, &login);
    let interval = event(&mut reader, "interval");
    assert!(interval["time"].as_u64().unwrap() > 1_600_000_000, "{interval}");
    assert!(interval["rates"]["seconds"].as_f64().unwrap() > 0.0, "{interval}");
    let made = server.ask("POST", "/api/v1/volumes").by(&login).json(&json!({"name": "a"})).send();
    assert_eq!(made.status, 201);
    assert_eq!(event(&mut reader, "changed"), json!({"what": "volumes"}));
    assert_eq!(event(&mut reader, "changed"), json!({"what": "config"}));
    drop(begin(&server, &login, json!({"kind": "doctor"})));
    assert_eq!(event(&mut reader, "job")["state"], "running");
    let done = event(&mut reader, "job");
    assert_eq!((&done["state"], &done["result"]), (&json!("done"), &json!(null)));
}

#[test]
fn a_stream_ends_with_its_session_and_there_are_only_so_many() {
    let limits = Limits { interval: Duration::from_millis(20), readers: 2, ..Limits::default() };
    let server = start(Wanted { limits, ..Wanted::default() });
    let login = server.begin();
    let mut readers: Vec<_> = (0..2).map(|_| listen(&server, &login)).collect();
    readers.iter_mut().for_each(|reader| drop(event(reader, "interval")));
    let refused = server.get("/api/v1/events").by(&login).send();
    assert_eq!((refused.status, &refused.json()["code"]), (503, &json!("too-many-clients")));
    assert_eq!(server.ask("POST", "/api/v1/logout").by(&login).send().status, 200);
    for mut reader in readers {
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut reader, &mut rest).unwrap();
    }
}
