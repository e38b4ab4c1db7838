//! Bounds of size, time and number; a server that hangs, and an interface that does.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lunet_control::{AuditEntry, Bound, Control, Limits, Listeners, Options, notifier};
use serde_json::json;

use super::support::{PATIENCE, Server, Wanted, answer, raw, start, until};

fn brief() -> Limits {
    let short = Duration::from_millis(300);
    Limits { header: short, body: short, answer: short, ..Limits::default() }
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// True if the other end closes the connection without a word.
fn is_closed(mut stream: TcpStream) -> bool {
    match stream.read(&mut [0; 64]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn bodies_beyond_the_bound_are_refused_whatever_they_say_of_their_length() {
    let server = start(Wanted::default());
    let login = server.begin();
    let ask = server.ask("POST", "/api/v1/volumes").by(&login);
    let large = vec![b' '; (256 << 10) + 1];
    let told = ask.clone().body("application/json", &large).send();
    assert_eq!((told.status, &told.json()["code"]), (413, &json!("too-large")));
    let huge = ask.clone().body("application/json", b"{}").with("Content-Length", "99999999999999");
    assert_eq!(huge.send().status, 413);
    let head =
        ask.clone().with("Transfer-Encoding", "chunked").with("Content-Type", "application/json");
    let mut bytes =
        String::from_utf8(head.bytes()).unwrap().replace("Content-Length: 0\r\n", "").into_bytes();
    bytes.extend(format!("{:x}\r\n", large.len()).bytes());
    bytes.extend(&large);
    bytes.extend(b"\r\n0\r\n\r\n");
    assert_eq!(raw(server.address, &bytes).unwrap().status, 413);
    // Both at once would be read in two ways.
    let both = ask.also("Transfer-Encoding", "chunked").body("application/json", b"0\r\n\r\n");
    let status = raw(server.address, &both.bytes()).map_or(0, |reply| reply.status);
    assert_eq!(status, 400);
}

#[test]
fn slow_clients_are_let_go() {
    let server = start(Wanted { limits: brief(), ..Wanted::default() });
    assert!(is_closed(connect(&server)), "nothing comes");
    let mut trickle = connect(&server);
    trickle.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n").unwrap();
    let _ = trickle.set_read_timeout(Some(PATIENCE));
    let end = answer(&mut trickle);
    assert!(end.is_none_or(|reply| reply.status == 408), "half a header");
    let mut idle = connect(&server);
    let host = server.address;
    idle.write_all(format!("GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).unwrap();
    assert_eq!(answer(&mut idle).unwrap().status, 200);
    assert!(is_closed(idle), "no further request comes");
    let mut body = connect(&server);
    let head = format!(
        "POST /api/v1/login HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
    );
    body.write_all(head.as_bytes()).unwrap();
    assert_eq!(answer(&mut body).unwrap().status, 408, "half a body");
    assert_eq!(server.get("/healthz").send().status, 200);
}

/// A stranger opens connections and says nothing, or half of something: that costs nobody else a wait, although all
/// come from one address.
#[test]
fn connections_of_strangers_take_no_place_from_others() {
    // What is slow is let go too late to be of help here.
    let long = PATIENCE * 10;
    let limits = Limits { connections: 4, header: long, body: long, ..Limits::default() };
    let server = start(Wanted { limits, ..Wanted::default() });
    let login = server.begin();
    let host = server.address;
    let half_a_body = format!(
        "POST /api/v1/login HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
    );
    let half_a_header = format!("GET /healthz HTTP/1.1\r\nHost: {host}\r\n");
    for what in ["", &half_a_header, &half_a_body] {
        let mut held: Vec<TcpStream> = Vec::new();
        for _ in 0..20 {
            for _ in 0..3 {
                let mut stream = connect(&server);
                stream.write_all(what.as_bytes()).unwrap();
                held.push(stream);
            }
            assert_eq!(server.get("/api/v1/volumes").by(&login).send().status, 200, "{what}");
        }
        assert!(is_closed(held.remove(0)), "the first has given up its place: {what}");
    }
    let idle = connect(&server);
    idle.set_nonblocking(true).unwrap();
    assert_eq!(server.get("/healthz").send().status, 200);
    let waits = (&idle).read(&mut [0; 1]).unwrap_err();
    assert_eq!(waits.kind(), std::io::ErrorKind::WouldBlock, "where there is room nobody goes");
}

#[test]
fn a_server_that_hangs_does_not_stop_what_does_not_ask_it() {
    let limits = Limits { requests: 2, answer: Duration::from_millis(200), ..Limits::default() };
    let server = start(Wanted { limits, ..Wanted::default() });
    let login = server.begin();
    server.fake.hang(true);
    let stats = || server.get("/api/v1/stats").by(&login).send();
    let begun = Instant::now();
    let late = stats();
    assert_eq!((late.status, &late.json()["code"]), (503, &json!("not-answered")));
    assert!(begun.elapsed() >= Duration::from_millis(200));
    assert_eq!(stats().json()["code"], "not-answered");
    let busy = stats();
    assert_eq!((busy.status, &busy.json()["code"]), (503, &json!("too-many-clients")));
    assert!(busy.header("retry-after").is_some());
    for (path, status) in [
        ("/healthz", 200),
        ("/", 200),
        ("/readyz", 503),
        ("/api/v1/me", 200),
        ("/api/v1/accounts", 200),
    ] {
        assert_eq!(server.get(path).by(&login).send().status, status, "{path}");
    }
    server.fake.hang(false);
    until(|| (stats().status == 200).then_some(()));
}

#[test]
fn whether_it_is_ready_does_not_depend_on_how_many_ask() {
    let server = start(Wanted::default());
    server.fake.hang(true);
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let asks = (0..16).map(|_| scope.spawn(|| server.get("/readyz").send().status));
        let asks: Vec<_> = asks.collect();
        until(|| (server.fake.asked.load(Ordering::Acquire) > 0).then_some(()));
        server.fake.hang(false);
        asks.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(statuses, [200; 16]);
    server.fake.ready.store(false, Ordering::Release);
    let ready = until(|| Some(server.get("/readyz").send()).filter(|reply| reply.status == 503));
    assert_eq!(ready.json(), json!({"ready": false, "why": ["not served: volume vm1"]}));
    server.fake.ready.store(true, Ordering::Release);
    until(|| (server.get("/readyz").send().status == 200).then_some(()));
}

#[test]
fn a_change_goes_on_when_its_client_goes() {
    let server = start(Wanted::default());
    let login = server.begin();
    server.fake.hang(true);
    let ask = server.ask("POST", "/api/v1/volumes").by(&login).json(&json!({"name": "a"}));
    let ask = ask.with("Idempotency-Key", "k");
    let mut gone = connect(&server);
    gone.write_all(&ask.bytes()).unwrap();
    until(|| (ask.send().json()["code"] == "change-under-way").then_some(()));
    drop(gone);
    server.fake.hang(false);
    let reply = until(|| Some(ask.send()).filter(|reply| reply.status == 201));
    assert!(reply.json()["done"].as_str().unwrap().contains("create-volume"));
    assert_eq!(server.fake.changes.lock().unwrap().len(), 1, "it was made once");
}

/// The thread of the interface hangs: whoever serves neither waits for it nor ends with it.
#[test]
fn an_interface_that_hangs_holds_up_nobody() {
    struct Idle;
    impl lunet_control::Service for Idle {
        fn answer(
            &self,
            _: &lunet_control::Principal,
            _: lunet_api::Request,
        ) -> Result<lunet_api::Answer, lunet_api::Error> {
            Err(lunet_api::Error::default())
        }
        fn check(
            &self,
            _: &lunet_control::Principal,
            _: &str,
        ) -> Result<lunet_api::Preview, lunet_api::Error> {
            Err(lunet_api::Error::default())
        }
        fn write(
            &self,
            _: &lunet_control::Principal,
            _: zeroize::Zeroizing<String>,
        ) -> Result<lunet_api::Done, lunet_api::Error> {
            Err(lunet_api::Error::default())
        }
        fn ready(&self) -> Vec<String> {
            Vec::new()
        }
        fn refused(&self) -> Vec<lunet_control::RefusedLogin> {
            Vec::new()
        }
    }
    let folder = tempfile::TempDir::new().unwrap();
    let listeners =
        Listeners { addresses: vec!["127.0.0.1:0".parse().unwrap()], certificate: None };
    let bound = Bound::new(&listeners, &[], folder.path()).unwrap();
    let (notifier, notices) = notifier();
    let (held, hold) = std::sync::mpsc::channel::<()>();
    let hold = std::sync::Mutex::new(hold);
    let (tells, told) = std::sync::mpsc::channel();
    let options = Options {
        directory: folder.path().join("control"),
        names: Vec::new(),
        program: None,
        environment: Vec::new(),
        limits: Limits::default(),
        user: Box::new(|_| None),
        // Called by the thread of the interface, which waits here.
        written: Box::new(move |_| {
            let _ = tells.send(());
            let _ = hold.lock().unwrap().recv();
        }),
    };
    let control =
        Control::start(bound, options, std::sync::Arc::new(Idle), (notifier.clone(), notices))
            .unwrap();
    notifier.record_numbered(1, AuditEntry::default());
    told.recv_timeout(PATIENCE).expect("the thread hangs");
    // It is told of changes by whoever makes them, far beyond what can wait for it.
    let begun = Instant::now();
    for _ in 0..5000 {
        notifier.differs("sessions");
        notifier.record(AuditEntry::default());
    }
    drop(control);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    drop(held);
    // The thread writes what is left, in the folder, which goes after it.
    let ended = std::iter::from_fn(|| Some(told.recv_timeout(PATIENCE))).find_map(Result::err);
    assert_eq!(ended, Some(std::sync::mpsc::RecvTimeoutError::Disconnected));
}
