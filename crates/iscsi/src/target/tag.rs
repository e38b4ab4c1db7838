//! Names of tasks towards the layer above.

/// Names a task or a task management function of one connection: a slot, which is reused, and a
/// generation, which is not. A call with a stale tag does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag {
    slot: u32,
    generation: u32,
}

impl Tag {
    /// The tag of `slot` in its `generation`.
    pub(super) const fn new(slot: u32, generation: u32) -> Self {
        Self { slot, generation }
    }

    /// The slot: small and dense, so it can index a table. At most
    /// [`Options::queue_depth`](super::Options::queue_depth) plus
    /// [`MAX_IMMEDIATE`](super::options::MAX_IMMEDIATE) slots are in use.
    #[must_use]
    pub const fn slot(self) -> usize {
        self.slot as usize
    }

    /// The generation of the slot.
    #[must_use]
    pub const fn generation(self) -> u32 {
        self.generation
    }

    /// The tag as a number, for tokens.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        (self.generation as u64) << 32 | self.slot as u64
    }

    /// The tag from [`Tag::to_bits`].
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self { slot: bits as u32, generation: (bits >> 32) as u32 }
    }
}
