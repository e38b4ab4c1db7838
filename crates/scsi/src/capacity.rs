//! READ CAPACITY.

use alloc::vec;
use alloc::vec::Vec;

use crate::execute::{Cx, Outcome};
use crate::unit::Unit;

/// READ CAPACITY (10) (SBC-4 5.20).
pub(crate) fn read10(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    // FFFFFFFFh sends the initiator to READ CAPACITY (16).
    let last = u32::try_from(unit.caps.blocks.saturating_sub(1)).unwrap_or(u32::MAX);
    let mut data = vec![0; 8];
    data[0..4].copy_from_slice(&last.to_be_bytes());
    data[4..8].copy_from_slice(&unit.caps.block_size.to_be_bytes());
    Ok(cx.data_in(data, 8))
}

/// READ CAPACITY (16) (SBC-4 5.21).
pub(crate) fn read16(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    Ok(cx.data_in(long(unit), cx.cdb.be32(10)))
}

/// The parameter data of READ CAPACITY (16).
pub(crate) fn long(unit: &Unit) -> Vec<u8> {
    let caps = &unit.caps;
    let mut data = vec![0; 32];
    data[0..8].copy_from_slice(&caps.blocks.saturating_sub(1).to_be_bytes());
    data[8..12].copy_from_slice(&caps.block_size.to_be_bytes());
    // LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT; the lowest aligned address is 0.
    data[13] = (caps.physical_block_size / caps.block_size).max(1).ilog2() as u8 & 0x0F;
    if unit.is_thin() {
        // LBPME; LBPRZ if unmapped blocks read as zeroes.
        data[14] = 0x80 | u8::from(caps.unmap_zeroes) << 6;
    }
    data
}
