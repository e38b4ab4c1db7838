//! The parameter list of EXTENDED COPY (SPC-5 5.18.7), and the segments that it asks for.

use alloc::vec::Vec;

use lunet_block::ByteRange;

use super::descriptor::{Address, CSCD, Cscd, Length, Party, Segment, UnitName};
use super::limits::{GRANULARITY, MAX_CSCDS, MAX_DESCRIPTORS, MAX_SEGMENT_BYTES, MAX_SEGMENTS};
use super::{action, be16, be32};
use crate::action::status;
use crate::opcodes::Needs;
use crate::sense::{Code, CopyFault, Forwarded, Key, Sense};
use crate::unit::Unit;

/// An EXTENDED COPY whose parameter list is sound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extended {
    /// The list identifier that the initiator asks with; `None` if it will not ask (LIST ID USAGE 11b).
    pub list: Option<u32>,
    /// The service action: which of the two parameter lists it was.
    pub action: u8,
    /// The command is answered before anything is copied (IMMED).
    pub immediate: bool,
    /// Where the first CSCD descriptor stands in the parameter list.
    cscds_at: u16,
    cscds: Vec<Cscd>,
    segments: Vec<Segment>,
}

/// One of the two that a segment names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The copy source.
    Source,
    /// The copy destination.
    Destination,
}

impl Side {
    /// What a unit in its state would answer to the reads or writes of a copy.
    ///
    /// # Errors
    /// That of a unit that is not ready, or takes no writes.
    pub fn served_by(self, unit: &Unit) -> Result<(), Sense> {
        unit.serve(Needs::READY.union(Needs::ACTIVE))?;
        if self == Self::Destination && unit.read_only() {
            return Err(Sense::new(Key::DataProtect, Code::WRITE_PROTECTED));
        }
        Ok(())
    }
}

/// A segment whose parties are found. Both ranges have the same length, which is not 0; they are whole
/// blocks and lie on their volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<U> {
    /// Who it is read from.
    pub source: U,
    /// Who it is written to.
    pub destination: U,
    /// What is read.
    pub from: ByteRange,
    /// What is written.
    pub to: ByteRange,
}

/// The parts of a parameter list, after its header.
struct Layout {
    header: usize,
    cscds: usize,
    segments: usize,
    inline: usize,
}

/// Decodes the parameter list of either form. Everything that can be seen without asking the devices is
/// checked before the first segment is looked at (SPC-5 5.18.7.3).
pub(crate) fn parse(long: bool, list: &[u8]) -> Result<Extended, Sense> {
    let too_short = Sense::illegal(Code::PARAMETER_LIST_LENGTH_ERROR);
    let (mut copy, layout) = if long { header_lid4(list)? } else { header_lid1(list)? };
    if layout.inline > 0 {
        return Err(Sense::illegal(Code::INLINE_DATA_LENGTH_EXCEEDED));
    }
    if layout.cscds + layout.segments > MAX_DESCRIPTORS {
        return Err(too_short);
    }
    let segments_at = layout.header + layout.cscds;
    let end = segments_at + layout.segments;
    if end > list.len() {
        return Err(too_short);
    }
    if layout.cscds > MAX_CSCDS * CSCD {
        return Err(Sense::illegal(Code::TOO_MANY_TARGET_DESCRIPTORS));
    }
    if layout.cscds % CSCD != 0 {
        return Err(Sense::invalid_parameter(if long { 42 } else { 2 }));
    }
    copy.cscds_at = layout.header as u16;
    for at in (layout.header..segments_at).step_by(CSCD) {
        copy.cscds.push(Cscd::parse(list, at)?);
    }
    let mut at = segments_at;
    while at < end {
        if copy.segments.len() == MAX_SEGMENTS {
            return Err(Sense::illegal(Code::TOO_MANY_SEGMENT_DESCRIPTORS));
        }
        let (segment, next) = Segment::parse(list, at, end)?;
        copy.segments.push(segment);
        at = next;
    }
    Ok(copy)
}

fn header_lid1(list: &[u8]) -> Result<(Extended, Layout), Sense> {
    if list.len() < 16 {
        return Err(Sense::illegal(Code::PARAMETER_LIST_LENGTH_ERROR));
    }
    let layout = Layout {
        header: 16,
        cscds: usize::from(be16(list, 2)),
        segments: be32(list, 8) as usize,
        inline: be32(list, 12) as usize,
    };
    let named = named(list[1], u32::from(list[0]), 0)?;
    Ok((Extended::new(named, action::EXTENDED_COPY_LID1, false), layout))
}

fn header_lid4(list: &[u8]) -> Result<(Extended, Layout), Sense> {
    if list.len() < 48 {
        return Err(Sense::illegal(Code::PARAMETER_LIST_LENGTH_ERROR));
    }
    // PARAMETER LIST FORMAT, HEADER CSCD DESCRIPTOR LIST LENGTH and TYPE CODE are as they are.
    for (at, ok) in [(0, list[0] == 1), (2, be16(list, 2) == 0x20), (16, list[16] == 0xFF)] {
        if !ok {
            return Err(Sense::invalid_parameter(at));
        }
    }
    let immediate = list[15] & 0x01 != 0;
    let named = named(list[1], be32(list, 20), 20)?;
    // Nobody could ask for the outcome; and GOOD with sense data (G_SENSE) comes at the end or not
    // at all. SPC-5 6.4.2 says INVALID FIELD IN CDB.
    if immediate && (named.is_none() || list[15] & 0x02 != 0) {
        return Err(Sense::illegal(Code::INVALID_FIELD_IN_CDB));
    }
    let layout = Layout {
        header: 48,
        cscds: usize::from(be16(list, 42)),
        segments: usize::from(be16(list, 44)),
        inline: usize::from(be16(list, 46)),
    };
    Ok((Extended::new(named, action::EXTENDED_COPY_LID4, immediate), layout))
}

/// LIST ID USAGE (SPC-5 6.4.3.2). STR and PRIORITY are hints that change nothing here.
fn named(flags: u8, list: u32, list_at: u16) -> Result<Option<u32>, Sense> {
    match flags >> 3 & 3 {
        0b00 | 0b10 => Ok(Some(list)),
        0b11 if list == 0 => Ok(None),
        0b11 => Err(Sense::invalid_parameter(list_at)),
        _ => Err(Sense::invalid_parameter_bit(1, 4)),
    }
}

impl Extended {
    fn new(list: Option<u32>, action: u8, immediate: bool) -> Self {
        let (cscds, segments) = (Vec::new(), Vec::new());
        Self { list, action, immediate, cscds_at: 0, cscds, segments }
    }

    /// How many segments there are.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Looks at one segment. `find` gives the logical unit that a designator names, or the one that the
    /// command was sent to for `None`, if this initiator may reach it. `None` if the segment moves
    /// nothing.
    ///
    /// # Errors
    /// COPY ABORTED, as SPC-5 5.18.7.4 has it.
    pub fn step<'a, U>(
        &self,
        index: usize,
        find: impl Fn(Option<&UnitName>) -> Option<(U, &'a Unit)>,
    ) -> Result<Option<Step<U>>, Sense> {
        let segment = &self.segments[index];
        let (source, reads) = self.party(index, segment.source, segment.at + 4, &find)?;
        let (destination, writes) =
            self.party(index, segment.destination, segment.at + 6, &find)?;
        let (from_block, to_block) = (reads.caps.block_size, writes.caps.block_size);
        let len = match segment.length {
            Length::SourceBlocks(blocks) => u64::from(blocks) * u64::from(from_block),
            Length::DestinationBlocks(blocks) => u64::from(blocks) * u64::from(to_block),
            Length::Bytes(bytes) => u64::from(bytes),
        };
        if len > u64::from(MAX_SEGMENT_BYTES) {
            return Err(self.fault(index, Code::INVALID_FIELD_IN_PARAMETER_LIST, segment.at + 8));
        }
        if len % GRANULARITY != 0 {
            return Err(self.fault(index, Code::COPY_SEGMENT_GRANULARITY, segment.at + 8));
        }
        self.ready(index, Side::Source, reads)?;
        self.ready(index, Side::Destination, writes)?;
        let from = self.range(index, segment.from, len, reads)?;
        let to = self.range(index, segment.to, len, writes)?;
        Ok((len > 0).then_some(Step { source, destination, from, to }))
    }

    /// The unit behind one of the two identifiers; `at` is where it stands.
    fn party<'a, U>(
        &self,
        index: usize,
        party: Party,
        at: u16,
        find: impl Fn(Option<&UnitName>) -> Option<(U, &'a Unit)>,
    ) -> Result<(U, &'a Unit), Sense> {
        let Party::Cscd(number) = party else {
            return find(None).ok_or(self.fault(index, Code::COPY_TARGET_NOT_REACHABLE, at));
        };
        let at_cscd = self.cscd_at(number);
        let unreachable = self.fault(index, Code::UNREACHABLE_COPY_TARGET, at);
        let cscd = self.cscds.get(usize::from(number)).ok_or(unreachable)?;
        if cscd.null {
            return Err(self.fault(index, Code::UNREACHABLE_COPY_TARGET, at_cscd));
        }
        if cscd.device_type != 0 {
            return Err(self.fault(index, Code::INCORRECT_COPY_TARGET_TYPE, at_cscd));
        }
        let found = cscd.designator.as_ref().and_then(|designator| find(Some(designator)));
        let (name, unit) =
            found.ok_or(self.fault(index, Code::COPY_TARGET_NOT_REACHABLE, at_cscd))?;
        if cscd.block_size != 0 && cscd.block_size != unit.caps.block_size {
            let code = Code::INVALID_FIELD_IN_PARAMETER_LIST;
            return Err(self.fault(index, code, at_cscd + 29));
        }
        Ok((name, unit))
    }

    /// Where a CSCD descriptor stands.
    fn cscd_at(&self, number: u16) -> u16 {
        self.cscds_at + number.min(MAX_CSCDS as u16) * CSCD as u16
    }

    /// What a unit would answer to a READ or WRITE in its state.
    fn ready(&self, index: usize, side: Side, unit: &Unit) -> Result<(), Sense> {
        let served = side.served_by(unit);
        served.map_err(|sense| self.failure(index, side, status::CHECK_CONDITION, Some(sense)))
    }

    /// An address as a range of bytes: whole blocks, on the volume.
    fn range(
        &self,
        index: usize,
        address: Address,
        len: u64,
        unit: &Unit,
    ) -> Result<ByteRange, Sense> {
        let block = u64::from(unit.caps.block_size);
        // There is no PAD and no CAT: a part of a block can neither be filled up nor kept.
        if len % block != 0 || u64::from(address.offset) % block != 0 {
            return Err(self.fault(index, Code::UNEXPECTED_INEXACT_SEGMENT, address.at));
        }
        let start = address.lba.checked_add(u64::from(address.offset) / block);
        let end = start.and_then(|start| start.checked_add(len / block));
        match (start, end) {
            (Some(start), Some(end)) if end <= unit.caps.blocks => {
                Ok(ByteRange::new(start * block, len))
            }
            _ => Err(self.fault(index, Code::NO_ADDITIONAL_SENSE, address.at)),
        }
    }

    /// COPY ABORTED at a segment, for a byte of the parameter list.
    fn fault(&self, index: usize, code: Code, at: u16) -> Sense {
        let copy = Some(CopyFault { segment: index as u16, forwarded: None });
        Sense { key: Key::CopyAborted, copy, ..Sense::parameter(code, at) }
    }

    /// COPY ABORTED because one of the parties refused or failed: with its status and sense data.
    pub fn failure(&self, index: usize, side: Side, status: u8, sense: Option<Sense>) -> Sense {
        let segment = self.segments[index];
        let party = match side {
            Side::Source => segment.source,
            Side::Destination => segment.destination,
        };
        let at = match party {
            Party::Here => segment.at,
            Party::Cscd(number) => self.cscd_at(number),
        };
        let (key, code) = sense
            .map_or((Key::NoSense, Code::NO_ADDITIONAL_SENSE), |sense| (sense.key, sense.code));
        let source = side == Side::Source;
        let forwarded = Some(Forwarded { source, status, key, code });
        let copy = Some(CopyFault { segment: index as u16, forwarded });
        let sense = Sense::parameter(Code::THIRD_PARTY_DEVICE_FAILURE, at);
        Sense { key: Key::CopyAborted, copy, ..sense }
    }
}
