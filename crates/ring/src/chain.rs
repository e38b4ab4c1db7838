//! What is to be sent on a socket: headers and payloads in wire order.

use std::ops::Range;

use crate::Payload;

/// Memory for plain bytes that [`TxChain::clear`] keeps, so that a rare long text answer does not
/// stay with its connection for ever.
const KEEP_BYTES: usize = 64 << 10;

/// The most memory ranges in one message: the kernel's `UIO_MAXIOV`.
const MAX_VECTORS: usize = 1024;

/// The most bytes in one message, unless its first range alone is longer. The kernel copies a
/// message into pages, and reuses those of the messages before. While it all fits into the second
/// level cache, 128 KiB reads cost up to a quarter less and go up to a third faster than with 4 MiB
/// in one message (loopback, Zen 5 with 1 MiB: 400 to 920 KiB are alike; with more the gain is
/// gone, and with 270 KiB there is a loss).
const MAX_MESSAGE: usize = 768 << 10;

#[derive(Clone, Copy, Debug)]
enum Segment {
    /// A range of the chain's plain bytes.
    Bytes { start: usize, len: usize },
    /// A range of a payload.
    Slice { id: usize, start: usize, len: usize },
}

/// Bytes and slices of payloads, in wire order. Bytes are copied in, payloads are not. Reused
/// after [`clear`](Self::clear), it allocates nothing in steady state.
#[derive(Debug, Default)]
pub struct TxChain {
    bytes: Vec<u8>,
    payloads: Vec<Payload>,
    segments: Vec<Segment>,
    len: usize,
    vectors: Vec<libc::iovec>,
    sent: usize,
}

impl TxChain {
    /// An empty chain.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a copy of `bytes` at the end.
    pub fn bytes(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        match self.segments.last_mut() {
            Some(Segment::Bytes { len, .. }) => *len += bytes.len(),
            _ => self.segments.push(Segment::Bytes { start: self.bytes.len(), len: bytes.len() }),
        }
        self.bytes.extend_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Hands over a payload, of which [`slice`](Self::slice) then sends parts. Returns its number
    /// in this chain. It is dropped by [`clear`](Self::clear).
    pub fn payload(&mut self, payload: Payload) -> usize {
        self.payloads.push(payload);
        self.payloads.len() - 1
    }

    /// Adds a part of payload `id` at the end.
    ///
    /// # Panics
    /// If there is no such payload or the range does not lie in it.
    pub fn slice(&mut self, id: usize, range: Range<usize>) {
        let available = self.payloads[id].len();
        assert!(range.start <= range.end && range.end <= available, "beyond the payload");
        let (start, len) = (range.start, range.end - range.start);
        if len == 0 {
            return;
        }
        self.segments.push(Segment::Slice { id, start, len });
        self.len += len;
    }

    /// The plain bytes of the chain, without the slices among them: for transports that send no stream.
    pub fn plain(&self) -> &[u8] {
        &self.bytes
    }

    /// Takes back the payload that was handed over last, if nothing of it was added: for transports that
    /// move data by other means.
    pub fn take_payload(&mut self) -> Option<Payload> {
        let id = self.payloads.len().checked_sub(1)?;
        let added = |s: &Segment| matches!(*s, Segment::Slice { id: other, .. } if other == id);
        if self.segments.iter().any(added) { None } else { self.payloads.pop() }
    }

    /// Bytes in the chain.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True if there is nothing to send.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True if one of the payloads that were handed over is such a one. They stay until [`clear`](Self::clear), sent or not.
    pub fn has(&self, such: impl FnMut(&Payload) -> bool) -> bool {
        self.payloads.iter().any(such)
    }

    /// Number of payloads handed over so far: the number that the next one gets.
    pub fn payloads(&self) -> usize {
        self.payloads.len()
    }

    /// Empties the chain and drops its payloads; its own memory is kept for reuse.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEEP_BYTES);
        self.payloads.clear();
        self.segments.clear();
        self.vectors.clear();
        self.len = 0;
        self.sent = 0;
    }

    /// A copy of all that is to be sent.
    #[cfg(feature = "simulated")]
    pub(crate) fn gathered(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.len);
        for segment in &self.segments {
            match *segment {
                Segment::Bytes { start, len } => all.extend(&self.bytes[start..start + len]),
                Segment::Slice { id, start, len } => {
                    self.payloads[id].for_each_chunk(start..start + len, |chunk| all.extend(chunk));
                }
            }
        }
        all
    }

    /// Builds the list of memory ranges to send. The pointers stay valid until the chain is
    /// changed or dropped, wherever it is moved: all of them lead to the heap, the arena or a
    /// region that a payload keeps alive.
    pub(crate) fn prepare(&mut self) {
        self.vectors.clear();
        self.sent = 0;
        for segment in &self.segments {
            let (base, len) = match *segment {
                Segment::Bytes { start, len } => (self.bytes[start..].as_ptr(), len),
                Segment::Slice { id, start, len } => {
                    (self.payloads[id].start().wrapping_add(start), len)
                }
            };
            self.vectors.push(libc::iovec { iov_base: base.cast_mut().cast(), iov_len: len });
        }
    }

    /// The ranges that are still to be sent.
    pub(crate) fn unsent(&self) -> &[libc::iovec] {
        &self.vectors[self.sent..]
    }

    /// The ranges that go into the next message: at least one, if there is one.
    pub(crate) fn next_message(&self) -> &[libc::iovec] {
        let unsent = self.unsent();
        let (mut count, mut bytes) = (0, 0);
        for vector in unsent.iter().take(MAX_VECTORS) {
            bytes += vector.iov_len;
            if count > 0 && bytes > MAX_MESSAGE {
                break;
            }
            count += 1;
        }
        &unsent[..count]
    }

    /// Notes that `n` further bytes were sent.
    pub(crate) fn advance(&mut self, mut n: usize) {
        while let Some(vector) = self.vectors.get_mut(self.sent) {
            if n < vector.iov_len {
                vector.iov_base = vector.iov_base.wrapping_byte_add(n);
                vector.iov_len -= n;
                return;
            }
            n -= vector.iov_len;
            self.sent += 1;
        }
        debug_assert_eq!(n, 0, "more was sent than the chain holds");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gather(vectors: &[libc::iovec]) -> Vec<u8> {
        let mut all = Vec::new();
        for v in vectors {
            // SAFETY: the chain that the vectors were made from is alive and unchanged.
            all.extend_from_slice(unsafe {
                std::slice::from_raw_parts(v.iov_base.cast::<u8>(), v.iov_len)
            });
        }
        all
    }

    fn sample() -> (TxChain, Vec<u8>) {
        let mut chain = TxChain::new();
        chain.bytes(b"header ");
        chain.bytes(b"one ");
        let id = chain.payload(Payload::Bytes(b"0123456789".to_vec()));
        chain.slice(id, 2..5);
        chain.slice(id, 7..7);
        chain.bytes(b" header two ");
        chain.slice(id, 5..10);
        (chain, b"header one 234 header two 56789".to_vec())
    }

    #[test]
    fn bytes_and_payloads_can_be_had_without_a_stream() {
        let (mut chain, _) = sample();
        assert_eq!(chain.plain(), b"header one  header two ");
        assert!(chain.take_payload().is_none(), "a part of it is to be sent");
        chain.payload(Payload::Bytes(vec![1, 2]));
        assert_eq!(chain.take_payload().expect("nothing of it is to be sent").len(), 2);
        chain.clear();
        assert!(chain.plain().is_empty() && chain.take_payload().is_none());
    }

    #[test]
    fn messages_are_bounded_in_ranges_and_bytes() {
        let mut chain = TxChain::new();
        let id = chain.payload(Payload::Bytes(vec![7; 300 << 10]));
        for _ in 0..5 {
            chain.slice(id, 0..300 << 10);
        }
        chain.prepare();
        let mut messages = Vec::new();
        while !chain.unsent().is_empty() {
            let message: usize = chain.next_message().iter().map(|v| v.iov_len).sum();
            messages.push(message >> 10);
            chain.advance(message);
        }
        assert_eq!(messages, [600, 600, 300]);
        chain.clear();
        let id = chain.payload(Payload::Bytes(vec![7; 2 << 20]));
        chain.slice(id, 0..2 << 20);
        for _ in 0..3000 {
            chain.slice(id, 0..1);
        }
        chain.prepare();
        assert_eq!(chain.next_message().len(), 1, "one long range is a message of its own");
        chain.advance(2 << 20);
        assert_eq!(chain.next_message().len(), MAX_VECTORS);
    }

    #[test]
    fn the_chain_keeps_wire_order_and_joins_neighbouring_bytes() {
        let (mut chain, expected) = sample();
        chain.prepare();
        assert_eq!((gather(chain.unsent()), chain.unsent().len()), (expected.clone(), 4));
        assert_eq!(chain.len(), expected.len());
    }

    #[test]
    fn partial_sends_of_any_size_lose_nothing() {
        for step in 1..40 {
            let (mut chain, expected) = sample();
            chain.prepare();
            let mut sent = 0;
            while sent < expected.len() {
                assert_eq!(gather(chain.unsent()), expected[sent..]);
                let n = step.min(expected.len() - sent);
                chain.advance(n);
                sent += n;
            }
            assert!(chain.unsent().is_empty());
        }
    }

    #[test]
    fn clear_drops_the_payloads_and_starts_afresh() {
        let arena = crate::Arena::new(1 << 20).expect("a small mapping");
        let (mut chain, _) = sample();
        chain.payload(arena.alloc(4096).expect("room").into());
        chain.clear();
        assert_eq!(arena.free_bytes(), arena.total_bytes());
        assert!(chain.is_empty());
        chain.bytes(b"next");
        chain.prepare();
        assert_eq!(gather(chain.unsent()), b"next");
    }

    #[test]
    #[should_panic(expected = "beyond the payload")]
    fn a_slice_beyond_the_payload_is_a_bug_of_the_caller() {
        let mut chain = TxChain::new();
        let id = chain.payload(Payload::Bytes(vec![0; 10]));
        chain.slice(id, 5..11);
    }
}
