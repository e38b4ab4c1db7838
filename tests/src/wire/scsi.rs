//! The few SCSI commands (SBC-4, SPC-5) that the suites send themselves.

use anyhow::{Result, ensure};

use super::opcode;
use super::pdu::Pdu;
use super::session::{Answer, Session};

/// Status GOOD.
pub const GOOD: u8 = 0x00;
/// Status CHECK CONDITION.
pub const CHECK_CONDITION: u8 = 0x02;
/// Status TASK ABORTED.
pub const TASK_ABORTED: u8 = 0x40;

/// READ(16).
pub fn read16(lba: u64, blocks: u32) -> [u8; 16] {
    transfer(0x88, lba, blocks)
}

/// WRITE(16).
pub fn write16(lba: u64, blocks: u32) -> [u8; 16] {
    transfer(0x8a, lba, blocks)
}

/// Of byte 1 of a WRITE(16): past the cache.
pub const FUA: u8 = 0x08;

/// WRITE SAME(16); with `unmap` blocks of zeroes may be unmapped instead.
pub fn write_same16(lba: u64, blocks: u32, unmap: bool) -> [u8; 16] {
    let mut cdb = transfer(0x93, lba, blocks);
    cdb[1] = if unmap { 0x08 } else { 0 };
    cdb
}

/// UNMAP with a parameter list of this length.
pub fn unmap(length: usize) -> [u8; 10] {
    let [high, low] = (length as u16).to_be_bytes();
    [0x42, 0, 0, 0, 0, 0, 0, high, low, 0]
}

/// The parameter list of UNMAP for one range (SBC-4 5.35).
pub fn unmap_list(lba: u64, blocks: u32) -> [u8; 24] {
    let mut list = [0; 24];
    (list[1], list[3]) = (22, 16);
    list[8..16].copy_from_slice(&lba.to_be_bytes());
    list[16..20].copy_from_slice(&blocks.to_be_bytes());
    list
}

/// SYNCHRONIZE CACHE(10) of the whole logical unit.
pub const SYNCHRONIZE_CACHE: [u8; 10] = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// TEST UNIT READY.
pub const TEST_UNIT_READY: [u8; 6] = [0; 6];

/// What READ CAPACITY(16) tells (SBC-4 5.19).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Logical blocks.
    pub blocks: u64,
    /// Bytes in each.
    pub block_size: u32,
    /// LBPME and LBPRZ: blocks can be unmapped, and those that are read as zeroes.
    pub unmapped_reads_zeroes: bool,
}

/// READ CAPACITY(16).
pub fn capacity(session: &mut Session, lun: u8) -> Result<Capacity> {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[13]) = (0x9e, 0x10, 32);
    let answer = session.execute(lun, &cdb, 32, &[])?;
    ensure!(answer.status == GOOD && answer.data.len() == 32, "READ CAPACITY: {answer:02x?}");
    let last = [0, 1, 2, 3, 4, 5, 6, 7].map(|at: usize| answer.data[at]);
    Ok(Capacity {
        blocks: u64::from_be_bytes(last) + 1,
        block_size: u32::from_be_bytes([8, 9, 10, 11].map(|at: usize| answer.data[at])),
        unmapped_reads_zeroes: answer.data[14] & 0xc0 == 0xc0,
    })
}

fn transfer(opcode: u8, lba: u64, blocks: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// The sense key of an answer, fixed or descriptor format.
pub fn sense_key(answer: &Answer) -> Option<u8> {
    let format = answer.sense.first()? & 0x7f;
    let at = if format >= 0x72 { 1 } else { 2 };
    Some(answer.sense.get(at)? & 0x0f)
}

/// The sense key, additional sense code and qualifier of an answer in fixed format.
pub fn sense_code(answer: &Answer) -> Option<(u8, u8, u8)> {
    match *answer.sense.first_chunk::<14>()? {
        [0x70 | 0xf0, _, key, .., asc, ascq] => Some((key & 0x0f, asc, ascq)),
        _ => None,
    }
}

/// LOGICAL UNIT RESET (RFC 7143 11.5.1).
pub const LOGICAL_UNIT_RESET: u8 = 5;

impl Session {
    /// Sends a task management function for a whole logical unit and gives its response; 0 = function complete. The
    /// answers of commands that end before it are dropped.
    pub fn task_management(&mut self, function: u8, lun: u8) -> Result<u8> {
        let mut pdu = Pdu::new(opcode::TASK_MANAGEMENT | 0x40);
        pdu.header[1] = 0x80 | function;
        pdu.header[9] = lun;
        pdu.set_word(16, 0x7fff_0002);
        pdu.set_word(20, u32::MAX);
        pdu.set_word(24, self.cmd_sn());
        self.send(&pdu)?;
        loop {
            let answer = self.receive()?;
            if answer.opcode() == opcode::TASK_MANAGEMENT_RESPONSE {
                return Ok(answer.header[2]);
            }
        }
    }

    /// Takes the unit attention that a new session has, so that the next command counts.
    pub fn settle(&mut self, lun: u8) -> Result<()> {
        for _ in 0..8 {
            let answer = self.execute(lun, &TEST_UNIT_READY, 0, &[])?;
            if answer.status == GOOD {
                return Ok(());
            }
            ensure!(sense_key(&answer) == Some(6), "{answer:02x?}");
        }
        anyhow::bail!("unit attentions without end")
    }

    /// Reads; demands GOOD and the whole length.
    pub fn read(&mut self, lun: u8, lba: u64, blocks: u32, block: usize) -> Result<Vec<u8>> {
        let expected = blocks as usize * block;
        let answer = self.execute(lun, &read16(lba, blocks), expected, &[])?;
        ensure!(
            answer.status == GOOD,
            "READ at {lba}: {:02x} {:02x?}",
            answer.status,
            answer.sense
        );
        ensure!(answer.data.len() == expected, "{} of {expected} bytes", answer.data.len());
        Ok(answer.data)
    }

    /// Writes whole blocks; demands GOOD.
    pub fn write(&mut self, lun: u8, lba: u64, data: &[u8], block: usize) -> Result<()> {
        let blocks = u32::try_from(data.len() / block)?;
        let answer = self.execute(lun, &write16(lba, blocks), 0, data)?;
        ensure!(
            answer.status == GOOD,
            "WRITE at {lba}: {:02x} {:02x?}",
            answer.status,
            answer.sense
        );
        Ok(())
    }

    /// SYNCHRONIZE CACHE; demands GOOD.
    pub fn flush(&mut self, lun: u8) -> Result<()> {
        let answer = self.execute(lun, &SYNCHRONIZE_CACHE, 0, &[])?;
        ensure!(answer.status == GOOD, "flush: {:02x} {:02x?}", answer.status, answer.sense);
        Ok(())
    }
}
