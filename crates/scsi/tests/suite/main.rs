//! The device server from outside: command blocks in, tasks out.

mod alua;
mod alua_model;
mod cluster;
mod common;
mod copy;
mod diagnostic;
mod exclusive;
mod io;
mod lists;
mod medium;
mod mode_select;
mod properties;
mod replies;
mod reserve;
mod reserve_fight;
mod reserve_model;
mod reserve_neighbour;
mod reserve_random;
mod reserve_saved;
mod rod;
mod sanitize;
mod state;
mod supported;
mod thin;
