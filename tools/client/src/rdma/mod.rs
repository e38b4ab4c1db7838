//! RDMA for both protocols: connections of one thread, the memory that targets may reach, and what is
//! sent.
//!
//! | module | what |
//! |---|---|
//! | `port` | what a thread has of an RDMA device, and how connections are made |
//! | `line` | one connection |
//! | `memory` | the memory of a connection that its target may reach |
//! | `posts` | Sends that wait |
//! | `error` | what can go wrong |
//!
//! A connection registers one region of memory for as long as it lives, with the right to read and
//! write it, and tells the target its key with each command. A kernel's initiator registers the
//! memory of each command and takes its key back afterwards, since any page of the machine may be in
//! it. Here nothing is in it but what the load itself made or reads: a target that writes where or
//! when it should not spoils a verification, which says so, and nothing else. No reference into it
//! exists, so a late write is no data race either: what is kept of a read is copied out when the
//! command has ended.

mod error;
mod line;
mod memory;
mod port;
mod posts;

pub use error::Error;
pub use port::Needs;
pub use posts::Posts;

pub use line::Line;
pub(crate) use line::{Arrived, Message, Wants};
pub(crate) use memory::Memory;
pub(crate) use port::{Port, Shared};
pub(crate) use posts::Plain;
