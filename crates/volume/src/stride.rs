//! What a thread does for a copy from volume to volume: it looks what of the source is data, and lets the storage copy
//! that. A thin volume's copy stays thin.

use lunet_block::{ByteRange, Error, Extent, Support};

use crate::volume::Volume;

/// Holes shorter than this are copied like data, in bytes: to leave them out costs more.
const HOLE: u64 = 64 << 10;

/// How many parts of the source are looked at in one go.
const LOOK: usize = 64;

/// How a copy goes on. Lengths are whole blocks of both volumes, from the start on, and not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stride {
    /// So much has been copied.
    Copied(u64),
    /// So much is to read as zeroes.
    Hole(u64),
    /// So much is data that the storage cannot copy.
    Data(u64),
    /// The storage can neither tell data from holes nor copy.
    Blind,
}

impl<F> Volume<F> {
    /// Does what the storage can do to copy `from` of another volume to offset `at` of this one. Blocks.
    ///
    /// # Errors
    /// The storage's.
    pub(crate) fn copy_from(
        &self,
        at: u64,
        source: &Self,
        from: ByteRange,
    ) -> Result<Stride, Error> {
        let (reads, writes) = (source.backend.slow(), self.backend.slow());
        let caps = &self.caps;
        // Unmapped blocks are as good as zeroes only where they read so.
        let thin = source.caps.unmap_zeroes && caps.write_zeroes == Support::Native;
        let extents = if thin { reads.extents(from, LOOK).unwrap_or_default() } else { Vec::new() };
        let data = match first_run(&extents, from.len, u64::from(caps.block_size)) {
            Some((true, len)) => len,
            Some((false, len)) => return Ok(Stride::Hole(len)),
            None => from.len,
        };
        match writes.copy_from(at, reads, ByteRange::new(from.offset, data)) {
            Ok(copied) if copied > 0 => Ok(Stride::Copied(copied.min(data))),
            Ok(_) | Err(Error::Unsupported) if extents.is_empty() => Ok(Stride::Blind),
            Ok(_) | Err(Error::Unsupported) => Ok(Stride::Data(data)),
            Err(error) => Err(error),
        }
    }
}

/// How much from the start of a range of `len` bytes on is data (true) or a hole, in whole blocks of `block` bytes.
/// `None` if that is not known.
fn first_run(extents: &[Extent], len: u64, block: u64) -> Option<(bool, u64)> {
    let is_hole = |extent: &Extent| !extent.mapped && extent.range.len >= HOLE.min(len);
    let first = extents.first()?;
    let hole = first.range.len - first.range.len % block;
    if is_hole(first) && hole > 0 {
        return Some((false, hole));
    }
    let data: u64 =
        extents.iter().take_while(|extent| !is_hole(extent)).map(|extent| extent.range.len).sum();
    Some((true, data.max(block).next_multiple_of(block).min(len)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;

    fn run(parts: &[(bool, u64)], len: u64, block: u64) -> Option<(bool, u64)> {
        let mut at = 4096;
        let extent = |(mapped, len): &(bool, u64)| {
            at += len;
            Extent { range: ByteRange::new(at - len, *len), mapped: *mapped }
        };
        first_run(&parts.iter().map(extent).collect::<Vec<_>>(), len, block)
    }

    #[test]
    fn long_holes_are_left_out_and_short_ones_are_data() {
        assert_eq!(run(&[], 1 << 20, 512), None);
        assert_eq!(run(&[(true, 1 << 20)], 1 << 20, 512), Some((true, 1 << 20)));
        assert_eq!(run(&[(false, 1 << 20)], 1 << 20, 512), Some((false, 1 << 20)));
        let parts = [(false, 4 * KIB), (true, 8 * KIB), (false, 60 * KIB), (true, 8 * KIB)];
        assert_eq!(run(&parts, 80 * KIB, 512), Some((true, 80 * KIB)));
        let parts = [(true, 8 * KIB), (false, 64 * KIB), (true, 8 * KIB)];
        assert_eq!(run(&parts, 80 * KIB, 512), Some((true, 8 * KIB)));
        assert_eq!(run(&parts[1..], 72 * KIB, 512), Some((false, 64 * KIB)));
        // All of a short range.
        assert_eq!(run(&[(false, 8 * KIB)], 8 * KIB, 512), Some((false, 8 * KIB)));
    }

    #[test]
    fn runs_end_on_blocks_of_the_destination() {
        let parts = [(true, 512), (false, 128 * KIB)];
        assert_eq!(run(&parts, 128 * KIB + 512, 4096), Some((true, 4096)));
        let parts = [(false, 64 * KIB + 512), (true, 8 * KIB - 512)];
        assert_eq!(run(&parts, 72 * KIB, 4096), Some((false, 64 * KIB)));
        let parts = [(false, 64 * KIB), (true, 512)];
        assert_eq!(run(&parts[1..], 4096, 4096), Some((true, 4096)));
    }
}
