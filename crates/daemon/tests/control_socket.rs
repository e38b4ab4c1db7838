//! The control socket, asked by the client of the command line.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, RwLock};

use lunet_api::{
    Answer, Backend, Change, Code, Done, NewVolume, Request, Session, Stats, Target, VERSION,
};
use lunet_cli::control::{Client, Error};
use lunet_config::place::default_path;
use lunet_daemon::control::{Asker, ControlServer, Source};
use tempfile::TempDir;

struct Fixed;

impl Source for Fixed {
    fn answer(&self, who: Asker, request: Request) -> Result<Answer, lunet_api::Error> {
        Ok(match request {
            Request::Sessions => Answer::Sessions(vec![session()]),
            // Larger than a socket buffer, so that sending takes more than one write.
            Request::Stats => {
                Answer::Stats(Box::new(Stats { driver: "x".repeat(1 << 20), ..Stats::default() }))
            }
            Request::Config => {
                let error = lunet_api::Error::new(Code::NotFound, "there is none");
                return Err(error.fix("make one"));
            }
            Request::Targets => {
                let name = format!("{} {}", who.uid, who.pid);
                Answer::Targets(vec![Target { name, ..Target::default() }])
            }
            // What has arrived.
            other => {
                let done = serde_json::to_string(&other).unwrap();
                Answer::Done(Done { done, ..Done::default() })
            }
        })
    }
}

fn session() -> Session {
    Session { initiator: "iqn.x:a".into(), tsih: 7, ..Session::default() }
}

fn started() -> (TempDir, PathBuf, ControlServer) {
    started_with(Fixed)
}

fn started_with(source: impl Source) -> (TempDir, PathBuf, ControlServer) {
    let dir = TempDir::new().unwrap();
    let path = default_path(dir.path());
    let mut server = ControlServer::bind(&path, None).unwrap();
    server.serve(source).unwrap();
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
    let client = Client::new(path);
    assert_eq!(client.sessions().unwrap(), [session()]);
    assert_eq!(client.stats().unwrap().driver.len(), 1 << 20);
}

#[test]
fn a_change_travels_whole_and_a_refusal_is_a_sentence() {
    let (_dir, path, _server) = started();
    let new = NewVolume { name: "a".into(), backend: Backend::File, ..NewVolume::default() };
    let change = Change::CreateVolume(new);
    let client = Client::new(path.clone());
    let done = client.change(change.clone()).unwrap();
    let arrived: Request = serde_json::from_str(&done.done).unwrap();
    assert_eq!(arrived, Request::Change { version: 1, change });
    match client.config().unwrap_err() {
        Error::Refused(error) => {
            assert_eq!((&error.code, error.fix.as_str()), (&Code::NotFound, "make one"));
            assert_eq!(error.to_string(), "there is none: make one");
        }
        other => panic!("{other}"),
    }
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
    let list = serde_json::to_string(&[session()]).unwrap();
    assert_eq!(answer, format!("{{\"ok\":{list}}}\n"), "no version was told");
    let answer = raw(&path, b"{\"request\":\"sessions\",\"api\":2}\n");
    assert_eq!(answer, format!("{{\"api\":{VERSION},\"ok\":{list}}}\n"));
}

#[test]
fn what_is_no_request_is_answered_with_an_error() {
    let (_dir, path, _server) = started();
    for request in [&b"\n"[..], b"hello\n", b"{\"request\":\"shutdown\"}\n", b"\xff\xfe\n", b"[]\n"]
    {
        let answer = raw(&path, request);
        assert!(answer.starts_with("{\"error\":\"this is no request"), "{answer}");
    }
    let answer = raw(&path, &vec![b'x'; 278_529]);
    assert!(answer.contains("at most 278528 bytes"), "{answer}");
}

#[test]
fn silent_clients_hold_up_nobody() {
    let (_dir, path, _server) = started();
    let mut silent: Vec<_> = (0..20).map(|_| UnixStream::connect(&path).unwrap()).collect();
    assert!(Client::new(path).sessions().is_ok());
    let mut told = String::new();
    silent[0].read_to_string(&mut told).unwrap();
    assert!(told.contains("too many clients at once"), "{told}");
}

/// Says when it is asked, and answers when it may.
struct Busy(SyncSender<()>, Arc<RwLock<()>>);

impl Source for Busy {
    fn answer(&self, who: Asker, request: Request) -> Result<Answer, lunet_api::Error> {
        let _ = self.0.try_send(());
        drop(self.1.read());
        Fixed.answer(who, request)
    }
}

#[test]
fn clients_beyond_the_bound_are_told_so() {
    let (began, asked) = sync_channel(8);
    let gate = Arc::new(RwLock::new(()));
    let (_dir, path, _server) = started_with(Busy(began, gate.clone()));
    let closed = gate.write().unwrap();
    let ask = |_| {
        let client = Client::new(path.clone());
        std::thread::spawn(move || client.sessions().is_ok())
    };
    let busy: Vec<_> = (0..8).map(ask).collect();
    busy.iter().for_each(|_| asked.recv().unwrap());
    let refused = Client::new(path.clone()).sessions().unwrap_err();
    assert!(refused.to_string().contains("too many clients"), "{refused}");
    drop(closed);
    assert!(busy.into_iter().all(|one| one.join().unwrap()), "all who had a place are answered");
}

#[test]
fn only_the_owner_may_use_the_socket_and_it_goes_with_the_server() {
    let (_dir, path, server) = started();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(server);
    assert!(!path.exists());
    let error = Client::new(path.clone()).stats().unwrap_err();
    assert!(error.to_string().contains("no lunet is running"), "{error}");
}

#[test]
fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
    let dir = TempDir::new().unwrap();
    let path = default_path(dir.path());
    drop(UnixListener::bind(&path).unwrap());
    let error = Client::new(path.clone()).stats().unwrap_err();
    assert!(error.to_string().contains("no lunet is running"), "{error}");

    let mut server = ControlServer::bind(&path, None).unwrap();
    let error = ControlServer::bind(&path, None).unwrap_err();
    assert!(error.to_string().contains("another lunet is running"), "{error}");
    server.serve(Fixed).unwrap();
    assert!(Client::new(path).sessions().is_ok(), "the live server was left alone");
}

#[test]
fn paths_that_cannot_be_sockets_are_refused_in_a_sentence() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let error = ControlServer::bind(&file, None).unwrap_err();
    assert!(error.to_string().contains("not a socket"), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");

    let long = dir.path().join("x".repeat(108));
    for error in [
        ControlServer::bind(&long, None).unwrap_err().to_string(),
        Client::new(long.clone()).stats().unwrap_err().to_string(),
    ] {
        assert!(error.contains("107 are allowed"), "{error}");
    }

    let error = ControlServer::bind(&dir.path().join("no/where"), None).unwrap_err();
    assert!(error.to_string().contains("cannot listen"), "{error}");
}

#[test]
fn the_server_knows_who_asks() {
    let (_dir, path, _server) = started();
    let answer = Client::new(path).targets().unwrap();
    let own = format!("{} {}", rustix::process::geteuid().as_raw(), std::process::id());
    assert_eq!(answer[0].name, own);
}

/// How a request ends at something that listens at the socket and answers so.
fn told(answer: &'static str) -> Result<Vec<lunet_api::Volume>, Error> {
    let dir = TempDir::new().unwrap();
    let path = default_path(dir.path());
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        BufReader::new(&stream).read_line(&mut String::new()).unwrap();
        stream.write_all(answer.as_bytes()).unwrap();
    });
    let told = Client::new(path).volumes();
    server.join().unwrap();
    told
}

#[test]
fn what_listens_at_the_socket_steers_no_terminal() {
    let refusal = r#"{"api":2,"error":{"code":"not-found","message":"no\u001b[2J\u009b\nlunet: yes","fix":"a\u202eb"}}
"#;
    let refused = told(refusal).unwrap_err();
    assert_eq!(refused.to_string(), "no?[2J?; lunet: yes: a?b");
    let strange = told("{\"api\":3,\"ok\":\"a\\u001b[2J\"}\n").unwrap_err().to_string();
    assert!(strange.contains("is no lunet") && !strange.contains('\u{1b}'), "{strange}");
}
