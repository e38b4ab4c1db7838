//! Portals come and go: by command, by the file, and never under sessions without a word.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lunet_e2e::clients::{SHORT, list};
use lunet_e2e::data::scratch;
use lunet_e2e::server::{Serve, Server};
use lunet_e2e::wire::{Login, Session};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::rules::ends;
use super::{FILE, ONE, TWO, open, ready, text};

/// An address that is free, and that no other test asks for: it is on a loopback address of this test's own.
fn own(last: u8) -> Result<String> {
    let address = SocketAddr::from(([127, 7, 2, last], 0));
    Ok(TcpListener::bind(address)?.local_addr()?.to_string())
}

fn through(portal: &str, target: &str, qualifier: u16) -> Result<Session> {
    let mut session = Session::open(&Login { qualifier, ..Login::new(portal, target) })?;
    session.settle(0)?;
    Ok(session)
}

/// The addresses that `lunet portal list` shows.
fn listed(server: &Server) -> Result<Vec<String>> {
    let portals: Value = serde_json::from_str(&server.tell(&["portal", "list", "--json"])?)?;
    let addresses = portals.as_array().context("no list")?.iter();
    Ok(addresses.filter_map(|portal| Some(portal["address"].as_str()?.to_owned())).collect())
}

#[test]
fn a_portal_comes_and_goes_by_command_and_a_restart_serves_the_same() -> Result<()> {
    for driver in ["auto", "epoll"] {
        let dir = scratch("lunet-live-")?;
        let (second, third) = (own(1)?, own(2)?);
        let file =
            FILE.replace("address = '127.0.0.1:0'", &format!("# where\naddress = '{second}'"));
        let file = format!("{file}[server]\ndriver = '{driver}'\n");
        let server = Serve::config(&file).data(dir.path()).start()?;
        let mut busy = open(&server, ONE, 0)?;
        let added = server.tell(&["portal", "add", &third, "--tag", "7", "--transport", "tcp"])?;
        ensure!(added.contains(&format!("lunet listens on {third}")), "{added}");
        let portal =
            format!("\n[[portal]]\naddress = \"{third}\"\ntag = 7\ntransport = [\"tcp\"]\n");
        let (before, after) = file.split_at(file.find("\n# the first").context("no volume")?);
        ensure!(text(&server)? == format!("{before}{portal}{after}"), "{}", text(&server)?);
        ensure!(listed(&server)? == [second.as_str(), third.as_str()]);
        let table = server.tell(&["portal", "list"])?;
        let row = table.lines().find(|line| line.contains(&third)).context(table.clone())?;
        ensure!(row.split_whitespace().eq([third.as_str(), "7", "yes", "no"]), "{table}");
        // Somebody else's program finds it, and it leads to the same disk.
        let seen = list(&third)?;
        ensure!(seen.contains(ONE) && seen.contains(TWO), "{seen}");
        let mut fresh = through(&third, ONE, 1)?;
        busy.settle(0)?;
        busy.write(0, 8, &[7; 4096], 512)?;
        ensure!(fresh.read(0, 8, 8, 512)? == [7; 4096]);
        fresh.logout()?;
        server.stop()?;

        let server = Serve::default().data(dir.path()).start()?;
        ensure!(listed(&server)? == [second.as_str(), third.as_str()], "after the restart");
        through(&third, TWO, 1)?.logout()?;
        let removed = server.tell(&["portal", "remove", &third])?;
        ensure!(removed.contains(&format!("does not listen on {third} any more")), "{removed}");
        ensure!(text(&server)? == file && TcpStream::connect(&third).is_err());
        server.tell(&["portal", "add", &third])?;
        server.tell(&["portal", "remove", &second])?;
        ensure!(listed(&server)? == [third.as_str()] && TcpStream::connect(&second).is_err());
        server.stop()?;
        let server = Serve::default().data(dir.path()).start()?;
        ensure!(server.portal() == third);
        server.stop()?;
    }
    Ok(())
}

#[test]
fn a_portal_in_use_goes_with_consent_only() -> Result<()> {
    let server = Serve::config(FILE).start()?;
    let second = own(3)?;
    server.tell(&["portal", "add", &second])?;
    let (mut stays, mut goes) = (open(&server, ONE, 0)?, through(&second, TWO, 1)?);
    let text = text(&server)?;
    let error = server.refuses(&["portal", "remove", &second])?;
    let words = format!("1 session uses portal {second}, which would be gone (");
    ensure!(error.contains(&words) && error.contains("--force"), "{error}");
    // By the file as well.
    let path = server.data().join("lunet.toml");
    fs::write(&path, FILE)?;
    let error = server.refuses(&["config", "apply"])?;
    ensure!(error.contains(&words) && error.contains("`lunet config apply --force`"), "{error}");
    let preview = server.command(&["config", "apply", "--dry-run"])?;
    ensure!(preview.stdout.contains(&format!("portal {second} is gone")), "{}", preview.describe());
    ensure!(preview.stdout.contains("ends: the portal is gone"), "{}", preview.describe());
    fs::write(&path, &text)?;
    ensure!(ready(&mut goes, 0)?.is_none() && ready(&mut stays, 0)?.is_none());
    ensure!(listed(&server)?.contains(&second));

    let kept = server.command(&["portal", "remove", &second, "--keep-sessions"])?;
    ensure!(kept.stderr.contains("stays all the same"), "{}", kept.describe());
    ensure!(ready(&mut goes, 0)?.is_none() && TcpStream::connect(&second).is_err());
    server.tell(&["portal", "add", &second])?;
    ensure!(ready(&mut goes, 0)?.is_none(), "a portal that comes ends nothing");
    // Kept once is not kept for ever: the portal is there again, and so its sessions are asked about.
    let error = server.refuses(&["portal", "remove", &second])?;
    ensure!(error.contains(&words), "{error}");
    let mut again = through(&second, TWO, 2)?;
    // A list would not let in again who has come by a portal that is gone: that is no advice.
    server.tell(&["portal", "remove", &second, "--keep-sessions"])?;
    let error = server.refuses(&["target", "allow", TWO, "127.0.0.0/8"])?;
    ensure!(
        error.contains("through this portal any more (and 1 more like it): end it with --force"),
        "{error}"
    );
    server.tell(&["portal", "add", &second])?;
    let done: Value =
        serde_json::from_str(&server.tell(&["portal", "remove", &second, "--force", "--json"])?)?;
    ensure!(done["sessions"].as_array().is_some_and(|all| all.len() == 2), "{done:#}");
    ensure!(done["sessions"][0]["why"] == "the portal is gone", "{done:#}");
    ends(&mut again)?;
    ends(&mut goes)?;
    ensure!(ready(&mut stays, 0)?.is_none());
    server.stop()?;
    Ok(())
}

#[test]
fn what_cannot_be_listened_on_changes_nothing() -> Result<()> {
    let server = Serve::config(FILE).start()?;
    let mut session = open(&server, ONE, 0)?;
    let other = TcpListener::bind("127.7.2.4:0")?;
    let taken = other.local_addr()?.to_string();
    let error = server.refuses(&["portal", "add", &taken])?;
    // This test's own program.
    let held = format!("cannot listen on {taken}: live");
    ensure!(error.contains(&held) && error.contains("take another address"), "{error}");
    for (arguments, words) in [
        (["add", "127.7.2.4:0"], "needs a port"),
        (["add", "192.0.2.1:3260"], "cannot listen on 192.0.2.1:3260: "),
        (["add", "127.0.0.1:0"], "needs a port"),
        (["remove", "127.7.2.4:1"], "there is no portal 127.7.2.4:1"),
        (["remove", "127.0.0.1:0"], "is the only portal"),
    ] {
        let error = server.refuses(&[&["portal"], &arguments[..]].concat())?;
        ensure!(error.contains(words), "{error}");
    }
    let error = server.refuses(&["portal", "add", &own(4)?, "--transport", "iser"])?;
    ensure!(error.contains("iSER starts with the next start of lunet"), "{error}");
    ensure!(text(&server)? == FILE && listed(&server)?.len() == 1);
    ensure!(ready(&mut session, 0)?.is_none());
    // A target that names its portals keeps them.
    let second = own(5)?;
    server.tell(&["portal", "add", &second])?;
    let error = server.refuses(&["portal", "add", &second])?;
    ensure!(error.contains(&format!("there is a portal {second} already")), "{error}");
    let named =
        text(&server)?.replace("luns = ['a']", &format!("luns = ['a']\nportals = ['{second}']"));
    fs::write(server.data().join("lunet.toml"), named)?;
    server.tell(&["config", "apply", "--keep-sessions"])?;
    let error = server.refuses(&["portal", "remove", &second])?;
    ensure!(error.contains(&format!("target {ONE} names {second} in its `portals`")), "{error}");
    server.stop()?;

    let server = Serve::demo("16M").start()?;
    let error = server.refuses(&["portal", "add", &own(6)?])?;
    ensure!(error.contains("started with --listen 127.0.0.1:0"), "{error}");
    server.stop()?;
    Ok(())
}

/// A dry run says what the change would be answered, and listens nowhere afterwards.
#[test]
fn a_dry_run_refuses_what_the_change_refuses() -> Result<()> {
    let server = Serve::config(FILE).start()?;
    let path = server.data().join("lunet.toml");
    let with = |portals: &[(&str, u16)]| {
        let portal = |(address, tag): &(&str, u16)| {
            format!("[[portal]]\naddress = '{address}'\ntag = {tag}\n")
        };
        let portals: String = portals.iter().map(portal).collect();
        FILE.replace("\n# the first", &format!("\n{portals}\n# the first"))
    };
    let dry = || server.command(&["config", "apply", "--dry-run"]);
    let refused = |text: &str, words: &str| -> Result<()> {
        fs::write(&path, text)?;
        let told = dry()?;
        let code = told.status.and_then(|status| status.code());
        ensure!(
            code == Some(1) && told.stdout.contains("it would be refused: "),
            "{}",
            told.describe()
        );
        ensure!(told.stdout.contains(words), "{}", told.describe());
        let error = server.refuses(&["config", "apply"])?;
        ensure!(error.contains(words), "{error}");
        Ok(())
    };
    let other = TcpListener::bind("127.7.2.9:0")?;
    let taken = other.local_addr()?.to_string();
    refused(&with(&[(&taken, 1)]), &format!("cannot listen on {taken}: live"))?;
    refused(&with(&[("192.0.2.1:3260", 1)]), "no interface of this machine has 192.0.2.1")?;
    drop(other);
    fs::write(&path, with(&[(&taken, 1)]))?;
    ensure!(dry()?.success()?.contains(&format!("portal {taken} is new")));
    ensure!(TcpStream::connect(&taken).is_err(), "only said");

    let any = "127.7.2.10:0";
    let tags: Vec<_> = (2..=16).map(|tag| (any, tag)).collect();
    fs::write(&path, with(&tags))?;
    server.tell(&["config", "apply"])?;
    refused(&with(&[&tags[1..], &[(any, 17)]].concat()), "more than 16 portal tags since")?;
    server.stop()?;
    Ok(())
}

#[test]
fn a_portal_with_port_0_goes_by_the_port_that_it_has() -> Result<()> {
    let server = Serve::config(FILE).start()?;
    let path = server.data().join("lunet.toml");
    let one = "[[portal]]\naddress = '127.7.2.11:0'\n";
    let with = |portals: &str| FILE.replace("\n# the first", &format!("\n{portals}\n# the first"));
    let apply = |text: &str| -> Result<Vec<String>> {
        fs::write(&path, text)?;
        server.tell(&["config", "apply"])?;
        Ok(listed(&server)?.split_off(1))
    };
    let real = apply(&with(one))?;
    let error = server.refuses(&["portal", "add", &real[0]])?;
    ensure!(error.contains(&format!("there is a portal {} already", real[0])), "{error}");
    server.tell(&["portal", "remove", &real[0]])?;
    ensure!(listed(&server)?.len() == 1 && !text(&server)?.contains("127.7.2.11"));
    ensure!(TcpStream::connect(&real[0]).is_err());
    // Which of two that are written alike goes is not for an edit of the file to say.
    let two = apply(&with(&one.repeat(2)))?;
    let error = server.refuses(&["portal", "remove", &two[0]])?;
    ensure!(error.contains(&format!("{} is one of 2 portals that ", two[0])), "{error}");
    ensure!(listed(&server)?.len() == 3);
    server.stop()?;
    Ok(())
}

#[test]
fn portals_in_an_edited_file_come_and_go() -> Result<()> {
    let server = Serve::config(FILE).start()?;
    let path = server.data().join("lunet.toml");
    let mut session = open(&server, ONE, 0)?;
    let (second, third) = (own(7)?, own(8)?);
    let first = FILE
        .replace("\n# the first", &format!("\n[[portal]]\naddress = '{second}'\n\n# the first"));
    fs::write(&path, &first)?;
    let said = server.tell(&["config", "apply", "--dry-run"])?;
    ensure!(said.contains(&format!("portal {second} is new")), "{said}");
    ensure!(TcpStream::connect(&second).is_err(), "only said");
    let applied = server.tell(&["config", "apply"])?;
    ensure!(applied.contains(&format!("portal {second} is new")), "{applied}");
    through(&second, TWO, 1)?.logout()?;
    // One instead of the other, with a volume of its own, by SIGHUP.
    let next = first.replace(&second, &third) + "[volumes.n]\nbackend = 'null'\nsize = '1MiB'\n";
    fs::write(&path, &next)?;
    let pid = i32::try_from(server.pid()).ok().and_then(Pid::from_raw).context("no pid")?;
    kill_process(pid, Signal::HUP)?;
    let until = Instant::now() + SHORT;
    while !listed(&server)?.contains(&third) {
        ensure!(Instant::now() < until, "{:?}", listed(&server)?);
        thread::sleep(Duration::from_millis(20));
    }
    ensure!(TcpStream::connect(&second).is_err() && listed(&server)?.len() == 2);
    through(&third, TWO, 1)?.logout()?;
    ensure!(ready(&mut session, 0)?.is_none(), "another portal's session was told");
    let port = third.rsplit(':').next().context("no port")?;
    for (new, words) in [
        (format!("'{third}'\ntag = 2"), "tag and transport change at a restart only"),
        (format!("'0.0.0.0:{port}'"), "cannot take the place of"),
    ] {
        fs::write(&path, next.replace(&format!("'{third}'"), &new))?;
        let error = server.refuses(&["config", "apply"])?;
        ensure!(error.contains(words), "{error}");
        ensure!(server.tell(&["config", "show"])? == next && listed(&server)?.contains(&third));
    }
    server.stop()?;
    Ok(())
}

/// What is listened on where nothing else is said is written down with the first portal that is added. In a network of
/// its own: the default has a fixed port.
#[test]
fn the_default_portal_is_written_down_with_the_first_that_comes() -> Result<()> {
    let alone = if rustix::process::geteuid().is_root() { "-n" } else { "-rn" };
    let serve = Serve::default().arguments(&["--size", "16M"]);
    let up = "ip link set lo up && exec \"$@\"";
    let server = serve.by(&["unshare", alone, "sh", "-c", up, "sh"]).start()?;
    let done = server.command(&["portal", "add", "127.0.0.2"])?;
    ensure!(done.stdout.contains("lunet listens on 127.0.0.2:3260"), "{}", done.describe());
    let defaults = "127.0.0.1:3260 and 127.0.0.1:4420, which are";
    ensure!(done.stderr.contains(defaults), "{}", done.describe());
    let all = "[[portal]]\naddress = \"127.0.0.1:3260\"\n\n\
               [[portal]]\naddress = \"127.0.0.1:4420\"\ntransport = [\"nvme-tcp\"]\n\n\
               [[portal]]\naddress = \"127.0.0.2:3260\"\n";
    ensure!(text(&server)?.contains(all), "{}", text(&server)?);
    ensure!(listed(&server)? == ["127.0.0.1:3260", "127.0.0.2:3260", "127.0.0.1:4420"]);
    let error = server.refuses(&["portal", "add", "0.0.0.0"])?;
    ensure!(
        error.contains("lunet listens on 127.0.0.1:3260, and cannot on 0.0.0.0:3260"),
        "{error}"
    );
    server.tell(&["portal", "remove", "127.0.0.1"])?;
    ensure!(listed(&server)? == ["127.0.0.2:3260", "127.0.0.1:4420"]);
    server.tell(&["portal", "remove", "127.0.0.1:4420"])?;
    ensure!(listed(&server)? == ["127.0.0.2:3260"]);
    server.tell(&["portal", "add", "127.0.0.3:4420", "--transport", "nvme-tcp"])?;
    ensure!(listed(&server)? == ["127.0.0.2:3260", "127.0.0.3:4420"]);
    server.stop()?;
    Ok(())
}
