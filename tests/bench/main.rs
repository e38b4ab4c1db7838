//! `lunet bench` against lunet itself, short: what it writes makes sense, what it must not overwrite stays, and Ctrl-C ends
//! it with what there is. Figures are not judged: the machine may be busy.

mod nvme;
mod support;
mod verify;

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lunet_e2e::data::{random_file, same_bytes, scratch};
use lunet_e2e::process::Running;
use lunet_e2e::server::{Serve, lunet_binary, url};
use rustix::process::Signal;
use serde_json::Value;
use support::*;

#[test]
fn a_lun_is_measured_and_judged() -> Result<()> {
    let Fixture { server, null, mem, .. } = &fixture()?;
    let dir = scratch("lunet-bench-page-")?;
    let page = dir.path().join("page.html");
    let html = page.to_str().context("a name")?;
    let results = measured(&[
        mem,
        "--null",
        null,
        "--rounds",
        "2",
        "--runtime",
        "200ms",
        "--size",
        "16MiB",
        "--json",
        "--html",
        html,
    ])?;
    ensure!(results["schema"] == 1 && results["profile"] == "quick", "{results}");
    let runs = all(&results, "runs")?;
    ensure!(runs.len() == 2 * 3, "{} runs", runs.len());
    let pid = i64::from(server.pid());
    for run in runs {
        ensure!(run["target"] == "bench/1" && run["errors"] == 0, "{run}");
        ensure!(run["read"]["operations"].as_u64() > Some(0), "{run}");
        ensure!(run["read"]["latency"]["count"] == run["read"]["operations"], "{run}");
        ensure!(!all(run, "timeline")?.is_empty(), "{run}");
        let roles = all(run, "processes")?;
        let server = roles.iter().find(|one| one["role"] == "server").context("no server")?;
        ensure!(server["pid"] == pid, "{server}");
        let client = roles.iter().find(|one| one["role"] == "client").context("no client")?;
        let cpu = client["user_s"].as_f64().zip(client["system_s"].as_f64());
        ensure!(cpu.is_some_and(|(user, system)| user + system > 0.0), "{client}");
    }
    for kind in ["memory", "cpu", "network", "protocol"] {
        let has = all(&results, "ceilings")?.iter().any(|one| one["kind"] == kind);
        ensure!(has, "no ceiling of kind {kind}");
    }
    let verdicts = all(&results, "verdicts")?;
    ensure!(verdicts.len() == 3, "{verdicts:?}");
    ensure!(verdicts.iter().all(|one| one["sentence"].as_str().is_some_and(|s| s.len() > 20)));
    ensure!(all(&results, "notes")?.iter().any(|one| one.to_string().contains("doctor")));
    let lines: Vec<String> =
        all(&results, "commands")?.iter().map(|one| one["line"].to_string()).collect();
    ensure!(lines.iter().all(|line| line.contains("lunet bench")), "{lines:?}");
    ensure!(readable(dir.path(), &results)?.contains("too few rounds"), "two rounds tell nothing");
    self_contained(&fs::read_to_string(&page)?)?;
    Ok(())
}

/// A page needs no network and no program.
fn self_contained(page: &str) -> Result<()> {
    ensure!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"), "not whole");
    ensure!(page.contains("<svg") && page.contains("default-src 'none'"), "no plots");
    for foreign in ["<script", "<link", "<img", "src=", "url(", "http://", "https://", "@import"] {
        ensure!(!page.contains(foreign), "the page has {foreign}");
    }
    Ok(())
}

#[test]
fn a_lun_with_data_is_not_overwritten() -> Result<()> {
    let Fixture { server, null, mem, .. } = &fixture()?;
    let short = |more: &[&str]| {
        let words = ["--rounds", "1", "--runtime", "100ms", "--size", "8MiB", "--json"];
        [&[mem.as_str()][..], &words, more]
            .concat()
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    measured(&short(&[]))?;
    let before = written(server, "mem")?;
    ensure!(before >= 8 << 20, "it was filled first: {before}");
    let error = refused(&short(&[]))?;
    ensure!(error.contains("holds data") && error.contains("--destroy iscsi://"), "{error}");
    // Neither is a null volume that is none, nor is a name that is no target taken for one.
    ensure!(refused(&[null, "--null", mem, "--rounds", "1"])?.contains("holds data"));
    ensure!(refused(&[null, "--destroy", mem])?.contains("names no target"));
    ensure!(written(server, "mem")? == before, "nothing was written");
    // Reads ask for nothing, and write nothing.
    let results = measured(&short(&["--read-only"]))?;
    ensure!(all(&results, "runs")?.iter().all(|run| run.get("write").is_none()), "{results}");
    ensure!(written(server, "mem")? == before, "nothing was written");
    measured(&short(&["--destroy", mem]))?;
    ensure!(written(server, "mem")? > before, "it was meant");
    Ok(())
}

#[test]
fn a_path_and_what_is_served_run_in_turns() -> Result<()> {
    let fixture = fixture()?;
    let mem = &fixture.mem;
    let dir = scratch("lunet-bench-local-")?;
    let place = dir.path().to_str().context("a name")?;
    let results = measured(&[
        place,
        "--through",
        mem,
        "--rounds",
        "2",
        "--runtime",
        "200ms",
        "--size",
        "8MiB",
        "--only",
        "4k random reads, depth 32",
        "--json",
    ])?;
    let order: Vec<&str> =
        all(&results, "runs")?.iter().filter_map(|run| run["target"].as_str()).collect();
    ensure!(order == ["served", "local", "local", "served"], "{order:?}");
    let tools: Vec<&str> =
        all(&results, "targets")?.iter().filter_map(|one| one["tool"].as_str()).collect();
    ensure!(tools == ["fio", "lunet"], "{tools:?}");
    let drives = all(&results, "ceilings")?.iter().filter(|one| one["kind"] == "drive");
    let of: Vec<&str> = drives.filter_map(|one| one["target"].as_str()).collect();
    ensure!(of == ["local", "served"], "the drive is behind both: {of:?}");
    ensure!(fs::read_dir(place)?.count() == 0, "the files are gone");
    readable(scratch("lunet-bench-json-")?.path(), &results)?;
    Ok(())
}

#[test]
fn targets_have_names_and_the_load_its_processors() -> Result<()> {
    let fixture = fixture()?;
    let dir = scratch("lunet-bench-names-")?;
    let place = dir.path().to_str().context("a name")?;
    let status = fs::read_to_string("/proc/self/status")?;
    let (_, cpus) = status.split_once("Cpus_allowed_list:").context("no list")?;
    let cpu: String = cpus.trim_start().chars().take_while(char::is_ascii_digit).collect();
    let (disk, served) = (format!("disk={place}"), format!("two words={}", fixture.mem));
    let words = ["--rounds", "1", "--runtime", "200ms", "--size", "8MiB", "--json"];
    let only = ["--only", "4k random reads, depth 32", "--only", "4k random reads, depth 1"];
    let results = measured(&[&[&*disk, &*served, "--cpus", &*cpu], &words[..], &only].concat())?;
    for (key, names) in [
        ("targets", ["disk", "two words"]),
        ("workloads", ["4k random reads, depth 32", "4k random reads, depth 1"]),
    ] {
        let found: Vec<&str> =
            all(&results, key)?.iter().filter_map(|one| one["name"].as_str()).collect();
        ensure!(found == names, "{found:?}");
    }
    let lines = all(&results, "commands")?.iter().filter_map(|one| one["line"].as_str());
    let lines: Vec<&str> = lines.collect();
    let whole = lines[0].contains(&format!("--cpus={cpu} "))
        && lines[0].contains(&format!(" {disk} "))
        && lines[0].contains(&format!("'two words={}'", fixture.mem))
        && lines[0].contains("'--only=4k random reads, depth 1'");
    ensure!(whole, "{}", lines[0]);
    let allowed = format!("--cpus_allowed={cpu}");
    let bound = lines[1..].iter().all(|line| line.starts_with("fio") == line.contains(&allowed));
    ensure!(bound, "{lines:?}");
    let error = refused(&[place, "--cpus", "1023"])?;
    ensure!(error.contains("processor 1023 is none"), "{error}");
    let error = refused(&[disk.as_str(), "disk=/dev/null"])?;
    ensure!(error.contains("two targets are called disk"), "{error}");
    Ok(())
}

#[test]
fn a_file_that_was_there_is_read_but_not_overwritten() -> Result<()> {
    let dir = scratch("lunet-bench-file-")?;
    let (file, copy) = (dir.path().join("data"), dir.path().join("copy"));
    random_file(&file, 8 << 20)?;
    fs::copy(&file, &copy)?;
    let name = file.to_str().context("a name")?;
    let short = ["--rounds", "1", "--runtime", "100ms", "--size", "8MiB"];
    let error = refused(&[&[name][..], &short].concat())?;
    ensure!(error.contains("--destroy"), "{error}");
    let finished = bench(&[&[name, "--read-only"][..], &short].concat())?;
    ensure!(code(&finished) == Some(0), "{}", finished.describe());
    ensure!(finished.stdout.contains("4k random reads, depth 32"), "{}", finished.describe());
    same_bytes(&file, &copy, 8 << 20)
}

#[test]
fn an_interrupt_ends_it_with_what_there_is() -> Result<()> {
    let Fixture { server, mem, .. } = &fixture()?;
    let dir = scratch("lunet-bench-stop-")?;
    let place = dir.path().to_str().context("a name")?;
    let mut command = Command::new(lunet_binary()?);
    command.args(["bench", place, "--through", mem, "--rounds", "100", "--json"]);
    command.args(["--runtime", "200ms", "--size", "8MiB"]);
    let mut running = Running::spawn(&mut command)?;
    // A look, a fill and four runs: each asks and logs in.
    let deadline = Instant::now() + LIMIT;
    while logins(server)? < 12 {
        ensure!(Instant::now() < deadline, "it does not run: {}", running.stderr.text());
        thread::sleep(Duration::from_millis(50));
    }
    running.signal(Signal::INT)?;
    let status = running.wait(PATIENCE)?.context("it still runs")?;
    let error = running.stderr.whole_text();
    ensure!(status.code() == Some(1) && error.contains("interrupted"), "{status}: {error}");
    let results: Value = serde_json::from_str(&running.stdout.whole_text())?;
    let runs = all(&results, "runs")?;
    ensure!(!runs.is_empty() && runs.len() < 600, "{} runs", runs.len());
    ensure!(!all(&results, "verdicts")?.is_empty(), "what there is was judged");
    ensure!(all(&results, "notes")?.iter().any(|one| one.to_string().contains("Not complete")));
    readable(scratch("lunet-bench-json-")?.path(), &results)?;
    ensure!(fs::read_dir(place)?.count() == 0, "the files are gone");
    Ok(())
}

/// Two interrupts, one behind the other; the exit code.
fn interrupted_twice() -> Result<Option<i32>> {
    let dir = scratch("lunet-bench-impatient-")?;
    let place = dir.path().to_str().context("a name")?;
    let mut command = Command::new(lunet_binary()?);
    command.args([
        "bench",
        place,
        "--rounds",
        "100",
        "--runtime",
        "1h",
        "--size",
        "8MiB",
        "--json",
    ]);
    let mut running = Running::spawn(&mut command)?;
    // fio has laid out its files.
    let deadline = Instant::now() + LIMIT;
    let laid_out = || -> Result<bool> {
        let Some(made) = fs::read_dir(place)?.next() else { return Ok(false) };
        Ok(fs::read_dir(made?.path())?.next().is_some())
    };
    while !laid_out().unwrap_or(false) {
        ensure!(Instant::now() < deadline, "it does not run: {}", running.stderr.text());
        thread::sleep(Duration::from_millis(50));
    }
    // Two different ones, so that neither hides the other.
    running.signal(Signal::INT)?;
    running.signal(Signal::TERM)?;
    let status = running.wait(PATIENCE)?.context("it still runs")?;
    ensure!(running.stdout.whole_text().is_empty(), "it did not stop to judge");
    ensure!(fs::read_dir(place)?.count() == 0, "the files are gone");
    Ok(status.code())
}

/// On a busy machine it may have ended by the first one before it sees the second (code 2, nothing measured).
#[test]
fn two_interrupts_end_it_at_once_and_leave_no_files() -> Result<()> {
    for _ in 0..5 {
        match interrupted_twice()? {
            Some(1) => return Ok(()),
            code => ensure!(code == Some(2), "{code:?}"),
        }
    }
    bail!("the second interrupt never came through")
}

#[test]
fn secrets_come_from_a_file_and_digests_are_said() -> Result<()> {
    let Fixture { server, .. } = &fixture()?;
    let url = format!("iscsi://joe@{}/iqn.2026-11.local.lunet:locked/3", server.portal());
    let dir = scratch("lunet-bench-secret-")?;
    let right = private(dir.path(), "right", SECRET)?;
    let wrong = private(dir.path(), "wrong", "another-secret-of-it")?;
    let call = |secret: &str, digest: &str| {
        let own = [url.as_str(), "--secret-file", secret, "--digest", digest];
        let short = ["--rounds", "1", "--runtime", "100ms", "--size", "8MiB", "--json"];
        [&own[..], &short].concat().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let results = measured(&call(&right, "data"))?;
    ensure!(results["targets"][0]["data_digest"] == true, "{}", results["targets"]);
    let location = results["targets"][0]["location"].as_str().context("a location")?;
    ensure!(location.ends_with("?data_digest=crc32c"), "{location}");
    ensure!(!results.to_string().contains(SECRET), "a secret is in the results");
    let error = refused(&call(&wrong, "none"))?;
    ensure!(error.contains("CHAP") && !error.contains("another-secret"), "{error}");
    ensure!(refused(&[&url])?.contains("--secret-file"), "the secret is missing");
    Ok(())
}

#[test]
fn what_cannot_be_measured_is_said_in_a_sentence() -> Result<()> {
    let dir = scratch("lunet-bench-wrong-")?;
    let place = dir.path().to_str().context("a name")?;
    let there = dir.path().join("none/page.html");
    for (arguments, words) in [
        (&["iscsi://127.0.0.1:1/iqn.x:y/0"][..], "check that the target runs"),
        (&["nfs://nas/x"], "cannot be measured"),
        (&["/dev/null"], "neither a file"),
        (&[place, "--only", "64k"], "there are: 4k random reads, depth 32"),
        (&[place, "--html", there.to_str().context("a name")?], "there is no directory"),
        (&[place, "--size", "999TiB"], "MiB are needed"),
        (&["compare", "/dev/null", "/dev/null"], "holds no results"),
        (&["net", "127.0.0.1:1"], "lunet bench net serve"),
    ] {
        let error = refused(arguments)?;
        ensure!(error.contains(words), "{arguments:?}: {error}");
    }
    ensure!(fs::read_dir(place)?.count() == 0, "nothing is left");
    Ok(())
}

#[test]
fn a_server_tells_limits_and_latencies() -> Result<()> {
    let config = "[server]\n[[portal]]\naddress = \"127.0.0.1:0\"\n[volumes.narrow]\nbackend = \"memory\"\nsize = \"16MiB\"\n\
                  layers = [{ limit = \"8MiB\", on = \"read\" }, { delay = \"2ms\" }]\n\
                  [[target]]\nname = \"iqn.2026-11.local.lunet:narrow\"\nluns = [\"narrow\"]\n";
    let server = Serve::config(config).start()?;
    let narrow = url(server.portal(), "iqn.2026-11.local.lunet:narrow", 0);
    let load = "4k random reads, depth 32";
    let short = [&narrow, "--only", load, "--read-only", "--rounds", "1", "--runtime", "200ms"];
    // It is found by itself, and by its name.
    let socket = server.data().join("lunet.sock");
    let socket = socket.to_str().context("a name")?;
    for more in [&["--json"][..], &["--json", "--control", socket]] {
        let results = measured(&[&short[..], more].concat())?;
        let limits = all(&results, "ceilings")?.iter().filter(|one| one["kind"] == "limit");
        let limits: Vec<&Value> = limits.collect();
        ensure!(limits.len() == 1 && limits[0]["value"] == 8.0, "{limits:?}");
        ensure!(limits[0]["workload"] == load, "{limits:?}");
        let inside = results["runs"][0]["server_latency_us"].as_f64();
        ensure!(inside >= Some(2000.0), "{inside:?}");
        readable(scratch("lunet-bench-json-")?.path(), &results)?;
    }
    let other = fixture()?;
    let strange = other.server.data().join("lunet.sock");
    let strange = strange.to_str().context("a name")?;
    let error = refused(&[&short[..], &["--control", strange]].concat())?;
    ensure!(error.contains("serves none of these targets"), "{error}");
    let error = refused(&[&short[..], &["--control", "/nowhere/lunet.sock"]].concat())?;
    ensure!(error.contains("/nowhere/lunet.sock"), "{error}");
    Ok(())
}

#[test]
fn the_way_between_two_machines_is_measured() -> Result<()> {
    let mut command = Command::new(lunet_binary()?);
    command.args(["bench", "net", "serve", "--listen", "127.0.0.1:0"]);
    let mut serving = Running::spawn(&mut command)?;
    let address = serving.stdout.find(Instant::now() + PATIENCE, |text| {
        let (_, rest) = text.split_once("listens at ")?;
        Some(rest.split_once(',')?.0.to_owned())
    });
    let address = address.context("it does not listen")?;
    let answer = measured(&["net", &address, "--runtime", "200ms", "--streams", "2", "--json"])?;
    for figure in ["to_server_mib_per_s", "from_server_mib_per_s", "round_trip_us"] {
        ensure!(answer[figure].as_f64() > Some(0.0), "{answer}");
    }
    ensure!(answer["loopback"] == true && answer["streams"] == 2, "{answer}");
    let finished = bench(&["net", &address, "--runtime", "100ms"])?;
    ensure!(finished.stdout.contains("Gbit/s"), "{}", finished.describe());
    serving.signal(Signal::INT)?;
    let status = serving.wait(PATIENCE)?.context("it still runs")?;
    ensure!(status.code() == Some(0), "{status}");
    Ok(())
}

#[test]
fn each_number_of_shards_has_a_row() -> Result<()> {
    let dir = scratch("lunet-bench-scale-")?;
    let page = dir.path().join("scale.md");
    let file = page.to_str().context("a name")?;
    let mut command = Command::new(lunet_binary()?);
    command.args(["bench", "scale", "--shards", "1,2,4", "--runtime", "200ms", "--out", file]);
    // The servers' data is where other temporary files are.
    command.env("TMPDIR", dir.path());
    let shown = lunet_e2e::process::output(&mut command, Duration::from_secs(120))?;
    ensure!(shown == fs::read_to_string(&page)?, "{shown}");
    for shards in [1, 2, 4] {
        let row = shown.lines().find(|line| line.starts_with(&format!("| {shards} | ")));
        let row = row.with_context(|| shown.clone())?;
        let reads: f64 = row.split('|').nth(2).context("no reads")?.trim().parse()?;
        ensure!(reads > 0.0, "{row}");
    }
    ensure!(shown.contains("over loopback"), "{shown}");
    let left: Vec<_> = fs::read_dir(dir.path())?.flatten().map(|entry| entry.file_name()).collect();
    ensure!(left.len() == 1, "left behind: {left:?}");
    Ok(())
}
