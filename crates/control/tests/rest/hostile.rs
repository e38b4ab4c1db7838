//! Everything that must be refused, each with the right status.

use serde_json::{Value, json};

use super::support::{Ask, Server, Wanted, raw, start};

/// Every route: its method and path, what it is asked with, and the role that it needs. No role: everybody.
#[rustfmt::skip]
const ROUTES: &[(&str, &str, &str, &str)] = &[
    ("GET", "/healthz", "", ""),
    ("GET", "/readyz", "", ""),
    ("GET", "/api/v1/openapi.json", "", ""),
    ("GET", "/api/v1/first-start", "", ""),
    ("POST", "/api/v1/first-start", "{\"code\": \"x\", \"name\": \"a\", \"password\": \"b\"}", ""),
    ("POST", "/api/v1/login", "{\"name\": \"a\", \"password\": \"b\"}", ""),
    ("GET", "/api/v1/me", "", "metrics"),
    ("POST", "/api/v1/logout", "", "metrics"),
    ("GET", "/api/v1/volumes", "", "viewer"),
    ("GET", "/api/v1/volumes/{name}", "", "viewer"),
    ("GET", "/api/v1/volumes/{name}/snapshots", "", "viewer"),
    ("GET", "/api/v1/snapshots", "", "viewer"),
    ("GET", "/api/v1/targets", "", "viewer"),
    ("GET", "/api/v1/targets/{name}", "", "viewer"),
    ("GET", "/api/v1/groups", "", "viewer"),
    ("GET", "/api/v1/groups/{name}", "", "viewer"),
    ("GET", "/api/v1/groups/{name}/gateways", "", "viewer"),
    ("POST", "/api/v1/groups/{name}/move", "{\"gateway\": 2}", "operator"),
    ("GET", "/api/v1/groups/{name}/config", "", "operator"),
    ("POST", "/api/v1/groups/{name}/take-over", "", "administrator"),
    ("PUT", "/api/v1/groups/{name}/config", "{\"text\": \"\"}", "administrator"),
    ("GET", "/api/v1/portals", "", "viewer"),
    ("GET", "/api/v1/sessions", "", "viewer"),
    ("GET", "/api/v1/stats", "", "viewer"),
    ("GET", "/api/v1/verdict", "", "viewer"),
    ("GET", "/metrics", "", "metrics"),
    ("GET", "/api/v1/refused", "", "viewer"),
    ("GET", "/api/v1/facts", "", "viewer"),
    ("GET", "/api/v1/events", "", "viewer"),
    ("GET", "/api/v1/jobs", "", "viewer"),
    ("GET", "/api/v1/jobs/{id}", "", "viewer"),
    ("POST", "/api/v1/jobs", "{\"kind\": \"doctor\"}", "viewer"),
    ("DELETE", "/api/v1/jobs/{id}", "", "viewer"),
    ("PUT", "/api/v1/accounts/{name}/password", "{\"password\": \"another one\"}", "viewer"),
    ("POST", "/api/v1/volumes", "{\"name\": \"a\"}", "operator"),
    ("PATCH", "/api/v1/volumes/{name}", "{\"size\": 1}", "operator"),
    ("PATCH", "/api/v1/volumes/{name}/limits", "{\"iops\": 1}", "operator"),
    ("POST", "/api/v1/volumes/{name}/reopen", "", "operator"),
    ("POST", "/api/v1/volumes/{name}/snapshots", "{\"snapshot\": \"a\"}", "operator"),
    ("DELETE", "/api/v1/volumes/{name}/snapshots/{snapshot}", "", "operator"),
    ("POST", "/api/v1/volumes/{name}/clone", "{\"name\": \"b\"}", "operator"),
    ("POST", "/api/v1/targets", "{\"name\": \"iqn.a:b\"}", "operator"),
    ("PUT", "/api/v1/targets/{name}/luns/{lun}", "{\"volume\": \"a\"}", "operator"),
    ("DELETE", "/api/v1/targets/{name}/luns/{lun}", "", "operator"),
    ("POST", "/api/v1/targets/{name}/initiators", "{\"initiators\": [\"iqn.b:y\"]}", "operator"),
    ("DELETE", "/api/v1/targets/{name}/initiators/{initiator}", "", "operator"),
    ("POST", "/api/v1/targets/{name}/deny", "{\"initiators\": [\"iqn.b:y\"]}", "operator"),
    ("POST", "/api/v1/targets/{name}/users", "{\"name\": \"u\", \"secret\": {\"text\": \"x\"}}", "operator"),
    ("DELETE", "/api/v1/targets/{name}/users/{user}", "", "operator"),
    ("DELETE", "/api/v1/sessions", "", "operator"),
    ("DELETE", "/api/v1/sessions/{tsih}", "", "operator"),
    ("GET", "/api/v1/config", "", "operator"),
    ("POST", "/api/v1/config/check", "{\"text\": \"\"}", "operator"),
    ("DELETE", "/api/v1/volumes/{name}", "", "administrator"),
    ("POST", "/api/v1/volumes/{name}/recreate", "", "administrator"),
    ("POST", "/api/v1/volumes/{name}/adopt", "", "administrator"),
    ("POST", "/api/v1/volumes/{name}/rollback", "{\"snapshot\": \"a\"}", "administrator"),
    ("DELETE", "/api/v1/targets/{name}", "", "administrator"),
    ("POST", "/api/v1/targets/{name}/open", "", "administrator"),
    ("POST", "/api/v1/portals", "{\"address\": \"127.0.0.1:1\"}", "administrator"),
    ("DELETE", "/api/v1/portals/{address}", "", "administrator"),
    ("POST", "/api/v1/config/apply", "", "administrator"),
    ("PUT", "/api/v1/config", "{\"text\": \"\"}", "administrator"),
    ("GET", "/api/v1/audit", "", "administrator"),
    ("GET", "/api/v1/accounts", "", "administrator"),
    ("POST", "/api/v1/accounts", "{\"name\": \"a\", \"password\": \"x\", \"role\": \"viewer\"}", "administrator"),
    ("DELETE", "/api/v1/accounts/{name}", "", "administrator"),
    ("GET", "/api/v1/tokens", "", "administrator"),
    ("POST", "/api/v1/tokens", "{\"name\": \"a\", \"role\": \"viewer\"}", "administrator"),
    ("DELETE", "/api/v1/tokens/{id}", "", "administrator"),
];

const ROLES: [&str; 4] = ["metrics", "viewer", "operator", "administrator"];

fn filled(path: &str) -> String {
    path.replace("{lun}", "7")
        .replace("{tsih}", "7")
        .replace("{address}", "127.0.0.1:9")
        .replace(['{', '}'], "")
}

fn request(server: &Server, (method, path, body): (&str, &str, &str)) -> Ask {
    let ask = server.ask(method, &filled(path));
    match body {
        "" => ask,
        body => ask.body("application/json", body.as_bytes()),
    }
}

/// Collects what was not refused as it should be.
#[derive(Default)]
struct Tries {
    made: usize,
    wrong: Vec<String>,
}

impl Tries {
    fn expect(&mut self, what: &str, ask: &Ask, status: u16) {
        let found = ask.try_send().map_or(0, |reply| reply.status);
        self.count(what, found, status);
    }

    fn count(&mut self, what: &str, found: u16, status: u16) {
        self.made += 1;
        if found != status {
            self.wrong.push(format!("{what}: {found}, not {status}"));
        }
    }

    fn conclude(self, least: usize) {
        assert!(self.wrong.is_empty(), "{:#?}", self.wrong);
        assert!(self.made >= least, "only {} tries", self.made);
    }
}

#[test]
fn every_route_is_closed_to_those_below_its_role() {
    let server = start(Wanted::default());
    let login = server.begin();
    let mut known: Vec<_> = ROUTES.iter().map(|(method, path, ..)| (*method, *path)).collect();
    let mut all = lunet_control::routes();
    known.sort_unstable();
    all.sort_unstable();
    assert_eq!(known, all, "a route without a try");
    let tokens = ROLES.map(|role| server.token(&login, role, 600).1);
    let mut tries = Tries::default();
    for &(method, path, body, role) in ROUTES {
        let ask = request(&server, (method, path, body));
        let Some(needed) = ROLES.iter().position(|one| *one == role) else { continue };
        tries.expect(&format!("nobody: {method} {path}"), &ask, 401);
        for below in 0..needed {
            let by = ask.clone().bearer(&tokens[below]);
            tries.expect(&format!("{}: {method} {path}", ROLES[below]), &by, 403);
        }
        let strange = ask.clone().bearer("lunet_0011223344556677_00");
        tries.expect(&format!("a strange token: {method} {path}"), &strange, 401);
        if method != "GET" {
            let forged = ask.clone().with("Cookie", &login.cookie);
            tries.expect(&format!("without CSRF: {method} {path}"), &forged, 403);
        }
    }
    assert!(server.fake.changes.lock().unwrap().is_empty(), "something was changed");
    tries.conclude(200);
}

#[test]
fn every_route_is_open_to_its_role_and_in_the_document() {
    let server = start(Wanted::default());
    let login = server.begin();
    let tokens = ROLES.map(|role| server.token(&login, role, 600).1);
    let document: Value = serde_json::from_str(&lunet_control::openapi()).unwrap();
    let mut served = server.get("/api/v1/openapi.json").send().json();
    let cookie = served.pointer_mut("/components/securitySchemes/session/name").unwrap();
    assert_eq!(cookie.as_str(), login.cookie.split('=').next());
    *cookie = json!("lunet");
    assert_eq!(document, served);
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"), "{}", document["openapi"]);
    for &(method, path, body, role) in ROUTES {
        let operation = &document["paths"][path][method.to_lowercase()];
        assert!(operation.is_object(), "{method} {path} is not in the document");
        assert!(operation["responses"]["default"].is_object(), "{method} {path}");
        assert_eq!(operation["security"].is_null(), role.is_empty(), "{method} {path}");
        assert_eq!(
            operation["requestBody"].is_null(),
            body.is_empty() && path != "/api/v1/config/apply",
            "{method} {path}"
        );
        // It would never end.
        if path == "/api/v1/events" {
            continue;
        }
        let ask = request(&server, (method, path, body));
        let reply = match ROLES.iter().position(|one| *one == role) {
            Some(needed) => ask.bearer(&tokens[needed]).send(),
            None => ask.send(),
        };
        let open = role.is_empty() || ![401, 403].contains(&reply.status);
        // A token has no password of its own.
        assert!(open || path.ends_with("/password"), "{method} {path}: {reply:?}");
        assert!(reply.status != 500 && reply.status != 405, "{method} {path}: {reply:?}");
        let is_there = reply.status != 404 || reply.json()["message"] != "there is no such route";
        assert!(is_there, "{method} {path}: {reply:?}");
    }
    let count: usize = document["paths"]
        .as_object()
        .unwrap()
        .values()
        .map(|item| item.as_object().unwrap().len())
        .sum();
    assert_eq!(count, ROUTES.len(), "the document has a path that nobody answers");
}

#[test]
fn what_the_document_refers_to_is_in_it() {
    let document: Value = serde_json::from_str(&lunet_control::openapi()).unwrap();
    fn references(value: &Value, out: &mut Vec<String>) {
        match value {
            Value::Object(object) => {
                if let Some(Value::String(path)) = object.get("$ref") {
                    out.push(path.clone());
                }
                object.values().for_each(|value| references(value, out));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, out)),
            _ => {}
        }
    }
    let mut all = Vec::new();
    references(&document, &mut all);
    assert!(all.len() > 100, "{}", all.len());
    for path in all {
        let found = document.pointer(path.trim_start_matches('#'));
        assert!(found.is_some(), "{path} is not there");
    }
}

#[test]
fn names_and_origins_of_others_are_refused() {
    let server = start(Wanted { names: vec!["store.example.org".into()], ..Wanted::default() });
    let login = server.begin();
    let mut tries = Tries::default();
    let port = server.address.port();
    let ask = server.get("/api/v1/volumes").by(&login);
    for host in [
        "evil.example".to_owned(),
        format!("evil.example:{port}"),
        format!("127.0.0.1.evil.example:{port}"),
        format!("localhost.evil.example:{port}"),
        "192.0.2.1".to_owned(),
        format!("root@127.0.0.1:{port}"),
        "store.example.org.evil.example".to_owned(),
        "xstore.example.org".to_owned(),
        "[::2]".to_owned(),
        "0.0.0.0".to_owned(),
        "metadata".to_owned(),
    ] {
        tries.expect(&format!("Host: {host}"), &ask.clone().with("Host", &host), 403);
        let open = server.get("/healthz").with("Host", &host);
        tries.expect(&format!("Host of an open route: {host}"), &open, 403);
        let page = server.get("/").with("Host", &host);
        tries.expect(&format!("Host of the page: {host}"), &page, 403);
    }
    tries.expect("no Host", &ask.clone().without("Host"), 400);
    tries.expect("two Hosts", &ask.clone().also("Host", "evil.example"), 400);
    let other = server.ask("GET", &format!("http://evil.example:{port}/healthz"));
    tries.expect("another authority", &other, 403);
    let change = server.ask("POST", "/api/v1/volumes").by(&login).json(&json!({"name": "a"}));
    for origin in [
        "null".to_owned(),
        "http://evil.example".to_owned(),
        "https://evil.example".to_owned(),
        format!("http://127.0.0.1:{}", port ^ 1),
        "http://127.0.0.1".to_owned(),
        format!("http://localhost:{port}"),
        format!("http://127.0.0.1:{port}.evil.example"),
        format!("ftp://127.0.0.1:{port}"),
        "file://".to_owned(),
        "chrome-extension://abcdef".to_owned(),
    ] {
        tries.expect(&format!("Origin: {origin}"), &change.clone().with("Origin", &origin), 403);
        let read = ask.clone().with("Origin", &origin);
        tries.expect(&format!("Origin of a question: {origin}"), &read, 403);
        let login =
            server.ask("POST", "/api/v1/login").json(&json!({"name": "a", "password": "b"}));
        tries.expect(&format!("Origin of a login: {origin}"), &login.with("Origin", &origin), 403);
    }
    let two = change.clone().with("Origin", "null").also("Origin", "http://127.0.0.1");
    tries.expect("two origins", &two, 400);
    assert!(server.fake.changes.lock().unwrap().is_empty());
    for host in
        [format!("localhost:{port}"), "127.0.0.1:8080".to_owned(), "STORE.example.org".to_owned()]
    {
        let own = ask.clone().with("Host", &host).with("Origin", &format!("http://{host}"));
        tries.expect(&format!("its own name {host}"), &own, 200);
    }
    tries.conclude(60);
}

#[test]
fn paths_lead_nowhere_else() {
    let server = start(Wanted::default());
    let login = server.begin();
    let mut tries = Tries::default();
    for (path, status) in [
        ("/api/v1/volumes/../accounts", 404),
        ("/api/v1/volumes/%2e%2e/accounts", 404),
        ("/api/v1/volumes/..%2faccounts", 404),
        ("/api/v1/volumes/%2e%2e%2faccounts", 404),
        ("/api/v1/volumes/%00", 400),
        ("/api/v1/volumes/vm1%00", 400),
        ("/api/v1/volumes/vm1%0a", 400),
        ("/api/v1/volumes/%ff%fe", 400),
        ("/api/v1/volumes/vm1/", 404),
        ("/api/v1/volumes/", 404),
        ("/api/v1//volumes", 404),
        ("//api/v1/volumes", 404),
        ("/./api/v1/volumes", 404),
        ("/api/v1/./volumes", 404),
        ("/API/V1/volumes", 404),
        ("/api/v2/volumes", 404),
        ("/api/v1/volumes;x=1", 404),
        ("/api/v1/volumes%3fx", 404),
        ("/api/v1/volumes.json", 404),
        ("/api", 404),
        ("/api/", 404),
        ("/..", 404),
        ("/../Cargo.toml", 404),
        ("/%2e%2e/Cargo.toml", 404),
        ("/..%5cCargo.toml", 404),
        ("/assets/../index.htm", 404),
        ("/assets/..%2findex.html", 404),
        ("/index.html%00.png", 404),
        ("/etc/passwd", 404),
        ("/.git/config", 404),
        ("/control/accounts.json", 404),
        ("/accounts.json", 404),
        ("/api/v1/sessions/x", 405),
        ("/api/v1/targets/iqn.a:x/luns/7", 405),
    ] {
        tries.expect(path, &server.get(path).by(&login), status);
    }
    for (method, path, status) in [
        ("DELETE", "/api/v1/sessions/x", 400),
        ("DELETE", "/api/v1/sessions/65536", 400),
        ("DELETE", "/api/v1/sessions/-1", 400),
        ("DELETE", "/api/v1/sessions", 400),
        ("DELETE", "/api/v1/sessions?initiator=", 400),
        ("DELETE", "/api/v1/targets/a/luns/65536", 400),
        ("DELETE", "/api/v1/portals/everywhere", 422),
        ("DELETE", "/api/v1/volumes/vm1?force=maybe", 400),
        ("DELETE", "/api/v1/volumes/vm1?dryrun=true", 400),
        ("DELETE", "/api/v1/volumes/vm1?dry_run=maybe", 400),
        ("DELETE", "/api/v1/volumes/vm1?Force=true", 400),
        ("POST", "/api/v1/volumes/vm1/reopen?force=true", 400),
        ("PATCH", "/api/v1/targets/iqn.a:x", 405),
        ("PUT", "/api/v1/volumes", 405),
        ("POST", "/healthz", 405),
        ("OPTIONS", "/api/v1/volumes", 405),
        ("TRACE", "/api/v1/volumes", 405),
        ("PROPFIND", "/api/v1/volumes", 405),
        ("POST", "/", 404),
        ("DELETE", "/index.html", 404),
    ] {
        tries.expect(&format!("{method} {path}"), &server.ask(method, path).by(&login), status);
    }
    assert!(server.fake.changes.lock().unwrap().is_empty());
    tries.conclude(50);
}

#[test]
fn bodies_that_are_no_requests_are_refused() {
    let server = start(Wanted::default());
    let login = server.begin();
    let mut tries = Tries::default();
    let ask = server.ask("POST", "/api/v1/volumes").by(&login);
    let right = br#"{"name":"a"}"#;
    for media in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "",
        "application/jsonp",
        "text/json",
    ] {
        tries.expect(media, &ask.clone().body(media, right), 415);
    }
    tries.expect("no media type", &ask.clone().body("x", right).without("Content-Type"), 415);
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let twice = r#"{"name":"a","name":"b"}"#;
    for body in [
        "",
        "{",
        "null",
        "[]",
        "1",
        "\"a\"",
        "{}",
        "{\"name\":1}",
        "{\"name\":null}",
        "{\"name\":\"a\",\"x\":1}",
        "{\"name\":\"a\",\"size\":-1}",
        "{\"name\":\"a\",\"size\":1.5}",
        "{\"name\":\"a\",\"size\":1e99}",
        "{\"name\":\"a\",\"size\":18446744073709551616}",
        "{\"name\":\"a\"} x",
        "\u{feff}{\"name\":\"a\"}",
        "{'name':'a'}",
        twice,
        &deep,
    ] {
        let short: String = body.chars().take(40).collect();
        tries.expect(
            &format!("body {short}"),
            &ask.clone().body("application/json", body.as_bytes()),
            400,
        );
    }
    tries.expect("no UTF-8", &ask.clone().body("application/json", b"{\"name\":\"\xff\"}"), 400);
    assert!(server.fake.changes.lock().unwrap().is_empty());
    tries.conclude(26);
}

/// Each text of each body with a character that no name has, and each text of a query.
#[test]
fn control_characters_are_refused_wherever_a_text_is_taken() {
    let server = start(Wanted::default());
    let login = server.begin();
    let mut tries = Tries::default();
    #[rustfmt::skip]
    let bodies: &[(&str, &str, &str)] = &[
        ("POST", "volumes", r#"{"name": "@"}"#),
        ("POST", "volumes", r#"{"name": "a", "path": "@"}"#),
        ("POST", "volumes", r#"{"name": "a", "backend": "@"}"#),
        ("POST", "volumes/vm1/snapshots", r#"{"snapshot": "@"}"#),
        ("POST", "volumes/vm1/clone", r#"{"name": "@"}"#),
        ("POST", "volumes/vm1/clone", r#"{"name": "b", "snapshot": "@"}"#),
        ("POST", "volumes/vm1/rollback", r#"{"snapshot": "@"}"#),
        ("POST", "targets", r#"{"name": "@"}"#),
        ("POST", "targets", r#"{"name": "iqn.a:b", "alias": "@"}"#),
        ("PUT", "targets/iqn.a:x/luns/1", r#"{"volume": "@"}"#),
        ("POST", "targets/iqn.a:x/initiators", r#"{"initiators": ["iqn.b:y", "@"]}"#),
        ("POST", "targets/iqn.a:x/users", r#"{"name": "@", "secret": {"text": "twelve bytes"}}"#),
        ("POST", "targets/iqn.a:x/users", r#"{"name": "u", "secret": {"text": "x"}, "initiators": ["@"]}"#),
        ("POST", "portals", r#"{"address": "@"}"#),
        ("POST", "portals", r#"{"address": "127.0.0.1", "transport": ["@"]}"#),
        ("POST", "accounts", r#"{"name": "@", "password": "a good password", "role": "viewer"}"#),
        ("POST", "tokens", r#"{"name": "@", "role": "viewer"}"#),
        ("POST", "jobs", r#"{"kind": "tune-plan", "options": {"profile": "@"}}"#),
        ("POST", "jobs", r#"{"kind": "tune-plan", "options": {"only": ["@"]}}"#),
        ("POST", "jobs", r#"{"kind": "tune-plan", "options": {"except": ["@"]}}"#),
        ("POST", "jobs", r#"{"kind": "bench", "options": {"targets": ["@"]}}"#),
        ("POST", "jobs", r#"{"kind": "bench", "options": {"targets": ["/x"], "destroy": ["@"]}}"#),
        ("POST", "login", r#"{"name": "@", "password": "a good password"}"#),
    ];
    for &(method, path, body) in bodies {
        for strange in [r"\u0000", r"a\u0000b", r"a\nb", r"\u001b[2J", "a\u{7f}", "\u{9b}2J"] {
            let body = body.replace('@', strange);
            let ask = server.ask(method, &format!("/api/v1/{path}")).by(&login);
            let ask = ask.body("application/json", body.as_bytes());
            tries.expect(&format!("{path} {body}"), &ask, 422);
        }
    }
    let query = server.ask("DELETE", "/api/v1/sessions?initiator=iqn.b%00y").by(&login);
    tries.expect("a query", &query, 400);
    assert!(server.fake.changes.lock().unwrap().is_empty());
    tries.conclude(120);
}

#[test]
fn values_that_are_not_allowed_are_refused() {
    let server = start(Wanted::default());
    let login = server.begin();
    let mut tries = Tries::default();
    let ask = server.ask("POST", "/api/v1/volumes").by(&login);
    let right = br#"{"name":"a"}"#;
    let users = server.ask("POST", "/api/v1/targets/iqn.a:x/users").by(&login);
    let file = json!({"name": "u", "secret": {"file": "/etc/shadow"}});
    tries.expect("a secret by its path", &users.json(&file), 400);
    let none = server.ask("POST", "/api/v1/targets/iqn.a:x/initiators").by(&login);
    tries.expect("nobody is let in", &none.json(&json!({"initiators": []})), 422);
    let config = server.ask("PUT", "/api/v1/config").by(&login).json(&json!({"text": ""}));
    tries.expect("PUT without If-Match", &config, 428);
    tries.expect("PUT with another If-Match", &config.clone().with("If-Match", "\"x\""), 412);
    for key in ["", &"x".repeat(129), "\u{e9}"] {
        let keyed = ask.clone().body("application/json", right).with("Idempotency-Key", key);
        tries.expect(&format!("key {key:?}"), &keyed, 400);
    }
    for role in ["metrics", "root", ""] {
        let account = json!({"name": "a", "password": "long enough", "role": role});
        let ask = server.ask("POST", "/api/v1/accounts").by(&login).json(&account);
        tries.expect(&format!("role {role}"), &ask, if role == "metrics" { 422 } else { 400 });
    }
    for (name, password) in [
        ("", "long enough"),
        ("a b", "long enough"),
        ("a\nb", "long enough"),
        ("../x", "long enough"),
        ("a", "short"),
    ] {
        let account = json!({"name": name, "password": password, "role": "viewer"});
        let ask = server.ask("POST", "/api/v1/accounts").by(&login).json(&account);
        tries.expect(&format!("account {name:?}"), &ask, 422);
    }
    for seconds in [0, u64::MAX] {
        let token = json!({"name": "a", "role": "viewer", "expires_seconds": seconds});
        let ask = server.ask("POST", "/api/v1/tokens").by(&login).json(&token);
        tries.expect(&format!("a token of {seconds} s"), &ask, 422);
    }
    assert!(server.fake.changes.lock().unwrap().is_empty());
    tries.conclude(17);
}

#[test]
fn what_is_no_http_is_refused() {
    let server = start(Wanted::default());
    let host = server.address;
    let mut tries = Tries::default();
    let head = |more: &str| format!("POST /api/v1/login HTTP/1.1\r\nHost: {host}\r\n{more}\r\n");
    for (what, bytes, status) in [
        ("garbage", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(), 400),
        ("HTTP/2, which is closed without a word", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), 0),
        ("no version", b"GET /\r\n\r\n".to_vec(), 400),
        ("HTTP/9.9", format!("GET / HTTP/9.9\r\nHost: {host}\r\n\r\n").into_bytes(), 400),
        ("a header without a name", head(": x\r\n").into_bytes(), 400),
        ("a header with a space", head("A b: c\r\n").into_bytes(), 400),
        ("NUL in a header", head("A: b\0c\r\n").into_bytes(), 400),
        ("two lengths", head("Content-Length: 1\r\nContent-Length: 2\r\n").into_bytes(), 400),
        ("a length that is none", head("Content-Length: x\r\n").into_bytes(), 400),
        ("a negative length", head("Content-Length: -1\r\n").into_bytes(), 400),
        ("a long header", head(&format!("A: {}\r\n", "x".repeat(1 << 17))).into_bytes(), 431),
        ("many headers", head(&"A: b\r\n".repeat(500)).into_bytes(), 431),
        (
            "a long path",
            format!("GET /{} HTTP/1.1\r\nHost: {host}\r\n\r\n", "x".repeat(66_000)).into_bytes(),
            414,
        ),
    ] {
        let found = raw(host, &bytes).map_or(0, |reply| reply.status);
        tries.count(what, found, status);
    }
    tries.conclude(13);
}

/// RFC 9110, 11.1
#[test]
fn the_scheme_of_a_token_is_written_in_any_way() {
    let server = start(Wanted::default());
    let (_, token) = server.token(&server.begin(), "viewer", 600);
    for scheme in ["Bearer", "bearer", "BEARER", "bEARER"] {
        let header = format!("{scheme} {token}");
        let reply = server.get("/api/v1/volumes").with("Authorization", &header).send();
        assert_eq!(reply.status, 200, "{scheme}");
    }
}

#[test]
fn tokens_and_cookies_of_others_open_nothing() {
    let server = start(Wanted::default());
    let login = server.begin();
    let mut tries = Tries::default();
    let (id, token) = server.token(&login, "administrator", 600);
    let (_, brief) = server.token(&login, "administrator", 1);
    let ask = server.get("/api/v1/volumes");
    tries.expect("a good token", &ask.clone().bearer(&token), 200);
    let (start, secret) = token.rsplit_once('_').unwrap();
    let other = if secret.starts_with('0') { "1" } else { "0" };
    for wrong in [
        String::new(),
        "lunet".into(),
        "lunet_".into(),
        "lunet__".into(),
        format!("{start}_"),
        format!("{start}_{}", &secret[1..]),
        format!("{start}_{other}{}", &secret[1..]),
        format!("{start}_{}", secret.to_uppercase() + "x"),
        format!("{token}0"),
        format!("x{token}"),
        token.replace("lunet_", "token_"),
        token.replace(&id, "0000000000000000"),
        token.replace(&id, ""),
        token.replace(&id, "*"),
    ] {
        tries.expect(&format!("token {wrong}"), &ask.clone().bearer(&wrong), 401);
    }
    let schemes = ["Basic ", "bearer", "", "Token "];
    for header in schemes.map(|scheme| format!("{scheme}{token}")) {
        tries.expect(&header, &ask.clone().with("Authorization", &header), 401);
    }
    let name = login.cookie.split_once('=').unwrap().0;
    // A wrong token is not made up for by a good session.
    tries.expect("token and session", &ask.clone().by(&login).bearer("lunet_x_y"), 401);
    for cookie in [
        format!("{name}="),
        format!("{name}=x"),
        login.cookie.replace(name, "lunet"),
        format!("{}0", login.cookie),
        login.cookie[..login.cookie.len() - 1].to_owned(),
        login.cookie.replace("lunet", "Lunet"),
        format!("{}; {name}=x", login.cookie),
        format!("{name}=x; {}", login.cookie),
    ] {
        tries.expect(&format!("cookie {cookie}"), &ask.clone().with("Cookie", &cookie), 401);
    }
    let change = server.ask("POST", "/api/v1/volumes").json(&json!({"name": "a"}));
    let change = change.with("Cookie", &login.cookie);
    for csrf in [
        "",
        "x",
        &login.csrf[1..],
        &login.csrf.to_uppercase().replace(|c: char| c.is_ascii_digit(), "A"),
    ] {
        tries.expect(&format!("CSRF {csrf}"), &change.clone().with("X-Lunet-CSRF", csrf), 403);
    }
    std::thread::sleep(std::time::Duration::from_millis(1100));
    tries.expect("a token that has ended", &ask.clone().bearer(&brief), 401);
    let gone = server.ask("DELETE", &format!("/api/v1/tokens/{id}")).by(&login).send();
    assert_eq!(gone.status, 200, "{gone:?}");
    tries.expect("a token that was revoked", &ask.clone().bearer(&token), 401);
    let out = server.ask("POST", "/api/v1/logout").by(&login).send();
    assert_eq!(out.status, 200, "{out:?}");
    tries.expect("a session that has ended", &ask.by(&login), 401);
    assert!(server.fake.changes.lock().unwrap().is_empty());
    tries.conclude(34);
}

/// What somebody wants to be looked at is not passed over.
#[test]
fn a_request_without_a_body_takes_none_with_fields() {
    let server = start(Wanted::default());
    let login = server.begin();
    let mut asked = 0;
    for (method, path, body, _) in ROUTES.iter().filter(|(method, ..)| *method != "GET") {
        let has_body = !body.is_empty() || path.ends_with("/logout");
        let path = path.replace("{name}", "a").replace("{id}", "1").replace("{snapshot}", "s");
        if has_body || path.contains('{') {
            continue;
        }
        asked += 1;
        for body in [json!({"x": 1}), json!([]), json!(1)] {
            let ask = server.ask(method, &path).by(&login).json(&body);
            assert_eq!(ask.send().status, 400, "{method} {path} {body}");
        }
        let ask = server.ask(method, &path).by(&login).body("application/json", b"{} x");
        assert_eq!(ask.send().status, 400, "{method} {path}");
    }
    assert!(asked > 5, "{asked}");
    assert!(server.fake.orders.lock().unwrap().is_empty());
    let empty = server.ask("POST", "/api/v1/groups/vms/take-over").by(&login).json(&json!({}));
    assert_eq!(empty.send().status, 200);
}
