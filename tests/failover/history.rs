//! Hosts that check what they read. Each block is written by one host alone, with a number that grows, and each write is
//! repeated, over whatever path there is, until it was acknowledged. So of a block nothing may be read that is older than
//! what was acknowledged, or read, before that read began, and nothing newer than what was sent.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use lunet_block::Random;
use lunet_e2e::wire::scsi::{read16, sense_code, write16};
use lunet_e2e::wire::{Answer, Login, Session};

use crate::world::{BLOCK, BUSY, GOOD, PATIENCE, STANDBY, TARGET};

/// Logical blocks of a block of these tests: 4 KiB.
const SECTORS: usize = 8;
const BYTES: usize = SECTORS * BLOCK;
const TASK_SET_FULL: u8 = 0x28;
/// Four are in an object.
const APART: u64 = 2048;
/// Blocks of a disk, in an image of 64 MiB.
pub const BLOCKS: u64 = 64;
/// A host gives a path up that is silent for so long, and repeats its commands over another one.
const SILENCE: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Default)]
struct Block {
    /// The latest write that was sent.
    sent: u64,
    /// The latest one that was acknowledged.
    acknowledged: u64,
    /// The latest that was read, of each logical block.
    seen: [u64; SECTORS],
}

/// What may be on a disk.
pub struct Disk(Mutex<Vec<Block>>);

impl Disk {
    pub fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(vec![Block::default(); BLOCKS as usize])))
    }

    fn blocks(&self) -> MutexGuard<'_, Vec<Block>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the next write of a block, whose last one was acknowledged.
    fn next(&self, block: u64) -> u64 {
        let block = &mut self.blocks()[block as usize];
        block.sent += 1;
        block.sent
    }

    fn acknowledged(&self, block: u64, number: u64) {
        self.blocks()[block as usize].acknowledged = number;
    }

    /// What a read that begins now has to find, or something newer.
    fn floor(&self, block: u64) -> [u64; SECTORS] {
        let block = self.blocks()[block as usize];
        block.seen.map(|seen| seen.max(block.acknowledged))
    }

    fn judge(&self, block: u64, floor: &[u64; SECTORS], data: &[u8]) -> Result<()> {
        ensure!(data.len() == BYTES, "{} bytes of block {block}", data.len());
        let known = &mut self.blocks()[block as usize];
        for (at, (sector, floor)) in data.chunks_exact(BLOCK).zip(floor).enumerate() {
            let found = number_of(block, sector).with_context(|| format!("sector {at}"))?;
            ensure!(
                found >= *floor,
                "sector {at} of block {block} has write {found}, and {floor} was there before"
            );
            ensure!(found <= known.sent, "block {block} has write {found}, which was not sent");
            known.seen[at] = known.seen[at].max(found);
        }
        Ok(())
    }

    /// Demands that the whole image has the latest writes, all of which were acknowledged.
    pub fn is(&self, image: &[u8]) -> Result<()> {
        let mut written = 0;
        for block in 0..BLOCKS {
            let known = self.blocks()[block as usize];
            ensure!(known.sent == known.acknowledged, "block {block} is being written");
            let content = &image[block as usize * APART as usize * BLOCK..][..BYTES];
            self.judge(block, &[known.acknowledged; SECTORS], content)?;
            written += known.acknowledged;
        }
        ensure!(written > 0, "nothing was written");
        Ok(())
    }
}

/// The content of a logical block for a write of its block.
fn stamps(block: u64, number: u64) -> Vec<u8> {
    let stamp = [block.to_le_bytes(), number.to_le_bytes()].concat();
    stamp.repeat(BYTES / stamp.len())
}

/// The number of the write that a logical block has; 0 if it was never written.
fn number_of(block: u64, sector: &[u8]) -> Result<u64> {
    let first = &sector[..16];
    ensure!(sector.chunks_exact(16).all(|stamp| stamp == first), "block {block} is torn");
    let word = |at: usize| -> Result<u64> { Ok(u64::from_le_bytes(first[at..at + 8].try_into()?)) };
    let (at, number) = (word(0)?, word(8)?);
    ensure!(at == block || (at, number) == (0, 0), "block {block} has data of block {at}");
    Ok(number)
}

/// Something to do, and what is known of it.
#[derive(Clone, Copy)]
enum Work {
    Write { block: u64, number: u64 },
    Read { block: u64, floor: [u64; SECTORS] },
}

/// What a host has done.
#[derive(Debug, Default)]
pub struct Tally {
    pub writes: u64,
    pub reads: u64,
    /// Commands that were sent again.
    pub repeated: u64,
    /// Connections that were lost or given up.
    pub lost: u64,
}

/// How a host is asked to end.
#[derive(Default)]
struct Wishes {
    /// Begin nothing new.
    end: AtomicBool,
    /// Nobody looks any more.
    forgotten: AtomicBool,
}

/// A host under load, over a path to each gateway.
pub struct Host {
    wishes: Arc<Wishes>,
    acknowledged: Arc<Mutex<Vec<Instant>>>,
    depth: usize,
    thread: Option<JoinHandle<Result<Tally>>>,
}

impl Host {
    /// Starts one that writes these blocks, and reads all.
    pub fn start(
        name: &str,
        portals: &[String],
        disk: &Arc<Disk>,
        mine: impl Iterator<Item = u64>,
        depth: usize,
    ) -> Self {
        let (wishes, acknowledged) = (Arc::<Wishes>::default(), Arc::default());
        let worker = Worker {
            name: format!("iqn.x:{name}"),
            portals: portals.to_vec(),
            disk: disk.clone(),
            mine: mine.collect(),
            depth,
            wishes: wishes.clone(),
            acknowledged: Arc::clone(&acknowledged),
            progress: Instant::now(),
            random: lunet_e2e::random_from_environment(),
            sessions: portals.iter().map(|_| None).collect(),
            given_up: Vec::new(),
            again: VecDeque::new(),
            written: HashSet::new(),
            tally: Tally::default(),
        };
        let thread = Some(thread::spawn(move || worker.run()));
        Self { wishes, acknowledged, depth, thread }
    }

    fn times(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until writes were acknowledged that have begun from now on.
    pub fn goes_on(&mut self) -> Result<()> {
        let (enough, end) = (self.times().len() + 3 * self.depth, Instant::now() + 2 * PATIENCE);
        while self.times().len() < enough {
            if self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
                self.join()?;
                bail!("the host has ended");
            }
            ensure!(Instant::now() < end, "no write is acknowledged any more");
            sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// The longest time from then on in which no write was acknowledged.
    pub fn pause_since(&self, then: Instant) -> Duration {
        let times = self.times();
        let after = times.iter().filter(|at| **at > then);
        let ends = after.copied().chain([Instant::now()]);
        let mut before = then;
        ends.map(|at| at - std::mem::replace(&mut before, at)).max().unwrap_or_default()
    }

    /// Has it end when all that it has begun to write is acknowledged.
    pub fn end(mut self) -> Result<Tally> {
        self.wishes.end.store(true, Ordering::Relaxed);
        self.join()
    }

    fn join(&mut self) -> Result<Tally> {
        let thread = self.thread.take().context("the host has ended before")?;
        thread.join().map_err(|_| anyhow!("the host has panicked"))?
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.wishes.forgotten.store(true, Ordering::Relaxed);
    }
}

/// What becomes of a command.
enum End {
    Done,
    /// Of no use on this path now.
    Elsewhere,
    /// To be tried again.
    Later,
}

/// What an answer says.
fn judged(answer: &Answer) -> Result<End> {
    Ok(match (answer.status, sense_code(answer)) {
        (GOOD, _) => End::Done,
        (BUSY | TASK_SET_FULL, _) => End::Later,
        // A unit attention, or a command that another one has aborted.
        (2, Some((6 | 0xB, ..))) => End::Later,
        (2, Some(STANDBY)) => End::Elsewhere,
        // The gateway has not reached the cluster since its start: LOGICAL UNIT NOT SUPPORTED.
        (2, Some((5, 0x25, 0))) => End::Elsewhere,
        _ => bail!("a host's file system would see an error: {answer:02x?}"),
    })
}

struct Worker {
    name: String,
    portals: Vec<String>,
    disk: Arc<Disk>,
    mine: Vec<u64>,
    depth: usize,
    wishes: Arc<Wishes>,
    acknowledged: Arc<Mutex<Vec<Instant>>>,
    /// When something has ended last.
    progress: Instant,
    random: Random,
    sessions: Vec<Option<Session>>,
    /// Open still: what was sent over them may be read and executed at any time.
    given_up: Vec<Session>,
    /// Writes to be sent again.
    again: VecDeque<Work>,
    /// Blocks that have a write which was not acknowledged.
    written: HashSet<u64>,
    tally: Tally,
}

impl Worker {
    fn run(mut self) -> Result<Tally> {
        for path in (0..self.portals.len()).cycle() {
            let ends = self.wishes.end.load(Ordering::Relaxed);
            if ends && self.again.is_empty() {
                break;
            }
            ensure!(!self.wishes.forgotten.load(Ordering::Relaxed), "nobody looks any more");
            ensure!(self.progress.elapsed() < 2 * PATIENCE, "nothing ends over any path");
            if let Some(session) = self.session(path) {
                self.sessions[path] = self.use_path(session)?;
            }
            sleep(Duration::from_millis(5));
        }
        Ok(self.tally)
    }

    fn session(&mut self, path: usize) -> Option<Session> {
        let portal = self.portals[path].clone();
        let login =
            Login { initiator: &self.name, patience: SILENCE, ..Login::new(&portal, TARGET) };
        // A gateway may be away, or stand still.
        self.sessions[path].take().or_else(|| Session::open(&login).ok())
    }

    /// What is to be sent next.
    fn choose(&mut self) -> Option<Work> {
        if let Some(work) = self.again.pop_front() {
            self.tally.repeated += 1;
            return Some(work);
        }
        if self.wishes.end.load(Ordering::Relaxed) {
            return None;
        }
        let at = self.random.below(self.mine.len() as u64) as usize;
        let block = self.mine[at];
        if self.random.below(10) < 6 && self.written.insert(block) {
            return Some(Work::Write { block, number: self.disk.next(block) });
        }
        let block = self.random.below(BLOCKS);
        Some(Work::Read { block, floor: self.disk.floor(block) })
    }

    /// Sends as much as the depth and the window allow.
    fn fill(&mut self, session: &mut Session, flight: &mut HashMap<u32, Work>) -> Result<()> {
        while flight.len() < self.depth && session.has_window() {
            let Some(work) = self.choose() else { break };
            let (cdb, expected, data) = match work {
                Work::Write { block, number } => {
                    (write16(block * APART, SECTORS as u32), 0, stamps(block, number))
                }
                Work::Read { block, .. } => {
                    (read16(block * APART, SECTORS as u32), BYTES, Vec::new())
                }
            };
            match session.start(0, &cdb, expected, &data) {
                Ok(tag) => {
                    flight.insert(tag, work);
                }
                Err(error) => {
                    self.repeat(work);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn repeat(&mut self, work: Work) {
        if matches!(work, Work::Write { .. }) {
            self.again.push_back(work);
        }
    }

    /// Uses a path until it is of no use, or everything is done. Gives the session back if it can be used again.
    fn use_path(&mut self, mut session: Session) -> Result<Option<Session>> {
        let mut flight = HashMap::new();
        let mut leaves = false;
        loop {
            let sent = if leaves { Ok(()) } else { self.fill(&mut session, &mut flight) };
            if flight.is_empty() && sent.is_ok() {
                return Ok(Some(session));
            }
            let answer = match sent.and_then(|()| session.finish()) {
                Ok(answer) => answer,
                Err(error) if error.chain().any(|cause| cause.is::<io::Error>()) => {
                    self.tally.lost += 1;
                    flight.into_values().for_each(|work| self.repeat(work));
                    self.given_up.push(session);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            };
            let work = flight.remove(&answer.tag).context("an answer to nothing")?;
            match judged(&answer).with_context(|| self.name.clone())? {
                End::Done => self.done(work, &answer)?,
                End::Elsewhere => {
                    leaves = true;
                    self.repeat(work);
                }
                End::Later => {
                    self.repeat(work);
                    sleep(Duration::from_millis(2));
                }
            }
            // One that goes on for ever without an end is not served.
            leaves |= self.progress.elapsed() > PATIENCE;
        }
    }

    fn done(&mut self, work: Work, answer: &Answer) -> Result<()> {
        self.progress = Instant::now();
        match work {
            Work::Write { block, number } => {
                self.disk.acknowledged(block, number);
                self.written.remove(&block);
                self.tally.writes += 1;
                let mut times = self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
                times.push(self.progress);
            }
            Work::Read { block, floor } => {
                self.tally.reads += 1;
                self.disk.judge(block, &floor, &answer.data)?;
            }
        }
        Ok(())
    }
}
