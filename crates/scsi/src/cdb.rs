//! Reading command descriptor blocks (SPC-5 4.2).

use crate::sense::Sense;

/// A command descriptor block of at most 16 bytes. Shorter ones are padded with zeroes; the table of
/// commands says how long each must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cdb {
    bytes: [u8; 16],
}

impl Cdb {
    /// Takes the first 16 bytes.
    pub fn new(cdb: &[u8]) -> Self {
        let mut bytes = [0; 16];
        let len = cdb.len().min(16);
        bytes[..len].copy_from_slice(&cdb[..len]);
        Self { bytes }
    }

    /// OPERATION CODE.
    pub const fn opcode(&self) -> u8 {
        self.bytes[0]
    }

    /// SERVICE ACTION of the commands that carry it in byte 1.
    pub const fn service_action(&self) -> u16 {
        (self.bytes[1] & 0x1F) as u16
    }

    /// The byte at `at`.
    pub const fn byte(&self, at: usize) -> u8 {
        self.bytes[at]
    }

    /// True if any bit of `mask` is set in the byte at `at`.
    pub const fn flag(&self, at: usize, mask: u8) -> bool {
        self.bytes[at] & mask != 0
    }

    /// Two bytes, the most significant first.
    pub const fn be16(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    /// Three bytes, the most significant first.
    pub const fn be24(&self, at: usize) -> u32 {
        u32::from_be_bytes([0, self.bytes[at], self.bytes[at + 1], self.bytes[at + 2]])
    }

    /// Four bytes, the most significant first.
    pub const fn be32(&self, at: usize) -> u32 {
        (self.be16(at) as u32) << 16 | self.be16(at + 2) as u32
    }

    /// Eight bytes, the most significant first.
    pub const fn be64(&self, at: usize) -> u64 {
        (self.be32(at) as u64) << 32 | self.be32(at + 4) as u64
    }

    /// Refuses the command if any bit of `mask` is set in the byte at `at`. The field pointer names
    /// the mask's highest bit.
    ///
    /// # Errors
    /// INVALID FIELD IN CDB.
    pub const fn must_be_zero(&self, at: usize, mask: u8) -> Result<(), Sense> {
        if self.flag(at, mask) {
            return Err(Sense::invalid_cdb(at as u16, 7 - mask.leading_zeros() as u8));
        }
        Ok(())
    }
}

/// The logical blocks that a command names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// LOGICAL BLOCK ADDRESS.
    pub lba: u64,
    /// TRANSFER LENGTH, NUMBER OF LOGICAL BLOCKS and the like, as it stands in the command block.
    pub blocks: u32,
    /// The byte of the length field, for the field pointer.
    pub length_at: u16,
}

impl Extent {
    /// 6-byte commands: a 21-bit address; a length of 0 means 256 blocks (SBC-4 5.16).
    pub const fn six(cdb: &Cdb) -> Self {
        let length = cdb.byte(4) as u32;
        let blocks = if length == 0 { 256 } else { length };
        Self { lba: (cdb.be24(1) & 0x1F_FFFF) as u64, blocks, length_at: 4 }
    }

    /// 10-byte commands.
    pub const fn ten(cdb: &Cdb) -> Self {
        Self { lba: cdb.be32(2) as u64, blocks: cdb.be16(7) as u32, length_at: 7 }
    }

    /// 12-byte commands.
    pub const fn twelve(cdb: &Cdb) -> Self {
        Self { lba: cdb.be32(2) as u64, blocks: cdb.be32(6), length_at: 6 }
    }

    /// 16-byte commands.
    pub const fn sixteen(cdb: &Cdb) -> Self {
        Self { lba: cdb.be64(2), blocks: cdb.be32(10), length_at: 10 }
    }
}
