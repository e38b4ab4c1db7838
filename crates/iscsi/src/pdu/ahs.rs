//! Additional header segments (RFC 7143 section 11.2.2).

use super::{MAX_AHS_LEN, padding};
use alloc::vec::Vec;
use thiserror::Error;

/// AHSType of an extended CDB.
const EXTENDED_CDB: u8 = 1;
/// AHSType of the expected bidirectional read data length.
const BIDI_READ_LENGTH: u8 = 2;
/// AHSLength and AHSType.
const PREFIX: usize = 3;

/// What is wrong with an additional header segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AhsError {
    /// A segment is longer than what TotalAHSLength leaves for it.
    #[error("an additional header segment is longer than TotalAHSLength says")]
    Truncated,
    /// A known segment has a length that its type does not allow.
    #[error("an additional header segment has a wrong length")]
    Length,
    /// The same segment appears twice.
    #[error("an additional header segment appears twice")]
    Duplicate,
}

/// The additional header segments of a SCSI Command. Unknown types are skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ahs<'a> {
    /// Bytes of the CDB from byte 16 on.
    pub extended_cdb: Option<&'a [u8]>,
    /// Expected read data length of a bidirectional command, in bytes.
    pub bidi_read_len: Option<u32>,
}

impl<'a> Ahs<'a> {
    /// Takes the `TotalAHSLength` bytes behind a basic header segment apart.
    pub fn parse(mut bytes: &'a [u8]) -> Result<Self, AhsError> {
        let mut ahs = Self::default();
        while !bytes.is_empty() {
            let [high, low, kind, rest @ ..] = bytes else { return Err(AhsError::Truncated) };
            let len = usize::from(u16::from_be_bytes([*high, *low]));
            let body = rest.get(..len).ok_or(AhsError::Truncated)?;
            match *kind & 0x3f {
                EXTENDED_CDB => ahs.set_extended_cdb(body)?,
                BIDI_READ_LENGTH => ahs.set_bidi(body)?,
                _ => {}
            }
            bytes = rest.get(len + padding(PREFIX + len)..).unwrap_or_default();
        }
        Ok(ahs)
    }

    fn set_extended_cdb(&mut self, body: &'a [u8]) -> Result<(), AhsError> {
        let [_reserved, cdb @ ..] = body else { return Err(AhsError::Length) };
        if cdb.is_empty() {
            return Err(AhsError::Length);
        }
        if self.extended_cdb.replace(cdb).is_some() {
            return Err(AhsError::Duplicate);
        }
        Ok(())
    }

    fn set_bidi(&mut self, body: &[u8]) -> Result<(), AhsError> {
        let [_reserved, a, b, c, d] = *body else { return Err(AhsError::Length) };
        if self.bidi_read_len.replace(u32::from_be_bytes([a, b, c, d])).is_some() {
            return Err(AhsError::Duplicate);
        }
        Ok(())
    }
}

/// Appends an Extended CDB segment: `rest` is the CDB from byte 16 on. Returns false, and appends
/// nothing, when `rest` is empty or too long for TotalAHSLength.
#[must_use]
pub fn write_extended_cdb(out: &mut Vec<u8>, rest: &[u8]) -> bool {
    let total = PREFIX + 1 + rest.len();
    let Ok(len) = u16::try_from(rest.len() + 1) else { return false };
    if rest.is_empty() || out.len() + total + padding(total) > MAX_AHS_LEN {
        return false;
    }
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(&[EXTENDED_CDB, 0]);
    out.extend_from_slice(rest);
    out.resize(out.len() + padding(total), 0);
    true
}

/// Appends an Expected Bidirectional Read Data Length segment, in bytes.
pub fn write_bidi_read_length(out: &mut Vec<u8>, len: u32) {
    out.extend_from_slice(&[0, 5, BIDI_READ_LENGTH, 0]);
    out.extend_from_slice(&len.to_be_bytes());
}
