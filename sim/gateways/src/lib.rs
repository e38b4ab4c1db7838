//! Failover groups in a simulated world: the state machines of several gateways (`lunet-gateway`) over a simulated Ceph
//! cluster, with initiators, administrators and faults. One seed is one world.
//!
//! Time is in microseconds since the world began. Nothing here runs by itself: events come in the order of their time.
#![forbid(unsafe_code)]

pub mod blocks;
pub mod cluster;
pub mod faults;
pub mod host;
pub mod jobs;
pub mod node;
pub mod plan;
pub mod relay;
pub mod reserve;
pub mod shrink;
pub mod world;

/// Microseconds.
pub type Time = u64;

/// A millisecond.
pub const MS: Time = 1000;
/// A second.
pub const SEC: Time = 1_000_000;

/// Images of the group. Reservations are of the last one.
pub const VOLUMES: usize = 2;
/// Blocks of a volume.
pub const BLOCKS: usize = 3;
/// OSDs.
pub const OSDS: usize = 3;

/// A block of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which image.
    pub volume: u8,
    /// Which block of it.
    pub block: u8,
}

impl Place {
    /// Its number among all blocks.
    pub fn index(self) -> usize {
        usize::from(self.volume) * BLOCKS + usize::from(self.block)
    }

    /// The OSD that has it.
    pub fn osd(self) -> usize {
        self.index() % OSDS
    }

    /// True if reservations decide about it.
    pub fn reserved(self) -> bool {
        usize::from(self.volume) == VOLUMES - 1
    }
}

/// Chance, from a seed.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// Always the same for a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below a number, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    /// From one number on, and below another.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low)
    }

    /// True once in so many times.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}
