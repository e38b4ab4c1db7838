//! The same over NVMe/TCP: a host with a path to each gateway.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lunet_e2e::ceph::cluster;
use lunet_e2e::nvme::{Host, Login as Path, sends};
use lunet_e2e::server::{Server, free_port};
use lunet_e2e::wire::scsi::write16;
use lunet_nvme::command::{
    AcquireAction, Io, PersistOnPowerLoss, Range, RegisterAction, ReservationType,
};
use lunet_nvme::status::Status;

use rustix::process::Signal;

use crate::world::{
    BLOCK, BLOCKS, CONFLICT, Group, PATIENCE, ask, becomes, lba, log_in, pattern, seconds, signal,
    undisturbed, until,
};
use crate::{MOVE, TAKEOVER};

const SUBSYSTEM: &str = "nqn.2026-11.local.lunet:group";
/// The namespace of LUN 0.
pub const NSID: u32 = 1;
/// ANA change: a notice about the ANA log.
const ANA_CHANGE: u32 = 0x0C_0302;

/// A gateway, and its address for NVMe.
pub struct Gateway {
    pub server: Server,
    pub path: Path,
}

impl Gateway {
    fn start(group: &Group<'_>, number: u16) -> Result<Self> {
        Self::on(free_port()?, (group, number), "")
    }

    /// On a port, with more keys for its group.
    pub fn on(port: u16, (group, number): (&Group<'_>, u16), keys: &str) -> Result<Self> {
        let portal = format!("[[portal]]\naddress = '127.0.0.1:{port}'\ntransport = 'nvme-tcp'\n");
        let text = group
            .config(number, "", keys)
            .replace("[volumes.a]", &format!("{portal}[volumes.a]"))
            .replace("luns = ['a']", "luns = ['a']\nprotocols = ['iscsi', 'nvme']");
        let server = group.configured(number, text).start()?;
        let path = Path::new(&format!("127.0.0.1:{port}"), SUBSYSTEM);
        Ok(Self { server, path })
    }

    /// A host by its path alone. A gateway that has not read the record yet has it come again.
    pub fn host(&self, number: u8) -> Result<Host> {
        Host::connect(&self.path.clone().by(number))
    }
}

/// Two gateways of a new group, of which the first one is the owner.
pub fn gateways(name: &str) -> Result<Option<(Group<'static>, [Gateway; 2])>> {
    let Some(ceph) = cluster() else { return Ok(None) };
    let group = Group::new(ceph, name)?;
    let one = Gateway::start(&group, 1)?;
    becomes(&one.server, "owner")?;
    let two = Gateway::start(&group, 2)?;
    becomes(&two.server, "standby")?;
    Ok(Some((group, [one, two])))
}

/// A host with a path to each gateway. Its commands go to one that serves.
pub struct Multipath {
    number: u8,
    paths: Vec<Path>,
    hosts: Vec<Option<Host>>,
    at: usize,
    /// The longest that a command took.
    pub longest: Duration,
}

impl Multipath {
    pub fn new(gateways: &[&Gateway], number: u8) -> Result<Self> {
        let paths = gateways.iter().map(|gateway| gateway.path.clone()).collect();
        let hosts = gateways.iter().map(|gateway| gateway.host(number).map(Some));
        let hosts = hosts.collect::<Result<_>>()?;
        Ok(Self { number, paths, hosts, at: 0, longest: Duration::ZERO })
    }

    /// Executes a command by whatever path executes it. It is repeated as long as no path has answered for sure.
    fn insist(&mut self, io: Io, data: &[u8], room: usize) -> Result<Vec<u8>> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let at = self.at;
            if self.hosts[at].is_none() {
                self.hosts[at] = Host::connect(&self.paths[at].clone().by(self.number)).ok();
            }
            let answer = self.hosts[at].as_mut().map(|host| {
                let data = match room {
                    0 => sends(data),
                    len => lunet_nvme::host::Data::Read(vec![0; len]),
                };
                host.execute(io, NSID, data)
            });
            match answer {
                Some(Ok(outcome)) if outcome.status.is_success() => {
                    self.longest = self.longest.max(begun.elapsed());
                    return Ok(outcome.data);
                }
                // Soon.
                Some(Ok(outcome)) if outcome.status == Status::ANA_TRANSITION => continue,
                Some(Ok(outcome)) => {
                    ensure!(outcome.status == Status::ANA_INACCESSIBLE, "{}", outcome.status);
                }
                // The connection is gone, and nobody knows what has become of the command.
                Some(Err(_)) => self.hosts[at] = None,
                None => {}
            }
            self.at = (at + 1) % self.hosts.len();
            sleep(Duration::from_millis(5));
        }
        bail!("no path executes it")
    }

    fn write(&mut self, block: u64, data: &[u8]) -> Result<()> {
        let range = Range { lba: lba(block), blocks: 1 };
        self.insist(Io::Write { range, fua: false }, data, 0).map(drop)
    }

    fn read(&mut self, block: u64) -> Result<Vec<u8>> {
        let range = Range { lba: lba(block), blocks: 1 };
        self.insist(Io::Read { range, fua: false }, &[], BLOCK)
    }
}

/// A block that says which write it is of.
fn stamped(number: u64) -> Vec<u8> {
    let mut block = pattern(number as u8);
    block[..8].copy_from_slice(&number.to_le_bytes());
    block
}

/// Writes and reads until it is told to end. Each write is acknowledged before the next one: a block has what was written to it last.
fn history(host: &mut Multipath, stop: &AtomicBool) -> Result<u64> {
    let mut last = vec![0_u64; BLOCKS as usize];
    let mut number = 0;
    while !stop.load(Ordering::SeqCst) {
        number += 1;
        let block = number * 5 % BLOCKS;
        host.write(block, &stamped(number))?;
        last[block as usize] = number;
        let other = number * 11 % BLOCKS;
        look(host, other, last[other as usize])?;
    }
    for (block, number) in last.iter().enumerate() {
        look(host, block as u64, *number)?;
    }
    Ok(number)
}

fn look(host: &mut Multipath, block: u64, number: u64) -> Result<()> {
    let found = host.read(block)?;
    let expected = if number == 0 { vec![0; BLOCK] } else { stamped(number) };
    let of = found[..8].try_into().map(u64::from_le_bytes)?;
    ensure!(found == expected, "block {block} has write {of}, and {number} was acknowledged last");
    Ok(())
}

/// Has a host write and read while something is done, and demands that nothing that was acknowledged is lost.
pub fn while_writing(host: &mut Multipath, deeds: impl FnOnce() -> Result<()>) -> Result<u64> {
    let stop = AtomicBool::new(false);
    scope(|scope| {
        let writing = scope.spawn(|| history(host, &stop));
        sleep(Duration::from_millis(300));
        let done = deeds();
        sleep(Duration::from_millis(300));
        stop.store(true, Ordering::SeqCst);
        let written = writing.join().expect("it ends")?;
        done.map(|()| written)
    })
}

#[test]
fn planned_moves_lose_nothing_and_the_namespace_stays_the_same() -> Result<()> {
    let _cluster = undisturbed();
    let Some((_group, [one, two])) = gateways("nvme-moves")? else { return Ok(()) };
    let (mut first, mut second) = (one.host(1)?, two.host(1)?);
    ensure!(first.names(NSID)? == second.names(NSID)?, "one namespace has two names");
    ensure!(first.identify(1, 0)?[4..64] == second.identify(1, 0)?[4..64], "two serial numbers");
    ensure!(first.info.cntlid != second.info.cntlid, "two controllers have one identifier");
    let range = Range { lba: 0, blocks: 1 };
    // The other one passes it on, when it has a relay.
    let turned = second.execute(Io::Write { range, fua: false }, NSID, sends(&pattern(9)))?;
    ensure!(turned.status == Status::ANA_TRANSITION, "{}", turned.status);
    let mut host = Multipath::new(&[&one, &two], 2)?;
    let written = while_writing(&mut host, || {
        for to in ["2", "1", "2"] {
            one.server.tell(&["group", "move", "vms", to])?;
            sleep(Duration::from_millis(500));
        }
        Ok(())
    })?;
    ensure!(second.notice()? == ANA_CHANGE, "the host is not told of it");
    eprintln!("{written} writes over three planned moves");
    seconds("planned moves over NVMe, longest command", host.longest);
    ensure!(host.longest < MOVE, "a command took {:?}", host.longest);
    becomes(&two.server, "owner")?;
    let turned = first.execute(Io::Write { range, fua: false }, NSID, sends(&pattern(9)))?;
    ensure!(turned.status == Status::ANA_TRANSITION, "{}", turned.status);
    Ok(())
}

#[test]
fn nothing_is_lost_when_the_owner_is_killed() -> Result<()> {
    let _cluster = undisturbed();
    let Some((_group, [one, two])) = gateways("nvme-killed")? else { return Ok(()) };
    let mut host = Multipath::new(&[&one, &two], 1)?;
    let Gateway { server, .. } = one;
    let written = while_writing(&mut host, || {
        server.kill()?;
        becomes(&two.server, "owner")
    })?;
    eprintln!("{written} writes, the owner killed meanwhile");
    seconds("killed owner over NVMe, longest command", host.longest);
    ensure!(host.longest < TAKEOVER, "a command took {:?}", host.longest);
    Ok(())
}

#[test]
fn commands_in_the_socket_of_an_owner_that_stood_still_are_not_executed() -> Result<()> {
    let _cluster = undisturbed();
    let Some((_group, [one, two])) = gateways("nvme-frozen")? else { return Ok(()) };
    // Its path to the other gateway would not answer.
    let mut host = Multipath::new(&[&two], 1)?;
    let mut old = one.host(1)?;
    for block in 0..BLOCKS {
        old.write(NSID, lba(block), &pattern(1))?;
    }
    signal(&one.server, Signal::STOP)?;
    // These wait in its socket.
    let writes = (0..BLOCKS).map(|block| {
        let range = Range { lba: lba(block), blocks: 1 };
        (Io::Write { range, fua: false }.encode(NSID), sends(&pattern(3)))
    });
    let writes = writes.collect();
    scope(|scope| -> Result<()> {
        let waiting = scope.spawn(move || old.execute_all(writes).map(drop));
        sleep(Duration::from_millis(200));
        two.server.tell(&["group", "take-over", "vms"])?;
        for block in 0..BLOCKS {
            host.write(block, &pattern(4))?;
        }
        signal(&one.server, Signal::CONT)?;
        // Its connection ends, without an answer to them.
        waiting.join().expect("it ends").err().context("they were answered")?;
        Ok(())
    })?;
    becomes(&one.server, "standby")?;
    for block in 0..BLOCKS {
        ensure!(host.read(block)? == pattern(4), "block {block} has other data");
    }
    // It is of use again.
    let mut host = Multipath::new(&[&two, &one], 2)?;
    two.server.tell(&["group", "move", "vms", "1"])?;
    for block in 0..BLOCKS {
        ensure!(host.read(block)? == pattern(4), "block {block} has other data");
    }
    Ok(())
}

#[test]
fn a_reservation_over_nvme_holds_for_both_protocols_and_through_any_gateway() -> Result<()> {
    let _cluster = undisturbed();
    let Some((_group, [one, two])) = gateways("nvme-reserved")? else { return Ok(()) };
    let (mut first, mut second) = (one.host(1)?, two.host(2)?);
    first.write(NSID, 0, &pattern(1))?;
    let kind = ReservationType::WriteExclusive;
    let (action, persist) = (RegisterAction::Register, PersistOnPowerLoss::Unchanged);
    let register = Io::ReservationRegister { action, ignore_key: false, persist };
    let acquire = Io::ReservationAcquire { action: AcquireAction::Acquire, kind };
    for (io, keys) in [(register, [0_u64, 7]), (acquire, [7, 0])] {
        let keys: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
        // By the standby, which has the owner execute it when it has shown that nothing older is on its way.
        let mut status = Status::ANA_TRANSITION;
        until("it is executed", || {
            status = second.execute(io, NSID, sends(&keys))?.status;
            Ok(status != Status::ANA_TRANSITION)
        })?;
        ensure!(status.is_success(), "{status}");
    }
    ensure!(first.try_write(NSID, 0, &pattern(2))? == Status::RESERVATION_CONFLICT);
    let mut session = log_in(&one.server, "iqn.x:a")?;
    let refused = ask(&mut session, &write16(0, 1), 0, &pattern(2))?;
    ensure!(refused.status == CONFLICT, "{refused:02x?}");
    let report = |host: &mut Host| -> Result<Vec<u8>> {
        let io = Io::ReservationReport { len: 4096, extended: true };
        Ok(host.execute(io, NSID, lunet_nvme::host::Data::Read(vec![0; 4096]))?.data)
    };
    ensure!(report(&mut first)? == report(&mut second)?, "they report other reservations");
    // The one that was the standby becomes the owner: its host may write, the other one may not.
    two.server.tell(&["group", "take-over", "vms"])?;
    let mut holder = Multipath::new(&[&two], 2)?;
    holder.write(0, &pattern(3))?;
    let mut other = two.host(1)?;
    ensure!(other.try_write(NSID, 0, &pattern(4))? == Status::RESERVATION_CONFLICT);
    ensure!(holder.read(0)? == pattern(3));
    Ok(())
}
