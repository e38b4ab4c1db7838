//! The target in this process, with initiators over loopback.

mod access;
mod commands;
mod copy;
mod copy_reach;
mod exclusive;
mod failing_storage;
mod greedy_clients;
mod live;
mod medium;
mod modes;
mod reservations;
mod sanitize;
mod sessions;
mod silence;
mod stalled_storage;
mod strangers;
mod support;
mod thin;
mod tokens;
mod write_back;
