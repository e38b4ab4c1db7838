//! One volume over several portals and targets: who it is, access states, reservations for each path.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lunet_e2e::clients::SHORT;
use lunet_e2e::conformance;
use lunet_e2e::data::scratch;
use lunet_e2e::process;
use lunet_e2e::server::{Serve, Server, lunet_binary, portal_of, url};
use lunet_e2e::wire::scsi::{CHECK_CONDITION, GOOD, TEST_UNIT_READY};
use lunet_e2e::wire::{Answer, Login, Session};

const BLOCK: usize = 512;
const CONFLICT: u8 = 0x18;
const BOTH: &str = "iqn.2026-11.local.lunet:both";
const SECOND: &str = "iqn.2026-11.local.lunet:second";
const OTHER_HOST: &str = "iqn.2026-11.local.lunet:other-host";

const PORTALS: &str = "
[[portal]]
address = '127.0.0.1:0'
preferred = true
[[portal]]
address = '127.0.0.2:0'
tag = 2
group-state = 'non-optimized'
[volumes.v]
backend = 'file'
size = '128MiB'
";
const TARGET_BOTH: &str = "
[[target]]
name = 'iqn.2026-11.local.lunet:both'
luns = ['v']
";
const TARGET_SECOND: &str = "
[[target]]
name = 'iqn.2026-11.local.lunet:second'
portals = ['127.0.0.2:0']
luns = ['v']
";

/// The portals of a running server.
fn portals(server: &Server) -> Result<[String; 2]> {
    let of = |target: &str| {
        let url = server.urls().iter().find(|url| url.contains(target));
        url.map(|url| portal_of(url).to_owned()).context("a target without URL")
    };
    Ok([of(BOTH)?, of(SECOND)?])
}

/// A session that has taken its unit attentions.
fn open(login: &Login<'_>) -> Result<Session> {
    let mut session = Session::open(login)?;
    session.settle(0)?;
    Ok(session)
}

/// The key, code and qualifier of an answer's sense data.
fn sense(answer: &Answer) -> Option<[u8; 3]> {
    let of = |at: usize| answer.sense.get(at).copied();
    (answer.status == CHECK_CONDITION).then_some([of(2)? & 0x0F, of(12)?, of(13)?])
}

fn data_in(session: &mut Session, cdb: &[u8]) -> Result<Vec<u8>> {
    let answer = session.execute(0, cdb, 255, &[])?;
    ensure!(answer.status == GOOD, "{cdb:02x?}: {answer:02x?}");
    Ok(answer.data)
}

/// The designators of VPD page 83h: association, type, designator.
fn designators(session: &mut Session) -> Result<Vec<(u8, u8, Vec<u8>)>> {
    let page = data_in(session, &[0x12, 1, 0x83, 0, 255, 0])?;
    let mut rest = &page[4..];
    let mut found = Vec::new();
    while let [_, kind, _, len, more @ ..] = rest {
        let (designator, next) = more.split_at(usize::from(*len));
        found.push((kind >> 4 & 3, kind & 0x0F, designator.to_vec()));
        rest = next;
    }
    Ok(found)
}

/// Relative target port and target port group of a path.
fn port(session: &mut Session) -> Result<(u16, u16)> {
    let designators = designators(session)?;
    let of = |kind: u8| {
        let found = designators.iter().find(|d| (d.0, d.1) == (1, kind));
        found.map(|(_, _, d)| u16::from_be_bytes([d[2], d[3]])).context("no such designator")
    };
    Ok((of(4)?, of(5)?))
}

/// REPORT TARGET PORT GROUPS: preference and state, group, ports of each.
fn groups(session: &mut Session) -> Result<Vec<(u8, u16, Vec<u16>)>> {
    let data = data_in(session, &[0xA3, 0x0A, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0])?;
    let mut rest = &data[4..];
    let mut found = Vec::new();
    while let [state, _, high, low, _, _, _, count, more @ ..] = rest {
        let (ports, next) = more.split_at(usize::from(*count) * 4);
        let ports = ports.chunks(4).map(|port| u16::from_be_bytes([port[2], port[3]])).collect();
        found.push((*state, u16::from_be_bytes([*high, *low]), ports));
        rest = next;
    }
    Ok(found)
}

/// SET TARGET PORT GROUPS: one group.
fn set_group(session: &mut Session, group: u8, state: u8) -> Result<Answer> {
    let cdb = [0xA4, 0x0A, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0];
    session.execute(0, &cdb, 0, &[0, 0, 0, 0, state, 0, 0, group])
}

const WRITE: [u8; 10] = [0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0];
const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];

fn write(session: &mut Session) -> Result<Answer> {
    session.execute(0, &WRITE, 0, &[7; BLOCK])
}

#[test]
fn a_volume_is_the_same_over_every_path_and_each_port_has_its_number() -> Result<()> {
    let dir = scratch("lunet-paths-")?;
    let mut first_seen = None;
    // The same after a restart with the targets in another order.
    for targets in [[TARGET_BOTH, TARGET_SECOND], [TARGET_SECOND, TARGET_BOTH]] {
        let config = format!("{PORTALS}{}", targets.concat());
        let server = Serve::config(config).data(dir.path()).start()?;
        let [one, two] = portals(&server)?;
        let mut identities = Vec::new();
        let mut ports = Vec::new();
        let mut reports = Vec::new();
        for (portal, target) in [(&one, BOTH), (&two, BOTH), (&two, SECOND)] {
            let mut session = open(&Login::new(portal, target))?;
            let mut unit = designators(&mut session)?;
            unit.retain(|(association, _, _)| *association == 0);
            // NAA and T10 vendor ID: no EUI-64, by which Linux would name the disk.
            ensure!(unit.iter().map(|(_, kind, _)| *kind).eq([3, 1]), "{unit:02x?}");
            let serial = data_in(&mut session, &[0x12, 1, 0x80, 0, 255, 0])?;
            let mut standard = data_in(&mut session, &[0x12, 0, 0, 0, 96, 0])?;
            // MULTIP is of the target, of which there are two: one has two ports.
            ensure!((standard[6] & 0x10 != 0) == (target == BOTH), "MULTIP {:02x}", standard[6]);
            standard[6] &= !0x10;
            ensure!(standard[5] & 0x30 == 0x30, "TPGS {:02x}", standard[5]);
            identities.push((unit, serial, standard));
            ports.push(port(&mut session)?);
            reports.push(groups(&mut session)?);
            session.logout()?;
        }
        ensure!(identities.iter().all(|identity| *identity == identities[0]), "{identities:02x?}");
        ensure!(ports == [(1, 1), (2, 2), (3, 2)], "relative ports and groups: {ports:?}");
        let expected = vec![(0x80, 1, vec![1]), (0x01, 2, vec![2, 3])];
        ensure!(reports.iter().all(|report| *report == expected), "{reports:02x?}");
        let seen = first_seen.get_or_insert_with(|| identities.clone());
        ensure!(*seen == identities, "another volume after the restart");
        server.stop()?;
    }
    Ok(())
}

#[test]
fn access_states_are_enforced_told_and_those_of_the_configuration_after_a_restart() -> Result<()> {
    let dir = scratch("lunet-paths-")?;
    let config = format!("{PORTALS}{TARGET_BOTH}{TARGET_SECOND}");
    let server = Serve::config(config.clone()).data(dir.path()).start()?;
    let [one, two] = portals(&server)?;
    let mut good = open(&Login::new(&one, BOTH))?;
    let mut poor = open(&Login::new(&two, BOTH))?;
    let mut third = open(&Login::new(&two, SECOND))?;
    ensure!(write(&mut poor)?.status == GOOD, "non-optimized works");

    ensure!(set_group(&mut good, 2, 2)?.status == GOOD);
    for session in [&mut poor, &mut third] {
        let told = write(session)?;
        ensure!(sense(&told) == Some([6, 0x2A, 0x06]), "{told:02x?}");
        let refused = write(session)?;
        ensure!(sense(&refused) == Some([2, 0x04, 0x0B]), "{refused:02x?}");
        let refused = session.execute(0, &READ, BLOCK, &[])?;
        ensure!(sense(&refused) == Some([2, 0x04, 0x0B]), "{refused:02x?}");
        ensure!(groups(session)?[1].0 == 0x02);
    }
    ensure!(write(&mut good)?.status == GOOD, "who asked is not told, and its group works");

    // Fail over as an initiator does: through the path that takes over.
    ensure!(set_group(&mut poor, 2, 0)?.status == GOOD);
    ensure!(set_group(&mut poor, 1, 3)?.status == GOOD);
    ensure!(write(&mut poor)?.status == GOOD);
    let told = write(&mut good)?;
    ensure!(sense(&told) == Some([6, 0x2A, 0x06]), "{told:02x?}");
    for command in [&TEST_UNIT_READY[..], &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0]] {
        let refused = good.execute(0, command, 0, &[])?;
        ensure!(sense(&refused) == Some([2, 0x04, 0x0C]), "{refused:02x?}");
    }
    ensure!(groups(&mut good)?.iter().map(|g| g.0).eq([0x83, 0x00]));
    let refused = set_group(&mut good, 3, 0)?;
    ensure!(sense(&refused) == Some([5, 0x26, 0x00]), "there is no group 3: {refused:02x?}");
    drop((good, poor, third));
    server.stop()?;

    let server = Serve::config(config).data(dir.path()).start()?;
    let [one, _] = portals(&server)?;
    let mut again = open(&Login::new(&one, BOTH))?;
    ensure!(groups(&mut again)?.iter().map(|g| g.0).eq([0x80, 0x01]));
    drop(again);
    server.stop()?;
    Ok(())
}

#[test]
fn states_follow_the_configuration_while_it_is_served() -> Result<()> {
    let dir = scratch("lunet-paths-")?;
    let config = format!("{PORTALS}{TARGET_BOTH}{TARGET_SECOND}");
    let server = Serve::config(config.clone()).data(dir.path()).start()?;
    let [one, two] = portals(&server)?;
    let mut first = open(&Login::new(&one, BOTH))?;
    let mut second = open(&Login::new(&two, BOTH))?;
    let apply = |text: &str| {
        fs::write(dir.path().join("lunet.toml"), text)?;
        let mut command = Command::new(lunet_binary()?);
        process::output(command.args(["config", "apply", "--data"]).arg(dir.path()), SHORT)
    };
    let said = apply(&config.replace("non-optimized", "unavailable"))?;
    ensure!(said.contains("portal group 2 is unavailable now"), "{said}");
    for session in [&mut first, &mut second] {
        let told = session.execute(0, &TEST_UNIT_READY, 0, &[])?;
        ensure!(sense(&told) == Some([6, 0x2A, 0x06]), "{told:02x?}");
        let data = data_in(session, &[0xA3, 0x0A, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0])?;
        // The second group follows the one port of the first; its state is an implicit change.
        ensure!(data[16..22] == [0x03, 0x0F, 0, 2, 0, 2], "{data:02x?}");
    }
    ensure!(write(&mut first)?.status == GOOD);
    let refused = write(&mut second)?;
    ensure!(sense(&refused) == Some([2, 0x04, 0x0C]), "{refused:02x?}");
    apply(&config)?;
    let told = write(&mut second)?;
    ensure!(sense(&told) == Some([6, 0x2A, 0x06]), "{told:02x?}");
    ensure!(write(&mut second)?.status == GOOD);

    // What an initiator has set outlives another size of the volume.
    first.settle(0)?;
    ensure!(set_group(&mut first, 2, 2)?.status == GOOD);
    let mut resize = Command::new(lunet_binary()?);
    resize.args(["volume", "resize", "v", "256MiB", "--data"]).arg(dir.path());
    process::output(&mut resize, SHORT)?;
    let capacity = loop {
        let answer = first.execute(0, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8, &[])?;
        if answer.status == GOOD {
            break answer.data;
        }
        ensure!(answer.sense.get(2) == Some(&6), "{answer:02x?}");
    };
    ensure!(capacity[..4] == (256_u32 * 2048 - 1).to_be_bytes(), "{capacity:02x?}");
    ensure!(groups(&mut first)?.iter().map(|g| g.0).eq([0x80, 0x02]));
    drop((first, second));
    server.stop()?;
    Ok(())
}

#[test]
fn states_can_be_for_the_configuration_alone_or_be_none_at_all() -> Result<()> {
    for (alua, tpgs, reports) in [("implicit", 0x10, true), ("off", 0, false)] {
        let config = format!("[server]\nalua = '{alua}'\n{PORTALS}{TARGET_BOTH}{TARGET_SECOND}");
        let server = Serve::config(config).start()?;
        let mut session = open(&Login::new(server.portal(), BOTH))?;
        let standard = data_in(&mut session, &[0x12, 0, 0, 0, 96, 0])?;
        ensure!(standard[5] & 0x30 == tpgs, "{alua}: TPGS {:02x}", standard[5]);
        ensure!(groups(&mut session).is_ok() == reports, "{alua}");
        let refused = set_group(&mut session, 2, 0)?;
        ensure!(sense(&refused) == Some([5, 0x20, 0x00]), "{alua}: {refused:02x?}");
        drop(session);
        server.stop()?;
    }
    Ok(())
}

/// PERSISTENT RESERVE OUT with its parameter list: `flags` are those of byte 20.
fn reserve(
    session: &mut Session,
    action: u8,
    kind: u8,
    (key, new_key, flags): (u64, u64, u8),
    more: &[u8],
) -> Result<Answer> {
    let mut list = [key.to_be_bytes(), new_key.to_be_bytes(), [0; 8]].concat();
    list[20] = flags;
    list.extend_from_slice(more);
    let cdb = [0x5F, action, kind, 0, 0, 0, 0, 0, list.len() as u8, 0];
    session.execute(0, &cdb, 0, &list)
}

/// READ FULL STATUS: relative target port, key and initiator's name of each registration.
fn registrations(session: &mut Session) -> Result<Vec<(u16, u64, String)>> {
    let answer = session.execute(0, &[0x5E, 3, 0, 0, 0, 0, 0, 4, 0, 0], 1024, &[])?;
    ensure!(answer.status == GOOD, "{answer:02x?}");
    let mut rest = &answer.data[8..];
    let mut found = Vec::new();
    while rest.len() >= 24 {
        let key = rest[..8].iter().fold(0, |key, byte| key << 8 | u64::from(*byte));
        let len = 24 + usize::from(rest[23]);
        let name = String::from_utf8_lossy(&rest[28..len]).into_owned();
        let name = name.split(',').next().unwrap_or_default().to_owned();
        found.push((u16::from_be_bytes([rest[18], rest[19]]), key, name));
        rest = &rest[len..];
    }
    Ok(found)
}

/// The TransportID of a session, behind the length that SPEC_I_PT puts in front of the list.
fn listed(login: &Login<'_>) -> Vec<u8> {
    let isid = &login.request().header[8..14];
    let digits: String = isid.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut text = format!("{},i,0x{digits}", login.initiator).into_bytes();
    text.resize((text.len() + 4) & !3, 0);
    let mut list = ((text.len() + 4) as u32).to_be_bytes().to_vec();
    list.extend_from_slice(&[0x45, 0, 0, text.len() as u8]);
    list.extend_from_slice(&text);
    list
}

const ALL_TG_PT: u8 = 4;
const SPEC_I_PT: u8 = 8;
const APTPL: u8 = 1;
const REGISTRANTS_ONLY: u8 = 6;

#[test]
fn registrations_belong_to_paths_and_survive_a_kill() -> Result<()> {
    let dir = scratch("lunet-paths-")?;
    let config = format!("{PORTALS}{TARGET_BOTH}{TARGET_SECOND}");
    let server = Serve::config(config.clone()).data(dir.path()).start()?;
    let [one, two] = portals(&server)?;
    let own = Login::new(&one, BOTH);
    let other = Login { initiator: OTHER_HOST, ..Login::new(&two, BOTH) };
    let mut first = open(&own)?;
    // All ports of the target: two, and none of the other target.
    let all = ALL_TG_PT | APTPL;
    ensure!(reserve(&mut first, 0, 0, (0, 0xA1, all), &[])?.status == GOOD);
    let host = own.initiator.to_owned();
    let expected = vec![(1, 0xA1, host.clone()), (2, 0xA1, host.clone())];
    ensure!(registrations(&mut first)? == expected, "{:?}", registrations(&mut first)?);
    ensure!(reserve(&mut first, 1, REGISTRANTS_ONLY, (0xA1, 0, 0), &[])?.status == GOOD);
    // The same initiator port through the other portal is registered, through the other target not.
    let mut second = open(&Login::new(&two, BOTH))?;
    ensure!(write(&mut second)?.status == GOOD);
    let mut elsewhere = open(&Login::new(&two, SECOND))?;
    ensure!(write(&mut elsewhere)?.status == CONFLICT);
    // It lets another host in, through the one port that it uses itself.
    let list = listed(&other);
    ensure!(reserve(&mut elsewhere, 0, 0, (0, 0xB1, SPEC_I_PT | APTPL), &list)?.status == GOOD);
    let mut stranger = open(&other)?;
    ensure!(write(&mut stranger)?.status == CONFLICT, "registered through another target");
    let mut guest = open(&Login { target: Some(SECOND), ..other.clone() })?;
    ensure!(write(&mut guest)?.status == GOOD);
    let before = registrations(&mut first)?;
    let more = [(3, 0xB1, host), (3, 0xB1, OTHER_HOST.to_owned())];
    ensure!(before == [expected, more.to_vec()].concat(), "{before:?}");

    server.kill()?;
    let server = Serve::config(config).data(dir.path()).start()?;
    let [one, two] = portals(&server)?;
    let mut first = open(&Login::new(&one, BOTH))?;
    ensure!(registrations(&mut first)? == before, "{:?}", registrations(&mut first)?);
    let mut guest = open(&Login { initiator: OTHER_HOST, ..Login::new(&two, SECOND) })?;
    ensure!(write(&mut guest)?.status == GOOD);
    let mut stranger = open(&Login { initiator: OTHER_HOST, ..Login::new(&one, BOTH) })?;
    ensure!(write(&mut stranger)?.status == CONFLICT);
    drop((first, guest, stranger));
    server.stop()?;
    Ok(())
}

/// Without APTPL they outlive an upgrade, which is a restart in good order, and no kill.
#[test]
fn registrations_that_are_not_kept_outlive_a_restart_and_no_kill() -> Result<()> {
    let dir = scratch("lunet-paths-")?;
    let config = format!("{PORTALS}{TARGET_BOTH}{TARGET_SECOND}");
    let serve = || Serve::config(config.clone()).data(dir.path()).start();
    let server = serve()?;
    let own = |portal: &str| open(&Login::new(portal, BOTH));
    let other = |portal: &str| open(&Login { initiator: OTHER_HOST, ..Login::new(portal, BOTH) });
    let [one, _] = portals(&server)?;
    let mut holder = own(&one)?;
    ensure!(reserve(&mut holder, 0, 0, (0, 0xA1, 0), &[])?.status == GOOD);
    ensure!(reserve(&mut holder, 1, REGISTRANTS_ONLY, (0xA1, 0, 0), &[])?.status == GOOD);
    let before = registrations(&mut holder)?;
    ensure!(before.len() == 1, "{before:?}");
    drop(holder);
    server.stop()?;
    for _ in 0..2 {
        let server = serve()?;
        let [one, _] = portals(&server)?;
        ensure!(write(&mut other(&one)?)?.status == CONFLICT);
        ensure!(write(&mut own(&one)?)?.status == GOOD);
        ensure!(registrations(&mut own(&one)?)? == before);
        server.stop()?;
    }
    serve()?.kill()?;
    let server = serve()?;
    let [one, _] = portals(&server)?;
    ensure!(write(&mut other(&one)?)?.status == GOOD, "a kill is a power loss");
    ensure!(registrations(&mut own(&one)?)?.is_empty());
    server.stop()?;
    Ok(())
}

#[test]
fn libiscsis_multipath_tests_pass_over_two_portals() -> Result<()> {
    let config = format!("{PORTALS}{TARGET_BOTH}{TARGET_SECOND}");
    let server = Serve::config(config).start()?;
    let [one, two] = portals(&server)?;
    for test in ["Simple", "Reset", "CompareAndWrite", "CompareAndWriteAsync"] {
        let mut command = Command::new(conformance::PROGRAM);
        command.args(["--dataloss", "--verbose", "--Verbose-scsi"]);
        command.arg(format!("--test=ALL.MultipathIO.{test}"));
        command.args([url(&one, BOTH, 0), url(&two, BOTH, 0)]);
        let finished = process::run(&mut command, Duration::from_secs(90))?;
        let row = finished.stdout.lines().find_map(|line| line.trim().strip_prefix("tests "));
        let counts: Vec<&str> = row.unwrap_or_default().split_whitespace().collect();
        let passed = counts.starts_with(&["1", "1", "1", "0"]);
        ensure!(passed && finished.status.is_some(), "{test}: {}", finished.describe());
    }
    server.stop()?;
    Ok(())
}
