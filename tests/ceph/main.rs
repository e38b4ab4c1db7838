//! Volumes that are images of Ceph, on a real cluster of three OSDs, which is made for this test and ends with it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lunet_e2e::ceph::{Cluster, cluster};
use lunet_e2e::data::scratch;
use lunet_e2e::process::run;
use lunet_e2e::server::{Serve, Server};
use lunet_e2e::wire::scsi::{capacity, read16, sense_code, unmap, unmap_list, write16};
use lunet_e2e::wire::{Login, Session};
use serde_json::Value;

const TARGET: &str = "iqn.2026-11.local.lunet:ceph";
const BLOCK: usize = 512;
const GOOD: u8 = 0;

/// For one command of Ceph's on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server with one image as LUN 0, that keeps what it has to know in `data`.
fn serve(ceph: &Cluster, image: &str, data: &Path) -> Serve {
    Serve::config(config(image, &ceph.conf(), "")).data(data)
}

/// A configuration with one image as LUN 0, and more keys for its volume.
fn config(image: &str, conf: &Path, more: &str) -> String {
    format!(
        "[[portal]]\naddress = '127.0.0.1:0'\n[volumes.a]\nbackend = 'rbd'\nimage = 'rbd://rbd/{image}'\n\
         ceph-conf = '{}'\n{more}\n[[target]]\nname = '{TARGET}'\nluns = ['a']\n",
        conf.display()
    )
}

fn log_in(server: &Server) -> Result<Session> {
    let mut session = Session::open(&Login::new(server.portal(), TARGET))?;
    session.settle(0)?;
    Ok(session)
}

/// Bytes that depend on their place and on `salt`.
fn pattern(salt: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i / BLOCK * 31) ^ (i % 251) ^ (salt * 97)) as u8).collect()
}

/// The volume as `volume list` has it.
fn volume(server: &Server) -> Result<Value> {
    let list: Value = serde_json::from_str(&server.tell(&["volume", "list", "--json"])?)?;
    let list = list.as_array().context("a list")?;
    list.iter().find(|one| one["name"] == "a").cloned().context("volume a")
}

/// Asks until something is so.
fn until(limit: Duration, mut is: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + limit;
    while !is()? {
        ensure!(Instant::now() < end, "it does not come to be within {limit:?}");
        sleep(Duration::from_millis(200));
    }
    Ok(())
}

#[test]
fn what_a_client_writes_is_in_the_image_and_comes_back() -> Result<()> {
    let Some(ceph) = cluster() else { return Ok(()) };
    ceph.image("data", 64)?;
    let data = scratch("lunet-rbd-")?;
    let server = serve(ceph, "data", data.path()).start()?;
    let mut session = log_in(&server)?;
    let found = capacity(&mut session, 0)?;
    assert_eq!((found.blocks, found.block_size as usize), (64 << 11, BLOCK));
    let mut expected = vec![0; 64 << 20];
    // Within one object of 4 MiB, over the border of two, at the very end, and single blocks.
    let last = (64 << 11) - 1;
    for (salt, (lba, blocks)) in
        [(0, 8), (8191, 2), (8000, 1024), (20_000, 1), (last, 1), (40_000, 2048)]
            .into_iter()
            .enumerate()
    {
        let bytes = pattern(salt, blocks * BLOCK);
        session.write(0, lba, &bytes, BLOCK)?;
        expected[lba as usize * BLOCK..][..bytes.len()].copy_from_slice(&bytes);
        assert!(session.read(0, lba, blocks as u32, BLOCK)? == bytes, "LBA {lba}");
    }
    // FUA.
    let mut cdb = write16(30_000, 8);
    cdb[1] = 8;
    let bytes = pattern(9, 8 * BLOCK);
    assert_eq!(session.execute(0, &cdb, bytes.len(), &bytes)?.status, GOOD);
    expected[30_000 * BLOCK..][..bytes.len()].copy_from_slice(&bytes);
    session.flush(0)?;
    // Whole objects, parts of them, and less than Ceph gives back by itself.
    for (lba, blocks) in [(40_960_u64, 512_u32), (8100, 7), (41_984, 64)] {
        let answer = session.execute(0, &unmap(24), 24, &unmap_list(lba, blocks))?;
        assert_eq!(answer.status, GOOD, "unmap at {lba}: {:?}", sense_code(&answer));
        expected[lba as usize * BLOCK..][..blocks as usize * BLOCK].fill(0);
    }
    assert!(ceph.content("data")? == expected, "the image differs from what was written");
    for lba in (0..64 << 11).step_by(4096) {
        let read = session.read(0, lba, 4096, BLOCK)?;
        assert!(read == expected[lba as usize * BLOCK..][..read.len()], "LBA {lba} differs");
    }
    compares_and_writes(&mut session)?;
    session.logout()?;
    server.stop()?;
    Ok(())
}

/// COMPARE AND WRITE with what is there, and with what is not.
fn compares_and_writes(session: &mut Session) -> Result<()> {
    let (old, new) = (session.read(0, 16, 1, BLOCK)?, pattern(77, BLOCK));
    let mut cdb = [0; 16];
    (cdb[0], cdb[9], cdb[13]) = (0x89, 16, 1);
    let both = [old, new.clone()].concat();
    let answer = session.execute(0, &cdb, both.len(), &both)?;
    assert_eq!(answer.status, GOOD, "{:?}", sense_code(&answer));
    assert!(session.read(0, 16, 1, BLOCK)? == new);
    // MISCOMPARE DURING VERIFY OPERATION.
    let answer = session.execute(0, &cdb, both.len(), &both)?;
    assert_eq!(sense_code(&answer), Some((0x0E, 0x1D, 0x00)));
    assert!(session.read(0, 16, 1, BLOCK)? == new);
    Ok(())
}

#[test]
fn an_image_belongs_to_one_server_and_to_the_same_one_after_its_death() -> Result<()> {
    let Some(ceph) = cluster() else { return Ok(()) };
    ceph.image("lock", 16)?;
    let (data, other) = (scratch("lunet-rbd-")?, scratch("lunet-rbd-")?);
    let server = serve(ceph, "lock", data.path()).start()?;
    let bytes = pattern(1, 8 * BLOCK);
    log_in(&server)?.write(0, 100, &bytes, BLOCK)?;
    // A second server serves everything but this image, and says who has it.
    let second = serve(ceph, "lock", other.path()).quiet().start()?;
    let fault = fault(&second)?;
    let [address, ..] = ceph.holder("lock")?;
    assert!(
        fault.contains("is in use by the client") && fault.contains(&address),
        "{fault} {address}"
    );
    second.stop()?;
    // A server that ends lets go of the lock.
    server.stop()?;
    assert_eq!(ceph.rbd(&["lock", "ls", "lock", "--format", "json"])?.trim(), "[]");
    let server = serve(ceph, "lock", data.path()).start()?;
    assert!(log_in(&server)?.read(0, 100, 8, BLOCK)? == bytes);
    // One that is killed cannot, and its own next one takes it over without waiting for Ceph's 30 s.
    server.kill()?;
    let begun = Instant::now();
    let server = serve(ceph, "lock", data.path()).start()?;
    let mut session = log_in(&server)?;
    assert!(session.read(0, 100, 8, BLOCK)? == bytes);
    session.write(0, 200, &bytes, BLOCK)?;
    assert!(begun.elapsed() < Duration::from_secs(20), "it took {:?}", begun.elapsed());
    server.stop()?;
    Ok(())
}

/// A configuration for a user of the pool alone, which may add to the blocklist and not remove from it.
fn limited(ceph: &Cluster, image: &str, user: &str) -> Result<String> {
    ceph.script(&["user", user])?;
    let keyring = ceph.directory().join(format!("keyring.client.{user}"));
    let more = format!("ceph-user = '{user}'\nceph-keyring = '{}'", keyring.display());
    Ok(config(image, &ceph.conf(), &more))
}

#[test]
fn a_blocklist_entry_of_an_hour_is_no_fence() -> Result<()> {
    let Some(ceph) = cluster() else { return Ok(()) };
    ceph.image("hour", 16)?;
    let text = limited(ceph, "hour", "hour")?;
    let data = scratch("lunet-rbd-")?;
    let serve = || Serve::config(text.clone()).data(data.path());
    let server = serve().start()?;
    let bytes = pattern(6, 8 * BLOCK);
    log_in(&server)?.write(0, 8, &bytes, BLOCK)?;
    let [address, ..] = ceph.holder("hour")?;
    server.kill()?;
    ceph.ceph(&["osd", "blocklist", "add", &address, "3600"])?;
    let server = serve().quiet().start()?;
    let fault = fault(&server)?;
    ensure!(
        fault.contains(&format!("the client {address}, which had the image before"))
            && fault.contains("only, as Ceph does not lengthen")
            && fault.contains(&format!("ceph osd blocklist rm {address}")),
        "{fault}"
    );
    assert_eq!(ceph.holder("hour")?[0], address, "the lock is as it was");
    assert_eq!(ceph.years_listed(&address)?, Some(0));
    ceph.ceph(&["osd", "blocklist", "rm", &address])?;
    server.tell(&["config", "apply"])?;
    assert!(log_in(&server)?.read(0, 8, 8, BLOCK)? == bytes);
    assert_ne!(ceph.holder("hour")?[0], address);
    ensure!(ceph.years_listed(&address)? >= Some(9), "the entry is none for ten years");
    server.stop()?;
    Ok(())
}

#[test]
fn an_image_whose_lock_was_broken_is_adopted_behind_a_fence() -> Result<()> {
    let Some(ceph) = cluster() else { return Ok(()) };
    ceph.image("broken", 16)?;
    let text = limited(ceph, "broken", "broken")?;
    let data = scratch("lunet-rbd-")?;
    let server = Serve::config(text).data(data.path()).quiet().start()?;
    let bytes = pattern(7, 8 * BLOCK);
    log_in(&server)?.write(0, 8, &bytes, BLOCK)?;
    // An administrator's tool shuts the client out for an hour, and nobody has the lock.
    let [address, id, name] = ceph.holder("broken")?;
    ceph.rbd(&["lock", "rm", "broken", &id, &name])?;
    assert_eq!(ceph.years_listed(&address)?, Some(0));
    // What finds it out is a write, which nobody answers: its blocks are fenced.
    let mut unanswered = Vec::new();
    until(PATIENCE, || {
        let mut session = log_in(&server)?;
        session.start(0, &write16(8, 8), bytes.len(), &bytes)?;
        unanswered.push(session);
        sleep(Duration::from_secs(1));
        Ok(!fault(&server)?.is_empty())
    })?;
    drop(unanswered);
    // This process has that client open still: what it has sent could land when the hour is over.
    let refused = server.refuses(&["volume", "adopt", "a", "--yes"])?;
    ensure!(refused.contains(&format!("ceph osd blocklist rm {address}")), "{refused}");
    ceph.ceph(&["osd", "blocklist", "rm", &address])?;
    server.tell(&["volume", "adopt", "a", "--yes"])?;
    ensure!(ceph.years_listed(&address)? >= Some(9), "the entry is none for ten years");
    assert!(log_in(&server)?.read(0, 8, 8, BLOCK)? == bytes);
    // What was never answered cannot land any more, and fences nothing.
    until(PATIENCE, || Ok(log_in(&server)?.write(0, 8, &pattern(8, 8 * BLOCK), BLOCK).is_ok()))?;
    server.stop()?;
    Ok(())
}

#[test]
fn an_osd_that_stands_still_costs_time_and_nothing_else() -> Result<()> {
    let Some(ceph) = cluster() else { return Ok(()) };
    ceph.image("frozen", 64)?;
    let data = scratch("lunet-rbd-")?;
    let server = serve(ceph, "frozen", data.path()).start()?;
    let mut session = log_in(&server)?;
    ceph.script(&["stop-osd", "1"])?;
    let goes_on = std::thread::spawn(move || {
        sleep(Duration::from_secs(4));
        ceph.script(&["cont-osd", "1"])
    });
    // All parts of the image: some have a copy there, and wait.
    let begun = Instant::now();
    let written = (0..32).try_for_each(|turn| {
        session.write(0, turn * 4096, &pattern(turn as usize, 64 * BLOCK), BLOCK)
    });
    let took = begun.elapsed();
    goes_on.join().map_err(|_| anyhow::anyhow!("the thread has failed"))??;
    written?;
    ensure!(took > Duration::from_secs(2), "nothing has waited for the OSD: {took:?}");
    for turn in 0..32 {
        let read = session.read(0, turn * 4096, 64, BLOCK)?;
        assert!(read == pattern(turn as usize, 64 * BLOCK), "write {turn} is lost");
    }
    server.stop()?;
    Ok(())
}

/// SPACE ALLOCATION FAILED WRITE PROTECT, with DATA PROTECT.
const NO_SPACE: (u8, u8, u8) = (7, 0x27, 0x07);

#[test]
fn writes_to_a_full_pool_fail_with_the_reason_until_there_is_room() -> Result<()> {
    let Some(ceph) = cluster() else { return Ok(()) };
    ceph.ceph(&["osd", "pool", "create", "small", "8"])?;
    ceph.rbd(&["pool", "init", "small"])?;
    ceph.image("small/full", 64)?;
    let data = scratch("lunet-rbd-")?;
    let text = config("full", &ceph.conf(), "").replace("rbd://rbd/", "rbd://small/");
    let mut server = Serve::config(text).data(data.path()).quiet().start()?;
    let mut session = log_in(&server)?;
    let bytes = pattern(4, 2048 * BLOCK);
    (0..8).try_for_each(|at| session.write(0, at * 2048, &bytes, BLOCK))?;
    ceph.ceph(&["osd", "pool", "set-quota", "small", "max_bytes", "4194304"])?;
    // Where nothing was written yet. Nobody has to wait for room.
    let (mut last, mut at) = (None, 8 * 2048);
    let is_refused = until(2 * PATIENCE, || {
        let begun = Instant::now();
        let answer = session.execute(0, &write16(at, 2048), 0, &bytes)?;
        at = if at + 4096 > 64 << 11 { 8 * 2048 } else { at + 2048 };
        last = sense_code(&answer);
        ensure!(begun.elapsed() < PATIENCE / 2, "it waits for room");
        sleep(Duration::from_millis(200));
        Ok(last == Some(NO_SPACE))
    });
    is_refused.with_context(|| format!("{last:02x?}"))?;
    assert!(session.read(0, 0, 2048, BLOCK)? == bytes, "what is there is read");
    let says = |server: &mut Server, words: &str| {
        until(PATIENCE, || Ok(server.process().stderr.text().contains(words)))
    };
    says(&mut server, "the pool of rbd://small/full is full, or has reached its quota")?;
    ceph.ceph(&["osd", "pool", "set-quota", "small", "max_bytes", "0"])?;
    until(2 * PATIENCE, || {
        let answer = session.execute(0, &write16(at, 2048), 0, &bytes)?;
        sleep(Duration::from_millis(200));
        Ok(answer.status == GOOD)
    })?;
    until(2 * PATIENCE, || {
        session.write(0, at, &bytes, BLOCK)?;
        sleep(Duration::from_millis(500));
        Ok(server.process().stderr.text().contains("its pool has room again"))
    })?;
    server.stop()?;
    Ok(())
}

#[test]
fn a_cluster_that_comes_later_is_found_by_itself() -> Result<()> {
    let Some(ceph) = cluster() else { return Ok(()) };
    ceph.image("later", 16)?;
    let data = scratch("lunet-rbd-")?;
    let (conf, right) = (data.path().join("ceph.conf"), fs::read_to_string(ceph.conf())?);
    let monitors = |line: &&str| line.trim_start().starts_with("mon_host");
    let line = right.lines().find(monitors).context("a line with monitors")?;
    // Nobody listens there: as if all monitors were down.
    fs::write(&conf, right.replace(line, "mon_host = v1:127.0.0.1:1"))?;
    let more = "[volumes.b]\nbackend = 'memory'\nsize = '1MiB'";
    let server = Serve::config(config("later", &conf, more)).data(data.path()).quiet().start()?;
    let text = fault(&server)?;
    assert!(text.contains("did not answer") || text.contains("monitors"), "{text}");
    // While it is asked again, other changes are made.
    server.tell(&["target", "create", "iqn.2026-11.local.lunet:beside"])?;
    fs::write(&conf, right)?;
    until(2 * PATIENCE, || Ok(fault(&server)?.is_empty()))?;
    let (mut session, bytes) = (log_in(&server)?, pattern(8, 8 * BLOCK));
    session.write(0, 64, &bytes, BLOCK)?;
    assert!(session.read(0, 64, 8, BLOCK)? == bytes);
    server.stop()?;
    Ok(())
}

#[test]
fn an_image_that_grows_is_seen_whoever_has_resized_it() -> Result<()> {
    let Some(ceph) = cluster() else { return Ok(()) };
    ceph.image("grows", 16)?;
    let data = scratch("lunet-rbd-")?;
    let server = serve(ceph, "grows", data.path()).start()?;
    server.tell(&["volume", "resize", "a", "24MiB"])?;
    let mut session = log_in(&server)?;
    assert_eq!(capacity(&mut session, 0)?.blocks, 24 << 11);
    let bytes = pattern(3, 8 * BLOCK);
    session.write(0, (24 << 11) - 8, &bytes, BLOCK)?;
    // The owner of the lock carries it out for the command.
    ceph.rbd(&["resize", "grows", "--size", "32M", "--no-progress"])?;
    until(PATIENCE, || Ok(volume(&server)?["size_bytes"] == 32 << 20))?;
    session.settle(0)?;
    assert_eq!(capacity(&mut session, 0)?.blocks, 32 << 11);
    session.write(0, (32 << 11) - 8, &bytes, BLOCK)?;
    assert!(session.read(0, (24 << 11) - 8, 8, BLOCK)? == bytes);
    // Whether or not the server has seen the new size yet: what it knows is not what an image is cut by.
    for (larger, smaller) in [("48M", "40MiB"), ("64M", "56MiB"), ("80M", "72MiB")] {
        ceph.rbd(&["resize", "grows", "--size", larger, "--no-progress"])?;
        // It may be taking the new size over at this moment, and then changes nothing else.
        until(PATIENCE, || {
            let refused = server.refuses(&["volume", "resize", "a", smaller])?;
            let as_shorter = refused.contains("shrink") || refused.contains("not made shorter");
            ensure!(as_shorter || refused.contains("another change is under way"), "{refused}");
            Ok(as_shorter)
        })?;
    }
    until(PATIENCE, || Ok(volume(&server)?["size_bytes"] == 80 << 20))?;
    session.settle(0)?;
    assert!(session.read(0, (32 << 11) - 8, 8, BLOCK)? == bytes, "nothing was cut");
    server.stop()?;
    Ok(())
}

#[test]
fn snapshots_are_kept_by_the_cluster_and_cloned_and_rolled_back_to() -> Result<()> {
    let Some(ceph) = cluster() else { return Ok(()) };
    ceph.image("snaps", 16)?;
    let data = scratch("lunet-rbd-")?;
    let server = serve(ceph, "snaps", data.path()).start()?;
    let mut session = log_in(&server)?;
    let (first, second) = (pattern(1, 8 * BLOCK), pattern(2, 8 * BLOCK));
    session.write(0, 64, &first, BLOCK)?;
    server.tell(&["volume", "snapshot", "a@one"])?;
    session.write(0, 64, &second, BLOCK)?;
    session.write(0, 20_000, &second, BLOCK)?;
    let list: Value =
        serde_json::from_str(&server.tell(&["volume", "snapshots", "a", "--json"])?)?;
    assert_eq!((&list[0]["snapshot"], &list[0]["size_bytes"]), (&"one".into(), &(16 << 20).into()));
    assert!(list[0]["created"].as_u64().is_some_and(|at| at > 1_700_000_000), "{list}");
    assert!(ceph.rbd(&["snap", "ls", "snaps"])?.contains("one"));
    let again = server.refuses(&["volume", "snapshot", "a@one"])?;
    assert!(again.contains("there is a snapshot a@one already"), "{again}");
    // Two of its objects have data.
    let found = volume(&server)?;
    assert_eq!((&found["snapshots"], &found["used_bytes"]), (&1.into(), &(8 << 20).into()));

    let whole = server.refuses(&["volume", "clone", "a", "b"])?;
    assert!(whole.contains("Ceph clones snapshots only"), "{whole}");
    server.tell(&["volume", "clone", "a@one", "b"])?;
    let content = ceph.content("b")?;
    assert!(content.len() == 16 << 20 && content[64 * BLOCK..][..8 * BLOCK] == first[..]);
    assert!(content[20_000 * BLOCK..][..BLOCK].iter().all(|byte| *byte == 0));

    // It has grown since, and stays as large.
    server.tell(&["volume", "resize", "a", "24MiB"])?;
    session.settle(0)?;
    session.write(0, 40_000, &second, BLOCK)?;
    session.logout()?;
    server.tell(&["volume", "rollback", "a@one", "--yes"])?;
    let mut session = log_in(&server)?;
    assert_eq!(capacity(&mut session, 0)?.blocks, 24 << 11);
    assert!(session.read(0, 64, 8, BLOCK)? == first);
    for lba in [20_000, 40_000] {
        assert!(session.read(0, lba, 8, BLOCK)?.iter().all(|byte| *byte == 0), "LBA {lba}");
    }
    session.write(0, 40_000, &second, BLOCK)?;
    assert!(ceph.content("snaps")?[40_000 * BLOCK..][..8 * BLOCK] == second[..]);

    // What somebody has protected stays; what has clones may go.
    ceph.rbd(&["snap", "protect", "snaps@one"])?;
    let kept = server.refuses(&["volume", "delete", "a@one", "--yes"])?;
    assert!(kept.contains("`rbd snap unprotect rbd/snaps@one`"), "{kept}");
    ceph.rbd(&["snap", "unprotect", "snaps@one"])?;
    server.tell(&["volume", "delete", "a@one", "--yes"])?;
    assert_eq!(server.tell(&["volume", "snapshots", "a", "--json"])?.trim(), "[]");
    assert!(ceph.content("b")?[64 * BLOCK..][..8 * BLOCK] == first[..]);
    server.stop()?;
    Ok(())
}

#[test]
fn volumes_are_made_of_images_that_are_there_and_of_new_ones() -> Result<()> {
    let Some(ceph) = cluster() else { return Ok(()) };
    ceph.image("first", 16)?;
    ceph.image("there", 32)?;
    let data = scratch("lunet-rbd-")?;
    let server = serve(ceph, "first", data.path()).start()?;
    let conf = ceph.conf();
    let conf = conf.to_str().context("a path")?;
    let create = |name: &str, image: &str, more: &[&str]| {
        let image = format!("rbd://rbd/{image}");
        let words = ["volume", "create", name, "--backend", "rbd", "--ceph-conf", conf, "--image"];
        [&words[..], &[&image], more].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let tell =
        |words: &[String]| server.tell(&words.iter().map(String::as_str).collect::<Vec<_>>());
    let refused =
        |words: &[String]| server.refuses(&words.iter().map(String::as_str).collect::<Vec<_>>());
    let made = tell(&create("made", "made", &["--size", "8MiB"]))?;
    assert!(made.contains("volume made of 8 MiB"), "{made}");
    assert!(tell(&create("there", "there", &[]))?.contains("volume there of 32 MiB"));
    let info = ceph.rbd(&["info", "made"])?;
    assert!(info.contains("size 8 MiB") && info.contains("exclusive-lock"), "{info}");
    let twice = refused(&create("twice", "made", &[]))?;
    assert!(twice.contains("is that of volume \"made\" already"), "{twice}");
    let there = refused(&create("other", "first", &["--size", "8MiB"]))?;
    assert!(there.contains("already"), "{there}");
    let none = refused(&create("none", "none", &[]))?;
    assert!(none.contains("there is no such image"), "{none}");
    assert!(none.contains("--size") && !none.contains("config apply"), "{none}");
    let gone = server.tell(&["volume", "delete", "made", "--yes"])?;
    assert!(gone.contains("its data is still in rbd://rbd/made"), "{gone}");
    let there = refused(&create("again", "made", &["--size", "8MiB"]))?;
    assert!(there.contains("there is an image rbd/made already"), "{there}");
    server.stop()?;
    Ok(())
}

#[test]
fn what_would_endanger_data_is_refused_in_one_sentence() -> Result<()> {
    let Some(ceph) = cluster() else { return Ok(()) };
    ceph.image("refused", 16)?;
    let data = scratch("lunet-rbd-")?;
    let conf = fs::read_to_string(ceph.conf())?;
    let bad = data.path().join("bad.conf");
    for (setting, words) in [
        ("rados_osd_op_timeout = 30", "may still land over a newer one"),
        ("rbd_persistent_cache_mode = ssd", "holds acknowledged writes"),
        ("rbd_read_from_replica_policy = balance", "may be older"),
        ("rbd_blocklist_expire_seconds = 60", "let in again"),
    ] {
        fs::write(&bad, conf.replace("[global]", &format!("[global]\n{setting}")))?;
        let text = refused("refused", &bad)?;
        assert!(
            text.contains(words) && text.contains(setting.split(' ').next().unwrap_or("")),
            "{text}"
        );
    }
    ceph.rbd(&["config", "image", "set", "rbd/refused", "rbd_cache", "true"])?;
    let text = refused("refused", &ceph.conf())?;
    assert!(text.contains("rbd_cache") && text.contains("rbd config image rm"), "{text}");
    ceph.rbd(&["create", "plain", "--size", "16M", "--image-feature", "layering"])?;
    let text = refused("plain", &ceph.conf())?;
    assert!(text.contains("rbd feature enable rbd/plain exclusive-lock"), "{text}");
    ceph.rbd(&[
        "create",
        "journal",
        "--size",
        "16M",
        "--image-feature",
        "exclusive-lock,journaling",
    ])?;
    let text = refused("journal", &ceph.conf())?;
    assert!(text.contains("rbd feature disable rbd/journal journaling"), "{text}");
    // Somebody else's odd size ends no server.
    ceph.rbd(&["create", "odd", "--size", "10000001B"])?;
    let text = refused("odd", &ceph.conf())?;
    assert!(text.contains("is not a multiple of the block size"), "{text}");
    let text = refused("nowhere", &ceph.conf())?;
    assert!(text.contains("there is no such image"), "{text}");
    Ok(())
}

/// What is wrong with the volume, in lunet's words; nothing if it is served.
fn fault(server: &Server) -> Result<String> {
    let volume = volume(server)?;
    let faults = volume["faults"].as_array().context("a list of faults")?;
    Ok(faults.iter().filter_map(|fault| fault["text"].as_str()).collect())
}

/// Why a server does not serve an image. It serves all the same.
fn refused(image: &str, conf: &Path) -> Result<String> {
    let data = scratch("lunet-rbd-")?;
    let server = Serve::config(config(image, conf, "")).data(data.path()).quiet().start()?;
    let fault = fault(&server)?;
    server.stop()?;
    ensure!(!fault.is_empty(), "image {image} is served");
    Ok(fault)
}

#[test]
fn a_user_of_the_pool_alone_is_enough_for_a_server_without_root() -> Result<()> {
    let Some(ceph) = cluster() else { return Ok(()) };
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can become another user");
        return Ok(());
    }
    ceph.image("user", 16)?;
    ceph.script(&["user", "gateway"])?;
    let data = scratch("lunet-rbd-")?;
    // For the other user: what it reads, and where it writes.
    let keyring = data.path().join("keyring");
    fs::copy(ceph.directory().join("keyring.client.gateway"), &keyring)?;
    let conf = data.path().join("ceph.conf");
    fs::copy(ceph.conf(), &conf)?;
    let more = format!("ceph-user = 'gateway'\nceph-keyring = '{}'", keyring.display());
    fs::write(data.path().join("lunet.toml"), config("user", &conf, &more))?;
    run(Command::new("chown").args(["-R", "nobody"]).arg(data.path()), PATIENCE)?.success()?;
    let serve = || Serve::default().data(data.path()).arguments(&["--user", "nobody"]);
    let server = serve().start()?;
    let mut session = log_in(&server)?;
    let bytes = pattern(5, 8 * BLOCK);
    session.write(0, 0, &bytes, BLOCK)?;
    assert_eq!(session.execute(0, &read16(0, 8), 8 * BLOCK, &[])?.data, bytes);
    server.kill()?;
    // It may shut its own dead process out.
    let server = serve().start()?;
    assert!(log_in(&server)?.read(0, 0, 8, BLOCK)? == bytes);
    server.stop()?;
    Ok(())
}
