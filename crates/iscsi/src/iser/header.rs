//! The iSER header that precedes every PDU in a Send (RFC 7145 section 9.2).

use super::Remote;
use thiserror::Error;

/// Length of the iSER header in bytes, with the Base Offsets of RFC 7145. The header of RFC 5046
/// has 12 bytes and no place for an address; nobody sends it over RoCE or InfiniBand.
pub const HEADER_LEN: usize = 28;

/// Byte 0: the bits of the opcode.
const OPCODE: u8 = 0xf0;
/// Opcode of a PDU of iSCSI.
const CONTROL: u8 = 0x10;
/// Opcode of Hello.
const HELLO: u8 = 0x20;
/// Opcode of HelloReply.
const HELLO_REPLY: u8 = 0x30;
/// Byte 0: the Write STag and its Base Offset are valid.
const WRITE_VALID: u8 = 0x08;
/// Byte 0: the Read STag and its Base Offset are valid.
const READ_VALID: u8 = 0x04;

/// What is wrong with an iSER header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// The Send is too short for it.
    #[error("a Send is shorter than an iSER header")]
    Short,
    /// The opcode is not one of RFC 7145.
    #[error("an iSER header has the unknown opcode {0:#04x}")]
    Opcode(u8),
}

/// What a Send carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A PDU of iSCSI, with the memory that it opens.
    Control(Header),
    /// iSER Hello.
    Hello,
    /// iSER HelloReply.
    HelloReply,
}

/// The iSER header of a PDU of iSCSI: the memory that a command opens to the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// What the target may read: the data of a write.
    pub write: Option<Remote>,
    /// What the target may write: the buffer of a read.
    pub read: Option<Remote>,
}

impl Header {
    /// Takes a Send apart: what it is, and the PDU behind the header.
    pub fn split(message: &[u8]) -> Result<(Kind, &[u8]), HeaderError> {
        let Some((header, pdu)) = message.split_first_chunk::<HEADER_LEN>() else {
            return Err(HeaderError::Short);
        };
        let flags = header[0];
        let kind = match flags & OPCODE {
            CONTROL => Kind::Control(Self {
                write: (flags & WRITE_VALID != 0).then(|| remote(header, 4)),
                read: (flags & READ_VALID != 0).then(|| remote(header, 16)),
            }),
            HELLO => Kind::Hello,
            HELLO_REPLY => Kind::HelloReply,
            opcode => return Err(HeaderError::Opcode(opcode)),
        };
        Ok((kind, pdu))
    }

    /// The header as it is sent. What is not valid is zero.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = CONTROL;
        for (memory, valid, at) in [(self.write, WRITE_VALID, 4), (self.read, READ_VALID, 16)] {
            if let Some(memory) = memory {
                bytes[0] |= valid;
                bytes[at..at + 4].copy_from_slice(&memory.stag.to_be_bytes());
                bytes[at + 4..at + 12].copy_from_slice(&memory.offset.to_be_bytes());
            }
        }
        bytes
    }
}

/// The steering tag at byte `at`, and the Base Offset behind it.
fn remote(header: &[u8; HEADER_LEN], at: usize) -> Remote {
    let (mut stag, mut offset) = ([0; 4], [0; 8]);
    stag.copy_from_slice(&header[at..at + 4]);
    offset.copy_from_slice(&header[at + 4..at + 12]);
    Remote { stag: u32::from_be_bytes(stag), offset: u64::from_be_bytes(offset) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_read_command_as_linux_sends_it() {
        let mut bytes = [0; HEADER_LEN + 2];
        bytes[0] = 0x14;
        bytes[16..20].copy_from_slice(&[0, 0, 0x12, 0x34]);
        bytes[20..28].copy_from_slice(&[0xff, 0xff, 0x88, 0, 0, 0, 0x10, 0]);
        bytes[28..].copy_from_slice(&[0x01, 0xc1]);
        let read = Remote { stag: 0x1234, offset: 0xffff_8800_0000_1000 };
        let header = Header { write: None, read: Some(read) };
        assert_eq!(Header::split(&bytes), Ok((Kind::Control(header), &[0x01, 0xc1][..])));
        assert_eq!(header.to_bytes(), bytes[..HEADER_LEN]);
    }

    #[test]
    fn a_tag_counts_only_with_its_bit() {
        let mut bytes = [0xff; HEADER_LEN];
        bytes[0] = 0x10;
        assert_eq!(Header::split(&bytes), Ok((Kind::Control(Header::default()), &[][..])));
    }

    #[test]
    fn other_sends_are_told_apart() {
        let with = |first: u8| {
            let mut bytes = [0; HEADER_LEN];
            bytes[0] = first;
            Header::split(&bytes).map(|(kind, _)| kind)
        };
        assert_eq!(with(0x20), Ok(Kind::Hello));
        assert_eq!(with(0x31), Ok(Kind::HelloReply));
        assert_eq!(with(0x40), Err(HeaderError::Opcode(0x40)));
        assert_eq!(with(0x0c), Err(HeaderError::Opcode(0)));
        assert_eq!(Header::split(&[0x10; HEADER_LEN - 1]), Err(HeaderError::Short));
    }

    #[test]
    fn memory_goes_on_at_an_offset() {
        let memory = Remote { stag: 7, offset: u64::MAX };
        assert_eq!(memory.at(0), memory);
        assert_eq!(memory.at(3), Remote { stag: 7, offset: 2 });
    }

    fn memory() -> impl Strategy<Value = Option<Remote>> {
        proptest::option::of(any::<(u32, u64)>().prop_map(|(stag, offset)| Remote { stag, offset }))
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(write in memory(), read in memory()) {
            let header = Header { write, read };
            let bytes = header.to_bytes();
            prop_assert_eq!(Header::split(&bytes), Ok((Kind::Control(header), &[][..])));
        }

        #[test]
        fn any_bytes_are_a_header_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            match Header::split(&bytes) {
                Ok((_, rest)) => prop_assert_eq!(rest, &bytes[HEADER_LEN..]),
                Err(HeaderError::Short) => prop_assert!(bytes.len() < HEADER_LEN),
                Err(HeaderError::Opcode(opcode)) => prop_assert_eq!(opcode, bytes[0] & 0xf0),
            }
        }
    }
}
