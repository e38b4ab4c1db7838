//! What either end writes to.

use crate::digest::Crc32c;
use crate::pdu::{Framing, Header, Type};
use crate::rdma::Remote;
use core::ops::Range;

/// Data that is sent without being copied.
pub trait Payload {
    /// Adds a part of the data to a digest.
    fn crc32c(&self, range: Range<usize>, crc: &mut Crc32c);
}

/// Where a connection writes what is to be sent, in order.
pub trait Transmit {
    /// Data that is sent without being copied.
    type Payload: Payload;

    /// Appends a copy of `bytes`.
    fn bytes(&mut self, bytes: &[u8]);

    /// Appends a part of a payload, which is kept for as long as it is needed.
    fn payload(&mut self, payload: Self::Payload, range: Range<usize>);

    /// Over RDMA: what was appended since the last call is a Send. `invalidate`: the key of the host that it
    /// takes back.
    fn end_send(&mut self, invalidate: Option<u32>) {
        let _ = invalidate;
        debug_assert!(false, "a Send on a stream");
    }

    /// Over RDMA: writes a part of a payload, which is never empty, to the host's memory.
    fn write(&mut self, payload: Self::Payload, range: Range<usize>, to: Remote) {
        let _ = (payload, range, to);
        debug_assert!(false, "an RDMA Write on a stream");
    }

    /// Over RDMA, at the host: puts data of the connection's own command into the memory that it was
    /// given for that, from its first byte on.
    fn keep(&mut self, bytes: &[u8]) {
        let _ = bytes;
        debug_assert!(false, "memory of a stream");
    }

    /// Over RDMA, at the host: copies what is in that memory, from its first byte on.
    fn kept(&mut self, into: &mut [u8]) {
        let _ = into;
        debug_assert!(false, "memory of a stream");
    }
}

/// Where the next bytes of the stream belong.
#[derive(Debug)]
pub struct RxTarget<B> {
    /// The buffer, lent for the time of the receive.
    pub buf: B,
    /// The part of the buffer to fill; never empty.
    pub range: Range<usize>,
}

/// Writes a PDU without data.
pub(crate) fn put<T: Transmit>(
    framing: Framing,
    kind: Type,
    flags: u8,
    mut header: impl Header,
    tx: &mut T,
) {
    let layout = framing.seal(&mut header, kind, flags, 0);
    layout.write(header.as_bytes(), |bytes| tx.bytes(bytes));
}

/// Writes a PDU with small data.
pub(crate) fn put_bytes<T: Transmit>(
    framing: Framing,
    kind: Type,
    mut header: impl Header,
    data: &[u8],
    tx: &mut T,
) {
    // Small: at most 8 KiB.
    let layout = framing.seal(&mut header, kind, 0, data.len() as u32);
    layout.write(header.as_bytes(), |bytes| tx.bytes(bytes));
    tx.bytes(data);
    if layout.data_digest {
        tx.bytes(&crate::digest::crc32c(data));
    }
}

/// Writes a PDU with a part of a payload as its data. Never empty.
pub(crate) fn put_payload<T: Transmit>(
    framing: Framing,
    kind: Type,
    flags: u8,
    mut header: impl Header,
    (payload, range): (T::Payload, Range<usize>),
    tx: &mut T,
) {
    let layout = framing.seal(&mut header, kind, flags, range.len() as u32);
    let digest = layout.data_digest.then(|| {
        let mut crc = Crc32c::default();
        payload.crc32c(range.clone(), &mut crc);
        crc.finish()
    });
    layout.write(header.as_bytes(), |bytes| tx.bytes(bytes));
    tx.payload(payload, range);
    if let Some(digest) = digest {
        tx.bytes(&digest);
    }
}
