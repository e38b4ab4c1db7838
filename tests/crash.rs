//! `kill -9` under a write load, again and again: what a flush acknowledged is there, and no block is torn.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;

use anyhow::{Context, Result, ensure};
use lunet_e2e::clients::QemuLun;
use lunet_e2e::data::scratch;
use lunet_e2e::fuse::Export;
use lunet_e2e::process::was_killed;
use lunet_e2e::server::{DEMO_TARGET, Serve, Server, free_port};
use lunet_e2e::wire::{Login, Session};
use lunet_e2e::witness::{BLOCK, Load, Model, written_block};

const ROUNDS: u64 = 50;

fn open(server: &Server) -> Result<Session> {
    let mut session = Session::open(&Login::new(server.portal(), DEMO_TARGET))?;
    session.settle(0)?;
    Ok(session)
}

#[test]
fn flushed_writes_survive_fifty_kills() -> Result<()> {
    let mut random = lunet_e2e::random_from_environment();
    let dir = scratch("lunet-crash-")?;
    let mut model = Model::new(0);
    for round in 0..ROUNDS {
        let server = Serve::demo("64M").data(dir.path()).start()?;
        let mut session = open(&server)?;
        model.check(&mut session).with_context(|| format!("before round {round}"))?;
        let answers = random.below(1500);
        let mut load = Load::new(&mut model, &mut session, &mut random)?;
        let mut asked = 0;
        load.run(|_| {
            asked += 1;
            asked > answers
        })
        .with_context(|| format!("round {round}, {answers} answers"))?;
        let status = server.kill()?;
        model.only_the_server_died();
        ensure!(was_killed(status), "round {round}: the server had ended before: {status}");
    }
    let server = Serve::demo("64M").data(dir.path()).start()?;
    model.check(&mut open(&server)?)?;
    server.stop()?;
    let flushes = model.flushes;
    println!("{} changes, {flushes} flushes acknowledged", model.changes());
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
    // In a process of its own: where this one had the file open, the process that is to become the server would close its copy of it
    // before, and that waits for writes that wait for the server.
    let mut dd = Command::new("dd")
        .arg(format!("of={}", export.file().display()))
        .arg(format!("bs={BLOCK}"))
        .args(["iflag=fullblock", "conv=notrunc,fdatasync", "status=none"])
        .stdin(Stdio::piped())
        .spawn()?;
    let mut pipe = dd.stdin.take().context("no pipe")?;
    let (progress, written) = mpsc::channel();
    let writer = thread::spawn(move || -> Result<()> {
        for slot in 0..COUNT {
            pipe.write_all(&written_block(0, slot as usize, slot + 1))?;
            // Nobody listens any more once the test has failed.
            let _ = progress.send(slot);
        }
        drop(pipe);
        let status = dd.wait()?;
        ensure!(status.success(), "dd: {status}");
        Ok(())
    });
    // Two crashes while writes are on their way.
    let mut server = server;
    for at in [COUNT / 4, COUNT / 2] {
        while written.recv().context("the writer has failed")? < at {}
        server.kill()?;
        server = start()?;
    }
    writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
    let file = File::open(export.file())?;
    let mut found = vec![0; BLOCK];
    for slot in 0..COUNT {
        file.read_exact_at(&mut found, slot * BLOCK as u64)?;
        ensure!(found == written_block(0, slot as usize, slot + 1), "block {slot}");
    }
    drop(file);
    export.stop()?;
    server.stop()?;
    Ok(())
}
