//! Kinds of volumes, portals, targets and event loops, by configuration.

use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lunet_e2e::clients::{QemuLun, copy_in, copy_out, inquiry, list, qemu_io, size};
use lunet_e2e::data::{random_file, same_bytes, scratch};
use lunet_e2e::fuse::{LoopDevice, is_root};
use lunet_e2e::server::{Serve, free_port, url};
use lunet_e2e::wire::scsi::{CHECK_CONDITION, GOOD, read16, sense_key, write16};
use lunet_e2e::wire::{Login, Session};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 64 * MIB;
const TARGET: &str = "iqn.2026-11.local.lunet:t";

/// One volume behind one portal, with more lines for the server and the volume.
fn one(server: &str, volume: &str) -> Serve {
    Serve::config(format!(
        "[server]\n{server}\n[[portal]]\naddress = \"127.0.0.1:0\"\n\
         [volumes.a]\n{volume}\n[[target]]\nname = \"{TARGET}\"\nluns = [\"a\"]\n"
    ))
}

fn there_and_back(url: &str) -> Result<()> {
    let lun = QemuLun::new(url);
    ensure!(size(&lun)? == SIZE, "{} bytes", size(&lun)?);
    let dir = scratch("lunet-copy-")?;
    let (there, back) = (dir.path().join("there"), dir.path().join("back"));
    random_file(&there, SIZE)?;
    copy_in(&there, &lun)?;
    copy_out(&lun, &back)?;
    same_bytes(&there, &back, SIZE)
}

/// Logical block size, and the exponent of logical blocks per physical block, by READ CAPACITY(16).
fn geometry(portal: &str) -> Result<(u32, u8)> {
    let mut session = Session::open(&Login::new(portal, TARGET))?;
    session.settle(0)?;
    let mut cdb = [0; 16];
    cdb[0] = 0x9e;
    cdb[1] = 0x10;
    cdb[13] = 32;
    let answer = session.execute(0, &cdb, 32, &[])?;
    ensure!(answer.status == GOOD && answer.data.len() == 32, "{answer:02x?}");
    let block =
        u32::from_be_bytes([answer.data[8], answer.data[9], answer.data[10], answer.data[11]]);
    Ok((block, answer.data[13] & 0x0f))
}

/// By `layers`, as somebody does who wants to see what an initiator makes of it.
#[test]
fn a_volume_that_is_made_to_fail_and_to_slow_down() -> Result<()> {
    let layers = "layers = [{ fault = \"write\", errno = \"ENOSPC\", nth = 2 }, \
                  { delay = \"100ms\", on = \"read\", to = \"1MiB\" }]";
    let server = one("", &format!("backend = \"memory\"\nsize = \"64MiB\"\n{layers}")).start()?;
    let mut session = Session::open(&Login::new(server.portal(), TARGET))?;
    session.settle(0)?;
    let mut write = |lba| session.execute(0, &write16(lba, 1), 0, &[1; 512]);
    ensure!(write(0)?.status == GOOD);
    let failed = write(1)?;
    ensure!(failed.status == CHECK_CONDITION && sense_key(&failed) == Some(7), "{failed:02x?}");
    ensure!(write(1)?.status == GOOD, "only the second one fails");
    let begin = Instant::now();
    let read = session.execute(0, &read16(0, 1), 512, &[])?;
    ensure!(read.status == GOOD && read.data == [1; 512], "{read:02x?}");
    ensure!(begin.elapsed() >= Duration::from_millis(100), "{:?}", begin.elapsed());
    Ok(())
}

#[test]
fn a_4kn_volume() -> Result<()> {
    let server = one("", "backend = \"file\"\nsize = \"64MiB\"\nblock-size = 4096").start()?;
    ensure!(geometry(server.portal())? == (4096, 0), "{:?}", geometry(server.portal())?);
    there_and_back(server.url())
}

#[test]
fn a_512e_volume() -> Result<()> {
    let volume =
        "backend = \"file\"\nsize = \"64MiB\"\nblock-size = 512\nphysical-block-size = 4096";
    let server = one("", volume).start()?;
    ensure!(geometry(server.portal())? == (512, 3), "{:?}", geometry(server.portal())?);
    there_and_back(server.url())
}

#[test]
fn a_volume_with_direct_io() -> Result<()> {
    let volume = "backend = \"file\"\nsize = \"64MiB\"\ncache = \"direct\"";
    there_and_back(one("", volume).start()?.url())
}

#[test]
fn a_volume_in_memory() -> Result<()> {
    there_and_back(one("", "backend = \"memory\"\nsize = \"64MiB\"").start()?.url())
}

#[test]
fn a_null_volume_reads_zeroes_and_takes_writes() -> Result<()> {
    let server = one("", "backend = \"null\"\nsize = \"64MiB\"").start()?;
    let lun = QemuLun::new(server.url());
    let text = qemu_io(&lun, &["write -P 7 0 1M".into(), "read -P 0 0 1M".into()])?;
    ensure!(text.contains("wrote 1048576/1048576") && !text.contains("failed"), "{text}");
    Ok(())
}

#[test]
fn the_io_uring_driver() -> Result<()> {
    let volume = "backend = \"file\"\nsize = \"64MiB\"";
    there_and_back(one("driver = \"io_uring\"", volume).start()?.url())
}

#[test]
fn the_epoll_driver() -> Result<()> {
    let volume = "backend = \"file\"\nsize = \"64MiB\"";
    there_and_back(one("driver = \"epoll\"", volume).start()?.url())
}

#[test]
fn the_epoll_driver_with_a_volume_in_memory_and_busy_polling() -> Result<()> {
    let server = "driver = \"epoll\"\nbusy-poll = \"50us\"";
    there_and_back(one(server, "backend = \"memory\"\nsize = \"64MiB\"").start()?.url())
}

#[test]
fn a_read_only_volume_is_read_but_not_written() -> Result<()> {
    let dir = scratch("lunet-ro-")?;
    let path = dir.path().join("a.img");
    random_file(&path, SIZE)?;
    let volume = format!("backend = \"file\"\npath = \"{}\"\nread-only = true", path.display());
    let server = one("", &volume).start()?;
    let mut session = Session::open(&Login::new(server.portal(), TARGET))?;
    session.settle(0)?;
    let answer = session.execute(0, &write16(0, 1), 0, &[0; 512])?;
    ensure!(answer.status == CHECK_CONDITION, "{answer:02x?}");
    // DATA PROTECT
    ensure!(sense_key(&answer) == Some(7), "{answer:02x?}");
    let back = dir.path().join("back");
    copy_out(&QemuLun::new(server.url()), &back)?;
    same_bytes(&path, &back, SIZE)
}

#[test]
fn a_block_device() -> Result<()> {
    if !is_root() {
        println!("left out: only root may make a loop device");
        return Ok(());
    }
    let dir = scratch("lunet-loop-")?;
    for (sector, exponent) in [(512, None), (4096, Some(0))] {
        let path = dir.path().join(format!("disk-{sector}"));
        File::create(&path)?.set_len(SIZE)?;
        let device = LoopDevice::new(&path, sector)?;
        block_device(device.path(), sector, exponent)?;
    }
    Ok(())
}

fn block_device(device: &Path, sector: u32, exponent: Option<u8>) -> Result<()> {
    let volume = format!("backend = \"block\"\npath = \"{}\"", device.display());
    let server = one("", &volume).start()?;
    let (block, found) = geometry(server.portal())?;
    ensure!(block == sector && exponent.is_none_or(|e| e == found), "{block} {found}");
    there_and_back(server.url())?;
    server.stop()?;
    Ok(())
}

#[test]
fn an_ipv6_portal() -> Result<()> {
    if TcpListener::bind("[::1]:0").is_err() {
        println!("left out: this machine has no IPv6");
        return Ok(());
    }
    let config = format!(
        "[[portal]]\naddress = \"[::1]:0\"\n[volumes.a]\nbackend = \"memory\"\nsize = \"64MiB\"\n\
         [[target]]\nname = \"{TARGET}\"\nluns = [\"a\"]\n"
    );
    let server = Serve::config(config).start()?;
    ensure!(server.portal().starts_with("[::1]:"), "{}", server.url());
    ensure!(inquiry(server.url(), None)?.contains("DIRECT_ACCESS"));
    let listing = list(server.portal())?;
    ensure!(listing.contains(&format!("Portal:{},1", server.portal())), "{listing}");
    there_and_back(server.url())
}

#[test]
fn portals_and_targets_keep_apart() -> Result<()> {
    let portals = [(); 2].map(|()| free_port().map(|port| format!("127.0.0.1:{port}")));
    let [first, second] = portals;
    let (first, second) = (first?, second?);
    let config = format!(
        "[[portal]]\naddress = \"{first}\"\ntag = 1\n[[portal]]\naddress = \"{second}\"\ntag = 2\n\
         [volumes.a]\nbackend = \"memory\"\nsize = \"64MiB\"\n\
         [volumes.b]\nbackend = \"memory\"\nsize = \"32MiB\"\n\
         [[target]]\nname = \"{TARGET}-everywhere\"\nluns = {{ 0 = \"a\", 5 = \"b\" }}\n\
         [[target]]\nname = \"{TARGET}-second\"\nportals = [\"{second}\"]\nluns = [\"b\"]\n"
    );
    let server = Serve::config(config).start()?;

    let (everywhere, only) = (format!("{TARGET}-everywhere"), format!("{TARGET}-second"));
    let listing = list(&first)?;
    ensure!(listing.contains(&format!("Target:{everywhere} Portal:{first},1")), "{listing}");
    // It may be listed here, but only where it is.
    ensure!(!listing.contains(&format!("Target:{only} Portal:{first}")), "{listing}");
    let listing = list(&second)?;
    ensure!(listing.contains(&format!("Target:{only} Portal:{second},2")), "{listing}");

    ensure!(size(&QemuLun::new(&url(&first, &everywhere, 5)))? == 32 * MIB);
    ensure!(size(&QemuLun::new(&url(&second, &only, 0)))? == 32 * MIB);
    ensure!(inquiry(&url(&first, &only, 0), None).is_err(), "a target on a portal it is not on");
    ensure!(inquiry(&url(&first, &format!("{TARGET}-none"), 0), None).is_err());

    // Both names of volume b lead to the same bytes.
    qemu_io(&QemuLun::new(&url(&first, &everywhere, 5)), &["write -P 9 1M 1M".into()])?;
    let text = qemu_io(&QemuLun::new(&url(&second, &only, 0)), &["read -P 9 1M 1M".into()])?;
    ensure!(!text.contains("failed"), "{text}");
    server.stop()?;
    Ok(())
}
