//! Numbers and strings as bytes, little end first, each string behind its length.

use alloc::string::String;
use alloc::vec::Vec;

use crate::codec::Malformed;

pub(crate) struct Writer(pub Vec<u8>);

impl Writer {
    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    pub fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    /// Bytes behind their length. All that is written this way was checked to be shorter than 64 KiB.
    pub fn bytes(&mut self, value: &[u8]) {
        debug_assert!(value.len() <= usize::from(u16::MAX));
        self.u16(value.len() as u16);
        self.0.extend(value);
    }
}

pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (value, rest) = self.0.split_first_chunk().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(*value)
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn bytes(&mut self, most: usize) -> Result<&'a [u8], Malformed> {
        let length = usize::from(self.u16()?);
        if length > most {
            return Err(Malformed::Long);
        }
        let (value, rest) = self.0.split_at_checked(length).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(value)
    }

    pub fn text(&mut self, most: usize) -> Result<String, Malformed> {
        let bytes = self.bytes(most)?;
        core::str::from_utf8(bytes).map(Into::into).map_err(|_| Malformed::Text)
    }

    /// How many of something follow: no more than `most`, and than there are bytes for.
    pub fn count(&mut self, most: usize) -> Result<usize, Malformed> {
        let count = usize::from(self.u16()?);
        if count > most {
            return Err(Malformed::Long);
        }
        if count > self.0.len() { Err(Malformed::Short) } else { Ok(count) }
    }

    pub fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed::Trailing) }
    }
}
