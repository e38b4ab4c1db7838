//! What storage can do beside holding blocks: snapshots, clones, another size.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use lunet_e2e::clients::SHORT;
use lunet_e2e::data::scratch;
use lunet_e2e::fuse::{LoopDevice, Mounted, is_root};
use lunet_e2e::process::output;
use lunet_e2e::server::{Serve, Server};
use lunet_e2e::strace::{self, Strace};
use lunet_e2e::wire::Session;

use super::{CAPACITY_CHANGED, FILE, MIB, ONE, TWO, capacity, open, told};

#[test]
fn snapshots_clones_and_rollbacks_on_xfs() -> Result<()> {
    if !is_root() {
        println!("left out: only root may mount");
        return Ok(());
    }
    let dir = scratch("lunet-live-")?;
    let mounted = Mounted::xfs(dir.path())?;
    let data = mounted.path().join("data");
    fs::create_dir(&data)?;
    let server = Serve::config(FILE).data(&data).start()?;
    let mut one = open(&server, ONE, 0)?;
    one.write(0, 0, &[1; 4096], 512)?;
    server.tell(&["volume", "snapshot", "a@first"])?;
    one.write(0, 0, &[2; 4096], 512)?;
    server.tell(&["volume", "clone", "a", "now"])?;
    server.tell(&["volume", "clone", "a@first", "then"])?;
    server.tell(&["volume", "resize", "a", "80MiB"])?;
    told(&mut one, 0, CAPACITY_CHANGED)?;
    one.write(0, 72 * MIB / 512, &[3; 4096], 512)?;
    server.tell(&["target", "map", TWO, "1", "now"])?;
    server.tell(&["target", "map", TWO, "2", "then"])?;
    let mut two = open(&server, TWO, 0)?;
    for (lun, byte) in [(1, 2), (2, 1)] {
        two.settle(lun)?;
        ensure!(two.read(lun, 0, 8, 512)? == [byte; 4096], "LUN {lun}");
        ensure!(capacity(&mut two, lun)? == 64 * MIB);
    }
    let serial = |session: &mut Session, lun| -> Result<Vec<u8>> {
        Ok(session.execute(lun, &[0x12, 1, 0x80, 0, 255, 0], 255, &[])?.data)
    };
    ensure!(serial(&mut two, 1)? != serial(&mut two, 2)?, "two disks with one serial number");
    ensure!(serial(&mut two, 1)? != serial(&mut one, 0)?, "two disks with one serial number");
    two.write(1, 0, &[4; 4096], 512)?;
    ensure!(one.read(0, 0, 8, 512)? == [2; 4096], "a clone is not its source");

    let error = server.refuses(&["volume", "rollback", "a@first", "--yes"])?;
    ensure!(error.contains("1 session sees volume a"), "{error}");
    let error = server.refuses(&["volume", "rollback", "a@frist", "--force"])?;
    ensure!(error.contains("no snapshot a@frist; did you mean \"first\"?"), "{error}");
    let error = server.refuses(&["volume", "rollback", "a@first", "--force"])?;
    ensure!(error.contains("--yes"), "{error}");
    server.tell(&["volume", "rollback", "a@first", "--yes", "--force"])?;
    ensure!(one.read(0, 0, 8, 512)? == [1; 4096], "not what the snapshot holds");
    ensure!(one.read(0, 72 * MIB / 512, 8, 512)? == [0; 4096], "not zero behind the snapshot");
    ensure!(capacity(&mut one, 0)? == 80 * MIB);
    one.write(0, 8, &[5; 4096], 512)?;
    one.flush(0)?;

    let error = server.refuses(&["volume", "delete", "a", "--yes", "--force"])?;
    ensure!(error.contains("1 snapshot"), "{error}");
    let snapshots = server.tell(&["volume", "snapshots", "a"])?;
    ensure!(snapshots.contains("a@first"), "{snapshots}");
    server.tell(&["volume", "delete", "a@first", "--yes"])?;
    ensure!(server.tell(&["volume", "snapshots"])? == "no snapshots\n");
    drop((one, two));
    server.stop()?;

    let server = Serve::default().data(&data).start()?;
    let mut one = open(&server, ONE, 0)?;
    ensure!(one.read(0, 0, 8, 512)? == [1; 4096] && one.read(0, 8, 8, 512)? == [5; 4096]);
    drop(one);
    server.stop()?;
    Ok(())
}

#[test]
fn where_blocks_cannot_be_shared_snapshots_are_refused() -> Result<()> {
    // ext4 and tmpfs cannot; where a developer's disk can, this has nothing to show.
    let server = Serve::config(FILE).start()?;
    // What is not there is not asked about.
    for (words, says) in [
        (["volume", "rollback", "a@none"], "there is no snapshot a@none"),
        (["volume", "rollback", "aa@none"], "there is no volume \"aa\"; did you mean \"a\"?"),
        (["volume", "delete", "a@none"], "there is no snapshot a@none"),
        (["volume", "delete", "aa"], "there is no volume \"aa\"; did you mean \"a\"?"),
    ] {
        let error = server.refuses(&words)?;
        ensure!(error.contains(says) && !error.contains("--yes"), "{error}");
    }
    ensure!(server.refuses(&["volume", "delete", "a"])?.contains("--yes"));
    server.tell(&["volume", "create", "ram", "--backend", "memory", "--size", "1MiB"])?;
    let error = server.refuses(&["volume", "snapshot", "ram@x"])?;
    ensure!(error.contains("of the kind \"memory\""), "{error}");
    let finished = server.command(&["volume", "snapshot", "a@x"])?;
    if finished.status.is_some_and(|status| status.success()) {
        println!("left out: this file system shares blocks");
    } else {
        ensure!(finished.stderr.contains("XFS or btrfs"), "{}", finished.describe());
        let left: Vec<_> = fs::read_dir(server.data())?.filter_map(|e| e.ok()).collect();
        ensure!(!left.iter().any(|e| e.file_name().to_string_lossy().contains('@')), "{left:?}");
    }
    server.stop()?;
    Ok(())
}

#[test]
fn a_block_device_that_has_grown_is_looked_at_again() -> Result<()> {
    if !is_root() {
        println!("left out: only root may make a loop device");
        return Ok(());
    }
    let dir = scratch("lunet-live-")?;
    let file = dir.path().join("device");
    fs::File::create(&file)?.set_len(32 * MIB)?;
    let device = LoopDevice::new(&file, 512)?;
    let path = device.path().to_str().context("no name")?;
    let server = Serve::config(FILE).start()?;
    server.tell(&["volume", "create", "d", "--backend", "block", "--path", path])?;
    server.tell(&["target", "map", TWO, "1", "d"])?;
    let mut two = open(&server, TWO, 0)?;
    two.settle(1)?;
    ensure!(capacity(&mut two, 1)? == 32 * MIB);
    let error = server.refuses(&["volume", "resize", "d", "40MiB"])?;
    ensure!(error.contains("make that larger"), "{error}");
    let error = server.refuses(&["volume", "snapshot", "d@x"])?;
    ensure!(error.contains("no ZFS volume"), "{error}");
    fs::File::options().write(true).open(&file)?.set_len(48 * MIB)?;
    output(Command::new("losetup").arg("-c").arg(path), SHORT)?;
    server.tell(&["volume", "resize", "d"])?;
    told(&mut two, 1, CAPACITY_CHANGED)?;
    ensure!(capacity(&mut two, 1)? == 48 * MIB);
    two.write(1, 48 * MIB / 512 - 8, &[1; 4096], 512)?;
    drop(two);
    let gone = server.tell(&["volume", "delete", "d", "--yes"])?;
    ensure!(gone.contains(&format!("its data is still in {path}")), "{gone}");
    server.stop()?;
    Ok(())
}

#[test]
fn event_loops_open_and_close_no_files_when_volumes_change() -> Result<()> {
    if !strace::is_allowed() {
        println!("left out: strace may not be used here");
        return Ok(());
    }
    let server = Serve::config(FILE).start()?;
    let log = server.data().join("calls");
    let loops = strace::threads(server.pid(), "lunet-shard")?;
    ensure!(!loops.is_empty());
    // A marker in the log shows that it is written: loops wake up for each of these changes.
    let calls = "trace=open,openat,close,munmap,io_uring_enter,epoll_pwait,epoll_pwait2,epoll_wait";
    let traced = Strace::attach(&loops, &log, &["-e", calls])?;
    server.tell(&["volume", "create", "c", "--size", "16MiB"])?;
    server.tell(&["volume", "create", "m", "--backend", "memory", "--size", "16MiB"])?;
    server.tell(&["volume", "resize", "c", "24MiB"])?;
    server.tell(&["volume", "delete", "c", "--yes"])?;
    server.tell(&["volume", "delete", "m", "--yes"])?;
    traced.detach()?;
    let text = fs::read_to_string(&log)?;
    let calls = |name: &str| text.lines().filter(|line| line.contains(name)).count();
    ensure!(calls("io_uring_enter") + calls("epoll_") > 0, "nothing was traced");
    let blocking = ["open(", "openat(", "close(", "munmap("].map(calls);
    ensure!(blocking == [0; 4], "{blocking:?} of an event loop:\n{text}");
    server.stop()?;
    Ok(())
}

/// A server whose volume `a` is `volumes/a.img` on a file system of its own; its data directory is `data` in `dir`.
fn on_xfs(dir: &Path) -> Result<(Mounted, Server)> {
    let mounted = Mounted::xfs(dir)?;
    let (volumes, data) = (mounted.path().join("volumes"), dir.join("data"));
    fs::create_dir(&volumes)?;
    fs::create_dir(&data)?;
    let path = format!("path = '{}'\nsize = '64MiB'", volumes.join("a.img").display());
    let server = Serve::config(FILE.replace("size = '64MiB'", &path)).data(&data).start()?;
    Ok((mounted, server))
}

/// Exit code 1 means that nothing has changed, and 0 that it is done, if perhaps not for good.
#[test]
fn a_snapshot_whose_directory_cannot_be_synced_is_there_or_not_as_told() -> Result<()> {
    if !is_root() || !strace::is_allowed() {
        println!("left out: only root may mount, and strace has to be allowed");
        return Ok(());
    }
    let dir = scratch("lunet-live-")?;
    let (mounted, server) = on_xfs(dir.path())?;
    let (volumes, data) = (mounted.path().join("volumes"), dir.path().join("data"));
    fs::set_permissions(volumes.join("a.img"), fs::Permissions::from_mode(0o644))?;
    let mode = |name: &str| -> Result<u32> { Ok(volumes.join(name).metadata()?.mode() & 0o777) };
    let directory = volumes.to_str().context("no text")?;
    let log = data.join("calls");
    let fails = ["-f", "-P", directory, "-e", "trace=fsync", "-e", "inject=fsync:error=EIO:when=1"];
    let traced = Strace::attach(&[server.pid()], &log, &fails)?;
    let error = server.refuses(&["volume", "snapshot", "a@first"])?;
    ensure!(error.contains("nothing was kept"), "{error}");
    traced.detach()?;
    let names = fs::read_dir(&volumes)?.count();
    ensure!(names == 2, "{names} names beside the volume's and its lock's");
    server.tell(&["volume", "snapshot", "a@first"])?;
    server.tell(&["volume", "clone", "a", "now"])?;
    server.tell(&["volume", "clone", "a@first", "then"])?;
    ensure!((mode("a@first.img")?, mode("now.img")?, mode("then.img")?) == (0o400, 0o600, 0o600));
    let traced = Strace::attach(&[server.pid()], &log, &fails)?;
    let told = server.tell(&["volume", "delete", "a@first", "--yes", "--json"])?;
    traced.detach()?;
    ensure!(told.contains("may not survive a power loss"), "{told}");
    ensure!(!volumes.join("a@first.img").exists());
    server.stop()?;
    Ok(())
}

#[test]
fn a_rollback_that_cannot_be_made_stable_leaves_what_is_served() -> Result<()> {
    if !is_root() || !strace::is_allowed() {
        println!("left out: only root may mount, and strace has to be allowed");
        return Ok(());
    }
    let dir = scratch("lunet-live-")?;
    let (mounted, server) = on_xfs(dir.path())?;
    let (volumes, data) = (mounted.path().join("volumes"), dir.path().join("data"));
    let mut one = open(&server, ONE, 0)?;
    one.write(0, 0, &[1; 4096], 512)?;
    server.tell(&["volume", "snapshot", "a@first"])?;
    one.write(0, 0, &[2; 4096], 512)?;
    let rollback = ["volume", "rollback", "a@first", "--yes", "--force"];
    // The first sync of the directory is that of the new file, the second that of the exchange.
    let directory = volumes.to_str().context("no text")?;
    let log = data.join("calls");
    let fails = "inject=fsync:error=EIO:when=2";
    let arguments = ["-f", "-P", directory, "-e", "trace=fsync", "-e", fails];
    let traced = Strace::attach(&[server.pid()], &log, &arguments)?;
    let error = server.refuses(&rollback)?;
    ensure!(error.contains("cannot exchange"), "{error}");
    traced.detach()?;
    ensure!(fs::read_to_string(&log)?.contains("INJECTED"));
    // What is served lies where it was, and what is written now is there after a restart.
    one.write(0, 8, &[3; 4096], 512)?;
    one.flush(0)?;
    drop(one);
    server.stop()?;
    ensure!(!volumes.join(".a.rollback").exists(), "the copy has stayed");
    let server = Serve::default().data(&data).start()?;
    let mut one = open(&server, ONE, 0)?;
    ensure!(one.read(0, 0, 8, 512)? == [2; 4096], "not what was written before the rollback");
    ensure!(one.read(0, 8, 8, 512)? == [3; 4096], "not what was written after it");
    server.tell(&rollback)?;
    ensure!(one.read(0, 0, 8, 512)? == [1; 4096], "not what the snapshot holds");
    drop(one);
    server.stop()?;
    Ok(())
}
