//! Representations of data (SPC-5 5.18.6, SBC-4 4.28): the parameter lists of POPULATE TOKEN and WRITE
//! USING TOKEN, and ROD tokens.

use alloc::vec::Vec;

use lunet_block::{BlockRange, ByteRange};

use super::limits::{DEFAULT_INACTIVITY, MAX_INACTIVITY, MAX_RANGES, MAX_TOKEN_BYTES};
use super::{be16, be32, be64};
use crate::inquiry;
use crate::sense::{Code, Sense};
use crate::unit::{Target, Unit};
use crate::vpd;

/// One block device range descriptor (SBC-4 5.11.3).
const RANGE: usize = 16;
/// ROD TYPE: access upon reference (SPC-5 5.18.6.2.2): the data is what the source holds when the token
/// is used.
pub(crate) const ACCESS_UPON_REFERENCE: u32 = 0x0001_0000;
/// ROD TYPE: block device zero (SBC-4 4.28.4).
pub(crate) const ZERO: u32 = 0xFFFF_0001;
/// ROD TOKEN LENGTH: what follows the field.
const TOKEN_REST: u16 = 0x01F8;

/// POPULATE TOKEN whose parameter list is sound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Populate {
    /// LIST IDENTIFIER.
    pub list: u32,
    /// The command is answered before the token exists (IMMED).
    pub immediate: bool,
    /// After so many seconds without use the token is void.
    pub inactivity: u32,
    /// What it stands for: not empty, on the volume, without overlaps.
    pub ranges: Vec<BlockRange>,
}

/// WRITE USING TOKEN whose parameter list is sound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteUsing {
    /// LIST IDENTIFIER.
    pub list: u32,
    /// The command is answered before anything is written (IMMED).
    pub immediate: bool,
    /// The token is void afterwards (DEL_TKN).
    pub delete: bool,
    /// What to write.
    pub token: RodToken,
    /// Bytes of the data to skip.
    pub offset: u64,
    /// Where to write: not empty, on the volume, without overlaps.
    pub ranges: Vec<BlockRange>,
}

/// The data that a token stands for, at its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rod {
    /// Where it is.
    pub ranges: Vec<BlockRange>,
    /// The source's logical block size in bytes.
    pub block_size: u32,
}

/// A part of what WRITE USING TOKEN moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// What is read.
    pub from: ByteRange,
    /// What is written, of the same length.
    pub to: ByteRange,
}

/// What kind of token it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// One that POPULATE TOKEN has made.
    Made,
    /// The well-known one that stands for zeroes.
    Zero,
}

/// A ROD token (SPC-5 5.18.6.5). Whoever knows it may use it, so it is not printed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RodToken(pub [u8; Self::LEN]);

impl core::fmt::Debug for RodToken {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("RodToken")
    }
}

/// Decodes the parameter list of POPULATE TOKEN (SBC-4 5.11.2).
pub(crate) fn populate(unit: &Unit, list_id: u32, list: &[u8]) -> Result<Populate, Sense> {
    if list.len() < 16 {
        return Err(Sense::illegal(Code::PARAMETER_LIST_LENGTH_ERROR));
    }
    if be16(list, 0) < 0x1E {
        return Err(Sense::invalid_parameter(0));
    }
    let asked = be32(list, 4);
    if asked > MAX_INACTIVITY {
        return Err(Sense::invalid_parameter(4));
    }
    // RTV: the ROD TYPE counts.
    if list[2] & 0x02 != 0 && be32(list, 8) != ACCESS_UPON_REFERENCE {
        return Err(Sense::invalid_parameter(8));
    }
    Ok(Populate {
        list: list_id,
        immediate: list[2] & 0x01 != 0,
        inactivity: if asked == 0 { DEFAULT_INACTIVITY } else { asked },
        ranges: ranges(unit, list, 14)?,
    })
}

/// Decodes the parameter list of WRITE USING TOKEN (SBC-4 5.52.2).
pub(crate) fn write_using(unit: &Unit, list_id: u32, list: &[u8]) -> Result<WriteUsing, Sense> {
    let (Some(token), true) = (list.get(16..16 + RodToken::LEN), list.len() >= 536) else {
        return Err(Sense::illegal(Code::PARAMETER_LIST_LENGTH_ERROR));
    };
    if be16(list, 0) < 0x226 {
        return Err(Sense::invalid_parameter(0));
    }
    if be16(token, 6) != TOKEN_REST {
        return Err(Sense::parameter(Code::INVALID_TOKEN_LENGTH, 22));
    }
    let mut bytes = [0; RodToken::LEN];
    bytes.copy_from_slice(token);
    let block = u64::from(unit.caps.block_size);
    let offset = be64(list, 8).checked_mul(block).ok_or(Sense::invalid_parameter(8))?;
    Ok(WriteUsing {
        list: list_id,
        immediate: list[2] & 0x01 != 0,
        delete: list[2] & 0x02 != 0,
        token: RodToken(bytes),
        offset,
        ranges: ranges(unit, list, 534)?,
    })
}

/// The block device range descriptors; their length stands at `at`. A descriptor that is cut off is
/// ignored (SBC-4 5.11.2).
fn ranges(unit: &Unit, list: &[u8], at: usize) -> Result<Vec<BlockRange>, Sense> {
    let len = usize::from(be16(list, at));
    if len < RANGE {
        return Err(Sense::invalid_parameter(at as u16));
    }
    let rest = &list[at + 2..];
    let descriptors = rest[..len.min(rest.len())].chunks_exact(RANGE);
    if descriptors.len() > usize::from(MAX_RANGES) {
        return Err(Sense::illegal(Code::TOO_MANY_SEGMENT_DESCRIPTORS));
    }
    let mut ranges: Vec<BlockRange> = Vec::with_capacity(descriptors.len());
    let mut total = 0;
    for (i, descriptor) in descriptors.enumerate() {
        let range = BlockRange::new(be64(descriptor, 0), u64::from(be32(descriptor, 8)));
        if !range.fits(unit.caps.blocks) {
            return Err(Sense::lba_out_of_range(range.start.0.max(unit.caps.blocks)));
        }
        let at = (at + 2 + i * RANGE) as u16;
        if ranges.iter().any(|other| other.bytes(1).overlaps(range.bytes(1))) {
            return Err(Sense::invalid_parameter(at));
        }
        total += range.blocks;
        if total > MAX_TOKEN_BYTES / u64::from(unit.caps.block_size) {
            return Err(Sense::invalid_parameter(at + 8));
        }
        if range.blocks > 0 {
            ranges.push(range);
        }
    }
    if ranges.is_empty() {
        return Err(Sense::invalid_parameter(at as u16));
    }
    Ok(ranges)
}

impl Populate {
    /// How many blocks the token stands for.
    pub fn blocks(&self) -> u64 {
        self.ranges.iter().map(|range| range.blocks).sum()
    }
}

impl WriteUsing {
    /// How many blocks are to be written.
    pub fn blocks(&self) -> u64 {
        self.ranges.iter().map(|range| range.blocks).sum()
    }

    /// What kind of token was sent.
    ///
    /// # Errors
    /// UNSUPPORTED TOKEN TYPE.
    pub fn kind(&self) -> Result<TokenKind, Sense> {
        match be32(&self.token.0, 0) {
            ACCESS_UPON_REFERENCE => Ok(TokenKind::Made),
            ZERO => Ok(TokenKind::Zero),
            _ => Err(Sense::parameter(Code::UNSUPPORTED_TOKEN_TYPE, 16)),
        }
    }

    /// What goes where, for a token of this data. Where the ranges ask for more than there is, it is
    /// whole blocks up to the end of the data (SBC-4 5.52.2). `block_size` is the destination's.
    ///
    /// # Errors
    /// INVALID FIELD IN PARAMETER LIST if OFFSET INTO ROD lies beyond the data; CAUSE NOT REPORTABLE if
    /// the source's blocks are smaller and the data is not made of whole blocks of the destination.
    pub fn pieces(&self, rod: &Rod, block_size: u32) -> Result<Vec<Piece>, Sense> {
        let mut left = rod.bytes().saturating_sub(self.offset);
        if left == 0 {
            return Err(Sense::invalid_parameter(8));
        }
        let mut sources = rod.ranges.iter().map(|range| range.bytes(rod.block_size));
        let mut skip = self.offset;
        let mut source = ByteRange::new(0, 0);
        let mut pieces = Vec::new();
        for range in &self.ranges {
            let mut to = range.bytes(block_size);
            to.len = to.len.min(left - left % u64::from(block_size));
            left -= to.len;
            while to.len > 0 {
                if source.len == 0 {
                    let Some(next) = sources.next() else { return Ok(pieces) };
                    source = next;
                    let skipped = skip.min(source.len);
                    source = tail(source, skipped);
                    skip -= skipped;
                    continue;
                }
                let len = source.len.min(to.len);
                if len % u64::from(block_size) != 0 {
                    return Err(Sense::parameter(Code::INVALID_TOKEN_OPERATION, 16));
                }
                let from = ByteRange::new(source.offset, len);
                pieces.push(Piece { from, to: ByteRange::new(to.offset, len) });
                (source, to) = (tail(source, len), tail(to, len));
            }
        }
        Ok(pieces)
    }
}

/// A range without its first bytes.
const fn tail(range: ByteRange, skip: u64) -> ByteRange {
    ByteRange::new(range.offset + skip, range.len - skip)
}

impl Rod {
    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.bytes(self.block_size).len).sum()
    }
}

impl RodToken {
    /// Bytes in a token.
    pub const LEN: usize = 512;

    /// How many random bytes make a token its own.
    pub const SECRET: usize = 64;

    /// A token for so many bytes of a unit, made by a copy manager of this target (SPC-5 table 104, SBC-4
    /// 4.28.3). Nobody may be able to guess `secret`.
    pub fn new(unit: &Unit, target: &Target, bytes: u64, secret: &[u8; Self::SECRET]) -> Self {
        let mut t = [0; Self::LEN];
        t[0..4].copy_from_slice(&ACCESS_UPON_REFERENCE.to_be_bytes());
        t[6..8].copy_from_slice(&TOKEN_REST.to_be_bytes());
        // COPY MANAGER ROD TOKEN IDENTIFIER.
        t[8..16].copy_from_slice(&secret[..8]);
        // CREATOR LOGICAL UNIT DESCRIPTOR: an identification CSCD descriptor.
        t[16] = super::descriptor::IDENTIFICATION;
        t[20..24].copy_from_slice(&[0x01, 0x03, 0, unit.identity.naa.len() as u8]);
        t[24..24 + unit.identity.naa.len()].copy_from_slice(&unit.identity.naa);
        t[44..48].copy_from_slice(&unit.caps.block_size.to_be_bytes());
        // NUMBER OF BYTES REPRESENTED has 16 bytes.
        t[56..64].copy_from_slice(&bytes.to_be_bytes());
        // Device type specific data: as READ CAPACITY (16) has it, from the block length on.
        let capacity = &inquiry::capacity(unit)[8..];
        t[96..96 + capacity.len()].copy_from_slice(capacity);
        let at = Self::LEN - Self::SECRET;
        let device = vpd::target_device(target);
        let len = device.len().min(at - 128);
        t[128..128 + len].copy_from_slice(&device[..len]);
        t[at..].copy_from_slice(secret);
        Self(t)
    }
}
