//! What initiators set in a unit is the group's: mode pages, and the mark of SANITIZE.

use anyhow::{Result, ensure};
use lunet_e2e::wire::Session;
use lunet_e2e::wire::scsi::{sense_code, write16};
use rustix::process::Signal;

use super::world::{
    BLOCK, GOOD, ask, becomes, insist, lba, log_in, pattern, signal, told, two, undisturbed, until,
};

/// WRITE PROTECTED.
const PROTECTED: (u8, u8, u8) = (7, 0x27, 0);
/// SANITIZE COMMAND FAILED.
const FAILED: (u8, u8, u8) = (3, 0x31, 0x03);
const SWP: u8 = 0x08;

/// MODE SELECT (6) with the Control mode page.
fn protect(session: &mut Session, swp: u8) -> Result<()> {
    let list = [&[0, 0, 0, 0, 0x0A, 0x0A, 0, 0x10, swp, 0x40][..], &[0; 6]].concat();
    insist(session, &[0x15, 0x10, 0, 0, 16, 0], 0, &list).map(drop)
}

/// SWP, by MODE SENSE (6).
fn is_protected(session: &mut Session) -> Result<bool> {
    let page = ask(session, &[0x1A, 0x08, 0x0A, 0, 255, 0], 255, &[])?.data;
    Ok(page.get(8).is_some_and(|flags| flags & SWP != 0))
}

/// A write is refused so, when unit attentions and pings are over.
fn ends_with(session: &mut Session, cdb: &[u8], data: &[u8], sense: (u8, u8, u8)) -> Result<()> {
    until(&format!("{sense:02x?}"), || {
        let answer = ask(session, cdb, 0, data)?;
        ensure!(answer.status != GOOD, "it was carried out");
        Ok(sense_code(&answer) == Some(sense))
    })
}

#[test]
fn write_protection_is_that_of_every_gateway_and_of_the_next_owner() -> Result<()> {
    let _cluster = undisturbed();
    let Some((_group, one, two)) = two("protected")? else { return Ok(()) };
    let (mut first, mut second) = (log_in(&one, "iqn.x:a")?, log_in(&two, "iqn.x:b")?);
    protect(&mut first, SWP)?;
    until("the standby reports it", || is_protected(&mut second))?;
    one.tell(&["group", "move", "vms", "2"])?;
    let write = write16(lba(0), 1);
    ends_with(&mut second, &write, &pattern(1), PROTECTED)?;
    // The owner dies: it is in the record, not in its memory.
    two.kill()?;
    becomes(&one, "owner")?;
    ends_with(&mut first, &write, &pattern(1), PROTECTED)?;
    protect(&mut first, 0)?;
    insist(&mut first, &write, 0, &pattern(1))?;
    Ok(())
}

#[test]
fn a_sanitize_that_dies_with_its_owner_has_failed_at_the_next_one() -> Result<()> {
    const READY: [u8; 6] = [0; 6];
    let _cluster = undisturbed();
    let Some((_group, one, two)) = two("sanitized")? else { return Ok(()) };
    let (mut first, mut second) = (log_in(&one, "iqn.x:a")?, log_in(&two, "iqn.x:b")?);
    // OVERWRITE, 31 times over 64 MiB: it is answered at once, and takes longer than this.
    let list = [31, 0, 0, 4, 1, 2, 3, 4];
    insist(&mut first, &[0x48, 0x81, 0, 0, 0, 0, 0, 0, 8, 0], 0, &list)?;
    signal(&one, Signal::KILL)?;
    becomes(&two, "owner")?;
    ends_with(&mut second, &READY, &[], FAILED)?;
    ends_with(&mut second, &write16(lba(0), 1), &[1; BLOCK], FAILED)?;
    // BLOCK ERASE makes it usable again, and the record says so.
    insist(&mut second, &[0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0], 0, &[])?;
    insist(&mut second, &READY, 0, &[])?;
    ensure!(told(&two)?["state"] == "owner");
    Ok(())
}
