//! Repeatable numbers without visible order, and bytes that cannot be guessed.

/// SplitMix64: one multiplication chain for each number, and any seed is a good one.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

/// Mixes all bits of `x` into all bits.
pub(crate) const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number below `bound`, which is not 0. A bias of `bound` / 2^64 does not show.
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.next() as u128 * bound as u128) >> 64) as u64
    }
}

/// Fills with bytes that cannot be guessed.
pub(crate) fn unpredictable(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        // Fails only by a signal, or on a system without it: then the clock has to do.
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => {
                let time = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
                let mut random = Random::new(time.as_nanos() as u64);
                bytes[filled..].fill_with(|| random.next() as u8);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_even_and_repeat_with_their_seed() {
        let mut random = Random::new(1);
        let mut counts = [0u32; 10];
        for _ in 0..10_000 {
            counts[random.below(10) as usize] += 1;
        }
        assert!(counts.iter().all(|&n| (850..1150).contains(&n)), "{counts:?}");
        assert_eq!(Random::new(7).next(), Random::new(7).next());
        assert_ne!(Random::new(7).next(), Random::new(8).next());
    }
}
