//! TLS 1.3 (RFC 8446) with external pre-shared keys, both ends: the handshake, and the keys of the records that follow.
//!
//! The crate is pure: received bytes, keys and random numbers go in, bytes to send come out, and in the end a
//! [`Session`] with the traffic keys, for the kernel (kTLS) or for [`record`]. It does no I/O, reads no clock and starts
//! no thread.
//!
//! What there is: key establishment `psk_dhe_ke`, the groups X25519 and secp256r1, the cipher suites
//! TLS_AES_128_GCM_SHA256 and TLS_AES_256_GCM_SHA384, HelloRetryRequest, and the compatibility mode for middleboxes.
//! What there is not, and is refused: certificates, tickets, early data, older versions.
//!
//! * [`server`], [`client`]: both ends.
//! * [`exchange`]: Diffie-Hellman, as a job that any thread computes.
//! * [`suite`]: cipher suites and their hashes.
//! * [`record`]: protected records.
//! * [`traffic`]: keys of one direction.
//! * [`error`]: what may be wrong, and the alert that says so.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod client;
pub mod error;
pub mod exchange;
mod hello;
mod receive;
pub mod record;
mod schedule;
pub mod server;
pub mod suite;
pub mod traffic;
mod wire;

pub use error::{Alert, Error};

use alloc::vec::Vec;
use suite::{Hash, Suite};
use traffic::TrafficKey;
use zeroize::Zeroizing;

/// Fills a slice with random bytes; false if there are none.
pub type Random<'a> = &'a mut dyn FnMut(&mut [u8]) -> bool;

/// An external pre-shared key.
#[derive(Clone)]
pub struct Psk {
    /// The hash that it is for, and so the cipher suite.
    pub hash: Hash,
    /// The key.
    pub key: Zeroizing<Vec<u8>>,
}

/// What a finished handshake leaves.
pub struct Session {
    /// The cipher suite.
    pub suite: Suite,
    /// The identity of the key.
    pub identity: Vec<u8>,
    /// Which of the keys for this identity it was, counted from zero.
    pub candidate: usize,
    /// For records to the other end.
    pub send: TrafficKey,
    /// For records from the other end.
    pub receive: TrafficKey,
}

/// What comes next.
pub enum Next {
    /// More bytes: as many as `wants` says at most.
    Receive,
    /// Compute this, anywhere, and give it to `computed`.
    Compute(exchange::Job),
    /// The handshake is over: take the [`Session`] after what is to be sent.
    Done,
}
