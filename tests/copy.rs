//! `kill -9` and third-party copies: what was flushed is there, no block is torn, and no token is left.

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lunet_block::mix;
use lunet_e2e::data::scratch;
use lunet_e2e::process::was_killed;
use lunet_e2e::server::{Serve, Server};
use lunet_e2e::wire::scsi::{GOOD, sense_code};
use lunet_e2e::wire::{Answer, Login, Session};
use serde_json::Value;

const TARGET: &str = "iqn.2026-11.local.lunet:copies";
const SOURCE: u8 = 0;
const DESTINATION: u8 = 1;
const ROUNDS: u64 = 8;

/// Bytes; with each segment as long as most may be.
const LEN: usize = 32 << 20;
const SECTORS: u16 = 0x8000;
const BLOCK: usize = 4096;

const POPULATE_TOKEN: u8 = 0x10;
const WRITE_USING_TOKEN: u8 = 0x11;
const TOKEN: usize = 512;

fn serve(dir: &Path) -> Result<Server> {
    Serve::config(format!(
        "[[portal]]\naddress = \"127.0.0.1:0\"\n\
         [volumes.a]\nbackend = \"file\"\nsize = \"64MiB\"\n\
         [volumes.b]\nbackend = \"file\"\nsize = \"64MiB\"\n\
         [[target]]\nname = \"{TARGET}\"\nluns = [\"a\", \"b\"]\n"
    ))
    .data(dir)
    .quiet()
    .start()
}

fn open(server: &Server) -> Result<Session> {
    let mut session = Session::open(&Login::new(server.portal(), TARGET))?;
    session.settle(SOURCE)?;
    session.settle(DESTINATION)?;
    Ok(session)
}

fn killed(server: Server) -> Result<()> {
    ensure!(was_killed(server.kill()?), "it ended on its own");
    Ok(())
}

/// What one block holds in a round.
fn content(round: u64, block: usize) -> Vec<u8> {
    let seed = mix(round) ^ block as u64;
    (0..BLOCK as u64 / 8).flat_map(|n| mix(seed ^ (n << 32)).to_le_bytes()).collect()
}

fn fill(session: &mut Session, lun: u8, round: u64) -> Result<()> {
    const AT_ONCE: usize = 256;
    for first in (0..LEN / BLOCK).step_by(AT_ONCE) {
        let data: Vec<u8> =
            (first..first + AT_ONCE).flat_map(|block| content(round, block)).collect();
        session.write(lun, (first * BLOCK / 512) as u64, &data, 512)?;
    }
    Ok(())
}

/// How many blocks hold what they held in the second of two rounds; the others hold that of the first.
fn compare(session: &mut Session, lun: u8, rounds: (u64, u64)) -> Result<usize> {
    const AT_ONCE: usize = 256;
    let mut found = 0;
    for first in (0..LEN / BLOCK).step_by(AT_ONCE) {
        let sectors = (AT_ONCE * BLOCK / 512) as u32;
        let data = session.read(lun, (first * BLOCK / 512) as u64, sectors, 512)?;
        for (block, data) in (first..).zip(data.chunks(BLOCK)) {
            let new = data == content(rounds.1, block);
            ensure!(new || data == content(rounds.0, block), "block {block} of LUN {lun} is torn");
            found += usize::from(new);
        }
    }
    Ok(found)
}

/// Sends a command of 83h; the list identifier is 1 where the command block has one.
fn send(session: &mut Session, lun: u8, action: u8, list: &[u8]) -> Result<u32> {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (0x83, action);
    cdb[9] = u8::from(action != 0);
    cdb[10..14].copy_from_slice(&(list.len() as u32).to_be_bytes());
    session.start(lun, &cdb, 0, list)
}

fn execute(session: &mut Session, lun: u8, action: u8, list: &[u8]) -> Result<Answer> {
    let tag = send(session, lun, action, list)?;
    let answer = session.finish()?;
    ensure!(answer.tag == tag, "the answer to another command");
    Ok(answer)
}

/// The parameter list of EXTENDED COPY(LID1) from one unit to the other.
fn whole_copy(session: &mut Session) -> Result<Vec<u8>> {
    let mut list = vec![1; 1];
    list.resize(16, 0);
    for lun in [SOURCE, DESTINATION] {
        let page = session.execute(lun, &[0x12, 1, 0x83, 0, 255, 0], 255, &[])?.data;
        let designator = &page[4..8 + usize::from(page[7])];
        let mut cscd = vec![0xe4, 0, 0, 0];
        cscd.extend(designator);
        cscd.resize(32, 0);
        list.extend(cscd);
    }
    let segments = LEN / 512 / usize::from(SECTORS);
    for n in 0..segments as u64 {
        let lba = (n * u64::from(SECTORS)).to_be_bytes();
        list.extend([0x02, 0, 0, 0x18, 0, 0, 0, 1, 0, 0]);
        list.extend(SECTORS.to_be_bytes());
        list.extend([lba, lba].concat());
    }
    list[3] = 64;
    list[8..12].copy_from_slice(&(segments as u32 * 28).to_be_bytes());
    Ok(list)
}

/// The block device range of the first MiB.
fn first_mib() -> Vec<u8> {
    let mut range = vec![0; 16];
    range[8..12].copy_from_slice(&2048u32.to_be_bytes());
    range
}

/// A token for the first MiB of the source.
fn token(session: &mut Session) -> Result<Vec<u8>> {
    let mut list = vec![0; 16];
    (list[1], list[15]) = (30, 16);
    list.extend(first_mib());
    let answer = execute(session, SOURCE, POPULATE_TOKEN, &list)?;
    ensure!(answer.status == GOOD, "{answer:02x?}");
    let information = [0x84, 0x07, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0];
    let data = session.execute(SOURCE, &information, 1024, &[])?.data;
    ensure!(data.len() == 38 + TOKEN, "{data:02x?}");
    Ok(data[38..].to_vec())
}

fn use_token(session: &mut Session, token: &[u8]) -> Result<Answer> {
    let mut list = vec![0; 536];
    list[..2].copy_from_slice(&550u16.to_be_bytes());
    list[16..16 + TOKEN].copy_from_slice(token);
    list[535] = 16;
    list.extend(first_mib());
    execute(session, DESTINATION, WRITE_USING_TOKEN, &list)
}

/// What was copied to the destination, as `lunet stats` tells it.
fn copied(server: &Server) -> Result<u64> {
    let answer: Value = serde_json::from_str(&server.tell(&["stats", "--json"])?)?;
    let volumes = answer["volumes"].as_array().context("no volumes")?;
    let volume = volumes.iter().find(|volume| volume["name"] == "b").context("no such volume")?;
    volume["copied_bytes"].as_u64().context("no count")
}

#[test]
fn a_flushed_copy_outlives_a_crash_and_a_token_does_not() -> Result<()> {
    let dir = scratch("lunet-copy-")?;
    let server = serve(dir.path())?;
    let mut session = open(&server)?;
    fill(&mut session, SOURCE, 1)?;
    let list = whole_copy(&mut session)?;
    let answer = execute(&mut session, DESTINATION, 0, &list)?;
    ensure!(answer.status == GOOD, "{answer:02x?}");
    session.flush(DESTINATION)?;
    ensure!(copied(&server)? == LEN as u64, "{}", copied(&server)?);
    let token = token(&mut session)?;
    ensure!(use_token(&mut session, &token)?.status == GOOD, "the token is good");
    killed(server)?;

    let server = serve(dir.path())?;
    let mut session = open(&server)?;
    compare(&mut session, DESTINATION, (1, 1))?;
    let answer = use_token(&mut session, &token)?;
    // INVALID TOKEN OPERATION, TOKEN UNKNOWN.
    ensure!(sense_code(&answer) == Some((0x05, 0x23, 0x04)), "{answer:02x?}");
    session.logout()?;
    server.stop()?;
    Ok(())
}

#[test]
#[ignore = "many crashes: make test-all runs it"]
fn a_crash_in_a_copy_leaves_each_block_old_or_new() -> Result<()> {
    let mut random = lunet_e2e::random_from_environment();
    let dir = scratch("lunet-copy-")?;
    let mut server = serve(dir.path())?;
    let mut session = open(&server)?;
    fill(&mut session, DESTINATION, 0)?;
    let (mut before, mut cut) = (0, 0);
    for round in 1..=ROUNDS {
        fill(&mut session, SOURCE, round)?;
        session.flush(SOURCE)?;
        let list = whole_copy(&mut session)?;
        send(&mut session, DESTINATION, 0, &list)?;
        thread::sleep(Duration::from_micros(random.below(40_000)));
        killed(server)?;

        server = serve(dir.path())?;
        session = open(&server)?;
        compare(&mut session, SOURCE, (round, round))?;
        let new = compare(&mut session, DESTINATION, (before, round))?;
        cut += u64::from(new != 0 && new != LEN / BLOCK);
        // Whatever was left is whole after one more copy.
        let answer = execute(&mut session, DESTINATION, 0, &list)?;
        ensure!(answer.status == GOOD, "{answer:02x?}");
        compare(&mut session, DESTINATION, (round, round))?;
        session.flush(DESTINATION)?;
        before = round;
    }
    println!("{cut} of {ROUNDS} copies were cut in the middle");
    session.logout()?;
    server.stop()?;
    Ok(())
}
