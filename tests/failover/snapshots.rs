//! Snapshots, rollbacks, clones and other sizes of a group's volumes: ordered at any gateway, done by the owner.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use lunet_e2e::ceph::{Cluster, cluster};
use lunet_e2e::server::Server;
use lunet_e2e::wire::Session;
use lunet_e2e::wire::scsi::{read16, sense_code, write16};
use rustix::process::Signal;
use serde_json::Value;

use crate::members::blocks;
use crate::shared;
use crate::world::{
    BLOCK, GOOD, Group, ask, becomes, have, insist, lba, log_in, pattern, seconds, signal, two,
    undisturbed, until, write_all,
};

/// MEDIUM FORMAT CORRUPTED.
const CORRUPTED: (u8, u8, u8) = (3, 0x31, 0);

/// The names of a volume's snapshots, as a gateway lists them.
fn snapshots(server: &Server) -> Result<Vec<String>> {
    let list = server.tell(&["volume", "snapshots", "a", "--json"])?;
    let list: Vec<Value> = serde_json::from_str(&list)?;
    list.iter().map(|one| Ok(one["snapshot"].as_str().context("a name")?.to_owned())).collect()
}

/// The volume as a gateway lists it.
fn volume(server: &Server) -> Result<Value> {
    let list: Value = serde_json::from_str(&server.tell(&["volume", "list", "--json"])?)?;
    let found = list.as_array().into_iter().flatten().find(|one| one["name"] == "a");
    found.cloned().context("the volume")
}

/// What two blocks of an image's snapshot begin with.
fn counters(ceph: &Cluster, name: &str) -> Result<[u64; 2]> {
    let content = ceph.content(name)?;
    let at = |block: u64| -> Result<u64> {
        let from = usize::try_from(lba(block))? * BLOCK;
        let bytes = content.get(from..from + 8).context("a block")?;
        Ok(u64::from_le_bytes(bytes.try_into()?))
    };
    Ok([at(0)?, at(1)?])
}

/// Writes a number that rises, into one block and then into another one, until it is told to end: the last one that both have.
fn count(session: &mut Session, last: &(AtomicBool, AtomicU64)) -> Result<u64> {
    let mut number = 0_u64;
    while !last.0.load(Ordering::Acquire) {
        number += 1;
        let mut data = number.to_le_bytes().to_vec();
        data.resize(BLOCK, 0);
        for block in [0, 1] {
            insist(session, &write16(lba(block), 1), 0, &data)?;
        }
        last.1.store(number, Ordering::Release);
    }
    Ok(number)
}

#[test]
fn a_snapshot_through_any_gateway_is_one_moment_of_the_owners_writes() -> Result<()> {
    let _cluster = undisturbed();
    let Some((group, one, two)) = two("snapped")? else { return Ok(()) };
    let mut first = log_in(&one, "iqn.x:a")?;
    let state = (AtomicBool::new(false), AtomicU64::new(0));
    let told = thread::scope(|scope| -> Result<_> {
        let writes = scope.spawn(|| count(&mut first, &state));
        let taken = (|| {
            until("it writes", || Ok(state.1.load(Ordering::Acquire) > 0))?;
            let mut told = Vec::new();
            for (server, name) in [(&two, "a@one"), (&one, "a@two"), (&two, "a@three")] {
                let (before, begun) = (state.1.load(Ordering::Acquire), Instant::now());
                server.tell(&["volume", "snapshot", name])?;
                seconds(&format!("snapshot {name} under load, command"), begun.elapsed());
                told.push((name, before, state.1.load(Ordering::Acquire)));
            }
            Ok(told)
        })();
        state.0.store(true, Ordering::Release);
        writes.join().map_err(|_| anyhow!("the writer has panicked"))??;
        taken
    })?;
    for (name, before, behind) in told {
        let name = name.replace("a@", "snapped@");
        let [x, y] = counters(group.ceph, &name)?;
        ensure!(x >= y && x <= y + 1, "{name} is no moment: {x} and {y}");
        ensure!(y >= before, "{name} has {y}, and {before} was acknowledged before");
        ensure!(x <= behind + 1, "{name} has {x}, and {behind} was the last when it was told of");
    }
    ensure!(group.ceph.rbd(&["snap", "ls", "snapped"])?.contains("three"));
    let again = two.refuses(&["volume", "snapshot", "a@one"])?;
    ensure!(again.contains("gateway 1") && again.contains("a@one already"), "{again}");
    for server in [&one, &two] {
        ensure!(snapshots(server)? == ["one", "two", "three"], "{:?}", snapshots(server)?);
    }
    // The list is the image's.
    two.tell(&["group", "take-over", "vms"])?;
    becomes(&one, "standby")?;
    one.tell(&["volume", "delete", "a@two", "--yes"])?;
    for server in [&one, &two] {
        ensure!(snapshots(server)? == ["one", "three"], "{:?}", snapshots(server)?);
    }
    let none = one.refuses(&["volume", "rollback", "a@two", "--yes"])?;
    ensure!(none.contains("no snapshot a@two"), "{none}");
    Ok(())
}

#[test]
fn a_volume_grows_and_is_rolled_back_through_a_standby() -> Result<()> {
    let _cluster = undisturbed();
    let Some((group, one, two)) = two("rolled")? else { return Ok(()) };
    let mut first = log_in(&one, "iqn.x:a")?;
    write_all(&mut first, 1)?;
    two.tell(&["volume", "snapshot", "a@small"])?;
    let begun = Instant::now();
    let done = two.tell(&["volume", "resize", "a", "96MiB"])?;
    seconds("resize through the standby, command", begun.elapsed());
    ensure!(done.contains("volume a has 96 MiB"), "{done}");
    for server in [&two, &one] {
        until("it is larger", || Ok(volume(server)?["size_bytes"] == 96 << 20))?;
    }
    let shrink = two.refuses(&["volume", "resize", "a", "64MiB"])?;
    ensure!(shrink.contains("volumes do not shrink"), "{shrink}");
    until("hosts see it", || Ok(blocks(&mut first)? == (96 << 20) / BLOCK as u64))?;
    write_all(&mut first, 2)?;
    let in_use = two.refuses(&["volume", "rollback", "a@small", "--yes"])?;
    ensure!(in_use.contains("gateway 1") && in_use.contains("1 session"), "{in_use}");
    have(&mut first, 2)?;
    let begun = Instant::now();
    two.tell(&["volume", "rollback", "a@small", "--yes", "--force"])?;
    seconds("rollback through the standby, command", begun.elapsed());
    have(&mut first, 1)?;
    write_all(&mut first, 3)?;
    // It stays as large as it is, in the record too, and is as good as before.
    ensure!(blocks(&mut first)? == (96 << 20) / BLOCK as u64);
    for server in [&one, &two] {
        let volume = volume(server)?;
        ensure!(
            volume["size_bytes"] == 96 << 20 && volume["faults"] == Value::Array(vec![]),
            "{volume}"
        );
    }
    two.tell(&["group", "take-over", "vms"])?;
    let mut second = log_in(&two, "iqn.x:b")?;
    have(&mut second, 3)?;
    becomes(&one, "standby")?;
    // A clone is made where it is asked for.
    let done = one.tell(&["volume", "clone", "a@small", "rolled-clone"])?;
    ensure!(done.contains("image rbd/rolled-clone holds what a@small holds"), "{done}");
    let content = group.ceph.content("rolled-clone")?;
    ensure!(
        content.len() == 64 << 20 && content[..BLOCK] == pattern(1)[..],
        "the clone holds something else"
    );
    Ok(())
}

/// A volume gets another size by a change of the record, which its owner leaves for a moment: whenever a takeover shuts the owner
/// out, it comes to its end.
#[test]
fn a_takeover_in_the_middle_of_a_resize_has_an_owner_at_its_end() -> Result<()> {
    let _cluster = undisturbed();
    let Some((_group, one, two)) = two("resized")? else { return Ok(()) };
    let mut first = log_in(&one, "iqn.x:a")?;
    write_all(&mut first, 1)?;
    for turn in 0..6 {
        let (owner, taker) = if turn % 2 == 0 { (&one, &two) } else { (&two, &one) };
        becomes(owner, "owner")?;
        becomes(taker, "standby")?;
        let size = format!("{}MiB", 72 + 8 * turn);
        let begun = Instant::now();
        thread::scope(|scope| -> Result<()> {
            let resized = scope.spawn(|| owner.command(&["volume", "resize", "a", &size]));
            thread::sleep(Duration::from_millis(60 * turn));
            until("the group is taken over", || {
                let taken = taker.command(&["group", "take-over", "vms"])?;
                let done = taken.status.is_some_and(|status| status.success());
                // It may be opening the images that the record names now, or the owner, which has let go of the group for the new
                // size, was the quicker one to take it again.
                let waits = taken.stderr.contains("not ready for it: try again");
                let late = taken.stderr.contains("taken the group over in the meantime");
                ensure!(done || waits || late, "{}", taken.stderr);
                Ok(done)
            })?;
            // What became of it is one thing or the other.
            resized.join().map_err(|_| anyhow!("it has panicked"))??;
            Ok(())
        })?;
        seconds("takeover in the middle of a resize", begun.elapsed());
        becomes(taker, "owner")?;
    }
    becomes(&two, "standby")?;
    let mut last = log_in(&one, "iqn.x:a")?;
    have(&mut last, 1)?;
    Ok(())
}

#[test]
fn a_rollback_that_is_cut_off_is_served_by_nobody_until_it_is_repeated() -> Result<()> {
    let _cluster = undisturbed();
    let Some(ceph) = cluster() else { return Ok(()) };
    let group = Group::new(ceph, "cutoff")?;
    // An owner that takes its time: objects are rolled back one by one.
    let slow = group.path("slow.conf");
    let conf = fs::read_to_string(ceph.conf())?;
    fs::write(&slow, format!("{conf}\n[client]\nrbd_concurrent_management_ops = 1\n"))?;
    let config = group.config(1, "", &format!("ceph-conf = '{}'", slow.display()));
    let one = group.configured(1, config).start()?;
    becomes(&one, "owner")?;
    let two = group.serve(2)?;
    becomes(&two, "standby")?;
    one.tell(&["volume", "resize", "a", "8GiB"])?;
    let mut first = log_in(&one, "iqn.x:a")?;
    write_all(&mut first, 1)?;
    one.tell(&["volume", "snapshot", "a@before"])?;
    write_all(&mut first, 2)?;
    let rolls = ["volume", "rollback", "a@before", "--yes", "--force"];
    thread::scope(|scope| -> Result<()> {
        let rollback = scope.spawn(|| one.command(&rolls));
        until("the record has its mark", || {
            ensure!(!rollback.is_finished(), "it ends before anybody has seen it");
            group.is_rolling_back()
        })?;
        // The group is not given away meanwhile.
        for asked in [&one, &two] {
            let moved = asked.refuses(&["group", "move", "vms", "2"])?;
            ensure!(moved.contains("is under way"), "{moved}");
        }
        ensure!(!rollback.is_finished(), "it ends too soon");
        signal(&one, Signal::KILL)?;
        let finished = rollback.join().map_err(|_| anyhow!("it has panicked"))??;
        ensure!(!finished.status.is_some_and(|status| status.success()), "it is told to be done");
        Ok(())
    })?;
    becomes(&two, "owner")?;
    let mut second = log_in(&two, "iqn.x:b")?;
    until("the unit says so", || {
        let answer = ask(&mut second, &read16(lba(0), 1), BLOCK, &[])?;
        ensure!(answer.status != GOOD, "what is half rolled back was read");
        Ok(sense_code(&answer) == Some(CORRUPTED))
    })?;
    let written = ask(&mut second, &write16(lba(0), 1), 0, &pattern(9))?;
    ensure!(written.status != GOOD, "it was written to");
    let told = volume(&two)?;
    ensure!(
        told["faults"][0]["state"] == "rolled-back-in-part" && told["erasure"].is_null(),
        "{told}"
    );
    let refused = two.refuses(&["volume", "snapshot", "a@half"])?;
    ensure!(refused.contains("was cut off"), "{refused}");
    // Again, by the gateway that owns the group now.
    let begun = Instant::now();
    two.tell(&rolls)?;
    seconds("rollback of 2048 objects", begun.elapsed());
    have(&mut second, 1)?;
    write_all(&mut second, 3)?;
    have(&mut second, 3)?;
    ensure!(!group.is_rolling_back()? && volume(&two)?["faults"] == Value::Array(vec![]));
    Ok(())
}

#[test]
fn a_clone_of_a_groups_volume_is_one_of_the_group() -> Result<()> {
    let _cluster = undisturbed();
    let Some(ceph) = cluster() else { return Ok(()) };
    let (_group, one, two) = shared::two(ceph, "cloned")?;
    let mut first = log_in(&one, "iqn.x:a")?;
    write_all(&mut first, 1)?;
    two.tell(&["volume", "snapshot", "a@s"])?;
    write_all(&mut first, 2)?;
    let whole = two.refuses(&["volume", "clone", "a", "b"])?;
    ensure!(whole.contains("Ceph clones snapshots only"), "{whole}");
    let done = two.tell(&["volume", "clone", "a@s", "cloned-b"])?;
    ensure!(done.contains("volume cloned-b is LUN 1 of"), "{done}");
    for server in [&one, &two] {
        let mut session = log_in(server, "iqn.x:b")?;
        // It is there as soon as the owner has it in the record.
        until("the clone is a LUN", || {
            let answer = session.execute(1, &read16(lba(0), 1), BLOCK, &[])?;
            ensure!(answer.status != GOOD || answer.data == pattern(1), "it holds something else");
            Ok(answer.status == GOOD)
        })?;
    }
    have(&mut first, 2)
}
