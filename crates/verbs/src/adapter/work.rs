//! Work as it is described, and the numbers that bring its end back to it.

use std::fmt;
use std::ops::Range;

use arrayvec::ArrayVec;
use lunet_ring::{Key, Payload};

/// The longest head of a send, in bytes: an iSER header of 28, a basic header segment of 48, and the
/// 128 bytes of data that Linux takes with it.
pub const HEAD_MAX: usize = 256;

/// Sends of at most so many bytes are copied into the queue itself, if the device can: a response
/// without sense data fits.
pub(super) const INLINE: u32 = 128;

/// Pieces of memory in one work request, its head among them.
pub(super) const SGES: usize = 4;

/// Data that is sent or written, in order: payloads, and the range of each.
pub type Pieces = ArrayVec<(Payload, Range<usize>), { SGES - 1 }>;

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address in the peer's memory.
    pub address: u64,
    /// The key that the peer has given (STag, rkey).
    pub key: u32,
}

/// Why work was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// As much is in flight as the queue holds: try again after a completion.
    Full,
    /// The endpoint is gone, or its device refuses.
    Ended,
    /// A range lies beyond its payload or in memory that is not registered.
    NotRegistered,
    /// A head beyond [`HEAD_MAX`], or a piece of 4 GiB or more.
    TooLong,
}

/// Work that was not queued, with its memory.
pub struct NotQueued<T> {
    /// Why.
    pub why: Why,
    /// What was to be queued.
    pub back: T,
}

impl<T> fmt::Debug for NotQueued<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotQueued").field("why", &self.why).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for NotQueued<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.why {
            Why::Full => "the queue of the RDMA connection is full: try again after a completion",
            Why::Ended => "the RDMA connection has ended: connect again",
            Why::NotRegistered => {
                "the memory is not registered with the RDMA device: copy it first"
            }
            Why::TooLong => "the message is too long for one RDMA operation: cut it",
        })
    }
}

impl<T> std::error::Error for NotQueued<T> {}

/// Generations of endpoints that fit the number of a work request.
pub(super) const ENDPOINT_GENERATIONS: u32 = (1 << 15) - 1;

/// Endpoints that an adapter may have.
pub(super) const ENDPOINTS: usize = 1 << 16;

/// Generations of receives that fit.
pub(super) const RECEIVE_GENERATIONS: u32 = (1 << 31) - 1;

const RECEIVE: u64 = 1 << 63;

/// What the number of a work request says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkId {
    /// A receive's place.
    Receive(Key),
    /// An endpoint's place, and which of its sends, writes and reads: they are numbered in the order
    /// in which they were queued, and end in that order.
    Send(Key, u32),
}

impl WorkId {
    pub(super) fn to_number(self) -> u64 {
        match self {
            Self::Receive(key) => RECEIVE | u64::from(key.generation) << 32 | u64::from(key.index),
            Self::Send(key, sequence) => {
                u64::from(key.generation) << 48 | u64::from(key.index) << 32 | u64::from(sequence)
            }
        }
    }

    pub(super) const fn from_number(number: u64) -> Self {
        if number & RECEIVE != 0 {
            let generation = (number >> 32) as u32 & RECEIVE_GENERATIONS;
            return Self::Receive(Key { index: number as u32, generation });
        }
        let generation = (number >> 48) as u32 & ENDPOINT_GENERATIONS;
        let index = (number >> 32) as u32 & (ENDPOINTS as u32 - 1);
        Self::Send(Key { index, generation }, number as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_work_come_back_as_they_went() {
        for (index, generation) in [(0, 0), (65_535, ENDPOINT_GENERATIONS), (1, 2)] {
            for sequence in [0, 7, u32::MAX] {
                let id = WorkId::Send(Key { index, generation }, sequence);
                assert_eq!(WorkId::from_number(id.to_number()), id);
            }
        }
        for (index, generation) in [(0, 0), (u32::MAX, RECEIVE_GENERATIONS), (1, 2)] {
            let id = WorkId::Receive(Key { index, generation });
            assert_eq!(WorkId::from_number(id.to_number()), id);
        }
    }
}
