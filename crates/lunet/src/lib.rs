//! What the `lunet` program is made of: configuration, wiring, the control socket, the words on
//! the screen. The program itself only reads the command line.
#![forbid(unsafe_code)]

pub mod config;
pub mod control;
pub mod names;
pub mod tables;
pub mod units;
