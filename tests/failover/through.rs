//! Hosts that reach a standby alone: the owner executes their commands.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lunet_e2e::ceph::cluster;
use lunet_e2e::server::Server;
use lunet_e2e::wire::handshake::Chap;
use lunet_e2e::wire::scsi::{read16, sense_code, write16};
use lunet_e2e::wire::{Answer, Login, Session};
use rustix::process::Signal;

use crate::load::Load;
use crate::network::Network;
use crate::world::{
    BLOCK, BLOCKS, BUSY, CONFLICT, Group, STANDBY, TARGET, access, ask, becomes, have, insist, lba,
    log_in, long, pattern, seconds, signal, two_through, undisturbed, until, write_all,
};
use crate::{MANY, TAKEOVER};

/// MISCOMPARE DURING VERIFY OPERATION.
const MISCOMPARE: (u8, u8, u8) = (0x0E, 0x1D, 0x00);
/// COMPARE AND WRITE of the first block.
const COMPARE_AND_WRITE: [u8; 16] = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];

/// The states of the target port groups, by their numbers.
fn states(report: &[u8]) -> Vec<(u16, u8)> {
    let groups = report[4..].chunks(12);
    groups.map(|group| (u16::from_be_bytes([group[2], group[3]]), group[0] & 0x0F)).collect()
}

/// The answer to a command that is not turned back.
fn through(session: &mut Session, cdb: &[u8], expected: usize, data: &[u8]) -> Result<Answer> {
    let mut answer = None;
    until("a command gets through", || {
        let got = ask(session, cdb, expected, data)?;
        let waits = got.status == BUSY || sense_code(&got) == Some(STANDBY);
        answer = Some(got);
        Ok(!waits)
    })?;
    answer.context("an answer")
}

#[test]
fn a_host_reads_and_writes_through_a_standby_alone() -> Result<()> {
    let _cluster = undisturbed();
    let Some((_group, one, two)) = two_through("through")? else { return Ok(()) };
    let (mut first, mut second) = (log_in(&one, "iqn.x:a")?, log_in(&two, "iqn.x:b")?);
    // Active/optimized, and two active/non-optimized, whoever is asked.
    let report = access(&mut first)?;
    ensure!(report == access(&mut second)?, "gateways report other states");
    ensure!(states(&report) == [(1, 0), (2, 1), (3, 1)], "{report:02x?}");
    write_all(&mut second, 1)?;
    have(&mut second, 1)?;
    have(&mut first, 1)?;
    write_all(&mut first, 2)?;
    have(&mut second, 2)?;
    // More than fits into one sequence of data.
    let long = pattern(3).repeat(16 * MANY as usize);
    insist(&mut second, &write16(lba(0), 16 * MANY), 0, &long)?;
    ensure!(insist(&mut second, &read16(lba(0), 16 * MANY), long.len(), &[])?.data == long);
    ensure!(insist(&mut first, &read16(lba(0), 16 * MANY), long.len(), &[])?.data == long);
    // A command that fails fails as at the owner.
    let end = ask(&mut first, &write16(1 << 40, 1), 0, &pattern(1))?;
    let same = through(&mut second, &write16(1 << 40, 1), 0, &pattern(1))?;
    ensure!(end.sense == same.sense && end.status == same.status, "{end:02x?} {same:02x?}");
    let compare = |salt: u8| [pattern(salt), pattern(4)].concat();
    let differs = through(&mut second, &COMPARE_AND_WRITE, 0, &compare(9))?;
    ensure!(sense_code(&differs) == Some(MISCOMPARE), "{differs:02x?}");
    insist(&mut second, &COMPARE_AND_WRITE, 0, &compare(3))?;
    ensure!(insist(&mut first, &read16(0, 1), BLOCK, &[])?.data == pattern(4));
    // Its session is shown as one through the gateway.
    let sessions = one.tell(&["sessions", "--json"])?;
    ensure!(sessions.contains("through gateway 2"), "{sessions}");
    Ok(())
}

#[test]
fn reservations_hold_through_a_standby() -> Result<()> {
    let _cluster = undisturbed();
    let Some((_group, one, two)) = two_through("heldthrough")? else { return Ok(()) };
    let (mut first, mut second) = (log_in(&one, "iqn.x:a")?, log_in(&two, "iqn.x:b")?);
    let mut third = log_in(&two, "iqn.x:c")?;
    write_all(&mut second, 1)?;
    for session in [&mut second, &mut third] {
        insist(session, &read16(0, 1), BLOCK, &[])?;
    }
    let out = |action: u8, kind: u8, key: u64, second: u64| {
        let list = [&key.to_be_bytes()[..], &second.to_be_bytes(), &[0; 8]].concat();
        ([0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0], list)
    };
    // REGISTER, then RESERVE with WRITE EXCLUSIVE.
    for (cdb, list) in [out(0, 0, 0, 7), out(1, 1, 7, 0)] {
        insist(&mut second, &cdb, 0, &list)?;
    }
    for other in [&mut first, &mut third] {
        let refused = through(other, &write16(lba(0), 1), 0, &pattern(2))?;
        ensure!(refused.status == CONFLICT, "{refused:02x?}");
    }
    write_all(&mut second, 3)?;
    have(&mut first, 3)
}

/// Load over the second gateway alone, which is a standby.
fn load(group: &Group<'_>) -> Result<Load> {
    Load::over(vec![group.portals[1].clone()])
}

#[test]
fn an_owner_that_is_killed_loses_nothing_of_what_came_through_a_standby() -> Result<()> {
    if !long() {
        return Ok(());
    }
    let _cluster = undisturbed();
    let Some((group, one, two)) = two_through("killthrough")? else { return Ok(()) };
    let mut load = load(&group)?;
    one.kill()?;
    let killed = Instant::now();
    becomes(&two, "owner")?;
    load.goes_on()?;
    let pause = load.pause_since(killed);
    seconds("owner killed, longest time without a write through the former standby", pause);
    ensure!(pause < TAKEOVER, "it took {pause:?}");
    // It comes back, and the group with it: the load goes through the standby again.
    let one = group.serve(1)?;
    becomes(&one, "standby")?;
    let moved = Instant::now();
    until("the group moves", || {
        let finished = two.command(&["group", "move", "vms", "1"])?;
        let is_there = finished.stderr.contains("owns group vms already");
        Ok(is_there || finished.status.is_some_and(|status| status.success()))
    })?;
    becomes(&one, "owner")?;
    load.goes_on()?;
    seconds(
        "planned move, longest time without a write through one gateway",
        load.pause_since(moved),
    );
    load.finish(&group)
}

#[test]
fn what_goes_through_a_standby_waits_for_a_frozen_owner_or_for_the_next() -> Result<()> {
    if !long() {
        return Ok(());
    }
    let _cluster = undisturbed();
    let Some((group, one, two)) = two_through("freezethrough")? else { return Ok(()) };
    let mut load = load(&group)?;
    // For less than a takeover needs, but long enough for the session between the gateways.
    signal(&one, Signal::STOP)?;
    std::thread::sleep(Duration::from_millis(4500));
    signal(&one, Signal::CONT)?;
    load.goes_on()?;
    signal(&one, Signal::STOP)?;
    becomes(&two, "owner")?;
    load.goes_on()?;
    load.rest()?;
    signal(&one, Signal::CONT)?;
    becomes(&one, "standby")?;
    load.is_on(&group)
}

#[test]
fn a_frozen_standby_holds_back_nothing_that_lands_over_newer_data() -> Result<()> {
    let _cluster = undisturbed();
    let Some((_group, one, two)) = two_through("latethrough")? else { return Ok(()) };
    // One host, which has a path to each gateway.
    let (mut direct, mut around) = (log_in(&one, "iqn.x:a")?, log_in(&two, "iqn.x:a")?);
    write_all(&mut around, 1)?;
    signal(&two, Signal::STOP)?;
    for block in 0..BLOCKS {
        around.start(0, &write16(lba(block), 1), 0, &pattern(2))?;
    }
    // It gives that path up, and repeats them over the other one; then it writes something newer.
    write_all(&mut direct, 2)?;
    write_all(&mut direct, 3)?;
    signal(&two, Signal::CONT)?;
    for _ in 0..BLOCKS {
        let answer = around.finish()?;
        ensure!(answer.status != 0, "a write that was held back was executed: {answer:02x?}");
    }
    have(&mut direct, 3)?;
    // What it sends from now on is executed.
    write_all(&mut around, 4)?;
    have(&mut direct, 4)
}

/// How a session ends that has commands under way.
#[derive(Clone, Copy, Debug)]
enum Ends {
    Closed,
    Reset,
    ByStandby,
}

/// A session of a host, by its number.
fn session(server: &Server, qualifier: u16) -> Result<Session> {
    let login = Login::new(server.portal(), TARGET);
    Session::open(&Login { initiator: "iqn.x:a", qualifier, ..login })
}

#[test]
fn what_one_session_has_lost_at_a_standby_is_not_executed_behind_what_came_by_another() -> Result<()>
{
    let _cluster = undisturbed();
    let Some(ceph) = cluster() else { return Ok(()) };
    let group = Group::with(ceph, "lostway", true)?;
    let network = Network::to(&group.portals[0])?;
    let reach = format!("reach = '{}'", network.address());
    let one = group.configured(1, group.config(1, "", &reach)).start()?;
    becomes(&one, "owner")?;
    let two = group.serve(2)?;
    becomes(&two, "standby")?;
    let mut owners = log_in(&one, "iqn.x:b")?;
    // The standby ends the session, as it does not hear from the owner; or the host closes its connection, or resets it. The other
    // one has been used before, or not.
    let ends = [Ends::Closed, Ends::Reset, Ends::ByStandby];
    for (ends, used) in ends.into_iter().flat_map(|ends| [(ends, true), (ends, false)]) {
        let (mut lost, mut other) = (session(&two, 1)?, session(&two, 2)?);
        write_all(&mut lost, 1)?;
        let held = network.count();
        if used {
            write_all(&mut other, 2)?;
        }
        network.hold(held);
        lost.start(0, &write16(lba(0), 1), 0, &pattern(3))?;
        network.has_something()?;
        match ends {
            Ends::Closed => drop(lost),
            Ends::Reset => lost.reset()?,
            Ends::ByStandby => {
                ensure!(lost.finish().is_err(), "nobody can know what has become of it");
            }
        }
        write_all(&mut other, 4)?;
        have(&mut owners, 4)?;
        network.deliver()?;
        have(&mut owners, 4).with_context(|| format!("{ends:?}, used before: {used}"))?;
        have(&mut other, 4)?;
    }
    Ok(())
}

#[test]
fn a_stranger_does_not_log_in_as_a_gateway() -> Result<()> {
    let _cluster = undisturbed();
    let Some((group, one, _two)) = two_through("stranger")? else { return Ok(()) };
    let (_, epoch) = group.owner()?;
    let right = format!("2,{epoch},127.0.0.1");
    let others = [format!("2,{},127.0.0.1", epoch + 1), format!("9,{epoch},127.0.0.1"), "x".into()];
    for through in others.iter().chain([&right]) {
        for chap in [None, Some(Chap::new("through gateway 2", "a secret of a stranger"))] {
            let login = Login {
                initiator: "iqn.x:a",
                through: Some(through),
                chap,
                ..Login::new(one.portal(), TARGET)
            };
            ensure!(Session::open(&login).is_err(), "{through} was let in");
        }
    }
    log_in(&one, "iqn.x:a").map(drop)
}
