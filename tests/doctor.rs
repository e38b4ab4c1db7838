//! `lunet doctor` looks at targets over the network: at lunet itself and at Debian's tgt, with CHAP, by name and by discovery.

use std::fs::File;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lunet_e2e::data::scratch;
use lunet_e2e::process::{Finished, Running, run};
use lunet_e2e::server::{DEMO_TARGET, Serve, Server, free_port, lunet_binary};
use lunet_e2e::tgt::{self, FIRST_LUN, TUNED, Tgt};
use lunet_nvme::auth::{Purpose, Secret};
use rustix::process::Signal;
use serde_json::Value;

/// A few hundred round trips, on a busy machine too.
const LIMIT: Duration = Duration::from_secs(60);
const SECRET: &str = "a-secret-of-the-doctor";

fn doctor(arguments: &[&str], password: Option<&str>) -> Result<Finished> {
    let mut command = Command::new(lunet_binary()?);
    command.arg("doctor").args(arguments).env_remove("LIBISCSI_CHAP_PASSWORD");
    command.env_remove("LUNET_DHCHAP_SECRET");
    if let Some(password) = password {
        command.env("LIBISCSI_CHAP_PASSWORD", password);
    }
    run(&mut command, LIMIT)
}

fn code(finished: &Finished) -> Option<i32> {
    finished.status.and_then(|status| status.code())
}

/// A server with a subsystem for hosts on this machine, one that asks for a secret, and one that lists another host.
fn subsystems() -> Result<(Server, String)> {
    let port = free_port()?;
    let config = format!(
        "[[portal]]\naddress = \"127.0.0.1:0\"\n\
         [[portal]]\naddress = \"127.0.0.1:{port}\"\ntransport = [\"nvme-tcp\"]\n\
         [volumes.a]\nbackend = \"memory\"\nsize = \"64MiB\"\n\
         [volumes.b]\nbackend = \"memory\"\nsize = \"16MiB\"\n\
         [[target]]\nname = \"iqn.2026-11.local.lunet:t\"\nluns = [\"a\"]\n\
         protocols = [\"iscsi\", \"nvme\"]\n\
         [[subsystem]]\nnqn = \"nqn.2026-11.local.lunet:locked\"\nnamespaces = [\"b\"]\n\
         hosts = [{{ nqn = \"nqn.2026-11.local.lunet:doctor\", secret = \"{}\" }}]\n\
         [[subsystem]]\nnqn = \"nqn.2026-11.local.lunet:closed\"\nnamespaces = [\"b\"]\n\
         hosts = [\"nqn.2026-11.local.lunet:other\"]\n",
        key()?
    );
    Ok((Serve::config(config).start()?, format!("nvme-tcp://127.0.0.1:{port}")))
}

fn key() -> Result<String> {
    Ok(Secret::new(Purpose::DhChap, None, &[7; 32])?.to_text().to_string())
}

#[test]
fn a_subsystem_of_lunet_is_healthy() -> Result<()> {
    let (_server, portal) = subsystems()?;
    for url in [
        format!("{portal}/nqn.2026-11.local.lunet:t"),
        format!("{portal}/nqn.2026-11.local.lunet:t/1"),
    ] {
        let (target, checks) = examined(&url)?;
        let checks: Vec<_> =
            checks.into_iter().filter(|id| !id.starts_with("nvme-slow-")).collect();
        ensure!(checks.is_empty(), "{checks:?}");
        let (controller, namespace) = (&target["controller"], &target["namespaces"][0]);
        ensure!(controller["queue_entries"] == 128 && controller["queues"] == 64, "{controller}");
        ensure!(controller["max_transfer_bytes"] == 1 << 20, "{controller}");
        ensure!(controller["compare_and_write"] == true, "{controller}");
        ensure!(namespace["nsid"] == 1 && namespace["block_bytes"] == 512, "{namespace}");
        ensure!(namespace["size_bytes"] == 64 << 20 && namespace["path"] == "optimized");
        ensure!(namespace["nguid"].is_string() && namespace["uuid"].is_string(), "{namespace}");
        ensure!(target["authenticated"] == false, "{target}");
        for what in ["ping", "read"] {
            ensure!(target[what]["samples"] == 64, "{what}: {}", target[what]);
        }
    }
    // For people, and without a subsystem: the first one that lets the doctor in.
    let finished = doctor(&["--verbose", &portal], None)?;
    let text = &finished.stdout;
    for words in [
        "offers nqn.2026-11.local.lunet:t at 127.0.0.1:",
        "namespace 1",
        "compare and write",
        "keep alive",
    ] {
        ensure!(text.contains(words), "no {words}: {text}");
    }
    Ok(())
}

#[test]
fn a_subsystem_that_cannot_be_looked_at_says_why() -> Result<()> {
    let (server, portal) = subsystems()?;
    let own = |name: &str| format!("{portal}/nqn.2026-11.local.lunet:{name}");
    let says = |url: &str, words: &str| -> Result<()> {
        let finished = doctor(&[url], None)?;
        ensure!(code(&finished) == Some(2), "{}", finished.describe());
        let error = &finished.stderr;
        ensure!(
            error.starts_with("lunet: 127.0.0.1:") || error.starts_with("lunet: no conn"),
            "{error}"
        );
        ensure!(error.contains(words) && error.lines().count() == 1, "{words}: {error}");
        Ok(())
    };
    says(&own("none"), "there is no subsystem nqn.2026-11.local.lunet:none")?;
    says(&own("closed"), "does not let the host nqn.2026-11.local.lunet:doctor in")?;
    says(&own("locked"), "wants the host nqn.2026-11.local.lunet:doctor to authenticate")?;
    says(&format!("nvme-tcp://{}", server.portal()), "an iSCSI target listens there")?;
    says(&format!("nvme-tcp://127.0.0.1:{}", free_port()?), "listens for NVMe over TCP")?;
    let nvme = portal.replace("nvme-tcp://", "iscsi://");
    says(&nvme, "an NVMe over TCP controller listens there")?;
    says(&format!("{nvme}/{DEMO_TARGET}"), "give nvme-tcp://")?;
    let mut command = Command::new(lunet_binary()?);
    command.args(["doctor", "--json", &own("locked")]).env("LUNET_DHCHAP_SECRET", key()?);
    let proved = run(&mut command, LIMIT)?;
    ensure!(proved.stdout.contains("\"authenticated\": true"), "{}", proved.describe());
    // As another host; and the discovery subsystem leads to those that there are.
    let finished = doctor(&["--host-nqn", "nqn.2026-11.local.lunet:other", &own("closed")], None)?;
    ensure!(matches!(code(&finished), Some(0 | 1)), "{}", finished.describe());
    let (target, _) = examined(&format!("{portal}/nqn.2014-08.org.nvmexpress.discovery"))?;
    ensure!(target["subsystem"].is_string(), "{target}");
    let (target, checks) = examined(&own("t/9"))?;
    ensure!(checks.contains(&"nvme-no-namespace".to_owned()), "{target}");
    Ok(())
}

/// A namespace whose storage was missing at the start, and one whose storage fails.
#[test]
fn namespaces_that_cannot_be_read_say_why_and_what_to_do() -> Result<()> {
    let port = free_port()?;
    let config = format!(
        "[[portal]]\naddress = \"127.0.0.1:0\"\n\
         [[portal]]\naddress = \"127.0.0.1:{port}\"\ntransport = [\"nvme-tcp\"]\n\
         [volumes.a]\nbackend = \"file\"\nsize = \"16MiB\"\n\
         [volumes.b]\nbackend = \"memory\"\nsize = \"16MiB\"\n\
         layers = [{{ fault = \"read\" }}]\n\
         [[target]]\nname = \"iqn.2026-11.local.lunet:t\"\nluns = [\"a\", \"b\"]\n\
         protocols = [\"iscsi\", \"nvme\"]\n"
    );
    let directory = Serve::config(config).start()?.stop()?.context("it has one")?;
    std::fs::remove_file(directory.path().join("a.img"))?;
    let _server = Serve::default().data(directory.path()).start()?;
    let own = format!("nvme-tcp://127.0.0.1:{port}/nqn.2026-11.local.lunet:t");
    for (nsid, status) in [(1, "namespace not ready (0x0082)"), (2, "unrecovered read error")] {
        let url = format!("{own}/{nsid}");
        let (target, checks) = examined(&url)?;
        ensure!(checks.contains(&"nvme-namespace-storage".to_owned()), "{checks:?}: {target}");
        let told = target["namespaces"][0]["status"].as_str().context("it has one")?;
        ensure!(told.contains(status) && told.contains("`lunet volume list`"), "{told}");
        let mut command = Command::new(lunet_binary()?);
        command.args(["bench", &url, "--read-only", "--profile", "quick"]);
        let finished = run(&mut command, LIMIT)?;
        let text = format!("{}{}", finished.stdout, finished.stderr);
        ensure!(code(&finished) != Some(0), "{}", finished.describe());
        ensure!(text.contains(status) && text.contains("lunet volume list"), "{text}");
    }
    Ok(())
}

/// What it says of the target, and the checks that found something.
fn examined(url: &str) -> Result<(Value, Vec<String>)> {
    let finished = doctor(&["--json", url], None)?;
    let answer: Value =
        serde_json::from_str(&finished.stdout).with_context(|| finished.describe())?;
    let findings = answer["report"]["findings"].as_array().context("no findings")?;
    let checks: Vec<String> =
        findings.iter().filter_map(|f| f["check"].as_str().map(str::to_owned)).collect();
    ensure!(code(&finished) == Some(i32::from(!checks.is_empty())), "{}", finished.describe());
    Ok((answer["target"].clone(), checks))
}

/// Each round trip was measured, in order.
fn measured(target: &Value) -> Result<()> {
    for what in ["ping", "ready", "read"] {
        let latency = &target[what];
        let us = |name: &str| latency[name].as_f64().with_context(|| format!("{what}: {latency}"));
        ensure!(latency["samples"] == 64, "{what}: {latency}");
        ensure!(us("min_us")? > 0.0 && us("min_us")? <= us("median_us")?, "{what}: {latency}");
        ensure!(us("median_us")? <= us("p90_us")? && us("p90_us")? <= us("max_us")?, "{latency}");
    }
    Ok(())
}

/// Findings that a busy machine may add to any target.
fn without_slowness(checks: Vec<String>) -> Vec<String> {
    checks.into_iter().filter(|id| !id.starts_with("url-slow-")).collect()
}

#[test]
fn lunet_is_healthy() -> Result<()> {
    let server = Serve::demo("64M").start()?;
    let (target, checks) = examined(server.url())?;
    let checks = without_slowness(checks);
    ensure!(checks.is_empty(), "{checks:?}");
    ensure!(target["target"] == DEMO_TARGET, "{target}");
    ensure!(target["session"]["window"].as_i64() >= Some(64), "{target}");
    let lun = &target["luns"][0];
    ensure!(lun["size_bytes"] == 64 << 20 && lun["device_type"] == 0, "{lun}");
    ensure!(lun["unmap"] == true && lun["flush"] == true && lun["rotation_rate"] == 1, "{lun}");
    ensure!(lun["max_transfer_bytes"].as_i64() > Some(0), "{lun}");
    measured(&target)?;
    Ok(())
}

#[test]
fn a_portal_alone_is_asked_for_its_targets() -> Result<()> {
    let server = Serve::demo("64M").start()?;
    let finished = doctor(&["--verbose", &format!("iscsi://{}", server.portal())], None)?;
    let text = &finished.stdout;
    ensure!(matches!(code(&finished), Some(0 | 1)), "{}", finished.describe());
    for words in
        ["offers iqn.2026-11.local.lunet:demo", "MaxBurstLength=", "LUN 0", "ok url-small-window"]
    {
        ensure!(text.contains(words), "no {words}: {text}");
    }
    Ok(())
}

#[test]
fn a_small_window_is_found() -> Result<()> {
    let config = "[server]\n[[portal]]\naddress = \"127.0.0.1:0\"\n\
                  [volumes.a]\nbackend = \"memory\"\nsize = \"8MiB\"\n\
                  [[target]]\nname = \"iqn.2026-11.local.lunet:t\"\nluns = [\"a\"]\n[iscsi]\nqueue-depth = 8\n";
    let server = Serve::config(config).start()?;
    let (target, checks) = examined(server.url())?;
    ensure!(target["session"]["window"] == 8, "{target}");
    ensure!(checks.contains(&"url-small-window".to_owned()), "{checks:?}");
    Ok(())
}

#[test]
fn a_name_and_a_secret_are_taken_and_not_shown() -> Result<()> {
    let config = format!(
        "[server]\n[[portal]]\naddress = \"127.0.0.1:0\"\n\
         [volumes.a]\nbackend = \"memory\"\nsize = \"8MiB\"\n\
         [[target]]\nname = \"iqn.2026-11.local.lunet:t\"\nluns = [\"a\"]\n\
         [[target.user]]\nname = \"alice\"\nsecret = \"{SECRET}\"\n"
    );
    let server = Serve::config(config).quiet().start()?;
    let place = format!("{}/iqn.2026-11.local.lunet:t/0", server.portal());
    let whole = format!("iscsi://alice%{SECRET}@{place}");
    let half = format!("iscsi://alice@{place}");
    for (url, password) in [(&whole, None), (&half, Some(SECRET))] {
        for form in [&["--json"][..], &["--verbose"]] {
            let finished = doctor(&[form, &[url.as_str()]].concat(), password)?;
            ensure!(matches!(code(&finished), Some(0 | 1)), "{}", finished.describe());
            let shown = format!("{}{}", finished.stdout, finished.stderr);
            ensure!(!shown.contains(SECRET) && !shown.contains("CHAP_R"), "{shown}");
            let chap = ["\"chap\": true", "authentication  CHAP"];
            ensure!(chap.iter().any(|words| shown.contains(words)), "{shown}");
        }
    }
    for (url, password) in [(half.as_str(), None), (half.as_str(), Some("not-the-secret-at-all"))] {
        let refused = doctor(&[url], password)?;
        ensure!(code(&refused) == Some(2), "{}", refused.describe());
        ensure!(refused.stderr.starts_with("lunet: 127.0.0.1:"), "{}", refused.stderr);
        ensure!(!refused.stderr.contains("secret-at"), "{}", refused.stderr);
    }
    Ok(())
}

#[test]
fn a_target_that_wants_chap_does_not_hide_the_others() -> Result<()> {
    let config = format!(
        "[server]\n[[portal]]\naddress = \"127.0.0.1:0\"\n\
         [volumes.a]\nbackend = \"memory\"\nsize = \"8MiB\"\n\
         [volumes.b]\nbackend = \"memory\"\nsize = \"8MiB\"\n\
         [[target]]\nname = \"iqn.2026-11.local.lunet:closed\"\nluns = [\"a\"]\n\
         [[target.user]]\nname = \"alice\"\nsecret = \"{SECRET}\"\n\
         [[target]]\nname = \"iqn.2026-11.local.lunet:open\"\nluns = [\"b\"]\n"
    );
    let server = Serve::config(config).quiet().start()?;
    let (target, checks) = examined(&format!("iscsi://{}", server.portal()))?;
    ensure!(target["target"] == "iqn.2026-11.local.lunet:open", "{target}");
    ensure!(target["refused"][0]["name"] == "iqn.2026-11.local.lunet:closed", "{target}");
    ensure!(checks.contains(&"url-refused".to_owned()), "{checks:?}");
    Ok(())
}

#[test]
fn stock_tgt_has_the_findings_that_make_it_slow() -> Result<()> {
    let dir = scratch("lunet-doctor-")?;
    let path = dir.path().join("disk");
    File::create(&path)?.set_len(64 << 20)?;
    let tgt = Tgt::start(&[&path], &[], None)?;
    let (target, checks) = examined(&tgt.url(FIRST_LUN))?;
    ensure!(target["target"] == tgt::TARGET, "{target}");
    // 8 KiB segments and an R2T for everything beyond.
    ensure!(target["session"]["max_recv_data_segment_length"] == 8192, "{target}");
    for check in ["url-short-segments", "url-waits-to-be-asked"] {
        ensure!(checks.iter().any(|found| found == check), "{check}: {checks:?}");
    }
    let lun = &target["luns"][0];
    ensure!(lun["lun"] == FIRST_LUN && lun["size_bytes"] == 64 << 20, "{lun}");
    ensure!(lun["vendor"] == "IET" && lun["write_cache"] == true, "{lun}");
    measured(&target)?;
    Ok(())
}

#[test]
fn tuned_tgt_has_fewer_of_them() -> Result<()> {
    let dir = scratch("lunet-doctor-")?;
    let path = dir.path().join("disk");
    File::create(&path)?.set_len(64 << 20)?;
    let tgt = Tgt::start(&[&path], &TUNED, None)?;
    // Without a LUN all of them are looked at; LUN 0 is tgt's controller, no disk.
    let url = tgt.url(FIRST_LUN);
    let (all, _) = url.rsplit_once('/').context("a LUN")?;
    let (target, checks) = examined(all)?;
    let kinds: Vec<Option<i64>> = target["luns"]
        .as_array()
        .context("no LUNs")?
        .iter()
        .map(|lun| lun["device_type"].as_i64())
        .collect();
    ensure!(kinds == [Some(12), Some(0)], "{target}");
    for check in ["url-short-segments", "url-waits-to-be-asked", "url-no-lun"] {
        ensure!(!checks.iter().any(|found| found == check), "{check}: {checks:?}");
    }
    measured(&target)?;
    Ok(())
}

#[test]
fn what_cannot_be_looked_at_is_exit_code_2() -> Result<()> {
    let server = Serve::demo("64M").start()?;
    let nobody = format!("iscsi://127.0.0.1:{}", free_port()?);
    let missing = format!("iscsi://{}/iqn.2026-11.local.lunet:nosuch", server.portal());
    let none = format!("iscsi://{}/{DEMO_TARGET}/77", server.portal());
    for (arguments, words) in [
        (&[nobody.as_str()][..], "refused"),
        (&[missing.as_str()], "there is no target of this name"),
        (&[none.as_str()], "the target has no LUN 77; it has 0"),
        (&["iscsi://"], "the host is missing"),
        (&["http://x"], "begins with iscsi://"),
        (&["--root", "/nonexistent"], "/nonexistent"),
    ] {
        let finished = doctor(arguments, None)?;
        ensure!(code(&finished) == Some(2), "{}", finished.describe());
        ensure!(finished.stderr.starts_with("lunet: "), "{}", finished.stderr);
        ensure!(finished.stderr.contains(words), "{words}: {}", finished.stderr);
        ensure!(finished.stderr.lines().count() == 1, "{}", finished.stderr);
    }
    Ok(())
}

/// The wait of an hour ends at a signal, and the report is of the time that has passed.
#[test]
fn ctrl_c_ends_the_wait_for_the_second_look() -> Result<()> {
    let mut command = Command::new(lunet_binary()?);
    let mut running = Running::spawn(command.args(["doctor", "--watch", "1h", "--json"]))?;
    let caught = || -> Result<bool> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", running.pid()))?;
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let mask = u64::from_str_radix(mask.context("no mask")?.trim(), 16)?;
        Ok(mask & 1 << (Signal::INT.as_raw() - 1) != 0)
    };
    let deadline = Instant::now() + LIMIT;
    while !caught()? {
        ensure!(Instant::now() < deadline, "it catches no signal");
        std::thread::sleep(Duration::from_millis(10));
    }
    running.signal(Signal::INT)?;
    // Two looks at a machine whose programs may take their time.
    let status = running.wait(5 * LIMIT)?.context("it goes on")?;
    let said = running.stderr.whole_text();
    ensure!([Some(0), Some(1)].contains(&status.code()), "{status}: {said}");
    let watched: Value = serde_json::from_str(&running.stdout.whole_text())?;
    ensure!(watched["seconds"].as_i64().is_some_and(|it| (1..3600).contains(&it)), "{watched}");
    ensure!(watched["report"]["checks"].as_u64().is_some_and(|it| it > 700), "{watched}");
    ensure!(watched["old"].is_array() && said.is_empty(), "{said}");
    Ok(())
}
