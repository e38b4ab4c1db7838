//! MODE SELECT (SPC-5 6.11, 6.12). One thing can be changed: SWP of the Control page, the software write
//! protection. It is not saved: a reset or a restart takes it away.

use crate::action::{Action, ParameterKind, Parameters, Reply, Task, Transfer};
use crate::execute::{Cx, Outcome};
use crate::mode;
use crate::sense::{Code, Sense};
use crate::unit::Unit;

/// MODE SELECT (6).
pub(crate) fn select6(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    let len = u32::from(cx.cdb.byte(4));
    select(cx, len, ParameterKind::ModeSelect6)
}

/// MODE SELECT (10).
pub(crate) fn select10(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    let len = u32::from(cx.cdb.be16(7));
    select(cx, len, ParameterKind::ModeSelect10)
}

fn select(cx: &Cx<'_>, len: u32, kind: ParameterKind) -> Outcome {
    // PF: pages as the standard has them. RTD and SP: nothing can be saved.
    if !cx.cdb.flag(1, 0x10) {
        return Err(Sense::invalid_cdb(1, 4));
    }
    cx.cdb.must_be_zero(1, 0x03)?;
    if len == 0 {
        return Ok(Task::reply(Reply::GOOD));
    }
    let transfer = Transfer { data_in: 0, data_out: u64::from(len) };
    let action = if cx.command.expects_write < len {
        Action::Complete(Reply::check(Sense::illegal(Code::PARAMETER_LIST_LENGTH_ERROR)))
    } else {
        Action::Parameters(Parameters { kind, len })
    };
    Ok(Task { action, transfer })
}

/// Decodes the parameter list: header, block descriptor, pages. All is checked before anything takes
/// effect.
pub(crate) fn parse(unit: &Unit, long: bool, list: &[u8]) -> Result<Action, Sense> {
    let too_short = Sense::illegal(Code::PARAMETER_LIST_LENGTH_ERROR);
    let header = if long { 8 } else { 4 };
    let (head, rest) = list.split_at_checked(header).ok_or(too_short)?;
    let (descriptor, expected) = match (long, head) {
        (false, head) => (usize::from(head[3]), mode::short_descriptor(unit)),
        (true, head) => {
            let len = usize::from(u16::from_be_bytes([head[6], head[7]]));
            let wide = head[4] & 0x01 != 0;
            let same = if wide { mode::long_descriptor } else { mode::short_descriptor };
            (len, same(unit))
        }
    };
    let (descriptor, mut pages) = rest.split_at_checked(descriptor).ok_or(too_short)?;
    if !descriptor.is_empty() && descriptor != expected {
        return Err(Sense::invalid_parameter(header as u16));
    }
    let mut protect = None;
    while !pages.is_empty() {
        let at = list.len() - pages.len();
        let (page, rest) = split_page(pages).ok_or(too_short)?;
        protect = check(unit, page, at)?.or(protect);
        pages = rest;
    }
    Ok(match protect {
        Some(on) => Action::WriteProtect(on),
        None => Action::Complete(Reply::GOOD),
    })
}

/// The first page, with its header of code and length, and what follows it.
fn split_page(pages: &[u8]) -> Option<(&[u8], &[u8])> {
    pages.split_at_checked(2 + usize::from(*pages.get(1)?))
}

/// Compares a page with the current one. Returns what it says of SWP, if it has that.
fn check(unit: &Unit, page: &[u8], at: usize) -> Result<Option<bool>, Sense> {
    let wrong = |offset: usize| Sense::invalid_parameter((at + offset) as u16);
    let (current, changeable) = mode::page_with_code(unit, page[0] & 0x3F).ok_or(wrong(0))?;
    // No page has subpages (SPF).
    if page[0] & 0x40 != 0 {
        return Err(wrong(0));
    }
    if page.len() != current.len() {
        return Err(wrong(1));
    }
    for offset in 2..page.len() {
        if (page[offset] ^ current[offset]) & !changeable[offset] != 0 {
            return Err(wrong(offset));
        }
    }
    let swp = mode::SWP.0 == page[0] & 0x3F;
    Ok(swp.then(|| page[mode::SWP.1] & mode::SWP.2 != 0))
}
