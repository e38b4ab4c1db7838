//! Checks and fills in the block sizes of a volume.

use crate::{OpenError, VolumeSpec};

/// Initiators align to the physical block size, and no drive has larger ones. (A ZFS zvol may: its
/// record size. READ CAPACITY (16) has 4 bits for the exponent.)
const MAX_PHYSICAL: u32 = 64 * 1024;

/// The block sizes and the capacity of a volume, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub block_size: u32,
    pub physical_block_size: u32,
    pub blocks: u64,
}

impl Geometry {
    /// `volume` names the volume in errors, `size` is in bytes, `block_size` and `physical` are
    /// what the storage itself has.
    pub fn new(
        spec: &VolumeSpec,
        volume: &str,
        size: u64,
        block_size: u32,
        physical: u32,
    ) -> Result<Self, OpenError> {
        let block_size = spec.block_size.unwrap_or(block_size);
        let volume = || volume.to_owned();
        if block_size != 512 && block_size != 4096 {
            return Err(OpenError::BlockSize { volume: volume(), block_size });
        }
        let physical = spec.physical_block_size.unwrap_or(plausible(physical, block_size));
        if !physical.is_power_of_two() || physical < block_size || physical > MAX_PHYSICAL {
            return Err(OpenError::PhysicalBlockSize { volume: volume(), physical, block_size });
        }
        if size == 0 {
            return Err(OpenError::Empty { volume: volume() });
        }
        if size % u64::from(block_size) != 0 {
            return Err(OpenError::NotMultiple { volume: volume(), size, block_size });
        }
        let blocks = size / u64::from(block_size);
        Ok(Self { block_size, physical_block_size: physical, blocks })
    }
}

/// The physical block size to report for storage that has this one.
fn plausible(physical: u32, block_size: u32) -> u32 {
    if physical.is_power_of_two() { physical.clamp(block_size, MAX_PHYSICAL) } else { block_size }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Storage;

    fn spec(block_size: Option<u32>, physical_block_size: Option<u32>) -> VolumeSpec {
        VolumeSpec {
            block_size,
            physical_block_size,
            ..VolumeSpec::new(Storage::Null { size: 1 << 20 })
        }
    }

    #[test]
    fn takes_the_storages_sizes_unless_told_otherwise() {
        let own = Geometry::new(&spec(None, None), "v", 1 << 20, 512, 4096).unwrap();
        assert_eq!((own.block_size, own.physical_block_size, own.blocks), (512, 4096, 2048));
        let told = Geometry::new(&spec(Some(4096), None), "v", 1 << 20, 512, 512).unwrap();
        assert_eq!((told.block_size, told.physical_block_size, told.blocks), (4096, 4096, 256));
        let told = Geometry::new(&spec(None, Some(512)), "v", 1 << 20, 512, 4096).unwrap();
        assert_eq!(told.physical_block_size, 512);
        for (physical, reported) in [(1 << 20, 65536), (3072, 512), (0, 512)] {
            let odd = Geometry::new(&spec(None, None), "v", 1 << 20, 512, physical).unwrap();
            assert_eq!(odd.physical_block_size, reported);
        }
    }

    #[test]
    fn refuses_sizes_that_cannot_be_served() {
        let block_size = |b| Geometry::new(&spec(Some(b), None), "v", 1 << 20, 512, 512);
        assert!(matches!(block_size(1024), Err(OpenError::BlockSize { block_size: 1024, .. })));
        for physical in [0, 256, 1536, 128 * 1024] {
            let answer = Geometry::new(&spec(None, Some(physical)), "v", 1 << 20, 512, 512);
            assert!(matches!(answer, Err(OpenError::PhysicalBlockSize { .. })), "{physical}");
        }
        let size = |s| Geometry::new(&spec(Some(4096), None), "v", s, 512, 512);
        assert!(matches!(size(0), Err(OpenError::Empty { .. })));
        assert!(matches!(size(4096 + 512), Err(OpenError::NotMultiple { size: 4608, .. })));
    }
}
