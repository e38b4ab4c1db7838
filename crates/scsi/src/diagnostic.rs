//! SEND DIAGNOSTIC, RECEIVE DIAGNOSTIC RESULTS and READ DEFECT DATA.

use alloc::vec;
use alloc::vec::Vec;

use lunet_block::BlockRange;

use crate::action::{Action, Check, Reply, Task};
use crate::execute::{Cx, Outcome};
use crate::sense::Sense;
use crate::unit::Unit;

/// SEND DIAGNOSTIC (SPC-5 6.42). The default self-test reads the first block; there are no others, and
/// no diagnostic page to send.
pub(crate) fn send(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    cx.cdb.must_be_zero(1, 0xE0)?;
    if cx.cdb.be16(3) != 0 {
        return Err(Sense::invalid_cdb(3, 7));
    }
    Ok(if cx.cdb.flag(1, 0x04) {
        Task::still(Action::Verify { range: BlockRange::new(0, 1), check: Check::Medium })
    } else {
        Task::reply(Reply::GOOD)
    })
}

/// RECEIVE DIAGNOSTIC RESULTS (SPC-5 6.25): the list of pages, which is the only one. Without PCV it
/// asks for the results of the latest SEND DIAGNOSTIC, which has none.
pub(crate) fn receive(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    cx.cdb.must_be_zero(2, 0xFF)?;
    let data = if cx.cdb.flag(1, 0x01) { vec![0x00, 0, 0, 1, 0x00] } else { Vec::new() };
    Ok(cx.data_in(data, u32::from(cx.cdb.be16(3))))
}

/// READ DEFECT DATA (10) (SBC-4 5.18).
pub(crate) fn defects10(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    let lists = defects(cx, 2)?;
    Ok(cx.data_in(vec![0, lists, 0, 0], u32::from(cx.cdb.be16(7))))
}

/// READ DEFECT DATA (12) (SBC-4 5.19).
pub(crate) fn defects12(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    let lists = defects(cx, 1)?;
    Ok(cx.data_in(vec![0, lists, 0, 0, 0, 0, 0, 0], cx.cdb.be32(6)))
}

/// The lists asked for, as the header of the answer names them: REQ_PLIST, REQ_GLIST, DEFECT LIST FORMAT
/// are PLISTV, GLISTV and the format there. What is below replaces bad blocks by itself, so both lists are
/// empty in every format that there is.
fn defects(cx: &Cx<'_>, at: usize) -> Result<u8, Sense> {
    // 110b is for vendors, 111b is reserved.
    if cx.cdb.byte(at) & 0x06 == 0x06 {
        return Err(Sense::invalid_cdb(at as u16, 2));
    }
    Ok(cx.cdb.byte(at) & 0x1F)
}
