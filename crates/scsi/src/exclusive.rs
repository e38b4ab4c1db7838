//! The commands that no other may come between: COMPARE AND WRITE, ORWRITE (16).

use lunet_block::BlockRange;

use crate::action::{Action, Exclusive, Reply, Task, Transfer};
use crate::cdb::Extent;
use crate::execute::{Cx, Outcome};
use crate::rw::{DPO, FUA, PROTECT, data_out, transfer_range};
use crate::sense::Sense;
use crate::unit::Unit;

/// COMPARE AND WRITE (SBC-4 5.3). The Data-Out holds the blocks to compare with, then those to write.
pub(crate) fn compare_and_write(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    cx.cdb.must_be_zero(1, PROTECT)?;
    let extent = Extent { lba: cx.cdb.be64(2), blocks: u32::from(cx.cdb.byte(13)), length_at: 13 };
    let range = bounded(unit, extent, unit.limits.max_compare_and_write_blocks)?;
    let data_out = 2 * range.bytes(unit.caps.block_size).len;
    // Less is no command. More was meant for another number of blocks: 256 are 0 in a field of one byte.
    let action = if u64::from(cx.command.expects_write) != data_out {
        Action::Complete(Reply::check(Sense::invalid_cdb(13, 7)))
    } else if range.blocks == 0 {
        Action::Complete(Reply::GOOD)
    } else {
        exclusive(cx, range, Exclusive::CompareAndWrite)
    };
    Ok(Task { action, transfer: Transfer { data_in: 0, data_out } })
}

/// ORWRITE (16) (SBC-4 5.17). Its data is collected before the first block is touched, so it takes no
/// more than fits: MAXIMUM TRANSFER LENGTH has no word of its own for it.
pub(crate) fn orwrite16(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    cx.cdb.must_be_zero(1, PROTECT)?;
    let extent = Extent::sixteen(&cx.cdb);
    let range = bounded(unit, extent, unit.limits.max_exclusive_blocks)?;
    data_out(unit, cx, range, |range| exclusive(cx, range, Exclusive::OrWrite))
}

fn exclusive(cx: &Cx<'_>, range: BlockRange, what: Exclusive) -> Action {
    Action::Exclusive { what, range, dpo: cx.cdb.flag(1, DPO), fua: cx.cdb.flag(1, FUA) }
}

/// The range of a transfer of at most `most` blocks.
fn bounded(unit: &Unit, extent: Extent, most: u32) -> Result<BlockRange, Sense> {
    let range = transfer_range(unit, extent)?;
    if extent.blocks > most {
        return Err(Sense::invalid_cdb(extent.length_at, 7));
    }
    Ok(range)
}
