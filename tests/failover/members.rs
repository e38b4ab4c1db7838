//! What a group may have, and who is a gateway of it.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, anyhow, ensure};
use lunet_e2e::ceph::cluster;
use lunet_e2e::process::run;
use lunet_e2e::server::{Serve, Server, lunet_binary};
use lunet_e2e::wire::scsi::{read16, write16};
use lunet_e2e::wire::{Answer, Session};
use lunet_rbd::{Image, ImageName, Place};
use rustix::process::Signal;

use crate::shared::{part, two};
use crate::world::{
    BLOCK, GOOD, Group, PATIENCE, RTPG, ask, becomes, have, identity, insist, lba, log_in, pattern,
    says, signal, told, undisturbed, until, write_all,
};

/// REPORT LUNS.
const REPORT_LUNS: [u8; 12] = [0xA0, 0, 0, 0, 0, 0, 0, 0, 0, 128, 0, 0];

/// The LUNs that a session sees.
fn luns(session: &mut Session) -> Result<Vec<u8>> {
    let data = ask(session, &REPORT_LUNS, 128, &[])?.data;
    Ok(data.get(8..).context("a list")?.chunks_exact(8).map(|lun| lun[1]).collect())
}

/// The answer to a command at LUN 3, when there is one other than unit attentions and that it is to be tried again.
fn on_it(session: &mut Session, cdb: &[u8], expected: usize, data: &[u8]) -> Result<Answer> {
    let mut last = None;
    until("the new LUN answers", || {
        let answer = session.execute(3, cdb, expected, data)?;
        let good = answer.status == GOOD;
        last = Some(answer);
        Ok(good)
    })?;
    last.context("an answer")
}

/// Replaces what the gateways share.
fn set(server: &Server, group: &Group<'_>, text: &str) -> Result<String> {
    let file = group.path("text.toml");
    fs::write(&file, text)?;
    server.tell(&["group", "config", "vms", "--set", file.to_str().context("a path")?])
}

/// What they share with a second volume, at that LUN.
fn with_another(group: &Group<'_>, image: &str, lun: u16) -> String {
    let luns = format!("luns = {{ 0 = 'a', {lun} = 'b' }}");
    let volume = format!("[volumes.b]\nbackend = 'rbd'\nimage = 'rbd://rbd/{image}'\n");
    volume + &part(group, "'iqn.x:a', 'iqn.x:b'").replace("luns = ['a']", &luns)
}

#[test]
fn a_group_gets_a_volume_and_loses_it_while_it_serves() -> Result<()> {
    let _cluster = undisturbed();
    let Some(ceph) = cluster() else { return Ok(()) };
    let (group, one, other) = two(ceph, "grows")?;
    let mut session = log_in(&one, "iqn.x:a")?;
    write_all(&mut session, 1)?;
    let known = identity(&mut session)?;
    let before = part(&group, "'iqn.x:a', 'iqn.x:b'");
    // An image that is not there, and one that somebody uses.
    let refusal = {
        let file = group.path("text.toml");
        fs::write(&file, with_another(&group, "nowhere", 3))?;
        other.refuses(&["group", "config", "vms", "--set", file.to_str().context("a path")?])?
    };
    ensure!(refusal.contains("nowhere"), "{refusal}");
    ceph.shared_image("grows2", 64)?;
    // Through the standby; the LUN need not be the next one.
    set(&other, &group, &with_another(&group, "grows2", 3))?;
    for server in [&one, &other] {
        let mut fresh = log_in(server, "iqn.x:b")?;
        until("the new LUN", || Ok(luns(&mut fresh)? == [0, 3]))?;
    }
    let mut fresh = log_in(&one, "iqn.x:b")?;
    on_it(&mut fresh, &write16(lba(0), 1), 0, &pattern(5))?;
    // What was there has stayed what it was, over sessions that have stayed too.
    ensure!(identity(&mut session)? == known, "volume a is another one");
    have(&mut session, 1)?;
    until("the owner serves", || Ok(told(&one)?["state"] == "owner"))?;
    // It survives a takeover, and leaves again.
    other.tell(&["group", "take-over", "vms"])?;
    becomes(&other, "owner")?;
    // Until then it can change nothing.
    becomes(&one, "standby")?;
    let mut fresh = log_in(&other, "iqn.x:b")?;
    until("the new LUN", || Ok(luns(&mut fresh)? == [0, 3]))?;
    ensure!(on_it(&mut fresh, &read16(lba(0), 1), BLOCK, &[])?.data == pattern(5), "other data");
    set(&one, &group, &before)?;
    for server in [&one, &other] {
        let mut fresh = log_in(server, "iqn.x:b")?;
        until("the LUN has gone", || Ok(luns(&mut fresh)? == [0]))?;
    }
    have(&mut log_in(&other, "iqn.x:a")?, 1)?;
    // Nobody has it any more: another client gets its lock.
    until("the image is free", || Ok(ceph.rbd(&["lock", "ls", "grows2"])?.is_empty()))
}

#[test]
fn an_image_that_somebody_else_uses_is_nobodys_to_take() -> Result<()> {
    let _cluster = undisturbed();
    let Some(ceph) = cluster() else { return Ok(()) };
    let group = Group::new(ceph, "foreign")?;
    // As a virtual machine has it, and holds on to it.
    let name = ImageName::parse("rbd://rbd/foreign").map_err(|error| anyhow!("{error}"))?;
    let user = Some("gateway".to_owned());
    let guest = Image::open(&Place { conf: Some(ceph.conf()), user, ..Place::new(name) })?;
    let one = group.serve(1)?;
    let why = says(&one, "which is no gateway of it")?;
    let address = why.split("the client ").nth(1).and_then(|rest| rest.split(',').next());
    let address = address.context("an address")?;
    ensure!(!ceph.ceph(&["osd", "blocklist", "ls"])?.contains(address), "{why}");
    let refusal = one.refuses(&["group", "take-over", "vms"]);
    guest.flush().map_err(|errno| anyhow!("its flush failed with {errno}"))?;
    ensure!(guest.is_locked(), "it has lost its lock");
    drop(refusal);
    // A second group with that image is not made either.
    let other = group.path("other.toml");
    fs::write(
        &other,
        group
            .config(1, "", "")
            .replace("record = 'rbd://rbd/foreign'", "record = 'rbd://rbd/foreign2'"),
    )?;
    let mut create = Command::new(lunet_binary()?);
    create.args(["group", "create", "vms", "--gateways", "3", "--config"]).arg(&other);
    let made = run(&mut create, PATIENCE)?;
    ensure!(made.stderr.contains("is in use by the client"), "{}", made.describe());
    // When it has ended, an order is enough.
    drop(guest);
    until("it is taken over", || {
        drop(one.command(&["group", "take-over", "vms"])?);
        Ok(told(&one)?["state"] == "owner")
    })
}

#[test]
fn another_image_by_the_same_name_is_not_served() -> Result<()> {
    let _cluster = undisturbed();
    let Some((group, one, other)) = crate::world::two("swapped")? else { return Ok(()) };
    let ceph = group.ceph;
    write_all(&mut log_in(&one, "iqn.x:a")?, 4)?;
    ceph.rbd(&["rename", "swapped", "swapped-before"])?;
    ceph.shared_image("swapped", 64)?;
    // It opens the images anew.
    other.stop()?;
    let other = group.serve(2)?;
    says(&other, "another image has got its name")?;
    let refusal = one.refuses(&["group", "move", "vms", "2"])?;
    ensure!(refusal.contains("does not answer"), "{refusal}");
    have(&mut log_in(&one, "iqn.x:a")?, 4)?;
    ceph.rbd(&["rename", "swapped", "swapped-after"])?;
    ceph.rbd(&["rename", "swapped-before", "swapped"])?;
    becomes(&other, "standby")
}

/// The target port groups that a session hears of.
fn port_groups(session: &mut Session) -> Result<Vec<u8>> {
    let data = ask(session, &RTPG, 255, &[])?.data;
    let mut rest = data.get(4..).context("a list")?;
    let mut groups = Vec::new();
    while let [_, _, _, group, _, _, _, ports, ..] = *rest {
        groups.push(group);
        rest = rest.get(8 + 4 * usize::from(ports)..).context("its ports")?;
    }
    Ok(groups)
}

#[test]
fn a_group_gets_more_gateways_while_it_serves() -> Result<()> {
    let _cluster = undisturbed();
    let Some((group, one, other)) = crate::world::two("more")? else { return Ok(()) };
    let mut session = log_in(&one, "iqn.x:a")?;
    write_all(&mut session, 1)?;
    let known = identity(&mut session)?;
    ensure!(port_groups(&mut session)? == [1, 2, 3], "the record was made for three");
    // One that the record does not have waits for it.
    let fifth = group.serve(5)?;
    says(&fifth, "it has no gateway 5")?;
    let refusal = other.refuses(&["group", "grow", "vms", "--gateways", "5"])?;
    ensure!(refusal.contains("gateway 1 owns group vms"), "{refusal}");
    let known_already = one.tell(&["group", "grow", "vms", "--gateways", "3"])?;
    ensure!(known_already.contains("3 gateways, in epoch 2"), "{known_already}");
    let done = one.tell(&["group", "grow", "vms", "--gateways", "5"])?;
    ensure!(done.contains("5 gateways"), "{done}");
    becomes(&fifth, "standby")?;
    for server in [&one, &other, &fifth] {
        let mut fresh = log_in(server, "iqn.x:b")?;
        until("all ports", || Ok(port_groups(&mut fresh)? == [1, 2, 3, 4, 5]))?;
    }
    // What was there has stayed what it was, over a session that has stayed too.
    have(&mut session, 1)?;
    ensure!(identity(&mut session)? == known, "volume a is another one");
    one.tell(&["group", "move", "vms", "5"])?;
    becomes(&fifth, "owner")?;
    have(&mut log_in(&fifth, "iqn.x:a")?, 1)
}

#[test]
fn a_group_stays_where_it_is_if_the_other_gateway_does_not_answer() -> Result<()> {
    let _cluster = undisturbed();
    let Some((_group, one, other)) = crate::world::two("absent")? else { return Ok(()) };
    let before = told(&one)?["epoch"].clone();
    let refusal = one.refuses(&["group", "move", "vms", "3"])?;
    ensure!(refusal.contains("that gateway does not answer"), "{refusal}");
    signal(&other, Signal::STOP)?;
    let refusal = one.refuses(&["group", "move", "vms", "2"]);
    signal(&other, Signal::CONT)?;
    let refusal = refusal?;
    ensure!(refusal.contains("that gateway does not answer"), "{refusal}");
    ensure!(told(&one)?["epoch"] == before, "it went away and came back");
    Ok(())
}

#[test]
fn a_second_gateway_with_the_same_number_is_told_of() -> Result<()> {
    let _cluster = undisturbed();
    let Some((group, _one, _two)) = crate::world::two("twice")? else { return Ok(()) };
    let copy = group.config(1, "", "").replace(&group.portals[0], "127.0.0.1:0");
    let data = group.path("copy");
    fs::create_dir(&data)?;
    let copy = Serve::config(copy).data(&data).start()?;
    says(&copy, "is gateway 1 of the group as well")?;
    Ok(())
}

/// READ CAPACITY (16): the number of logical blocks; 0 while the unit is not ready.
pub fn blocks(session: &mut Session) -> Result<u64> {
    let cdb = [0x9E, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0];
    let data = ask(session, &cdb, 32, &[])?.data;
    let Some(last) = data.get(..8) else { return Ok(0) };
    Ok(u64::from_be_bytes(last.try_into()?) + 1)
}

#[test]
fn an_image_that_is_made_larger_is_so_through_all_gateways() -> Result<()> {
    let _cluster = undisturbed();
    let Some((group, one, other)) = crate::world::two("larger")? else { return Ok(()) };
    let mut first = log_in(&one, "iqn.x:a")?;
    write_all(&mut first, 1)?;
    group.ceph.rbd(&["resize", "larger", "--size", "96M"])?;
    let (before, after) = (64 << 11, 96 << 11);
    until("the owner has the new size", || Ok(blocks(&mut first)? == after))?;
    let mut second = log_in(&other, "iqn.x:b")?;
    until("the standby has it", || Ok(blocks(&mut second)? == after))?;
    insist(&mut first, &write16(before, 1), 0, &pattern(9))?;
    other.tell(&["group", "move", "vms", "2"])?;
    becomes(&other, "owner")?;
    let read = insist(&mut second, &read16(before, 1), BLOCK, &[])?;
    ensure!(read.data == pattern(9), "what was written behind the old end is not there");
    have(&mut second, 1)?;
    // What is cut off is lost, and nothing is written any more.
    group.ceph.rbd(&["resize", "larger", "--size", "64M", "--allow-shrink", "--no-progress"])?;
    until("it is at fault", || {
        let answer = ask(&mut second, &write16(0, 1), 0, &pattern(1))?;
        Ok(answer.status != GOOD)
    })?;
    ensure!(blocks(&mut second)? == after, "it shows another size");
    // As large as it was, it is served like at a gateway that has not seen that, when the group comes back.
    group.ceph.rbd(&["resize", "larger", "--size", "96M", "--no-progress"])?;
    other.tell(&["group", "move", "vms", "1"])?;
    becomes(&one, "owner")?;
    write_all(&mut first, 5)?;
    one.tell(&["group", "move", "vms", "2"])?;
    becomes(&other, "owner")?;
    write_all(&mut second, 6)
}
