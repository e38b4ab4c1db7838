//! `kill -9` under a write load, again and again: what a flush acknowledged is there, and no block is torn.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::mpsc;
use std::thread;

use anyhow::{Context, Result, ensure};
use lunet_e2e::clients::QemuLun;
use lunet_e2e::data::scratch;
use lunet_e2e::fuse::Export;
use lunet_e2e::process::was_killed;
use lunet_e2e::random::{Random, mix};
use lunet_e2e::server::{DEMO_TARGET, Serve, Server, free_port};
use lunet_e2e::wire::scsi::{GOOD, SYNCHRONIZE_CACHE, write16};
use lunet_e2e::wire::{Login, Session};

const ROUNDS: u64 = 50;

/// The unit of the checks. A write of several of these may be cut between them by a crash, never within one.
const BLOCK: usize = 4096;
const SECTORS: u64 = 8;
const BLOCKS: usize = 1024;

/// The largest write: more than the target takes without an R2T in one of our segments.
const MOST_BLOCKS: u64 = 48;
const IN_FLIGHT: usize = 24;

/// What a block holds is told by one number, 0 = never written.
type Version = u64;

/// What may be found in one block.
#[derive(Clone, Default)]
struct Slot {
    /// Acknowledged, and a flush that was sent after that was acknowledged too.
    durable: Version,
    /// Sent later than that. Each may or may not have reached the disk.
    later: Vec<Version>,
    busy: bool,
}

struct Write {
    first: usize,
    count: usize,
    version: Version,
}

/// What the writer knows about the volume.
struct Model {
    slots: Vec<Slot>,
    next_version: Version,
}

impl Model {
    fn content(slot: usize, version: Version) -> Vec<u8> {
        if version == 0 {
            return vec![0; BLOCK];
        }
        let head = [version, slot as u64];
        let rest = (2..BLOCK as u64 / 8).map(|i| mix(version ^ mix(slot as u64 ^ mix(i))));
        head.into_iter().chain(rest).flat_map(u64::to_le_bytes).collect()
    }

    /// Compares the volume with what may be there, and takes over what is there.
    fn check(&mut self, session: &mut Session) -> Result<()> {
        const AT_ONCE: usize = 16;
        for first in (0..BLOCKS).step_by(AT_ONCE) {
            let sectors = (AT_ONCE as u64 * SECTORS) as u32;
            let data = session.read(0, first as u64 * SECTORS, sectors, 512)?;
            for (slot, found) in (first..).zip(data.chunks(BLOCK)) {
                let mut version = [0; 8];
                version.copy_from_slice(&found[..8]);
                let version = Version::from_le_bytes(version);
                let known = &mut self.slots[slot];
                ensure!(
                    version == known.durable || known.later.contains(&version),
                    "block {slot}: version {version}, but {} was flushed and only {:?} sent later",
                    known.durable,
                    known.later
                );
                ensure!(found == Model::content(slot, version), "block {slot} is torn: {version}");
                *known = Slot { durable: version, later: Vec::new(), busy: false };
            }
        }
        // What was read may still be only in a cache. From here on it counts as durable.
        session.flush(0)
    }

    /// A write to blocks that no other write is on its way to: otherwise nobody could say which comes last.
    fn choose(&mut self, random: &mut Random) -> Option<Write> {
        let wanted = 1 + if random.below(4) == 0 { random.below(MOST_BLOCKS) } else { 0 };
        let first = random.below(BLOCKS as u64) as usize;
        let free = self.slots[first..].iter().take(wanted as usize).take_while(|s| !s.busy);
        let count = free.count();
        if count == 0 {
            return None;
        }
        let version = self.next_version;
        self.next_version += 1;
        for slot in &mut self.slots[first..first + count] {
            slot.busy = true;
            slot.later.push(version);
        }
        Some(Write { first, count, version })
    }
}

impl Write {
    fn data(&self) -> Vec<u8> {
        let slots = self.first..self.first + self.count;
        slots.flat_map(|slot| Model::content(slot, self.version)).collect()
    }
}

/// What the answer to a command means.
enum Sent {
    Write(Write),
    /// These versions were acknowledged before the flush was sent.
    Flush(Vec<(usize, Version)>),
}

/// Writes and flushes until `answers` answers have come, and leaves the rest on its way.
fn load(
    model: &mut Model,
    session: &mut Session,
    random: &mut Random,
    answers: u64,
) -> Result<u64> {
    let mut sent: HashMap<u32, Sent> = HashMap::new();
    let mut acknowledged: Vec<(usize, Version)> = Vec::new();
    let mut flushes = 0;
    let mut got = 0;
    loop {
        while sent.len() < IN_FLIGHT && session.has_window() {
            if random.below(40) == 0 {
                let tag = session.start(0, &SYNCHRONIZE_CACHE, 0, &[])?;
                sent.insert(tag, Sent::Flush(acknowledged.clone()));
            } else if let Some(write) = model.choose(random) {
                let sectors = (write.count as u64 * SECTORS) as u32;
                let cdb = write16(write.first as u64 * SECTORS, sectors);
                let tag = session.start(0, &cdb, 0, &write.data())?;
                sent.insert(tag, Sent::Write(write));
            }
        }
        if got == answers {
            return Ok(flushes);
        }
        let answer = session.finish()?;
        ensure!(answer.status == GOOD, "{answer:02x?}");
        got += 1;
        match sent.remove(&answer.tag).context("an answer to nothing")? {
            Sent::Write(write) => {
                for slot in write.first..write.first + write.count {
                    model.slots[slot].busy = false;
                    acknowledged.push((slot, write.version));
                }
            }
            Sent::Flush(before) => {
                flushes += 1;
                for (slot, version) in before {
                    let slot = &mut model.slots[slot];
                    slot.durable = slot.durable.max(version);
                    let durable = slot.durable;
                    slot.later.retain(|&v| v > durable);
                }
                acknowledged.retain(|&(slot, version)| version > model.slots[slot].durable);
            }
        }
    }
}

fn open(server: &Server) -> Result<Session> {
    let mut session = Session::open(&Login::new(server.portal(), DEMO_TARGET))?;
    session.settle(0)?;
    Ok(session)
}

#[test]
fn flushed_writes_survive_fifty_kills() -> Result<()> {
    let mut random = Random::from_environment();
    let dir = scratch("lunet-crash-")?;
    let mut model = Model { slots: vec![Slot::default(); BLOCKS], next_version: 1 };
    let mut flushes = 0;
    for round in 0..ROUNDS {
        let server = Serve::demo("64M").data(dir.path()).start()?;
        let mut session = open(&server)?;
        model.check(&mut session).with_context(|| format!("before round {round}"))?;
        let answers = random.below(1500);
        flushes += load(&mut model, &mut session, &mut random, answers)
            .with_context(|| format!("round {round}, {answers} answers"))?;
        let status = server.kill()?;
        ensure!(was_killed(status), "round {round}: the server had ended before: {status}");
    }
    let server = Serve::demo("64M").data(dir.path()).start()?;
    model.check(&mut open(&server)?)?;
    server.stop()?;
    println!("{} versions written, {flushes} flushes acknowledged", model.next_version - 1);
    // On average about 18 flushes a round: far fewer would mean that the rounds checked nothing.
    ensure!(flushes > 2 * ROUNDS, "only {flushes} flushes");
    Ok(())
}

#[test]
fn a_client_goes_on_after_the_server_was_killed_and_started_again() -> Result<()> {
    const COUNT: u64 = 400;
    let dir = scratch("lunet-crash-")?;
    let listen = format!("127.0.0.1:{}", free_port()?);
    let start = || Serve::at(&listen, "64M").data(dir.path()).start();
    let server = start()?;
    let export = Export::start(&QemuLun::new(server.url()))?;
    let file = File::options().read(true).write(true).open(export.file())?;
    let (progress, written) = mpsc::channel();
    let writer = thread::spawn(move || -> Result<File> {
        for slot in 0..COUNT {
            file.write_all_at(&Model::content(slot as usize, slot + 1), slot * BLOCK as u64)?;
            if slot % 50 == 0 {
                file.sync_data()?;
            }
            // Nobody listens any more once the test has failed.
            let _ = progress.send(slot);
        }
        file.sync_data()?;
        Ok(file)
    });
    // Two crashes while writes are on their way.
    let mut server = server;
    for at in [COUNT / 4, COUNT / 2] {
        while written.recv().context("the writer has failed")? < at {}
        server.kill()?;
        server = start()?;
    }
    let file = writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
    let mut found = vec![0; BLOCK];
    for slot in 0..COUNT {
        file.read_exact_at(&mut found, slot * BLOCK as u64)?;
        ensure!(found == Model::content(slot as usize, slot + 1), "block {slot}");
    }
    drop(file);
    export.stop()?;
    server.stop()?;
    Ok(())
}
