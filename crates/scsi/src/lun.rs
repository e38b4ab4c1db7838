//! Logical unit numbers (SAM-5 4.7).

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
