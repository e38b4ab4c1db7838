//! Failover groups: who may ask for what, what becomes an order, and that a shared configuration is replaced only as it is known.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::support::{Wanted, start};

const CONFIG: &str = "/api/v1/groups/vms/config";

#[test]
fn groups_are_read_and_orders_are_given_by_those_who_may() {
    let server = start(Wanted::default());
    let login = server.begin();
    let (_, operator) = server.token(&login, "operator", 60);
    let (_, viewer) = server.token(&login, "viewer", 60);
    let read = |path: &str| server.get(path).bearer(&viewer).send();
    assert_eq!(read("/api/v1/groups").json()[0]["owner"], 1);
    assert_eq!(read("/api/v1/groups/vms").json()["gateway"], 2);
    assert_eq!(read("/api/v1/groups/vms/gateways").json()[0]["gateway"], 1);
    for path in ["/api/v1/groups/x", "/api/v1/groups/x/gateways"] {
        assert_eq!(
            (read(path).status, read(path).json()["code"].clone()),
            (404, json!("not-found"))
        );
    }
    let order = |what: &str, token: &str, body: Value| {
        let ask = server.ask("POST", &format!("/api/v1/groups/vms/{what}")).bearer(token);
        ask.json(&body).send()
    };
    let to = |gateway: u16| json!({"gateway": gateway});
    assert_eq!(order("move", &viewer, to(1)).status, 403);
    assert_eq!(order("take-over", &operator, json!({})).status, 403);
    assert_eq!(order("move", &operator, to(0)).status, 422);
    assert_eq!(order("move", &operator, json!({"gateway": 1, "x": 2})).status, 400);
    assert!(server.fake.orders.lock().unwrap().is_empty());
    let moved = order("move", &operator, to(1));
    assert_eq!((moved.status, moved.json()["done"].clone()), (200, json!("move 1")));
    let absent = order("move", &operator, to(9));
    assert_eq!((absent.status, absent.json()["code"].clone()), (409, json!("not-served")));
    let taken = server.ask("POST", "/api/v1/groups/vms/take-over").by(&login).send();
    assert_eq!(taken.status, 200, "{taken:?}");
    let orders = server.fake.orders.lock().unwrap();
    assert_eq!(orders.len(), 3, "{orders:?}");
    assert!(orders[2].starts_with("take-over by "), "{orders:?}");
}

#[test]
fn an_order_is_carried_out_once_by_its_key() {
    let server = start(Wanted::default());
    let login = server.begin();
    let ask = || {
        let ask = server.ask("POST", "/api/v1/groups/vms/move").by(&login);
        ask.with("Idempotency-Key", "k").json(&json!({"gateway": 3})).send()
    };
    assert_eq!((ask().status, ask().status), (200, 200));
    assert_eq!(server.fake.orders.lock().unwrap().len(), 1);
}

#[test]
fn a_shared_configuration_is_replaced_only_as_it_is_known() {
    let server = start(Wanted::default());
    let login = server.begin();
    *server.fake.shared.lock().unwrap() = (7, "# 7\n".to_owned());
    let (_, viewer) = server.token(&login, "viewer", 60);
    let (_, operator) = server.token(&login, "operator", 60);
    assert_eq!(server.get(CONFIG).bearer(&viewer).send().status, 403);
    let read = server.get(CONFIG).bearer(&operator).send();
    assert_eq!(read.json(), json!({"revision": 7, "text": "# 7\n"}));
    let tag = read.header("etag").expect("a tag").to_owned();
    let write = |tag: &str, text: &str| {
        let ask = server.ask("PUT", CONFIG).by(&login).with("If-Match", tag);
        ask.json(&json!({"text": text, "force": true})).send()
    };
    let without = server.ask("PUT", CONFIG).by(&login).json(&json!({"text": "a"})).send();
    assert_eq!(without.status, 428);
    let by_operator = server.ask("PUT", CONFIG).bearer(&operator).with("If-Match", &tag);
    assert_eq!(by_operator.json(&json!({"text": "a"})).send().status, 403);
    assert_eq!(write("\"other\"", "a").status, 412);
    let wrong = write(&tag, "wrong");
    assert_eq!(
        (wrong.status, wrong.json()["message"].clone()),
        (422, json!("line 2: x: is no key"))
    );
    assert_eq!(server.fake.shared.lock().unwrap().0, 7);
    let done = write(&tag, "# 8\n");
    assert_eq!((done.status, done.json()["incomplete"].clone()), (200, json!(true)));
    assert_eq!(done.json()["done"], "force true");
    let next = done.header("etag").expect("a tag").to_owned();
    assert_ne!(next, tag);
    assert_eq!(write(&tag, "a").status, 412);
    // Another gateway writes between the look and the write: the cluster's comparison tells.
    server.fake.outpaced.store(true, Ordering::Release);
    let late = write(&next, "a");
    assert_eq!((late.status, late.json()["code"].clone()), (409, json!("changed-by-hand")));
    // Whatever it is.
    assert_eq!(write("*", "a").status, 200);
}
