//! INQUIRY (SPC-5 6.7) and READ CAPACITY.

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

/// READ CAPACITY (10) (SBC-4 5.20).
pub(crate) fn read_capacity10(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    // FFFFFFFFh sends the initiator to READ CAPACITY (16).
    let last = u32::try_from(unit.caps.blocks.saturating_sub(1)).unwrap_or(u32::MAX);
    let mut data = vec![0; 8];
    data[0..4].copy_from_slice(&last.to_be_bytes());
    data[4..8].copy_from_slice(&unit.caps.block_size.to_be_bytes());
    Ok(cx.data_in(data, 8))
}

/// READ CAPACITY (16) (SBC-4 5.21).
pub(crate) fn read_capacity16(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    Ok(cx.data_in(capacity(unit), cx.cdb.be32(10)))
}

/// The parameter data of READ CAPACITY (16).
pub(crate) fn capacity(unit: &Unit) -> Vec<u8> {
    let caps = &unit.caps;
    let mut data = vec![0; 32];
    data[0..8].copy_from_slice(&caps.blocks.saturating_sub(1).to_be_bytes());
    data[8..12].copy_from_slice(&caps.block_size.to_be_bytes());
    // LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT; the lowest aligned address is 0.
    data[13] = (caps.physical_block_size / caps.block_size).max(1).ilog2() as u8 & 0x0F;
    if unit.is_thin() {
        // LBPME; LBPRZ if unmapped blocks read as zeroes.
        data[14] = 0x80 | u8::from(caps.unmap_zeroes) << 6;
    }
    data
}
