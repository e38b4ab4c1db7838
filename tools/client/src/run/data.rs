//! The data of writes.

use std::collections::VecDeque;
use std::rc::Rc;

use lunet_block::Random;

use crate::front::Source;

/// Room for different writes to begin at different bytes.
const SLACK: usize = 256 << 10;

/// Where writes begin.
const GRAIN: usize = 4096;

/// Random bytes, which unverified writes are cut from.
#[derive(Clone)]
pub(super) struct Pattern {
    bytes: Rc<[u8]>,
    next: usize,
}

impl Pattern {
    pub fn new(largest: usize, seed: u64) -> Self {
        let mut bytes = vec![0; largest + SLACK];
        Random::new(seed).fill(&mut bytes);
        Self { bytes: bytes.into(), next: 0 }
    }

    /// Data for a write of `len` bytes, which are not more than the largest.
    pub fn take(&mut self, len: usize) -> Source {
        let start = self.next;
        self.next = if start + GRAIN + len > self.bytes.len() { 0 } else { start + GRAIN };
        Source { bytes: Rc::clone(&self.bytes), start, len, constant: true }
    }
}

/// Memory for verified writes, each of which has data of its own.
pub(super) struct Buffers {
    free: VecDeque<Rc<[u8]>>,
    size: usize,
}

/// A buffer that was given back may still be in a send for a moment.
const TRIES: usize = 4;

impl Buffers {
    pub fn new(size: usize) -> Self {
        Self { free: VecDeque::new(), size }
    }

    /// A buffer, of which `fill` fills the first `len` bytes.
    pub fn take(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Source {
        let mut bytes = self.unused();
        if let Some(bytes) = Rc::get_mut(&mut bytes) {
            fill(&mut bytes[..len]);
        }
        Source { bytes, start: 0, len, constant: false }
    }

    /// A buffer that nothing refers to any more; a new one, if there is none.
    fn unused(&mut self) -> Rc<[u8]> {
        for _ in 0..TRIES {
            let Some(mut bytes) = self.free.pop_front() else { break };
            if Rc::get_mut(&mut bytes).is_some() {
                return bytes;
            }
            self.free.push_back(bytes);
        }
        vec![0; self.size].into()
    }

    /// Takes the buffer of a write back that has ended.
    pub fn give_back(&mut self, source: Source) {
        self.free.push_back(source.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::Outgoing;

    #[test]
    fn a_buffer_that_is_being_sent_is_not_overwritten() {
        let mut buffers = Buffers::new(1024);
        let first = buffers.take(512, |bytes| bytes.fill(1));
        let mut out = Outgoing::default();
        out.data(&first, 0..512);
        buffers.give_back(first.clone());
        let second = buffers.take(512, |bytes| bytes.fill(2));
        assert_eq!((first.as_ref()[0], second.as_ref()[0]), (1, 2));
        drop(first);
        out.0.clear();
        let third = buffers.take(100, |bytes| bytes.fill(3));
        assert_eq!((third.as_ref(), buffers.free.len()), (&[3; 100][..], 0));
    }

    #[test]
    fn writes_are_cut_from_within_the_pattern() {
        let mut pattern = Pattern::new(128 << 10, 1);
        let starts: Vec<usize> = (0..200).map(|_| pattern.take(128 << 10).start).collect();
        assert!(starts.iter().all(|start| start + (128 << 10) <= pattern.bytes.len()));
        assert!(starts[..60].windows(2).all(|pair| pair[0] < pair[1]));
    }
}
