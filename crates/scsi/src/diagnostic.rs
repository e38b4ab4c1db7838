//! TEST UNIT READY, REQUEST SENSE, SEND DIAGNOSTIC, RECEIVE DIAGNOSTIC RESULTS and READ DEFECT DATA.

use alloc::vec;
use alloc::vec::Vec;

use lunet_block::BlockRange;

use crate::action::{Action, Check, Reply, Task};
use crate::execute::{Cx, Outcome};
use crate::sense::{Code, Sense, SenseFormat};
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

/// TEST UNIT READY (SPC-5 6.54). That the unit is ready was checked before.
pub(crate) fn test_unit_ready(_: &Unit, _: &mut Cx<'_>) -> Outcome {
    Ok(Task::reply(Reply::GOOD))
}

/// REQUEST SENSE (SPC-5 6.39): reports and clears a unit attention, else the power state. Sense data
/// of commands goes with their status, so none is ever kept for this command.
pub(crate) fn request_sense(cx: &mut Cx<'_>) -> Outcome {
    let format = if cx.cdb.flag(1, 0x01) { SenseFormat::Descriptor } else { SenseFormat::Fixed };
    let attention = cx.nexus.as_deref_mut().and_then(|nexus| nexus.take_sense());
    let sense = match (attention, cx.unit) {
        (_, None) => Sense::illegal(Code::LUN_NOT_SUPPORTED),
        (Some(sense), _) => sense,
        (None, Some(unit)) => match unit.state.access.get(cx.target.group).sense() {
            Some(sense) => sense,
            None => unit.condition(),
        },
    };
    Ok(cx.data_in(sense.encode(format).to_vec(), u32::from(cx.cdb.byte(4))))
}
