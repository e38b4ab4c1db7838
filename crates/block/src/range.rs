//! Places on a volume, in blocks and in bytes.

/// A logical block address: the number of a block, in units of the volume's logical block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lba(pub u64);

/// A run of logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockRange {
    /// First logical block.
    pub start: Lba,
    /// How many blocks; 0 is an empty range.
    pub blocks: u64,
}

impl BlockRange {
    /// A range of `blocks` blocks from `start` on.
    pub const fn new(start: u64, blocks: u64) -> Self {
        Self { start: Lba(start), blocks }
    }

    /// True if the whole range lies on a volume of `capacity` blocks. An empty range must still
    /// start at or before the end (SBC-4 4.5: an LBA beyond the capacity is out of range even
    /// when nothing is transferred).
    pub const fn fits(self, capacity: u64) -> bool {
        match self.start.0.checked_add(self.blocks) {
            Some(end) => end <= capacity,
            None => false,
        }
    }

    /// The same range in bytes, for blocks of `block_size` bytes. The caller has checked
    /// [`fits`](Self::fits), so the products do not overflow.
    pub const fn bytes(self, block_size: u32) -> ByteRange {
        ByteRange { offset: self.start.0 * block_size as u64, len: self.blocks * block_size as u64 }
    }
}

/// A run of bytes on a volume. Requests that move data start and end on logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByteRange {
    /// Offset of the first byte from the start of the volume.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl ByteRange {
    /// A range of `len` bytes from `offset` on.
    pub const fn new(offset: u64, len: u64) -> Self {
        Self { offset, len }
    }

    /// The first offset behind the range.
    pub const fn end(self) -> u64 {
        self.offset + self.len
    }

    /// True if the two share at least one byte.
    pub const fn overlaps(self, other: Self) -> bool {
        self.len > 0 && other.len > 0 && self.offset < other.end() && other.offset < self.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_fits_up_to_the_last_block_and_not_beyond() {
        assert!(BlockRange::new(0, 8).fits(8));
        assert!(BlockRange::new(8, 0).fits(8));
        assert!(!BlockRange::new(8, 1).fits(8));
        assert!(!BlockRange::new(9, 0).fits(8));
        assert!(!BlockRange::new(u64::MAX, 2).fits(u64::MAX));
    }

    #[test]
    fn ranges_that_only_touch_do_not_overlap() {
        let a = ByteRange::new(0, 512);
        assert!(!a.overlaps(ByteRange::new(512, 512)));
        assert!(a.overlaps(ByteRange::new(511, 1)));
        assert!(!a.overlaps(ByteRange::new(100, 0)));
    }
}
