//! Protocol data units (RFC 7143 section 11).
//!
//! Each opcode has a `#[repr(C)]` structure of exactly 48 bytes whose fields are big-endian types,
//! so decoding and encoding a basic header segment (BHS) is a cast. Any 48 bytes are a valid value
//! of every structure; what the fields mean is checked by the state machines.

mod ahs;
mod codes;
mod initiator;
mod target;

pub use ahs::{Ahs, AhsError, write_bidi_read_length, write_extended_cdb};
pub use codes::{
    AsyncEvent, LoginStatus, LogoutReason, LogoutResponse, Opcode, RejectReason, Stage,
    TaskAttribute, TmfFunction, TmfResponse,
};
pub use initiator::{
    DataOut, LoginRequest, LogoutRequest, NopOut, ScsiCommand, SnackRequest, TextRequest,
    TmfRequest,
};
pub use target::{
    AsyncMessage, DataIn, LoginResponse, LogoutResponsePdu, NopIn, R2t, Reject, ScsiResponse,
    TextResponse, TmfResponsePdu,
};
pub use zerocopy::byteorder::big_endian::{U16, U32, U64};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of a basic header segment in bytes.
pub const BHS_LEN: usize = 48;

/// Largest additional header segment in bytes: TotalAHSLength is one byte of 4-byte words.
pub const MAX_AHS_LEN: usize = 255 * 4;

/// The raw bytes of a basic header segment.
pub type Bhs = [u8; BHS_LEN];

/// The reserved tag 0xffffffff: 'no task', 'no transfer'.
pub const RESERVED_TAG: u32 = 0xffff_ffff;

/// Byte 0: the Immediate bit.
pub const IMMEDIATE: u8 = 0x40;
/// Byte 0: the bits of the opcode.
pub const OPCODE_MASK: u8 = 0x3f;
/// Byte 1: Final.
pub const FINAL: u8 = 0x80;
/// Byte 1 of login PDUs: Transit.
pub const TRANSIT: u8 = 0x80;
/// Byte 1 of login and text PDUs: Continue, more key data follows in the next PDU.
pub const CONTINUE: u8 = 0x40;
/// Byte 1 of a SCSI Command: Read, data is expected from the target.
pub const READ: u8 = 0x40;
/// Byte 1 of a SCSI Command: Write, data will be sent to the target.
pub const WRITE: u8 = 0x20;
/// Byte 1 of a Data-In: Acknowledge (error recovery level above 0 only).
pub const ACKNOWLEDGE: u8 = 0x40;
/// Byte 1 of a Data-In: the PDU carries the status of the command.
pub const STATUS: u8 = 0x01;
/// Byte 1 of a SCSI Response or Data-In: residual overflow.
pub const OVERFLOW: u8 = 0x04;
/// Byte 1 of a SCSI Response or Data-In: residual underflow.
pub const UNDERFLOW: u8 = 0x02;
/// Byte 1 of a SCSI Response: residual overflow of the read part of a bidirectional command.
pub const BIDI_OVERFLOW: u8 = 0x10;
/// Byte 1 of a SCSI Response: residual underflow of the read part of a bidirectional command.
pub const BIDI_UNDERFLOW: u8 = 0x08;

/// Number of zero bytes that pad `len` bytes to a multiple of four.
#[must_use]
pub const fn padding(len: usize) -> usize {
    len.wrapping_neg() & 3
}

/// A 24-bit big-endian number: DataSegmentLength.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(transparent)]
pub struct U24([u8; 3]);

impl U24 {
    /// The largest value, 2^24 - 1.
    pub const MAX: u32 = 0x00ff_ffff;

    /// The low 24 bits of `value`; larger values are a mistake of the caller.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        debug_assert!(value <= Self::MAX);
        let [_, a, b, c] = value.to_be_bytes();
        Self([a, b, c])
    }

    /// The field in host byte order.
    #[must_use]
    pub const fn get(self) -> u32 {
        u32::from_be_bytes([0, self.0[0], self.0[1], self.0[2]])
    }
}

impl From<u32> for U24 {
    fn from(value: u32) -> Self {
        Self::new(value)
    }
}

/// A typed view of a basic header segment.
pub trait Wire: Sized {
    /// The opcode of the PDU.
    const OPCODE: Opcode;

    /// Looks at raw bytes as this PDU. The opcode is not checked.
    fn from_bhs(bhs: &Bhs) -> &Self;

    /// The raw bytes of this PDU, ready to be sent.
    fn as_bhs(&self) -> &Bhs;
}

/// Implements [`Wire`] for structures that are exactly one basic header segment long.
macro_rules! wire {
    ($($name:ident => $opcode:ident),* $(,)?) => {$(
        impl $crate::pdu::Wire for $name {
            const OPCODE: $crate::pdu::Opcode = $crate::pdu::Opcode::$opcode;

            fn from_bhs(bhs: &$crate::pdu::Bhs) -> &Self {
                zerocopy::transmute_ref!(bhs)
            }

            fn as_bhs(&self) -> &$crate::pdu::Bhs {
                zerocopy::transmute_ref!(self)
            }
        }
    )*};
}
pub(crate) use wire;

/// What all PDUs have in common (RFC 7143 section 11.2.1).
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct BasicHeader {
    /// Immediate bit and opcode.
    pub opcode: u8,
    /// Final bit and opcode-specific flags.
    pub flags: u8,
    /// Opcode-specific.
    pub specific: [u8; 2],
    /// TotalAHSLength, in 4-byte words.
    pub ahs_words: u8,
    /// DataSegmentLength, in bytes, without padding.
    pub data_len: U24,
    /// Logical unit number or opcode-specific.
    pub lun: U64,
    /// Initiator Task Tag.
    pub itt: U32,
    /// Opcode-specific.
    pub rest: [u8; 28],
}

impl BasicHeader {
    /// Looks at raw bytes.
    #[must_use]
    pub fn from_bhs(bhs: &Bhs) -> &Self {
        zerocopy::transmute_ref!(bhs)
    }

    /// The opcode, if RFC 7143 defines it.
    #[must_use]
    pub fn opcode(&self) -> Option<Opcode> {
        Opcode::from_byte(self.opcode)
    }

    /// True when the command is for immediate delivery.
    #[must_use]
    pub fn immediate(&self) -> bool {
        self.opcode & IMMEDIATE != 0
    }

    /// True when the Final bit is set.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.flags & FINAL != 0
    }

    /// Length of all additional header segments in bytes.
    #[must_use]
    pub fn ahs_len(&self) -> usize {
        usize::from(self.ahs_words) * 4
    }

    /// Length of the data segment in bytes, without padding.
    #[must_use]
    pub fn data_len(&self) -> usize {
        self.data_len.get() as usize
    }
}

#[cfg(test)]
mod tests;
