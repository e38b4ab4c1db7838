//! The server as a process: what it does at its start, live change, the control socket, the helper, the sandbox, and failover
//! groups.
#![forbid(unsafe_code)]

#[cfg(feature = "control")]
mod announce;
pub mod audit;
mod belongs;
pub mod control;
mod copies;
pub mod exposure;
mod failures;
mod form;
pub mod fstab;
pub mod generator;
pub mod group;
pub mod helper;
pub mod holder;
pub mod identity;
mod kept;
pub mod links;
pub mod live;
pub mod log;
mod manager;
pub mod offline;
pub mod opening;
mod owned;
#[cfg(feature = "control")]
pub mod parts;
pub mod plan;
pub mod ready;
pub mod record;
#[cfg(feature = "control")]
pub mod rest;
pub mod running;
pub mod sandbox;
mod second;
pub mod serve;
pub mod signals;
mod sizing;
mod talk;
mod trouble;
mod users;
