//! START STOP UNIT and PREVENT ALLOW MEDIUM REMOVAL: power conditions, and the medium of a removable
//! unit.

use crate::action::{Action, Power, PowerChange, Reply, Task};
use crate::execute::{Cx, Outcome};
use crate::sense::{Code, Key, Sense};
use crate::unit::Unit;

/// What a command that needs the medium gets while there is none.
pub(crate) const NO_MEDIUM: Sense = Sense::new(Key::NotReady, Code::MEDIUM_NOT_PRESENT);

/// START STOP UNIT (SBC-4 5.31). There are no timers, so the power conditions that work with them are
/// refused.
///
/// A removable unit takes any power condition, and none of them stops it: libiscsi's suite asks for that. START = 0
/// stops it as any other unit: it is not ready until it is started, or its medium is loaded anew.
pub(crate) fn start_stop(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    let cdb = cx.cdb;
    let change = match cdb.byte(4) >> 4 {
        0x4..=0xF if unit.removable => PowerChange::Active,
        // START_VALID: START and LOEJ say what to do.
        0x0 => {
            if !unit.removable {
                cdb.must_be_zero(4, 0x02)?;
            }
            match (cdb.flag(4, 0x02), cdb.flag(4, 0x01)) {
                (true, true) => PowerChange::Load,
                (true, false) => PowerChange::Eject,
                (false, false) => PowerChange::Stopped,
                (false, true) => PowerChange::Active,
            }
        }
        0x1 => PowerChange::Active,
        0x2 => PowerChange::Idle,
        0x3 => PowerChange::Standby,
        // LU_CONTROL: the unit runs its own power conditions, of which it has none.
        0x7 => {
            cdb.must_be_zero(3, 0x0F)?;
            return Ok(Task::reply(Reply::GOOD));
        }
        _ => return Err(Sense::invalid_cdb(4, 7)),
    };
    if cdb.byte(4) >> 4 != 0 {
        // POWER CONDITION MODIFIER: idle_a and standby_z are the only ones.
        cdb.must_be_zero(3, 0x0F)?;
    }
    let moves = matches!(change, PowerChange::Load | PowerChange::Eject);
    if !moves && unit.state.ejected() {
        return Err(NO_MEDIUM);
    }
    // What leaves the unit is complete, whatever NO_FLUSH says.
    let flush = match change {
        PowerChange::Eject => !unit.state.ejected(),
        PowerChange::Stopped | PowerChange::Standby => !cdb.flag(4, 0x04),
        PowerChange::Active | PowerChange::Idle | PowerChange::Load => false,
    };
    Ok(Task::still(Action::Power(Power { change, flush, immediate: cdb.flag(1, 0x01) })))
}

/// PREVENT ALLOW MEDIUM REMOVAL (SPC-5 6.16). Of the field PREVENT the high bit is obsolete.
pub(crate) fn prevent_allow(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    cx.cdb.must_be_zero(4, 0x02)?;
    Ok(Task::still(Action::PreventRemoval(cx.cdb.flag(4, 0x01))))
}
