//! NVMe over Fabrics: the commands of NVMe 2.0, both ends of NVMe/TCP, and the controller's end of
//! NVMe over RDMA.
//!
//! The crate is pure: received bytes and the time go in, bytes to send and events come out. It
//! does no I/O, reads no clock and starts no thread, so every path can be driven from a test.
//!
//! * [`pdu`]: the header of every PDU, its layout on the wire, its digests and what may be wrong.
//! * [`digest`]: CRC32C header and data digests.
//! * [`name`]: NVMe Qualified Names.
//! * [`fabrics`]: Connect, properties, authentication and Disconnect.
//! * [`command`]: admin and I/O commands, where their data is, how they complete.
//! * [`status`]: status codes.
//! * [`identify`], [`log`], [`feature`]: what a controller says of itself and its namespaces.
//! * [`rdma`]: connecting over RDMA, and the memory of hosts.
//! * [`reservation`]: reports of reservations, and how SCSI and NVMe share them.
//! * [`transmit`]: what either end writes to, and receives into.
//! * [`controller`]: the controller's end of a connection.
//! * [`host`]: the host's end.
//! * [`auth`]: DH-HMAC-CHAP, and the keys of TLS.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod auth;
mod code;
pub mod command;
pub mod controller;
pub mod digest;
pub mod fabrics;
pub mod feature;
pub mod host;
pub mod identify;
pub mod log;
pub mod name;
pub mod pdu;
pub mod rdma;
pub mod reservation;
pub mod status;
mod stream;
mod through;
pub mod transmit;

pub use through::Through;
