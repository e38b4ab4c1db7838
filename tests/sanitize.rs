//! `kill -9` while a volume is sanitized or formatted: afterwards it is either all done, or says that it is not.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lunet_e2e::data::scratch;
use lunet_e2e::process::was_killed;
use lunet_e2e::server::{DEMO_TARGET, Serve, Server};
use lunet_e2e::wire::scsi::{CHECK_CONDITION, GOOD, TEST_UNIT_READY, sense_key, write16};
use lunet_e2e::wire::{Answer, Login, Session};

const SIZE: &str = "64M";
const BLOCKS: u64 = 64 << 11;
const ROUNDS: u64 = 24;

const OVERWRITE: u8 = 0x01;
const EXIT_FAILURE_MODE: u8 = 0x1f;
const IMMED: u8 = 0x80;
const AUSE: u8 = 0x20;

/// How a unit stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    InProgress,
    Failed,
}

fn state(answer: &Answer) -> Result<State> {
    match (answer.status, sense_key(answer), answer.sense.get(12..14)) {
        (GOOD, ..) => Ok(State::Ready),
        (CHECK_CONDITION, Some(2), Some([0x04, 0x1b])) => Ok(State::InProgress),
        (CHECK_CONDITION, Some(3), Some([0x31, 0x03])) => Ok(State::Failed),
        _ => bail!("{answer:02x?}"),
    }
}

/// Logs in, and says how the unit stands.
fn open(server: &Server) -> Result<(Session, State)> {
    let mut session = Session::open(&Login::new(server.portal(), DEMO_TARGET))?;
    loop {
        let answer = session.execute(0, &TEST_UNIT_READY, 0, &[])?;
        if sense_key(&answer) != Some(6) {
            let state = state(&answer)?;
            return Ok((session, state));
        }
    }
}

/// Starts to overwrite everything with one byte. The answer comes before the work.
fn overwrite(session: &mut Session, byte: u8, flags: u8, passes: u8) -> Result<()> {
    let cdb = [0x48, OVERWRITE | IMMED | flags, 0, 0, 0, 0, 0, 0, 5, 0];
    let answer = session.execute(0, &cdb, 0, &[passes, 0, 0, 1, byte])?;
    ensure!(answer.status == GOOD, "{answer:02x?}");
    Ok(())
}

/// Some blocks of all parts of the volume hold nothing but one byte.
fn is_all(session: &mut Session, byte: u8) -> Result<bool> {
    for lba in (0..BLOCKS).step_by(1021).chain([BLOCKS - 1]) {
        if session.read(0, lba, 1, 512)? != [byte; 512] {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Waits for the end of an operation.
fn finish(session: &mut Session) -> Result<State> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let answer = session.execute(0, &TEST_UNIT_READY, 0, &[])?;
        match state(&answer)? {
            State::InProgress => ensure!(Instant::now() < deadline, "it does not end"),
            other => return Ok(other),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_killed_server_never_passes_half_a_sanitize_operation_for_a_whole_one() -> Result<()> {
    let mut random = lunet_e2e::random_from_environment();
    let dir = scratch("lunet-sanitize-")?;
    let start = || Serve::demo(SIZE).data(dir.path()).start();
    let (mut whole, mut failed) = (0, 0);
    let mut before = State::Ready;
    for round in 0..ROUNDS {
        let byte = 1 + round as u8;
        let server = start()?;
        let (mut session, found) = open(&server).with_context(|| format!("round {round}"))?;
        ensure!(found == before, "round {round}: {found:?} after {before:?}");
        // Once in the restricted mode, it stays there until an operation succeeds.
        let passes = 1 + random.below(3) as u8;
        overwrite(&mut session, byte, 0, passes)?;
        thread::sleep(Duration::from_millis(random.below(80)));
        let status = server.kill()?;
        ensure!(was_killed(status), "round {round}: the server had ended before: {status}");

        let server = start()?;
        let (mut session, found) = open(&server)?;
        match found {
            State::Failed => {
                failed += 1;
                let exit = [0x48, EXIT_FAILURE_MODE, 0, 0, 0, 0, 0, 0, 0, 0];
                let answer = session.execute(0, &exit, 0, &[])?;
                ensure!(sense_key(&answer) == Some(5), "restricted: {answer:02x?}");
                let write = session.execute(0, &write16(0, 1), 0, &[0; 512])?;
                ensure!(state(&write)? == State::Failed, "{write:02x?}");
            }
            State::Ready => {
                whole += 1;
                ensure!(is_all(&mut session, byte)?, "round {round}: it is not done");
            }
            State::InProgress => bail!("round {round}: it goes on by itself"),
        }
        if random.below(3) == 0 {
            // This time it is let to end.
            overwrite(&mut session, byte, 0, 1)?;
            ensure!(finish(&mut session)? == State::Ready);
            ensure!(is_all(&mut session, byte)?);
            before = State::Ready;
        } else {
            before = found;
        }
        drop(session);
        server.stop()?;
    }
    println!("{whole} operations were done when the server was killed, {failed} were not");
    ensure!(failed > 0, "every operation was done before the kill: the rounds checked nothing");
    Ok(())
}

#[test]
fn the_unrestricted_failure_mode_can_be_left() -> Result<()> {
    let dir = scratch("lunet-sanitize-")?;
    let start = || Serve::demo(SIZE).data(dir.path()).start();
    // Every pass is flushed: 31 of them are not done before the kill.
    let server = start()?;
    let (mut session, _) = open(&server)?;
    overwrite(&mut session, 7, AUSE, 31)?;
    server.kill()?;
    let server = start()?;
    let (mut session, found) = open(&server)?;
    ensure!(found == State::Failed, "{found:?}");
    let exit = [0x48, EXIT_FAILURE_MODE, 0, 0, 0, 0, 0, 0, 0, 0];
    ensure!(session.execute(0, &exit, 0, &[])?.status == GOOD);
    ensure!(session.execute(0, &write16(0, 1), 0, &[9; 512])?.status == GOOD);
    drop(session);
    server.kill()?;
    // What was left stays left.
    let server = start()?;
    let (mut session, found) = open(&server)?;
    ensure!(found == State::Ready, "{found:?}");
    ensure!(session.read(0, 0, 1, 512)? == [9; 512]);
    drop(session);
    server.stop()?;
    Ok(())
}

const TARGET: &str = "iqn.2026-11.local.lunet:one";

/// A file volume, with this for its layers.
fn served(layers: &str) -> Serve {
    Serve::config(format!(
        "[[portal]]\naddress = '127.0.0.1:0'\n[volumes.a]\nbackend = 'file'\nsize = '16MiB'\nlayers = [{layers}]\n\
         [[target]]\nname = '{TARGET}'\nluns = ['a']\n"
    ))
}

/// FORMAT UNIT with a short header.
fn format(session: &mut Session, immediate: bool) -> Result<Answer> {
    session.execute(0, &[0x04, 0x18, 0, 0, 0, 0], 0, &[0, u8::from(immediate) << 1, 0, 0])
}

/// Sense key and codes of TEST UNIT READY, after the unit attentions; `None` if it is GOOD.
fn stands(session: &mut Session) -> Result<Option<(u8, [u8; 2])>> {
    loop {
        let answer = session.execute(0, &TEST_UNIT_READY, 0, &[])?;
        match (sense_key(&answer), answer.sense.get(12..14)) {
            (Some(6), _) => {}
            (Some(key), Some(&[code, qualifier])) => return Ok(Some((key, [code, qualifier]))),
            _ => return Ok(None),
        }
    }
}

#[test]
fn a_killed_server_never_passes_half_a_format_for_a_whole_one() -> Result<()> {
    let dir = scratch("lunet-format-")?;
    let open = |server: &Server| Session::open(&Login::new(server.portal(), TARGET));
    let server = served("{ hang = 'unmap' }").data(dir.path()).start()?;
    let mut session = open(&server)?;
    ensure!(stands(&mut session)?.is_none());
    ensure!(session.execute(0, &write16(9, 1), 0, &[9; 512])?.status == GOOD);
    ensure!(format(&mut session, true)?.status == GOOD);
    ensure!(stands(&mut session)? == Some((2, [0x04, 0x04])));
    let list = server.tell(&["volume", "list"])?;
    ensure!(list.contains("a: FORMAT UNIT is under way, 0 % done"), "{list}");
    server.kill()?;

    let server = served("").data(dir.path()).start()?;
    let mut session = open(&server)?;
    ensure!(stands(&mut session)? == Some((3, [0x31, 0x00])));
    let list = server.tell(&["volume", "list"])?;
    ensure!(list.contains("a: FORMAT UNIT was cut off or has failed"), "{list}");
    let answer = format(&mut session, false)?;
    ensure!(answer.status == GOOD, "{answer:02x?}");
    ensure!(session.read(0, 9, 1, 512)? == [0; 512]);
    let list = server.tell(&["volume", "list"])?;
    ensure!(!list.contains("FORMAT UNIT"), "{list}");
    server.kill()?;
    let server = served("").data(dir.path()).start()?;
    ensure!(stands(&mut open(&server)?)?.is_none());
    server.stop()?;
    Ok(())
}
