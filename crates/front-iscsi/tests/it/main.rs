//! The target in this process, with initiators over loopback.

mod access;
mod commands;
mod copy;
mod copy_reach;
mod data_that_never_comes;
mod exclusive;
mod failing_storage;
mod greedy_clients;
mod groups;
mod hung_lun;
mod live;
mod management;
mod medium;
mod modes;
mod portals;
mod reservations;
mod sanitize;
mod sessions;
mod silence;
mod stalled_loop;
mod stalled_storage;
mod strangers;
mod support;
mod thin;
mod tokens;
mod write_back;
