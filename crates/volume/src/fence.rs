//! Writes that outlive their command.
//!
//! An aborted write is answered at once, though the storage below may still be working on it, and
//! so is a write whose session ended. If its client wrote the same blocks again, the old data
//! could land on top of the new. So until the storage has let go of it, a command that touches the
//! same blocks is told to try again.

use std::sync::atomic::{AtomicUsize, Ordering};

use lunet_block::ByteRange;
use lunet_os::sync::Mutex;

/// The abandoned writes of one volume, from all shards.
#[derive(Debug, Default)]
pub struct Fence {
    count: AtomicUsize,
    ranges: Mutex<Vec<ByteRange>>,
}

impl Fence {
    /// Keeps commands away from `range` until it is lifted.
    pub(crate) fn raise(&self, range: ByteRange) {
        let mut ranges = self.ranges.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        ranges.push(range);
        self.count.store(ranges.len(), Ordering::Release);
    }

    /// The storage has answered: `range` is free again.
    pub(crate) fn lift(&self, range: ByteRange) {
        let mut ranges = self.ranges.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(at) = ranges.iter().position(|r| *r == range) {
            ranges.swap_remove(at);
        }
        self.count.store(ranges.len(), Ordering::Release);
    }

    /// True if no abandoned write is at the storage.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// True if an abandoned write may still change blocks of `range`. One load of a counter that
    /// stays in every core's cache, unless something was abandoned.
    pub fn blocks(&self, range: ByteRange) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let ranges = self.ranges.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        ranges.iter().any(|r| r.overlaps(range))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_stands_until_each_of_its_writes_is_answered() {
        let fence = Fence::default();
        let (range, other) = (ByteRange::new(4096, 4096), ByteRange::new(0, 4096));
        fence.raise(range);
        fence.raise(range);
        assert!(fence.blocks(ByteRange::new(0, 4097)));
        assert!(!fence.blocks(other));
        fence.lift(range);
        assert!(fence.blocks(range));
        fence.lift(range);
        assert!(!fence.blocks(range));
    }
}
