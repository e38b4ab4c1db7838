//! Protocol data units of NVMe/TCP (NVMe/TCP transport specification, section 3.6).
//!
//! Each type has a `#[repr(C)]` structure of its header, whose fields are little-endian types, so
//! decoding and encoding it is a cast. Any bytes are a valid value of every structure. What the
//! common header says of the layout is checked by [`Common::layout`]; what the other fields mean
//! is checked by the state machines.

mod layout;
#[cfg(test)]
mod tests;

pub use layout::{Framing, Layout, PduError, Rules, Sender};
pub use zerocopy::byteorder::little_endian::{U16, U32, U64};

use crate::code::{codes, wire};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the common header in bytes.
pub const COMMON_LEN: usize = 8;

/// Data of a capsule that every admin queue takes, in bytes (NVMe/TCP section 3.2).
pub const ADMIN_CAPSULE_DATA: u32 = 8192;

/// Flag HDGSTF: a header digest follows the header.
pub const HDGSTF: u8 = 0x01;
/// Flag DDGSTF: a data digest follows the data.
pub const DDGSTF: u8 = 0x02;
/// Flag LAST_PDU of H2CData and C2HData: the last of its sequence.
pub const LAST_PDU: u8 = 0x04;
/// Flag SUCCESS of C2HData: the command has completed successfully, and no CapsuleResp follows.
pub const SUCCESS: u8 = 0x08;

/// Bit of DGST in ICReq and ICResp: header digests.
pub const DGST_HEADER: u8 = 0x01;
/// Bit of DGST in ICReq and ICResp: data digests.
pub const DGST_DATA: u8 = 0x02;

/// The largest HPDA and CPDA.
pub const MAX_ALIGNMENT: u8 = 31;

/// Most bytes of the offending PDU that a termination request carries.
pub const TERM_DATA_MAX: usize = 128;

codes! {
    /// PDU types.
    Type: u8 {
        /// Initialize connection request.
        IcReq = 0x00,
        /// Initialize connection response.
        IcResp = 0x01,
        /// Terminate connection request of the host.
        H2cTermReq = 0x02,
        /// Terminate connection request of the controller.
        C2hTermReq = 0x03,
        /// Command capsule.
        CapsuleCmd = 0x04,
        /// Response capsule.
        CapsuleResp = 0x05,
        /// Data to the controller.
        H2cData = 0x06,
        /// Data to the host.
        C2hData = 0x07,
        /// Ready to transfer.
        R2t = 0x09,
    }
}

impl Type {
    /// HLEN: the length of the header of this type, in bytes.
    #[must_use]
    pub const fn header_len(self) -> usize {
        match self {
            Self::IcReq | Self::IcResp => 128,
            Self::CapsuleCmd => 72,
            _ => 24,
        }
    }

    /// Who sends this type.
    #[must_use]
    pub const fn sender(self) -> Sender {
        match self {
            Self::IcReq | Self::H2cTermReq | Self::CapsuleCmd | Self::H2cData => Sender::Host,
            _ => Sender::Controller,
        }
    }

    /// True for types that have digests if that was agreed on.
    const fn has_digests(self) -> bool {
        !matches!(self, Self::IcReq | Self::IcResp | Self::H2cTermReq | Self::C2hTermReq)
    }

    /// True for types that may have data.
    const fn has_data(self) -> bool {
        matches!(self, Self::CapsuleCmd | Self::H2cData | Self::C2hData)
    }
}

codes! {
    /// Fatal error status of a termination request.
    FatalError: u16 {
        /// A field of a header is not valid; the information is its byte offset.
        HeaderField = 1,
        /// A PDU came out of sequence.
        Sequence = 2,
        /// A header digest is wrong; the information is the digest that came.
        HeaderDigest = 3,
        /// Data is outside of what was asked for, or of the command's buffer.
        DataOutOfRange = 4,
        /// More data, or more R2Ts, than the other end takes.
        LimitExceeded = 5,
        /// A parameter is not supported; the information is its byte offset.
        Unsupported = 6,
    }
}

wire! {
    /// The common header of all PDUs.
    Common {
        /// Type, see [`Type`].
        kind: u8,
        /// Flags.
        flags: u8,
        /// HLEN: length of the header, in bytes.
        hlen: u8,
        /// PDO: where the data starts, in bytes from the start of the PDU; 0 without data.
        pdo: u8,
        /// PLEN: length of the PDU with digests, in bytes.
        plen: U32,
    }
}

wire! {
    /// ICReq: the host starts a connection.
    IcReq {
        /// The common header.
        common: Common,
        /// PFV: version of the format, 0.
        pfv: U16,
        /// HPDA: alignment of data that the host wants, (n + 1) * 4 bytes.
        hpda: u8,
        /// DGST: digests that the host asks for.
        dgst: u8,
        /// MAXR2T: R2Ts of one command that may be outstanding, 0's based.
        maxr2t: U32,
        /// Reserved.
        reserved: [u8; 112],
    }
}

wire! {
    /// ICResp: the controller's answer to an ICReq.
    IcResp {
        /// The common header.
        common: Common,
        /// PFV: version of the format, 0.
        pfv: U16,
        /// CPDA: alignment of data that the controller wants, (n + 1) * 4 bytes.
        cpda: u8,
        /// DGST: digests that are used.
        dgst: u8,
        /// MAXH2CDATA: most data of an H2CData PDU, in bytes; at least 4096 and a multiple of 4.
        maxh2cdata: U32,
        /// Reserved.
        reserved: [u8; 112],
    }
}

wire! {
    /// H2CTermReq and C2HTermReq: the connection cannot go on. The data is the header of the PDU
    /// that is to blame.
    TermReq {
        /// The common header.
        common: Common,
        /// FES: fatal error status, see [`FatalError`].
        fes: U16,
        /// FEI: what the status says of it.
        fei: U32,
        /// Reserved.
        reserved: [u8; 10],
    }
}

wire! {
    /// CapsuleCmd: a submission queue entry, perhaps with data.
    CapsuleCmd {
        /// The common header.
        common: Common,
        /// The submission queue entry.
        sqe: [u8; 64],
    }
}

wire! {
    /// CapsuleResp: a completion queue entry.
    CapsuleResp {
        /// The common header.
        common: Common,
        /// The completion queue entry.
        cqe: [u8; 16],
    }
}

wire! {
    /// H2CData and C2HData: data of a command.
    Data {
        /// The common header.
        common: Common,
        /// CCCID: identifier of the command.
        cccid: U16,
        /// TTAG of the R2T that is answered; reserved in C2HData.
        ttag: U16,
        /// DATAO: where the data belongs in the command's data, in bytes.
        datao: U32,
        /// DATAL: length of the data, in bytes.
        datal: U32,
        /// Reserved.
        reserved: [u8; 4],
    }
}

wire! {
    /// R2T: the controller asks for data.
    R2t {
        /// The common header.
        common: Common,
        /// CCCID: identifier of the command.
        cccid: U16,
        /// TTAG: names the transfer; H2CData repeats it.
        ttag: U16,
        /// R2TO: where the data begins in the command's data, in bytes.
        r2to: U32,
        /// R2TL: length of the data, in bytes.
        r2tl: U32,
        /// Reserved.
        reserved: [u8; 4],
    }
}

/// Keeps [`Header`] to the headers of this module.
mod sealed {
    /// Implemented here only.
    pub trait Sealed {}
}

/// A header of a PDU.
pub trait Header:
    FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned + sealed::Sealed
{
    /// The header at the start of `bytes`; `None` if there are too few.
    #[must_use]
    fn view(bytes: &[u8]) -> Option<&Self> {
        Self::ref_from_prefix(bytes).ok().map(|(header, _)| header)
    }

    /// The common header, to be filled.
    fn common_mut(&mut self) -> &mut Common;
}

macro_rules! headers {
    ($($name:ident)*) => {
        $(
            impl sealed::Sealed for $name {}

            impl Header for $name {
                fn common_mut(&mut self) -> &mut Common {
                    &mut self.common
                }
            }
        )*
    };
}

headers! { IcReq IcResp TermReq CapsuleCmd CapsuleResp Data R2t }
