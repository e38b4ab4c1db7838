//! Storage that cannot write back what was acknowledged: ext4 on a loop device whose file lies in a full file system.
//! Linux reports that once for each open file; no session may take the report away from another one.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lunet_e2e::data::scratch;
use lunet_e2e::fuse::{Mounted, is_root};
use lunet_e2e::process::output;
use lunet_e2e::server::{Serve, Server};
use lunet_e2e::wire::scsi::{self, CHECK_CONDITION, FUA, GOOD, SYNCHRONIZE_CACHE, write16};
use lunet_e2e::wire::{Login, Session};
use serde_json::Value;
use tempfile::TempDir;

const TARGET: &str = "iqn.2026-11.local.lunet:one";
const LIMIT: Duration = Duration::from_secs(30);

/// Key, code and qualifier: HARDWARE ERROR, INTERNAL TARGET FAILURE. Linux does not try that again.
const LOST: Option<[u8; 3]> = Some([4, 0x44, 0]);

/// A file system that cannot store what it has taken: its image lies in another one, which can be filled up. It has no
/// journal, so that it goes on when there is room again.
struct Storage {
    volume: PathBuf,
    filler: PathBuf,
    _inner: Mounted,
    _outer: Mounted,
}

impl Storage {
    fn new() -> Result<Storage> {
        let outer = Mounted::in_memory(24)?;
        let image = outer.path().join("image");
        File::create(&image)?.set_len(64 << 20)?;
        let arguments = ["-q", "-t", "ext4", "-O", "^has_journal", "-m", "0"];
        output(Command::new("mke2fs").args(arguments).arg(&image), LIMIT)?;
        let inner = Mounted::new(&image)?;
        let (volume, filler) = (inner.path().join("a.img"), outer.path().join("filler"));
        Ok(Storage { volume, filler, _inner: inner, _outer: outer })
    }

    fn fill(&self) -> Result<()> {
        let mut filler = File::create(&self.filler)?;
        while filler.write(&[1; 65536]).is_ok_and(|written| written > 0) {}
        Ok(())
    }

    fn make_room(&self) -> Result<()> {
        Ok(fs::remove_file(&self.filler)?)
    }
}

fn serve(data: &Path, storage: &Storage) -> Result<Server> {
    let text = format!(
        "[server]\nshards = 2\n[[portal]]\naddress = '127.0.0.1:0'\n[volumes.a]\nbackend = 'file'\npath = '{}'\n\
         size = '32MiB'\n[[target]]\nname = '{TARGET}'\nluns = ['a']\n",
        storage.volume.display()
    );
    Serve::config(text).data(data).quiet().start()
}

fn open(server: &Server, qualifier: u16) -> Result<Session> {
    let mut session = Session::open(&Login { qualifier, ..Login::new(server.portal(), TARGET) })?;
    session.settle(0)?;
    Ok(session)
}

/// Key, code and qualifier of a command that fails.
fn ask(session: &mut Session, cdb: &[u8], data: &[u8]) -> Result<Option<[u8; 3]>> {
    let answer = session.execute(0, cdb, 0, data)?;
    match (answer.status, answer.sense.as_slice()) {
        (GOOD, _) => Ok(None),
        (CHECK_CONDITION, [_, _, key, _, _, _, _, _, _, _, _, _, code, qualifier, ..]) => {
            Ok(Some([key & 0x0f, *code, *qualifier]))
        }
        _ => bail!("{answer:02x?}"),
    }
}

fn flush(session: &mut Session) -> Result<Option<[u8; 3]>> {
    ask(session, &SYNCHRONIZE_CACHE, &[])
}

/// Thirty-two blocks far apart, each answered GOOD.
fn write(session: &mut Session) -> Result<()> {
    for n in 0..32 {
        ensure!(ask(session, &scsi::write16(n * 128, 8), &[n as u8 + 1; 4096])?.is_none(), "{n}");
    }
    Ok(())
}

/// The states of the volume's faults, as a command with this argument tells them.
fn faults(server: &Server, of: &[&str]) -> Result<Vec<String>> {
    let told: Value = serde_json::from_str(&server.tell(&[of, &["--json"]].concat())?)?;
    let volumes = if told.is_array() { &told } else { &told["volumes"] };
    let faults = volumes[0]["faults"].as_array().cloned().unwrap_or_default();
    Ok(faults.iter().filter_map(|fault| fault["state"].as_str().map(str::to_owned)).collect())
}

/// Demands that whoever wrote is told, as often as it asks; `first` is what another session does before.
fn nobody_takes_the_report(first: &[u8], answer: Option<[u8; 3]>) -> Result<()> {
    if !is_root() {
        println!("left out: only root may mount");
        return Ok(());
    }
    let storage = Storage::new()?;
    let data = scratch("lunet-write-back-")?;
    let mut server = serve(data.path(), &storage)?;
    let (mut writer, mut other) = (open(&server, 0)?, open(&server, 1)?);
    ensure!(flush(&mut writer)?.is_none() && faults(&server, &["stats"])?.is_empty());
    storage.fill()?;
    write(&mut writer)?;
    let told = ask(&mut other, first, &[2; 512][..if first[0] == 0x8a { 512 } else { 0 }])?;
    ensure!(told == answer, "the other session: {told:02x?}");
    let deadline = Instant::now() + LIMIT;
    while faults(&server, &["volume", "list"])? != ["write-back-failed"] {
        ensure!(Instant::now() < deadline, "the failure is not known");
    }
    for round in 0..3 {
        for session in [&mut writer, &mut other] {
            let told = flush(session)?;
            ensure!(told == LOST, "flush {round}: {told:02x?}");
        }
    }
    let mut fua = write16(0, 1);
    fua[1] = FUA;
    let told = ask(&mut writer, &fua, &[3; 512])?;
    ensure!(told == LOST, "FUA: {told:02x?}");
    ensure!(faults(&server, &["stats"])? == ["write-back-failed"]);
    let list = server.tell(&["volume", "list"])?;
    ensure!(list.contains("lunet volume reopen a"), "{list}");
    // The log has a writer of its own.
    let said = |log: &str| log.contains("write-back failed").then_some(());
    server.process().stderr.find(Instant::now() + LIMIT, said);
    let log = server.process().stderr.text();
    ensure!(log.matches("write-back failed").count() == 1, "{log}");
    drop((writer, other));
    // Sessions come back after a kill, and flush what they wrote before.
    server.kill()?;
    let server = serve(data.path(), &storage)?;
    let mut writer = open(&server, 0)?;
    let told = flush(&mut writer)?;
    ensure!(told == LOST, "after a kill: {told:02x?}");
    storage.make_room()?;
    let told = server.tell(&["volume", "reopen", "a"])?;
    ensure!(told.contains("can be flushed again"), "{told}");
    ensure!(faults(&server, &["volume", "list"])?.is_empty());
    write(&mut writer)?;
    let told = flush(&mut writer)?;
    ensure!(told.is_none(), "after the reopen: {told:02x?}");
    ensure!(writer.read(0, 31 * 128, 8, 512)? == [32; 4096]);
    writer.logout()?;
    server.stop()?;
    ensure!(!data.path().join("a.write-back").exists());
    Ok(())
}

#[test]
fn a_flush_of_another_session_takes_no_report_away() -> Result<()> {
    nobody_takes_the_report(&SYNCHRONIZE_CACHE, LOST)
}

#[test]
fn a_flush_with_immed_takes_no_report_away() -> Result<()> {
    nobody_takes_the_report(&[0x35, 2, 0, 0, 0, 0, 0, 0, 0, 0], None)
}

/// A server, and a session whose last write was answered and cannot reach the storage.
fn with_a_lost_write(storage: &Storage) -> Result<(TempDir, Server, Session)> {
    let data = scratch("lunet-write-back-")?;
    let server = serve(data.path(), storage)?;
    let mut writer = open(&server, 0)?;
    ensure!(flush(&mut writer)?.is_none());
    storage.fill()?;
    write(&mut writer)?;
    Ok((data, server, writer))
}

/// What hears of the failure first has to keep it, whatever it is.
#[test]
fn a_reopen_and_a_stop_that_hear_of_it_first_keep_it() -> Result<()> {
    if !is_root() {
        println!("left out: only root may mount");
        return Ok(());
    }
    for reopen in [true, false] {
        let storage = Storage::new()?;
        let (data, server, writer) = with_a_lost_write(&storage)?;
        let server = if reopen {
            let told = server.tell(&["volume", "reopen", "a"]);
            ensure!(told.is_err(), "reopened over lost blocks: {told:?}");
            server
        } else {
            drop(writer);
            // It fails, since not everything could be flushed.
            drop(server.stop());
            ensure!(data.path().join("a.write-back").exists(), "the stop has left no mark");
            serve(data.path(), &storage)?
        };
        let told = flush(&mut open(&server, 1)?)?;
        ensure!(told == LOST, "reopen {reopen}: {told:02x?}");
        server.kill()?;
    }
    Ok(())
}

/// What has failed is the file, whatever the volume on it is called.
#[test]
fn a_failure_stays_with_the_file_of_a_volume_that_is_deleted() -> Result<()> {
    if !is_root() {
        println!("left out: only root may mount");
        return Ok(());
    }
    let storage = Storage::new()?;
    let (_data, server, mut writer) = with_a_lost_write(&storage)?;
    ensure!(flush(&mut writer)? == LOST);
    drop(writer);
    let file = storage.volume.to_str().context("no text")?;
    let moves = |old: &str, new: &str| -> Result<Vec<String>> {
        server.tell(&["volume", "delete", old, "--keep-data", "--yes", "--force"])?;
        server.tell(&["volume", "create", new, "--path", file])?;
        server.tell(&["target", "map", TARGET, "0", new])?;
        faults(&server, &["volume", "list"])
    };
    for (old, new) in [("a", "b"), ("b", "b")] {
        let told = moves(old, new)?;
        ensure!(told == ["write-back-failed"], "{old} as {new}: {told:?}");
        let told = flush(&mut open(&server, 1)?)?;
        ensure!(told == LOST, "{old} as {new}: {told:02x?}");
    }
    storage.make_room()?;
    server.tell(&["volume", "reopen", "b"])?;
    ensure!(moves("b", "c")?.is_empty() && flush(&mut open(&server, 2)?)?.is_none());
    server.stop()?;
    Ok(())
}

#[test]
fn a_write_with_fua_takes_no_report_away() -> Result<()> {
    let mut fua = write16(0, 1);
    fua[1] = FUA;
    nobody_takes_the_report(&fua, LOST)
}

/// WCE, from MODE SENSE (6) of the Caching page; and whether the page can be saved.
fn caching(session: &mut Session) -> Result<(bool, bool)> {
    let answer = session.execute(0, &[0x1a, 8, 0x08, 0, 24, 0], 24, &[])?;
    ensure!(answer.status == GOOD && answer.data.len() == 24, "MODE SENSE: {answer:02x?}");
    Ok((answer.data[6] & 0x04 != 0, answer.data[4] & 0x80 != 0))
}

/// MODE SELECT (6) of WCE, to be saved or not.
fn switch(session: &mut Session, on: bool, save: bool) -> Result<Option<[u8; 3]>> {
    let mut list = [0; 24];
    list[4..7].copy_from_slice(&[0x08, 0x12, u8::from(on) << 2]);
    ask(session, &[0x15, 0x10 | u8::from(save), 0, 0, 24, 0], &list)
}

const CACHED: &str = "\
[[portal]]
address = '127.0.0.1:0'
[volumes.a]
backend = 'file'
size = '16MiB'
[[target]]
name = 'iqn.2026-11.local.lunet:one'
luns = ['a']
";

/// `write cache` of a volume in `lunet volume list`.
fn listed(server: &Server, name: &str) -> Result<Value> {
    let told: Value = serde_json::from_str(&server.tell(&["volume", "list", "--json"])?)?;
    let volumes = told.as_array().cloned().unwrap_or_default();
    let volume = volumes.iter().find(|volume| volume["name"] == name);
    Ok(volume.map_or(Value::Null, |volume| volume["write_cache"].clone()))
}

#[test]
fn a_write_cache_that_an_initiator_switches_off_stays_off_after_a_kill() -> Result<()> {
    let data = scratch("lunet-write-back-")?;
    for (off, on) in [(true, true), (false, false)] {
        let server = Serve::config(CACHED).data(data.path()).start()?;
        let mut session = open(&server, 0)?;
        ensure!(caching(&mut session)? == (true, true) && listed(&server, "a")? == "on");
        ensure!(switch(&mut session, false, off)?.is_none());
        server.kill()?;
        let server = Serve::config(CACHED).data(data.path()).start()?;
        let mut session = open(&server, 0)?;
        ensure!(caching(&mut session)? == (false, true), "it is on after the kill");
        ensure!(listed(&server, "a")? == "off-by-initiator");
        ensure!(switch(&mut session, true, on)?.is_none());
        server.kill()?;
    }
    let server = Serve::config(CACHED).data(data.path()).start()?;
    ensure!(caching(&mut open(&server, 0)?)? == (true, true));
    server.stop()?;
    Ok(())
}

#[test]
fn a_write_cache_goes_off_and_on_by_configuration_while_sessions_are_there() -> Result<()> {
    let server = Serve::config(CACHED).start()?;
    let mut session = open(&server, 0)?;
    let file = server.data().join("lunet.toml");
    fs::write(&file, CACHED.replace("'16MiB'", "'16MiB'\nwrite-cache = 'off'"))?;
    let told = server.tell(&["config", "apply"])?;
    ensure!(told.contains("volume a has its write cache off now"), "{told}");
    session.settle(0)?;
    ensure!(caching(&mut session)? == (false, false) && listed(&server, "a")? == "off");
    ensure!(ask(&mut session, &write16(0, 1), &[1; 512])?.is_none());
    let told = switch(&mut session, true, false)?;
    ensure!(told == Some([5, 0x26, 0]), "WCE = 1: {told:02x?}");
    server.tell(&["volume", "create", "b", "--size", "1MiB", "--write-cache", "off"])?;
    ensure!(listed(&server, "b")? == "off");
    ensure!(fs::read_to_string(&file)?.contains("write-cache = \"off\""));
    let text = fs::read_to_string(&file)?;
    fs::write(&file, text.replace("write-cache = 'off'", ""))?;
    server.tell(&["config", "apply"])?;
    session.settle(0)?;
    ensure!(caching(&mut session)? == (true, true) && listed(&server, "a")? == "on");
    session.logout()?;
    server.stop()?;
    Ok(())
}
