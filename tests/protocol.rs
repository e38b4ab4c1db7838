//! What no stock client does: data digests, broken digests, pings, reinstatement, refused logins.

use std::io::Write;

use anyhow::{Result, ensure};
use lunet_e2e::server::{DEMO_TARGET, Serve};
use lunet_e2e::wire::scsi::{
    CHECK_CONDITION, GOOD, LOGICAL_UNIT_RESET, TEST_UNIT_READY, sense_key, write16,
};
use lunet_e2e::wire::{Login, Pdu, Session, opcode};

const BLOCK: usize = 512;

fn random_bytes(len: usize) -> Vec<u8> {
    let mut random = lunet_e2e::random_from_environment();
    (0..len).map(|_| random.bits() as u8).collect()
}

#[test]
fn data_survives_every_combination_of_digests() -> Result<()> {
    let server = Serve::demo("64M").start()?;
    let data = random_bytes(1 << 20);
    for (n, digests) in
        [(true, true), (false, true), (true, false), (false, false)].into_iter().enumerate()
    {
        let login = Login {
            header_digest: digests.0,
            data_digest: digests.1,
            ..Login::new(server.portal(), DEMO_TARGET)
        };
        let mut session = Session::open(&login)?;
        ensure!(session.digests() == digests, "negotiated {:?}", session.keys);
        session.settle(0)?;
        // Immediate data and R2T; lengths that are no multiple of a segment.
        let lba = n as u64 * 4096;
        for (at, blocks) in [(0, 1_usize), (1, 127), (128, 130), (258, 1790)] {
            let piece = &data[at * BLOCK..(at + blocks) * BLOCK];
            session.write(0, lba + at as u64, piece, BLOCK)?;
        }
        let found = session.read(0, lba, 2048, BLOCK)?;
        ensure!(found == data, "digests {digests:?}: other data");
        session.ping()?;
        session.logout()?;
    }
    server.stop()?;
    Ok(())
}

#[test]
fn data_with_a_wrong_digest_is_not_written() -> Result<()> {
    let server = Serve::demo("64M").start()?;
    let mut other =
        Session::open(&Login { qualifier: 9, ..Login::new(server.portal(), DEMO_TARGET) })?;
    other.settle(0)?;
    let login = Login { data_digest: true, ..Login::new(server.portal(), DEMO_TARGET) };
    let mut session = Session::open(&login)?;
    session.settle(0)?;
    session.write(0, 0, &[1; BLOCK], BLOCK)?;

    let pdu = write_command(&session, 77, &[2; BLOCK]);
    let mut bytes = pdu.encode(false, true);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    session.stream().write_all(&bytes)?;
    // RFC 7143 7.7: a Reject with reason `data digest error`, the command ends otherwise or the connection is closed.
    match session.receive() {
        Ok(reject) => {
            ensure!(reject.opcode() == opcode::REJECT, "{:02x?}", reject.header);
            ensure!(reject.header[2] == 0x02, "{:02x?}", reject.header);
        }
        Err(closed) => println!("closed: {closed}"),
    }
    ensure!(other.read(0, 0, 1, BLOCK)? == [1; BLOCK], "the wrong data was written");
    drop((session, other));
    server.stop()?;
    Ok(())
}

#[test]
fn a_wrong_header_digest_ends_the_connection_only() -> Result<()> {
    let server = Serve::demo("64M").start()?;
    let mut other =
        Session::open(&Login { qualifier: 9, ..Login::new(server.portal(), DEMO_TARGET) })?;
    let login = Login { header_digest: true, ..Login::new(server.portal(), DEMO_TARGET) };
    let mut session = Session::open(&login)?;
    session.settle(0)?;
    let mut bytes = write_command(&session, 78, &[3; BLOCK]).encode(true, false);
    bytes[50] ^= 0x10;
    session.stream().write_all(&bytes)?;
    // RFC 7143 7.7: the stream can no longer be followed, so error recovery level 0 closes it.
    let end = (0..3).find_map(|_| session.receive().err());
    ensure!(end.is_some(), "the connection is still open");
    other.settle(0)?;
    ensure!(other.read(0, 0, 1, BLOCK)? == [0; BLOCK], "the damaged command was executed");
    other.logout()?;
    server.stop()?;
    Ok(())
}

fn write_command(session: &Session, tag: u32, data: &[u8]) -> Pdu {
    let mut pdu = Pdu::new(opcode::SCSI_COMMAND);
    pdu.header[1] = 0xa1;
    pdu.set_word(16, tag);
    pdu.set_word(20, data.len() as u32);
    pdu.set_word(24, session.cmd_sn());
    pdu.header[32..48].copy_from_slice(&write16(0, (data.len() / BLOCK) as u32));
    pdu.data = data.to_vec();
    pdu
}

#[test]
fn an_unknown_opcode_is_rejected_and_the_session_goes_on() -> Result<()> {
    let server = Serve::demo("64M").start()?;
    let mut session = Session::open(&Login::new(server.portal(), DEMO_TARGET))?;
    session.settle(0)?;
    let mut pdu = Pdu::new(0x1d | 0x40);
    pdu.header[1] = 0x80;
    pdu.set_word(16, 5);
    pdu.set_word(24, session.cmd_sn());
    session.send(&pdu)?;
    let reject = session.receive()?;
    // Reason: command not supported.
    ensure!(
        reject.opcode() == opcode::REJECT && reject.header[2] == 0x05,
        "{:02x?}",
        reject.header
    );
    ensure!(reject.data.starts_with(&pdu.header[..5]), "the header is not returned");
    session.write(0, 0, &[4; BLOCK], BLOCK)?;
    session.logout()?;
    server.stop()?;
    Ok(())
}

#[test]
fn the_same_initiator_session_id_reinstates_the_session() -> Result<()> {
    let server = Serve::demo("64M").start()?;
    let login = Login::new(server.portal(), DEMO_TARGET);
    let mut old = Session::open(&login)?;
    old.settle(0)?;
    let mut bystander = Session::open(&Login { qualifier: 1, ..login.clone() })?;
    bystander.settle(0)?;
    let mut new = Session::open(&login)?;
    // RFC 7143 6.3.5: the old session is closed, the others stay.
    ensure!(old.receive().is_err(), "the old session still lives");
    new.settle(0)?;
    new.write(0, 0, &[5; BLOCK], BLOCK)?;
    ensure!(bystander.read(0, 0, 1, BLOCK)? == [5; BLOCK]);
    bystander.logout()?;
    new.logout()?;
    server.stop()?;
    Ok(())
}

#[test]
fn a_logical_unit_reset_is_answered_and_told_to_the_others() -> Result<()> {
    let server = Serve::demo("64M").start()?;
    let login = Login::new(server.portal(), DEMO_TARGET);
    let mut session = Session::open(&login)?;
    let mut other = Session::open(&Login { qualifier: 1, ..login.clone() })?;
    session.settle(0)?;
    other.settle(0)?;
    for n in 0..20 {
        session.start(0, &write16(n * 8, 8), 0, &[7; 4096])?;
    }
    ensure!(session.task_management(LOGICAL_UNIT_RESET, 0)? == 0);
    // SAM-5 5.14.5: a unit attention for every nexus.
    let answer = other.execute(0, &TEST_UNIT_READY, 0, &[])?;
    ensure!(answer.status == CHECK_CONDITION && sense_key(&answer) == Some(6), "{answer:02x?}");
    ensure!(answer.sense.get(12) == Some(&0x29), "not a reset: {answer:02x?}");
    other.settle(0)?;
    session.settle(0)?;
    session.write(0, 0, &[8; BLOCK], BLOCK)?;
    ensure!(other.read(0, 0, 1, BLOCK)? == [8; BLOCK]);
    // There is no LUN 9: RFC 7143 11.6.1, `LUN does not exist`.
    ensure!(session.task_management(LOGICAL_UNIT_RESET, 9)? == 2);
    other.logout()?;
    session.logout()?;
    server.stop()?;
    Ok(())
}

#[test]
fn an_unknown_target_is_refused_with_its_own_status() -> Result<()> {
    let server = Serve::demo("64M").start()?;
    let Err(error) = Session::open(&Login::new(server.portal(), "iqn.2026-11.local.lunet:none"))
    else {
        anyhow::bail!("logged in to a target that does not exist");
    };
    // RFC 7143 11.13.5: initiator error, not found.
    ensure!(error.to_string().contains("status 0203"), "{error}");
    server.stop()?;
    Ok(())
}

#[test]
fn a_full_command_window_moves_on() -> Result<()> {
    let server = Serve::demo("64M").start()?;
    let mut session = Session::open(&Login::new(server.portal(), DEMO_TARGET))?;
    session.settle(0)?;
    let mut started = 0;
    let mut answered = 0;
    let mut deepest = 0;
    while answered < 3000 {
        while started < 3000 && session.has_window() {
            session.start(0, &write16(started % 1000 * 8, 8), 0, &[6; 4096])?;
            started += 1;
        }
        deepest = deepest.max(started - answered);
        let answer = session.finish()?;
        ensure!(answer.status == GOOD, "{answer:02x?}");
        answered += 1;
    }
    ensure!(deepest >= 32, "the window never had more than {deepest} commands");
    session.logout()?;
    server.stop()?;
    Ok(())
}
