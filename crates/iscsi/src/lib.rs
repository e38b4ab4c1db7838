//! iSCSI after RFC 7143, both ends, at error recovery level 0 with one connection per session.
//!
//! The crate is pure: received bytes and the time go in, bytes to send and events come out. It
//! does no I/O, reads no clock and starts no thread, so every path can be driven from a test.
//!
//! * [`pdu`]: the 48-byte header of every opcode, additional header segments, codes.
//! * [`text`]: `key=value` data, collected over several PDUs.
//! * [`keys`]: the negotiated keys, their value types and result functions.
//! * [`chap`]: algorithms, secrets and responses of CHAP.
//! * [`digest`]: CRC32C header and data digests.
//! * [`iser`]: the same over RDMA (RFC 7145), and where the transports differ.
//! * [`printable`]: text of strangers, for the eyes of people.
//! * [`target`]: the target's end of a connection.
//! * [`initiator`]: the initiator's end.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod chap;
pub mod digest;
pub mod initiator;
pub mod iser;
pub mod keys;
pub mod pdu;
pub mod printable;
pub mod target;
pub mod text;
mod through;

pub use through::Through;
