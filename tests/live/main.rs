//! What is served changes while it is served: who is concerned is told once, and nobody else notices.

mod configuration;
mod portals;
mod rules;
mod storage;

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use lunet_e2e::clients::{QemuLun, list, size};
use lunet_e2e::server::{Serve, Server, url};
use lunet_e2e::wire::scsi::{self, CHECK_CONDITION, GOOD, TEST_UNIT_READY};
use lunet_e2e::wire::{Login, Session};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const ONE: &str = "iqn.2026-11.local.lunet:one";
const TWO: &str = "iqn.2026-11.local.lunet:two";

/// REPORTED LUNS DATA HAS CHANGED and CAPACITY DATA HAS CHANGED (SPC-5 annex F).
const LUNS_CHANGED: [u8; 3] = [6, 0x3f, 0x0e];
const CAPACITY_CHANGED: [u8; 3] = [6, 0x2a, 0x09];
/// LOGICAL UNIT NOT SUPPORTED.
const NO_UNIT: [u8; 3] = [5, 0x25, 0x00];

const FILE: &str = "\
# two targets, a volume for each
[[portal]]
address = '127.0.0.1:0'

# the first
[volumes.a]
backend = 'file'   # sparse
size = '64MiB'

[volumes.b]
backend = 'file'
size = '32MiB'     # for now

[[target]]
name = 'iqn.2026-11.local.lunet:one'
luns = ['a']

[[target]]  # the second
name = 'iqn.2026-11.local.lunet:two'
luns = { 0 = 'b' }
";

fn open(server: &Server, target: &str, qualifier: u16) -> Result<Session> {
    let mut session = Session::open(&Login { qualifier, ..Login::new(server.portal(), target) })?;
    session.settle(0)?;
    Ok(session)
}

/// TEST UNIT READY: nothing, or key, code and qualifier.
fn ready(session: &mut Session, lun: u8) -> Result<Option<[u8; 3]>> {
    let answer = session.execute(lun, &TEST_UNIT_READY, 0, &[])?;
    match (answer.status, answer.sense.as_slice()) {
        (GOOD, _) => Ok(None),
        (CHECK_CONDITION, [_, _, key, _, _, _, _, _, _, _, _, _, code, qualifier, ..]) => {
            Ok(Some([key & 0x0f, *code, *qualifier]))
        }
        _ => bail!("{answer:02x?}"),
    }
}

/// Demands a unit attention, and that it comes once.
fn told(session: &mut Session, lun: u8, what: [u8; 3]) -> Result<()> {
    let first = ready(session, lun)?;
    ensure!(first == Some(what), "LUN {lun}: {first:02x?} instead of {what:02x?}");
    ensure!(ready(session, lun)?.is_none(), "LUN {lun}: told twice");
    Ok(())
}

/// The capacity in bytes.
fn capacity(session: &mut Session, lun: u8) -> Result<u64> {
    let capacity = scsi::capacity(session, lun)?;
    Ok(capacity.blocks * u64::from(capacity.block_size))
}

/// The first levels of the LUNs that REPORT LUNS tells.
fn luns(session: &mut Session) -> Result<Vec<u8>> {
    let mut cdb = [0; 12];
    (cdb[0], cdb[8], cdb[9]) = (0xa0, 1, 0);
    let answer = session.execute(0, &cdb, 256, &[])?;
    ensure!(answer.status == GOOD, "{answer:02x?}");
    Ok(answer.data[8..].chunks(8).map(|lun| lun[1]).collect())
}

fn text(server: &Server) -> Result<String> {
    Ok(fs::read_to_string(server.data().join("lunet.toml"))?)
}

/// Writes and reads without a pause until told to stop, and demands GOOD and the right data of all.
fn load(mut session: Session, stop: &AtomicBool) -> Result<u64> {
    let mut count = 0;
    while !stop.load(Ordering::Acquire) {
        let lba = count % 1000 * 8;
        let data = [count as u8; 4096];
        session.write(0, lba, &data, 512)?;
        ensure!(session.read(0, lba, 8, 512)? == data, "block {lba}");
        count += 1;
    }
    session.logout()?;
    Ok(count)
}

#[test]
fn the_concerned_are_told_once_and_the_others_notice_nothing() -> Result<()> {
    let server = Serve::config(FILE).start()?;
    let (busy, mut idle) = (open(&server, ONE, 0)?, open(&server, ONE, 1)?);
    let mut concerned = open(&server, TWO, 0)?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let load = scope.spawn(|| load(busy, &stop));
        let mut change = || -> Result<()> {
            server.tell(&["volume", "create", "c", "--size", "16MiB"])?;
            ensure!(ready(&mut concerned, 0)?.is_none(), "a volume without LUN concerns nobody");
            server.tell(&["target", "map", TWO, "5", "c"])?;
            told(&mut concerned, 0, LUNS_CHANGED)?;
            ensure!(luns(&mut concerned)? == [0, 5]);
            concerned.settle(5)?;
            ensure!(capacity(&mut concerned, 5)? == 16 * MIB);
            concerned.write(5, 0, &[7; 4096], 512)?;

            server.tell(&["volume", "resize", "c", "24MiB"])?;
            told(&mut concerned, 5, CAPACITY_CHANGED)?;
            ensure!(ready(&mut concerned, 0)?.is_none(), "only one of its LUNs was resized");
            ensure!(capacity(&mut concerned, 5)? == 24 * MIB);
            ensure!(concerned.read(5, 0, 8, 512)? == [7; 4096]);
            concerned.write(5, 24 * MIB / 512 - 8, &[9; 4096], 512)?;
            ensure!(size(&QemuLun::new(&url(server.portal(), TWO, 5)))? == 24 * MIB);

            let error = server.refuses(&["volume", "delete", "c", "--yes"])?;
            ensure!(error.contains("1 session sees volume c"), "{error}");
            let error = server.refuses(&["target", "unmap", TWO, "5"])?;
            ensure!(error.contains("1 session uses volume c as LUN 5"), "{error}");
            server.tell(&["target", "unmap", TWO, "5", "--force"])?;
            told(&mut concerned, 0, LUNS_CHANGED)?;
            ensure!(ready(&mut concerned, 5)? == Some(NO_UNIT));
            server.tell(&["volume", "delete", "c", "--yes"])?;
            ensure!(!server.data().join("c.img").exists());

            server.tell(&["target", "create", "iqn.2026-11.local.lunet:three", "--alias", "3"])?;
            server.tell(&["target", "map", "iqn.2026-11.local.lunet:three", "1", "b"])?;
            let listed = list(server.portal())?;
            ensure!(listed.contains("lunet:three") && listed.contains("Lun:1 "), "{listed}");
            server.tell(&["target", "delete", "iqn.2026-11.local.lunet:three"])?;
            ensure!(
                ready(&mut concerned, 0)?.is_none(),
                "another way to its volume is not its own"
            );
            Ok(())
        };
        let changed = change();
        stop.store(true, Ordering::Release);
        let count = load.join().map_err(|_| anyhow::anyhow!("the load panicked"))??;
        ensure!(count > 0, "no load");
        changed
    })?;
    ensure!(ready(&mut idle, 0)?.is_none(), "an idle session was told of what is not its own");
    ensure!(text(&server)? == FILE, "all that was added is gone again:\n{}", text(&server)?);
    server.stop()?;
    Ok(())
}

#[test]
fn a_deleted_target_ends_its_sessions_and_no_others() -> Result<()> {
    let server = Serve::config(FILE).start()?;
    let (mut one, mut two) = (open(&server, ONE, 0)?, open(&server, TWO, 0)?);
    let error = server.refuses(&["target", "delete", TWO])?;
    ensure!(error.contains("1 session") && error.contains("--force"), "{error}");
    ensure!(ready(&mut two, 0)?.is_none());
    server.tell(&["target", "delete", TWO, "--force"])?;
    // It is asked to log out, and cut off if it does not.
    let ended = (0..1000).any(|_| {
        thread::sleep(Duration::from_millis(10));
        two.execute(0, &TEST_UNIT_READY, 0, &[]).is_err()
    });
    ensure!(ended, "the session goes on without its target");
    ensure!(ready(&mut one, 0)?.is_none());
    let error = server.refuses(&["target", "delete", ONE, "--force"])?;
    ensure!(error.contains("only target"), "{error}");
    server.stop()?;
    Ok(())
}

#[test]
fn a_change_that_fails_leaves_everything_as_it_was() -> Result<()> {
    let server = Serve::config(FILE).start()?;
    let mut two = open(&server, TWO, 0)?;
    let files = || -> Result<Vec<_>> {
        let all: Result<Vec<_>, _> = fs::read_dir(server.data())?.collect();
        let mut names: Vec<_> = all?.iter().map(|entry| entry.file_name()).collect();
        names.sort();
        Ok(names)
    };
    // The last step but one fails: the configuration cannot be replaced.
    fs::create_dir(server.data().join(".lunet.toml.new"))?;
    let before = files()?;
    for change in [
        &["volume", "create", "c", "--size", "16MiB"][..],
        &["volume", "resize", "b", "40MiB"],
        &["volume", "delete", "b", "--yes", "--force"],
        &["target", "map", TWO, "1", "a"],
        &["target", "delete", TWO, "--force"],
    ] {
        let error = server.refuses(change)?;
        ensure!(error.contains("cannot write"), "{error}");
        ensure!(files()? == before, "{change:?} left something: {:?}", files()?);
        ensure!(text(&server)? == FILE);
        ensure!(fs::metadata(server.data().join("b.img"))?.len() == 32 * MIB, "{change:?}");
        ensure!(ready(&mut two, 0)?.is_none(), "{change:?} was told to initiators");
        ensure!(capacity(&mut two, 0)? == 32 * MIB);
    }
    // And with that out of the way, they come to pass.
    fs::remove_dir(server.data().join(".lunet.toml.new"))?;
    server.tell(&["volume", "resize", "b", "40MiB"])?;
    told(&mut two, 0, CAPACITY_CHANGED)?;
    server.stop()?;
    Ok(())
}

#[test]
fn one_change_at_a_time() -> Result<()> {
    const EACH: u32 = 10;
    let server = Serve::config(FILE).start()?;
    let create = &|thread: u32| -> Result<(Vec<String>, u32)> {
        let (mut made, mut busy) = (Vec::new(), 0);
        for n in 0..EACH {
            let name = format!("iqn.2026-11.local.lunet:{thread}-{n}");
            let finished = server.command(&["target", "create", &name])?;
            if finished.status.is_some_and(|status| status.success()) {
                made.push(name);
                continue;
            }
            let sentence = "another change is under way: try again when it has ended";
            ensure!(finished.stderr.contains(sentence), "{}", finished.describe());
            busy += 1;
            // Questions are answered meanwhile.
            server.tell(&["stats"])?;
        }
        Ok((made, busy))
    };
    let (mut made, mut busy) = (vec![ONE.to_owned(), TWO.to_owned()], 0);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|n| scope.spawn(move || create(n))).collect();
        for thread in threads {
            let (more, turned_away) =
                thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
            made.extend(more);
            busy += turned_away;
        }
        Ok::<_, anyhow::Error>(())
    })?;
    println!("{} changes done, {busy} turned away", made.len() - 2);
    let targets: Value = serde_json::from_str(&server.tell(&["target", "list", "--json"])?)?;
    let mut there: Vec<_> = targets["targets"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|t| t["name"].as_str())
        .collect();
    there.sort_unstable();
    made.sort_unstable();
    ensure!(there == made, "{there:?}, but {made:?} were acknowledged");
    server.stop()?;
    Ok(())
}

#[test]
fn lists_tell_what_is_there() -> Result<()> {
    let server = Serve::config(FILE).start()?;
    let _session = open(&server, ONE, 0)?;
    let volumes: Value = serde_json::from_str(&server.tell(&["volume", "list", "--json"])?)?;
    ensure!(volumes[0]["name"] == "a" && volumes[0]["sessions"] == 1, "{volumes:#}");
    ensure!(volumes[1]["size_bytes"] == 32 * MIB && volumes[1]["sessions"] == 0, "{volumes:#}");
    ensure!(volumes[1]["luns"][0]["target"] == TWO, "{volumes:#}");
    let targets: Value = serde_json::from_str(&server.tell(&["target", "list", "--json"])?)?;
    ensure!(targets["silent_shards"] == serde_json::json!([]), "{targets:#}");
    let two = &targets["targets"][1];
    ensure!(two["name"] == TWO && two["luns"][0]["volume"] == "b", "{targets:#}");
    ensure!(server.tell(&["volume", "snapshots", "--json"])?.trim() == "[]");
    ensure!(server.tell(&["target", "list"])?.contains("1 session"));
    server.stop()?;
    Ok(())
}
