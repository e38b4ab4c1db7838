//! The harness of the end-to-end suites and of the benchmark.
//!
//! It starts the built `lunet` (or Debian's `tgtd`, to compare with) on a free port with a directory of its own, drives it with
//! the clients that users have, and cleans up whatever happens. Everything has a time limit.
//!
//! The suites are the `*.rs` files beside `src/`.

#![forbid(unsafe_code)]

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use lunet_block::Random;

pub mod ceph;
pub mod clients;
pub mod conformance;
pub mod data;
pub mod fuse;
pub mod manager;
pub mod nbd;
pub mod nvme;
pub mod process;
pub mod rdma;
pub mod rest;
pub mod server;
pub mod sources;
pub mod strace;
pub mod tgt;
pub mod wire;
pub mod witness;

/// Random choices from the seed in `$LUNET_E2E_SEED` when it is set, otherwise different every time. Prints the seed.
pub fn random_from_environment() -> Random {
    let wanted = std::env::var("LUNET_E2E_SEED").ok().and_then(|text| text.parse().ok());
    let seed = wanted.unwrap_or_else(|| RandomState::new().build_hasher().finish());
    println!("LUNET_E2E_SEED={seed}");
    Random::new(seed)
}
