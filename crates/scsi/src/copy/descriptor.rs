//! The descriptors of EXTENDED COPY: who takes part, and what goes where (SPC-5 6.6).

use crate::copy::{be16, be32, be64};
use crate::sense::{Code, Sense};
use crate::unit::Identity;
use crate::vpd;

/// Every CSCD descriptor that lunet knows is as long as this.
pub(super) const CSCD: usize = 32;
/// Identification Descriptor CSCD descriptor (SPC-5 6.6.5.6): the only kind.
pub(super) const IDENTIFICATION: u8 = 0xE4;
/// Block to block (SPC-5 6.6.6.3).
pub(super) const BLOCK_TO_BLOCK: u8 = 0x02;
/// Block to block with offsets in bytes (SPC-5 6.6.6.11).
pub(super) const BLOCK_OFFSET: u8 = 0x0A;
/// The CSCD descriptor identifier of the logical unit that the command was sent to.
const HERE: u16 = 0xFFFF;

/// A name of a logical unit, as VPD page 83h reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitName {
    kind: u8,
    len: u8,
    bytes: [u8; Self::MAX],
}

impl UnitName {
    const MAX: usize = 20;

    /// True if it names the logical unit of this identity.
    pub fn names(&self, identity: &Identity) -> bool {
        vpd::designates(identity, self.kind, &self.bytes[..usize::from(self.len)])
    }
}

/// A copy source or copy destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cscd {
    /// NUL: no device at all.
    pub null: bool,
    /// PERIPHERAL DEVICE TYPE.
    pub device_type: u8,
    /// `None` if the designator does not name a logical unit.
    pub designator: Option<UnitName>,
    /// DISK BLOCK LENGTH; 0 is whatever the device has.
    pub block_size: u32,
}

impl Cscd {
    /// Decodes the descriptor at `at` of the parameter list.
    ///
    /// # Errors
    /// UNSUPPORTED TARGET DESCRIPTOR TYPE CODE; INVALID FIELD IN PARAMETER LIST.
    pub fn parse(list: &[u8], at: usize) -> Result<Self, Sense> {
        let d = &list[at..at + CSCD];
        if d[0] != IDENTIFICATION {
            return Err(Sense::parameter(Code::UNSUPPORTED_TARGET_DESCRIPTOR, at as u16));
        }
        // LU ID TYPE says how to read a LOGICAL UNIT IDENTIFIER, which this kind does not have.
        let len = d[7];
        if usize::from(len) > UnitName::MAX {
            return Err(Sense::invalid_parameter(at as u16 + 7));
        }
        let mut bytes = [0; UnitName::MAX];
        bytes.copy_from_slice(&d[8..28]);
        // ASSOCIATION 00b: the designator is the logical unit's.
        let of_unit = d[5] & 0x30 == 0;
        let designator = of_unit.then_some(UnitName { kind: d[5] & 0x0F, len, bytes });
        Ok(Self {
            null: d[1] & 0x20 != 0,
            device_type: d[1] & 0x1F,
            designator,
            block_size: be32(d, 28) & 0xFF_FFFF,
        })
    }
}

/// Who a segment descriptor means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Party {
    /// The logical unit that the command was sent to.
    Here,
    /// The CSCD descriptor with this number.
    Cscd(u16),
}

impl Party {
    const fn new(id: u16) -> Self {
        if id == HERE { Self::Here } else { Self::Cscd(id) }
    }
}

/// How long a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    /// In blocks of the source (DC = 0).
    SourceBlocks(u16),
    /// In blocks of the destination (DC = 1).
    DestinationBlocks(u16),
    /// In bytes.
    Bytes(u32),
}

/// Where a segment begins: a block, and an offset into it in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub lba: u64,
    pub offset: u16,
    /// Where in the parameter list the address stands.
    pub at: u16,
}

/// What to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// Where the descriptor stands in the parameter list.
    pub at: u16,
    pub source: Party,
    pub destination: Party,
    pub length: Length,
    pub from: Address,
    pub to: Address,
}

impl Segment {
    /// Decodes the descriptor at `at` of the parameter list, which ends at `end`; also gives the position of
    /// the next one.
    ///
    /// # Errors
    /// UNSUPPORTED SEGMENT DESCRIPTOR TYPE CODE; INVALID FIELD IN PARAMETER LIST if it does not have
    /// the length that its type says.
    pub fn parse(list: &[u8], at: usize, end: usize) -> Result<(Self, usize), Sense> {
        let wrong_length = Sense::invalid_parameter(at as u16 + 2);
        let len = match list[at] {
            BLOCK_TO_BLOCK => 28,
            BLOCK_OFFSET => 32,
            _ => return Err(Sense::parameter(Code::UNSUPPORTED_SEGMENT_DESCRIPTOR, at as u16)),
        };
        if end - at < len || usize::from(be16(list, at + 2)) != len - 4 {
            return Err(wrong_length);
        }
        let d = &list[at..at + len];
        let address = |lba: usize, offset: u16| {
            let at = (at + lba) as u16;
            Address { lba: be64(d, lba), offset, at }
        };
        let (length, from, to) = if d[0] == BLOCK_OFFSET {
            (Length::Bytes(be32(d, 8)), address(12, be16(d, 28)), address(20, be16(d, 30)))
        } else {
            let blocks = be16(d, 10);
            let counts_destination = d[1] & 0x02 != 0;
            let length = if counts_destination {
                Length::DestinationBlocks(blocks)
            } else {
                Length::SourceBlocks(blocks)
            };
            (length, address(12, 0), address(20, 0))
        };
        let source = Party::new(be16(d, 4));
        let destination = Party::new(be16(d, 6));
        Ok((Self { at: at as u16, source, destination, length, from, to }, at + len))
    }
}
