//! INQUIRY (SPC-5 6.7).

use alloc::vec;
use alloc::vec::Vec;

use crate::execute::{Cx, Outcome};
use crate::sense::Sense;
use crate::unit::{Target, Unit};
use crate::vpd;

/// Direct access block device, connected.
pub(crate) const DISK: u8 = 0x00;
/// PERIPHERAL QUALIFIER 011b and type 1Fh: no logical unit here.
pub(crate) const NO_UNIT: u8 = 0x7F;

/// VERSION: SPC-4. What lunet does is in SPC-5 too, but initiators that know no later version than
/// this one treat a higher number as an error.
const VERSION: u8 = 0x06;
/// VERSION DESCRIPTORs: SAM-5, iSCSI, SPC-4, SBC-3, no version claimed.
const VERSIONS: [u16; 4] = [0x00A0, 0x0960, 0x0460, 0x04C0];

/// Also answers for a LUN that names no logical unit.
pub(crate) fn inquiry(cx: &mut Cx<'_>) -> Outcome {
    // CMDDT is obsolete.
    cx.cdb.must_be_zero(1, 0x02)?;
    let data = if cx.cdb.flag(1, 0x01) {
        vpd::page(cx.cdb.byte(2), cx.unit, cx.target).ok_or(Sense::invalid_cdb(2, 7))?
    } else {
        cx.cdb.must_be_zero(2, 0xFF)?;
        standard(cx.unit, cx.target)
    };
    Ok(cx.data_in(data, u32::from(cx.cdb.be16(3))))
}

/// Standard INQUIRY data, 96 bytes.
fn standard(unit: Option<&Unit>, target: &Target) -> Vec<u8> {
    let mut data = vec![0; 96];
    data[0] = if unit.is_some() { DISK } else { NO_UNIT };
    data[2] = VERSION;
    data[3] = 0x10 | 0x02; // HISUP, RESPONSE DATA FORMAT
    data[4] = 96 - 5;
    data[6] = u8::from(target.several_ports) << 4; // MULTIP
    data[7] = 0x02; // CMDQUE
    if let Some(unit) = unit {
        data[1] = u8::from(unit.removable) << 7; // RMB
        data[5] = unit.alua.tpgs() | 0x08; // 3PC
        data[8..16].copy_from_slice(&unit.identity.vendor);
        data[16..32].copy_from_slice(&unit.identity.product);
        data[32..36].copy_from_slice(&unit.identity.revision);
    } else {
        data[8..36].fill(b' ');
    }
    for (slot, version) in data[58..].chunks_exact_mut(2).zip(VERSIONS) {
        slot.copy_from_slice(&version.to_be_bytes());
    }
    data
}
