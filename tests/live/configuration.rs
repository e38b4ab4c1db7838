//! The configuration file: edited by people, edited by commands.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lunet_e2e::clients::{QemuLun, SHORT, size};
use lunet_e2e::data::scratch;
use lunet_e2e::server::{Serve, Server};
use rustix::process::{Pid, Signal, kill_process};

use super::{
    CAPACITY_CHANGED, FILE, LUNS_CHANGED, MIB, ONE, TWO, capacity, luns, open, ready, text, told,
};

/// Waits until the configuration in force has these words.
fn in_force(server: &Server, words: &str) -> Result<()> {
    let until = Instant::now() + SHORT;
    while !server.tell(&["config", "show"])?.contains(words) {
        ensure!(Instant::now() < until, "{words} is not in force");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

#[test]
fn the_file_keeps_what_people_wrote_and_a_restart_serves_the_same() -> Result<()> {
    let dir = scratch("lunet-live-")?;
    let server = Serve::config(FILE).data(dir.path()).start()?;
    server.tell(&["volume", "resize", "b", "48MiB"])?;
    server.tell(&["volume", "create", "c", "--size", "1GiB", "--block-size", "4096"])?;
    server.tell(&["target", "map", ONE, "3", "c"])?;
    server.tell(&["target", "map", TWO, "1", "a"])?;
    server.tell(&["target", "unmap", ONE, "0"])?;
    let expected = FILE
        .replace("'32MiB'     # for now\n", "\"48MiB\"     # for now\n\n[volumes.c]\nbackend = \"file\"\nsize = \"1GiB\"\nblock-size = 4096\n")
        .replace("luns = ['a']", "luns = { 3 = \"c\" }")
        .replace("luns = { 0 = 'b' }", "luns = { 0 = 'b', 1 = \"a\" }");
    ensure!(text(&server)? == expected, "{}", text(&server)?);
    server.stop()?;
    // Without --config: the file is where lunet looks for one.
    let server = Serve::default().data(dir.path()).start()?;
    ensure!(text(&server)? == expected);
    let mut two = open(&server, TWO, 0)?;
    ensure!(luns(&mut two)? == [0, 1] && capacity(&mut two, 0)? == 48 * MIB);
    server.stop()?;
    Ok(())
}

#[test]
fn an_edited_file_is_applied_by_signal_and_by_command() -> Result<()> {
    let server = Serve::config(FILE).start()?;
    let path = server.data().join("lunet.toml");
    let (mut one, mut two) = (open(&server, ONE, 0)?, open(&server, TWO, 0)?);
    let first = FILE.replace("'32MiB'", "'40MiB'");
    fs::write(&path, &first)?;
    let error = server.refuses(&["volume", "create", "x", "--size", "1MiB"])?;
    ensure!(error.contains("changed by hand") && error.contains("lunet config apply"), "{error}");
    let pid = i32::try_from(server.pid()).ok().and_then(Pid::from_raw).context("no pid")?;
    kill_process(pid, Signal::HUP)?;
    in_force(&server, "40MiB")?;
    told(&mut two, 0, CAPACITY_CHANGED)?;
    ensure!(capacity(&mut two, 0)? == 40 * MIB);

    let second = first.replace("luns = { 0 = 'b' }", "luns = { 0 = 'b', 1 = 'n' }")
        + "[volumes.n]\nbackend = 'null'\nsize = '1TiB'\n[server]\nmax-sessions = 77\n";
    fs::write(&path, &second)?;
    // The change by the signal is seen before it has ended.
    let until = Instant::now() + SHORT;
    let applied = loop {
        let applied = server.command(&["config", "apply"])?;
        if !applied.stderr.contains("under way") || Instant::now() > until {
            break applied;
        }
        thread::sleep(Duration::from_millis(20));
    };
    ensure!(applied.stdout.contains("volume n is new"), "{}", applied.describe());
    let note = "server.max-sessions takes effect after a restart";
    ensure!(applied.stderr.contains(note), "{}", applied.describe());
    told(&mut two, 0, LUNS_CHANGED)?;
    two.settle(1)?;
    ensure!(capacity(&mut two, 1)? == 1 << 40);

    // What is wrong, or cannot change, changes nothing at all.
    for (old, new, words) in [
        ("'40MiB'", "'39MiB'", "volumes.b.size: the volume has 40 MiB"),
        ("'40MiB'", "'1000'", "volumes.b.size: must be a multiple"),
        (
            "'127.0.0.1:0'",
            "'127.0.0.1:9'\ntransport = ['iser']",
            "without TCP nothing would be served",
        ),
        ("size = '64MiB'", "size = '64MiB'\nblock-size = 4096", "volumes.a.block-size: cannot"),
        ("size = '64MiB'", "size = '64MiB'\npath = 'other.img'", "volumes.a.path: cannot change"),
        ("luns = ['a']", "luns = ['q']", "there is no volume \"q\""),
        ("max-sessions", "max-session", "did you mean \"max-sessions\""),
    ] {
        ensure!(second.contains(old), "{old}");
        let wrong = second.replace(old, new).replace("'1TiB'", "'2TiB'");
        fs::write(&path, &wrong)?;
        let error = server.refuses(&["config", "apply"])?;
        ensure!(error.contains(words), "{error}");
        ensure!(server.tell(&["config", "show"])? == second && text(&server)? == wrong);
        ensure!(capacity(&mut two, 1)? == 1 << 40, "half of a change");
    }
    fs::write(&path, &second)?;
    ensure!(ready(&mut one, 0)?.is_none() && ready(&mut two, 0)?.is_none());

    // Without [volumes.n] and its LUN again; its data would have stayed.
    fs::write(&path, &first)?;
    let gone = server.tell(&["config", "apply", "--force"])?;
    ensure!(gone.contains("volume n is gone"), "{gone}");
    told(&mut two, 0, LUNS_CHANGED)?;
    server.stop()?;
    Ok(())
}

/// What a command writes, the next start reads: so it writes to no file that a start refuses.
#[test]
fn commands_refuse_a_file_that_the_next_start_refuses() -> Result<()> {
    let dir = scratch("lunet-live-")?;
    let server = Serve::config(FILE).data(dir.path()).start()?;
    let path = dir.path().join("lunet.toml");
    let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode));
    mode(0o666)?;
    let error = server.refuses(&["volume", "create", "c", "--size", "1MiB"])?;
    ensure!(error.contains("other users may write") && error.contains("`chmod go-w "), "{error}");
    ensure!(text(&server)? == FILE && !dir.path().join("c.img").exists());
    mode(0o644)?;
    server.tell(&["volume", "create", "c", "--size", "1MiB"])?;
    server.stop()?;
    Serve::default().data(dir.path()).start()?.stop()?;
    Ok(())
}

#[test]
fn the_demo_becomes_a_file_when_it_is_changed() -> Result<()> {
    let dir = scratch("lunet-live-")?;
    let server = Serve::demo("64M").data(dir.path()).start()?;
    ensure!(!server.data().join("lunet.toml").exists());
    let error = server.refuses(&["config", "apply"])?;
    ensure!(error.contains("there is no configuration file"), "{error}");
    server.tell(&["volume", "resize", "demo", "96MiB"])?;
    ensure!(text(&server)?.contains("size = \"96MiB\""), "{}", text(&server)?);
    server.stop()?;
    let server =
        Serve::default().arguments(&["--listen", "127.0.0.1:0"]).data(dir.path()).start()?;
    ensure!(size(&QemuLun::new(server.url()))? == 96 * MIB);
    server.stop()?;
    Ok(())
}

#[test]
fn what_the_server_refuses_is_undone() -> Result<()> {
    let server = Serve::config(FILE).start()?;
    let mut two = open(&server, TWO, 0)?;
    let path = server.data().join("lunet.toml");
    // Reservations that nobody can read: who may write to the volume is not known.
    let kept = server.data().join("n.reservations");
    fs::write(&kept, "damaged")?;
    let new = "[volumes.n]\nbackend = 'file'\nsize = '1MiB'\n";
    let text = FILE.replace("'32MiB'", "'48MiB'").replace("0 = 'b'", "0 = 'b', 1 = 'n'") + new;
    fs::write(&path, &text)?;
    let error = server.refuses(&["config", "apply"])?;
    ensure!(error.contains("n.reservations is damaged"), "{error}");
    ensure!(!server.data().join("n.img").exists(), "the new volume's file was left behind");
    ensure!(fs::metadata(server.data().join("b.img"))?.len() == 32 * MIB, "the file has grown");
    ensure!(ready(&mut two, 0)?.is_none() && capacity(&mut two, 0)? == 32 * MIB);
    ensure!(server.tell(&["config", "show"])? == FILE);
    fs::remove_file(&kept)?;
    server.tell(&["config", "apply"])?;
    ensure!(luns(&mut two)? == [0, 1]);
    server.stop()?;
    Ok(())
}

/// Nothing in the configuration has changed, and a volume is not what it was: that is said, and not "in force" alone.
#[test]
fn a_file_that_was_replaced_meanwhile_is_told() -> Result<()> {
    let server = Serve::config(FILE).quiet().start()?;
    let file = server.data().join("a.img");
    for arguments in [&["config", "apply"][..], &["config", "apply", "--dry-run"]] {
        let sound = server.command(arguments)?;
        let said = format!("{}{}", sound.stdout, sound.stderr);
        ensure!(said.contains("already in effect") && !said.contains("volume a"), "{said}");
    }
    fs::rename(&file, server.data().join("moved.img"))?;
    fs::File::create(&file)?.set_len(64 << 20)?;
    for arguments in [&["config", "apply"][..], &["config", "apply", "--dry-run"]] {
        let told = server.command(arguments)?;
        let said = format!("{}{}", told.stdout, told.stderr);
        ensure!(said.contains("volume a: "), "{said}");
        ensure!(said.contains("`lunet volume list` says"), "{said}");
        ensure!(!said.contains("nothing would change"), "{said}");
    }
    Ok(())
}
