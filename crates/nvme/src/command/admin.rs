//! Commands of the admin queue (NVMe base specification, section 5).

use super::Sqe;
use crate::code::codes;
use crate::status::Status;

/// Command dword 10 of Get Log Page: Retain Asynchronous Event.
const RAE: u32 = 1 << 15;
/// Command dword 14 of Get Log Page: the offset is an index.
const OFFSET_TYPE: u32 = 1 << 23;
/// Command dword 10 of Set Features: Save.
const SAVE: u32 = 1 << 31;

codes! {
    /// Opcodes of admin commands.
    Opcode: u8 {
        /// Get Log Page.
        GetLogPage = 0x02,
        /// Identify.
        Identify = 0x06,
        /// Abort.
        Abort = 0x08,
        /// Set Features.
        SetFeatures = 0x09,
        /// Get Features.
        GetFeatures = 0x0a,
        /// Asynchronous Event Request.
        AsyncEventRequest = 0x0c,
        /// Keep Alive.
        KeepAlive = 0x18,
    }
}

/// A Get Log Page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLog {
    /// LID: the log page.
    pub lid: u8,
    /// LSP: what the page makes of it.
    pub specific: u8,
    /// RAE: the event that the page belongs to stays masked.
    pub retain: bool,
    /// How much is wanted, in bytes: a multiple of 4, up to 16 GiB.
    pub len: u64,
    /// Where to begin, in bytes: a multiple of 4.
    pub offset: u64,
    /// CSI: the command set, for pages that have one.
    pub csi: u8,
}

/// An Identify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identify {
    /// CNS: the data structure.
    pub cns: u8,
    /// CNTID: the controller, for structures that have one.
    pub cntid: u16,
    /// CSI: the command set, for structures that have one.
    pub csi: u8,
}

/// A command of the admin queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admin {
    /// Reads a log page.
    GetLogPage(GetLog),
    /// Reads a data structure.
    Identify(Identify),
    /// Aborts a command.
    Abort {
        /// Its queue.
        sqid: u16,
        /// Its identifier.
        cid: u16,
    },
    /// Sets a feature.
    SetFeatures {
        /// Feature identifier.
        fid: u8,
        /// The value is to be kept over resets.
        save: bool,
        /// Command dwords 11 and 12: the value.
        value: [u32; 2],
    },
    /// Reads a feature.
    GetFeatures {
        /// Feature identifier.
        fid: u8,
        /// SEL: 0 current, 1 default, 2 saved, 3 supported capabilities.
        select: u8,
        /// Command dword 11.
        value: u32,
    },
    /// To be answered when there is an event.
    AsyncEventRequest,
    /// The host is alive.
    KeepAlive,
}

impl Admin {
    /// The command of a submission queue entry.
    ///
    /// # Errors
    /// [`Status::INVALID_OPCODE`], or [`Status::INVALID_FIELD`] if a field has a reserved value.
    pub fn decode(sqe: &Sqe) -> Result<Self, Status> {
        let opcode = Opcode::from_code(sqe.opcode).ok_or(Status::INVALID_OPCODE.no_retry())?;
        let (cdw10, cdw11) = (sqe.cdw(0), sqe.cdw(1));
        Ok(match opcode {
            Opcode::GetLogPage => Self::GetLogPage(GetLog::decode(sqe)?),
            Opcode::Identify => Self::Identify(Identify {
                cns: cdw10 as u8,
                cntid: (cdw10 >> 16) as u16,
                csi: (cdw11 >> 24) as u8,
            }),
            Opcode::Abort => Self::Abort { sqid: cdw10 as u16, cid: (cdw10 >> 16) as u16 },
            Opcode::SetFeatures => Self::SetFeatures {
                fid: cdw10 as u8,
                save: cdw10 & SAVE != 0,
                value: [cdw11, sqe.cdw(2)],
            },
            Opcode::GetFeatures => {
                Self::GetFeatures { fid: cdw10 as u8, select: (cdw10 >> 8) as u8 & 7, value: cdw11 }
            }
            Opcode::AsyncEventRequest => Self::AsyncEventRequest,
            Opcode::KeepAlive => Self::KeepAlive,
        })
    }

    /// A submission queue entry with this command; its data and its identifier are not set.
    #[must_use]
    pub fn encode(&self, nsid: u32) -> Sqe {
        let sqe = |opcode: Opcode, cdw10: u32, cdw11: u32| {
            let mut sqe = Sqe::new(opcode.code(), nsid);
            sqe.set_cdw(0, cdw10);
            sqe.set_cdw(1, cdw11);
            sqe
        };
        match *self {
            Self::GetLogPage(log) => log.encode(nsid),
            Self::Identify(Identify { cns, cntid, csi }) => {
                sqe(Opcode::Identify, u32::from(cns) | u32::from(cntid) << 16, u32::from(csi) << 24)
            }
            Self::Abort { sqid, cid } => {
                sqe(Opcode::Abort, u32::from(sqid) | u32::from(cid) << 16, 0)
            }
            Self::SetFeatures { fid, save, value } => {
                let save = if save { SAVE } else { 0 };
                let mut sqe = sqe(Opcode::SetFeatures, u32::from(fid) | save, value[0]);
                sqe.set_cdw(2, value[1]);
                sqe
            }
            Self::GetFeatures { fid, select, value } => {
                let select = u32::from(select & 7) << 8;
                sqe(Opcode::GetFeatures, u32::from(fid) | select, value)
            }
            Self::AsyncEventRequest => sqe(Opcode::AsyncEventRequest, 0, 0),
            Self::KeepAlive => sqe(Opcode::KeepAlive, 0, 0),
        }
    }
}

impl GetLog {
    /// The whole page `lid`, up to `len` bytes, without an event being kept masked.
    #[must_use]
    pub const fn new(lid: u8, len: u64) -> Self {
        Self { lid, specific: 0, retain: false, len, offset: 0, csi: 0 }
    }

    fn decode(sqe: &Sqe) -> Result<Self, Status> {
        let (cdw10, cdw11) = (sqe.cdw(0), sqe.cdw(1));
        let dwords = u64::from(cdw10 >> 16) | u64::from(cdw11 & 0xffff) << 16;
        let offset = sqe.quad(2);
        if offset % 4 != 0 || sqe.cdw(4) & OFFSET_TYPE != 0 {
            return Err(Status::INVALID_FIELD.no_retry());
        }
        Ok(Self {
            lid: cdw10 as u8,
            specific: (cdw10 >> 8) as u8 & 0x7f,
            retain: cdw10 & RAE != 0,
            len: (dwords + 1) * 4,
            offset,
            csi: (sqe.cdw(4) >> 24) as u8,
        })
    }

    fn encode(self, nsid: u32) -> Sqe {
        let mut sqe = Sqe::new(Opcode::GetLogPage.code(), nsid);
        let dwords = (self.len / 4).wrapping_sub(1) as u32;
        let retain = if self.retain { RAE } else { 0 };
        let specific = u32::from(self.specific & 0x7f) << 8;
        sqe.set_cdw(0, u32::from(self.lid) | specific | retain | dwords << 16);
        sqe.set_cdw(1, dwords >> 16);
        sqe.set_quad(2, self.offset);
        sqe.set_cdw(4, u32::from(self.csi) << 24);
        sqe
    }
}
