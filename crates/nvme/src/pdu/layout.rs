//! Where header, digests and data of a PDU are.

use super::{
    Common, DDGSTF, FatalError, HDGSTF, Header, LAST_PDU, SUCCESS, TERM_DATA_MAX, Type, U32,
};
use crate::digest::{DIGEST_LEN, crc32c};
use thiserror::Error;

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The host.
    Host,
    /// The controller.
    Controller,
}

/// What was agreed on about the PDUs that one end sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Framing {
    /// Headers have a digest.
    pub header_digest: bool,
    /// Data has a digest.
    pub data_digest: bool,
    /// HPDA or CPDA of the end that receives: data starts at a multiple of (n + 1) * 4 bytes.
    pub alignment: u8,
}

/// What an end takes.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Who sends.
    pub sender: Sender,
    /// What was agreed on.
    pub framing: Framing,
    /// Most data of a command capsule, in bytes.
    pub max_capsule: u32,
    /// Most data of a data PDU, in bytes.
    pub max_data: u32,
}

/// What is wrong with a PDU, so that the stream cannot be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PduError {
    /// Not a type that this end takes.
    #[error("PDU type {0:#04x} is not one that may be sent here")]
    Type(u8),
    /// Flags that the type may not have, or that contradict what was agreed on.
    #[error("flags {0:#04x} are not those that were agreed on")]
    Flags(u8),
    /// Not the length that headers of the type have.
    #[error("HLEN {0} is not that of the PDU's type")]
    HeaderLen(u8),
    /// Data that starts within the header, or is not aligned.
    #[error("PDO {0} is not where data may start")]
    DataOffset(u8),
    /// A length that does not fit the header and the data.
    #[error("PLEN {0} does not fit the PDU's type")]
    Len(u32),
    /// More data than this end takes.
    #[error("{0} bytes of data are more than the limit")]
    TooLong(u32),
    /// A header digest is wrong.
    #[error("a header digest is wrong")]
    HeaderDigest([u8; DIGEST_LEN]),
}

impl PduError {
    /// What a termination request says of it: status and information.
    #[must_use]
    pub const fn fatal(self) -> (FatalError, u32) {
        match self {
            Self::Type(_) => (FatalError::HeaderField, 0),
            Self::Flags(_) => (FatalError::HeaderField, 1),
            Self::HeaderLen(_) => (FatalError::HeaderField, 2),
            Self::DataOffset(_) => (FatalError::HeaderField, 3),
            Self::Len(_) => (FatalError::HeaderField, 4),
            Self::TooLong(_) => (FatalError::LimitExceeded, 0),
            Self::HeaderDigest(came) => (FatalError::HeaderDigest, u32::from_le_bytes(came)),
        }
    }
}

/// Where the parts of a PDU are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Type of the PDU.
    pub kind: Type,
    /// Length of the header with its digest, in bytes.
    pub head: usize,
    /// A header digest is at the end of the head.
    pub header_digest: bool,
    /// Bytes between the head and the data, which mean nothing.
    pub gap: usize,
    /// Length of the data, in bytes.
    pub data: usize,
    /// A data digest is behind the data.
    pub data_digest: bool,
}

impl Framing {
    /// The start of a PDU's data that is sent.
    const fn data_offset(self, head: usize) -> usize {
        head.next_multiple_of((self.alignment as usize + 1) * 4)
    }

    /// Completes the common header of a PDU with so much data, and gives its layout. `flags`:
    /// those that have nothing to do with digests.
    pub fn seal(self, header: &mut impl Header, kind: Type, flags: u8, data: u32) -> Layout {
        let digests = kind.has_digests();
        let header_digest = digests && self.header_digest;
        let data_digest = digests && self.data_digest && data > 0;
        let head = kind.header_len() + if header_digest { DIGEST_LEN } else { 0 };
        let start = match (data, kind.has_data()) {
            (0, _) | (_, false) => head,
            (_, true) => self.data_offset(head),
        };
        let tail = if data_digest { DIGEST_LEN } else { 0 };
        *header.common_mut() = Common {
            kind: kind.code(),
            flags: flags
                | if header_digest { HDGSTF } else { 0 }
                | if data_digest { DDGSTF } else { 0 },
            hlen: kind.header_len() as u8,
            pdo: if data > 0 && kind.has_data() { start as u8 } else { 0 },
            plen: U32::new((start + tail) as u32 + data),
        };
        Layout { kind, head, header_digest, gap: start - head, data: data as usize, data_digest }
    }
}

impl Layout {
    /// Calls `put` with header, header digest and what fills up to the data.
    pub fn write(&self, header: &[u8], mut put: impl FnMut(&[u8])) {
        put(header);
        if self.header_digest {
            put(&crc32c(header));
        }
        // At most 31 words.
        put(&[0; 124][..self.gap]);
    }
}

impl Common {
    /// Where the parts of this PDU are.
    ///
    /// # Errors
    /// The header contradicts itself, its type, or the rules.
    pub fn layout(&self, rules: &Rules) -> Result<Layout, PduError> {
        let kind = Type::from_code(self.kind).filter(|kind| kind.sender() == rules.sender);
        let kind = kind.ok_or(PduError::Type(self.kind))?;
        self.check_flags(kind, rules.framing)?;
        if usize::from(self.hlen) != kind.header_len() {
            return Err(PduError::HeaderLen(self.hlen));
        }
        let header_digest = self.flags & HDGSTF != 0;
        let head = kind.header_len() + if header_digest { DIGEST_LEN } else { 0 };
        let mut layout = Layout { kind, head, header_digest, gap: 0, data: 0, data_digest: false };
        let plen = self.plen.get();
        let behind = (plen as usize).checked_sub(head).ok_or(PduError::Len(plen))?;
        if matches!(kind, Type::H2cTermReq | Type::C2hTermReq) {
            // Its data follows the header, whatever PDO says.
            layout.data =
                Some(behind).filter(|n| *n <= TERM_DATA_MAX).ok_or(PduError::Len(plen))?;
            return Ok(layout);
        }
        // What has no data may say that it would be behind the header.
        if !kind.has_data() || behind == 0 {
            return if behind == 0 { Ok(layout) } else { Err(PduError::Len(plen)) };
        }
        self.lay_data(rules, layout)
    }

    /// Adds the data to the layout of a PDU that has some.
    fn lay_data(&self, rules: &Rules, mut layout: Layout) -> Result<Layout, PduError> {
        let (pdo, plen) = (usize::from(self.pdo), self.plen.get());
        let unit = (usize::from(rules.framing.alignment) + 1) * 4;
        if pdo < layout.head || pdo % unit != 0 {
            return Err(PduError::DataOffset(self.pdo));
        }
        layout.data_digest = rules.framing.data_digest;
        if layout.data_digest && self.flags & DDGSTF == 0 {
            return Err(PduError::Flags(self.flags));
        }
        let tail = if layout.data_digest { DIGEST_LEN } else { 0 };
        layout.gap = pdo - layout.head;
        layout.data = (plen as usize).checked_sub(pdo + tail).ok_or(PduError::Len(plen))?;
        if layout.data == 0 {
            return Err(PduError::Len(plen));
        }
        let limit = match layout.kind {
            Type::CapsuleCmd => rules.max_capsule,
            _ => rules.max_data,
        };
        if layout.data > limit as usize {
            return Err(PduError::TooLong(layout.data as u32));
        }
        Ok(layout)
    }

    fn check_flags(&self, kind: Type, framing: Framing) -> Result<(), PduError> {
        let own = match kind {
            Type::H2cData => LAST_PDU,
            Type::C2hData => LAST_PDU | SUCCESS,
            _ => 0,
        };
        let digests = kind.has_digests();
        let header_digest = digests && framing.header_digest;
        let data_digest = digests && framing.data_digest;
        let allowed =
            own | if header_digest { HDGSTF } else { 0 } | if data_digest { DDGSTF } else { 0 };
        let early = self.flags & (LAST_PDU | SUCCESS) == SUCCESS;
        let missing = header_digest && self.flags & HDGSTF == 0;
        if self.flags & !allowed != 0 || missing || early {
            return Err(PduError::Flags(self.flags));
        }
        Ok(())
    }
}
