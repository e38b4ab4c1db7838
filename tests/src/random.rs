//! Random choices that a printed seed can repeat.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From `$LUNET_E2E_SEED` when it is set, otherwise different every time. Prints the seed.
    pub fn from_environment() -> Random {
        let wanted = std::env::var("LUNET_E2E_SEED").ok().and_then(|text| text.parse().ok());
        let seed = wanted.unwrap_or_else(|| RandomState::new().build_hasher().finish());
        println!("LUNET_E2E_SEED={seed}");
        Random(seed)
    }

    /// From this seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound
    }
}

/// Scatters the bits of a number.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
