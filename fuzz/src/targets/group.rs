//! The record of a failover group, and what its gateways tell each other.
use lunet_gateway::{Access, Message, Record, Response};
use lunet_group::Shared;

/// One input.
pub fn run(data: &[u8]) {
    // What is read is written as the same bytes again.
    if let Ok(record) = Record::decode(data) {
        assert_eq!(record.encode().expect("it was read"), data);
        assert!(Access::of(&record).0.len() <= record.ports.len());
    }
    if let Ok(shared) = Shared::decode(data) {
        let written = shared.encode().expect("it was read");
        assert_eq!(Shared::decode(&written), Ok(shared));
    }
    if let Ok((of, message)) = Message::decode(data) {
        assert_eq!(message.encode(of), data);
    }
    if let Ok(response) = Response::decode(data) {
        assert_eq!(response.encode(), data);
    }
}
