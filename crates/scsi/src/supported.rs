//! REPORT SUPPORTED OPERATION CODES and REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.

use alloc::vec;
use alloc::vec::Vec;

use crate::execute::{Cx, Outcome};
use crate::opcodes::{self, Opcode};
use crate::sense::Sense;
use crate::unit::Unit;

/// REPORT SUPPORTED OPERATION CODES (SPC-5 6.34).
pub(crate) fn operation_codes(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    let cdb = cx.cdb;
    let timeouts = cdb.flag(2, 0x80);
    let (code, service_action) = (cdb.byte(3), cdb.be16(4));
    let with_code = || opcodes::with_code(code, Some(unit));
    let has_actions = with_code().next().map(|o| o.service_action.is_some());
    let exact = || with_code().find(|o| o.service_action == Some(service_action));
    let data = match (cdb.byte(2) & 0x07, has_actions) {
        (0, _) => all(unit, timeouts),
        // 001b is for commands without service actions, 010b for those with.
        (1, Some(true)) => return Err(Sense::invalid_cdb(2, 2)),
        (2, Some(false)) => return Err(Sense::invalid_cdb(2, 2)),
        (1, _) => one(with_code().next(), timeouts),
        (2, _) | (3, Some(true)) => one(exact(), timeouts),
        (3, _) => one(with_code().next().filter(|_| service_action == 0), timeouts),
        _ => return Err(Sense::invalid_cdb(2, 2)),
    };
    Ok(cx.data_in(data, cdb.be32(6)))
}

fn all(unit: &Unit, timeouts: bool) -> Vec<u8> {
    let mut data = vec![0; 4];
    for opcode in opcodes::TABLE.iter().filter(|o| o.available(Some(unit))) {
        let [action_high, action_low] = opcode.service_action.unwrap_or(0).to_be_bytes();
        let flags = (u8::from(timeouts) << 1) | u8::from(opcode.service_action.is_some());
        let len = opcode.len() as u8;
        data.extend_from_slice(&[opcode.code, 0, action_high, action_low, 0, flags, 0, len]);
        if timeouts {
            data.extend_from_slice(&timeouts_descriptor(opcode));
        }
    }
    let len = data.len() as u32 - 4;
    data[0..4].copy_from_slice(&len.to_be_bytes());
    data
}

fn one(opcode: Option<&Opcode>, timeouts: bool) -> Vec<u8> {
    // SUPPORT: 001b not supported, 011b supported as the standard says.
    let Some(opcode) = opcode else { return vec![0, 0x01, 0, 0] };
    let mut data = vec![0, (u8::from(timeouts) << 7) | 0x03, 0, opcode.len() as u8];
    let start = data.len();
    data.extend_from_slice(opcode.usage);
    if let Some(action) = opcode.service_action {
        // The service action stands as it is, not as a mask.
        data[start + 1] = opcode.usage[1] & !0x1F | action as u8;
    }
    if timeouts {
        data.extend_from_slice(&timeouts_descriptor(opcode));
    }
    data
}

/// The command timeouts descriptor: no nominal time, and the time after which to worry.
fn timeouts_descriptor(opcode: &Opcode) -> [u8; 12] {
    let mut d = [0; 12];
    d[1] = 0x0A;
    d[8..12].copy_from_slice(&opcode.timeout.to_be_bytes());
    d
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-5 6.36).
pub(crate) fn task_management(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    let allocation = cx.cdb.be32(6);
    if allocation < 4 {
        return Err(Sense::invalid_cdb(6, 7));
    }
    // ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET, TARGET RESET.
    let mut data = vec![0x80 | 0x40 | 0x10 | 0x08 | 0x02, 0, 0, 0];
    if cx.cdb.flag(2, 0x80) {
        // REPD: the extended form, without timeouts (TMFTMOV is 0).
        data.resize(16, 0);
        data[3] = 12;
    }
    Ok(cx.data_in(data, allocation))
}
