//! Hosts of NVMe that reach a standby alone: the owner executes their commands.

use std::thread::{scope, sleep};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lunet_e2e::ceph::cluster;
use lunet_e2e::nvme::{Host, sends};
use lunet_e2e::server::free_port;
use lunet_nvme::Through;
use lunet_nvme::command::{
    AcquireAction, Io, PersistOnPowerLoss, Range, RegisterAction, ReservationType,
};
use lunet_nvme::status::Status;
use rustix::process::Signal;

use crate::network::Network;
use crate::nvme::{Gateway, Multipath, NSID, gateways, while_writing};
use crate::world::{
    BLOCK, BLOCKS, Group, becomes, lba, log_in, pattern, seconds, signal, undisturbed,
};
use crate::{MOVE, TAKEOVER};

/// Most commands of a queue that are turned back before one gets through.
const ENTRIES: usize = 40;
/// The ANA log page.
const ANA: u8 = 0x0C;
/// ANA non-optimized.
const NON_OPTIMIZED: u8 = 2;

/// A command that is not turned back: its status.
fn through(mut command: impl FnMut() -> Result<Status>) -> Result<Status> {
    for _ in 0..ENTRIES {
        let status = command()?;
        if status != Status::ANA_TRANSITION {
            return Ok(status);
        }
    }
    anyhow::bail!("it is turned back for ever")
}

fn write(host: &mut Host, block: u64, byte: u64) -> Result<()> {
    let status = through(|| host.try_write(NSID, lba(block), &pattern(byte as u8)))?;
    ensure!(status.is_success(), "{status}");
    Ok(())
}

fn state(host: &mut Host) -> Result<u8> {
    let page = host.log(ANA, 4096)?;
    // The first group's, behind the header, its identifier, its length and its count.
    Ok(page[16 + 16] & 0x0F)
}

#[test]
fn a_host_reads_and_writes_through_a_standby_alone() -> Result<()> {
    let _cluster = undisturbed();
    let Some((_group, [one, two])) = gateways("nvme-through")? else { return Ok(()) };
    let (mut first, mut second) = (one.host(1)?, two.host(2)?);
    ensure!(state(&mut first)? == 1 && state(&mut second)? == NON_OPTIMIZED, "other states");
    for block in 0..BLOCKS {
        write(&mut second, block, 1 + block)?;
    }
    for block in 0..BLOCKS {
        let of = (BLOCK / 512) as u32;
        for host in [&mut first, &mut second] {
            ensure!(host.read(NSID, lba(block), of)? == pattern(1 + block as u8), "block {block}");
        }
    }
    // More than a capsule has, and the rest of what there is.
    let long = pattern(3).repeat(1 << 20 >> 9);
    ensure!(second.try_write(NSID, 0, &long)?.is_success());
    ensure!(second.read(NSID, 0, (long.len() / 512) as u32)? == long);
    ensure!(second.compare_and_write(NSID, 0, (&long[..512], &[9; 512]))?);
    ensure!(!second.compare_and_write(NSID, 0, (&long[..512], &[8; 512]))?);
    ensure!(first.read(NSID, 0, 1)? == [9; 512]);
    let range = Range { lba: 0, blocks: 1 };
    let zeroes = Io::WriteZeroes { range, fua: true, deallocate: false };
    for io in [zeroes, Io::Verify { range, fua: false }, Io::Flush] {
        let status = second.execute(io, NSID, lunet_nvme::host::Data::None)?.status;
        ensure!(status.is_success(), "{io:?}: {status}");
    }
    ensure!(first.read(NSID, 0, 1)? == [0; 512]);
    // What fails there fails here.
    ensure!(second.try_write(NSID, 1 << 40, &[1; 512])? == Status::LBA_RANGE);
    Ok(())
}

#[test]
fn reservations_are_those_of_the_host_at_the_owner() -> Result<()> {
    let _cluster = undisturbed();
    let Some((_group, [one, two])) = gateways("nvme-rthrough")? else { return Ok(()) };
    let (mut first, mut holder, mut other) = (one.host(1)?, two.host(2)?, two.host(3)?);
    let kind = ReservationType::WriteExclusive;
    let (action, persist) = (RegisterAction::Register, PersistOnPowerLoss::Unchanged);
    let register = Io::ReservationRegister { action, ignore_key: false, persist };
    let acquire = Io::ReservationAcquire { action: AcquireAction::Acquire, kind };
    for (io, keys) in [(register, [0_u64, 7]), (acquire, [7, 0])] {
        let keys: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
        let status = through(|| Ok(holder.execute(io, NSID, sends(&keys))?.status))?;
        ensure!(status.is_success(), "{status}");
    }
    write(&mut holder, 0, 1)?;
    let refused = through(|| other.try_write(NSID, 0, &pattern(2)))?;
    ensure!(refused == Status::RESERVATION_CONFLICT, "{refused}");
    ensure!(first.try_write(NSID, 0, &pattern(2))? == Status::RESERVATION_CONFLICT);
    ensure!(first.read(NSID, 0, (BLOCK / 512) as u32)? == pattern(1));
    Ok(())
}

#[test]
fn a_stranger_does_not_connect_as_a_gateway() -> Result<()> {
    let _cluster = undisturbed();
    let Some((group, [one, _two])) = gateways("nvme-stranger")? else { return Ok(()) };
    let (_, epoch) = group.owner()?;
    let right = Through { gateway: 2, epoch, host: [127, 0, 0, 1].into(), renews: false };
    for through in [right, Through { epoch: epoch + 1, ..right }, Through { gateway: 1, ..right }] {
        ensure!(one.path.clone().by(1).connects_through(through)?.is_err(), "{through:?}");
    }
    one.host(1)?.write(NSID, 0, &pattern(1))?;
    log_in(&one.server, "iqn.x:a").map(drop)
}

#[test]
fn nothing_is_lost_when_the_owner_is_killed() -> Result<()> {
    let _cluster = undisturbed();
    let Some((_group, [one, two])) = gateways("nvme-kthrough")? else { return Ok(()) };
    let mut host = Multipath::new(&[&two], 1)?;
    let Gateway { server, .. } = one;
    let written = while_writing(&mut host, || {
        server.kill()?;
        becomes(&two.server, "owner")
    })?;
    eprintln!("{written} writes through the standby, the owner killed meanwhile");
    seconds("killed owner over NVMe through the standby, longest command", host.longest);
    ensure!(host.longest < TAKEOVER, "a command took {:?}", host.longest);
    Ok(())
}

#[test]
fn planned_moves_lose_nothing() -> Result<()> {
    let _cluster = undisturbed();
    let Some((_group, [one, two])) = gateways("nvme-mthrough")? else { return Ok(()) };
    let mut host = Multipath::new(&[&two], 1)?;
    let written = while_writing(&mut host, || {
        for to in ["2", "1", "2", "1"] {
            one.server.tell(&["group", "move", "vms", to])?;
            sleep(Duration::from_millis(500));
        }
        Ok(())
    })?;
    eprintln!("{written} writes through one gateway over four planned moves");
    seconds("planned moves over NVMe through one gateway, longest command", host.longest);
    ensure!(host.longest < MOVE, "a command took {:?}", host.longest);
    Ok(())
}

#[test]
fn hosts_wait_for_a_frozen_owner_or_for_the_next() -> Result<()> {
    let _cluster = undisturbed();
    let Some((_group, [one, two])) = gateways("nvme-fthrough")? else { return Ok(()) };
    let mut host = Multipath::new(&[&two], 1)?;
    let written = while_writing(&mut host, || {
        // For less than a takeover needs.
        signal(&one.server, Signal::STOP)?;
        sleep(Duration::from_millis(3000));
        signal(&one.server, Signal::CONT)?;
        sleep(Duration::from_millis(1000));
        signal(&one.server, Signal::STOP)?;
        becomes(&two.server, "owner")
    })?;
    eprintln!("{written} writes through the standby, the owner frozen meanwhile");
    seconds("frozen owner over NVMe through the standby, longest command", host.longest);
    signal(&one.server, Signal::CONT)?;
    becomes(&one.server, "standby")?;
    ensure!(host.longest < TAKEOVER, "a command took {:?}", host.longest);
    Ok(())
}

#[test]
fn a_frozen_standby_holds_back_nothing_that_lands_over_newer_data() -> Result<()> {
    let _cluster = undisturbed();
    let Some((_group, [one, two])) = gateways("nvme-lthrough")? else { return Ok(()) };
    // One host, which has a path to each gateway; and another one.
    let (mut direct, mut around, mut beside) = (one.host(1)?, two.host(1)?, one.host(2)?);
    for block in 0..BLOCKS {
        write(&mut around, block, 1)?;
    }
    signal(&two.server, Signal::STOP)?;
    let writes = (0..BLOCKS).map(|block| {
        let range = Range { lba: lba(block), blocks: (BLOCK / 512) as u32 };
        (Io::Write { range, fua: false }.encode(NSID), sends(&pattern(2)))
    });
    let writes: Vec<_> = writes.collect();
    let mut around = scope(|scope| -> Result<Host> {
        let waiting = scope.spawn(move || -> Result<(Host, Vec<Status>)> {
            let outcomes = around.execute_all(writes)?;
            Ok((around, outcomes.into_iter().map(|outcome| outcome.status).collect()))
        });
        sleep(Duration::from_millis(200));
        // It gives that path up, and repeats them over the other one; then it writes something newer.
        for byte in [2, 3] {
            (0..BLOCKS).try_for_each(|block| write(&mut direct, block, byte))?;
        }
        beside.write(NSID, lba(BLOCKS), &pattern(5))?;
        signal(&two.server, Signal::CONT)?;
        let (around, statuses) = waiting.join().expect("it ends").context("the standby answers")?;
        ensure!(statuses.iter().all(|status| *status == Status::ANA_TRANSITION), "{statuses:?}");
        Ok(around)
    })?;
    let of = (BLOCK / 512) as u32;
    for block in 0..BLOCKS {
        ensure!(direct.read(NSID, lba(block), of)? == pattern(3), "block {block} has other data");
    }
    // What it sends from now on is executed.
    write(&mut around, 0, 4)?;
    ensure!(direct.read(NSID, lba(0), of)? == pattern(4));
    Ok(())
}

#[test]
fn what_one_controller_has_lost_at_a_standby_is_not_executed_behind_what_came_by_another()
-> Result<()> {
    let _cluster = undisturbed();
    let Some(ceph) = cluster() else { return Ok(()) };
    let group = Group::new(ceph, "nvme-lostway")?;
    let port = free_port()?;
    let network = Network::to(&format!("127.0.0.1:{port}"))?;
    let one = Gateway::on(port, (&group, 1), &format!("reach-nvme = '{}'", network.address()))?;
    becomes(&one.server, "owner")?;
    let two = Gateway::on(free_port()?, (&group, 2), "")?;
    becomes(&two.server, "standby")?;
    let of = (BLOCK / 512) as u32;
    let mut owners = one.host(2)?;
    for used in [true, false] {
        let (mut lost, mut other) = (two.host(1)?, two.host(1)?);
        write(&mut lost, 0, 1)?;
        let held = network.count();
        if used {
            write(&mut other, 0, 2)?;
        }
        network.hold(held);
        // Its host gives it up.
        let range = Range { lba: lba(0), blocks: of };
        lost.begin(Io::Write { range, fua: false }, NSID, sends(&pattern(3)))?;
        network.has_something()?;
        drop(lost);
        write(&mut other, 0, 4)?;
        ensure!(owners.read(NSID, lba(0), of)? == pattern(4));
        network.deliver()?;
        ensure!(owners.read(NSID, lba(0), of)? == pattern(4), "older data, used {used}");
    }
    Ok(())
}
