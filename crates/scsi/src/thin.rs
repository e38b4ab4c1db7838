//! Logical block provisioning (SBC-4 4.7): what thin volumes say of their space.

use alloc::vec;
use alloc::vec::Vec;

use crate::unit::Unit;

/// The size of a threshold set in bytes: what space is counted in.
const SET: u64 = 1 << 20;

/// Resources that are counted: the parameter codes of the log page, and THRESHOLD RESOURCE.
pub(crate) const AVAILABLE: u16 = 0x01;
pub(crate) const USED: u16 = 0x02;

/// Where the threshold descriptor stands in the Logical Block Provisioning mode page.
pub(crate) const THRESHOLD_DESCRIPTOR: u16 = 16;

/// The volume is thinly provisioned.
const THIN: u8 = 0x02;

/// A number of threshold sets, as wide as the fields for it.
fn sets(bytes: u64) -> u32 {
    u32::try_from(bytes / SET).unwrap_or(u32::MAX)
}

/// THRESHOLD COUNT: with fewer sets available than this, the threshold is reached. `None` without
/// threshold, or while it is not known what it is a part of.
pub(crate) fn threshold_count(unit: &Unit) -> Option<u32> {
    let space = unit.state.space()?;
    unit.threshold.map(|threshold| sets(threshold.least_available(&space)))
}

/// The body of VPD page B2h, Logical Block Provisioning (SBC-4 6.6.7).
pub(crate) fn vpd(unit: &Unit) -> Vec<u8> {
    if !unit.is_thin() {
        return vec![0; 4];
    }
    let exponent = (SET / u64::from(unit.caps.block_size)).ilog2() as u8;
    // LBPRZ 001b: unmapped blocks read as zeroes; 000b: as anything. ANC_SUP and DP are 0.
    let zeroes = u8::from(unit.caps.unmap_zeroes) << 2;
    // LBPU, LBPWS, LBPWS10.
    vec![exponent, 0x80 | 0x40 | 0x20 | zeroes, THIN, 0]
}

/// The parameters of log page 0Ch, Logical Block Provisioning (SBC-4 6.4.4): parameter code, threshold
/// sets, SCOPE.
pub(crate) fn resources(unit: &Unit) -> Vec<(u16, u32, u8)> {
    // 01b: the logical unit's own; 10b: others take of it too.
    match unit.state.space() {
        Some(space) => {
            vec![(AVAILABLE, sets(space.available), 0x02), (USED, sets(space.used), 0x01)]
        }
        None => Vec::new(),
    }
}
