//! COMPARE AND WRITE, and fused commands of NVMe, by several hosts at once, while the owner changes. Each content of the block names the one that it
//! replaced, so that all that were ever there form one chain, in which everything that was acknowledged has its place.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use lunet_e2e::nvme::{self, Login as Path};
use lunet_e2e::server::Server;
use lunet_e2e::wire::scsi::{read16, sense_code};
use lunet_e2e::wire::{Answer, Login, Session};
use lunet_nvme::command::{Io, Range};
use lunet_nvme::status::Status;
use rustix::process::Signal;

use crate::nvme::{NSID, gateways};
use crate::world::{
    BLOCK, BUSY, GOOD, Group, PATIENCE, STANDBY, TARGET, becomes, long, signal, two, undisturbed,
    until,
};

/// COMPARE AND WRITE of the first block.
const COMPARE_AND_WRITE: [u8; 16] = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];
/// MISCOMPARE DURING VERIFY OPERATION.
const MISCOMPARE: (u8, u8, u8) = (0x0E, 0x1D, 0x00);
const HOSTS: u64 = 3;
/// A host gives a path up that is silent for so long.
const SILENCE: Duration = Duration::from_secs(3);

/// Host and number of an attempt; zeroes for a block that was never written.
type Id = (u64, u64);

/// What is in the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Content {
    id: Id,
    before: Id,
    /// How many were there before.
    count: u64,
}

impl Content {
    fn encode(self) -> Vec<u8> {
        let words = [self.id.0, self.id.1, self.before.0, self.before.1, self.count];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize(BLOCK, self.count as u8);
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let word = |at: usize| -> Result<u64> {
            let part = bytes.get(8 * at..8 * at + 8).context("a whole block")?;
            Ok(u64::from_le_bytes(part.try_into()?))
        };
        let content =
            Self { id: (word(0)?, word(1)?), before: (word(2)?, word(3)?), count: word(4)? };
        ensure!(content.encode() == bytes, "the block is torn: {content:?}");
        Ok(content)
    }
}

/// An attempt, and whether it was acknowledged, refused, or nobody knows.
struct Attempt {
    content: Content,
    known: Option<bool>,
}

/// What all hosts share.
#[derive(Default)]
struct Shared {
    ends: AtomicBool,
    /// The count of the newest content that was acknowledged or read.
    newest: AtomicU64,
    acknowledged: AtomicU64,
}

/// A host's way to the block, over whatever path there is.
trait Way {
    /// Its content. `None`: the connection was lost.
    fn read(&mut self) -> Result<Option<Vec<u8>>>;

    /// Compares it and writes it. False: it is another one. `None`: the connection was lost, and nobody knows.
    fn compare_and_write(&mut self, old: &[u8], new: &[u8]) -> Result<Option<bool>>;
}

/// Over iSCSI, by COMPARE AND WRITE.
struct Iscsi<'a> {
    number: u64,
    portals: &'a [String],
    path: usize,
    session: Option<Session>,
    /// Open still: what was sent over them may be executed at any time.
    given_up: Vec<Session>,
}

impl<'a> Iscsi<'a> {
    fn new(number: u64, portals: &'a [String]) -> Self {
        let path = number as usize % portals.len();
        Self { number, portals, path, session: None, given_up: Vec::new() }
    }

    fn send(&mut self, cdb: &[u8], expected: usize, data: &[u8]) -> Result<Option<Answer>> {
        let end = Instant::now() + 2 * PATIENCE;
        loop {
            ensure!(Instant::now() < end, "nothing ends over any path");
            let name = format!("iqn.x:host{}", self.number);
            let portal = self.portals[self.path].clone();
            let login =
                Login { initiator: &name, patience: SILENCE, ..Login::new(&portal, TARGET) };
            let Some(mut session) = self.session.take().or_else(|| Session::open(&login).ok())
            else {
                self.next_path();
                continue;
            };
            match session.execute(0, cdb, expected, data) {
                Ok(answer) => {
                    self.session = Some(session);
                    match (answer.status, sense_code(&answer)) {
                        (BUSY, _) | (2, Some((6, ..))) => sleep(Duration::from_millis(2)),
                        (2, Some(STANDBY | (5, 0x25, 0))) => self.next_path(),
                        _ => return Ok(Some(answer)),
                    }
                }
                Err(error) if error.chain().any(|cause| cause.is::<io::Error>()) => {
                    self.given_up.push(session);
                    self.next_path();
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn next_path(&mut self) {
        self.session = None;
        self.path = (self.path + 1) % self.portals.len();
        sleep(Duration::from_millis(20));
    }
}

impl Way for Iscsi<'_> {
    fn read(&mut self) -> Result<Option<Vec<u8>>> {
        let Some(answer) = self.send(&read16(0, 1), BLOCK, &[])? else { return Ok(None) };
        ensure!(answer.status == GOOD, "{answer:02x?}");
        Ok(Some(answer.data))
    }

    fn compare_and_write(&mut self, old: &[u8], new: &[u8]) -> Result<Option<bool>> {
        let both = [old, new].concat();
        let Some(answer) = self.send(&COMPARE_AND_WRITE, 0, &both)? else { return Ok(None) };
        if answer.status == GOOD {
            return Ok(Some(true));
        }
        ensure!(sense_code(&answer) == Some(MISCOMPARE), "{answer:02x?}");
        Ok(Some(false))
    }
}

/// Over NVMe, by Compare and Write as fused commands.
struct Fused {
    number: u8,
    paths: Vec<Path>,
    at: usize,
    host: Option<nvme::Host>,
    /// Open still: what was sent over them may be executed at any time.
    given_up: Vec<nvme::Host>,
}

impl Fused {
    fn new(number: u64, paths: Vec<Path>) -> Self {
        let at = number as usize % paths.len();
        Self { number: number as u8, paths, at, host: None, given_up: Vec::new() }
    }

    /// What comes of commands over a path that executes them. `None`: the connection was lost.
    fn send<T>(
        &mut self,
        command: impl Fn(&mut nvme::Host) -> Result<(Status, T)>,
    ) -> Result<Option<(Status, T)>> {
        let end = Instant::now() + 2 * PATIENCE;
        loop {
            ensure!(Instant::now() < end, "nothing ends over any path");
            let path = self.paths[self.at].clone().by(self.number).patient(SILENCE);
            let Some(mut host) = self.host.take().or_else(|| nvme::Host::connect(&path).ok())
            else {
                self.next_path();
                continue;
            };
            match command(&mut host) {
                Ok((Status::ANA_TRANSITION, _)) => {
                    self.host = Some(host);
                    sleep(Duration::from_millis(2));
                }
                Ok((Status::ANA_INACCESSIBLE, _)) => {
                    self.next_path();
                }
                Ok(outcome) => {
                    self.host = Some(host);
                    return Ok(Some(outcome));
                }
                Err(_) => {
                    self.given_up.push(host);
                    self.next_path();
                    return Ok(None);
                }
            }
        }
    }

    fn next_path(&mut self) {
        self.at = (self.at + 1) % self.paths.len();
        sleep(Duration::from_millis(20));
    }
}

impl Way for Fused {
    fn read(&mut self) -> Result<Option<Vec<u8>>> {
        let range = Range { lba: 0, blocks: 1 };
        let read = |host: &mut nvme::Host| {
            let data = lunet_nvme::host::Data::Read(vec![0; BLOCK]);
            let outcome = host.execute(Io::Read { range, fua: false }, NSID, data)?;
            Ok((outcome.status, outcome.data))
        };
        let Some((status, data)) = self.send(read)? else { return Ok(None) };
        ensure!(status.is_success(), "{status}");
        Ok(Some(data))
    }

    fn compare_and_write(&mut self, old: &[u8], new: &[u8]) -> Result<Option<bool>> {
        let pair = |host: &mut nvme::Host| {
            let [compared, written] = host.execute_pair(NSID, 0, (old, new))?;
            Ok((compared.status, written.status))
        };
        let Some((compared, written)) = self.send(pair)? else { return Ok(None) };
        if compared == Status::COMPARE_FAILURE {
            ensure!(!written.is_success(), "written although it differs");
            return Ok(Some(false));
        }
        ensure!(compared.is_success() && written.is_success(), "{compared}, {written}");
        Ok(Some(true))
    }
}

struct Host<'a> {
    number: u64,
    way: Box<dyn Way + Send + 'a>,
    shared: &'a Shared,
    attempts: Vec<Attempt>,
}

impl Host<'_> {
    fn read(&mut self) -> Result<Content> {
        loop {
            let floor = self.shared.newest.load(Ordering::SeqCst);
            let Some(data) = self.way.read()? else { continue };
            let content = Content::decode(&data)?;
            ensure!(content.count >= floor, "{content:?} is older than number {floor}");
            self.shared.newest.fetch_max(content.count, Ordering::SeqCst);
            return Ok(content);
        }
    }

    fn run(mut self) -> Result<Vec<Attempt>> {
        while !self.shared.ends.load(Ordering::Relaxed) {
            let old = self.read()?;
            let id = (self.number, self.attempts.len() as u64 + 1);
            let content = Content { id, before: old.id, count: old.count + 1 };
            let known = self.way.compare_and_write(&old.encode(), &content.encode())?;
            if known == Some(true) {
                self.shared.newest.fetch_max(content.count, Ordering::SeqCst);
                self.shared.acknowledged.fetch_add(1, Ordering::SeqCst);
            }
            self.attempts.push(Attempt { content, known });
        }
        Ok(self.attempts)
    }
}

/// Walks from the last content to the first: everything acknowledged is on the way, and nothing refused.
fn is_one_chain(last: Content, attempts: &[Attempt]) -> Result<()> {
    let by_id: HashMap<Id, &Attempt> = attempts.iter().map(|one| (one.content.id, one)).collect();
    let (mut at, mut chain) = (last, HashSet::new());
    while at.id != (0, 0) {
        ensure!(chain.insert(at.id), "{at:?} comes twice");
        let attempt = by_id.get(&at.id).with_context(|| format!("nobody wrote {at:?}"))?;
        ensure!(attempt.content == at && attempt.known != Some(false), "{at:?} was refused");
        if at.before == (0, 0) {
            ensure!(at.count == 1, "{at:?} is not the first");
            break;
        }
        let before = by_id.get(&at.before).context("what was before it")?.content;
        ensure!(before.count + 1 == at.count, "{at:?} is not behind {before:?}");
        at = before;
    }
    let lost =
        attempts.iter().find(|one| one.known == Some(true) && !chain.contains(&one.content.id));
    ensure!(lost.is_none(), "{:?} was acknowledged, and lost", lost.map(|one| one.content));
    Ok(())
}

impl Shared {
    /// Waits until hosts have succeeded from now on.
    fn goes_on(&self) -> Result<()> {
        let enough = self.acknowledged.load(Ordering::SeqCst) + 5 * HOSTS;
        until("blocks are compared and written", || {
            Ok(self.acknowledged.load(Ordering::SeqCst) >= enough)
        })
    }
}

/// Has these hosts compare and write while the group changes its owner, of which the first gateway is one.
fn while_the_owner_changes<'a>(
    group: &Group<'_>,
    (one, two): (Server, &Server),
    shared: &'a Shared,
    ways: Vec<Box<dyn Way + Send + 'a>>,
) -> Result<()> {
    let attempts = thread::scope(|scope| -> Result<Vec<Attempt>> {
        let hosts: Vec<_> = (1..)
            .zip(ways)
            .map(|(number, way)| Host { number, way, shared, attempts: Vec::new() })
            .map(|host| scope.spawn(move || host.run()))
            .collect();
        let change = || -> Result<()> {
            shared.goes_on()?;
            two.tell(&["group", "take-over", "vms"])?;
            becomes(two, "owner")?;
            shared.goes_on()?;
            becomes(&one, "standby")?;
            // Between comparing and writing, perhaps.
            signal(two, Signal::STOP)?;
            becomes(&one, "owner")?;
            shared.goes_on()?;
            signal(two, Signal::CONT)?;
            becomes(two, "standby")?;
            shared.goes_on()?;
            one.kill()?;
            becomes(two, "owner")?;
            shared.goes_on()
        };
        let changed = change();
        shared.ends.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for host in hosts {
            all.extend(host.join().map_err(|_| anyhow!("a host has panicked"))??);
        }
        changed?;
        Ok(all)
    })?;
    let image = group.ceph.content(&group.name)?;
    let (last, unknown) =
        (Content::decode(&image[..BLOCK])?, attempts.iter().filter(|one| one.known.is_none()));
    eprintln!("{} attempts, {} of unknown end, {last:?}", attempts.len(), unknown.count());
    is_one_chain(last, &attempts)
}

#[test]
fn hosts_that_compare_and_write_at_once_lose_nothing_when_the_owner_changes() -> Result<()> {
    if !long() {
        return Ok(());
    }
    let _cluster = undisturbed();
    let Some((group, one, two)) = two("atomic")? else { return Ok(()) };
    let shared = Shared::default();
    let way = |number| -> Box<dyn Way + Send> { Box::new(Iscsi::new(number, &group.portals[..2])) };
    while_the_owner_changes(&group, (one, &two), &shared, (1..=HOSTS).map(way).collect())
}

#[test]
fn fused_pairs_and_compare_and_write_are_atomic_when_the_owner_changes() -> Result<()> {
    if !long() {
        return Ok(());
    }
    let _cluster = undisturbed();
    let Some((group, [one, two])) = gateways("fused")? else { return Ok(()) };
    let shared = Shared::default();
    let paths = [one.path.clone(), two.path.clone()];
    let ways: Vec<Box<dyn Way + Send>> = vec![
        Box::new(Fused::new(1, paths.to_vec())),
        Box::new(Fused::new(2, paths.to_vec())),
        Box::new(Iscsi::new(3, &group.portals[..2])),
    ];
    while_the_owner_changes(&group, (one.server, &two.server), &shared, ways)
}
