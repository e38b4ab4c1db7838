//! TEST UNIT READY, REQUEST SENSE.

use crate::action::{Reply, Task};
use crate::execute::{Cx, Outcome};
use crate::sense::{Code, Sense, SenseFormat};
use crate::unit::Unit;

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
