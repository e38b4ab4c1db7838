//! The target's end of a connection.
//!
//! [`Connection`] takes received bytes and gives [`Event`]s; what it is told to send goes into a
//! [`Transmit`]. It keeps the sequence numbers, the command window, segmenting, digests, R2T,
//! residuals, NOP, text and logout to itself, so the layer above sees commands and data only.
//!
//! The order of calls for one receive: [`Connection::take_rx_target`], receive into the target
//! first and into a scratch buffer behind it, [`Connection::rx_payload`] with what went into the
//! target, [`Connection::rx_bytes`] with what went into the scratch buffer.
//!
//! Over RDMA (see [`iser`](crate::iser)) a receive is one [`Connection::rx_send`]. After each call,
//! [`Connection::take_rdma_read`] gives the RDMA Reads to post, and [`Connection::rdma_read_done`]
//! takes their buffers back.

mod authentication;
mod command;
mod connection;
mod control;
mod counters;
mod data_in;
mod data_out;
mod event;
mod held;
mod login;
mod mover;
pub mod negotiation;
pub mod options;
mod out;
mod rdma;
mod rx;
mod site;
mod stall;
mod task;
mod text_phase;
mod tmf;
mod transfer;
mod window;

pub use authentication::{AuthenticationError, Credentials};
pub use connection::Connection;
pub use counters::Counters;
pub use event::{Asked, CloseReason, Command, Event, Response, TransferError, Wanted};
pub use options::{DigestPolicy, Options};
pub use rdma::{Body, RdmaFault, RdmaOptions, RdmaRead, ReadId, Received, SendFault};
pub use site::{
    Cx, LoginIdentity, LoginRefusal, Payload, RxTarget, SendTargets, SessionType, Site, TargetInfo,
    Transmit,
};
pub use task::Tag;

#[cfg(test)]
mod tests;
