//! A server in this process, with volumes in memory, and hosts that speak lunet's own protocol crate over real sockets.

mod authentication;
mod commands;
mod concatenation;
mod discovery;
mod faults;
mod host;
mod io;
mod live;
mod queues;
mod reservations;
#[path = "../../../front-iscsi/tests/it/support/stall.rs"]
mod stall;
mod strangers;
mod support;
mod tls;
