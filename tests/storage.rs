//! Volumes whose storage is missing, smaller or another's: at the start, and while they are served.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lunet_e2e::clients::SHORT;
use lunet_e2e::data::scratch;
use lunet_e2e::server::{DEMO_TARGET, Serve, Server};
use lunet_e2e::wire::scsi::{
    GOOD, SYNCHRONIZE_CACHE, TEST_UNIT_READY, capacity, sense_code, sense_key, write16,
};
use lunet_e2e::wire::{Login, Session};
use serde_json::Value;

const SIZE: u64 = 16 << 20;
const TARGET: &str = "iqn.2026-11.local.lunet:storage";
const FILE: &str = "\
[[portal]]
address = '127.0.0.1:0'
[volumes.a]
backend = 'file'
size = '16MiB'
[volumes.b]
backend = 'file'
size = '16MiB'
[[target]]
name = 'iqn.2026-11.local.lunet:storage'
luns = ['a', 'b']
";

/// LOGICAL UNIT NOT READY, MANUAL INTERVENTION REQUIRED.
const NOT_READY: Option<(u8, u8, u8)> = Some((2, 0x04, 0x03));

fn open(server: &Server) -> Result<Session> {
    let mut session = Session::open(&Login::new(server.portal(), TARGET))?;
    session.settle(1)?;
    Ok(session)
}

/// What TEST UNIT READY says, after unit attentions.
fn ready(session: &mut Session, lun: u8) -> Result<Option<(u8, u8, u8)>> {
    for _ in 0..8 {
        let answer = session.execute(lun, &TEST_UNIT_READY, 0, &[])?;
        match sense_key(&answer) {
            Some(6) => {}
            _ if answer.status == GOOD => return Ok(None),
            _ => return Ok(sense_code(&answer)),
        }
    }
    bail!("unit attentions without end")
}

/// The words of what is wrong with a volume, as `volume list` has it: state and text.
fn fault(server: &Server, volume: &str) -> Result<Option<(String, String)>> {
    let list: Value = serde_json::from_str(&server.tell(&["volume", "list", "--json"])?)?;
    let of = |one: &&Value| one["name"] == volume;
    let one = list.as_array().into_iter().flatten().find(of).context("no such volume")?;
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let first = one["faults"].as_array().and_then(|all| all.first());
    Ok(first.map(|fault| (word(&fault["state"]), word(&fault["text"]))))
}

/// Both volumes with a block of ones, and stopped.
fn filled(data: &Path) -> Result<()> {
    let server = Serve::config(FILE).data(data).start()?;
    let mut session = open(&server)?;
    session.settle(0)?;
    for lun in [0, 1] {
        session.write(lun, 0, &[1; 4096], 512)?;
        session.flush(lun)?;
    }
    session.logout()?;
    server.stop()?;
    Ok(())
}

/// Does something to the file of a volume.
type Harm = fn(&Path) -> Result<()>;

/// What was done to the storage of a volume that is down, and what is said of it.
const HARM: &[(&str, Harm, &str)] = &[
    ("removed", |path| Ok(fs::remove_file(path)?), "storage-missing"),
    (
        "cut",
        |path| Ok(File::options().write(true).open(path)?.set_len(SIZE - 512)?),
        "storage-cut-short",
    ),
    (
        "emptied",
        |path| Ok(File::options().write(true).open(path)?.set_len(0)?),
        "storage-cut-short",
    ),
    (
        "another of its size",
        |path| {
            fs::remove_file(path)?;
            Ok(File::create(path)?.set_len(SIZE)?)
        },
        "storage-replaced",
    ),
];

#[test]
fn a_volume_without_its_storage_is_not_served_and_the_others_are() -> Result<()> {
    for (what, harm, state) in HARM {
        let dir = scratch("lunet-storage-")?;
        filled(dir.path())?;
        let image = dir.path().join("a.img");
        let kept = dir.path().join("kept");
        // A copy that keeps its attributes, as a backup does.
        let status = std::process::Command::new("cp").arg("-a").args([&image, &kept]).status()?;
        ensure!(status.success(), "cp: {status}");
        harm(&image)?;
        let length = image.metadata().map(|found| found.len()).ok();

        let server = Serve::default().data(dir.path()).start()?;
        let mut session = open(&server)?;
        ensure!(ready(&mut session, 0)? == NOT_READY, "{what}: {:?}", ready(&mut session, 0)?);
        ensure!(ready(&mut session, 1)?.is_none() && session.read(1, 0, 8, 512)? == [1; 4096]);
        let answer = session.execute(0, &write16(0, 8), 0, &[2; 4096])?;
        ensure!(sense_code(&answer) == NOT_READY, "{what}: {answer:02x?}");
        let (found, text) = fault(&server, "a")?.context("it is said to be sound")?;
        ensure!(found == *state && text.contains("a.img"), "{what}: {found}: {text}");
        ensure!(fault(&server, "b")?.is_none());
        let stats = server.tell(&["stats", "--json"])?;
        ensure!(stats.contains("\"not-served\""), "{stats}");
        ensure!(length == image.metadata().map(|found| found.len()).ok(), "{what}: it was touched");

        // The storage comes back.
        fs::rename(&kept, &image)?;
        let said = server.tell(&["config", "apply"])?;
        ensure!(said.contains("volume a is served"), "{said}");
        let first = session.execute(0, &TEST_UNIT_READY, 0, &[])?;
        ensure!(sense_key(&first) == Some(6), "told that it is ready: {first:02x?}");
        ensure!(ready(&mut session, 0)?.is_none() && session.read(0, 0, 8, 512)? == [1; 4096]);
        ensure!(fault(&server, "a")?.is_none());
        session.logout()?;
        server.stop()?;
    }
    Ok(())
}

#[test]
fn a_lost_volume_is_made_anew_or_replaced_on_purpose_only() -> Result<()> {
    let dir = scratch("lunet-recreate-")?;
    filled(dir.path())?;
    let image = dir.path().join("a.img");
    fs::remove_file(&image)?;
    let server = Serve::default().data(dir.path()).start()?;
    let mut session = open(&server)?;
    let error = server.refuses(&["volume", "recreate", "a"])?;
    ensure!(error.contains("--yes"), "{error}");
    let error = server.refuses(&["volume", "adopt", "a", "--yes"])?;
    ensure!(error.contains("nothing to adopt"), "{error}");
    let error = server.refuses(&["volume", "resize", "a", "32MiB"])?;
    ensure!(error.contains("not served") && error.contains("volume recreate a"), "{error}");
    ensure!(!image.exists());
    server.tell(&["volume", "recreate", "a", "--yes"])?;
    ensure!(ready(&mut session, 0)?.is_none() && session.read(0, 0, 8, 512)? == [0; 4096]);
    ensure!(image.metadata()?.mode() & 0o777 == 0o600);
    let error = server.refuses(&["volume", "recreate", "a", "--yes"])?;
    ensure!(error.contains("is served"), "{error}");
    session.logout()?;
    server.stop()?;

    // A copy that keeps no attributes could be anything.
    let copy = fs::read(dir.path().join("b.img"))?;
    fs::remove_file(&image)?;
    fs::write(&image, copy)?;
    let server = Serve::default().data(dir.path()).start()?;
    let mut session = open(&server)?;
    let error = server.refuses(&["volume", "recreate", "a", "--yes"])?;
    ensure!(error.contains("volume adopt a"), "{error}");
    server.tell(&["volume", "adopt", "a", "--yes"])?;
    ensure!(ready(&mut session, 0)?.is_none() && session.read(0, 0, 8, 512)? == [1; 4096]);
    session.logout()?;
    server.stop()?;
    let server = Serve::default().data(dir.path()).start()?;
    ensure!(fault(&server, "a")?.is_none(), "from now on it is the volume's");
    // A volume that is not served can be deleted, and what is in its place stays.
    server.stop()?;
    fs::write(&image, "notes")?;
    let server = Serve::default().data(dir.path()).start()?;
    server.tell(&["volume", "delete", "a", "--yes"])?;
    ensure!(fs::read_to_string(&image)? == "notes" && !dir.path().join("a.record").exists());
    server.stop()?;
    Ok(())
}

#[test]
fn files_are_made_for_new_volumes_when_asked_and_never_again() -> Result<()> {
    let dir = scratch("lunet-make-")?;
    let image = dir.path().join("a.img");
    let server = Serve::config(FILE).data(dir.path()).takes().start()?;
    let mut session = Session::open(&Login::new(server.portal(), TARGET))?;
    ensure!(ready(&mut session, 0)? == NOT_READY && !image.exists());
    let (state, text) = fault(&server, "a")?.context("it is said to be sound")?;
    ensure!(state == "not-made" && text.contains("lunet config apply"), "{state}: {text}");
    let foretold = server.tell(&["config", "apply", "--dry-run"])?;
    ensure!(foretold.contains("volume a is not served: its file "), "{foretold}");
    ensure!(foretold.contains("would be made") && !image.exists(), "{foretold}");
    server.tell(&["config", "apply"])?;
    ensure!(ready(&mut session, 0)?.is_none() && ready(&mut session, 1)?.is_none());
    ensure!(capacity(&mut session, 1)?.blocks * 512 == SIZE);
    session.logout()?;
    server.stop()?;
    fs::remove_file(&image)?;
    // The harness says --create, as a unit file might.
    let server = Serve::default().data(dir.path()).start()?;
    ensure!(fault(&server, "a")?.is_some_and(|(state, _)| state == "storage-missing"));
    let foretold = server.tell(&["config", "apply", "--dry-run"])?;
    ensure!(foretold.contains("volume a is not served: it would be opened again"), "{foretold}");
    ensure!(!image.exists());
    server.stop()?;

    let dir = scratch("lunet-demo-")?;
    Serve::demo("16M").data(dir.path()).takes().start()?.stop()?;
    fs::remove_file(dir.path().join("demo.img"))?;
    let server = Serve::demo("16M").data(dir.path()).takes().start()?;
    let mut session = Session::open(&Login::new(server.portal(), DEMO_TARGET))?;
    ensure!(ready(&mut session, 0)? == NOT_READY && !dir.path().join("demo.img").exists());
    session.logout()?;
    server.stop()?;
    Ok(())
}

/// Waits until a volume is said to be in this state.
fn comes_to(server: &Server, state: &str) -> Result<()> {
    let start = Instant::now();
    loop {
        match fault(server, "a")? {
            Some((found, _)) if found == state => return Ok(()),
            other => ensure!(start.elapsed() < Duration::from_secs(30), "{other:?}, not {state}"),
        }
        sleep(Duration::from_millis(200));
    }
}

#[test]
fn storage_that_is_lost_while_it_is_served_takes_no_more_writes() -> Result<()> {
    let harm: [(Harm, &str); 3] = [
        (|path| Ok(fs::remove_file(path)?), "storage-missing"),
        (
            |path| Ok(File::options().write(true).open(path)?.set_len(SIZE / 2)?),
            "storage-cut-short",
        ),
        (
            |path| {
                fs::rename(path, path.with_extension("old"))?;
                Ok(File::create(path)?.set_len(SIZE)?)
            },
            "storage-replaced",
        ),
    ];
    for (harm, state) in harm {
        let dir = scratch("lunet-lost-")?;
        let mut server = Serve::config(FILE).data(dir.path()).start()?;
        let mut session = open(&server)?;
        session.settle(0)?;
        session.write(0, 0, &[1; 4096], 512)?;
        session.flush(0)?;
        harm(&dir.path().join("a.img"))?;
        comes_to(&server, state)?;
        for (cdb, data) in [(&write16(8, 8)[..], &[2; 4096][..]), (&SYNCHRONIZE_CACHE[..], &[])] {
            let answer = session.execute(0, cdb, 0, data)?;
            ensure!(answer.status != GOOD, "{state}: {answer:02x?}");
        }
        ensure!(session.read(0, 0, 8, 512)? == [1; 4096], "what there is can be read");
        session.write(1, 0, &[3; 4096], 512)?;
        session.flush(1)?;
        ensure!(fault(&server, "b")?.is_none());
        session.logout()?;
        // The end of the server says so too.
        let status = server.process().terminate(SHORT)?;
        let log = server.process().stderr.whole_text();
        ensure!(status.code() == Some(1) && log.contains("the last writes may be lost"), "{log}");
        ensure!(log.lines().filter(|line| line.contains("nothing is written to it")).count() == 1);
    }
    Ok(())
}

/// Zeroes in the place of data come by `recreate` and `adopt` only, whether lunet has noticed yet or not.
#[test]
fn a_file_that_was_cut_is_not_filled_up_by_other_commands() -> Result<()> {
    for noticed in [false, true] {
        let dir = scratch("lunet-cut-")?;
        let server = Serve::config(FILE).data(dir.path()).start()?;
        let path = dir.path().join("a.img");
        File::options().write(true).open(&path)?.set_len(SIZE / 2)?;
        if noticed {
            comes_to(&server, "storage-cut-short")?;
        }
        for command in [
            &["volume", "reopen", "a"][..],
            &["volume", "resize", "a", "256MiB"],
            &["volume", "snapshot", "a@s"],
            &["volume", "clone", "a", "c"],
        ] {
            server.refuses(command)?;
            ensure!(fs::metadata(&path)?.len() == SIZE / 2, "{command:?}");
        }
        ensure!(!dir.path().join("c.img").exists() && !dir.path().join("a@s.img").exists());
        comes_to(&server, "storage-cut-short")?;
        drop(server.stop());
    }
    Ok(())
}

#[test]
fn a_deleted_volume_leaves_another_file_in_its_place_alone() -> Result<()> {
    let dir = scratch("lunet-foreign-")?;
    let server = Serve::config(FILE).data(dir.path()).start()?;
    let path = dir.path().join("a.img");
    fs::rename(&path, path.with_extension("old"))?;
    fs::write(&path, "somebody's")?;
    server.tell(&["volume", "delete", "a", "--yes", "--force"])?;
    ensure!(fs::read(&path)? == b"somebody's");
    server.stop()?;
    Ok(())
}

#[test]
fn a_lost_file_is_made_anew_while_it_is_served() -> Result<()> {
    let dir = scratch("lunet-anew-")?;
    let server = Serve::config(FILE).data(dir.path()).start()?;
    let mut session = open(&server)?;
    session.settle(0)?;
    fs::remove_file(dir.path().join("a.img"))?;
    comes_to(&server, "storage-missing")?;
    server.tell(&["volume", "recreate", "a", "--yes"])?;
    ensure!(ready(&mut session, 0)?.is_none() && fault(&server, "a")?.is_none());
    session.write(0, 0, &[5; 4096], 512)?;
    session.flush(0)?;
    session.logout()?;
    server.stop()?;
    ensure!(fs::read(dir.path().join("a.img"))?[..4096] == [5; 4096]);
    Ok(())
}

/// Demands that a start fails and leaves the directory as it was, or none.
fn fails(serve: Serve, data: &Path, words: &str) -> Result<()> {
    let names = || -> Vec<String> {
        let all = fs::read_dir(data).into_iter().flatten().flatten();
        let mut names: Vec<_> = all.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    };
    let (there, before) = (data.exists(), names());
    let (mut process, _) = serve.data(data).spawn()?;
    let status = process.wait(SHORT)?;
    let text = process.stderr.whole_text();
    ensure!(status.and_then(|s| s.code()) == Some(1) && text.contains(words), "{status:?}: {text}");
    let kept: Vec<String> = names();
    let new: Vec<&String> = kept.iter().filter(|name| !before.contains(name)).collect();
    // A directory that was there keeps its identity.
    let fine = ["form", "identity", "lunet.lock", "lunet.toml", "ports"];
    ensure!(new.iter().all(|name| there && fine.contains(&name.as_str())), "left behind: {new:?}");
    ensure!(there || !data.exists(), "the directory was left behind");
    Ok(())
}

#[test]
fn a_start_that_fails_leaves_nothing_behind() -> Result<()> {
    let (busy, dir) = (Serve::demo("16M").start()?, scratch("lunet-failed-")?);
    let taken = busy.portal().to_owned();
    fails(Serve::at(&taken, "8G"), &dir.path().join("new"), &taken)?;
    let there = dir.path().join("there");
    fs::create_dir(&there)?;
    fs::set_permissions(&there, fs::Permissions::from_mode(0o755))?;
    fails(Serve::at(&taken, "8G"), &there, &taken)?;
    // The second volume fails.
    let second =
        FILE.replace("'16MiB'\n[[target]]", "'4000TiB'\nprovisioning = 'full'\n[[target]]");
    fails(Serve::config(second), &there, "b.img")?;
    // What was there before stays.
    let text = FILE.replace("127.0.0.1:0", &taken);
    filled(&there)?;
    fails(Serve::config(text), &there, &taken)?;
    ensure!(fs::metadata(there.join("a.img"))?.len() == SIZE);
    ensure!(fs::metadata(there.join("a.record"))?.is_file());
    busy.stop()?;
    Ok(())
}

/// As on a full disk, whichever file is the one that has no room.
#[test]
fn a_first_start_names_the_file_that_it_cannot_write() -> Result<()> {
    for name in ["form", "identity", "ports"] {
        let dir = scratch("lunet-unwritten-")?;
        // Where the new file would be.
        fs::create_dir(dir.path().join(format!(".{name}.new")))?;
        let words =
            format!("{}: Is a directory: something else has", dir.path().join(name).display());
        fails(Serve::config(FILE), dir.path(), &words)?;
    }
    Ok(())
}

/// What an empty folder below a missing mount looks like: nothing may be made there, and no volume get another name.
#[test]
fn a_data_directory_that_was_served_before_and_is_empty_is_refused() -> Result<()> {
    let dir = scratch("lunet-mount-")?;
    let [data, away] = ["data", "away"].map(|name| dir.path().join(name));
    let file = dir.path().join("lunet.toml");
    let outside = dir.path().join("outside.img");
    fs::write(&file, FILE.replace("[volumes.b]", &format!("[volumes.b]\npath = {outside:?}")))?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
    let file = file.to_str().context("the directory's name is not UTF-8")?;
    let serve = || Serve::default().data(&data).arguments(&["--config", file]);
    let server = serve().start()?;
    let named = server.tell(&["volume", "list", "--json"])?;
    server.stop()?;
    fs::rename(&data, &away)?;
    fs::create_dir(&data)?;
    fs::set_permissions(&data, fs::Permissions::from_mode(0o700))?;
    fails(serve(), &data, "its file system is not mounted")?;
    ensure!(fs::read_dir(&data)?.count() == 0, "something was made below the mount");
    fs::remove_dir(&data)?;
    fails(serve(), &data, "its file system is not mounted")?;
    fs::rename(&away, &data)?;
    let server = serve().start()?;
    ensure!(server.tell(&["volume", "list", "--json"])? == named);
    server.stop()?;
    Ok(())
}

#[test]
fn a_memory_volume_larger_than_the_memory_is_refused() -> Result<()> {
    let big = "[volumes.m]\nbackend = 'memory'\nsize = '1000TiB'\n[[target]]";
    let text =
        FILE.replacen("[[target]]", big, 1).replace("luns = ['a', 'b']", "luns = ['m', 'a']");
    let server = Serve::config(text).start()?;
    let mut session = Session::open(&Login::new(server.portal(), TARGET))?;
    ensure!(ready(&mut session, 0)? == NOT_READY && ready(&mut session, 1)?.is_none());
    let (state, text) = fault(&server, "m")?.context("it is said to be sound")?;
    ensure!(state == "no-memory" && text.contains("choose a smaller size"), "{state}: {text}");
    let create = ["volume", "create", "n", "--backend", "memory", "--size", "1000TiB"];
    let error = server.refuses(&create)?;
    ensure!(error.contains("are available here: choose a smaller size"), "{error}");
    session.logout()?;
    server.stop()?;
    Ok(())
}

#[test]
fn directories_and_configurations_that_others_may_write_are_refused() -> Result<()> {
    let dir = scratch("lunet-trust-")?;
    let open = dir.path().join("open");
    fs::create_dir(&open)?;
    for mode in [0o775, 0o757, 0o1777] {
        fs::set_permissions(&open, fs::Permissions::from_mode(mode))?;
        let (mut process, _) = Serve::demo("16M").data(&open).spawn()?;
        let status = process.wait(SHORT)?;
        let text = process.stderr.whole_text();
        ensure!(status.and_then(|s| s.code()) == Some(1), "{mode:o}: {status:?}: {text}");
        ensure!(text.contains("other users may write the data directory"), "{text}");
    }
    let file = dir.path().join("lunet.toml");
    fs::write(&file, FILE)?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666))?;
    let argument = file.to_str().context("not UTF-8")?;
    let (mut process, _own) = Serve::default().arguments(&["--config", argument]).spawn()?;
    let status = process.wait(SHORT)?;
    let text = process.stderr.whole_text();
    ensure!(status.and_then(|s| s.code()) == Some(1), "{status:?}: {text}");
    ensure!(text.contains("other users may write the configuration"), "{text}");
    Ok(())
}
