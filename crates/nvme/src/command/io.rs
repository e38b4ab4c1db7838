//! Commands of I/O queues (NVM command set specification, section 3; reservations: NVMe base
//! specification, section 7).

use super::Sqe;
use crate::code::{codes, wire};
use crate::pdu::{U16, U32, U64};
use crate::status::Status;

/// Command dword 12: Force Unit Access.
const FUA: u32 = 1 << 30;
/// Command dword 12 of Write Zeroes: Deallocate.
const DEAC: u32 = 1 << 25;
/// Command dword 12 of reads and writes: Directive Type.
const DTYPE: u32 = 0xf << 20;
/// Command dword 11 of Dataset Management: Attribute Deallocate.
const DEALLOCATE: u32 = 1 << 2;
/// Command dword 10 of reservation commands: Ignore Existing Key.
const IEKEY: u32 = 1 << 3;

codes! {
    /// Opcodes of I/O commands.
    Opcode: u8 {
        /// Flush.
        Flush = 0x00,
        /// Write.
        Write = 0x01,
        /// Read.
        Read = 0x02,
        /// Compare.
        Compare = 0x05,
        /// Write Zeroes.
        WriteZeroes = 0x08,
        /// Dataset Management.
        DatasetManagement = 0x09,
        /// Verify.
        Verify = 0x0c,
        /// Reservation Register.
        ReservationRegister = 0x0d,
        /// Reservation Report.
        ReservationReport = 0x0e,
        /// Reservation Acquire.
        ReservationAcquire = 0x11,
        /// Reservation Release.
        ReservationRelease = 0x15,
        /// Copy.
        Copy = 0x19,
    }
}

codes! {
    /// Types of reservations (NVMe base specification, section 7.5).
    ReservationType: u8 {
        /// Write exclusive.
        WriteExclusive = 1,
        /// Exclusive access.
        ExclusiveAccess = 2,
        /// Write exclusive, registrants only.
        WriteExclusiveRegistrants = 3,
        /// Exclusive access, registrants only.
        ExclusiveAccessRegistrants = 4,
        /// Write exclusive, all registrants.
        WriteExclusiveAll = 5,
        /// Exclusive access, all registrants.
        ExclusiveAccessAll = 6,
    }
}

codes! {
    /// What a Reservation Register does.
    RegisterAction: u8 {
        /// Registers a key.
        Register = 0,
        /// Unregisters.
        Unregister = 1,
        /// Replaces the key.
        Replace = 2,
    }
}

codes! {
    /// What a Reservation Acquire does.
    AcquireAction: u8 {
        /// Acquires the reservation.
        Acquire = 0,
        /// Preempts registrations, or the reservation.
        Preempt = 1,
        /// Preempts, and aborts commands of who is preempted.
        PreemptAndAbort = 2,
    }
}

codes! {
    /// What a Reservation Release does.
    ReleaseAction: u8 {
        /// Releases the reservation.
        Release = 0,
        /// Clears reservation and registrations.
        Clear = 1,
    }
}

codes! {
    /// CPTPL: what becomes of Persist Through Power Loss.
    PersistOnPowerLoss: u8 {
        /// It stays as it is.
        Unchanged = 0,
        /// Reservations are not kept through power loss.
        Off = 2,
        /// Reservations are kept through power loss.
        On = 3,
    }
}

/// Logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first block.
    pub lba: u64,
    /// How many, at least 1 and at most 65,536.
    pub blocks: u32,
}

impl Range {
    fn decode(sqe: &Sqe) -> Self {
        Self { lba: sqe.quad(0), blocks: (sqe.cdw(2) & 0xffff) + 1 }
    }

    fn encode(self, sqe: &mut Sqe) {
        sqe.set_quad(0, self.lba);
        sqe.set_cdw(2, self.blocks.wrapping_sub(1) & 0xffff);
    }
}

wire! {
    /// A range of Dataset Management; the command's data is a list of them.
    DsmRange {
        /// Context attributes: hints.
        attributes: U32,
        /// Length in logical blocks, may be 0.
        blocks: U32,
        /// The first block.
        lba: U64,
    }
}

wire! {
    /// A source range of Copy, descriptor format 0; the command's data is a list of them.
    CopyRange {
        /// Reserved.
        reserved: [u8; 8],
        /// The first block.
        lba: U64,
        /// Length in logical blocks, 0's based.
        blocks: U16,
        /// Reserved, and what protection information needs.
        rest: [u8; 14],
    }
}

wire! {
    /// The data of a Reservation Register.
    Register {
        /// CRKEY: the key that the host is registered with.
        current: U64,
        /// NRKEY: the key to register.
        new: U64,
    }
}

wire! {
    /// The data of a Reservation Acquire. That of a Reservation Release is its first field.
    Acquire {
        /// CRKEY: the key that the host is registered with.
        current: U64,
        /// PRKEY: the key to preempt.
        preempted: U64,
    }
}

/// An I/O command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// Everything written so far is to be stable.
    Flush,
    /// Writes.
    Write {
        /// Where.
        range: Range,
        /// The data is to be stable when the command completes.
        fua: bool,
    },
    /// Reads.
    Read {
        /// Where.
        range: Range,
        /// What is read is to be stable.
        fua: bool,
    },
    /// Compares the data with what is there.
    Compare {
        /// Where.
        range: Range,
    },
    /// Writes zeroes.
    WriteZeroes {
        /// Where.
        range: Range,
        /// The zeroes are to be stable when the command completes.
        fua: bool,
        /// The blocks may be deallocated, if they read as zeroes then.
        deallocate: bool,
    },
    /// Reads, and gives no data.
    Verify {
        /// Where.
        range: Range,
        /// What was written there is to be stable first.
        fua: bool,
    },
    /// Says what becomes of ranges of blocks.
    DatasetManagement {
        /// How many [`DsmRange`]s the data has, at least 1.
        ranges: u16,
        /// They may be deallocated; else there are only hints.
        deallocate: bool,
    },
    /// Copies ranges of blocks.
    Copy {
        /// Where to.
        lba: u64,
        /// How many [`CopyRange`]s the data has, at least 1.
        ranges: u16,
        /// The copy is to be stable when the command completes.
        fua: bool,
    },
    /// Registers with the reservations of a namespace; the data is a [`Register`].
    ReservationRegister {
        /// What to do.
        action: RegisterAction,
        /// CRKEY does not matter.
        ignore_key: bool,
        /// What becomes of Persist Through Power Loss.
        persist: PersistOnPowerLoss,
    },
    /// Acquires a reservation; the data is an [`Acquire`].
    ReservationAcquire {
        /// What to do.
        action: AcquireAction,
        /// Type of the reservation.
        kind: ReservationType,
    },
    /// Releases a reservation; the data is the key, 8 bytes.
    ReservationRelease {
        /// What to do.
        action: ReleaseAction,
        /// Type of the reservation; `None` if it is none, which only [`ReleaseAction::Clear`] may have.
        kind: Option<ReservationType>,
    },
    /// Asks for the state of the reservations.
    ReservationReport {
        /// How much is wanted, in bytes.
        len: u32,
        /// The extended data structure, with host identifiers of 128 bits, is wanted.
        extended: bool,
    },
}

impl Io {
    /// The command of a submission queue entry.
    ///
    /// # Errors
    /// [`Status::INVALID_OPCODE`], or [`Status::INVALID_FIELD`] if a field has a reserved value.
    pub fn decode(sqe: &Sqe) -> Result<Self, Status> {
        let opcode = Opcode::from_code(sqe.opcode).ok_or(Status::INVALID_OPCODE.no_retry())?;
        let fua = sqe.cdw(2) & FUA != 0;
        let range = Range::decode(sqe);
        Ok(match opcode {
            Opcode::Flush => Self::Flush,
            Opcode::Write | Opcode::Read if sqe.cdw(2) & DTYPE != 0 => return Err(invalid()),
            Opcode::Write => Self::Write { range, fua },
            Opcode::Read => Self::Read { range, fua },
            Opcode::Compare => Self::Compare { range },
            Opcode::WriteZeroes => {
                Self::WriteZeroes { range, fua, deallocate: sqe.cdw(2) & DEAC != 0 }
            }
            Opcode::Verify => Self::Verify { range, fua },
            Opcode::DatasetManagement => Self::DatasetManagement {
                ranges: (sqe.cdw(0) & 0xff) as u16 + 1,
                deallocate: sqe.cdw(1) & DEALLOCATE != 0,
            },
            // Other formats of the source ranges are not supported (OCFS).
            Opcode::Copy if sqe.cdw(2) & 0xf00 != 0 => return Err(invalid()),
            Opcode::Copy => {
                Self::Copy { lba: sqe.quad(0), ranges: (sqe.cdw(2) & 0xff) as u16 + 1, fua }
            }
            Opcode::ReservationReport => Self::ReservationReport {
                len: sqe.cdw(0).checked_add(1).and_then(|n| n.checked_mul(4)).ok_or(invalid())?,
                extended: sqe.cdw(1) & 1 != 0,
            },
            Opcode::ReservationRegister
            | Opcode::ReservationAcquire
            | Opcode::ReservationRelease => Self::decode_reservation(opcode, sqe.cdw(0))?,
        })
    }

    fn decode_reservation(opcode: Opcode, cdw10: u32) -> Result<Self, Status> {
        let action = (cdw10 & 7) as u8;
        let kind = ReservationType::from_code((cdw10 >> 8) as u8);
        let ignore_key = cdw10 & IEKEY != 0;
        let persist = PersistOnPowerLoss::from_code((cdw10 >> 30) as u8).ok_or(invalid())?;
        if opcode == Opcode::ReservationRegister {
            let action = RegisterAction::from_code(action).ok_or(invalid())?;
            return Ok(Self::ReservationRegister { action, ignore_key, persist });
        }
        if ignore_key {
            return Err(invalid());
        }
        if opcode == Opcode::ReservationAcquire {
            let action = AcquireAction::from_code(action).ok_or(invalid())?;
            return Ok(Self::ReservationAcquire { action, kind: kind.ok_or(invalid())? });
        }
        match (ReleaseAction::from_code(action).ok_or(invalid())?, kind) {
            (ReleaseAction::Release, None) => Err(invalid()),
            (action, kind) => Ok(Self::ReservationRelease { action, kind }),
        }
    }

    /// A submission queue entry with this command; its data and its identifier are not set.
    #[must_use]
    pub fn encode(&self, nsid: u32) -> Sqe {
        let mut sqe = Sqe::new(self.opcode().code(), nsid);
        let flag = |set: bool, bit: u32| if set { bit } else { 0 };
        match *self {
            Self::Flush => {}
            Self::Write { range, fua }
            | Self::Read { range, fua }
            | Self::Verify { range, fua } => {
                range.encode(&mut sqe);
                sqe.set_cdw(2, sqe.cdw(2) | flag(fua, FUA));
            }
            Self::Compare { range } => range.encode(&mut sqe),
            Self::WriteZeroes { range, fua, deallocate } => {
                range.encode(&mut sqe);
                sqe.set_cdw(2, sqe.cdw(2) | flag(fua, FUA) | flag(deallocate, DEAC));
            }
            Self::DatasetManagement { ranges, deallocate } => {
                sqe.set_cdw(0, u32::from(ranges.wrapping_sub(1) & 0xff));
                sqe.set_cdw(1, flag(deallocate, DEALLOCATE));
            }
            Self::Copy { lba, ranges, fua } => {
                sqe.set_quad(0, lba);
                sqe.set_cdw(2, u32::from(ranges.wrapping_sub(1) & 0xff) | flag(fua, FUA));
            }
            Self::ReservationRegister { action, ignore_key, persist } => {
                let persist = u32::from(persist.code()) << 30;
                sqe.set_cdw(0, u32::from(action.code()) | flag(ignore_key, IEKEY) | persist);
            }
            Self::ReservationAcquire { action, kind } => {
                sqe.set_cdw(0, u32::from(action.code()) | u32::from(kind.code()) << 8);
            }
            Self::ReservationRelease { action, kind } => {
                let kind = kind.map_or(0, ReservationType::code);
                sqe.set_cdw(0, u32::from(action.code()) | u32::from(kind) << 8);
            }
            Self::ReservationReport { len, extended } => {
                sqe.set_cdw(0, (len / 4).wrapping_sub(1));
                sqe.set_cdw(1, flag(extended, 1));
            }
        }
        sqe
    }

    const fn opcode(&self) -> Opcode {
        match self {
            Self::Flush => Opcode::Flush,
            Self::Write { .. } => Opcode::Write,
            Self::Read { .. } => Opcode::Read,
            Self::Compare { .. } => Opcode::Compare,
            Self::WriteZeroes { .. } => Opcode::WriteZeroes,
            Self::Verify { .. } => Opcode::Verify,
            Self::DatasetManagement { .. } => Opcode::DatasetManagement,
            Self::Copy { .. } => Opcode::Copy,
            Self::ReservationRegister { .. } => Opcode::ReservationRegister,
            Self::ReservationAcquire { .. } => Opcode::ReservationAcquire,
            Self::ReservationRelease { .. } => Opcode::ReservationRelease,
            Self::ReservationReport { .. } => Opcode::ReservationReport,
        }
    }
}

fn invalid() -> Status {
    Status::INVALID_FIELD.no_retry()
}
