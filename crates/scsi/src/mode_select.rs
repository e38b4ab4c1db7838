//! MODE SELECT (SPC-5 6.11, 6.12). What can be changed is in [`Modes`](crate::Modes). WCE is saved,
//! with SP or without, where the server keeps it: whoever has switched the cache off sends no flushes any more.

use crate::action::{Action, ParameterKind, Reply};
use crate::execute::{Cx, Outcome};
use crate::sense::{Code, Sense};
use crate::unit::Unit;
use crate::{mode, mode_pages};

/// MODE SELECT (6).
pub(crate) fn select6(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    let len = u32::from(cx.cdb.byte(4));
    select(unit, cx, len, ParameterKind::ModeSelect6)
}

/// MODE SELECT (10).
pub(crate) fn select10(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    let len = u32::from(cx.cdb.be16(7));
    select(unit, cx, len, ParameterKind::ModeSelect10)
}

fn select(unit: &Unit, cx: &Cx<'_>, len: u32, kind: ParameterKind) -> Outcome {
    // PF: pages as the standard has them.
    if !cx.cdb.flag(1, 0x10) {
        return Err(Sense::invalid_cdb(1, 4));
    }
    // RTD, and SP where nothing can be saved.
    let reserved = if mode_pages::saves(unit) { 0x02 } else { 0x03 };
    cx.cdb.must_be_zero(1, reserved)?;
    Ok(cx.optional_list(kind, len, 0))
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
    if pages.is_empty() {
        return Ok(Action::Complete(Reply::GOOD));
    }
    let current = mode_pages::all(unit, unit.state.modes());
    let masks = mode_pages::changeable(unit);
    let mut modes = unit.state.modes();
    while !pages.is_empty() {
        let at = list.len() - pages.len();
        let (page, rest) = split_page(pages).ok_or(too_short)?;
        let known = current.iter().zip(&masks);
        let mut named =
            known.filter(|(known, _)| mode_pages::name(known) == mode_pages::name(page));
        let (current, mask) = named.next().ok_or(Sense::invalid_parameter(at as u16))?;
        check(page, current, mask, at)?;
        modes = mode_pages::apply(modes, page, mask);
        pages = rest;
    }
    Ok(Action::Modes(modes))
}

/// The first page, with its header of code and length, and what follows it.
fn split_page(pages: &[u8]) -> Option<(&[u8], &[u8])> {
    let header = pages.get(..mode_pages::header(pages))?;
    let body = match header {
        [_, len] => usize::from(*len),
        [_, _, high, low] => usize::from(u16::from_be_bytes([*high, *low])),
        _ => return None,
    };
    pages.split_at_checked(header.len() + body)
}

/// Compares a page, that stands `at` this byte of the list, with the current one: what cannot be changed
/// must be as it is.
fn check(page: &[u8], current: &[u8], mask: &[u8], at: usize) -> Result<(), Sense> {
    let wrong = |offset: usize| Sense::invalid_parameter((at + offset) as u16);
    let header = mode_pages::header(page);
    if page.len() != current.len() {
        // PAGE LENGTH.
        return Err(wrong(header / 2));
    }
    // Reserved here.
    if page[0] & mode_pages::PS != 0 {
        return Err(wrong(0));
    }
    for offset in header..page.len() {
        if (page[offset] ^ current[offset]) & !mask[offset] != 0 {
            return Err(wrong(offset));
        }
    }
    Ok(())
}
