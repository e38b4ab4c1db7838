//! Thin volumes on file systems that fill up.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lunet_e2e::data::scratch;
use lunet_e2e::fuse::{Mounted, is_root};
use lunet_e2e::process::output;
use lunet_e2e::server::{Serve, Server};
use lunet_e2e::wire::scsi::{GOOD, TEST_UNIT_READY, sense_code, write16};
use lunet_e2e::wire::{Login, Session};

const TARGET: &str = "iqn.2026-11.local.lunet:t";
const MIB: usize = 1 << 20;
/// Logical blocks of 512 bytes.
const CHUNK: u64 = (MIB / 512) as u64;
const LIMIT: Duration = Duration::from_secs(60);

/// SPACE ALLOCATION FAILED WRITE PROTECT.
const FULL: Option<(u8, u8, u8)> = Some((0x7, 0x27, 0x07));
/// THIN PROVISIONING SOFT THRESHOLD REACHED.
const THRESHOLD: Option<(u8, u8, u8)> = Some((0x6, 0x38, 0x07));
/// MODE PARAMETERS CHANGED.
const MODES_CHANGED: Option<(u8, u8, u8)> = Some((0x6, 0x2a, 0x01));

/// A volume of 64 MiB in `dir`, and one in memory.
fn serve(dir: &Path) -> Result<Server> {
    let path = dir.join("a.img");
    Serve::config(format!(
        "[[portal]]\naddress = \"127.0.0.1:0\"\n\
         [volumes.a]\nbackend = \"file\"\nsize = \"64MiB\"\npath = \"{}\"\nthreshold = \"99%\"\n\
         [volumes.b]\nbackend = \"memory\"\nsize = \"16MiB\"\n\
         [[target]]\nname = \"{TARGET}\"\nluns = [\"a\", \"b\"]\n",
        path.display()
    ))
    .start()
}

/// Takes all but a few MiB of a file system.
fn fill(dir: &Path) -> Result<()> {
    let space = rustix::fs::statvfs(dir)?;
    let most = (space.f_bavail * space.f_frsize).saturating_sub(12 * MIB as u64);
    let file = File::create(dir.join("filler"))?;
    Ok(rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, most)?)
}

fn chunk(at: u64) -> Vec<u8> {
    vec![at as u8 + 1; MIB]
}

/// Writes until the file system is full; how many chunks are written.
fn write_all(session: &mut Session) -> Result<u64> {
    let mut at = 0;
    while at < 60 {
        let answer = session.execute(0, &write16(at * CHUNK, CHUNK as u32), 0, &chunk(at))?;
        match sense_code(&answer) {
            None if answer.status == GOOD => at += 1,
            sense if sense == THRESHOLD => {}
            sense => {
                ensure!(sense == FULL, "chunk {at}: {answer:02x?}");
                return Ok(at);
            }
        }
    }
    anyhow::bail!("it has room for everything")
}

/// Waits until a command ends as it should.
fn until(
    session: &mut Session,
    cdb: &[u8],
    data: &[u8],
    wanted: Option<(u8, u8, u8)>,
) -> Result<()> {
    let limit = Instant::now() + LIMIT;
    loop {
        let answer = session.execute(0, cdb, 0, data)?;
        let sense = sense_code(&answer);
        if sense == wanted && (wanted.is_some() || answer.status == GOOD) {
            return Ok(());
        }
        ensure!(Instant::now() < limit, "{wanted:02x?} did not come, but {answer:02x?}");
        sleep(Duration::from_millis(50));
    }
}

/// The extents from the first block on: blocks, and whether they are mapped.
fn extents(session: &mut Session) -> Result<Vec<(u64, bool)>> {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[12]) = (0x9e, 0x12, 0x10);
    let answer = session.execute(0, &cdb, 4096, &[])?;
    ensure!(answer.status == GOOD, "{answer:02x?}");
    let extent = |d: &[u8]| {
        let blocks = d[8..12].iter().fold(0, |n, b| n << 8 | u64::from(*b));
        (blocks, d[12] == 0)
    };
    Ok(answer.data[8..].chunks_exact(16).map(extent).collect())
}

/// MiB available and used, by the Logical Block Provisioning log page.
fn room(session: &mut Session) -> Result<(u32, u32)> {
    let answer = session.execute(0, &[0x4d, 0, 0x4c, 0, 0, 0, 0, 0, 28, 0], 28, &[])?;
    ensure!(answer.status == GOOD && answer.data.len() == 28, "{answer:02x?}");
    let count = |at: usize| answer.data[at..at + 4].iter().fold(0, |n, b| n << 8 | u32::from(*b));
    Ok((count(8), count(20)))
}

fn fills_up_and_recovers(mounted: &Mounted) -> Result<()> {
    let dir = mounted.path();
    fill(dir)?;
    let server = serve(dir)?;
    let mut session = Session::open(&Login::new(server.portal(), TARGET))?;
    session.settle(0)?;
    session.settle(1)?;
    let written = write_all(&mut session)?;
    ensure!(written >= 4, "{written} MiB only");
    until(&mut session, &TEST_UNIT_READY, &[], THRESHOLD).context("the threshold")?;
    let (available, used) = room(&mut session)?;
    ensure!(available <= 2 && u64::from(used) >= written, "{available} and {used} MiB");
    // What has its space already is written, and so are other volumes.
    session.write(0, 0, &chunk(0), 512)?;
    session.write(1, 0, &chunk(0), 512)?;
    session.flush(0)?;
    // Space comes back: what was refused before succeeds.
    fs::remove_file(dir.join("filler"))?;
    let refused = write16(written * CHUNK, CHUNK as u32);
    until(&mut session, &refused, &chunk(written), None).context("after space came back")?;
    session.flush(0)?;
    for at in 0..=written {
        let data = session.read(0, at * CHUNK, CHUNK as u32, 512)?;
        ensure!(data == chunk(at), "chunk {at} is not what was written");
    }
    let all = (written + 1) * CHUNK;
    let expected = vec![(all, true), (64 * CHUNK - all, false)];
    let found = extents(&mut session)?;
    ensure!(found == expected, "{found:?}, not {expected:?}");
    drop(session);
    server.stop()?;
    Ok(())
}

/// A file system of `mib` in an image, made by a program with these arguments.
fn image(program: &str, arguments: &[&str], mib: u64) -> Result<()> {
    if !is_root() {
        println!("left out: only root may mount");
        return Ok(());
    }
    let dir = scratch("lunet-thin-")?;
    let image = dir.path().join("image");
    File::create(&image)?.set_len(mib * MIB as u64)?;
    output(Command::new(program).args(arguments).arg(&image), LIMIT)?;
    fills_up_and_recovers(&Mounted::new(&image)?)
}

#[test]
fn a_volume_on_tmpfs_fills_up_and_recovers() -> Result<()> {
    if !is_root() {
        println!("left out: only root may mount");
        return Ok(());
    }
    fills_up_and_recovers(&Mounted::in_memory(64)?)
}

#[test]
fn a_volume_on_ext4_fills_up_and_recovers() -> Result<()> {
    image("mke2fs", &["-q", "-t", "ext4", "-m", "0"], 128)
}

#[test]
fn a_volume_on_xfs_fills_up_and_recovers() -> Result<()> {
    image("mkfs.xfs", &["-q"], 320)
}

#[test]
fn a_threshold_changes_while_the_volume_is_served() -> Result<()> {
    if !is_root() {
        println!("left out: only root may mount");
        return Ok(());
    }
    let mounted = Mounted::in_memory(64)?;
    fill(mounted.path())?;
    let server = serve(mounted.path())?;
    let mut session = Session::open(&Login::new(server.portal(), TARGET))?;
    session.settle(0)?;
    let file = server.data().join("lunet.toml");
    fs::write(&file, fs::read_to_string(&file)?.replace("99%", "50%"))?;
    let applied = server.command(&["config", "apply"])?;
    ensure!(applied.stderr.is_empty(), "{}", applied.describe());
    until(&mut session, &TEST_UNIT_READY, &[], MODES_CHANGED)?;
    until(&mut session, &TEST_UNIT_READY, &[], THRESHOLD)?;
    drop(session);
    server.stop()?;
    Ok(())
}
