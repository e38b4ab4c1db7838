//! MODE SENSE (SPC-5 6.14, 6.15). Of a unit whose server keeps it, WCE is saved; nothing else is.

use alloc::vec;
use alloc::vec::Vec;

use crate::execute::{Cx, Outcome};
use crate::mode_pages;
use crate::sense::{Code, Sense};
use crate::state::Modes;
use crate::unit::Unit;

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

/// The pages that byte 2 and 3 of either command block name.
fn pages(unit: &Unit, cx: &Cx<'_>) -> Result<Vec<u8>, Sense> {
    // PAGE CONTROL (SPC-5 table 184).
    let values = match cx.cdb.byte(2) >> 6 {
        0 => mode_pages::all(unit, unit.state.modes()),
        1 => mode_pages::changeable(unit),
        2 => mode_pages::all(unit, Modes::DEFAULT),
        // WCE is saved whenever it changes.
        3 if mode_pages::saves(unit) => {
            let write_cache = unit.state.modes().write_cache;
            mode_pages::all(unit, Modes { write_cache, ..Modes::DEFAULT })
        }
        _ => return Err(Sense::illegal(Code::SAVING_NOT_SUPPORTED)),
    };
    let (code, subpage) = (cx.cdb.byte(2) & 0x3F, cx.cdb.byte(3));
    if code == ALL_PAGES && !matches!(subpage, 0 | ALL_SUBPAGES) {
        return Err(Sense::invalid_cdb(3, 7));
    }
    let with_code = |page: &&Vec<u8>| code == ALL_PAGES || mode_pages::name(page).0 == code;
    if !values.iter().any(|page| with_code(&page)) {
        return Err(Sense::invalid_cdb(2, 5));
    }
    let with_subpage =
        |page: &&Vec<u8>| subpage == ALL_SUBPAGES || mode_pages::name(page).1 == subpage;
    let named: Vec<_> = values.iter().filter(with_code).filter(with_subpage).collect();
    if named.is_empty() {
        return Err(Sense::invalid_cdb(3, 7));
    }
    Ok(named.into_iter().flatten().copied().collect())
}
