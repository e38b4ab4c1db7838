//! Logical block provisioning (SBC-4 4.7): UNMAP (SBC-4 5.30), and what thin volumes say of their space.

use alloc::vec;
use alloc::vec::Vec;

use lunet_block::BlockRange;

use crate::action::{Action, ParameterKind, Reply};
use crate::execute::{Cx, Outcome};
use crate::sense::{Code, Sense};
use crate::unit::Unit;

/// The size of a threshold set in bytes: what space is counted in.
const SET: u64 = 1 << 20;

/// Resources that are counted: the parameter codes of the log page, and THRESHOLD RESOURCE.
pub(crate) const AVAILABLE: u16 = 0x01;
pub(crate) const USED: u16 = 0x02;

/// Where the threshold descriptor stands in the Logical Block Provisioning mode page.
pub(crate) const THRESHOLD_DESCRIPTOR: u16 = 16;

/// The volume is thinly provisioned.
const THIN: u8 = 0x02;

/// A number of threshold sets, as wide as the fields for it.
fn sets(bytes: u64) -> u32 {
    u32::try_from(bytes / SET).unwrap_or(u32::MAX)
}

/// THRESHOLD COUNT: with fewer sets available than this, the threshold is reached. `None` without
/// threshold, or while it is not known what it is a part of.
pub(crate) fn threshold_count(unit: &Unit) -> Option<u32> {
    let space = unit.state.space()?;
    unit.threshold.map(|threshold| sets(threshold.least_available(&space)))
}

/// The body of VPD page B2h, Logical Block Provisioning (SBC-4 6.6.7).
pub(crate) fn vpd(unit: &Unit) -> Vec<u8> {
    if !unit.is_thin() {
        return vec![0; 4];
    }
    let exponent = (SET / u64::from(unit.caps.block_size)).ilog2() as u8;
    // LBPRZ 001b: unmapped blocks read as zeroes; 000b: as anything. ANC_SUP and DP are 0.
    let zeroes = u8::from(unit.caps.unmap_zeroes) << 2;
    // LBPU, LBPWS, LBPWS10.
    vec![exponent, 0x80 | 0x40 | 0x20 | zeroes, THIN, 0]
}

/// The parameters of log page 0Ch, Logical Block Provisioning (SBC-4 6.4.4): parameter code, threshold
/// sets, SCOPE.
pub(crate) fn resources(unit: &Unit) -> Vec<(u16, u32, u8)> {
    // 01b: the logical unit's own; 10b: others take of it too.
    match unit.state.space() {
        Some(space) => {
            vec![(AVAILABLE, sets(space.available), 0x02), (USED, sets(space.used), 0x01)]
        }
        None => Vec::new(),
    }
}

const HEADER: usize = 8;
const DESCRIPTOR: usize = 16;

pub(crate) fn unmap(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    // ANCHOR: ANC_SUP is 0.
    cx.cdb.must_be_zero(1, 0x01)?;
    Ok(cx.optional_list(ParameterKind::Unmap, u32::from(cx.cdb.be16(7)), HEADER as u32))
}

/// Decodes the parameter list. All descriptors are checked before the first takes effect.
pub(crate) fn parse_unmap(unit: &Unit, list: &[u8]) -> Result<Action, Sense> {
    let too_short = Sense::illegal(Code::PARAMETER_LIST_LENGTH_ERROR);
    let (header, rest) = list.split_first_chunk::<HEADER>().ok_or(too_short)?;
    let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    // A descriptor that is cut off at the end is ignored.
    let descriptors = rest.get(..len).ok_or(too_short)?.chunks_exact(DESCRIPTOR);
    if descriptors.len() as u64 > u64::from(unit.limits.max_unmap_descriptors) {
        return Err(Sense::invalid_parameter(2));
    }
    let mut ranges = Vec::with_capacity(descriptors.len());
    let mut total = 0;
    for (i, descriptor) in descriptors.enumerate() {
        let range = unmap_range(descriptor);
        if range.blocks == 0 {
            continue;
        }
        if !range.fits(unit.caps.blocks) {
            return Err(Sense::lba_out_of_range(range.start.0.max(unit.caps.blocks)));
        }
        total += range.blocks;
        if total > u64::from(unit.limits.max_unmap_blocks) {
            return Err(Sense::invalid_parameter((HEADER + i * DESCRIPTOR + 8) as u16));
        }
        ranges.push(range);
    }
    Ok(if ranges.is_empty() { Action::Complete(Reply::GOOD) } else { Action::Unmap(ranges) })
}

/// One descriptor: the address in 8 bytes, the number of blocks in 4, 4 reserved.
fn unmap_range(descriptor: &[u8]) -> BlockRange {
    let be = |bytes: &[u8]| bytes.iter().fold(0, |n, &b| n << 8 | u64::from(b));
    BlockRange::new(be(&descriptor[0..8]), be(&descriptor[8..12]))
}
