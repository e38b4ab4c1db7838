//! FORMAT UNIT (SBC-4 5.4): every block reads as zeroes afterwards. There are no defects to list, no protection
//! information and no other size to format to, so it is a sanitize operation by another name.

use crate::action::{Action, ParameterKind, Task};
use crate::execute::{Cx, Outcome};
use crate::sanitize::{Method, Sanitize};
use crate::sense::{Code, Sense};
use crate::unit::Unit;

/// Byte 1 of the command block.
const FMTPINFO: u8 = 0xC0;
const LONGLIST: u8 = 0x20;
const FMTDATA: u8 = 0x10;
/// Byte 4: FAST FORMAT, which leaves old data readable.
const FFMT: u8 = 0x03;

/// Byte 1 of the header.
const FOV: u8 = 0x80;
/// DPRY, DCRT and STPF are about defects, of which there are none. They, and IP, are valid with FOV only.
const OPTIONS: u8 = 0x78;
const IP: u8 = 0x08;
const IMMED: u8 = 0x02;

/// FORMAT UNIT. CMPLST and DEFECT LIST FORMAT are about a list that must be empty.
pub(crate) fn unit(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    cx.cdb.must_be_zero(1, FMTPINFO)?;
    cx.cdb.must_be_zero(4, FFMT)?;
    if !cx.cdb.flag(1, FMTDATA) {
        return Ok(Task::still(format(false)));
    }
    let long = cx.cdb.flag(1, LONGLIST);
    let len = if long { 8 } else { 4 };
    Ok(cx.parameter_list(ParameterKind::FormatUnit { long }, len, len))
}

/// Decodes the parameter list header (SBC-4 tables 41 and 42): only defaults, and IMMED.
pub(crate) fn parse(long: bool, header: &[u8]) -> Result<Action, Sense> {
    let invalid = Sense::illegal(Code::INVALID_FIELD_IN_PARAMETER_LIST);
    let [usage, options, rest @ ..] = header else { return Err(invalid) };
    // PROTECTION FIELD USAGE; then P_I_INFORMATION, PROTECTION INTERVAL EXPONENT, DEFECT LIST LENGTH.
    let plain = usage & 0x07 == 0 && rest.iter().skip(usize::from(long)).all(|byte| *byte == 0);
    let defaults = options & (FOV | OPTIONS);
    if !plain || options & IP != 0 || (defaults != 0 && defaults & FOV == 0) {
        return Err(invalid);
    }
    Ok(format(options & IMMED != 0))
}

fn format(immediate: bool) -> Action {
    let method = Method::BlockErase;
    Action::Sanitize(Sanitize { method, immediate, restricted: true, format: true })
}
