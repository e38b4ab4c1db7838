//! REPORT LUNS (SPC-5 6.33).

use alloc::vec;

use crate::execute::{Cx, Outcome};
use crate::lun::Lun;
use crate::nexus::Attention;
use crate::sense::Sense;

/// Lists the target's LUNs. There are no well known, administrative or subsidiary logical units.
pub(crate) fn report_luns(cx: &mut Cx<'_>) -> Outcome {
    let luns: &[u16] = match cx.cdb.byte(2) {
        // 00h all but the well known, 02h all, 11h all but the subsidiary.
        0x00 | 0x02 | 0x11 => &cx.target.luns,
        // 01h well known, 10h administrative, 12h subsidiary.
        0x01 | 0x10 | 0x12 => &[],
        _ => return Err(Sense::invalid_cdb(2, 7)),
    };
    let allocation = cx.cdb.be32(6);
    if allocation < 16 {
        return Err(Sense::invalid_cdb(6, 7));
    }
    let mut data = vec![0; 8 + 8 * luns.len()];
    data[0..4].copy_from_slice(&(8 * luns.len() as u32).to_be_bytes());
    for (slot, &lun) in data[8..].chunks_exact_mut(8).zip(luns) {
        slot.copy_from_slice(&Lun(lun).encode());
    }
    if let Some(nexus) = cx.nexus.as_deref_mut() {
        nexus.clear(Attention::ReportedLunsChanged);
    }
    Ok(cx.data_in(data, allocation))
}
