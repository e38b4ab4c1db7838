//! `lunet bench net`: what the way between two machines carries, over TCP.
//!
//! One side listens, the other connects with several streams at once and measures each direction for a while and the round
//! trip of a small message. Both sides are bounded: streams, time, and how long they wait for each other.
//!
//! The protocol: the client opens each connection with a hello of 32 bytes (magic, version, what, milliseconds; numbers with
//! the most significant byte first), and the server answers with 16 (magic, version, status). Then one byte of the client
//! begins. `SEND`: the client sends until its time is over and closes its side; the server answers with the number of bytes that
//! arrived. `RECEIVE`: the server sends for that long and closes. `PING`: the server sends back each message of 64 bytes.

mod client;
mod server;
mod wire;

use std::io;

pub use client::{Measured, Plan, loopback, measure};
pub use server::{Limits, serve};
pub use wire::VERSION;

/// Streams at once, on either side.
pub const MOST_STREAMS: u32 = 64;
/// Seconds of one direction.
pub const MOST_SECONDS: u64 = 60;

/// Why the network was not measured.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// What was asked for is beyond the bounds.
    #[error("{0}")]
    Plan(String),
    /// Nobody answers there.
    #[error(
        "{address} does not answer ({error}): start `lunet bench net serve` there, and look at firewalls"
    )]
    Connect {
        /// Where.
        address: String,
        /// What the system says.
        error: io::Error,
    },
    /// Something else answers there.
    #[error("what answers at {0} is not lunet bench net")]
    Stranger(String),
    /// It speaks another version.
    #[error(
        "{address} speaks version {theirs} of this protocol, and this is version {VERSION}: use the same lunet on both sides"
    )]
    Version {
        /// Where.
        address: String,
        /// Protocol version of the other end.
        theirs: u32,
    },
    /// It has too much to do.
    #[error("{0} measures with somebody else: try again later")]
    Busy(String),
    /// It ended early.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
}
