//! Data on its way out, wherever it lies.

use std::ops::Range;
use std::rc::Rc;

use crate::{Buf, Mapped};

/// Bytes copied at a time to compute a digest over shared memory.
const CHUNK: usize = 4096;

/// Data that a [`TxChain`](crate::TxChain) sends without copying it.
#[derive(Debug)]
pub enum Payload {
    /// A buffer of the event loop's arena.
    Buf(Buf),
    /// A part of a memory volume.
    Mapped(Mapped),
    /// Plain bytes: parameter data and the like.
    Bytes(Vec<u8>),
    /// Plain bytes that many chains of this thread send, and that nobody changes meanwhile.
    Shared(Rc<[u8]>),
}

impl Payload {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Buf(buf) => buf.len(),
            Self::Mapped(mapped) => mapped.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::Shared(bytes) => bytes.len(),
        }
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Shows the bytes of a range in order, in one piece or many. Shared memory is copied through
    /// a small buffer on the stack, because other threads may write to it.
    ///
    /// # Panics
    /// If the range does not lie in the payload.
    pub fn for_each_chunk(&self, range: Range<usize>, mut each: impl FnMut(&[u8])) {
        match self {
            Self::Buf(buf) => each(&buf[range]),
            Self::Bytes(bytes) => each(&bytes[range]),
            Self::Shared(bytes) => each(&bytes[range]),
            Self::Mapped(mapped) => {
                let mut chunk = [0; CHUNK];
                let mut at = range.start;
                while at < range.end {
                    let n = CHUNK.min(range.end - at);
                    mapped.read(at, &mut chunk[..n]);
                    each(&chunk[..n]);
                    at += n;
                }
            }
        }
    }

    /// The first byte. Valid while the payload lives and is not changed, wherever it is moved. For
    /// devices and the kernel: other threads may write to a part of a memory volume.
    pub fn start(&self) -> *const u8 {
        match self {
            Self::Buf(buf) => buf.start().as_ptr(),
            Self::Mapped(mapped) => mapped.start(),
            Self::Bytes(bytes) => bytes.as_ptr(),
            Self::Shared(bytes) => bytes.as_ptr(),
        }
    }
}

impl From<Buf> for Payload {
    fn from(buf: Buf) -> Self {
        Self::Buf(buf)
    }
}

impl From<Mapped> for Payload {
    fn from(mapped: Mapped) -> Self {
        Self::Mapped(mapped)
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<Rc<[u8]>> for Payload {
    fn from(bytes: Rc<[u8]>) -> Self {
        Self::Shared(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Arena, Region, RegionRef};

    #[test]
    fn every_kind_shows_the_same_bytes() {
        let data: Vec<u8> = (0..20_000u32).map(|i| (i % 251) as u8).collect();
        let arena = Arena::new(1 << 20).expect("a small mapping");
        let mut buf = arena.alloc(data.len()).expect("room");
        buf.copy_from_slice(&data);
        let region = RegionRef::new(Arc::new(Region::new(1 << 20).expect("a small mapping")));
        region.region().write(777, &data);
        let mapped = region.map(777..777 + data.len() as u64);
        let shared: Rc<[u8]> = Rc::from(data.as_slice());
        let all = [Payload::from(buf), mapped.into(), data.clone().into(), shared.into()];
        for payload in all {
            assert_eq!(payload.len(), data.len());
            for range in [0..data.len(), 3..4099, 5000..5000] {
                let mut seen = Vec::new();
                payload.for_each_chunk(range.clone(), |chunk| seen.extend_from_slice(chunk));
                assert_eq!(seen, data[range], "{payload:?}");
            }
        }
    }
}
