//! Changes: what they become, that they are made once, and only of what the client knows.

use lunet_api::{Change, NewVolume};
use serde_json::{Value, json};

use super::support::{Login, Server, Wanted, start};

fn change(server: &Server, login: &Login, method: &str, path: &str, body: Value) -> Change {
    let ask = server.ask(method, path).by(login);
    let ask = if body.is_null() { ask } else { ask.json(&body) };
    let reply = ask.send();
    assert!([200, 201].contains(&reply.status), "{reply:?}");
    server.fake.changes.lock().unwrap().pop().expect("a change")
}

/// Requests, and the changes that they are.
#[rustfmt::skip]
const CHANGES: &[(&str, &str, &str, &str)] = &[
    ("PATCH", "/api/v1/volumes/a", r#""#,
     r#"{"do": "resize-volume", "name": "a", "size": null}"#),
    ("PATCH", "/api/v1/volumes/a", r#"{"size": 4096}"#,
     r#"{"do": "resize-volume", "name": "a", "size": 4096}"#),
    ("PATCH", "/api/v1/volumes/a/limits", r#"{"iops": 500, "burst_ms": 0}"#,
     r#"{"do": "limit-volume", "name": "a", "limits": {"iops": 500, "burst_ms": 0}}"#),
    ("POST", "/api/v1/volumes", r#"{"name": "a", "size": 4096, "limits": {"weight": 300}}"#,
     r#"{"do": "create-volume", "name": "a", "backend": "file", "size": 4096, "path": null, "full": false,
         "block_size": null, "read_only": false, "write_through": false, "limits": {"weight": 300}}"#),
    ("DELETE", "/api/v1/volumes/a%20b?keep_data=true&force", r#""#,
     r#"{"do": "delete-volume", "name": "a b", "keep_data": true, "force": true}"#),
    ("POST", "/api/v1/volumes/a/clone", r#"{"name": "b", "naa": "6024c4e0000000000000000000000001"}"#,
     r#"{"do": "clone-volume", "volume": "a", "snapshot": null, "name": "b", "naa": "6024c4e0000000000000000000000001"}"#),
    ("POST", "/api/v1/volumes/a/rollback", r#"{"snapshot": "s"}"#,
     r#"{"do": "rollback", "volume": "a", "snapshot": "s", "force": false}"#),
    ("DELETE", "/api/v1/volumes/a/snapshots/s", r#""#,
     r#"{"do": "delete-snapshot", "volume": "a", "snapshot": "s"}"#),
    ("POST", "/api/v1/targets", r#"{"name": "iqn.a:x"}"#,
     r#"{"do": "create-target", "name": "iqn.a:x", "alias": null, "nvme": false}"#),
    ("PUT", "/api/v1/targets/iqn.a:x/luns/7", r#"{"volume": "a"}"#,
     r#"{"do": "map", "target": "iqn.a:x", "lun": 7, "volume": "a", "force": false}"#),
    ("DELETE", "/api/v1/targets/iqn.a:x/initiators/10.0.0.0%2F8?keep_sessions=1", r#""#,
     r#"{"do": "deny-initiators", "target": "iqn.a:x", "initiators": ["10.0.0.0/8"], "force": false, "keep_sessions": true}"#),
    ("POST", "/api/v1/targets/iqn.a:x/deny", r#"{"initiators": ["iqn.b:y", "10.0.0.0/8"], "force": true}"#,
     r#"{"do": "deny-initiators", "target": "iqn.a:x", "initiators": ["iqn.b:y", "10.0.0.0/8"], "force": true, "keep_sessions": false}"#),
    ("POST", "/api/v1/targets/t/users", r#"{"name": "u", "secret": {"text": "s"}, "initiators": ["iqn.b:y"]}"#,
     r#"{"do": "add-user", "target": "t", "user": {"name": "u", "secret": {"text": "s"}, "initiators": ["iqn.b:y"], "replace": false}, "force": false, "keep_sessions": false}"#),
    ("POST", "/api/v1/portals", r#"{"address": "::1", "transport": ["tcp"]}"#,
     r#"{"do": "add-portal", "address": "[::1]:3260", "tag": null, "transport": ["tcp"]}"#),
    ("DELETE", "/api/v1/portals/%5B::1%5D:3260", r#""#,
     r#"{"do": "remove-portal", "address": "[::1]:3260", "force": false, "keep_sessions": false}"#),
    ("DELETE", "/api/v1/sessions/9", r#""#,
     r#"{"do": "end-sessions", "session": 9, "initiator": null}"#),
    ("DELETE", "/api/v1/sessions?initiator=iqn.b:y", r#""#,
     r#"{"do": "end-sessions", "session": null, "initiator": "iqn.b:y"}"#),
    ("POST", "/api/v1/config/apply", r#""#,
     r#"{"do": "apply", "force": false, "keep_sessions": false}"#),
    ("POST", "/api/v1/config/apply", r#"{"force": true}"#,
     r#"{"do": "apply", "force": true, "keep_sessions": false}"#),
];

#[test]
fn each_request_becomes_the_change_that_it_says() {
    let server = start(Wanted::default());
    let login = server.begin();
    let become_ = |method: &str, path: &str, body: Value, expected: Value| {
        let found = change(&server, &login, method, path, body);
        assert_eq!(serde_json::to_value(&found).unwrap(), expected, "{method} {path}");
    };
    let defaults =
        NewVolume { name: "a".into(), backend: lunet_api::Backend::File, ..NewVolume::default() };
    let defaults = serde_json::to_value(Change::CreateVolume(defaults)).unwrap();
    become_("POST", "/api/v1/volumes", json!({"name": "a"}), defaults);
    for (method, path, body, expected) in CHANGES {
        let value = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
        become_(method, path, value(body), value(expected));
    }
    // The first account, the volume with defaults, and the others.
    let audit = server.audit(2 + CHANGES.len());
    assert!(
        audit.iter().any(|line| line["what"] == "add-user" && line["who"] == "root"),
        "{audit:?}"
    );
}

#[test]
fn a_refusal_has_the_code_and_the_words_of_the_server() {
    let server = start(Wanted::default());
    let login = server.begin();
    let refused = server.ask("DELETE", "/api/v1/volumes/busy").by(&login).send();
    assert_eq!(
        (refused.status, refused.header("content-type")),
        (409, Some("application/problem+json"))
    );
    assert_eq!(
        refused.json(),
        json!({"type": "urn:lunet:error:in-use", "title": "in use", "status": 409, "code": "in-use",
               "detail": "1 session sees volume busy: use --force", "message": "1 session sees volume busy", "fix": "use --force"})
    );
}

#[test]
fn the_same_key_gives_the_first_answer_again() {
    let server = start(Wanted::default());
    let login = server.begin();
    let (_, token) = server.token(&login, "operator", 600);
    let ask = server
        .ask("POST", "/api/v1/volumes")
        .json(&json!({"name": "a"}))
        .with("Idempotency-Key", "k 1");
    let first = ask.clone().by(&login).send();
    let second = ask.clone().by(&login).send();
    assert_eq!((first.status, second.status), (201, 201));
    assert_eq!(first.body, second.body);
    assert_eq!(server.fake.changes.lock().unwrap().len(), 1);
    // Whoever else has the same key has another one.
    assert_eq!(ask.clone().bearer(&token).send().status, 201);
    assert_eq!(server.fake.changes.lock().unwrap().len(), 2);
    let other = ask.clone().by(&login).json(&json!({"name": "b"})).send();
    assert_eq!((other.status, &other.json()["code"]), (422, &json!("invalid")));
    let elsewhere = server.ask("POST", "/api/v1/targets").by(&login).json(&json!({"name": "a"}));
    assert_eq!(elsewhere.with("Idempotency-Key", "k 1").send().status, 422);
    // A refusal is an answer, too.
    let busy =
        server.ask("DELETE", "/api/v1/volumes/busy").by(&login).with("Idempotency-Key", "k 2");
    let (first, second) = (busy.send(), busy.send());
    assert_eq!((first.status, second.status, first.body), (409, 409, second.body));
    assert_eq!(server.fake.changes.lock().unwrap().len(), 3);
}

/// Accounts, tokens and jobs are changes, too; a secret is not shown twice.
#[test]
fn what_the_interface_makes_itself_is_made_once_by_a_key() {
    let folder = tempfile::TempDir::new().unwrap();
    let program = folder.path().join("program");
    std::fs::write(&program, "#!/bin/sh\necho '{\"findings\":[]}'\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).unwrap();
    let server = start(Wanted { program: Some(program), ..Wanted::default() });
    let login = server.begin();
    let twice = |path: &str, key: &str, body: Value| {
        let ask = server.ask("POST", &format!("/api/v1/{path}")).by(&login).json(&body);
        let ask = ask.with("Idempotency-Key", key);
        (ask.send(), ask.send())
    };
    let (first, second) = twice("jobs", "j", json!({"kind": "doctor"}));
    assert_eq!((first.status, second.status), (202, 202));
    assert_eq!((&first.body, first.header("location")), (&second.body, second.header("location")));
    let account = json!({"name": "vera", "password": "their password", "role": "viewer"});
    let (first, second) = twice("accounts", "a", account);
    assert_eq!((first.status, second.status, &first.body), (201, 201, &second.body));
    let (first, second) = twice("tokens", "t", json!({"name": "root", "role": "administrator"}));
    assert_eq!((first.status, second.status), (201, 409));
    assert_eq!(second.json()["code"], "exists");
    assert_eq!(second.header("content-type"), Some("application/problem+json"));
    let made = first.json();
    let (id, token) = (made["id"].as_str().unwrap(), made["token"].as_str().unwrap());
    assert!(second.json()["message"].as_str().unwrap().contains(id), "{second:?}");
    let secret = token.rsplit('_').next().unwrap();
    assert!(!String::from_utf8_lossy(&second.body).contains(secret));
    let count = |path: &str| {
        let list = server.get(&format!("/api/v1/{path}")).by(&login).send().json();
        list.as_array().unwrap().len()
    };
    assert_eq!((count("jobs"), count("accounts"), count("tokens")), (1, 2, 1));
    let gone = server.ask("DELETE", &format!("/api/v1/tokens/{id}")).by(&login);
    let gone = gone.with("Idempotency-Key", "d");
    assert_eq!((gone.send().status, gone.send().status), (200, 200));
    assert_eq!((count("tokens"), server.audit(4).len()), (0, 4), "each is written down once");
}

/// An account, a token and another token have one name and use one key: each makes its own change.
#[test]
fn a_key_is_of_one_account_or_token_whatever_others_are_called() {
    let server = start(Wanted::default());
    let login = server.begin();
    let token = || {
        let body = json!({"name": "root", "role": "operator"});
        let made = server.ask("POST", "/api/v1/tokens").by(&login).json(&body).send().json();
        made["token"].as_str().unwrap().to_owned()
    };
    let ask = server.ask("POST", "/api/v1/volumes").json(&json!({"name": "a", "size": 512}));
    let ask = ask.with("Idempotency-Key", "k");
    for one in [ask.clone().by(&login), ask.clone().bearer(&token()), ask.clone().bearer(&token())]
    {
        assert_eq!((one.send().status, one.send().status), (201, 201));
    }
    assert_eq!(server.fake.changes.lock().unwrap().len(), 3);
}

#[test]
fn a_change_of_something_else_than_was_read_is_refused() {
    let server = start(Wanted::default());
    let login = server.begin();
    let read = || server.get("/api/v1/volumes/vm1").by(&login).send();
    let before = read().header("etag").unwrap().to_owned();
    assert_eq!(read().header("etag"), Some(before.as_str()));
    let grow = |size: u64, tag: &str| {
        let ask = server.ask("PATCH", "/api/v1/volumes/vm1").by(&login);
        ask.json(&json!({"size": size})).with("If-Match", tag).send().status
    };
    assert_eq!((grow(2 << 30, &before), grow(3 << 30, &before)), (200, 412));
    assert_eq!(*server.fake.size.lock().unwrap(), 2 << 30);
    let after = read().header("etag").unwrap().to_owned();
    assert_ne!(before, after);
    assert_eq!(grow(3 << 30, &format!("\"x\", {after}")), 200);
    assert_eq!(grow(4 << 30, "*"), 200);
    let gone = server.ask("PATCH", "/api/v1/volumes/none").by(&login).json(&json!({"size": 1}));
    assert_eq!(gone.with("If-Match", "*").send().status, 412);
    let untagged = server.ask("POST", "/api/v1/volumes").by(&login).json(&json!({"name": "a"}));
    assert_eq!(untagged.with("If-Match", "*").send().status, 400);

    let check = |text: &str| {
        let ask = server.ask("POST", "/api/v1/config/check").by(&login);
        ask.json(&json!({"text": text})).send()
    };
    assert_eq!((check("right").status, check("wrong").status), (200, 422));
    let (_, operator) = server.token(&login, "operator", 600);
    let names = json!({"text": "secret-file = '/etc/shadow'"});
    let ask = server.ask("POST", "/api/v1/config/check").json(&names);
    assert_eq!(
        (ask.clone().by(&login).send().status, ask.bearer(&operator).send().status),
        (200, 403)
    );
}

/// What was written is not in force yet, and overwritten by nobody who has not seen it.
#[test]
fn a_file_that_was_written_is_known_by_its_etag() {
    let server = start(Wanted::default());
    let login = server.begin();
    let get = || server.get("/api/v1/config").by(&login).send();
    let tag = || get().header("etag").unwrap().to_owned();
    let put = |tag: &str, text: &str| {
        let ask = server.ask("PUT", "/api/v1/config").by(&login).with("If-Match", tag);
        ask.json(&json!({"text": text})).send()
    };
    let apply = |tag: &str| {
        let ask = server.ask("POST", "/api/v1/config/apply").by(&login).with("If-Match", tag);
        ask.send().status
    };
    let before = tag();
    let (one, two) = ("[server]\nshards = 1\n", "[server]\nshards = 16\n");
    assert_eq!(put("\"x\"", one).status, 412);
    let written = put(&before, one);
    assert_eq!((written.status, put(&before, two).status), (200, 412));
    let shown = get().json();
    assert_eq!((&shown["text"], &shown["pending"]), (&json!("[server]\n"), &json!(one)));
    assert_eq!(written.header("etag"), Some(tag().as_str()));
    assert_eq!(put(written.header("etag").unwrap(), two).status, 200, "whoever has seen it");
    let stale = written.header("etag").unwrap();
    let dry = server.ask("POST", "/api/v1/config/apply?dry_run=true").by(&login);
    assert_eq!(dry.with("If-Match", stale).send().status, 200, "of what is in force, too");
    assert_eq!((apply("\"x\""), apply(&before)), (412, 200), "what was in force is known");
    assert_eq!(apply(stale), 412);
    assert_eq!(apply(&before), 412);
    assert_eq!((get().json()["text"].clone(), apply(&tag())), (json!(two), 200));
}

/// Several changes of one version at the same time: whoever comes first makes it another one.
#[test]
fn of_several_changes_of_one_version_one_is_made() {
    let server = start(Wanted::default());
    let login = server.begin();
    for (round, path) in (1..).zip(["/api/v1/volumes/vm1", "/api/v1/config"]) {
        let tag = server.get(path).by(&login).send().header("etag").unwrap().to_owned();
        // They wait at the first look at what they change, before any of them is made.
        server.fake.hang(true);
        let all = std::thread::scope(|scope| {
            let asked: Vec<_> = (0..5)
                .map(|n| {
                    let (method, body) = match round {
                        1 => ("PATCH", json!({"size": 4096 * (n + 1)})),
                        _ => ("PUT", json!({"text": format!("# {n}\n")})),
                    };
                    let ask = server.ask(method, path).by(&login).with("If-Match", &tag);
                    let ask = ask.json(&body);
                    scope.spawn(move || ask.send().status)
                })
                .collect();
            // As many as can wait there: all of them, or the first if the others wait for it.
            std::thread::sleep(std::time::Duration::from_millis(200));
            server.fake.hang(false);
            let mut all: Vec<_> = asked.into_iter().map(|one| one.join().unwrap()).collect();
            all.sort_unstable();
            all
        });
        assert_eq!(all, [200, 412, 412, 412, 412], "{path}");
    }
}

#[test]
fn a_dry_run_changes_nothing() {
    let server = start(Wanted::default());
    let login = server.begin();
    for (method, path) in [
        ("DELETE", "/api/v1/volumes/vm1?dry_run=true"),
        ("DELETE", "/api/v1/volumes/vm1?dry_run&force=true"),
        ("POST", "/api/v1/config/apply?dry_run=1"),
        ("DELETE", "/api/v1/sessions/9?dry_run=true"),
    ] {
        let reply = server.ask(method, path).by(&login).send();
        assert_eq!(
            (reply.status, &reply.json()["changes"][0]["what"]),
            (200, &json!("volume")),
            "{path}"
        );
    }
    let made =
        server.ask("POST", "/api/v1/volumes?dry_run=true").by(&login).json(&json!({"name": "a"}));
    assert_eq!(made.send().status, 200, "nothing is created");
    let unknown = server.ask("POST", "/api/v1/volumes/vm1/reopen?dry_run=true").by(&login).send();
    assert_eq!((unknown.status, &unknown.json()["code"]), (422, &json!("unsupported")));
    let tag = server
        .ask("PATCH", "/api/v1/volumes/vm1?dry_run=true")
        .by(&login)
        .with("If-Match", "\"x\"");
    assert_eq!(tag.json(&json!({"size": 1})).send().status, 412);
    assert!(server.fake.changes.lock().unwrap().is_empty());
    assert_eq!(server.audit(1).len(), 1, "only the first account");
}
