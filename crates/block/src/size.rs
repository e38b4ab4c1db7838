//! Sizes in sentences.

use core::fmt;

const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// A number of bytes for people: `8 GiB`, `1.5 TiB`, `512 B`. What a rounded figure would hide is said
/// behind it, so that two sizes that differ never read the same: `1 TiB (1099511627264 bytes)`. With the
/// alternate form (`{:#}`) it is rounded alone, for the columns of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl Size {
    /// The unit, its index, and the value in tenths of it.
    fn scaled(self) -> (usize, u128) {
        let tenths = |unit: usize| {
            let one = 1u128 << (10 * unit);
            (u128::from(self.0) * 10 + one / 2) / one
        };
        // A value that would round up to 1024 of its unit is 1 of the next.
        let fits = |unit: &usize| tenths(*unit) < 10_240;
        let unit = (0..UNITS.len()).find(fits).unwrap_or(UNITS.len() - 1);
        (unit, tenths(unit))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, tenths) = self.scaled();
        match (tenths / 10, tenths % 10) {
            (whole, 0) => write!(f, "{whole} {}", UNITS[unit])?,
            (whole, tenth) => write!(f, "{whole}.{tenth} {}", UNITS[unit])?,
        }
        let exact = tenths << (10 * unit) == u128::from(self.0) * 10;
        if exact || f.alternate() { Ok(()) } else { write!(f, " ({} bytes)", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn a_size_is_short_and_never_says_less_than_it_is() {
        for (bytes, words, rounded) in [
            (0, "0 B", "0 B"),
            (512, "512 B", "512 B"),
            (1023, "1023 B", "1023 B"),
            (1024, "1 KiB", "1 KiB"),
            (8 << 30, "8 GiB", "8 GiB"),
            (3 << 39, "1.5 TiB", "1.5 TiB"),
            (1 << 40, "1 TiB", "1 TiB"),
            ((1 << 40) - 512, "1 TiB (1099511627264 bytes)", "1 TiB"),
            ((1 << 20) - 1, "1 MiB (1048575 bytes)", "1 MiB"),
            (u64::MAX, "16 EiB (18446744073709551615 bytes)", "16 EiB"),
        ] {
            assert_eq!(format!("{}", Size(bytes)), words);
            assert_eq!(format!("{:#}", Size(bytes)), rounded);
        }
    }
}
