//! Two or three lunets as gateways of a failover group, over one image of a real cluster of Ceph: initiators see one disk,
//! whichever of them serves it.
//!
//! `cargo test -p lunet-e2e --test failover -- --nocapture` prints how long changes of the owner took. Long tests need
//! `LUNET_E2E_LONG`, and `LUNET_E2E_FAILOVERS` says how often the one that repeats changes of the owner does so.

mod anew;
mod atomic;
mod cluster;
mod cut;
mod history;
mod load;
mod members;
mod network;
mod nvme;
mod nvme_through;
mod reserve;
mod rest;
mod setup;
mod shared;
mod snapshots;
mod through;
mod units;
mod world;

use std::io;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lunet_e2e::ceph::cluster;
use lunet_e2e::wire::Session;
use lunet_e2e::wire::scsi::{read16, sense_code, unmap, unmap_list, write16};
use rustix::process::Signal;

use world::{
    BLOCK, BLOCKS, CONFLICT, GOOD, Group, STANDBY, access, ask, becomes, have, identity, insist,
    lba, log_in, pattern, says, seconds, signal, told, two, two_through, undisturbed, write_all,
};

/// A planned move, order to first write. The design's own limit is 2 s.
const MOVE: Duration = Duration::from_secs(10);
/// From an owner's death to the first write through the other one. The design's own limit is 10 s.
const TAKEOVER: Duration = Duration::from_secs(25);
/// The first block of an object that no other block of these tests is in.
const FRESH: u64 = 98_304;
/// Logical blocks of a write of 64 KiB.
const MANY: u32 = 128;

#[test]
fn a_planned_move_is_a_pause_and_the_disk_stays_the_same() -> Result<()> {
    let _cluster = undisturbed();
    let Some((_group, one, two)) = two("moves")? else { return Ok(()) };
    let (mut first, mut second) = (log_in(&one, "iqn.x:a")?, log_in(&two, "iqn.x:b")?);
    write_all(&mut first, 1)?;
    let turned_back = ask(&mut second, &read16(0, 1), BLOCK, &[])?;
    ensure!(sense_code(&turned_back) == Some(STANDBY), "{turned_back:02x?}");
    ensure!(identity(&mut first)? == identity(&mut second)?, "one disk has two names");
    let before = access(&mut first)?;
    ensure!(before == access(&mut second)?, "gateways report other states");
    let begun = Instant::now();
    two.tell(&["group", "move", "vms", "2"])?;
    let ordered = begun.elapsed();
    insist(&mut second, &write16(lba(0), 1), 0, &pattern(1))?;
    let pause = begun.elapsed();
    seconds("planned move, command", ordered);
    seconds("planned move, order to first write through the other gateway", pause);
    ensure!(pause < MOVE, "it took {pause:?}");
    have(&mut second, 1)?;
    becomes(&one, "standby")?;
    let after = access(&mut first)?;
    ensure!(after == access(&mut second)? && after != before, "gateways report other states");
    let turned_back = ask(&mut first, &write16(0, 1), 0, &pattern(9))?;
    ensure!(sense_code(&turned_back) == Some(STANDBY), "{turned_back:02x?}");
    have(&mut second, 1)?;
    // The storage of a group's volume is nobody else's to change.
    let refusal = one.refuses(&["volume", "reopen", "a"])?;
    ensure!(refusal.contains("belongs to group vms"), "{refusal}");
    Ok(())
}

#[test]
fn a_reservation_by_the_standby_holds_at_the_owner_and_after_a_takeover() -> Result<()> {
    let _cluster = undisturbed();
    let Some((_group, one, two)) = two_through("reserved")? else { return Ok(()) };
    let (mut first, mut second) = (log_in(&one, "iqn.x:a")?, log_in(&two, "iqn.x:b")?);
    write_all(&mut first, 1)?;
    let out = |action: u8, kind: u8, key: u64, second: u64| {
        let list = [&key.to_be_bytes()[..], &second.to_be_bytes(), &[0; 8]].concat();
        ([0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0], list)
    };
    // REGISTER, then RESERVE with WRITE EXCLUSIVE.
    for (cdb, list) in [out(0, 0, 0, 7), out(1, 1, 7, 0)] {
        insist(&mut second, &cdb, 0, &list)?;
    }
    let refused = ask(&mut first, &write16(0, 1), 0, &pattern(2))?;
    ensure!(refused.status == CONFLICT, "{refused:02x?}");
    // READ KEYS, by either.
    let keys = [0x5E, 0, 0, 0, 0, 0, 0, 0, 255, 0];
    let told = insist(&mut first, &keys, 255, &[])?.data;
    ensure!(told == insist(&mut second, &keys, 255, &[])?.data, "they report other keys");
    ensure!(told.ends_with(&7_u64.to_be_bytes()), "{told:02x?}");
    // The one that was the standby becomes the owner: its initiator may write, the other one may not.
    two.tell(&["group", "take-over", "vms"])?;
    insist(&mut second, &write16(lba(0), 1), 0, &pattern(3))?;
    let mut third = log_in(&two, "iqn.x:c")?;
    let refused = ask(&mut third, &write16(0, 1), 0, &pattern(4))?;
    ensure!(refused.status == CONFLICT, "{refused:02x?}");
    Ok(())
}

#[test]
fn the_other_gateway_serves_when_the_owner_is_killed() -> Result<()> {
    let _cluster = undisturbed();
    let Some((_group, one, two)) = two("killed")? else { return Ok(()) };
    let (mut first, mut second) = (log_in(&one, "iqn.x:a")?, log_in(&two, "iqn.x:b")?);
    write_all(&mut first, 1)?;
    one.kill()?;
    let killed = Instant::now();
    insist(&mut second, &write16(lba(BLOCKS), 1), 0, &pattern(2))?;
    let took = killed.elapsed();
    seconds("killed owner, to the first write through the other gateway", took);
    ensure!(took < TAKEOVER, "it took {took:?}");
    have(&mut second, 1)?;
    ensure!(told(&two)?["state"] == "owner");
    Ok(())
}

#[test]
fn writes_of_an_owner_that_stood_still_do_not_land() -> Result<()> {
    let _cluster = undisturbed();
    let Some((_group, one, two)) = two("frozen")? else { return Ok(()) };
    let (mut first, mut second) = (log_in(&one, "iqn.x:a")?, log_in(&two, "iqn.x:b")?);
    write_all(&mut first, 1)?;
    for block in 0..BLOCKS {
        first.start(0, &write16(lba(block), 1), 0, &pattern(2))?;
    }
    signal(&one, Signal::STOP)?;
    // These wait in its socket.
    for block in 0..BLOCKS {
        first.start(0, &write16(lba(block), 1), 0, &pattern(3))?;
    }
    let stopped = Instant::now();
    two.tell(&["group", "take-over", "vms"])?;
    write_all(&mut second, 4)?;
    seconds(
        "owner that stands still, order to all writes through the other one",
        stopped.elapsed(),
    );
    signal(&one, Signal::CONT)?;
    let reset = loop {
        match first.finish() {
            // What had ended before it stood still may be answered before it knows.
            Ok(answer) => ensure!(answer.tag <= 2 * BLOCKS as u32 + 16, "{answer:02x?}"),
            Err(error) => break error,
        }
    };
    ensure!(format!("{reset:#}").contains("reset"), "the connection ends otherwise: {reset:#}");
    becomes(&one, "standby")?;
    have(&mut second, 4)?;
    // It is of use again: nothing of before keeps its blocks busy, or the group from moving.
    two.tell(&["group", "move", "vms", "1"])?;
    let mut first = log_in(&one, "iqn.x:a")?;
    have(&mut first, 4)?;
    write_all(&mut first, 5)?;
    two.tell(&["group", "move", "vms", "2"])?;
    have(&mut second, 5)
}

/// Sends writes of 64 KiB until neither the other end's socket nor this one takes more; or, where the kernel lets sockets
/// grow so far, until the target's window is closed.
fn fill_sockets(session: &mut Session, salt: u8) -> Result<u64> {
    session.stream().set_write_timeout(Some(Duration::from_millis(500)))?;
    for sent in 0.. {
        if !session.has_window() {
            eprintln!("sockets hold a whole window of {sent} writes here");
            return Ok(sent);
        }
        let cdb = write16(lba(sent % BLOCKS), MANY);
        let data = pattern(salt).repeat(MANY as usize);
        if let Err(error) = session.start(0, &cdb, 0, &data) {
            ensure!(error.chain().any(|cause| cause.is::<io::Error>()), "{error:#}");
            return Ok(sent);
        }
    }
    unreachable!("a window has an end")
}

#[test]
fn commands_that_fill_the_sockets_of_a_frozen_owner_are_executed_by_nobody() -> Result<()> {
    let _cluster = undisturbed();
    let Some(ceph) = cluster() else { return Ok(()) };
    let group = Group::new(ceph, "full")?;
    // 64 MiB: sockets grow up to 32 MiB by default since Linux 6.17 or so, up to 6 MiB before.
    let deep = |gateway| {
        let config = format!("[iscsi]\nqueue-depth = 1024\n{}", group.config(gateway, "", ""));
        group.configured(gateway, config).start()
    };
    let one = deep(1)?;
    becomes(&one, "owner")?;
    let two = deep(2)?;
    becomes(&two, "standby")?;
    let (mut first, mut second) = (log_in(&one, "iqn.x:a")?, log_in(&two, "iqn.x:b")?);
    write_all(&mut first, 1)?;
    signal(&one, Signal::STOP)?;
    let unread = fill_sockets(&mut first, 3)?;
    ensure!(unread > BLOCKS, "{unread} writes have filled the sockets");
    two.tell(&["group", "take-over", "vms"])?;
    write_all(&mut second, 4)?;
    signal(&one, Signal::CONT)?;
    while let Ok(answer) = first.finish() {
        ensure!(answer.status != GOOD, "a write was answered that was sent to a frozen owner");
    }
    becomes(&one, "standby")?;
    for block in 0..BLOCKS {
        let expected = [pattern(4), vec![0; (MANY as usize - 1) * BLOCK]].concat();
        let read = insist(&mut second, &read16(lba(block), MANY), expected.len(), &[])?;
        ensure!(read.data == expected, "something has landed in block {block}");
    }
    Ok(())
}

#[test]
fn a_thawed_owner_tells_nothing_that_has_changed_while_it_stood_still() -> Result<()> {
    let _cluster = undisturbed();
    let Some((_group, one, two)) = two("untold")? else { return Ok(()) };
    let mut second = log_in(&two, "iqn.x:b")?;
    let mut readers = Vec::new();
    for at in [lba(0), FRESH] {
        readers.push((at, log_in(&one, &format!("iqn.x:r{at}"))?));
    }
    let mut unmapper = log_in(&one, "iqn.x:u")?;
    // The object of the first block is there, and the owner knows that the other one is not.
    insist(&mut readers[0].1, &write16(lba(0), 1), 0, &pattern(1))?;
    for (at, session) in &mut readers {
        insist(session, &read16(*at, 1), BLOCK, &[])?;
    }
    insist(&mut unmapper, &[0; 6], 0, &[])?;
    signal(&one, Signal::STOP)?;
    two.tell(&["group", "take-over", "vms"])?;
    for at in [lba(0), FRESH] {
        insist(&mut second, &write16(at, 1), 0, &pattern(2))?;
    }
    for (at, session) in &mut readers {
        session.start(0, &read16(*at, 1), BLOCK, &[])?;
    }
    unmapper.start(0, &unmap(24), 0, &unmap_list(FRESH, 8192))?;
    signal(&one, Signal::CONT)?;
    for (at, session) in &mut readers {
        let Ok(answer) = session.finish() else { continue };
        ensure!(answer.status != GOOD || answer.data == pattern(2), "old data of block {at}");
    }
    let unmapped = unmapper.finish().is_ok_and(|answer| answer.status == GOOD);
    becomes(&one, "standby")?;
    let left = insist(&mut second, &read16(FRESH, 1), BLOCK, &[])?.data;
    ensure!(!unmapped || left == [0; BLOCK], "blocks were unmapped, and are there");
    Ok(())
}

#[test]
fn a_gateway_whose_configuration_is_another_serves_nothing() -> Result<()> {
    let _cluster = undisturbed();
    let Some(ceph) = cluster() else { return Ok(()) };
    let group = Group::new(ceph, "other")?;
    for (gateway, more, words) in
        [(4, "", "it has no gateway 4"), (1, "serial = '7'", "the serial number of rbd/other is")]
    {
        let server = group.configured(gateway, group.config(gateway, more, "")).start()?;
        says(&server, words)?;
        ensure!(told(&server)?["state"] == "fenced");
        let mut session = log_in(&server, "iqn.x:a")?;
        // REPORT LUNS: nobody knows how the volume is called.
        let luns = ask(&mut session, &[0xA0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], 64, &[])?.data;
        ensure!(luns.get(..4) == Some(&[0; 4]), "{luns:02x?}");
    }
    Ok(())
}
