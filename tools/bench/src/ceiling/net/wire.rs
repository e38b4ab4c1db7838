//! What goes over the wire before the bytes that are measured.

use std::io::{self, Read, Write};

const MAGIC: [u8; 8] = *b"lunetnet";
/// Of the protocol. Another one is refused in a sentence.
pub const VERSION: u32 = 1;
/// What is sent at once.
pub(super) const CHUNK: usize = 256 << 10;
/// A small message.
pub(super) const MESSAGE: usize = 64;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The client sends.
    Send,
    /// The server sends.
    Receive,
    /// Messages go there and back.
    Ping,
}

/// What the client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub version: u32,
    /// `None`: something that this version does not know.
    pub what: Option<What>,
    pub milliseconds: u64,
}

/// What the server says to that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Welcome,
    Busy,
    Refused,
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

impl Hello {
    pub fn write(self, to: &mut impl Write) -> io::Result<()> {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.version.to_be_bytes());
        let what: u32 = match self.what {
            Some(What::Send) => 1,
            Some(What::Receive) => 2,
            Some(What::Ping) => 3,
            None => 0,
        };
        bytes[12..16].copy_from_slice(&what.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.milliseconds.to_be_bytes());
        to.write_all(&bytes)
    }

    /// `None`: that is no hello.
    pub fn read(from: &mut impl Read) -> io::Result<Option<Self>> {
        let mut bytes = [0; 32];
        from.read_exact(&mut bytes)?;
        let what = match number(&bytes[12..16]) {
            1 => Some(What::Send),
            2 => Some(What::Receive),
            3 => Some(What::Ping),
            _ => None,
        };
        let version = number(&bytes[8..12]) as u32;
        let hello = Self { version, what, milliseconds: number(&bytes[16..24]) };
        Ok((bytes[..8] == MAGIC).then_some(hello))
    }
}

impl Status {
    pub fn write(self, to: &mut impl Write) -> io::Result<()> {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_be_bytes());
        bytes[15] = match self {
            Self::Welcome => 0,
            Self::Busy => 1,
            Self::Refused => 2,
        };
        to.write_all(&bytes)
    }

    /// The version and the status; `None`: that is no answer of this protocol.
    pub fn read(from: &mut impl Read) -> io::Result<Option<(u32, Self)>> {
        let mut bytes = [0; 16];
        from.read_exact(&mut bytes)?;
        let status = match number(&bytes[12..16]) {
            0 => Self::Welcome,
            1 => Self::Busy,
            _ => Self::Refused,
        };
        let version = number(&bytes[8..12]) as u32;
        Ok((bytes[..8] == MAGIC).then_some((version, status)))
    }
}

/// How many bytes arrived.
pub(super) fn write_count(to: &mut impl Write, bytes: u64) -> io::Result<()> {
    to.write_all(&bytes.to_be_bytes())
}

/// See [`write_count`].
pub(super) fn read_count(from: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(number(&bytes))
}
