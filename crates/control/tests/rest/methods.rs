//! Methods, the header `Allow`, percent-encoded paths, and the form of a stream of events.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use lunet_control::Limits;

use super::support::{Ask, PATIENCE, Reply, Server, Wanted, start, until};

const METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"];

/// The answer as it came, to the end of the connection. What follows the head of an answer to HEAD is a defect.
fn to_the_end(server: &Server, ask: &Ask) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&ask.bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let body = bytes.split_off(end + 4);
    (String::from_utf8(bytes).unwrap(), body)
}

fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

fn is_head_only((head, body): &(String, Vec<u8>)) -> bool {
    header(head, "content-length").is_some_and(|length| length != "0") && body.is_empty()
}

#[test]
fn a_method_that_a_path_has_not_is_answered_with_those_that_it_has() {
    let server = start(Wanted::default());
    let mut paths: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (method, path) in lunet_control::routes() {
        let all = paths.entry(path).or_default();
        all.push(method);
        if method == "GET" {
            all.push("HEAD");
        }
    }
    assert!(paths.len() > 40, "{}", paths.len());
    for (path, allowed) in &paths {
        for method in METHODS.iter().filter(|method| !allowed.contains(method)) {
            let ask = server.ask(method, &path.replace(['{', '}'], ""));
            let (head, body) = to_the_end(&server, &ask);
            assert!(head.starts_with("HTTP/1.1 405 "), "{method} {path}: {head}");
            assert_eq!(header(&head, "allow"), Some(&*allowed.join(",")), "{method} {path}");
            assert_eq!(header(&head, "content-type"), Some("application/problem+json"));
            let length = header(&head, "content-length").unwrap().parse::<usize>().unwrap();
            assert!(length > 0, "{method} {path}");
            assert_eq!(body.len(), if *method == "HEAD" { 0 } else { length }, "{method} {path}");
        }
    }
}

#[test]
fn head_is_answered_as_get_without_the_body() {
    let server = start(Wanted::default());
    let login = server.begin();
    for (path, status) in [
        ("/", 200),
        ("/index.html", 200),
        ("/nothing", 404),
        ("/healthz", 200),
        ("/readyz", 200),
        ("/api/v1/openapi.json", 200),
        ("/api/v1/volumes", 200),
        ("/api/v1/volumes/vm1", 200),
        ("/api/v1/volumes/none", 404),
        ("/api/v1/volumes?x=1", 400),
        ("/api/v1/nothing", 404),
        ("/api/v1/accounts", 200),
    ] {
        let by_head = to_the_end(&server, &server.ask("HEAD", path).by(&login));
        let (get, body) = to_the_end(&server, &server.get(path).by(&login));
        assert!(is_head_only(&by_head), "{path}: {by_head:?}");
        assert!(get.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {get}");
        let without_date = |head: &str| -> Vec<String> {
            head.lines().filter(|line| !line.starts_with("date: ")).map(str::to_owned).collect()
        };
        assert_eq!(without_date(&by_head.0), without_date(&get), "{path}");
        let length = header(&get, "content-length").unwrap().parse::<usize>();
        assert_eq!(length, Ok(body.len()), "{path}");
    }
    for path in ["/api/v1/volumes", "/api/v1/volumes/vm1"] {
        let (head, body) = to_the_end(&server, &server.ask("HEAD", path));
        assert!(head.starts_with("HTTP/1.1 401 ") && body.is_empty(), "{path}: {head}");
    }
    let (head, body) = to_the_end(&server, &server.ask("HEAD", "/api/v1/events").by(&login));
    assert!(head.starts_with("HTTP/1.1 200 ") && body.is_empty(), "{head}");
    assert_eq!(header(&head, "content-type"), Some("text/event-stream"));
}

#[test]
fn only_get_and_head_reach_the_page() {
    let server = start(Wanted::default());
    for path in ["/", "/index.html", "/nothing", "/api/v1/nothing"] {
        for method in METHODS.iter().filter(|method| !["GET", "HEAD"].contains(method)) {
            let (head, _) = to_the_end(&server, &server.ask(method, path));
            assert!(head.starts_with("HTTP/1.1 404 "), "{method} {path}: {head}");
            assert_eq!(header(&head, "allow"), None, "{method} {path}");
        }
    }
    let whole = to_the_end(&server, &server.ask("OPTIONS", "*"));
    assert!(whole.0.starts_with("HTTP/1.1 404 "), "{whole:?}");
}

#[test]
fn a_file_that_the_client_has_is_answered_without_it() {
    let server = start(Wanted::default());
    let first = server.get("/").send();
    let tag = first.header("etag").unwrap().to_owned();
    let ask = server.get("/").with("If-None-Match", &tag);
    let (head, body) = to_the_end(&server, &ask);
    assert!(head.starts_with("HTTP/1.1 304 ") && body.is_empty(), "{head}");
    assert_eq!(header(&head, "etag"), Some(&*tag));
}

/// RFC 3986, 2.1
#[test]
fn parts_of_a_path_are_decoded_once() {
    let server = start(Wanted::default());
    let login = server.begin();
    let ask =
        |part: &str| -> Reply { server.get(&format!("/api/v1/volumes/{part}")).by(&login).send() };
    for part in ["vm1", "vm%31", "%76%6D%31", "%76%6d1"] {
        assert_eq!(ask(part).status, 200, "{part}");
    }
    for part in ["vm%2531", "vm+1", "vm1%2f", "vm1%", "vm1%4", "vm1%zz", "%C3%A9", "{name}"] {
        let reply = ask(part);
        assert_eq!((reply.status, &reply.json()["code"]), (404, &"not-found".into()), "{part}");
        assert_ne!(reply.json()["message"], "there is no such route", "{part}");
    }
    for part in ["%ff", "%C3", "vm1%80", "%ed%a0%80"] {
        let reply = ask(part);
        assert_eq!(reply.status, 400, "{part}");
        assert_eq!(reply.json()["message"], "the path is not UTF-8 text", "{part}");
        // Whoever is not logged in does not learn even that.
        let path = format!("/api/v1/volumes/{part}");
        assert_eq!(server.get(&path).send().status, 401, "{part}");
    }
}

#[test]
fn a_stream_without_events_has_comments() {
    let (interval, comment) = (PATIENCE * 10, Duration::from_millis(20));
    let limits = Limits { interval, comment, readers: 1, ..Limits::default() };
    let server = start(Wanted { limits, ..Wanted::default() });
    let login = server.begin();
    let ask = server.get("/api/v1/events").by(&login);
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&ask.bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(reader.read_line(&mut head).unwrap(), 0, "{head}");
    }
    let mut comments = [0; 16];
    reader.read_exact(&mut comments).unwrap();
    assert_eq!(&comments, b"3\r\n:\n\n\r\n3\r\n:\n\n\r\n");
    assert_eq!(ask.send().status, 503, "the only place is taken");
    // Without any event, a client that has gone frees its place.
    drop(reader);
    until(|| (server.ask("HEAD", "/api/v1/events").by(&login).send().status == 200).then_some(()));
}

#[test]
fn a_stream_of_events_has_the_form_that_browsers_read() {
    let limits = Limits { interval: Duration::from_millis(20), ..Limits::default() };
    let server = start(Wanted { limits, ..Wanted::default() });
    let login = server.begin();
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&server.get("/api/v1/events").by(&login).bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let head: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
    let head = head.join("\r\n");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    for (name, value) in [
        ("content-type", Some("text/event-stream")),
        ("cache-control", Some("no-cache")),
        ("transfer-encoding", Some("chunked")),
        ("content-length", None),
    ] {
        assert_eq!(header(&head, name), value, "{name}");
    }
    for _ in 0..2 {
        let length = usize::from_str_radix(&lines.next().unwrap(), 16).unwrap();
        let event: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
        let [name, data] = &event[..] else { panic!("{event:?}") };
        let known = ["event: interval", "event: verdict"];
        assert!(known.contains(&name.as_str()), "{name}");
        let data = data.strip_prefix("data: ").expect("data");
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        assert!(data.is_object(), "{data}");
        assert_eq!(event.join("\n").len() + 2, length, "each event is a chunk");
        assert_eq!(lines.next().as_deref(), Some(""));
    }
}
