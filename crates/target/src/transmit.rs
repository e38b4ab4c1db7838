//! The glue between the pure protocol crates and the event loop's memory.

use std::ops::Range;

use lunet_iscsi::digest::Crc32c;
use lunet_iscsi::target::{Payload as IscsiPayload, Transmit};
use lunet_ring::{Payload, TxChain};

/// A payload of the event loop, as the protocol sees it.
pub struct Data(pub Payload);

impl IscsiPayload for Data {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn crc32c(&self, range: Range<usize>, crc: &mut Crc32c) {
        self.0.for_each_chunk(range, |bytes| crc.update(bytes));
    }
}

/// What a connection has to send, in wire order.
#[derive(Default)]
pub struct Outgoing(pub TxChain);

impl Transmit for Outgoing {
    type Payload = Data;

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.bytes(bytes);
    }

    fn payload(&mut self, payload: Data) -> usize {
        self.0.payload(payload.0)
    }

    fn slice(&mut self, id: usize, range: Range<usize>) {
        self.0.slice(id, range);
    }
}
