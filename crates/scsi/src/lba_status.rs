//! GET LBA STATUS (16) (SBC-4 5.6): which blocks have space of their own.

use alloc::vec;
use alloc::vec::Vec;

use lunet_block::{BlockRange, Extent};

use crate::action::{Action, Task};
use crate::execute::{Cx, Outcome};
use crate::sense::Sense;
use crate::unit::Unit;

const HEADER: usize = 8;
const DESCRIPTOR: usize = 16;

/// The most descriptors of one answer, however long the allocation length: each is a look into the
/// storage's tables.
const MOST: usize = 256;

/// GET LBA STATUS with REPORT TYPE 00h: all blocks from an address on.
pub(crate) fn get(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    let (start, allocation) = (cx.cdb.be64(2), cx.cdb.be32(10));
    cx.cdb.must_be_zero(14, 0xFF)?;
    if start >= unit.caps.blocks {
        return Err(Sense::lba_out_of_range(start));
    }
    let range = BlockRange::new(start, unit.caps.blocks - start);
    if !unit.is_thin() {
        let all = Extent::all_mapped(range.bytes(unit.caps.block_size));
        return Ok(cx.data_in(answer(unit, &all, descriptors(allocation)), allocation));
    }
    Ok(Task::still(Action::LbaStatus { range, allocation }))
}

/// How many descriptors an answer of this length takes: at least one.
pub fn descriptors(allocation: u32) -> usize {
    ((allocation as usize).saturating_sub(HEADER) / DESCRIPTOR).clamp(1, MOST)
}

/// The parameter data of GET LBA STATUS with at most this many descriptors, not cut to the allocation
/// length.
pub fn answer(unit: &Unit, extents: &[Extent], most: usize) -> Vec<u8> {
    let block = u64::from(unit.caps.block_size);
    let mut data = vec![0; HEADER];
    for extent in extents {
        let (mut lba, end) = (extent.range.offset / block, extent.range.end() / block);
        while lba < end && data.len() < HEADER + most * DESCRIPTOR {
            // What is longer than the field can say takes several descriptors.
            let blocks = u32::try_from(end - lba).unwrap_or(u32::MAX);
            data.extend_from_slice(&lba.to_be_bytes());
            data.extend_from_slice(&blocks.to_be_bytes());
            // PROVISIONING STATUS: mapped, or deallocated.
            data.extend_from_slice(&[u8::from(!extent.mapped), 0, 0, 0]);
            lba += u64::from(blocks);
        }
    }
    let len = data.len() as u32 - 4;
    data[0..4].copy_from_slice(&len.to_be_bytes());
    data
}
