//! COMPARE AND WRITE by several hosts at once, while the owner changes. Each content of the block names the one that it
//! replaced, so that all that were ever there form one chain, in which everything that was acknowledged has its place.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use lunet_e2e::wire::scsi::{read16, sense_code};
use lunet_e2e::wire::{Answer, Login, Session};
use rustix::process::Signal;

use crate::world::{
    BLOCK, BUSY, GOOD, PATIENCE, STANDBY, TARGET, becomes, long, signal, two, undisturbed, until,
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

struct Host<'a> {
    number: u64,
    portals: &'a [String],
    shared: &'a Shared,
    path: usize,
    session: Option<Session>,
    /// Open still: what was sent over them may be executed at any time.
    given_up: Vec<Session>,
    attempts: Vec<Attempt>,
}

impl Host<'_> {
    /// Sends a command over whatever path there is. `None`: the connection was lost, and nobody knows what became of it.
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

    fn read(&mut self) -> Result<Content> {
        loop {
            let floor = self.shared.newest.load(Ordering::SeqCst);
            let Some(answer) = self.send(&read16(0, 1), BLOCK, &[])? else { continue };
            ensure!(answer.status == GOOD, "{answer:02x?}");
            let content = Content::decode(&answer.data)?;
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
            let both = [old.encode(), content.encode()].concat();
            let answer = self.send(&COMPARE_AND_WRITE, 0, &both)?;
            let known = match &answer {
                None => None,
                Some(answer) if answer.status == GOOD => Some(true),
                Some(answer) => {
                    ensure!(sense_code(answer) == Some(MISCOMPARE), "{answer:02x?}");
                    Some(false)
                }
            };
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

#[test]
fn hosts_that_compare_and_write_at_once_lose_nothing_when_the_owner_changes() -> Result<()> {
    if !long() {
        return Ok(());
    }
    let _cluster = undisturbed();
    let Some((group, one, two)) = two("atomic")? else { return Ok(()) };
    let shared = Shared::default();
    let portals = &group.portals[..2];
    let attempts = thread::scope(|scope| -> Result<Vec<Attempt>> {
        let hosts: Vec<_> = (1..=HOSTS)
            .map(|number| Host {
                number,
                portals,
                shared: &shared,
                path: number as usize % 2,
                session: None,
                given_up: Vec::new(),
                attempts: Vec::new(),
            })
            .map(|host| scope.spawn(move || host.run()))
            .collect();
        let change = || -> Result<()> {
            shared.goes_on()?;
            two.tell(&["group", "take-over", "vms"])?;
            becomes(&two, "owner")?;
            shared.goes_on()?;
            becomes(&one, "standby")?;
            // Between comparing and writing, perhaps.
            signal(&two, Signal::STOP)?;
            becomes(&one, "owner")?;
            shared.goes_on()?;
            signal(&two, Signal::CONT)?;
            becomes(&two, "standby")?;
            shared.goes_on()?;
            one.kill()?;
            becomes(&two, "owner")?;
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
