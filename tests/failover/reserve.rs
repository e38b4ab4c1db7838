//! Persistent reservations through whichever gateway.

use std::time::Instant;

use anyhow::{Result, ensure};
use lunet_e2e::server::Server;
use lunet_e2e::wire::scsi::{read16, sense_key, write16};
use lunet_e2e::wire::{Answer, Pdu, Session, opcode};
use rustix::process::Signal;

use crate::world::{
    BLOCK, BUSY, CONFLICT, GOOD, PATIENCE, becomes, have, insist, lba, log_in, pattern, signal,
    two_through, undisturbed, write_all,
};

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const CLEAR: u8 = 3;
const PREEMPT_AND_ABORT: u8 = 5;
/// TEST UNIT READY commands before another.
const PATH_CHECKS: usize = 6;
/// WRITE EXCLUSIVE, REGISTRANTS ONLY.
const REGISTRANTS: u8 = 5;
/// READ KEYS and READ RESERVATION.
const REPORTS: [[u8; 10]; 2] =
    [[0x5E, 0, 0, 0, 0, 0, 0, 0, 255, 0], [0x5E, 1, 0, 0, 0, 0, 0, 0, 255, 0]];

/// PERSISTENT RESERVE OUT and its list: reservation key, and service action reservation key.
fn change(action: u8, key: u64, other: u64) -> ([u8; 10], Vec<u8>) {
    let list = [&key.to_be_bytes()[..], &other.to_be_bytes(), &[0; 8]].concat();
    let kind = if action == REGISTER { 0 } else { REGISTRANTS };
    ([0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0], list)
}

fn out(session: &mut Session, action: u8, key: u64, other: u64) -> Result<Answer> {
    let (cdb, list) = change(action, key, other);
    insist(session, &cdb, 0, &list)
}

/// What the group reports of its reservations, which is the same through both gateways.
fn reports(sessions: [&mut Session; 2]) -> Result<Vec<Vec<u8>>> {
    let all = sessions.map(|session| {
        REPORTS
            .iter()
            .map(|cdb| Ok(insist(session, cdb, 255, &[])?.data))
            .collect::<Result<Vec<_>>>()
    });
    let [one, two] = all;
    let (one, two) = (one?, two?);
    ensure!(one == two, "the gateways report {one:02x?} and {two:02x?}");
    Ok(one)
}

/// A host with a path to each gateway, and its key registered for both.
struct Host {
    paths: [Session; 2],
    key: u64,
}

impl Host {
    fn new(servers: [&Server; 2], name: &str, key: u64) -> Result<Self> {
        let [one, two] = servers.map(|server| log_in(server, name));
        let mut paths = [one?, two?];
        for path in &mut paths {
            out(path, REGISTER, 0, key)?;
        }
        Ok(Self { paths, key })
    }
}

/// Begins a write of many blocks, of which the target gets a part only: it waits for the rest.
fn begin_write(session: &mut Session, salt: u8) -> Result<Pdu> {
    let data = pattern(salt).repeat(512);
    session.start(0, &write16(0, 512), 0, &data)?;
    let asked = session.receive()?;
    ensure!(asked.opcode() == opcode::R2T, "{asked:02x?}");
    Ok(asked)
}

/// Demands that a write is refused by a reservation. What became of commands before it is nobody's business, but that they
/// have not succeeded.
fn conflicts(session: &mut Session) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        let tag = session.start(0, &write16(lba(1), 1), 0, &pattern(9))?;
        let answer = loop {
            let answer = session.finish()?;
            if answer.tag == tag {
                break answer;
            }
            ensure!(answer.status != GOOD, "an aborted write has succeeded: {answer:02x?}");
        };
        let waits = answer.status == BUSY || sense_key(&answer) == Some(6);
        ensure!(waits || answer.status == CONFLICT, "{answer:02x?}");
        if !waits {
            return Ok(());
        }
        ensure!(Instant::now() < end, "{answer:02x?} for ever");
    }
}

/// One host preempts the other one, and aborts its tasks, through the owner or through the standby.
fn preempts(name: &str, by: usize) -> Result<()> {
    let Some((group, one, two)) = two_through(name)? else { return Ok(()) };
    let mut first = Host::new([&one, &two], "iqn.x:a", 1)?;
    let mut second = Host::new([&one, &two], "iqn.x:b", 2)?;
    out(&mut first.paths[0], RESERVE, first.key, 0)?;
    write_all(&mut first.paths[0], 1)?;
    let [a, b] = &mut first.paths;
    let before = reports([a, b])?;
    let asked = begin_write(&mut first.paths[0], 9)?;
    out(&mut second.paths[by], PREEMPT_AND_ABORT, second.key, 1)?;
    // From here on nothing of the first host lands.
    write_all(&mut second.paths[0], 2)?;
    // It sends what it was asked for before.
    first.paths[0].answer_r2t(&asked)?;
    conflicts(&mut first.paths[0])?;
    have(&mut second.paths[0], 2)?;
    let [a, b] = &mut second.paths;
    let after = reports([a, b])?;
    ensure!(after != before && after[0].ends_with(&2_u64.to_be_bytes()), "{after:02x?}");
    // The reservation outlives its owner.
    one.kill()?;
    becomes(&two, "owner")?;
    have(&mut second.paths[1], 2)?;
    write_all(&mut second.paths[1], 3)?;
    conflicts(&mut first.paths[1])?;
    let read = insist(&mut first.paths[1], &read16(lba(1), 1), BLOCK, &[])?;
    ensure!(read.data == pattern(3), "it reads other data");
    let kept = insist(&mut second.paths[1], &REPORTS[0], 255, &[])?.data;
    // The generation is counted anew by nobody.
    ensure!(kept == after[0], "{kept:02x?} after the takeover, and {:02x?} before", after[0]);
    drop(group);
    Ok(())
}

#[test]
fn a_host_is_preempted_and_its_tasks_aborted_through_the_owner() -> Result<()> {
    let _cluster = undisturbed();
    preempts("preempted", 0)
}

#[test]
fn a_host_is_preempted_and_its_tasks_aborted_through_the_standby() -> Result<()> {
    let _cluster = undisturbed();
    preempts("forwarded", 1)
}

#[test]
fn a_frozen_standby_holds_back_no_change_of_reservations() -> Result<()> {
    let _cluster = undisturbed();
    let Some((_group, one, two)) = two_through("latereserve")? else { return Ok(()) };
    // One host, which has a path to each gateway.
    let (mut direct, mut around) = (log_in(&one, "iqn.x:a")?, log_in(&two, "iqn.x:a")?);
    for path in [&mut direct, &mut around] {
        out(path, REGISTER, 0, 1)?;
    }
    write_all(&mut around, 1)?;
    signal(&two, Signal::STOP)?;
    // Who looks at paths has taken the unit attentions before.
    for _ in 0..PATH_CHECKS {
        around.start(0, &[0; 6], 0, &[])?;
    }
    let (cdb, list) = change(CLEAR, 1, 0);
    around.start(0, &cdb, 0, &list)?;
    // It gives that path up, and goes on over the other one.
    write_all(&mut direct, 2)?;
    out(&mut direct, RESERVE, 1, 0)?;
    signal(&two, Signal::CONT)?;
    for _ in 0..PATH_CHECKS {
        around.finish()?;
    }
    let answer = around.finish()?;
    ensure!(answer.status != GOOD, "a CLEAR that was held back was executed: {answer:02x?}");
    let mut other = log_in(&one, "iqn.x:b")?;
    conflicts(&mut other)?;
    have(&mut direct, 2)
}

/// LOGICAL UNIT RESET of the unit, by whichever gateway: it is complete.
fn reset(session: &mut Session) -> Result<()> {
    let response = session.task_management(5, 0)?;
    ensure!(response == 0, "the reset is answered {response}");
    Ok(())
}

#[test]
fn a_reset_ends_a_write_that_waits_at_another_gateway() -> Result<()> {
    let _cluster = undisturbed();
    let Some((_group, one, two)) = two_through("resetthrough")? else { return Ok(()) };
    let (mut judge, mut waits) = (log_in(&one, "iqn.x:a")?, log_in(&two, "iqn.x:b")?);
    write_all(&mut waits, 1)?;
    let asked = begin_write(&mut waits, 9)?;
    reset(&mut judge)?;
    // It hears of that, and so may send what it was asked for.
    insist(&mut waits, &read16(lba(0), 1), BLOCK, &[])?;
    write_all(&mut judge, 2)?;
    // What was asked for comes now.
    waits.answer_r2t(&asked)?;
    let answer = waits.finish()?;
    ensure!(answer.status != GOOD, "a write that was reset was executed");
    have(&mut judge, 2)?;
    // And by a session that has had no commands yet.
    reset(&mut log_in(&two, "iqn.x:c")?)
}
