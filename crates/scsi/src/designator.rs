//! Binary designators of a logical unit: NAA and EUI-64 based (SPC-5 7.7.6.5 and 7.7.6.6).

use core::fmt;
use core::ops::Deref;

/// A binary designator, 8, 12 or 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Designator {
    bytes: [u8; Self::MAX],
    len: u8,
}

impl Designator {
    /// The longest, in bytes.
    pub const MAX: usize = 16;

    /// The designator with these 8 bytes.
    pub const fn eight(bytes: [u8; 8]) -> Self {
        let [a, b, c, d, e, f, g, h] = bytes;
        Self { bytes: [a, b, c, d, e, f, g, h, 0, 0, 0, 0, 0, 0, 0, 0], len: 8 }
    }

    /// The designator with these 16 bytes.
    pub const fn sixteen(bytes: [u8; 16]) -> Self {
        Self { bytes, len: 16 }
    }

    /// An NAA designator: IEEE Extended (first digit 2), Locally Assigned (3) or IEEE Registered (5)
    /// with 8 bytes, IEEE Registered Extended (6) with 16. `None` for everything else.
    pub fn naa(bytes: &[u8]) -> Option<Self> {
        let first = bytes.first()? >> 4;
        let long = first == 6;
        let fits = if long { bytes.len() == 16 } else { bytes.len() == 8 };
        if fits && matches!(first, 2 | 3 | 5 | 6) { Self::new(bytes) } else { None }
    }

    /// An EUI-64 based designator: EUI-64 (8 bytes), with a directory identifier behind it (12), or with
    /// an identifier extension in front (16). `None` for another length, and for all zeroes.
    pub fn eui(bytes: &[u8]) -> Option<Self> {
        let fits = matches!(bytes.len(), 8 | 12 | 16);
        if fits && bytes.iter().any(|byte| *byte != 0) { Self::new(bytes) } else { None }
    }

    fn new(designator: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::MAX];
        bytes.get_mut(..designator.len())?.copy_from_slice(designator);
        Some(Self { bytes, len: designator.len() as u8 })
    }
}

impl Deref for Designator {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Hexadecimal digits.
impl fmt::Display for Designator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Designator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn the_first_digit_of_an_naa_designator_says_its_length() {
        for (first, len, right) in [
            (0x20, 8, true),
            (0x3F, 8, true),
            (0x50, 8, true),
            (0x60, 16, true),
            (0x60, 8, false),
            (0x50, 16, false),
            (0x30, 12, false),
            (0x40, 8, false),
            (0x10, 16, false),
        ] {
            let mut bytes = [7; 16];
            bytes[0] = first;
            assert_eq!(Designator::naa(&bytes[..len]).is_some(), right, "{first:x} {len}");
        }
        assert_eq!(Designator::naa(&[]), None);
    }

    #[test]
    fn eui_designators_have_three_lengths() {
        for len in 0..=20 {
            let right = [8, 12, 16].contains(&len);
            assert_eq!(Designator::eui(&[1; 20][..len]).is_some(), right, "{len}");
        }
        assert_eq!(Designator::eui(&[0; 8]), None);
    }

    #[test]
    fn designators_print_as_digits() {
        let naa = Designator::eight([0x30, 1, 2, 3, 0xDE, 0xAD, 0xBE, 0xEF]);
        assert_eq!(format!("{naa} {naa:?}"), "30010203deadbeef 30010203deadbeef");
        assert_eq!(naa.len(), 8);
        assert_eq!(Designator::naa(&naa), Some(naa));
    }
}
