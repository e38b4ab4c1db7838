//! One configuration for a group, in the cluster: changed through any gateway, served by all.

use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lunet_e2e::ceph::{Cluster, cluster};
use lunet_e2e::process::{output, run};
use lunet_e2e::server::{Serve, Server, lunet_binary};
use lunet_e2e::wire::{Login, Session};
use rustix::process::Signal;
use serde_json::Value;

use crate::world::{
    Group, PATIENCE, TARGET, alone, becomes, have, log_in, long, says, signal, told, undisturbed,
    until, write_all,
};

/// A target of each gateway's own, which is served whatever becomes of the group.
const OWN: &str = "iqn.2026-11.local.lunet:own";
const SECRET: &str = "a secret that nobody sees";

/// The file of a gateway, which has nothing of what the group serves.
fn file(group: &Group<'_>, gateway: u16) -> String {
    let portal = &group.portals[usize::from(gateway) - 1];
    let (name, conf) = (&group.name, group.ceph.conf());
    format!(
        "[server]\nalua = 'implicit'\n[[portal]]\naddress = '{portal}'\ntag = {gateway}\n\
         [volumes.own]\nbackend = 'memory'\nsize = '1MiB'\n[[target]]\nname = '{OWN}'\nluns = ['own']\n\
         [group.vms]\nrecord = 'rbd://rbd/{name}'\ngateway = {gateway}\nshared = true\n\
         ceph-conf = '{}'\nceph-user = 'gateway'\n",
        conf.display()
    )
}

/// What the gateways share: its fifth line says who may log in.
pub fn part(group: &Group<'_>, initiators: &str) -> String {
    format!(
        "[volumes.a]\nbackend = 'rbd'\nimage = 'rbd://rbd/{}'\n[[target]]\nname = '{TARGET}'\nluns = ['a']\n\
         initiators = [{initiators}]\n",
        group.name
    )
}

/// A group whose record is there, and whose configuration is in the cluster from now on.
fn shared<'a>(ceph: &'a Cluster, name: &str) -> Result<Group<'a>> {
    let group = Group::new(ceph, name)?;
    let (config, part_file) = (group.path("shared.toml"), group.path("part.toml"));
    fs::write(&config, file(&group, 1))?;
    fs::write(&part_file, part(&group, "'iqn.x:a', 'iqn.x:b'"))?;
    let create = || -> Result<Command> {
        let mut create = Command::new(lunet_binary()?);
        create.args(["group", "create", "vms", "--gateways", "3", "--config"]).arg(&config);
        Ok(create)
    };
    let bare = run(&mut create()?, PATIENCE)?;
    ensure!(bare.stderr.contains("--shared"), "{}", bare.describe());
    let mut create = create()?;
    create.arg("--shared").arg(&part_file);
    let done = output(&mut create, PATIENCE)?;
    ensure!(done.contains("has a record already"), "{done}");
    let again = run(&mut create, PATIENCE)?;
    ensure!(again.stderr.contains("is there already"), "{}", again.describe());
    Ok(group)
}

fn gateway(group: &Group<'_>, number: u16) -> Serve {
    group.configured(number, file(group, number))
}

pub fn two<'a>(ceph: &'a Cluster, name: &str) -> Result<(Group<'a>, Server, Server)> {
    two_with(ceph, name, "")
}

/// The same, with more in the file of the second one.
pub fn two_with<'a>(
    ceph: &'a Cluster,
    name: &str,
    more: &str,
) -> Result<(Group<'a>, Server, Server)> {
    let group = shared(ceph, name)?;
    let one = gateway(&group, 1).start()?;
    becomes(&one, "owner")?;
    let other = group.configured(2, file(&group, 2) + more).start()?;
    becomes(&other, "standby")?;
    Ok((group, one, other))
}

/// What a change says, with what should be known of it. All gateways serve by it.
fn change(server: &Server, words: &[&str]) -> Result<String> {
    let finished = server.command(words)?;
    let notes = finished.stderr.clone();
    Ok(finished.success()? + &notes)
}

fn serves(server: &Server, revision: u64) -> Result<()> {
    until(&format!("revision {revision}"), || Ok(told(server)?["config"] == revision))
}

fn refused(server: &Server, initiator: &str) -> Result<()> {
    ensure!(log_in(server, initiator).is_err(), "{initiator} is let in");
    Ok(())
}

/// Ends as soon as the target has ended the session.
fn is_ended(session: &mut Session) -> Result<()> {
    until("the session ends", || Ok(session.execute(0, &[0; 6], 0, &[]).is_err()))
}

#[test]
fn a_change_through_one_gateway_is_served_by_all() -> Result<()> {
    let _cluster = undisturbed();
    let Some(ceph) = cluster() else { return Ok(()) };
    let (group, one, two) = two(ceph, "shared")?;
    let mut first = log_in(&one, "iqn.x:a")?;
    write_all(&mut first, 1)?;
    drop(log_in(&two, "iqn.x:a")?);
    for server in [&one, &two] {
        refused(server, "iqn.x:c")?;
        serves(server, 1)?;
    }
    // Through the standby, while the other one serves.
    let done = change(&two, &["target", "allow", TARGET, "iqn.x:c"])?;
    ensure!(done.contains("gateways that serve by it: 1, 2"), "{done}");
    for server in [&one, &two] {
        serves(server, 2)?;
        drop(log_in(server, "iqn.x:c")?);
    }
    // A whole text by which sessions end is refused without --force, and nothing has happened then.
    let text = group.path("text.toml");
    fs::write(&text, part(&group, "'iqn.x:b', 'iqn.x:c'"))?;
    let set = ["group", "config", "vms", "--set", text.to_str().context("a path")?];
    let refusal = one.refuses(&set)?;
    ensure!(
        refusal.contains("1 session here would end") && refusal.contains("iqn.x:a"),
        "{refusal}"
    );
    ensure!(refusal.contains("--force"), "{refusal}");
    serves(&one, 2)?;
    have(&mut first, 1)?;
    one.tell(&[&set[..], &["--force"]].concat())?;
    is_ended(&mut first)?;
    for server in [&one, &two] {
        serves(server, 3)?;
        refused(server, "iqn.x:a")?;
        // Its own target is its own.
        drop(Session::open(&Login { initiator: "iqn.x:z", ..Login::new(server.portal(), OWN) })?);
    }
    // One whose rules are in its file serves by rules that nobody else has.
    let three = group.serve(3)?;
    says(&three, "write `shared = true`")?;
    ensure!(told(&three)?["state"] == "fenced");
    three.stop()?;
    let refusal = two.refuses(&["target", "unmap", TARGET, "0"])?;
    ensure!(refusal.contains("lunet group config vms --edit"), "{refusal}");
    let refusal = two.refuses(&["target", "allow", TARGET, "iqn.x:d", "--keep-sessions"])?;
    ensure!(refusal.contains("keep no sessions"), "{refusal}");
    // It is there after a takeover, too.
    two.tell(&["group", "take-over", "vms"])?;
    becomes(&two, "owner")?;
    refused(&two, "iqn.x:a")?;
    have(&mut log_in(&two, "iqn.x:c")?, 1)?;
    // Until then the client that was shut out is asked, and does not answer.
    becomes(&one, "standby")?;
    // Where the last entry was, and how that is undone.
    let last = change(&two, &["target", "deny", TARGET, "iqn.x:b", "iqn.x:c"])?;
    ensure!(last.contains("lunet group config vms --edit") && !last.contains(".toml"), "{last}");
    Ok(())
}

/// What a gateway says volume `a` may do each second.
fn iops(server: &Server) -> Result<Value> {
    let all: Value = serde_json::from_str(&server.tell(&["volume", "list", "--json"])?)?;
    let all = all.as_array().context("a list")?;
    let found = all.iter().find(|one| one["name"] == "a").context("the volume")?;
    Ok(found["own_limits"]["iops"].clone())
}

#[test]
fn limits_of_a_volume_change_while_the_group_serves_it() -> Result<()> {
    let _cluster = undisturbed();
    let Some(ceph) = cluster() else { return Ok(()) };
    let (group, one, two) = two(ceph, "limits")?;
    let mut session = log_in(&one, "iqn.x:a")?;
    write_all(&mut session, 1)?;
    // Through the standby, while the other one serves.
    let done = change(&two, &["volume", "limit", "a", "--iops", "70000"])?;
    ensure!(done.contains("gateways that serve by it: 1, 2"), "{done}");
    for server in [&one, &two] {
        serves(server, 2)?;
        ensure!(iops(server)? == 70_000, "{done}");
    }
    have(&mut session, 1)?;
    let text = group.path("text.toml");
    fs::write(&text, one.tell(&["group", "config", "vms"])?.replace("70000", "80000"))?;
    one.tell(&["group", "config", "vms", "--set", text.to_str().context("a path")?])?;
    serves(&two, 3)?;
    have(&mut session, 1)?;
    // Whoever takes over has the limits of today.
    two.tell(&["group", "take-over", "vms"])?;
    becomes(&two, "owner")?;
    ensure!(iops(&two)? == 80_000, "other limits");
    have(&mut log_in(&two, "iqn.x:a")?, 1)
}

#[test]
fn of_two_editors_one_is_told_and_a_wrong_text_is_refused_by_its_line() -> Result<()> {
    let _cluster = undisturbed();
    let Some(ceph) = cluster() else { return Ok(()) };
    let (group, one, two) = two(ceph, "editors")?;
    let text = group.path("text.toml");
    let name = text.to_str().context("a path")?;
    let set = ["group", "config", "vms", "--set", name];
    let first = one.tell(&["group", "config", "vms"])?;
    ensure!(first.starts_with("# lunet group configuration, format 1, revision 1\n"), "{first}");
    ensure!(first == two.tell(&["group", "config", "vms"])?, "gateways show another one");
    fs::write(&text, first.replace("'iqn.x:b'", "'iqn.x:c'"))?;
    two.tell(&set)?;
    serves(&one, 2)?;
    // Made of the same revision.
    fs::write(&text, first.replace("'iqn.x:b'", "'iqn.x:d'"))?;
    let refusal = one.refuses(&set)?;
    ensure!(refusal.contains("it has revision 2") && refusal.contains("revision 1"), "{refusal}");
    refused(&one, "iqn.x:d")?;
    // Each mistake is told with its line, with the line of the revision or without it.
    let now = one.tell(&["group", "config", "vms"])?;
    for (text_of, line) in [(now.clone(), "line 8: "), (part(&group, ""), "line 7: ")] {
        let bad = text_of.lines().map(|line| match line.starts_with("initiators") {
            true => "initiators = 7\n".to_owned(),
            false => format!("{line}\n"),
        });
        fs::write(&text, bad.collect::<String>())?;
        let refusal = two.refuses(&set)?;
        ensure!(refusal.contains(line) && refusal.contains("target.initiators"), "{refusal}");
    }
    // What the record names stays, and what gateways have of their own is not shared.
    let other = now.replace("luns = ['a']", "luns = []");
    let renamed = now.replace("[volumes.a]", "[volumes.z]").replace("['a']", "['z']");
    for (bad, words) in [
        (other, "no LUN"),
        (renamed, "volume a cannot get the name z while lunet runs"),
        (format!("{now}alias = 'x'\n[server]\n"), "belongs into the file of each gateway"),
        (now.replace(TARGET, "iqn.2026-11.local.lunet:other"), "cannot change while lunet runs"),
    ] {
        fs::write(&text, bad)?;
        let refusal = two.refuses(&set)?;
        ensure!(refusal.contains(words), "{words}: {refusal}");
    }
    // An editor, which is a program here.
    let mut edit = Command::new(lunet_binary()?);
    edit.args(["group", "config", "vms", "--edit", "--data"]).arg(one.data());
    edit.env_remove("VISUAL").env("EDITOR", "sed -i s/iqn.x:c/iqn.x:e/");
    output(&mut edit, PATIENCE)?;
    serves(&two, 3)?;
    drop(log_in(&two, "iqn.x:e")?);
    Ok(())
}

#[test]
fn secrets_are_with_the_cluster_and_nowhere_to_be_read() -> Result<()> {
    let _cluster = undisturbed();
    let Some(ceph) = cluster() else { return Ok(()) };
    let (group, mut one, two) = two(ceph, "secrets")?;
    let text = group.path("text.toml");
    let user = format!("[[target.user]]\nname = 'anna'\nsecret = '{SECRET}'\n");
    fs::write(&text, part(&group, "'iqn.x:a'") + &user)?;
    let name = text.to_str().context("a path")?;
    let set = ["group", "config", "vms", "--set", name];
    let mut said = vec![change(&one, &set)?];
    serves(&two, 2)?;
    refused(&two, "iqn.x:a")?;
    let shown = two.tell(&["group", "config", "vms"])?;
    ensure!(shown.contains("secret = 'not shown'") || shown.contains("\"not shown\""), "{shown}");
    // What is shown can be changed and given back: the secret stays.
    fs::write(&text, shown.replace("'iqn.x:a'", "'iqn.x:a', 'iqn.x:f'"))?;
    said.extend([shown, change(&two, &set)?]);
    serves(&one, 3)?;
    // A text that is refused has a secret, too.
    fs::write(&text, part(&group, "7") + &user)?;
    said.push(one.refuses(&set)?);
    for words in [
        &["doctor"][..],
        &["target", "user", "list"],
        &["config", "show"],
        &["group", "list", "--json"],
    ] {
        let finished = one.command(words)?;
        said.extend([finished.stdout, finished.stderr]);
    }
    let process = one.process();
    said.extend([process.stdout.text(), process.stderr.text()]);
    ensure!(said.iter().all(|said| !said.contains(SECRET)), "a secret is told");
    // Who has the keyring is shown it.
    let config = group.path("shared.toml");
    let mut show = Command::new(lunet_binary()?);
    show.args(["group", "config", "vms", "--secrets", "--config"]).arg(&config);
    let whole = output(&mut show, PATIENCE)?;
    ensure!(whole.contains(SECRET) && whole.contains("iqn.x:f"), "{whole}");
    Ok(())
}

#[test]
fn a_standby_that_stood_still_takes_over_with_the_rules_of_today() -> Result<()> {
    let _cluster = undisturbed();
    let Some(ceph) = cluster() else { return Ok(()) };
    let (_group, one, two) = two(ceph, "withdrawn")?;
    let mut stays = log_in(&two, "iqn.x:a")?;
    signal(&two, Signal::STOP)?;
    let done = one.command(&["target", "deny", TARGET, "iqn.x:a"])?;
    ensure!(done.stderr.contains("a gateway has not answered"), "{}", done.describe());
    let code = done.status.and_then(|status| status.code());
    ensure!(code == Some(3), "not everywhere: {}", done.describe());
    one.kill()?;
    signal(&two, Signal::CONT)?;
    becomes(&two, "owner")?;
    ensure!(told(&two)?["config"] == 2, "it serves by rules that were withdrawn");
    refused(&two, "iqn.x:a")?;
    is_ended(&mut stays)?;
    drop(log_in(&two, "iqn.x:b")?);
    Ok(())
}

#[test]
fn a_gateway_starts_without_the_cluster_by_what_it_has_kept() -> Result<()> {
    if !long() {
        return Ok(());
    }
    let _cluster = alone();
    let Some(ceph) = cluster() else { return Ok(()) };
    let (group, one, other) = two(ceph, "kept")?;
    other.stop()?;
    ceph.script(&["stop-mon"])?;
    let without = || -> Result<(Server, Server)> {
        let (two, three) = (gateway(&group, 2).start()?, gateway(&group, 3).start()?);
        for server in [&two, &three] {
            ensure!(told(server)?["state"] == "fenced");
            drop(Session::open(&Login {
                initiator: "iqn.x:z",
                ..Login::new(server.portal(), OWN)
            })?);
        }
        ensure!(told(&two)?["config"] == 1, "it has kept nothing");
        ensure!(told(&three)?["config"].is_null(), "it has never known anything");
        let why = says(&three, "configuration")?;
        ensure!(why.lines().count() == 1, "{why}");
        // Changed meanwhile; the owner needs no monitor for that.
        // A watch of a gateway that was there before may be waited for: it has not taken that over then.
        let denied = one.command(&["target", "deny", TARGET, "iqn.x:a"])?;
        let code = denied.status.and_then(|status| status.code());
        ensure!([Some(0), Some(3)].contains(&code), "{}", denied.describe());
        sleep(Duration::from_secs(2));
        ensure!(told(&two)?["config"] == 1, "it has asked nobody");
        Ok((two, three))
    };
    let started = without();
    ceph.script(&["cont-mon"])?;
    let (two, three) = started?;
    for server in [&two, &three] {
        becomes(server, "standby")?;
        ensure!(told(server)?["config"] == 2, "it is a standby with rules that were withdrawn");
        refused(server, "iqn.x:a")?;
        drop(log_in(server, "iqn.x:b")?);
    }
    Ok(())
}

#[test]
fn a_group_that_is_made_anew_is_served_by_gateways_that_have_kept_another() -> Result<()> {
    let _cluster = undisturbed();
    let Some(ceph) = cluster() else { return Ok(()) };
    let (group, one, other) = two(ceph, "anew")?;
    one.stop()?;
    other.stop()?;
    ceph.shared_image("anew2", 64)?;
    for object in ["lunet.group.anew", "lunet.group.anew.config"] {
        ceph.rados(&["-p", "rbd", "rm", object])?;
    }
    let (config, part_file) = (group.path("shared.toml"), group.path("part.toml"));
    let text = part(&group, "'iqn.x:a'").replace("rbd://rbd/anew", "rbd://rbd/anew2");
    fs::write(&part_file, text)?;
    let mut create = Command::new(lunet_binary()?);
    create.args(["group", "create", "vms", "--gateways", "3", "--config"]).arg(&config);
    output(create.arg("--shared").arg(&part_file), PATIENCE)?;
    let (one, other) = (gateway(&group, 1).start()?, gateway(&group, 2).start()?);
    // One that begins with what it has kept has to be restarted at most.
    let mut servers = Vec::new();
    for server in [one, other] {
        let number = servers.len() as u16 + 1;
        until("it knows the group of today", || {
            Ok(!told(&server)?["trouble"].is_null() || told(&server)?["state"] != "fenced")
        })?;
        let stuck = told(&server)?["trouble"]
            .as_str()
            .is_some_and(|why| why.contains("restart this gateway"));
        servers.push(match stuck {
            true => {
                server.stop()?;
                gateway(&group, number).start()?
            }
            false => server,
        });
    }
    for server in &servers {
        until("it serves or waits", || Ok(told(server)?["state"] != "fenced"))?;
    }
    until("somebody owns it", || Ok(!told(&servers[0])?["owner"].is_null()))
}
