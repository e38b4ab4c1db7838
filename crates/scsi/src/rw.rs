//! The commands that move, check or flush logical blocks (SBC-4 clause 5), and those that no other command may come
//! between: COMPARE AND WRITE, ORWRITE (16). No allocation here.

use lunet_block::BlockRange;

use crate::action::{Action, Check, Exclusive, Reply, Task, Transfer, WriteSameSource};
use crate::cdb::{Cdb, Extent};
use crate::execute::{Cx, Outcome};
use crate::sense::Sense;
use crate::unit::Unit;

/// RDPROTECT, WRPROTECT and VRPROTECT: there is no protection information.
const PROTECT: u8 = 0xE0;
const FUA: u8 = 0x08;

pub(crate) fn read6(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    read(unit, cx, Extent::six(&cx.cdb), false)
}

pub(crate) fn read10(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    read_flags(unit, cx, Extent::ten(&cx.cdb))
}

pub(crate) fn read12(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    read_flags(unit, cx, Extent::twelve(&cx.cdb))
}

pub(crate) fn read16(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    read_flags(unit, cx, Extent::sixteen(&cx.cdb))
}

pub(crate) fn write6(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    write(unit, cx, Extent::six(&cx.cdb), false, None)
}

pub(crate) fn write10(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    write_flags(unit, cx, Extent::ten(&cx.cdb))
}

pub(crate) fn write12(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    write_flags(unit, cx, Extent::twelve(&cx.cdb))
}

pub(crate) fn write16(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    write_flags(unit, cx, Extent::sixteen(&cx.cdb))
}

pub(crate) fn write_verify10(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    write_verify(unit, cx, Extent::ten(&cx.cdb))
}

pub(crate) fn write_verify12(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    write_verify(unit, cx, Extent::twelve(&cx.cdb))
}

pub(crate) fn write_verify16(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    write_verify(unit, cx, Extent::sixteen(&cx.cdb))
}

pub(crate) fn verify10(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    verify(unit, cx, Extent::ten(&cx.cdb))
}

pub(crate) fn verify12(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    verify(unit, cx, Extent::twelve(&cx.cdb))
}

pub(crate) fn verify16(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    verify(unit, cx, Extent::sixteen(&cx.cdb))
}

pub(crate) fn prefetch10(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    prefetch(unit, Extent::ten(&cx.cdb))
}

pub(crate) fn prefetch16(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    prefetch(unit, Extent::sixteen(&cx.cdb))
}

pub(crate) fn sync10(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    synchronize(unit, &cx.cdb, Extent::ten(&cx.cdb))
}

pub(crate) fn sync16(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    synchronize(unit, &cx.cdb, Extent::sixteen(&cx.cdb))
}

pub(crate) fn write_same10(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    write_same(unit, cx, Extent::ten(&cx.cdb), WriteSameSource::DataOut)
}

pub(crate) fn write_same16(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    // NDOB.
    let source =
        if cx.cdb.flag(1, 0x01) { WriteSameSource::Zeroes } else { WriteSameSource::DataOut };
    write_same(unit, cx, Extent::sixteen(&cx.cdb), source)
}

/// The range on the volume.
fn on_volume(unit: &Unit, extent: Extent) -> Result<BlockRange, Sense> {
    let range = BlockRange::new(extent.lba, u64::from(extent.blocks));
    if !range.fits(unit.caps.blocks) {
        // The first address that is not on the volume.
        return Err(Sense::lba_out_of_range(extent.lba.max(unit.caps.blocks)));
    }
    Ok(range)
}

/// The range of a transfer: on the volume, and no longer than a transfer may be.
fn transfer_range(unit: &Unit, extent: Extent) -> Result<BlockRange, Sense> {
    let range = on_volume(unit, extent)?;
    if extent.blocks > unit.limits.max_transfer_blocks {
        return Err(Sense::invalid_cdb(extent.length_at, 7));
    }
    Ok(range)
}

/// The range from an address on, where a length of 0 means up to the last block.
fn open_range(unit: &Unit, extent: Extent) -> Result<BlockRange, Sense> {
    let mut range = on_volume(unit, extent)?;
    if range.blocks == 0 {
        range.blocks = unit.caps.blocks - range.start.0;
    }
    Ok(range)
}

fn read_flags(unit: &Unit, cx: &Cx<'_>, extent: Extent) -> Outcome {
    cx.cdb.must_be_zero(1, PROTECT)?;
    read(unit, cx, extent, cx.cdb.flag(1, FUA))
}

/// With FUA what is read is stable (SBC-4 4.15.7). DPO is accepted and changes nothing.
fn read(unit: &Unit, cx: &Cx<'_>, extent: Extent, fua: bool) -> Outcome {
    let mut range = transfer_range(unit, extent)?;
    let bs = unit.caps.block_size;
    let transfer = Transfer { data_in: range.bytes(bs).len, data_out: 0 };
    range.blocks = range.blocks.min(u64::from(cx.command.expects_read.div_ceil(bs)));
    let action = match range.blocks {
        0 => Action::Complete(Reply::GOOD),
        _ => Action::Read { range, fua },
    };
    Ok(Task { action, transfer })
}

fn write_flags(unit: &Unit, cx: &Cx<'_>, extent: Extent) -> Outcome {
    cx.cdb.must_be_zero(1, PROTECT)?;
    write(unit, cx, extent, cx.cdb.flag(1, FUA), None)
}

/// WRITE AND VERIFY (SBC-4 5.45). BYTCHK here knows only `00b` and `01b`.
fn write_verify(unit: &Unit, cx: &Cx<'_>, extent: Extent) -> Outcome {
    cx.cdb.must_be_zero(1, PROTECT)?;
    cx.cdb.must_be_zero(1, 0x04)?;
    let check = if cx.cdb.flag(1, 0x02) { Check::Compare } else { Check::Medium };
    write(unit, cx, extent, false, Some(check))
}

fn write(
    unit: &Unit,
    cx: &Cx<'_>,
    extent: Extent,
    fua: bool,
    then_verify: Option<Check>,
) -> Outcome {
    let range = transfer_range(unit, extent)?;
    let fua = fua || unit.write_through();
    data_out(unit, cx, range, |range| Action::Write { range, fua, then_verify })
}

/// A range whose Data-Out has its length, cut to the blocks that the initiator sends: the residual
/// overflow tells it that the rest was not asked for (RFC 7143 11.4.5.1). If it sends a part of a block
/// nothing is written: no GOOD for data that is thrown away. Neither is there one if it expects to read (R = 1, W = 0):
/// its residual count is about that then, and cannot say that nothing was written.
fn data_out(
    unit: &Unit,
    cx: &Cx<'_>,
    mut range: BlockRange,
    action: impl FnOnce(BlockRange) -> Action,
) -> Outcome {
    let bs = unit.caps.block_size;
    let (sent, data_out) = (cx.command.expects_write, range.bytes(bs).len);
    let reads = sent == 0 && data_out > 0 && cx.command.expects_read > 0;
    if reads || (u64::from(sent) < data_out && sent % bs != 0) {
        return Ok(Task::wrong_length(data_out));
    }
    range.blocks = range.blocks.min(u64::from(sent / bs));
    let action = if range.blocks == 0 { Action::Complete(Reply::GOOD) } else { action(range) };
    Ok(Task { action, transfer: Transfer { data_in: 0, data_out } })
}

/// The Data-Out of one block that some commands take; anything else is refused.
fn one_block(unit: &Unit, cx: &Cx<'_>, action: Action) -> Outcome {
    let data_out = u64::from(unit.caps.block_size);
    if u64::from(cx.command.expects_write) != data_out {
        return Ok(Task::wrong_length(data_out));
    }
    Ok(Task { action, transfer: Transfer { data_in: 0, data_out } })
}

/// VERIFY (SBC-4 5.32). DPO is taken, but what is only checked goes into no cache of lunet's.
fn verify(unit: &Unit, cx: &Cx<'_>, extent: Extent) -> Outcome {
    cx.cdb.must_be_zero(1, PROTECT)?;
    let check = match (cx.cdb.byte(1) >> 1) & 3 {
        0b00 => Check::Medium,
        0b01 => Check::Compare,
        0b11 => Check::CompareOneBlock,
        _ => return Err(Sense::invalid_cdb(1, 2)),
    };
    // Only what is transferred is bounded by the transfer length.
    let range = match check {
        Check::Compare => transfer_range(unit, extent)?,
        Check::Medium | Check::CompareOneBlock => on_volume(unit, extent)?,
    };
    let action = Action::Verify { range, check };
    match check {
        _ if range.blocks == 0 => Ok(Task::reply(Reply::GOOD)),
        Check::Medium => Ok(Task::still(action)),
        Check::Compare => data_out(unit, cx, range, |range| Action::Verify { range, check }),
        Check::CompareOneBlock => one_block(unit, cx, action),
    }
}

/// PRE-FETCH (SBC-4 5.13). IMMED is accepted and changes nothing.
fn prefetch(unit: &Unit, extent: Extent) -> Outcome {
    let range = open_range(unit, extent)?;
    Ok(if range.blocks == 0 {
        Task::reply(Reply::GOOD)
    } else {
        Task::still(Action::Prefetch { range })
    })
}

/// SYNCHRONIZE CACHE (SBC-4 5.33).
fn synchronize(unit: &Unit, cdb: &Cdb, extent: Extent) -> Outcome {
    let range = open_range(unit, extent)?;
    Ok(if range.blocks == 0 {
        Task::reply(Reply::GOOD)
    } else {
        Task::still(Action::Flush { range, immediate: cdb.flag(1, 0x02) })
    })
}

/// WRITE SAME (SBC-4 5.50). A length of 0 means up to the last block, where WSNZ is 0. PBDATA and LBDATA are obsolete; to
/// ignore them would write other data than an old initiator asks for, so they are refused.
fn write_same(unit: &Unit, cx: &Cx<'_>, extent: Extent, source: WriteSameSource) -> Outcome {
    cx.cdb.must_be_zero(1, PROTECT)?;
    // ANCHOR (ANC_SUP is 0), PBDATA, LBDATA.
    cx.cdb.must_be_zero(1, 0x10)?;
    cx.cdb.must_be_zero(1, 0x06)?;
    if !unit.is_thin() {
        cx.cdb.must_be_zero(1, 0x08)?;
    }
    // A block of zeroes is what an unmapped one reads as, or it is written (SBC-4 5.50).
    let unmap = cx.cdb.flag(1, 0x08) && unit.caps.unmap_zeroes;
    let range = open_range(unit, extent)?;
    if range.blocks == 0 {
        return Err(Sense::lba_out_of_range(extent.lba));
    }
    let wsnz = unit.is_thin() && extent.blocks == 0;
    if wsnz || range.blocks > unit.limits.max_write_same_blocks {
        return Err(Sense::invalid_cdb(extent.length_at, 7));
    }
    let action = Action::WriteSame { range, source, unmap };
    match source {
        WriteSameSource::Zeroes => Ok(Task::still(action)),
        WriteSameSource::DataOut => one_block(unit, cx, action),
    }
}

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
    Action::Exclusive { what, range, fua: cx.cdb.flag(1, FUA) }
}

/// The range of a transfer of at most `most` blocks.
fn bounded(unit: &Unit, extent: Extent, most: u32) -> Result<BlockRange, Sense> {
    let range = transfer_range(unit, extent)?;
    if extent.blocks > most {
        return Err(Sense::invalid_cdb(extent.length_at, 7));
    }
    Ok(range)
}
