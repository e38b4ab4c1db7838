//! A volume does what its limit says, for a real initiator, and limits change while it works.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lunet_e2e::clients::QemuLun;
use lunet_e2e::process::{Running, leashed};
use lunet_e2e::server::{Serve, Server, url};
use serde_json::{Value, json};

const TARGET: &str = "iqn.2026-11.local.lunet:limits";
/// Reads per second, and the burst in seconds.
const IOPS: f64 = 200.0;
const BURST: f64 = 0.1;

fn serve() -> Result<Server> {
    Serve::config(format!(
        "[server]\nshards = 2\n[[portal]]\naddress = \"127.0.0.1:0\"\n\
         [volumes.a]\nbackend = \"memory\"\nsize = \"64MiB\"\niops = {IOPS}\n\
         [[target]]\nname = \"{TARGET}\"\nluns = [\"a\"]\n"
    ))
    .start()
}

/// QEMU's own benchmark, by libiscsi: 64 reads of 4 KiB in flight, for longer than the test takes. Killed when dropped.
fn qemu(server: &Server) -> Result<Running> {
    let lun = QemuLun::new(&url(server.portal(), TARGET, 0));
    let mut command: Command = leashed(None);
    command.args(["qemu-img", "bench", "-c", "1000000000", "-s", "4096", "-S", "4096", "-d", "64"]);
    Running::spawn(command.args(["--image-opts", &lun.raw()]))
}

/// The server's own time in seconds, its reads so far, and how often one has waited for a limit.
fn counts(server: &Server) -> Result<(f64, f64, u64)> {
    let stats: Value = serde_json::from_str(&server.tell(&["stats", "--json"])?)?;
    let time = stats["loads"][0]["time_us"].as_f64().context("a time")?;
    let volume = &stats["volumes"][0];
    let reads = volume["read"]["ops"].as_f64().context("reads")?;
    Ok((time / 1e6, reads, volume["time"]["limit_waits"].as_u64().context("waits")?))
}

/// Reads in a while, and what the limit allows in that time. The shards are asked one after the other.
fn window(server: &Server) -> Result<(f64, f64)> {
    let (began, before, _) = counts(server)?;
    thread::sleep(Duration::from_secs(3));
    let (ended, after, _) = counts(server)?;
    Ok((after - before, IOPS * (ended - began + BURST + 0.2)))
}

#[test]
fn a_volume_is_made_with_its_limits() -> Result<()> {
    let server = serve()?;
    let limits = ["--iops", "50", "--bandwidth", "200MiB/s", "--weight", "300"];
    let size = ["volume", "create", "b", "--backend", "memory", "--size", "1MiB"];
    server.tell(&[&size[..], &limits].concat())?;
    let refused =
        server.refuses(&["volume", "create", "c", "--size", "1MiB", "--weight", "9999"])?;
    ensure!(refused.contains("the weight must be from 1 to 1000"), "{refused}");
    let all: Value = serde_json::from_str(&server.tell(&["volume", "list", "--json"])?)?;
    let found = all.as_array().context("a list")?.iter().find(|one| one["name"] == "b");
    let expected = json!({"iops": 50, "bytes_per_s": 200 << 20, "burst_ms": 100, "weight": 300});
    ensure!(found.context("the volume")?["own_limits"] == expected, "{all}");
    server.stop()?;
    Ok(())
}

#[test]
fn a_real_initiator_is_kept_to_limits_that_change_under_it() -> Result<()> {
    let server = serve()?;
    let clients = [qemu(&server)?, qemu(&server)?];
    // They have begun, and wait.
    while counts(&server)?.2 == 0 {
        thread::sleep(Duration::from_millis(50));
    }
    let (reads, most) = window(&server)?;
    ensure!(reads > 0.0 && reads <= most, "{reads} of {most} by the volume's limit");
    let told = server.tell(&["volume", "limit", "a", "--iops", "none"])?;
    ensure!(told.contains("volume a has no limit now"), "{told}");
    // Those that waited go on, and nothing waits any more.
    let mut before = counts(&server)?;
    loop {
        thread::sleep(Duration::from_secs(1));
        let after = counts(&server)?;
        if after.2 == before.2 && after.1 > before.1 {
            break;
        }
        before = after;
    }
    let file = server.data().join("lunet.toml");
    let text = fs::read_to_string(&file)?;
    ensure!(!text.contains("iops"), "{text}");
    fs::write(&file, format!("{text}[[limit]]\neach = \"initiator\"\niops = {IOPS}\n"))?;
    let applied = server.tell(&["config", "apply"])?;
    ensure!(applied.contains("limits of initiators and sessions are others"), "{applied}");
    thread::sleep(Duration::from_millis(500));
    // Both clients are the same initiator.
    let (reads, most) = window(&server)?;
    ensure!(reads > 0.0 && reads <= most, "{reads} of {most} by the initiator's limit");
    drop(clients);
    server.stop()?;
    Ok(())
}
