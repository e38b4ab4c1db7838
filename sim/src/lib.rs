//! The whole server in a simulated world: one seed is one world, with its hosts, faults and crashes.
#![forbid(unsafe_code)]

pub mod host;
pub mod model;
pub mod scenario;
pub mod site;
