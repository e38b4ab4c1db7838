//! The target in this process, with initiators over loopback.

mod access;
mod commands;
mod greedy_clients;
mod live;
mod medium;
mod modes;
mod reservations;
mod sessions;
mod stalled_storage;
mod support;
