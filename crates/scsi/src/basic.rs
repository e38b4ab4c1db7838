//! TEST UNIT READY, REQUEST SENSE, START STOP UNIT.

use crate::action::{Action, Power, Reply, Task};
use crate::execute::{Cx, Outcome};
use crate::sense::{Code, Key, Sense, SenseFormat};
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
        (None, Some(unit)) if unit.state.stopped() => {
            Sense::new(Key::NotReady, Code::INITIALIZING_COMMAND_REQUIRED)
        }
        (None, Some(_)) => Sense::new(Key::NoSense, Code::NO_ADDITIONAL_SENSE),
    };
    Ok(cx.data_in(sense.encode(format).to_vec(), u32::from(cx.cdb.byte(4))))
}

/// START STOP UNIT (SBC-4 5.31). There is no medium to eject and no idle or standby condition.
pub(crate) fn start_stop(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    let cdb = cx.cdb;
    let start = match cdb.byte(4) >> 4 {
        // START_VALID: START and LOEJ say what to do.
        0x0 => {
            cdb.must_be_zero(4, 0x02)?;
            cdb.flag(4, 0x01)
        }
        // ACTIVE.
        0x1 => {
            cdb.must_be_zero(3, 0x0F)?;
            true
        }
        // LU_CONTROL: the unit runs its own power conditions, of which it has none.
        0x7 => {
            cdb.must_be_zero(3, 0x0F)?;
            return Ok(Task::reply(Reply::GOOD));
        }
        _ => return Err(Sense::invalid_cdb(4, 7)),
    };
    let power = Power { start, no_flush: cdb.flag(4, 0x04), immediate: cdb.flag(1, 0x01) };
    Ok(Task::still(Action::Power(power)))
}
