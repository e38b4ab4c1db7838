//! Programs of different versions: a newer command and an older server, and the other way round.
//!
//! `version-1` holds what a command of version 1 has asked, and what a server of version 1 has answered, line by line.

use std::fs;
use std::path::Path;

use lunet_api::{
    Answer, Call, Code, Configuration, Done, Error, FaultState, Portal, Preview, Reply, Request,
    Session, Snapshot, Stats, Target, Unread, VERSION, Volume, read_call, read_reply,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

type Map = serde_json::Map<String, Value>;

/// What was asked and answered.
fn captured(name: &str) -> (String, String) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/version-1/{name}.txt"));
    let text = fs::read_to_string(file).expect("what was captured");
    let (request, answer) = text.split_once('\n').expect("two lines");
    (request.to_owned(), answer.trim_end().to_owned())
}

fn value(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

fn read<T: DeserializeOwned>(answer: &Value) -> T {
    let outcome = read_reply::<T>(answer.to_string().as_bytes());
    outcome.unwrap_or_else(|error| panic!("{error:?}: {answer}")).expect("no error")
}

/// What is told of an error.
fn refused(answer: &str) -> Error {
    read_reply::<Value>(answer.as_bytes()).expect("an answer").expect_err("an error")
}

/// A value with one of its objects changed, each way that `change` knows; of a list, in its first entry.
fn variants(value: &Value, change: &dyn Fn(&Map) -> Vec<Map>) -> Vec<Value> {
    match value {
        Value::Object(fields) => {
            let mut out: Vec<Value> = change(fields).into_iter().map(Value::Object).collect();
            for (name, field) in fields {
                out.extend(variants(field, change).into_iter().map(|field| {
                    let mut fields = fields.clone();
                    fields.insert(name.clone(), field);
                    Value::Object(fields)
                }));
            }
            out
        }
        Value::Array(all) if !all.is_empty() => {
            let first = variants(&all[0], change).into_iter();
            let list = |first| [first].into_iter().chain(all[1..].iter().cloned()).collect();
            first.map(list).map(Value::Array).collect()
        }
        _ => Vec::new(),
    }
}

/// An answer of version 1 is read whole, and written as a server of version 1 would: by name and type, nothing has gone.
/// One of a newer or an older server is read as well.
fn keeps<T: DeserializeOwned + Serialize>(name: &str) {
    let (request, answer) = captured(name);
    let answer = value(&answer);
    let (client, asked) = read_call(request.as_bytes());
    let read_back: T = read(&answer);
    let written = Reply::to(client, Ok::<_, Error>(&read_back));
    assert_eq!(serde_json::to_value(written).expect("JSON"), answer, "{name}");

    let mut newer =
        value(&serde_json::to_string(&Call::new(&asked.expect("a request"))).expect("JSON"));
    assert_eq!(newer["api"], VERSION, "{name}");
    newer.as_object_mut().expect("an object").remove("api");
    assert_eq!(newer, value(&request), "{name}: version 1 must understand what this one asks");

    let more = |fields: &Map| {
        let mut fields = fields.clone();
        fields.insert("added-later".to_owned(), json!({ "x": [1] }));
        vec![fields]
    };
    let fewer = |fields: &Map| {
        let without = |name: &String| {
            let mut fields = fields.clone();
            fields.remove(name);
            fields
        };
        fields.keys().map(without).collect()
    };
    let mut seen = 0;
    for ok in variants(&answer["ok"], &more).into_iter().chain(variants(&answer["ok"], &fewer)) {
        let _: T = read(&json!({ "api": VERSION + 1, "ok": ok, "added-later": 1 }));
        seen += 1;
    }
    assert!(seen > 3, "{name}: {seen}");
}

#[test]
fn answers_of_version_1_are_kept() {
    keeps::<Vec<Session>>("sessions");
    keeps::<Stats>("stats");
    keeps::<Vec<Volume>>("volumes");
    keeps::<Vec<Target>>("targets");
    keeps::<Vec<Portal>>("portals");
    keeps::<Configuration>("config");
    keeps::<Done>("create-volume");
    keeps::<Done>("end-sessions");
    keeps::<Preview>("preview");
    let none: Vec<Snapshot> = read(&value(&captured("snapshots").1));
    assert!(none.is_empty());
}

#[test]
fn an_error_of_version_1_is_its_sentence() {
    let error = refused(&captured("exists").1);
    assert_eq!(error.code, Code::Failed, "it had no code");
    assert_eq!(error.to_string(), "there is a volume \"vm2\" already: choose another name");
    let error = refused(&captured("add-user").1);
    assert!(error.to_string().contains("was changed by hand"), "{error}");
    let error = refused("{\"error\":\"too many clients at once; try again\"}");
    assert_eq!(error.code, Code::TooManyClients);
}

#[test]
fn a_client_of_version_1_is_answered_as_it_expects() {
    let error = Error::new(Code::NotFound, "there is no volume \"a\"").fix("make one");
    let reply = serde_json::to_string(&Reply::to(1, Err::<Answer, _>(error.clone())));
    assert_eq!(reply.expect("JSON"), r#"{"error":"there is no volume \"a\": make one"}"#);
    let reply = serde_json::to_string(&Reply::to(1, Ok(Answer::Targets(Vec::new()))));
    assert_eq!(reply.expect("JSON"), r#"{"ok":[]}"#);
    // Whose version is not known is answered as if it were the first.
    let reply = serde_json::to_value(Reply::<Answer>::unread(error.clone())).expect("JSON");
    assert_eq!(reply["error"], error.to_string());

    let reply = serde_json::to_value(Reply::to(VERSION + 1, Err::<Answer, _>(error.clone())));
    let reply = reply.expect("JSON");
    assert_eq!((&reply["api"], &reply["error"]["code"]), (&json!(VERSION), &json!("not-found")));
    assert_eq!(refused(&reply.to_string()), error);
}

#[test]
fn a_newer_command_is_told_that_an_older_server_does_not_know_its_request() {
    // A server of version 1.
    for name in ["unknown-request", "unknown-change", "unknown-field", "later-change"] {
        let error = refused(&captured(name).1);
        assert_eq!(error.code, Code::OtherVersion, "{name}");
        let text = error.to_string();
        assert!(text.starts_with("the running lunet is older than this command"), "{text}");
    }
    // This one, which a command of the next version asks.
    let next = VERSION + 1;
    for request in [
        json!({ "api": next, "request": "subsystems" }),
        json!({ "api": next, "request": "change", "version": next, "change": { "do": "rename-volume", "to": "a" } }),
        json!({ "api": next, "request": "change", "version": 1,
                "change": { "do": "unmap", "target": "t", "lun": 1, "when_idle": true } }),
        json!({ "api": next, "request": "change", "version": next, "change": { "do": "unmap", "target": "t", "lun": 1 } }),
    ] {
        let (client, asked) = read_call(request.to_string().as_bytes());
        let error = asked.expect_err("it is not known");
        assert_eq!((client, &error.code), (next, &Code::OtherVersion), "{request}");
        let text = error.to_string();
        assert!(text.starts_with("the running lunet is older than this command"), "{text}");
        assert!(text.ends_with("use the `lunet` program that the server runs"), "{text}");
    }
    // What it has always known it answers.
    let request = json!({ "api": next, "request": "snapshots", "volume": "a", "sorted-by": "age" });
    let (_, asked) = read_call(request.to_string().as_bytes());
    assert_eq!(asked, Ok(Request::Snapshots { volume: Some("a".to_owned()) }));
}

#[test]
fn what_no_version_knows_is_no_request() {
    for line in [
        "",
        "hello",
        "[]",
        "{}",
        r#"{"request":"subsystems"}"#,
        r#"{"api":"x","request":"stats"}"#,
        r#"{"api":2,"request":"change","version":1,"change":{"do":"unmap","target":"t","lun":65536}}"#,
    ] {
        let error = read_call(line.as_bytes()).1.expect_err(line);
        assert_eq!(error.code, Code::BadRequest, "{line}");
        assert!(error.message.starts_with("this is no request"), "{line}: {error}");
    }
}

#[test]
fn an_answer_that_cannot_be_read_says_which_side_is_older() {
    let newer = json!({ "api": VERSION + 1, "ok": { "sessions": [] } });
    let Err(Unread::OtherVersion(error)) = read_reply::<Vec<Session>>(newer.to_string().as_bytes())
    else {
        panic!("it is of another version");
    };
    assert!(error.message.starts_with("this command is older than the running lunet"), "{error}");
    let older = json!({ "ok": { "sessions": [] } });
    let Err(Unread::OtherVersion(error)) = read_reply::<Vec<Session>>(older.to_string().as_bytes())
    else {
        panic!("it is of another version");
    };
    assert!(error.message.starts_with("the running lunet is older than this command"), "{error}");
    for strange in [r#"{"api":3,"ok":{"sessions":[]}}"#, "SSH-2.0", "{}", "[1]"] {
        let unread = read_reply::<Vec<Session>>(strange.as_bytes());
        assert!(matches!(unread, Err(Unread::Strange(_))), "{strange}: {unread:?}");
    }
}

#[test]
fn words_of_a_newer_server_are_kept() {
    let told = r#"[{"name":"a","backend":"rbd","faults":[{"state":"pool-full"}],"write_cache":"mirrored"}]"#;
    let volumes: Vec<Volume> = serde_json::from_str(told).expect("volumes");
    assert_eq!(volumes[0].backend.as_str(), "rbd");
    let again = serde_json::to_value(&volumes).expect("JSON");
    assert_eq!(again[0]["faults"][0]["state"], "pool-full");
    assert_eq!(again[0]["write_cache"], "mirrored");
    assert_eq!(FaultState::from("not-made"), FaultState::NotMade);
    let error =
        refused(r#"{"api":3,"error":{"code":"on-fire","message":"it burns","fix":"","since":1}}"#);
    assert_eq!((error.code.as_str(), error.to_string().as_str()), ("on-fire", "it burns"));
}

#[test]
fn every_code_is_documented() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api.md");
    let page = fs::read_to_string(page).expect("docs/api.md");
    let (_, table) = page.split_once("\n## Errors\n").expect("the errors");
    let rows = table.lines().skip_while(|line| !line.starts_with("|---"));
    let rows = rows.filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let known: Vec<&str> = Code::KNOWN.iter().map(Code::as_str).collect();
    assert_eq!(rows.collect::<Vec<_>>(), known);
}
