//! The controller's end of a connection, which is a queue.
//!
//! [`Connection`] takes received bytes and gives [`Event`]s; what it is told to send goes into a
//! [`Transmit`](crate::transmit::Transmit). It keeps the initialization, digests, R2Ts, the pairing
//! of fused commands and the submission queue's head to itself, so the layer above sees commands
//! and data only.
//!
//! The order of calls for one receive: [`Connection::take_rx_target`], receive into the target
//! first and into a scratch buffer behind it, [`Connection::rx_payload`] with what went into the
//! target, [`Connection::rx_bytes`] with what went into the scratch buffer.

//!
//! A [`Controller`] is what all queues of a host share: properties, keep alive timer, features,
//! asynchronous events, and the commands of the admin queue that need no storage. The layer above
//! gives it those commands, and tells it by a [`Source`] what there is.

mod command;
mod connection;
mod data;
mod event;
mod events;
mod features;
mod pages;
mod rdma;
mod rx;
mod setup;
mod stall;
mod state;
mod task;

pub use connection::{Connection, Counters, Options};
pub use event::{CloseReason, Command, Cx, Event, Site, Tag};
pub use pages::Source;
pub use rdma::{Body, RdmaOptions, RdmaRead, ReadId, Received};
pub use setup::{Kind, Setup, Subsystem};
pub use state::{Answer, Controller, Request};
