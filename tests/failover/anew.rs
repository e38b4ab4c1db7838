//! A record that is deleted, and made anew, while gateways of before run; and what an owner says of its standbys.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use lunet_e2e::ceph::cluster;
use lunet_e2e::process::output;
use lunet_e2e::server::{Server, lunet_binary};
use lunet_e2e::wire::scsi::{read16, write16};

use crate::world::{
    BLOCK, GOOD, Group, PATIENCE, ask, becomes, have, insist, log_in, says, told, two_through,
    undisturbed, until, write_all,
};

/// Deletes the record of a group.
fn delete(group: &Group<'_>) -> Result<()> {
    let object = format!("lunet.group.{}", group.name);
    group.ceph.rados(&["-p", "rbd", "rm", &object]).map(drop)
}

/// Makes it anew, by the command for it.
fn make(group: &Group<'_>) -> Result<()> {
    let mut create = Command::new(lunet_binary()?);
    create.args(["group", "create", "vms", "--gateways", "3", "--config"]);
    output(create.arg(group.path("lunet.toml")), PATIENCE).map(drop)
}

/// A gateway that has lost its record says what to do, and nothing else.
fn is_orphaned(server: &Server, words: &str) -> Result<()> {
    let why = says(server, words)?;
    ensure!(why.contains("restart lunet on this gateway"), "{why}");
    let group = told(server)?;
    ensure!(group["notices"].as_array().is_some_and(|all| all.len() == 1), "{group}");
    ensure!(group["state"] == "fenced" && group["owner"].is_null(), "{group}");
    ensure!(group["epoch"] == 0 && group["gateways"] == serde_json::json!([]), "{group}");
    for order in [&["group", "take-over", "vms"][..], &["group", "move", "vms", "1"]] {
        let refused = server.refuses(order)?;
        ensure!(refused.contains("restart lunet on this gateway"), "{refused}");
    }
    Ok(())
}

#[test]
fn a_group_that_is_made_anew_is_left_alone_by_gateways_of_before() -> Result<()> {
    let _cluster = undisturbed();
    let Some((group, one, two)) = two_through("orphans")? else { return Ok(()) };
    // The record of before has come to a higher epoch than the new one will have.
    for _ in 0..2 {
        two.tell(&["group", "move", "vms", "2"])?;
        one.tell(&["group", "move", "vms", "1"])?;
    }
    let mut host = log_in(&one, "iqn.x:a")?;
    write_all(&mut host, 3)?;
    one.stop()?;
    delete(&group)?;
    is_orphaned(&two, "the record of the group was deleted while lunet ran here")?;
    make(&group)?;
    let one = group.serve(1)?;
    becomes(&one, "owner")?;
    let epoch = told(&one)?["epoch"].clone();
    // Three times as long as it took a gateway of before to depose it.
    let mut host = log_in(&one, "iqn.x:a")?;
    have(&mut host, 3)?;
    for salt in 0..20 {
        sleep(Duration::from_secs(1));
        write_all(&mut host, salt)?;
    }
    let group_now = told(&one)?;
    ensure!(group_now["epoch"] == epoch && group_now["deposed"] == 0, "{group_now}");
    is_orphaned(&two, "the record of the group was deleted while lunet ran here")?;
    // Nothing is executed by way of it.
    let mut other = log_in(&two, "iqn.x:b")?;
    let refused = ask(&mut other, &write16(0, 1), 0, &[7; BLOCK])?;
    ensure!(refused.status != GOOD, "{refused:02x?}");
    have(&mut host, 19)?;
    two.stop()?;
    let two = group.serve(2)?;
    becomes(&two, "standby")?;
    let mut other = log_in(&two, "iqn.x:b")?;
    have(&mut other, 19)
}

#[test]
fn an_owner_whose_record_is_deleted_stops_and_says_so() -> Result<()> {
    let _cluster = undisturbed();
    let Some((group, one, two)) = two_through("deleted")? else { return Ok(()) };
    let mut host = log_in(&one, "iqn.x:a")?;
    write_all(&mut host, 5)?;
    delete(&group)?;
    for server in [&one, &two] {
        is_orphaned(server, "the record of the group was deleted while lunet ran here")?;
    }
    ensure!(told(&one)?["deposed"] == 1, "its connections were not reset");
    let mut host = log_in(&one, "iqn.x:a")?;
    let refused = ask(&mut host, &read16(0, 1), BLOCK, &[])?;
    ensure!(refused.status != GOOD, "{refused:02x?}");
    Ok(())
}

#[test]
fn an_owner_says_that_no_standby_is_there_and_a_standby_that_its_owner_is_not_reached() -> Result<()>
{
    let _cluster = undisturbed();
    let Some(ceph) = cluster() else { return Ok(()) };
    let group = Group::with(ceph, "alone", true)?;
    let reach = group.config(1, "", "reach = '127.0.0.1:1'");
    let one = group.configured(1, reach).start()?;
    becomes(&one, "owner")?;
    let why = says(&one, "no standby is there")?;
    ensure!(why.contains("gateways 2 or 3"), "{why}");
    let two = group.serve(2)?;
    becomes(&two, "standby")?;
    until("it knows of a standby", || Ok(told(&one)?["trouble"].is_null()))?;
    let mut host = log_in(&two, "iqn.x:a")?;
    until("the owner is not reached", || {
        drop(ask(&mut host, &read16(0, 1), BLOCK, &[])?);
        Ok(!told(&two)?["trouble"].is_null())
    })?;
    let why = says(&two, "gateway 1, which owns the group, was not reached at 127.0.0.1:1")?;
    ensure!(why.contains("`reach`"), "{why}");
    // What was in the way is gone when there is another owner.
    two.tell(&["group", "take-over", "vms"])?;
    becomes(&one, "standby")?;
    until("nothing is wrong", || {
        Ok(told(&one)?["trouble"].is_null() && told(&two)?["trouble"].is_null())
    })?;
    insist(&mut host, &read16(0, 1), BLOCK, &[])?;
    one.kill()?;
    let why = says(&two, "no standby is there")?;
    ensure!(why.contains("gateways 1 or 3"), "{why}");
    Ok(())
}
