//! File systems and fio on a logical unit that `qemu-storage-daemon` exports as a file.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use lunet_e2e::clients::{LONG, QemuLun};
use lunet_e2e::data::{random_file, scratch};
use lunet_e2e::fuse::{Export, Mounted, is_root};
use lunet_e2e::process::output;
use lunet_e2e::server::Serve;
use tempfile::TempDir;

/// About 70 MB in files of many sizes, whole blocks and not, in nested directories.
fn tree() -> Result<TempDir> {
    let dir = scratch("lunet-tree-")?;
    for i in 0..120_u64 {
        let parent = dir.path().join(format!("d{}/e{}", i % 7, i % 3));
        fs::create_dir_all(&parent)?;
        random_file(&parent.join(format!("file-{i}")), i * i * 120 + i)?;
    }
    Ok(dir)
}

fn check(image: &Path) -> Result<()> {
    output(Command::new("/sbin/e2fsck").arg("-fn").arg(image), LONG).map(drop)
}

fn same_tree(left: &Path, right: &Path) -> Result<()> {
    let mut command = Command::new("diff");
    command.args(["--recursive", "--exclude=lost+found"]).args([left, right]);
    output(&mut command, LONG).map(drop)
}

#[test]
fn ext4_made_from_a_tree_is_clean_and_reads_back_equal() -> Result<()> {
    let server = Serve::demo("1G").start()?;
    let lun = QemuLun::new(server.url());
    let source = tree()?;
    let export = Export::start(&lun)?;
    let mut make = Command::new("/sbin/mke2fs");
    make.args(["-q", "-F", "-t", "ext4", "-d"]).args([source.path(), export.file()]);
    output(&mut make, LONG)?;
    export.stop()?;

    // A new session: nothing of the first one's caches is left.
    let export = Export::start(&lun)?;
    check(export.file())?;
    let copy = scratch("lunet-tree-")?;
    let mut dump = Command::new("/sbin/debugfs");
    dump.args(["-R", &format!("rdump / {}", copy.path().display())]).arg(export.file());
    output(&mut dump, LONG)?;
    same_tree(source.path(), copy.path())?;
    export.stop()
}

#[test]
fn ext4_mounted_filled_and_mounted_again_is_clean_and_equal() -> Result<()> {
    if !is_root() {
        println!("left out: only root may mount");
        return Ok(());
    }
    let server = Serve::demo("1G").start()?;
    let lun = QemuLun::new(server.url());
    let source = tree()?;
    let export = Export::start(&lun)?;
    output(Command::new("/sbin/mke2fs").args(["-q", "-F", "-t", "ext4"]).arg(export.file()), LONG)?;
    let mounted = Mounted::new(export.file())?;
    let mut copy = Command::new("cp");
    output(copy.arg("-a").arg(source.path()).arg(mounted.path().join("tree")), LONG)?;
    mounted.unmount()?;
    check(export.file())?;
    export.stop()?;

    let export = Export::start(&lun)?;
    let mounted = Mounted::new(export.file())?;
    same_tree(source.path(), &mounted.path().join("tree"))?;
    mounted.unmount()?;
    export.stop()
}

#[test]
fn fio_verifies_random_writes() -> Result<()> {
    fio("randwrite-4k", &["--rw=randwrite", "--bs=4k", "--size=64M", "--ioengine=psync"])
}

#[test]
fn fio_verifies_mixed_sizes_from_several_threads() -> Result<()> {
    let arguments = [
        "--rw=randwrite",
        "--bsrange=4k-256k",
        "--size=64M",
        "--ioengine=posixaio",
        "--iodepth=16",
        "--numjobs=4",
        "--offset_increment=64M",
        "--fsync=64",
    ];
    fio("mixed", &arguments)
}

fn fio(name: &str, arguments: &[&str]) -> Result<()> {
    let server = Serve::demo("1G").start()?;
    let export = Export::start(&QemuLun::new(server.url()))?;
    let dir = scratch("lunet-fio-")?;
    let mut command = Command::new("fio");
    command.current_dir(dir.path()).args(["--thread", "--verify=crc32c", "--verify_fatal=1"]);
    command.arg(format!("--name={name}")).arg(format!("--filename={}", export.file().display()));
    let text = output(command.args(arguments), LONG)?;
    assert!(!text.contains("verify:"), "{text}");
    // fio reads everything back after the writes: no verified reads would mean that nothing was checked.
    assert!(text.contains("READ: bw="), "{text}");
    export.stop()?;
    server.stop()?;
    Ok(())
}
