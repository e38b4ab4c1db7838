//! Attaches this machine to a target over the network, says what is attached, and takes back what was done.
//!
//! | module | what |
//! |---|---|
//! | [`address`] | what is meant: host, name, unit, and a transport or none |
//! | [`host`] | what this machine has: initiators, names, modules, sessions |
//! | [`server`] | what the server offers: the only module that speaks to it |
//! | [`plan`] | from both to steps: a pure function |
//! | [`step`] | a step: its commands, how it is done, how it is taken back |
//! | [`journal`] | what was done, written down before it is done |
//! | [`attach`], [`detach`], [`status`] | the plan carried out, taken back, looked at |
//! | [`script`] | the same for machines that lunet does not run on |
//! | [`system`] | programs, files and devices of this machine, or of one that tests make up |
#![forbid(unsafe_code)]

pub mod address;
pub mod attach;
pub mod detach;
pub mod disk;
pub mod host;
pub mod journal;
pub mod page;
pub mod plan;
pub mod profile;
pub mod script;
pub mod server;
pub mod status;
pub mod step;
pub mod system;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

pub use lunet_host::apply::{Fault, Lock};
