//! What the `lunet` program is made of: configuration, wiring, the control socket, the words on
//! the screen. The program itself only reads the command line.
#![forbid(unsafe_code)]

#[cfg(feature = "announce")]
mod announce;
pub mod audit;
mod belongs;
#[cfg(feature = "tools")]
pub mod bench;
pub mod config;
pub mod control;
mod copies;
pub mod exposure;
mod failures;
mod form;
pub mod fstab;
pub mod group;
pub mod helper;
pub mod holder;
pub mod identity;
mod kept;
pub mod links;
pub mod live;
pub mod log;
mod manager;
mod names;
pub mod opening;
mod owned;
#[cfg(feature = "tools")]
pub mod parts;
pub mod plan;
pub mod ready;
pub mod record;
#[cfg(feature = "control")]
pub mod rest;
pub mod running;
pub mod sandbox;
mod second;
pub mod secrets;
pub mod serve;
pub mod signals;
mod sizing;
#[cfg(feature = "tools")]
pub mod tables;
mod talk;
mod trouble;
pub mod units;
mod users;
#[cfg(feature = "tools")]
pub mod watch;
