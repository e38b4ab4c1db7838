//! The target in this process, with initiators over loopback.

mod greedy_clients;
mod stalled_storage;
mod support;
