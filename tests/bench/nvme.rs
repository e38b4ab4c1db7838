//! `lunet bench` over NVMe over TCP.

use anyhow::{Context, Result, ensure};
use lunet_e2e::data::scratch;
use lunet_e2e::server::{Serve, Server, free_port, url};
use lunet_nvme::auth::{Hash, Purpose, Secret};

use crate::support::*;

const HOST: &str = "nqn.2026-11.local.lunet:host";
const NQN: &str = "nqn.2026-11.local.lunet:bench";
const TARGET: &str = "iqn.2026-11.local.lunet:bench";
const LOCKED: &str = "nqn.2026-11.local.lunet:locked";

/// A server, and the addresses of its memory volume over both protocols. Its directory goes after it.
struct Both {
    server: Server,
    iscsi: String,
    nvme: String,
    locked: String,
    portal: String,
    dir: tempfile::TempDir,
}

fn secret(byte: u8) -> Result<String> {
    let secret = Secret::new(Purpose::DhChap, Some(Hash::Sha256), &[byte; 32])?;
    Ok(secret.to_text().to_string())
}

fn both() -> Result<Both> {
    let dir = scratch("lunet-bench-nvme-")?;
    private(dir.path(), "host.key", &secret(1)?)?;
    private(dir.path(), "controller.key", &secret(2)?)?;
    let port = free_port()?;
    let config = format!(
        "[[portal]]\naddress = \"127.0.0.1:0\"\n\
         [[portal]]\naddress = \"127.0.0.1:{port}\"\ntransport = [\"nvme-tcp\"]\n\
         [volumes.mem]\nbackend = \"memory\"\nsize = \"64MiB\"\n\
         [volumes.key]\nbackend = \"memory\"\nsize = \"16MiB\"\n\
         [[target]]\nname = \"iqn.2026-11.local.lunet:bench\"\nluns = [\"mem\"]\n\
         protocols = [\"iscsi\", \"nvme\"]\n\
         [[subsystem]]\nnqn = \"{LOCKED}\"\nnamespaces = [\"key\"]\n\
         hosts = [{{ nqn = \"{HOST}\", secret-file = \"host.key\", controller-secret-file = \"controller.key\" }}]\n"
    );
    let server = Serve::config(config).data(dir.path()).start()?;
    let iscsi = url(server.portal(), "iqn.2026-11.local.lunet:bench", 0);
    let portal = format!("nvme-tcp://127.0.0.1:{port}");
    let (nvme, locked) = (format!("{portal}/{NQN}/1"), format!("{portal}/{LOCKED}/1"));
    Ok(Both { server, iscsi, nvme, locked, portal, dir })
}

fn short(words: &[&str]) -> Vec<String> {
    let all = ["--rounds=1", "--runtime=100ms", "--size=8MiB", "--json"];
    all.iter().chain(words).map(|word| (*word).to_owned()).collect()
}

#[test]
fn a_volume_is_measured_over_both_protocols_in_turns() -> Result<()> {
    let Both { server, iscsi, nvme, .. } = &both()?;
    let results = measured(&short(&[iscsi, nvme, "--read-only"]))?;
    let kinds: Vec<_> = all(&results, "targets")?.iter().map(|one| one["kind"].clone()).collect();
    ensure!(kinds == ["iscsi", "nvme-tcp"], "{kinds:?}");
    let pid = i64::from(server.pid());
    for run in all(&results, "runs")? {
        ensure!(run["errors"] == 0 && run["read"]["operations"].as_u64() > Some(0), "{run}");
        let server = all(run, "processes")?.iter().find(|one| one["role"] == "server");
        ensure!(server.context("no server")?["pid"] == pid, "{run}");
        ensure!(
            run["server_latency_us"].as_f64() > Some(0.0),
            "the control socket was asked: {run}"
        );
    }
    ensure!(all(&results, "verdicts")?.len() == 6, "{results}");
    ensure!(written(server, "mem")? == 0, "nothing was written");
    Ok(())
}

#[test]
fn a_namespace_with_data_is_not_overwritten() -> Result<()> {
    let Both { server, nvme, .. } = &both()?;
    measured(&short(&[nvme, "--only=128k"]))?;
    let before = written(server, "mem")?;
    ensure!(before >= 8 << 20, "it was filled first: {before}");
    let error = refused(&short(&[nvme]))?;
    ensure!(error.contains("holds data") && error.contains("--destroy nvme-tcp://"), "{error}");
    let verify = ["verify", nvme, "--size=8MiB", "--runtime=500ms", "--json"];
    ensure!(refused(&verify)?.contains("holds data"));
    ensure!(written(server, "mem")? == before, "nothing was written");
    let told = measured(&[&verify[..], &["--destroy", nvme, "--digest=both"]].concat())?;
    ensure!(told["complete"] == true && told["wrong_blocks"] == 0, "{told}");
    ensure!(told["compared_blocks"].as_u64() > Some(1000), "{told}");
    ensure!(written(server, "mem")? > before, "it was meant");
    // Without its namespace it is the same one.
    let name = nvme.trim_end_matches("/1");
    measured(&short(&[name, "--only=4k random reads, depth 1", "--destroy", name]))?;
    Ok(())
}

#[test]
fn hosts_prove_themselves() -> Result<()> {
    let both = both()?;
    let file = |name: &str| both.dir.path().join(name).display().to_string();
    let (host, controller) = (file("host.key"), file("controller.key"));
    let words = |more: &[&str]| {
        short(&[&[both.locked.as_str(), "--read-only", "--only=depth 1"], more].concat())
    };
    measured(&words(&["--secret-file", &host]))?;
    measured(&words(&["--secret-file", &host, "--target-secret-file", &controller]))?;
    let error = refused(&words(&[]))?;
    ensure!(error.contains("DH-HMAC-CHAP") && error.contains("--secret-file FILE"), "{error}");
    let error = refused(&words(&["--secret-file", &controller]))?;
    ensure!(error.contains("could not prove itself"), "{error}");
    let error = refused(&words(&["--secret-file", &host, "--target-secret-file", &host]))?;
    ensure!(error.contains("the controller did not prove itself"), "{error}");
    let other = ["--host-nqn", "nqn.2026-11.local.lunet:other", "--secret-file", &host];
    let error = refused(&words(&other))?;
    ensure!(error.contains("does not let the host nqn.2026-11.local.lunet:other in"), "{error}");
    let damaged = private(both.dir.path(), "damaged.key", "DHHC-1:01:AAAA:")?;
    let error = refused(&words(&["--secret-file", &damaged]))?;
    ensure!(error.contains("damaged.key has no secret"), "{error}");
    Ok(())
}

#[test]
fn what_is_not_there_is_said_in_a_sentence() -> Result<()> {
    let Both { iscsi, nvme, portal, .. } = &both()?;
    let says = |target: &str| refused(&short(&[target, "--read-only"]));
    let error = says(&format!("{portal}/nqn.2026-11.local.lunet:none/1"))?;
    ensure!(error.contains("no subsystem nqn.2026-11.local.lunet:none"), "{error}");
    let error = says(&nvme.replace("bench/1", "bench/9"))?;
    ensure!(error.contains("no namespace 9; the subsystem has 1 for this host"), "{error}");
    // The discovery log has both subsystems for this host.
    let error = says(portal)?;
    ensure!(error.contains(NQN) && error.contains(LOCKED), "{error}");
    let port = iscsi.trim_start_matches("iscsi://").split('/').next().context("a portal")?;
    let error = says(&format!("nvme-tcp://{port}/{NQN}/1"))?;
    ensure!(error.contains("3260 is iSCSI's"), "{error}");
    let error = says(&format!("nvme-tcp://127.0.0.1:1/{NQN}/1"))?;
    ensure!(error.contains("127.0.0.1:1") && error.contains("listens"), "{error}");
    Ok(())
}

/// With kTLS the namespace is measured and looked at; without it, and that is all that can be tested then, the error says what to do.
/// The suite `nvme-tls` of the lab has kTLS.
#[test]
fn a_namespace_is_reached_by_tls() -> Result<()> {
    let dir = scratch("lunet-bench-tls-")?;
    let key = |byte: u8| -> Result<String> {
        let key = Secret::new(Purpose::Tls, Some(Hash::Sha256), &[byte; 32])?;
        Ok(key.to_text().to_string())
    };
    private(dir.path(), "host.tls", &key(1)?)?;
    private(dir.path(), "other.tls", &key(2)?)?;
    private(dir.path(), "host.key", &secret(1)?)?;
    let file = |name: &str| dir.path().join(name).display().to_string();
    let (own, other) = (file("host.tls"), file("other.tls"));
    let port = free_port()?;
    let url = format!("nvme-tcp://127.0.0.1:{port}/{LOCKED}/1");
    let words = |more: &[&str]| short(&[&[url.as_str(), "--read-only"], more].concat());
    // What is what shows by its form.
    let error = refused(&words(&["--secret-file", &own]))?;
    ensure!(error.contains("give it by --tls-key-file"), "{error}");
    let error = refused(&words(&["--tls-key-file", &file("host.key")]))?;
    ensure!(error.contains("give it by --secret-file"), "{error}");
    if lunet_ring::has_tls().is_err() {
        let _listener = std::net::TcpListener::bind(format!("127.0.0.1:{port}"))?;
        let error = refused(&words(&["--tls-key-file", &own]))?;
        ensure!(error.contains("modprobe tls"), "{error}");
        return Ok(());
    }
    let config = format!(
        "[[portal]]\naddress = \"127.0.0.1:{port}\"\ntransport = [\"nvme-tcp\"]\ntls = \"required\"\n\
         [volumes.key]\nbackend = \"memory\"\nsize = \"16MiB\"\n\
         [[target]]\nname = \"{TARGET}\"\n\
         [[subsystem]]\nnqn = \"{LOCKED}\"\nnamespaces = [\"key\"]\n\
         hosts = [{{ nqn = \"{HOST}\", tls-key-file = \"host.tls\" }}]\n"
    );
    let _server = Serve::config(config).data(dir.path()).start()?;
    measured(&words(&["--tls-key-file", &own]))?;
    let error = refused(&words(&["--tls-key-file", &other]))?;
    ensure!(error.contains("no TLS between the host") && error.contains(LOCKED), "{error}");
    let error = refused(&words(&[]))?;
    ensure!(error.contains("wants TLS"), "{error}");
    Ok(())
}
