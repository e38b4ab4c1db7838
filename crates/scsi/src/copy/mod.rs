//! Third-party copy (SPC-5 5.18, SBC-4 4.28): the initiator names source and destination, and the data
//! does not leave the machine. EXTENDED COPY is what ESXi uses (VAAI); POPULATE TOKEN and WRITE USING
//! TOKEN are Windows' offloaded data transfer (ODX).
//!
//! | module | what |
//! |---|---|
//! | `command` | the command blocks |
//! | [`mod@extended`] | the parameter list of EXTENDED COPY |
//! | `descriptor` | what its descriptors hold |
//! | [`rod`] | the parameter lists with block ranges, ROD tokens |
//! | [`results`] | what became of a nexus's copies, for RECEIVE COPY STATUS and its kin |
//! | `limits` | what is supported, as VPD page 8Fh and RECEIVE COPY OPERATING PARAMETERS say it |

use alloc::boxed::Box;

pub(crate) mod command;
mod descriptor;
pub mod extended;
pub(crate) mod limits;
pub mod results;
pub mod rod;

pub use descriptor::UnitName;
pub use extended::{Extended, Side, Step};
pub use limits::{
    DEFAULT_INACTIVITY, MAX_COPIES, MAX_INACTIVITY, MAX_RANGES, MAX_SEGMENT_BYTES, MAX_TOKEN_BYTES,
};
pub use results::{Operations, Origin, Outcome, Refused};
pub use rod::{Piece, Populate, Rod, RodToken, TokenKind, WriteUsing};

/// The service actions of THIRD-PARTY COPY OUT (83h) that start a copy operation.
pub mod action {
    /// EXTENDED COPY with a list identifier of one byte.
    pub const EXTENDED_COPY_LID1: u8 = 0x00;
    /// EXTENDED COPY with a list identifier of four bytes.
    pub const EXTENDED_COPY_LID4: u8 = 0x01;
    /// POPULATE TOKEN.
    pub const POPULATE_TOKEN: u8 = 0x10;
    /// WRITE USING TOKEN.
    pub const WRITE_USING_TOKEN: u8 = 0x11;
}

/// What a third-party copy command asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// EXTENDED COPY.
    Extended(Box<Extended>),
    /// POPULATE TOKEN.
    Populate(Populate),
    /// WRITE USING TOKEN.
    WriteUsing(Box<WriteUsing>),
    /// What became of an operation: [`Operations::query`] answers.
    Query(Query),
    /// COPY OPERATION ABORT.
    Abort {
        /// LIST IDENTIFIER.
        list: u32,
    },
}

/// A question about a copy operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// What is asked.
    pub about: About,
    /// LIST IDENTIFIER.
    pub list: u32,
    /// ALLOCATION LENGTH.
    pub allocation: u32,
}

/// What a [`Query`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// RECEIVE COPY STATUS(LID1) (SPC-5 6.25).
    Status1,
    /// RECEIVE COPY FAILURE DETAILS(LID1) (SPC-5 6.23).
    Failure1,
    /// RECEIVE COPY STATUS(LID4) (SPC-5 6.24).
    Status4,
    /// RECEIVE ROD TOKEN INFORMATION (SPC-5 6.26, SBC-4 5.21).
    Token,
}

/// Two bytes, the most significant first. The caller has checked the length.
fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Four bytes, the most significant first. The caller has checked the length.
fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from(be16(bytes, at)) << 16 | u32::from(be16(bytes, at + 2))
}

/// Eight bytes, the most significant first. The caller has checked the length.
fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}
