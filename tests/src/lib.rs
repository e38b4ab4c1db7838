//! The harness of the end-to-end suites and of the benchmark.
//!
//! It starts the built `lunet` (or Debian's `tgtd`, to compare with) on a free port with a directory of its own, drives it with
//! the clients that users have, and cleans up whatever happens. Everything has a time limit.
//!
//! The suites are the `*.rs` files beside `src/`.

#![forbid(unsafe_code)]

pub mod clients;
pub mod conformance;
pub mod data;
pub mod fuse;
pub mod nbd;
pub mod process;
pub mod random;
pub mod rdma;
pub mod server;
pub mod strace;
pub mod tgt;
pub mod wire;
pub mod witness;
