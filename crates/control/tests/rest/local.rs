//! Unix sockets: whoever may use one has its role, without a token.

use lunet_control::Role;
use serde_json::{Value, json};

use super::support::{Server, Wanted, start};

const SOCKETS: &[(&str, Role)] = &[("read", Role::Viewer), ("admin", Role::Administrator)];

fn served() -> Server {
    start(Wanted { local: SOCKETS, ..Wanted::default() })
}

#[test]
fn who_may_use_a_socket_has_its_role_and_is_named_in_the_audit_log() {
    let server = served();
    let (read, admin) = (server.folder.path().join("read"), server.folder.path().join("admin"));
    let ask = |method: &str, path: &str| server.ask(method, path).with("Host", "localhost");
    let uid =
        std::fs::metadata(&read).map(|found| std::os::unix::fs::MetadataExt::uid(&found)).unwrap();
    let me = ask("GET", "/api/v1/me").send_to(&read).json();
    let name = format!("user{uid}");
    assert_eq!(me, json!({"name": name, "role": "viewer", "csrf": null, "kind": "peer"}));
    let volume = ask("POST", "/api/v1/volumes").json(&json!({"name": "a"}));
    let refused = volume.send_to(&read);
    assert_eq!((refused.status, &refused.json()["code"]), (403, &json!("forbidden")));
    assert_eq!(ask("GET", "/api/v1/audit").send_to(&read).status, 403);
    assert_eq!(volume.send_to(&admin).status, 201);
    let account = json!({"name": "anna", "password": "their password", "role": "administrator"});
    let made = ask("POST", "/api/v1/accounts").json(&account).send_to(&admin);
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!(server.get("/api/v1/first-start").send().json(), json!({"needed": false}));
    for line in server.audit(2) {
        assert_eq!(line["who"], format!("{name} (uid {uid})"), "{line}");
        assert_eq!(line["address"], Value::Null, "{line}");
    }
    // Over the network nobody is anybody by that.
    assert_eq!(server.get("/api/v1/me").send().status, 401);
}

#[test]
fn a_socket_is_no_way_around_names_origins_and_tokens() {
    let server = served();
    let login = server.begin();
    let admin = server.folder.path().join("admin");
    let ask = server.get("/api/v1/me").with("Host", "localhost");
    assert_eq!(ask.clone().with("Host", "evil.example").send_to(&admin).status, 403);
    assert_eq!(ask.clone().with("Origin", "http://evil.example").send_to(&admin).status, 403);
    let (_, viewer) = server.token(&login, "viewer", 600);
    let by_token = ask.clone().bearer(&viewer).send_to(&admin).json();
    assert_eq!((&by_token["role"], &by_token["kind"]), (&json!("viewer"), &json!("token")));
    assert_eq!(ask.clone().bearer("lunet_x_y").send_to(&admin).status, 401);
    let by_session = ask.clone().by(&login).send_to(&admin).json();
    assert_eq!(by_session["kind"], "session");
    assert_eq!(ask.with("Cookie", &format!("{}0", login.cookie)).send_to(&admin).status, 401);
}
