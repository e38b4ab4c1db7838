//! The whole server in a simulated world: one seed is one world, with its hosts, faults and crashes.
#![forbid(unsafe_code)]

pub mod administrator;
pub mod balance;
pub mod cluster;
pub mod commands;
pub mod copies;
pub mod coverage;
pub mod host;
mod intruder;
pub mod iser;
pub mod model;
pub mod nvme;
pub mod rdma;
pub mod records;
pub mod reservations;
pub mod scenario;
pub mod server;
pub mod shrink;
pub mod site;
pub mod stranger;
pub mod visit;
pub mod watch;
pub mod wire;
