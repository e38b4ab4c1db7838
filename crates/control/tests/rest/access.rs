//! Logins, accounts, tokens, and what is written down about them.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use lunet_control::{AuditEntry, Limits};
use serde_json::{Value, json};

use super::support::{Login, Server, Wanted, start, until};

fn login(server: &Server, name: &str, password: &str) -> super::support::Reply {
    server.ask("POST", "/api/v1/login").json(&json!({"name": name, "password": password})).send()
}

#[test]
fn the_first_account_takes_the_code_and_the_code_is_gone_then() {
    let server = start(Wanted::default());
    assert_eq!(server.get("/api/v1/first-start").send().json(), json!({"needed": true}));
    let code = server.control.as_ref().unwrap().code().unwrap();
    let first = |code: &str, password: &str| {
        let body = json!({"code": code, "name": "root", "password": password});
        server.ask("POST", "/api/v1/first-start").json(&body).send()
    };
    // The right code, and a password that is none: the code is still good.
    assert_eq!(first(&code, "short").status, 422);
    // Strangers guess, from the address that all have here: that takes the code from nobody, and fills no log.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let guess = || assert_eq!(first("AAAA-AAAA-AAAA", "a good password").status, 401);
            scope.spawn(move || (0..5).for_each(|_| guess()));
        }
    });
    assert_eq!(server.control.as_ref().unwrap().code().as_ref(), Some(&code));
    let done = first(&code.to_lowercase().replace('-', ""), "a good password");
    assert_eq!(done.status, 200, "{done:?}");
    let audit = server.audit(2);
    assert!(audit.len() <= 8, "{audit:?}");
    assert_eq!(audit.last().unwrap()["outcome"], "done: the first account is made");
    let cookie = done.header("set-cookie").unwrap();
    for word in ["lunet-", "; Path=/", "; HttpOnly", "; SameSite=Strict"] {
        assert!(cookie.contains(word), "{cookie}");
    }
    assert!(!cookie.contains("Secure"), "this is no TLS: {cookie}");
    assert_eq!(server.get("/api/v1/first-start").send().json(), json!({"needed": false}));
    assert_eq!(first(&code, "a good password").status, 409);
    let file = server.folder.path().join("control/accounts.json");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let folder = file.parent().unwrap().metadata().unwrap();
    assert_eq!(folder.permissions().mode() & 0o777, 0o700);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("$argon2id$") && !text.contains("a good password"), "{text}");
}

#[test]
fn accounts_outlive_the_server_and_sessions_do_not() {
    let mut server = start(Wanted::default());
    let first = server.begin();
    let (_, token) = server.token(&first, "viewer", 600);
    let other = start(Wanted::default()).begin();
    drop(server.control.take());
    let folder = std::mem::replace(&mut server.folder, tempfile::TempDir::new().unwrap());
    let server = start(Wanted { folder: Some(folder), ..Wanted::default() });
    let again = Login::of(&login(&server, "root", "a good password"));
    let name = |login: &Login| login.cookie.split_once('=').unwrap().0.to_owned();
    assert_eq!(name(&again), name(&first), "a browser keeps no cookie of before");
    // A browser sends it to every port of the host.
    assert_ne!(name(&other), name(&first), "two servers have one cookie");
    let both = format!("{}; {}", other.cookie, again.cookie);
    assert_eq!(server.get("/api/v1/me").with("Cookie", &both).send().status, 200);
    assert_eq!(server.control.as_ref().unwrap().code(), None);
    assert_eq!(server.get("/api/v1/me").by(&first).send().status, 401);
    assert_eq!(server.get("/api/v1/me").bearer(&token).send().json()["kind"], "token");
    assert_eq!(login(&server, "root", "a good password").status, 200);
}

#[test]
fn failed_logins_look_alike_are_written_down_and_make_the_next_ones_wait() {
    let server = start(Wanted::default());
    drop(server.begin());
    let wrong = login(&server, "root", "a wrong password");
    let nobody = login(&server, "nobody", "a good password");
    assert_eq!((wrong.status, nobody.status), (401, 401));
    assert_eq!(wrong.body, nobody.body);
    let mut waits = None;
    for _ in 0..6 {
        let reply = login(&server, "root", "a wrong password");
        if reply.status == 429 {
            waits = reply.header("retry-after").map(str::to_owned);
        }
    }
    assert!(waits.is_some_and(|seconds| seconds.parse::<u64>().unwrap() <= 61));
    let audit = server.audit(7);
    let refused: Vec<_> = audit.iter().filter(|line| line["what"] == "login").collect();
    assert!(refused.len() >= 5, "{audit:?}");
    for line in refused {
        assert_eq!(line["address"], "127.0.0.1");
        assert!(line["outcome"].as_str().unwrap().starts_with("refused"), "{line}");
    }
    let text = serde_json::to_string(&audit).unwrap();
    assert!(!text.contains("password\":") && !text.contains("a wrong"), "{text}");
}

/// Whoever has one account guesses at others no faster for it.
#[test]
fn a_login_that_succeeds_makes_up_for_none_of_others() {
    let server = start(Wanted::default());
    let root = server.begin();
    let body = json!({"name": "vera", "password": "their password", "role": "viewer"});
    assert_eq!(server.ask("POST", "/api/v1/accounts").by(&root).json(&body).send().status, 201);
    let held = (0..20).any(|_| {
        let guess = login(&server, "root", "a wrong password").status;
        assert!([401, 429].contains(&guess), "{guess}");
        assert_eq!(login(&server, "vera", "their password").status, 200);
        guess == 429
    });
    assert!(held, "twenty guesses from an address were taken");
}

/// Behind a tunnel all clients have one address.
#[test]
fn failures_with_other_names_keep_nobody_out_and_fill_no_log() {
    let server = start(Wanted::default());
    drop(server.begin());
    let wrong = login(&server, "root", "a wrong password").body;
    for n in 0..40 {
        let guess = login(&server, &format!("name{n}"), "a wrong password");
        assert_eq!((guess.status, &guess.body), (401, &wrong), "as if there were such an account");
    }
    let same = (0..20).map(|_| login(&server, "nobody", "a wrong password").status);
    assert!(same.into_iter().any(|status| status == 429), "a name that is none is held, too");
    assert_eq!(login(&server, "root", "a good password").status, 200);
    let audit = server.audit(4);
    assert!(audit.len() < 20, "{} lines", audit.len());
    assert_eq!(audit.last().unwrap()["outcome"], "done: logged in");
}

#[test]
fn the_tokens_of_an_account_end_with_it() {
    let server = start(Wanted::default());
    let root = server.begin();
    let add = |login: &Login, name: &str| {
        let body = json!({"name": name, "password": "their password", "role": "administrator"});
        server.ask("POST", "/api/v1/accounts").by(login).json(&body).send().status
    };
    assert_eq!(add(&root, "anna"), 201);
    let anna = Login::of(&login(&server, "anna", "their password"));
    let (_, own) = server.token(&root, "administrator", 600);
    let (_, hers) = server.token(&anna, "administrator", 600);
    let body = json!({"name": "second", "role": "viewer"});
    let made = server.ask("POST", "/api/v1/tokens").bearer(&hers).json(&body).send().json();
    let second = made["token"].as_str().unwrap().to_owned();
    let list = server.get("/api/v1/tokens").by(&root).send().json();
    let by: Vec<&str> =
        list.as_array().unwrap().iter().map(|one| one["by"].as_str().unwrap()).collect();
    assert_eq!(by, ["root", "anna", "t-administrator (token)"]);
    let status = |token: &str| server.get("/api/v1/me").bearer(token).send().status;
    assert_eq!((status(&own), status(&hers), status(&second)), (200, 200, 200));
    let gone = server.ask("DELETE", "/api/v1/accounts/anna").by(&root).send();
    let told = "account anna is gone, and 2 tokens that were made by it";
    assert_eq!(gone.json()["done"], told);
    assert_eq!((status(&own), status(&hers), status(&second)), (200, 401, 401));
    let audit = server.audit(7);
    assert_eq!(audit[6]["outcome"], format!("done: {told}"));
    // Another one of her name has nothing of hers.
    assert_eq!(add(&root, "anna"), 201);
    assert_eq!(server.get("/api/v1/me").by(&anna).send().status, 401);
}

/// The disk is full, or the log cannot be written for another reason.
#[test]
fn no_change_is_missing_in_the_audit_log() {
    let mut server = start(Wanted::default());
    let root = server.begin();
    let (_, viewer) = server.token(&root, "viewer", 600);
    let path = server.folder.path().join("control/audit.jsonl");
    drop(server.audit(2));
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let change = |server: &Server, n: usize| {
        let body = json!({"name": format!("v{n}"), "size": 512});
        server.ask("POST", "/api/v1/volumes").by(&root).json(&body).send()
    };
    assert_eq!(change(&server, 0).status, 201, "what can wait to be written may be done");
    let entry = AuditEntry { what: "by-hand".into(), ..AuditEntry::default() };
    for number in 1..=3000 {
        server.fake.notifier.record_numbered(number, entry.clone());
    }
    for _ in 0..3 {
        let refused = change(&server, 1);
        assert_eq!((refused.status, &refused.json()["code"]), (503, &json!("failed")));
        assert!(refused.header("retry-after").is_some());
    }
    let account = json!({"name": "a", "password": "a good password", "role": "viewer"});
    let refused = server.ask("POST", "/api/v1/accounts").by(&root).json(&account).send();
    assert_eq!(refused.status, 503, "{refused:?}");
    assert_eq!(server.fake.changes.lock().unwrap().len(), 1, "it was not made");
    // Who only looks is not concerned.
    assert_eq!(server.get("/api/v1/volumes").bearer(&viewer).send().status, 200);
    let dry = server.ask("DELETE", "/api/v1/volumes/vm1?dry_run=true").by(&root).send();
    assert_eq!(dry.status, 200);
    let written = Arc::clone(&server.written);
    assert_eq!(*written.lock().unwrap(), 0, "nothing is");
    std::fs::remove_dir(&path).unwrap();
    until(|| (*written.lock().unwrap() == 3000).then_some(()));
    let lines = server.audit(3001);
    assert_eq!(lines[0]["what"], "create-volume");
    assert!(lines[1..].iter().all(|line| line["what"] == "by-hand"));
    until(|| (change(&server, 1).status == 201).then_some(()));
    // What ends after the interface is written down as well, and so is what waits then.
    server.fake.notifier.record(entry.clone());
    drop(server.control.take());
    server.fake.notifier.record(entry);
    assert_eq!(server.audit(3004).len(), 3004);
}

/// Accounts, tokens, passwords and sessions are known to the interface alone.
#[test]
fn what_the_interface_does_itself_is_written_down_before_or_not_done() {
    let server = start(Wanted::default());
    let root = server.begin();
    let (id, token) = server.token(&root, "administrator", 600);
    let path = server.folder.path().join("control/audit.jsonl");
    let account = json!({"name": "eve", "password": "a good password", "role": "administrator"});
    let add = || server.ask("POST", "/api/v1/accounts").by(&root).json(&account).send();
    let all = || {
        let json = |path: &str| server.get(path).by(&root).send().json();
        (json("/api/v1/accounts"), json("/api/v1/tokens"))
    };
    let before = all();
    std::fs::rename(&path, path.with_extension("kept")).unwrap();
    std::fs::create_dir(&path).unwrap();
    let new = json!({"name": "t", "role": "administrator"});
    let password = json!({"password": "another password"});
    for ask in [
        server.ask("POST", "/api/v1/accounts").json(&account),
        server.ask("POST", "/api/v1/tokens").json(&new),
        server.ask("PUT", "/api/v1/accounts/root/password").json(&password),
        server.ask("DELETE", &format!("/api/v1/tokens/{id}")),
        server.ask("POST", "/api/v1/jobs").json(&json!({"kind": "tune-rollback"})),
    ] {
        let refused = ask.by(&root).send();
        assert_eq!((refused.status, &refused.json()["code"]), (503, &json!("failed")));
    }
    assert_eq!(login(&server, "root", "a good password").status, 503);
    assert_eq!(all(), before);
    assert_eq!(server.get("/api/v1/me").bearer(&token).send().status, 200);
    std::fs::remove_dir(&path).unwrap();
    assert_eq!(add().status, 201);
    // It is there by now.
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("done: account eve is created"), "{text}");
    assert_eq!(login(&server, "root", "a good password").status, 200);
    assert!(std::fs::read_to_string(&path).unwrap().ends_with("\"done: logged in\"}\n"));
}

#[test]
fn viewers_see_neither_where_secrets_are_nor_how_the_kernel_was_started() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("program");
    let facts =
        r#"{"cpu": 2, "cmdline": {"a": "b"}, "platform": {"kernel": "6", "cmdline_text": "a=b"}}"#;
    std::fs::write(&path, format!("#!/bin/sh\necho '{facts}'\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let server = start(Wanted { program: Some(path), ..Wanted::default() });
    let root = server.begin();
    let token = |role: &str| server.token(&root, role, 600).1;
    let (viewer, operator) = (token("viewer"), token("operator"));
    let get = |path: &str, token: &str| server.get(path).bearer(token).send().json();
    let file = "/etc/lunet/secret";
    assert_eq!(get("/api/v1/targets", &viewer)[0]["users"][0]["file"], json!(null));
    assert_eq!(get("/api/v1/targets/iqn.a:x", &viewer)["users"][0]["file"], json!(null));
    assert_eq!(get("/api/v1/targets", &operator)[0]["users"][0]["file"], file);
    assert_eq!(get("/api/v1/targets/iqn.a:x", &operator)["users"][0]["file"], file);
    // Whoever is the first to ask.
    let hidden = json!({"cpu": 2, "platform": {"kernel": "6"}});
    assert_eq!(get("/api/v1/facts", &viewer), hidden);
    assert_eq!(get("/api/v1/facts", &operator), serde_json::from_str::<Value>(facts).unwrap());
    assert_eq!(get("/api/v1/facts", &viewer), hidden);
}

#[test]
fn nobody_ends_the_sessions_of_others_or_keeps_them_out() {
    let server = start(Wanted::default());
    let root = server.begin();
    let body = json!({"name": "vera", "password": "their password", "role": "viewer"});
    assert_eq!(server.ask("POST", "/api/v1/accounts").by(&root).json(&body).send().status, 201);
    let first = Login::of(&login(&server, "vera", "their password"));
    for _ in 0..20 {
        assert_eq!(login(&server, "vera", "their password").status, 200);
    }
    assert_eq!(server.get("/api/v1/me").by(&first).send().status, 401, "the oldest of 16");
    assert_eq!(server.get("/api/v1/me").by(&root).send().status, 200);
    // What is refused to strangers after the first start is not written down.
    for _ in 0..5 {
        let body = json!({"code": "AAAA-AAAA", "name": "x", "password": "a good password"});
        assert_eq!(server.ask("POST", "/api/v1/first-start").json(&body).send().status, 409);
    }
    let tell = json!({"name": "mia", "password": "their password", "role": "viewer"});
    assert_eq!(server.ask("POST", "/api/v1/accounts").by(&root).json(&tell).send().status, 201);
    // The first start, two accounts, 21 logins: lines are written in order.
    let audit = server.audit(24);
    assert_eq!(audit.len(), 24, "{audit:?}");
    assert!(audit[23]["what"].as_str().unwrap().contains("mia"), "{}", audit[23]);
}

#[test]
fn operators_name_no_files_and_let_nobody_in_but_by_name() {
    let server = start(Wanted::default());
    let root = server.begin();
    let (operator, admin) =
        (server.token(&root, "operator", 600).1, server.token(&root, "administrator", 600).1);
    let status = |path: &str, token: &str, body: Value| {
        server.ask("POST", path).bearer(token).json(&body).send().status
    };
    for body in [
        json!({"name": "a", "path": "lunet.toml"}),
        json!({"name": "a", "path": "control/audit.jsonl", "size": 512}),
        json!({"name": "a", "backend": "block"}),
        json!({"name": "a", "size": 512, "naa": "6024c4e0000000000000000000000001"}),
    ] {
        assert_eq!(status("/api/v1/volumes", &operator, body.clone()), 403, "{body}");
        assert_eq!(status("/api/v1/volumes", &admin, body.clone()), 201, "{body}");
    }
    assert_eq!(status("/api/v1/volumes", &operator, json!({"name": "a", "size": 512})), 201);
    for everybody in ["*", "iqn.*", "0.0.0.0/0", "::/0", "0.0.0.0/00", "::/00", "1.2.3.4/1"] {
        let body = json!({"initiators": ["iqn.b:y", everybody]});
        assert_eq!(status("/api/v1/targets/iqn.a:x/initiators", &operator, body.clone()), 403);
        assert_eq!(status("/api/v1/targets/iqn.a:x/initiators", &admin, body), 200);
    }
    let path = "/api/v1/targets/iqn.a:x/initiators";
    let halves = json!({"initiators": ["0.0.0.0/2", "64.0.0.0/2"]});
    assert_eq!(status(path, &operator, halves), 403);
    // One after the other.
    let quarter = json!({"initiators": ["0.0.0.0/2"]});
    assert_eq!(status(path, &operator, quarter), 200);
    *server.fake.initiators.lock().unwrap() = Some("all from 0.0.0.0/2".into());
    let other = json!({"initiators": ["64.0.0.0/2"]});
    assert_eq!(status(&format!("{path}?dry_run=true"), &operator, other.clone()), 403);
    assert_eq!(status(path, &operator, other.clone()), 403);
    assert_eq!(status(path, &admin, other), 200);
    *server.fake.initiators.lock().unwrap() = Some("iqn.b:y, coming from 0.0.0.0/0".into());
    let remove =
        |token: &str| server.ask("DELETE", &format!("{path}/iqn.b:y")).bearer(token).send().status;
    assert_eq!((remove(&operator), remove(&admin)), (403, 200));
    let twice = server.ask("POST", "/api/v1/volumes?dry_run=false&dry_run=true").bearer(&operator);
    assert_eq!(twice.json(&json!({"name": "a", "size": 512})).send().status, 400);
}

#[test]
fn accounts_have_roles_that_change_at_once_and_the_last_administrator_stays() {
    let server = start(Wanted::default());
    let root = server.begin();
    let add = |name: &str, role: &str| {
        let body = json!({"name": name, "password": "their password", "role": role});
        server.ask("POST", "/api/v1/accounts").by(&root).json(&body).send().status
    };
    assert_eq!((add("vera", "viewer"), add("vera", "viewer")), (201, 409));
    let vera = Login::of(&login(&server, "vera", "their password"));
    let me = server.get("/api/v1/me").by(&vera).send().json();
    assert_eq!(
        (&me["name"], &me["role"], &me["kind"]),
        (&json!("vera"), &json!("viewer"), &json!("session"))
    );
    assert_eq!(me["csrf"], vera.csrf.as_str());
    let set = |by: &Login, name: &str, body: serde_json::Value| {
        let path = format!("/api/v1/accounts/{name}/password");
        server.ask("PUT", &path).by(by).json(&body).send().status
    };
    assert_eq!(set(&vera, "root", json!({"password": "taken over"})), 403);
    assert_eq!(
        set(&vera, "vera", json!({"password": "another one"})),
        403,
        "the old one is missing"
    );
    assert_eq!(set(&vera, "vera", json!({"password": "another one", "current": "wrong"})), 403);
    let other = Login::of(&login(&server, "vera", "their password"));
    assert_eq!(
        set(&vera, "vera", json!({"password": "another one", "current": "their password"})),
        200
    );
    assert_eq!(server.get("/api/v1/me").by(&vera).send().status, 200);
    assert_eq!(server.get("/api/v1/me").by(&other).send().status, 401, "the other session ends");
    let delete = |name: &str| {
        let ask = server.ask("DELETE", &format!("/api/v1/accounts/{name}")).by(&root);
        ask.send()
    };
    assert_eq!(delete("root").json()["code"], "last-one");
    assert_eq!((delete("vera").status, delete("vera").status), (200, 404));
    assert_eq!(server.get("/api/v1/me").by(&vera).send().status, 401);
    let all = server.get("/api/v1/accounts").by(&root).send();
    assert_eq!(all.json().as_array().unwrap().len(), 1);
    assert!(!String::from_utf8_lossy(&all.body).contains("argon2"), "hashes are not shown");
}

#[test]
fn tokens_are_shown_once_and_listed_with_their_last_use() {
    let server = start(Wanted::default());
    let root = server.begin();
    let (id, token) = server.token(&root, "viewer", 600);
    let list = || server.get("/api/v1/tokens").by(&root).send();
    let shown = list();
    assert_eq!(shown.json()[0]["last_used"], json!(null));
    let secret = token.rsplit('_').next().unwrap();
    assert!(!String::from_utf8_lossy(&shown.body).contains(secret));
    let file = std::fs::read_to_string(server.folder.path().join("control/accounts.json")).unwrap();
    assert!(!file.contains(secret));
    assert_eq!(server.get("/api/v1/stats").bearer(&token).send().status, 200);
    let used = list().json();
    assert_eq!((&used[0]["id"], &used[0]["by"]), (&json!(id), &json!("root")));
    assert!(used[0]["last_used"].as_u64().unwrap() > 1_600_000_000);
    let made = server.audit(2);
    assert!(made[1]["what"].as_str().unwrap().starts_with("create-token"), "{made:?}");
}

#[test]
fn a_session_that_is_not_used_ends() {
    let limits = Limits { idle: Duration::from_millis(300), ..Limits::default() };
    let server = start(Wanted { limits, ..Wanted::default() });
    let root = server.begin();
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(100));
        // Each use counts, unless this machine was held up.
        if server.get("/api/v1/me").by(&root).send().status == 401 {
            return;
        }
    }
    std::thread::sleep(Duration::from_millis(350));
    assert_eq!(server.get("/api/v1/me").by(&root).send().status, 401);
}

#[test]
fn every_answer_has_the_headers_that_protect_a_browser() {
    let server = start(Wanted::default());
    let root = server.begin();
    for (path, status) in [
        ("/", 200),
        ("/healthz", 200),
        ("/api/v1/volumes", 200),
        ("/nothing", 404),
        ("/api/v1/accounts", 200),
    ] {
        let reply = server.get(path).by(&root).send();
        assert_eq!(reply.status, status, "{path}");
        let policy = reply.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(reply.header("referrer-policy"), Some("no-referrer"));
        assert_eq!(reply.header("cross-origin-opener-policy"), Some("same-origin"));
        assert_eq!(reply.header("cross-origin-resource-policy"), Some("same-origin"));
        let kept = if path == "/" { "no-cache" } else { "no-store" };
        assert_eq!(reply.header("cache-control"), Some(kept), "{path}");
    }
    let refused = server.get("/healthz").with("Host", "evil.example").send();
    assert!(refused.header("content-security-policy").is_some());
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    let page = server.get("/").send();
    let again = server.get("/").with("If-None-Match", page.header("etag").unwrap()).send();
    assert_eq!(again.status, 304);
}
