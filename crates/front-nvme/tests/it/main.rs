//! A server in this process, with volumes in memory, and hosts that speak lunet's own protocol crate over real sockets.

mod authentication;
mod commands;
mod concatenation;
mod discovery;
mod faults;
mod group_reservations;
mod groups;
mod host;
mod io;
mod limits;
mod live;
#[path = "../../../front-iscsi/tests/it/support/gateway.rs"]
mod machine;
mod queues;
#[path = "../../../front-iscsi/tests/it/support/record.rs"]
mod record;
mod relays;
mod reservations;
#[path = "../../../front-iscsi/tests/it/support/stall.rs"]
mod stall;
mod strangers;
mod support;
mod tls;
