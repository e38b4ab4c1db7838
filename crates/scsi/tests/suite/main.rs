//! The device server from outside: command blocks in, tasks out.

mod common;
mod io;
mod properties;
mod replies;
mod state;
mod supported;
