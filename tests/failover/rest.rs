//! Orders, and what gateways share, by the REST interface and by commands that ask it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use lunet_e2e::ceph::cluster;
use lunet_e2e::process::{output, run};
use lunet_e2e::rest::{Page, Reply};
use lunet_e2e::server::lunet_binary;
use serde_json::{Value, json};

use crate::shared;
use crate::world::{PATIENCE, TARGET, alone, log_in, long, told, undisturbed, until};

/// REST, on a port that is free.
const CONTROL: &str = "[control]\nlisten = ['127.0.0.1:0']\n";

fn code(reply: &Reply) -> (u16, Value) {
    (reply.status, reply.json["code"].clone())
}

#[test]
fn a_group_is_moved_and_changed_by_rest_with_the_refusals_of_commands() -> Result<()> {
    let _cluster = undisturbed();
    let Some(ceph) = cluster() else { return Ok(()) };
    let (group, one, mut two) = shared::two_with(ceph, "rest", CONTROL)?;
    let mut page = Page::of(&mut two)?;
    page.begin()?;
    let seen = page.get("/api/v1/groups/vms")?;
    ensure!(seen["owner"] == 1 && seen["gateway"] == 2 && seen["shared"] == true, "{seen}");
    ensure!(seen["gateways"] == json!([1, 2, 3]) && seen["target"] == TARGET, "{seen}");
    ensure!(seen["volumes"][0]["image"] == "rbd://rbd/rest", "{seen}");
    ensure!(seen["protocols"][0]["access"] == "passes-on", "{seen}");
    let all = page.get("/api/v1/groups/vms/gateways")?;
    let states: Vec<_> = (0..3).map(|at| all[at]["state"].clone()).collect();
    ensure!(states == ["owner", "standby", "silent"], "{all}");
    ensure!(all[0]["config"] == 1 && all[1]["config"] == 1, "{all}");

    // What both share, by a command that asks this gateway from elsewhere.
    let token = group.path("token");
    fs::write(&token, page.token("admin", "administrator", 600)?)?;
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600))?;
    let remote = |words: &[&str]| -> Result<Command> {
        let mut command = Command::new(lunet_binary()?);
        command.arg("--server").arg(format!("http://{}", page.address));
        command.arg("--token-file").arg(&token).args(words);
        Ok(command)
    };
    let shown = output(&mut remote(&["group", "config", "vms"])?, PATIENCE)?;
    ensure!(shown == one.tell(&["group", "config", "vms"])?, "{shown}");
    let text = group.path("text.toml");
    fs::write(&text, shown.replace("'iqn.x:b'", "'iqn.x:c'"))?;
    let name = text.to_str().context("a path")?;
    let set = output(&mut remote(&["group", "config", "vms", "--set", name])?, PATIENCE)?;
    ensure!(set.contains("revision 2"), "{set}");
    let late = run(&mut remote(&["group", "config", "vms", "--set", name])?, PATIENCE)?;
    ensure!(late.stderr.contains("it has revision 2"), "{}", late.describe());
    drop(log_in(&one, "iqn.x:c")?);

    by_tag(&page, &shared::part(&group, "'iqn.x:a'"))?;
    orders(&page)?;
    ensure!(told(&two)?["state"] == "owner", "it has taken it");
    // Who was shut out comes back with another client, and is asked before it gets the group.
    until("it knows the owner", || Ok(told(&one)?["owner"] == 2))?;
    let back = output(&mut remote(&["group", "move", "vms", "1"])?, PATIENCE)?;
    ensure!(back.contains("gateway 1 owns group vms"), "{back}");

    // Who has ordered what.
    let audit = page.get("/api/v1/audit?limit=100")?.to_string();
    for what in ["move-group name=\\\"vms\\\" gateway=2", "take-over-group", "set-group-config"] {
        ensure!(audit.contains(what), "{what}: {audit}");
    }
    let metrics = page.ask("GET", "/metrics", &Value::Null)?;
    ensure!(metrics.status == 200, "no metrics");
    ensure!(page.get("/api/v1/groups/vms")?["takeovers"] == 2, "a move and a takeover");
    Ok(())
}

/// By REST itself: of the tag that was read, with the line of each mistake.
fn by_tag(page: &Page, text: &str) -> Result<()> {
    let config = "/api/v1/groups/vms/config";
    let read = page.ask("GET", config, &Value::Null)?;
    let tag = read.head.lines().find_map(|line| line.strip_prefix("etag: ")).context("no tag")?;
    let tag = format!("If-Match: {tag}\r\n");
    let put = |text: &str| page.ask_with("PUT", config, &json!({"text": text}), &tag);
    let wrong = put(&text.replace("['iqn.x:a']", "7"))?;
    ensure!(code(&wrong) == (422, json!("invalid")), "{}", wrong.json);
    let line = wrong.json["message"].as_str().is_some_and(|why| why.contains("line 7: "));
    ensure!(line, "{}", wrong.json);
    let done = put(text)?;
    ensure!(done.status == 200, "{}", done.json);
    let notes = done.json["notes"].to_string();
    ensure!(notes.contains("gateways that serve by it: 1, 2"), "{notes}");
    ensure!(code(&put(text)?) == (412, json!("changed")), "a tag of before");
    Ok(())
}

/// From the other gateway to this one, twice.
fn orders(page: &Page) -> Result<()> {
    let order =
        |what: &str, body: Value| page.ask("POST", &format!("/api/v1/groups/vms/{what}"), &body);
    let absent = order("move", json!({"gateway": 3}))?;
    ensure!(code(&absent) == (409, json!("not-served")), "{}", absent.json);
    let unknown = order("move", json!({"gateway": 9}))?;
    ensure!(code(&unknown) == (404, json!("not-found")), "{}", unknown.json);
    let moved = order("move", json!({"gateway": 2}))?;
    ensure!(moved.status == 200, "{}", moved.json);
    ensure!(page.get("/api/v1/groups/vms")?["state"] == "owner", "it is not the owner");
    ensure!(code(&order("take-over", json!({}))?) == (422, json!("unsupported")), "it owns it");
    let back = order("move", json!({"gateway": 1}))?;
    ensure!(back.status == 200, "{}", back.json);
    let taken = order("take-over", json!({}))?;
    ensure!(taken.status == 200, "{}", taken.json);
    Ok(())
}

#[test]
fn an_order_without_a_monitor_says_that_it_may_be_carried_out_later() -> Result<()> {
    if !long() {
        return Ok(());
    }
    let _cluster = alone();
    let Some(ceph) = cluster() else { return Ok(()) };
    let (_group, _one, two) = shared::two(ceph, "late")?;
    ceph.script(&["stop-mon"])?;
    let taken = two.command(&["group", "take-over", "vms"]);
    ceph.script(&["cont-mon"])?;
    let taken = taken?;
    ensure!(taken.stderr.contains("may still do so"), "{}", taken.describe());
    until("somebody owns it", || Ok(!told(&two)?["owner"].is_null()))
}
