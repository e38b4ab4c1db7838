//! SANITIZE (SBC-4 4.11, 5.24): all user data is made unreadable, and nothing else is done meanwhile. FORMAT UNIT
//! (SBC-4 5.4) is carried out in the same way: every block reads as zeroes afterwards, and there are no defects to
//! list, no protection information and no other size to format to.

use alloc::vec::Vec;

use crate::action::{Action, ParameterKind, Reply, Task};
use crate::execute::{Cx, Outcome};
use crate::sense::{Code, Key, Sense};
use crate::state::Sanitation;
use crate::unit::Unit;

/// AUSE: the failure mode may be left without another sanitize operation.
const AUSE: u8 = 0x20;
const IMMED: u8 = 0x80;

/// Before the initialization pattern.
const HEADER: usize = 4;

/// A sanitize operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sanitize {
    /// How.
    pub method: Method,
    /// Answer before it is done.
    pub immediate: bool,
    /// If it fails, EXIT FAILURE MODE is not enough to use the unit again (AUSE = 0).
    pub restricted: bool,
    /// It is called FORMAT UNIT.
    pub format: bool,
}

impl Sanitize {
    /// Where the unit stands if it does not end well.
    pub const fn unfinished(&self) -> Sanitation {
        match (self.format, self.restricted) {
            (true, _) => Sanitation::Unformatted,
            (false, restricted) => Sanitation::Failed { restricted },
        }
    }

    /// What the command ends with if that fails.
    pub const fn failure(&self) -> Sense {
        let code =
            if self.format { Code::FORMAT_COMMAND_FAILED } else { Code::SANITIZE_COMMAND_FAILED };
        Sense::new(Key::MediumError, code)
    }
}

/// What a sanitize operation does to the blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Method {
    /// Writes every block.
    Overwrite(Overwrite),
    /// Gives all space back: every block reads as zeroes.
    BlockErase,
    /// None: the unit leaves the failure mode as it is.
    ExitFailureMode,
}

/// State of [`Method::Overwrite`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overwrite {
    /// INITIALIZATION PATTERN: repeated from the start of each block on. 1 byte to 1 block.
    pub pattern: Vec<u8>,
    /// OVERWRITE COUNT, 1 to 31.
    pub passes: u8,
    /// INVERT: each pass writes the complement of the one before; the last writes the pattern.
    pub invert: bool,
}

impl Overwrite {
    /// Fills a block with what a pass (counted from 0) writes.
    pub fn fill(&self, pass: u8, block: &mut [u8]) {
        let inverted = self.invert && (self.passes - 1 - pass) % 2 == 1;
        for (byte, pattern) in block.iter_mut().zip(self.pattern.iter().cycle()) {
            *byte = if inverted { !pattern } else { *pattern };
        }
    }
}

/// OVERWRITE. The list holds at least one byte of the pattern, and at most a block of it.
pub(crate) fn overwrite(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    let (immediate, restricted) = modes(unit, cx)?;
    let len = u32::from(cx.cdb.be16(7));
    if len <= HEADER as u32 || len > HEADER as u32 + unit.caps.block_size {
        return Err(Sense::invalid_cdb(7, 7));
    }
    Ok(cx.parameter_list(ParameterKind::Overwrite { immediate, restricted }, len, 0))
}

/// BLOCK ERASE.
pub(crate) fn block_erase(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    let (immediate, restricted) = modes(unit, cx)?;
    no_list(cx)?;
    let sanitize = Sanitize { method: Method::BlockErase, immediate, restricted, format: false };
    Ok(Task::still(Action::Sanitize(sanitize)))
}

/// EXIT FAILURE MODE.
pub(crate) fn exit_failure_mode(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    reserved(cx)?;
    no_list(cx)?;
    match unit.state.sanitation() {
        Sanitation::Failed { restricted: true } => Err(Sense::invalid_cdb(1, 4)),
        Sanitation::Failed { restricted: false } => {
            let method = Method::ExitFailureMode;
            let sanitize = Sanitize { method, immediate: false, restricted: false, format: false };
            Ok(Task::still(Action::Sanitize(sanitize)))
        }
        Sanitation::None
        | Sanitation::Running
        | Sanitation::Formatting
        | Sanitation::Unformatted => Ok(Task::reply(Reply::GOOD)),
    }
}

/// IMMED, and the opposite of AUSE. What has failed in the restricted mode stays in it.
fn modes(unit: &Unit, cx: &Cx<'_>) -> Result<(bool, bool), Sense> {
    reserved(cx)?;
    let restricted = !cx.cdb.flag(1, AUSE);
    if !restricted && unit.state.sanitation() == (Sanitation::Failed { restricted: true }) {
        return Err(Sense::invalid_cdb(1, 5));
    }
    Ok((cx.cdb.flag(1, IMMED), restricted))
}

/// ZNR is for zoned devices.
fn reserved(cx: &Cx<'_>) -> Result<(), Sense> {
    cx.cdb.must_be_zero(1, 0x40)?;
    (2..7).try_for_each(|at| cx.cdb.must_be_zero(at, 0xFF))
}

fn no_list(cx: &Cx<'_>) -> Result<(), Sense> {
    if cx.cdb.be16(7) != 0 {
        return Err(Sense::invalid_cdb(7, 7));
    }
    Ok(())
}

/// Decodes the parameter list of OVERWRITE (SBC-4 table 88). What is wrong with it is said to be wrong
/// with the command block: libiscsi's tests want that, and to initiators it is the same.
pub(crate) fn parse(
    unit: &Unit,
    (immediate, restricted): (bool, bool),
    list: &[u8],
) -> Result<Action, Sense> {
    let (header, pattern) = list
        .split_first_chunk::<HEADER>()
        .ok_or(Sense::illegal(Code::PARAMETER_LIST_LENGTH_ERROR))?;
    let (invert, test, passes) = (header[0] & 0x80 != 0, header[0] & 0x60, header[0] & 0x1F);
    let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let wrong = Sense::invalid_cdb(7, 7);
    if test != 0 || passes == 0 || len == 0 || len > unit.caps.block_size as usize {
        return Err(wrong);
    }
    let pattern = pattern.get(..len).ok_or(wrong)?.to_vec();
    let method = Method::Overwrite(Overwrite { pattern, passes, invert });
    Ok(Action::Sanitize(Sanitize { method, immediate, restricted, format: false }))
}

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
const FORMAT_IMMED: u8 = 0x02;

/// FORMAT UNIT. CMPLST and DEFECT LIST FORMAT are about a list that must be empty.
pub(crate) fn format_unit(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    cx.cdb.must_be_zero(1, FMTPINFO)?;
    cx.cdb.must_be_zero(4, FFMT)?;
    if !cx.cdb.flag(1, FMTDATA) {
        return Ok(Task::still(format(false)));
    }
    let long = cx.cdb.flag(1, LONGLIST);
    let len = if long { 8 } else { 4 };
    Ok(cx.parameter_list(ParameterKind::FormatUnit { long }, len, len))
}

/// Decodes the parameter list header (SBC-4 tables 41 and 42): only defaults, and FORMAT_IMMED.
pub(crate) fn parse_format(long: bool, header: &[u8]) -> Result<Action, Sense> {
    let invalid = Sense::illegal(Code::INVALID_FIELD_IN_PARAMETER_LIST);
    let [usage, options, rest @ ..] = header else { return Err(invalid) };
    // PROTECTION FIELD USAGE; then P_I_INFORMATION, PROTECTION INTERVAL EXPONENT, DEFECT LIST LENGTH.
    let plain = usage & 0x07 == 0 && rest.iter().skip(usize::from(long)).all(|byte| *byte == 0);
    let defaults = options & (FOV | OPTIONS);
    if !plain || options & IP != 0 || (defaults != 0 && defaults & FOV == 0) {
        return Err(invalid);
    }
    Ok(format(options & FORMAT_IMMED != 0))
}

fn format(immediate: bool) -> Action {
    let method = Method::BlockErase;
    Action::Sanitize(Sanitize { method, immediate, restricted: true, format: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_alternate_so_that_the_last_writes_the_pattern() {
        let passes = |passes, invert| {
            let overwrite = Overwrite { pattern: [1, 2, 3].into(), passes, invert };
            let mut block = [0; 4];
            (0..passes)
                .map(|pass| {
                    overwrite.fill(pass, &mut block);
                    block
                })
                .collect::<Vec<_>>()
        };
        let (plain, inverse) = ([1, 2, 3, 1], [254, 253, 252, 254]);
        assert_eq!(passes(2, false), [plain, plain]);
        assert_eq!(passes(1, true), [plain]);
        assert_eq!(passes(2, true), [inverse, plain]);
        assert_eq!(passes(3, true), [plain, inverse, plain]);
    }
}
