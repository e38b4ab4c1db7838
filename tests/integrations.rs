//! What other systems use lunet by.
//!
//! The storage plugin for Proxmox VE: `proxmox/check.pl` calls its methods as Proxmox does, with the rights of its daemons
//! (perl's -T), against a real server over HTTPS. Disks of a node's kernel are a model; data goes through QEMU's own initiator.
//! The app for TrueNAS: its files are those of the image and of the configuration.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lunet_e2e::clients::SHORT;
use lunet_e2e::fuse::{Mounted, is_root};
use lunet_e2e::process::run;
use lunet_e2e::rest::Page;
use lunet_e2e::server::{Serve, Server, lunet_binary};
use lunet_e2e::wire::{Login, Session};
use serde_json::json;

/// Two portals, so that a node has two paths, and one for NVMe. All addresses have TLS, and loopback has no TLS, too.
const CONFIG: &str = "[[portal]]\naddress = '127.0.0.1:0'\n[[portal]]\naddress = '127.0.0.1:0'\n\
                      [[portal]]\naddress = '127.0.0.1:0'\ntransport = ['nvme-tcp']\n\
                      [control]\nlisten = ['127.0.0.1:0', '0.0.0.0:0']\n\
                      [volumes.old]\nbackend = 'memory'\nsize = '4MiB'\n\
                      [[target]]\nname = 'iqn.2026-11.local.lunet:old'\nluns = ['old']\n";

/// For a part of the check.
const PATIENCE: Duration = Duration::from_secs(180);

/// What the server prints: the port with TLS, and the certificate's fingerprint.
fn told(server: &mut Server) -> Result<(String, String)> {
    let told = server.process().stdout.find(Instant::now() + SHORT, |text| {
        let line = |start| text.lines().find_map(|line: &str| line.strip_prefix(start));
        let port = line("page: https://0.0.0.0:")?.split('/').next()?.to_owned();
        let hash = line("certificate: SHA-256 ")?.to_owned();
        text.contains(&format!("{hash}\n")).then_some((port, hash))
    });
    told.context("no address with TLS was told")
}

/// Runs parts of the check against a server of their own, on a file system that can clone files. Its image is in memory: what is
/// tried here is not whether data is stable.
fn check(parts: &[&str]) -> Result<()> {
    if !is_root() {
        println!("left out: only root may mount");
        return Ok(());
    }
    let memory = Mounted::in_memory(640)?;
    let mounted = Mounted::xfs(memory.path())?;
    let data = mounted.path().join("data");
    fs::create_dir(&data)?;
    let mut server = Serve::config(CONFIG).data(&data).start()?;
    let mut page = Page::of(&mut server)?;
    page.begin()?;
    let (port, fingerprint) = told(&mut server)?;
    let token = memory.path().join("token");
    fs::write(&token, page.token("pve", "administrator", 3600)?)?;
    let portals = page.get("/api/v1/portals")?;
    let portals = portals.as_array().context("no portals")?.iter();
    let iscsi: Vec<&str> =
        portals.filter(|it| it["tcp"] == true).filter_map(|it| it["address"].as_str()).collect();
    ensure!(iscsi.len() == 2, "{iscsi:?}");
    let scratch = memory.path().join("node");
    fs::create_dir(&scratch)?;

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("proxmox/check.pl");
    let mut perl = Command::new("perl");
    perl.arg("-T").arg(script).arg(&scratch).args(["127.0.0.1", &port, &fingerprint]);
    perl.arg(&token).args(iscsi).args(parts).env_remove("PVE_LIB");
    let output = run(&mut perl, PATIENCE)?;
    let done = parts
        .iter()
        .all(|part| output.stdout.lines().any(|l| l.starts_with("ok ") && l.ends_with(part)));
    ensure!(output.status.is_some_and(|status| status.success()) && done, "{}", output.describe());
    server.stop()?;
    mounted.unmount()?;
    memory.unmount()
}

#[test]
fn proxmox_has_disks_for_qemu_with_their_data() -> Result<()> {
    check(&["interface", "hooks", "libiscsi", "memory"])
}

#[test]
fn proxmox_has_snapshots_clones_and_templates() -> Result<()> {
    check(&["snapshots", "restarts"])
}

#[test]
fn proxmox_has_disks_of_the_kernel_on_two_nodes() -> Result<()> {
    check(&["iscsi", "nvme", "cluster"])
}

#[test]
fn proxmox_survives_lost_answers_and_tasks_that_are_cut_off() -> Result<()> {
    check(&["faults", "identity", "limits"])
}

/// The designators that REST tells of a volume are those that INQUIRY does, and the room is the file system's.
#[test]
fn rest_tells_designators_and_room() -> Result<()> {
    let mut server = Serve::config(CONFIG).start()?;
    let mut page = Page::of(&mut server)?;
    page.begin()?;
    page.tell("POST", "/api/v1/volumes", json!({"name": "new", "size": 1 << 20}))?;
    page.tell(
        "PUT",
        "/api/v1/targets/iqn.2026-11.local.lunet:old/luns/1",
        json!({"volume": "new"}),
    )?;
    let mut session = Session::open(&Login::new(server.portal(), "iqn.2026-11.local.lunet:old"))?;
    session.settle(1)?;
    let page83 = session.execute(1, &[0x12, 1, 0x83, 1, 0, 0], 256, &[])?.data;
    // Designators from byte 4 on: code set, type, reserved, length (SPC-5 7.7.6). Type 3 of the logical unit is NAA.
    let mut at = 4;
    let naa = loop {
        let designator = page83.get(at..at + 4).context("no NAA designator")?;
        let end = at + 4 + usize::from(designator[3]);
        if designator[1] & 0x3F == 0x03 {
            break page83[at + 4..end].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        }
        at = end;
    };
    let volume = page.get("/api/v1/volumes/new")?;
    ensure!(volume["naa"] == *naa, "{volume}: INQUIRY has {naa}");
    let parts: Vec<usize> =
        volume["uuid"].as_str().context("no UUID")?.split('-').map(str::len).collect();
    ensure!(parts == [8, 4, 4, 4, 12], "{volume}");

    let room = page.get("/api/v1/stats")?["room"].clone();
    let found = rustix::fs::statvfs(server.data())?;
    ensure!(room["size_bytes"] == found.f_frsize * found.f_blocks, "{room}");
    ensure!(room["available_bytes"].as_u64().is_some_and(|free| free > 0), "{room}");
    server.stop()?;
    Ok(())
}

/// Whoever has chosen a designator knows the volume by it, and nobody else has it.
#[test]
fn a_volume_has_the_designator_that_was_chosen_for_it() -> Result<()> {
    let mut server = Serve::config(CONFIG).start()?;
    let mut page = Page::of(&mut server)?;
    page.begin()?;
    let naa = "6024c4e00112233445566778899aabbc";
    let make = |name: &str, naa: &str| {
        let new = json!({"name": name, "size": 1 << 20, "naa": naa});
        page.ask("POST", "/api/v1/volumes", &new)
    };
    ensure!(make("a", naa)?.status == 201);
    ensure!(page.get("/api/v1/volumes/a")?["naa"] == naa);
    let twice = make("b", naa)?;
    ensure!(
        twice.status == 422 && twice.json.to_string().contains("that of volume"),
        "{}",
        twice.json
    );
    // One that a volume has by its name.
    let old = page.get("/api/v1/volumes/old")?["naa"].clone();
    let old = old.as_str().context("no designator")?;
    let taken = make("b", old)?;
    ensure!(taken.json["code"] == "exists", "{}", taken.json);
    ensure!(taken.json.to_string().contains("volume old has the designator"), "{}", taken.json);
    ensure!(make("b", "6024c4e")?.json["code"] == "invalid", "too short");
    let kept = page.get("/api/v1/config")?["text"].to_string();
    ensure!(kept.contains(naa), "it is the volume's at the next start, too: {kept}");
    server.stop()?;
    Ok(())
}

/// A file of the repository.
fn file(path: &str) -> Result<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::read_to_string(root.join(path)).with_context(|| path.to_owned())
}

/// The app is of the image that is built: version, user, data directory; and its configuration is one.
#[test]
fn the_app_for_truenas_is_of_the_image_and_its_configuration_is_right() -> Result<()> {
    let compose = file("integrations/truenas/compose.yaml")?;
    let has = |line: &str| compose.lines().any(|own| own.trim() == line);
    ensure!(has(concat!("image: lunet:", env!("CARGO_PKG_VERSION"))), "the version");
    for image in ["packaging/Containerfile", "packaging/oci-root", "packaging/oci-layout"] {
        let text = file(image)?;
        ensure!(text.contains("3260") && text.contains("/var/lib/lunet"), "{image}");
    }
    ensure!(file("packaging/Containerfile")?.contains("--uid 3260"), "the user of the image");
    ensure!(
        has("user: \"3260:3260\"") && has("- /mnt/tank/lunet:/var/lib/lunet"),
        "user and dataset"
    );
    ensure!(
        has("network_mode: host") && has("pull_policy: never") && has("read_only: true"),
        "how it runs"
    );

    // What is commented out has to be right, too, once the marks are gone: no line may be lost in another one's indentation.
    for (line, under) in [
        ("    # device_cgroup_rules:", "    #   - \"b 230:* rw\""),
        ("    # devices:", "    #   - /dev/zvol/tank/vm1:/dev/zvol/tank/vm1:rw"),
        ("    # devices:", "    #   - /dev/infiniband:/dev/infiniband:rw"),
    ] {
        let at = compose.lines().position(|own| own == line).context(line)?;
        ensure!(compose.lines().skip(at).any(|own| own == under), "{under}");
    }

    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../integrations/truenas/lunet.toml");
    let checked = run(Command::new(lunet_binary()?).args(["config", "check"]).arg(root), SHORT)?;
    ensure!(checked.status.is_some_and(|status| status.success()), "{}", checked.describe());
    let page = file("docs/truenas.md")?;
    for port in ["3260", "4420", "3261"] {
        ensure!(
            file("integrations/truenas/lunet.toml")?.contains(&format!("192.0.2.10:{port}")),
            "{port}"
        );
        ensure!(page.contains(port), "{port} is not on the page");
    }
    Ok(())
}
