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
use crate::fabrics::Transport;
use crate::pdu::{U16, U32, U64};
use crate::rdma::Remote;
use crate::status::Status;

/// Opcode of all Fabrics commands.
pub const FABRICS: u8 = 0x7f;

/// Flags of a submission queue entry: data is described by an SGL, as it always is on TCP.
pub const PSDT_SGL: u8 = 0x40;

/// NSID of a command for all namespaces.
pub const ALL_NAMESPACES: u32 = 0xffff_ffff;

/// SGL descriptor: data in the capsule, at the offset in the address.
const SGL_IN_CAPSULE: u8 = 0x01;
/// SGL descriptor: data in the host's memory, by a key.
const SGL_KEYED: u8 = 0x40;
/// SGL descriptor: the same, and the host asks for its key to be taken back with the completion.
const SGL_KEYED_INVALIDATE: u8 = 0x4f;
/// SGL descriptor: data that the transport moves.
const SGL_TRANSPORT: u8 = 0x5a;

wire! {
    /// An SGL descriptor, of the kinds that TCP and RDMA have.
    Sgl {
        /// Offset in the capsule; with a key, address in the host's memory.
        address: U64,
        /// Length of the data, in bytes; with a key, the key's low byte is in bits 31:24.
        len: U32,
        /// Reserved; the other bytes of the key.
        rest: [u8; 3],
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

    /// Data in the host's memory: at most 16 MiB - 1. `invalidate`: the host asks for its key to be
    /// taken back.
    #[must_use]
    pub fn keyed(at: Remote, len: u32, invalidate: bool) -> Self {
        let [low, rest @ ..] = at.key.to_le_bytes();
        Self {
            address: U64::new(at.address),
            len: U32::new(len & 0x00ff_ffff | u32::from(low) << 24),
            rest,
            kind: if invalidate { SGL_KEYED_INVALIDATE } else { SGL_KEYED },
        }
    }

    /// The memory that a descriptor with a key names, and the length of the data.
    const fn memory(&self) -> (Remote, u32) {
        let ([.., low], [a, b, c]) = (self.len.get().to_le_bytes(), self.rest);
        let key = u32::from_le_bytes([low, a, b, c]);
        (Remote { address: self.address.get(), key }, self.len.get() & 0x00ff_ffff)
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
    /// In the host's memory.
    Keyed {
        /// Where it begins.
        at: Remote,
        /// Length in bytes; never 0, and not beyond the last address.
        len: u32,
        /// The host asks for its key to be taken back with the completion.
        invalidate: bool,
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

    /// Where the data is, given how much the capsule carries (NVMe/TCP section 3.2, NVMe over RDMA
    /// section 3.3).
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`] without an SGL or for memory beyond the last address,
    /// [`Status::SGL_TYPE`] for a descriptor that the transport does not have,
    /// [`Status::SGL_OFFSET`] for data beyond the capsule,
    /// [`Status::DATA_LENGTH`] for data in a capsule that is for the host.
    pub fn placement(&self, capsule: u32, transport: Transport) -> Result<Placement, Status> {
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
            SGL_TRANSPORT if transport == Transport::Tcp => Ok(Placement::Transport { len }),
            SGL_KEYED | SGL_KEYED_INVALIDATE if transport == Transport::Rdma => self.keyed(),
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

    /// The memory of a descriptor with a key.
    fn keyed(&self) -> Result<Placement, Status> {
        let (at, len) = self.sgl.memory();
        if at.address.checked_add(u64::from(len)).is_none() {
            return Err(Status::INVALID_FIELD.no_retry());
        }
        let invalidate = self.sgl.kind == SGL_KEYED_INVALIDATE;
        Ok(if len == 0 { Placement::None } else { Placement::Keyed { at, len, invalidate } })
    }
}
