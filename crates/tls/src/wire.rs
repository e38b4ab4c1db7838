//! Reading and writing of structures (RFC 8446 section 3).

use alloc::vec::Vec;

use crate::error::Error;

/// Reads a structure from its start. What is missing is an error, and so is what is left at the [end](Self::end).
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    /// What it is, for the error.
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { bytes, what }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes that have not been read.
    pub(crate) fn left(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.bytes.split_at_checked(len).ok_or(Error::Malformed(self.what))?;
        self.bytes = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (taken, rest) =
            self.bytes.split_first_chunk::<N>().ok_or(Error::Malformed(self.what))?;
        self.bytes = rest;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Error> {
        self.array().map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Error> {
        self.array().map(u16::from_be_bytes)
    }

    /// A vector whose length has one byte.
    pub(crate) fn short(&mut self, least: usize) -> Result<&'a [u8], Error> {
        let len = usize::from(self.u8()?);
        self.vector(len, least)
    }

    /// A vector whose length has two bytes.
    pub(crate) fn long(&mut self, least: usize) -> Result<&'a [u8], Error> {
        let len = usize::from(self.u16()?);
        self.vector(len, least)
    }

    fn vector(&mut self, len: usize, least: usize) -> Result<&'a [u8], Error> {
        if len < least {
            return Err(Error::Malformed(self.what));
        }
        self.take(len)
    }

    /// Everything has been read.
    pub(crate) fn end(self) -> Result<(), Error> {
        if self.is_empty() { Ok(()) } else { Err(Error::Malformed(self.what)) }
    }
}

/// The numbers in a vector of 16-bit numbers.
pub(crate) fn numbers(what: &'static str, bytes: &[u8]) -> Result<Vec<u16>, Error> {
    let pairs = bytes.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return Err(Error::Malformed(what));
    }
    Ok(pairs.map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect())
}

/// Appends a vector whose length has two bytes, with what `content` writes. What is written here is far shorter than
/// its length can say.
pub(crate) fn long(out: &mut Vec<u8>, content: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0, 0]);
    content(out);
    let len = out.len() - at - 2;
    debug_assert!(len <= usize::from(u16::MAX));
    out[at..at + 2].copy_from_slice(&(len as u16).to_be_bytes());
}

/// Appends a handshake message of this type (RFC 8446 section 4).
pub(crate) fn message(out: &mut Vec<u8>, kind: u8, content: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&[kind, 0]);
    long(out, content);
}

/// Appends an extension of this type.
pub(crate) fn extension(out: &mut Vec<u8>, kind: u16, content: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&kind.to_be_bytes());
    long(out, content);
}
