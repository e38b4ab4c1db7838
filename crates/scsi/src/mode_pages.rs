//! The mode pages (SPC-5 7.5, SBC-4 6.5): what they say, and which bits of them can be changed.

use alloc::vec;
use alloc::vec::Vec;

use crate::state::Modes;
use crate::thin;
use crate::unit::Unit;

/// SUBPAGE_FORMAT: the page has a subpage code, and a length of two bytes.
const SPF: u8 = 0x40;

/// The page can be saved; reserved in MODE SELECT.
pub(crate) const PS: u8 = 0x80;

/// What can be changed: page code, byte and bit.
const WCE: (u8, usize, u8) = (0x08, 2, 0x04);
const D_SENSE: (u8, usize, u8) = (0x0A, 2, 0x04);
const SWP: (u8, usize, u8) = (0x0A, 4, 0x08);
const TAS: (u8, usize, u8) = (0x0A, 5, 0x40);

/// The page code and subpage code of a page.
pub(crate) fn name(page: &[u8]) -> (u8, u8) {
    (page[0] & 0x3F, if page[0] & SPF == 0 { 0 } else { page[1] })
}

/// The length of a page's header.
pub(crate) fn header(page: &[u8]) -> usize {
    if page[0] & SPF == 0 { 2 } else { 4 }
}

/// All pages with these values, by page code and subpage code.
pub(crate) fn all(unit: &Unit, modes: Modes) -> Vec<Vec<u8>> {
    let mut pages = vec![
        recovery(),
        page(0x02, 16), // Disconnect-Reconnect: the limits are iSCSI's, negotiated at login.
        caching(unit, modes),
        control(unit, modes),
        page(0x1C, 12), // Informational Exceptions Control: none are reported.
    ];
    if unit.is_thin() {
        pages.push(provisioning(unit));
    }
    pages
}

/// The same pages with a one for every bit that can be changed.
pub(crate) fn changeable(unit: &Unit) -> Vec<Vec<u8>> {
    let mut masks = all(unit, Modes::ALL);
    for (mask, page) in masks.iter_mut().zip(all(unit, Modes::NONE)) {
        let body = header(&page);
        for (mask, bits) in mask[body..].iter_mut().zip(&page[body..]) {
            *mask ^= bits;
        }
    }
    masks
}

/// What a page, whose changeable bits are those of `mask`, makes of `modes`.
pub(crate) fn apply(mut modes: Modes, page: &[u8], mask: &[u8]) -> Modes {
    let changes: [(_, &mut bool); 4] = [
        (WCE, &mut modes.write_cache),
        (D_SENSE, &mut modes.descriptor_sense),
        (SWP, &mut modes.write_protect),
        (TAS, &mut modes.task_aborted),
    ];
    for ((code, at, bit), value) in changes {
        if name(page) == (code, 0) && mask[at] & bit != 0 {
            *value = page[at] & bit != 0;
        }
    }
    modes
}

fn page(code: u8, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    data[0] = code;
    data[1] = len as u8 - 2;
    data
}

fn bit((_, _, bit): (u8, usize, u8), on: bool) -> u8 {
    if on { bit } else { 0 }
}

/// Read-Write Error Recovery (SBC-4 6.5.10): AWRE and ARRE, the storage below does what it can.
fn recovery() -> Vec<u8> {
    let mut data = page(0x01, 12);
    data[2] = 0x80 | 0x40;
    data
}

/// Caching (SBC-4 6.5.6). Where there is a write cache that may be used it can be switched off, and that is kept.
fn caching(unit: &Unit, modes: Modes) -> Vec<u8> {
    let mut data = page(0x08, 20);
    if saves(unit) {
        data[0] |= PS;
    }
    data[WCE.1] = bit(WCE, unit.may_cache() && modes.write_cache);
    data
}

/// True if a page of the unit can be saved: the Caching page, if WCE can be changed.
pub(crate) fn saves(unit: &Unit) -> bool {
    unit.saves && unit.may_cache()
}

/// Control (SPC-5 7.5.9).
fn control(unit: &Unit, modes: Modes) -> Vec<u8> {
    let mut data = page(0x0A, 12);
    // TST 000b: one task set for all initiators.
    data[D_SENSE.1] = bit(D_SENSE, modes.descriptor_sense);
    // QUEUE ALGORITHM MODIFIER 1: commands may be reordered.
    data[3] = 0x10;
    // The protection of a volume that takes no writes stays.
    data[SWP.1] = bit(SWP, unit.caps.read_only || modes.write_protect);
    data[TAS.1] = bit(TAS, modes.task_aborted);
    data
}

/// Logical Block Provisioning (SBC-4 6.5.9). SITUA is 0: every initiator is told. The threshold is that
/// of the configuration, and cannot be changed.
fn provisioning(unit: &Unit) -> Vec<u8> {
    let mut data = vec![SPF | 0x1C, 0x02, 0, 0];
    data.resize(thin::THRESHOLD_DESCRIPTOR as usize, 0);
    if let Some(count) = thin::threshold_count(unit) {
        // ENABLED, THRESHOLD TYPE and ARMING 000b: soft, when less becomes available; THRESHOLD
        // RESOURCE: available.
        data.extend_from_slice(&[0x80, thin::AVAILABLE as u8, 0, 0]);
        data.extend_from_slice(&count.to_be_bytes());
    }
    let len = data.len() as u16 - 4;
    data[2..4].copy_from_slice(&len.to_be_bytes());
    data
}
