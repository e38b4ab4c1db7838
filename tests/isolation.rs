//! What one client does, or one volume's storage, leaves the others' sessions, and its own later commands, alone.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lunet_e2e::clients::QemuLun;
use lunet_e2e::fuse::Export;
use lunet_e2e::server::Serve;
use lunet_e2e::wire::handshake::{Handshake, TO_FULL_FEATURE};
use lunet_e2e::wire::scsi::{
    CHECK_CONDITION, GOOD, LOGICAL_UNIT_RESET, TASK_ABORTED, sense_code, write16,
};
use lunet_e2e::wire::{Login, Pdu, Session, opcode};

const BLOCK: usize = 512;
const CLEAR_TASK_SET: u8 = 4;
const COLD_RESET: u8 = 7;
const A: &str = "iqn.2026-11.local.lunet:a";
const B: &str = "iqn.2026-11.local.lunet:b";

/// Two targets with a volume each, on many shards. Every write takes 50 ms.
fn serve(volume: &str) -> Serve {
    Serve::config(format!(
        "server = {{ shards = 8, shutdown-grace = \"0s\" }}\n[[portal]]\naddress = \"127.0.0.1:0\"\n\
         [volumes.a]\nbackend = \"memory\"\nsize = \"16MiB\"\n{volume}\n\
         [volumes.b]\nbackend = \"memory\"\nsize = \"16MiB\"\n\
         [[target]]\nname = \"{A}\"\nluns = [\"a\"]\n[[target]]\nname = \"{B}\"\nluns = [\"b\"]\n"
    ))
}

const SLOW: &str = "layers = [{ delay = \"50ms\", on = \"write\" }]";

fn open(portal: &str, target: &str, qualifier: u16) -> Result<Session> {
    let patience = Duration::from_secs(8);
    let login = Login { qualifier, patience, ..Login::new(portal, target) };
    let mut session = Session::open(&login)?;
    session.settle(0)?;
    Ok(session)
}

/// A request of this kind without data; it takes no number of its own.
fn immediate(opcode: u8, flags: u8, tag: u32, cmd_sn: u32) -> Pdu {
    let mut pdu = Pdu::new(opcode | 0x40);
    pdu.header[1] = 0x80 | flags;
    pdu.set_word(16, tag);
    pdu.set_word(20, u32::MAX);
    pdu.set_word(24, cmd_sn);
    pdu
}

fn write(tag: u32, cmd_sn: u32, lba: u64, sent: usize, blocks: u32) -> Pdu {
    let mut pdu = Pdu::new(opcode::SCSI_COMMAND);
    pdu.header[1] = 0xa1;
    pdu.set_word(16, tag);
    pdu.set_word(20, sent as u32);
    pdu.set_word(24, cmd_sn);
    pdu.header[32..48].copy_from_slice(&write16(lba, blocks));
    pdu.data = vec![7; sent];
    pdu
}

/// A function, two writes and a Logout in one segment: RFC 7143 4.2.3.2.
#[test]
fn what_follows_a_task_management_function_is_answered() -> Result<()> {
    let server = serve(SLOW).start()?;
    for function in [CLEAR_TASK_SET, LOGICAL_UNIT_RESET] {
        let mut session = open(server.portal(), A, 0)?;
        let first = session.cmd_sn();
        let pdus = [
            immediate(opcode::TASK_MANAGEMENT, function, 101, first),
            // A reset is told in answer to the first of them.
            write(102, first, 0, BLOCK, 1),
            write(103, first.wrapping_add(1), 8, BLOCK, 1),
        ];
        let bytes: Vec<u8> = pdus.iter().flat_map(|pdu| pdu.encode(false, false)).collect();
        session.stream().write_all(&bytes)?;
        // Tags and statuses.
        let mut answered: Vec<(u32, u8)> = Vec::new();
        while answered.len() < 3 {
            let pdu = session.receive().with_context(|| format!("answered: {answered:?}"))?;
            answered.push((pdu.word(16), pdu.header[3]));
        }
        ensure!(answered.contains(&(103, GOOD)), "{answered:?}");
        let last = first.wrapping_add(2);
        let pdus = [
            immediate(opcode::TASK_MANAGEMENT, function, 104, last),
            immediate(opcode::LOGOUT_REQUEST, 0, 105, last),
        ];
        let bytes: Vec<u8> = pdus.iter().flat_map(|pdu| pdu.encode(false, false)).collect();
        session.stream().write_all(&bytes)?;
        let order = [session.receive()?.word(16), session.receive()?.word(16)];
        ensure!(order == [104, 105], "the Logout did not wait: {order:?}");
    }
    server.stop()?;
    Ok(())
}

#[test]
fn a_cold_reset_leaves_other_targets_alone() -> Result<()> {
    let server = serve("").start()?;
    let mut one = open(server.portal(), A, 0)?;
    let mut beside = open(server.portal(), A, 1)?;
    let mut other = open(server.portal(), B, 2)?;
    // RFC 7143 11.6.1: function authorization failed.
    ensure!(one.task_management(COLD_RESET, 0)? == 6, "a target that allows no reset was reset");
    for session in [&mut one, &mut beside, &mut other] {
        session.write(0, 0, &[1; BLOCK], BLOCK)?;
    }
    server.stop()?;
    Ok(())
}

/// RFC 7143 6.3.1.
#[test]
fn a_login_with_a_foreign_handle_leaves_sessions_alone() -> Result<()> {
    let server = serve("").start()?;
    let login = Login::new(server.portal(), A);
    let ask = |tsih: u16, cid: u16| -> Result<(u16, u16)> {
        let mut request = login.request();
        request.header[14..16].copy_from_slice(&tsih.to_be_bytes());
        request.header[20..22].copy_from_slice(&cid.to_be_bytes());
        let reply = Handshake::connect(&login)?.send(request, TO_FULL_FEATURE)?;
        Ok((reply.status, u16::from_be_bytes([reply.pdu.header[14], reply.pdu.header[15]])))
    };
    let unknown = ask(4711, 0)?.0;
    ensure!(unknown == 0x020a, "a session that there is not: {unknown:04x}");
    let mut session = open(server.portal(), A, 0)?;
    let sessions: serde_json::Value = serde_json::from_str(&server.tell(&["sessions", "--json"])?)?;
    let tsih = sessions["sessions"][0]["tsih"]
        .as_u64()
        .with_context(|| format!("no handle: {sessions}"))? as u16;
    let second = ask(tsih, 9)?.0;
    ensure!(second == 0x0206, "a second connection: {second:04x}");
    session.write(0, 0, &[2; BLOCK], BLOCK)?;
    ensure!(ask(tsih, 0)? == (0, tsih), "its own handle and connection");
    server.stop()?;
    Ok(())
}

/// SPC-5 7.5.9, SAM-5 5.6: TAS is 1, so nobody waits for an answer that never comes.
#[test]
fn commands_that_another_host_clears_end_in_task_aborted() -> Result<()> {
    let slow = "layers = [{ delay = \"10s\", on = \"write\" }]";
    let server = serve(slow).start()?;
    for function in [CLEAR_TASK_SET, LOGICAL_UNIT_RESET] {
        let mut victim = open(server.portal(), A, 0)?;
        let mut other = open(server.portal(), A, 1)?;
        let lba = u64::from(function) * 64;
        let tags = [
            victim.start(0, &write16(lba, 1), 0, &[1; BLOCK])?,
            victim.start(0, &write16(lba + 8, 1), 0, &[1; BLOCK])?,
        ];
        victim.ping()?;
        ensure!(other.task_management(function, 0)? == 0);
        for _ in tags {
            let answer = victim.finish()?;
            ensure!(tags.contains(&answer.tag) && answer.status == TASK_ABORTED, "{answer:02x?}");
        }
    }
    server.kill()?;
    Ok(())
}

/// GOOD for data that is not written would be a lie: 5/0E/03 (FCP-4 9.4.2).
#[test]
fn a_part_of_a_block_is_refused() -> Result<()> {
    let server = serve("").start()?;
    let mut session = open(server.portal(), A, 0)?;
    session.write(0, 0, &[1; 4 * BLOCK], BLOCK)?;
    for (sent, blocks) in [(200, 1), (700, 3), (511, 1)] {
        let answer = session.execute(0, &write16(0, blocks), 0, &vec![9; sent])?;
        let code = sense_code(&answer);
        ensure!(answer.status == CHECK_CONDITION && code == Some((5, 0x0e, 3)), "{answer:02x?}");
    }
    ensure!(session.read(0, 0, 4, BLOCK)? == [1; 4 * BLOCK], "something was written");
    // Whole blocks are taken; what was not sent is not touched.
    let answer = session.execute(0, &write16(0, 3), 0, &[9; 2 * BLOCK])?;
    ensure!(answer.status == GOOD, "{answer:02x?}");
    let data = session.read(0, 0, 4, BLOCK)?;
    ensure!(data[..2 * BLOCK] == [9; 2 * BLOCK] && data[2 * BLOCK..] == [1; 2 * BLOCK]);
    server.stop()?;
    Ok(())
}

/// `eject -t`: Linux locks a removable drive that it opens, and then loads the medium.
#[test]
fn a_medium_is_loaded_although_its_removal_is_prevented() -> Result<()> {
    let server = serve("removable = true").start()?;
    let mut session = open(server.portal(), A, 0)?;
    let mut other = open(server.portal(), A, 1)?;
    let mut code = |cdb: [u8; 6]| -> Result<Option<(u8, u8, u8)>> {
        let answer = session.execute(0, &cdb, 0, &[])?;
        Ok(if answer.status == GOOD { None } else { sense_code(&answer) })
    };
    ensure!(code([0x1b, 0, 0, 0, 2, 0])?.is_none(), "EJECT");
    let answer = other.execute(0, &[0x1e, 0, 0, 0, 1, 0], 0, &[])?;
    ensure!(answer.status == GOOD, "PREVENT: {answer:02x?}");
    ensure!(code([0x1b, 0, 0, 0, 3, 0])?.is_none(), "LOAD");
    ensure!(code([0x1b, 0, 0, 0, 2, 0])? == Some((5, 0x53, 2)), "EJECT under PREVENT");
    server.stop()?;
    Ok(())
}

/// A daemon of FUSE that answers nothing any more and was never asked to poll: more requests at its file than a ring has
/// workers by default.
#[test]
fn a_file_system_of_a_daemon_that_hangs_holds_up_nobody_else() -> Result<()> {
    const REQUESTS: u8 = 24;
    let below = Serve::demo("64M").start()?;
    let export = Export::start(&QemuLun::new(below.url()))?;
    let config = format!(
        "server = {{ shards = 4, shutdown-grace = \"0s\" }}\n[[portal]]\naddress = \"127.0.0.1:0\"\n\
         [volumes.hung]\nbackend = \"file\"\npath = \"{}\"\n\
         [volumes.sound]\nbackend = \"file\"\nsize = \"8MiB\"\n\
         [[target]]\nname = \"{A}\"\nluns = [\"hung\"]\n[[target]]\nname = \"{B}\"\nluns = [\"sound\"]\n",
        export.file().display()
    );
    let server = Serve::config(config).quiet().start()?;
    let mut stuck = open(server.portal(), A, 0)?;
    let mut others = Vec::new();
    for qualifier in 1..5 {
        others.push(open(server.portal(), B, qualifier)?);
    }
    export.hang()?;
    for lba in 0..REQUESTS {
        // A read and a write by turns.
        let (code, data) =
            if lba % 2 == 0 { (0x28, [].as_slice()) } else { (0x2A, [3; BLOCK].as_slice()) };
        stuck.start(0, &[code, 0, 0, 0, 0, lba * 8, 0, 0, 1, 0], BLOCK, data)?;
    }
    // The event loop of the connection reads the next request only if it has got over these.
    stuck.ping()?;
    for qualifier in 5..10 {
        others.push(open(server.portal(), B, qualifier).context("a login after the hang")?);
    }
    for session in &mut others {
        session.write(0, 0, &[1; BLOCK], BLOCK)?;
        // SYNCHRONIZE CACHE (10): a flush takes a worker of the ring.
        let answer = session.execute(0, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0, &[])?;
        ensure!(answer.status == GOOD, "{answer:?}");
    }
    // What a change looks at before it is done does not wait for that file system either.
    server.tell(&["volume", "create", "c", "--size", "1MiB"])?;
    drop(export);
    server.kill()?;
    below.stop()?;
    Ok(())
}
