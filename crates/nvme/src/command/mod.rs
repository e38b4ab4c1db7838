//! Commands: submission and completion queue entries, and what they mean.
//!
//! [`Io`] and [`Admin`] are commands as the layer above executes them; decoding gives the status
//! to answer with if a command is not valid. Encoding is for hosts.

mod admin;
mod io;
#[cfg(test)]
mod tests;

pub use admin::{Admin, GetLog, Identify};
pub use io::{
    Acquire, AcquireAction, CopyRange, DsmRange, Io, PersistOnPowerLoss, Range, Register,
    RegisterAction, ReleaseAction, ReservationType,
};

use crate::code::wire;
use crate::pdu::{U16, U32, U64};
use crate::status::Status;

/// Opcode of all Fabrics commands.
pub const FABRICS: u8 = 0x7f;

/// Flags of a submission queue entry: data is described by an SGL, as it always is on TCP.
pub const PSDT_SGL: u8 = 0x40;

/// NSID of a command for all namespaces.
pub const ALL_NAMESPACES: u32 = 0xffff_ffff;

/// SGL descriptor: data in the capsule, at the offset in the address.
const SGL_IN_CAPSULE: u8 = 0x01;
/// SGL descriptor: data that the transport moves.
const SGL_TRANSPORT: u8 = 0x5a;

wire! {
    /// An SGL descriptor, of the kinds that TCP has.
    Sgl {
        /// Offset in the capsule.
        address: U64,
        /// Length of the data, in bytes.
        len: U32,
        /// Reserved.
        reserved: [u8; 3],
        /// SGL identifier: type in bits 7:4, sub type in bits 3:0.
        kind: u8,
    }
}

impl Sgl {
    /// Data in the capsule, from its start.
    #[must_use]
    pub fn in_capsule(len: u32) -> Self {
        Self { len: U32::new(len), kind: SGL_IN_CAPSULE, ..Self::default() }
    }

    /// Data that is moved by data PDUs; with length 0, none.
    #[must_use]
    pub fn transport(len: u32) -> Self {
        Self { len: U32::new(len), kind: SGL_TRANSPORT, ..Self::default() }
    }
}

wire! {
    /// A submission queue entry.
    Sqe {
        /// Opcode.
        opcode: u8,
        /// FUSE in bits 1:0, PSDT in bits 7:6.
        flags: u8,
        /// Command identifier.
        cid: U16,
        /// Namespace; Fabrics commands have their type in its first byte.
        nsid: U32,
        /// Command dwords 2 and 3.
        cdw2: [U32; 2],
        /// Metadata pointer, not used over fabrics.
        mptr: U64,
        /// SGL entry 1.
        sgl: Sgl,
        /// Command dwords 10 to 15.
        cdw10: [U32; 6],
    }
}

wire! {
    /// A completion queue entry.
    Cqe {
        /// Command dwords 0 and 1: the result.
        result: U64,
        /// Submission queue head pointer.
        sqhd: U16,
        /// Submission queue identifier; reserved over fabrics.
        sqid: U16,
        /// Command identifier.
        cid: U16,
        /// Status in bits 15:1; the phase tag is not used over fabrics.
        status: U16,
    }
}

impl Cqe {
    /// How the command ended.
    #[must_use]
    pub fn completion(&self) -> Completion {
        let status = Status::from_bits(self.status.get() >> 1);
        Completion { result: self.result.get(), status }
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// Command dwords 0 (low) and 1 of the completion.
    pub result: u64,
    /// Status.
    pub status: Status,
}

impl Completion {
    /// Success, with nothing to say.
    pub const SUCCESS: Self = Self { result: 0, status: Status::SUCCESS };

    /// Success with this result.
    #[must_use]
    pub const fn with(result: u64) -> Self {
        Self { result, status: Status::SUCCESS }
    }
}

impl From<Status> for Completion {
    fn from(status: Status) -> Self {
        Self { result: 0, status }
    }
}

/// Which way the data of a command goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// There is none.
    None,
    /// To the controller.
    Write,
    /// To the host.
    Read,
}

/// The part of a fused operation that a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fuse {
    /// Not of any.
    Normal,
    /// The first command.
    First,
    /// The second command.
    Second,
}

/// Where the data of a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The command has no data.
    None,
    /// In the capsule.
    Capsule {
        /// Where it begins in the capsule's data, in bytes.
        offset: u32,
        /// Length in bytes.
        len: u32,
    },
    /// In data PDUs.
    Transport {
        /// Length in bytes; never 0.
        len: u32,
    },
}

impl Sqe {
    /// An entry with this opcode, without data.
    #[must_use]
    pub fn new(opcode: u8, nsid: u32) -> Self {
        Self {
            opcode,
            flags: PSDT_SGL,
            nsid: U32::new(nsid),
            sgl: Sgl::transport(0),
            ..Self::default()
        }
    }

    /// Command dword `10 + n`, for `n` up to 5.
    #[must_use]
    pub const fn cdw(&self, n: usize) -> u32 {
        self.cdw10[n].get()
    }

    /// Sets command dword `10 + n`, for `n` up to 5.
    pub const fn set_cdw(&mut self, n: usize, value: u32) {
        self.cdw10[n] = U32::new(value);
    }

    /// Command dwords `10 + n` (low) and the next one.
    #[must_use]
    pub const fn quad(&self, n: usize) -> u64 {
        self.cdw(n) as u64 | (self.cdw(n + 1) as u64) << 32
    }

    /// Sets command dwords `10 + n` (low) and the next one.
    pub const fn set_quad(&mut self, n: usize, value: u64) {
        self.set_cdw(n, value as u32);
        self.set_cdw(n + 1, (value >> 32) as u32);
    }

    /// The type of a Fabrics command.
    #[must_use]
    pub const fn fctype(&self) -> u8 {
        self.nsid.get() as u8
    }

    /// Which way the data goes, by the opcode. `None` for both ways, which no command has.
    #[must_use]
    pub const fn direction(&self) -> Option<Direction> {
        let code = if self.opcode == FABRICS { self.fctype() } else { self.opcode };
        match code & 3 {
            0 => Some(Direction::None),
            1 => Some(Direction::Write),
            2 => Some(Direction::Read),
            _ => None,
        }
    }

    /// The part of a fused operation; an error if the bits are reserved.
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`].
    pub const fn fuse(&self) -> Result<Fuse, Status> {
        match self.flags & 3 {
            0 => Ok(Fuse::Normal),
            1 => Ok(Fuse::First),
            2 => Ok(Fuse::Second),
            _ => Err(Status::INVALID_FIELD.no_retry()),
        }
    }

    /// Where the data is, given how much the capsule carries (NVMe/TCP section 3.2).
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`] without an SGL, [`Status::SGL_TYPE`] for a descriptor that TCP
    /// does not have, [`Status::SGL_OFFSET`] for data beyond the capsule,
    /// [`Status::DATA_LENGTH`] for data in a capsule that is for the host.
    pub fn placement(&self, capsule: u32) -> Result<Placement, Status> {
        let direction = self.direction().ok_or(Status::INVALID_OPCODE.no_retry())?;
        if direction == Direction::None {
            return Ok(Placement::None);
        }
        if self.flags >> 6 != PSDT_SGL >> 6 {
            return Err(Status::INVALID_FIELD.no_retry());
        }
        let len = self.sgl.len.get();
        match self.sgl.kind {
            // Hosts leave the descriptor zero where a command such as Set Features has no data.
            _ if len == 0 && self.sgl.address.get() == 0 => Ok(Placement::None),
            SGL_TRANSPORT => Ok(Placement::Transport { len }),
            SGL_IN_CAPSULE if direction != Direction::Write => Err(Status::DATA_LENGTH.no_retry()),
            SGL_IN_CAPSULE => {
                let end = self.sgl.address.get().checked_add(u64::from(len));
                if end.is_none_or(|end| end > u64::from(capsule)) {
                    return Err(Status::SGL_OFFSET.no_retry());
                }
                // It is below the end, which has 32 bits.
                Ok(Placement::Capsule { offset: self.sgl.address.get() as u32, len })
            }
            _ => Err(Status::SGL_TYPE.no_retry()),
        }
    }
}
