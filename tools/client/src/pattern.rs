//! What verified writes carry.
//!
//! Every logical block says by itself what it is. Numbers are little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 0 to 7 | the run's key: a random number, so that nothing of an earlier run is taken for this one's |
//! | 8 to 15 | LBA |
//! | 16 to 19 | generation: the number of the write within its job, from 1 on |
//! | 20 to end - 5 | filler, made from all of the above |
//! | the last 4 | CRC32C of all before it |

use lunet_block::mix;

/// The filler's first byte.
const FILL: usize = 20;

/// Which write a block comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub key: u64,
    pub lba: u64,
    pub generation: u32,
}

impl Stamp {
    /// Fills one logical block.
    pub fn write(self, block: &mut [u8]) {
        let end = block.len() - 4;
        block[0..8].copy_from_slice(&self.key.to_le_bytes());
        block[8..16].copy_from_slice(&self.lba.to_le_bytes());
        block[16..20].copy_from_slice(&self.generation.to_le_bytes());
        let mut x = mix(self.key ^ mix(self.lba ^ u64::from(self.generation) << 40)) | 1;
        for word in block[FILL..end].chunks_mut(8) {
            // A Weyl sequence, folded once: a nanosecond for 8 bytes, and no two blocks alike.
            x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let filler = (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            word.copy_from_slice(&(filler ^ (filler >> 32)).to_le_bytes()[..word.len()]);
        }
        let crc = crc32c::crc32c(&block[..end]);
        block[end..].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads the stamp of an undamaged block. `None` if the checksum is wrong.
    pub fn read(block: &[u8]) -> Option<Self> {
        let (body, crc) = block.split_last_chunk::<4>()?;
        if crc32c::crc32c(body).to_le_bytes() != *crc {
            return None;
        }
        Some(Self {
            key: u64::from_le_bytes(*body.first_chunk()?),
            lba: u64::from_le_bytes(*body[8..].first_chunk()?),
            generation: u32::from_le_bytes(*body[16..].first_chunk()?),
        })
    }
}

/// Fills a whole write: blocks from `lba` on.
pub(crate) fn fill(bytes: &mut [u8], block_size: usize, key: u64, lba: u64, generation: u32) {
    for (block, lba) in bytes.chunks_exact_mut(block_size).zip(lba..) {
        Stamp { key, lba, generation }.write(block);
    }
}

/// How a block differs from what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Difference {
    /// Not at all.
    None,
    /// So many bits differ, the first in this byte.
    Bits { count: u32, first: u32 },
    /// One end of the block is right, the other is something else: `right` bytes are right.
    Half { right: u32 },
    /// It has nothing to do with it.
    All,
}

/// Another generation of the same place is right up to its generation, which ends before this.
const LEAST_RIGHT: usize = 24;

/// Compares a block with what it should be.
pub(crate) fn compare(block: &[u8], stamp: Stamp) -> Difference {
    let mut right = vec![0; block.len()];
    stamp.write(&mut right);
    let differs = |at: &usize| block[*at] != right[*at];
    let Some(first) = (0..block.len()).find(differs) else { return Difference::None };
    let last = (0..block.len()).rfind(differs).unwrap_or(first);
    let bits = |at: usize| (block[at] ^ right[at]).count_ones();
    let count: u32 = (first..=last).map(bits).sum();
    // Unrelated bytes differ in every other bit, or are all alike; flipped bits are few.
    let span = (last + 1 - first) as u32 * 8;
    let (head, tail) = (first, block.len() - 1 - last);
    if span >= 128 && count > span / 4 {
        // The checksum at the end is wrong as soon as anything is, so it says nothing.
        return match head.max(tail) {
            equal if equal >= LEAST_RIGHT => Difference::Half { right: equal as u32 },
            _ => Difference::All,
        };
    }
    Difference::Bits { count, first: first as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stamp() -> impl Strategy<Value = Stamp> {
        (any::<u64>(), any::<u64>(), any::<u32>()).prop_map(|(key, lba, generation)| Stamp {
            key,
            lba,
            generation,
        })
    }

    fn block(stamp: Stamp, size: usize) -> Vec<u8> {
        let mut block = vec![0; size];
        stamp.write(&mut block);
        block
    }

    #[test]
    fn a_write_is_stamped_block_by_block() {
        let mut bytes = vec![0; 4 * 512];
        fill(&mut bytes, 512, 7, 100, 3);
        for (n, block) in bytes.chunks(512).enumerate() {
            let stamp = Stamp { key: 7, lba: 100 + n as u64, generation: 3 };
            assert_eq!(Stamp::read(block), Some(stamp));
        }
    }

    proptest! {
        #[test]
        fn a_stamp_is_read_as_it_was_written(stamp in stamp(), size in 0u32..4) {
            let block = block(stamp, 512 << size);
            prop_assert_eq!(Stamp::read(&block), Some(stamp));
            prop_assert_eq!(compare(&block, stamp), Difference::None);
        }

        #[test]
        fn a_flipped_bit_is_found(stamp in stamp(), at in 0usize..512, bit in 0u8..8) {
            let mut block = block(stamp, 512);
            block[at] ^= 1 << bit;
            prop_assert_eq!(Stamp::read(&block), None);
            let found = Difference::Bits { count: 1, first: at as u32 };
            prop_assert_eq!(compare(&block, stamp), found);
        }

        #[test]
        fn half_a_block_is_told_from_another_one(stamp in stamp(), words in 3usize..61) {
            let old = Stamp { generation: stamp.generation.wrapping_sub(1), ..stamp };
            let (mut torn, old) = (block(stamp, 512), block(old, 512));
            prop_assert_eq!(compare(&old, stamp), Difference::All);
            torn[words * 8..].copy_from_slice(&old[words * 8..]);
            let half = matches!(compare(&torn, stamp), Difference::Half { .. });
            prop_assert!(half, "{:?}", compare(&torn, stamp));
            prop_assert_eq!(compare(&vec![0; 512], stamp), Difference::All);
        }
    }
}
