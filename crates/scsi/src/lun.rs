//! Logical unit numbers (SAM-5 4.7), REPORT LUNS (SPC-5 6.33).

use alloc::vec;

use crate::execute::{Cx, Outcome};
use crate::nexus::Attention;
use crate::sense::Sense;

/// The number of a logical unit, 0 to 16383.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lun(pub u16);

impl Lun {
    /// The highest number that flat space addressing reaches.
    pub const MAX: Self = Self(0x3FFF);

    /// Reads the 8 bytes of a LUN field. `None` for addressing methods and levels that name no
    /// logical unit of lunet's: the well known ones, other buses, and deeper levels.
    pub const fn decode(bytes: [u8; 8]) -> Option<Self> {
        if bytes[2] | bytes[3] | bytes[4] | bytes[5] | bytes[6] | bytes[7] != 0 {
            return None;
        }
        match bytes[0] >> 6 {
            // Peripheral device addressing: bus 0, then the number (SAM-5 4.7.7.2).
            0b00 if bytes[0] == 0 => Some(Self(bytes[1] as u16)),
            // Flat space addressing (SAM-5 4.7.7.3).
            0b01 => Some(Self(u16::from_be_bytes([bytes[0] & 0x3F, bytes[1]]))),
            _ => None,
        }
    }

    /// The 8 bytes of the LUN field: peripheral device addressing up to 255, flat space above.
    pub const fn encode(self) -> [u8; 8] {
        let [high, low] = self.0.to_be_bytes();
        let method = if self.0 < 256 { 0 } else { 0x40 };
        [method | (high & 0x3F), low, 0, 0, 0, 0, 0, 0]
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_survives_the_wire() {
        for lun in (0..=Lun::MAX.0).map(Lun) {
            assert_eq!(Lun::decode(lun.encode()), Some(lun));
        }
        assert_eq!(Lun(255).encode(), [0, 255, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Lun(256).encode(), [0x41, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn small_numbers_are_taken_in_either_form() {
        assert_eq!(Lun::decode([0x40, 7, 0, 0, 0, 0, 0, 0]), Some(Lun(7)));
        assert_eq!(Lun::decode([0x00, 7, 0, 0, 0, 0, 0, 0]), Some(Lun(7)));
    }

    #[test]
    fn other_forms_name_no_unit() {
        // Another bus, logical unit addressing, the REPORT LUNS well known unit, a second level.
        for bytes in [
            [0x01, 0, 0, 0, 0, 0, 0, 0],
            [0x80, 0, 0, 0, 0, 0, 0, 0],
            [0xC1, 0x01, 0, 0, 0, 0, 0, 0],
            [0x00, 0, 0, 1, 0, 0, 0, 0],
            [0x00, 0, 0, 0, 0, 0, 0, 1],
        ] {
            assert_eq!(Lun::decode(bytes), None, "{bytes:02X?}");
        }
    }
}
