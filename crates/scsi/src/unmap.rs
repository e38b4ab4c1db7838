//! UNMAP (SBC-4 5.30).

use alloc::vec::Vec;

use lunet_block::BlockRange;

use crate::action::{Action, ParameterKind, Reply};
use crate::execute::{Cx, Outcome};
use crate::sense::{Code, Sense};
use crate::unit::Unit;

const HEADER: usize = 8;
const DESCRIPTOR: usize = 16;

pub(crate) fn unmap(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    // ANCHOR: ANC_SUP is 0.
    cx.cdb.must_be_zero(1, 0x01)?;
    Ok(cx.optional_list(ParameterKind::Unmap, u32::from(cx.cdb.be16(7)), HEADER as u32))
}

/// Decodes the parameter list. All descriptors are checked before the first takes effect.
pub(crate) fn parse(unit: &Unit, list: &[u8]) -> Result<Action, Sense> {
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
        let range = range(descriptor);
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
fn range(descriptor: &[u8]) -> BlockRange {
    let be = |bytes: &[u8]| bytes.iter().fold(0, |n, &b| n << 8 | u64::from(b));
    BlockRange::new(be(&descriptor[0..8]), be(&descriptor[8..12]))
}
