//! MODE SENSE (SPC-5 6.14, 6.15) and the mode pages. Nothing can be saved.

use alloc::vec;
use alloc::vec::Vec;

use crate::execute::{Cx, Outcome};
use crate::sense::{Code, Sense, SenseFormat};
use crate::unit::Unit;

/// What can be changed: page code, byte and bit of SWP.
pub(crate) const SWP: (u8, usize, u8) = (0x0A, 4, 0x08);

const ALL_PAGES: u8 = 0x3F;
const ALL_SUBPAGES: u8 = 0xFF;

/// MODE SENSE (6).
pub(crate) fn sense6(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    let pages = pages(unit, cx)?;
    let none = no_descriptor(unit, cx);
    let descriptor = if none { Vec::new() } else { short_descriptor(unit) };
    let len = 3 + descriptor.len() + pages.len();
    let mut data = vec![len as u8, 0, device_specific(unit), descriptor.len() as u8];
    data.extend_from_slice(&descriptor);
    data.extend_from_slice(&pages);
    Ok(cx.data_in(data, u32::from(cx.cdb.byte(4))))
}

/// MODE SENSE (10).
pub(crate) fn sense10(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    let pages = pages(unit, cx)?;
    let long = cx.cdb.flag(1, 0x10);
    let descriptor = match (no_descriptor(unit, cx), long) {
        (true, _) => Vec::new(),
        (false, true) => long_descriptor(unit),
        (false, false) => short_descriptor(unit),
    };
    let [high, low] = ((6 + descriptor.len() + pages.len()) as u16).to_be_bytes();
    let long_lba = u8::from(long && !descriptor.is_empty());
    let mut data =
        vec![high, low, 0, device_specific(unit), long_lba, 0, 0, descriptor.len() as u8];
    data.extend_from_slice(&descriptor);
    data.extend_from_slice(&pages);
    Ok(cx.data_in(data, u32::from(cx.cdb.be16(7))))
}

/// DBD: no block descriptor. Without medium there are no blocks to describe.
fn no_descriptor(unit: &Unit, cx: &Cx<'_>) -> bool {
    cx.cdb.flag(1, 0x08) || unit.state.ejected()
}

/// WP and DPOFUA (SBC-4 6.5.1). DPO is a hint, and FUA is done by a flush where nothing better is.
fn device_specific(unit: &Unit) -> u8 {
    (u8::from(unit.read_only()) << 7) | 0x10
}

/// Short LBA block descriptor (SBC-4 6.5.2.2).
pub(crate) fn short_descriptor(unit: &Unit) -> Vec<u8> {
    let blocks = u32::try_from(unit.caps.blocks).unwrap_or(u32::MAX);
    let mut data = blocks.to_be_bytes().to_vec();
    // One reserved byte and three of length: 24 bits hold every block size.
    data.extend_from_slice(&unit.caps.block_size.to_be_bytes());
    data
}

/// Long LBA block descriptor (SBC-4 6.5.2.3).
pub(crate) fn long_descriptor(unit: &Unit) -> Vec<u8> {
    let mut data = unit.caps.blocks.to_be_bytes().to_vec();
    data.extend_from_slice(&[0; 4]);
    data.extend_from_slice(&unit.caps.block_size.to_be_bytes());
    data
}

/// PAGE CONTROL (SPC-5 table 184).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Control {
    Current,
    Changeable,
    Default,
}

/// The pages that byte 2 and 3 of either command block name.
fn pages(unit: &Unit, cx: &Cx<'_>) -> Result<Vec<u8>, Sense> {
    let control = match cx.cdb.byte(2) >> 6 {
        0 => Control::Current,
        1 => Control::Changeable,
        2 => Control::Default,
        _ => return Err(Sense::illegal(Code::SAVING_NOT_SUPPORTED)),
    };
    let (code, subpage) = (cx.cdb.byte(2) & 0x3F, cx.cdb.byte(3));
    // No page has subpages, so "all subpages" is the page itself.
    if !matches!(subpage, 0 | ALL_SUBPAGES) {
        return Err(Sense::invalid_cdb(3, 7));
    }
    let mut data = Vec::new();
    for page in all_pages(unit) {
        if code == ALL_PAGES || code == page[0] {
            let at = data.len();
            data.extend_from_slice(&page);
            match control {
                Control::Current => {}
                Control::Changeable => {
                    data[at + 2..].copy_from_slice(&changeable(unit, &page)[2..])
                }
                // A volume that takes no writes is protected by default as well.
                Control::Default if page[0] == SWP.0 && !unit.caps.read_only => {
                    data[at + SWP.1] &= !SWP.2;
                }
                Control::Default => {}
            }
        }
    }
    if data.is_empty() {
        return Err(Sense::invalid_cdb(2, 5));
    }
    Ok(data)
}

/// A one for every bit of a page that can be changed. The protection of a volume that takes no writes
/// stays.
fn changeable(unit: &Unit, page: &[u8]) -> Vec<u8> {
    let mut mask = vec![0; page.len()];
    if page[0] == SWP.0 && !unit.caps.read_only {
        mask[SWP.1] = SWP.2;
    }
    mask
}

/// The current values of a page, and which bits of it can be changed.
pub(crate) fn page_with_code(unit: &Unit, code: u8) -> Option<(Vec<u8>, Vec<u8>)> {
    let page = all_pages(unit).into_iter().find(|page| page[0] == code)?;
    let mask = changeable(unit, &page);
    Some((page, mask))
}

/// All pages, by page code.
fn all_pages(unit: &Unit) -> [Vec<u8>; 5] {
    [recovery(), disconnect(), caching(unit), control(unit), exceptions()]
}

fn page(code: u8, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    data[0] = code;
    data[1] = len as u8 - 2;
    data
}

/// Read-Write Error Recovery (SBC-4 6.5.10): AWRE and ARRE, the storage below does what it can.
fn recovery() -> Vec<u8> {
    let mut data = page(0x01, 12);
    data[2] = 0x80 | 0x40;
    data
}

/// Disconnect-Reconnect (SPC-5 7.5.10): the limits are iSCSI's, negotiated at login.
fn disconnect() -> Vec<u8> {
    page(0x02, 16)
}

/// Caching (SBC-4 6.5.6): WCE as it is.
fn caching(unit: &Unit) -> Vec<u8> {
    let mut data = page(0x08, 20);
    data[2] = u8::from(unit.caps.write_cache) << 2;
    data
}

/// Control (SPC-5 7.5.9).
fn control(unit: &Unit) -> Vec<u8> {
    let mut data = page(0x0A, 12);
    // TST 000b: one task set for all initiators. D_SENSE: the format of sense data.
    data[2] = u8::from(unit.sense_format() == SenseFormat::Descriptor) << 2;
    // QUEUE ALGORITHM MODIFIER 1: commands may be reordered.
    data[3] = 0x10;
    // SWP.
    data[SWP.1] = if unit.read_only() { SWP.2 } else { 0 };
    data
}

/// Informational Exceptions Control (SPC-5 7.5.14): none are reported.
fn exceptions() -> Vec<u8> {
    page(0x1C, 12)
}
