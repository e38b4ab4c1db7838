//! The control socket, by which the commands ask and change a running server.
//!
//! A Unix socket that only its owner may use. Members of the groups that the configuration names are asked to the Unix
//! sockets of the REST interface beside it. A client sends one request, a line of JSON; the
//! server sends one answer, a line of JSON, and closes the connection.
//!
//! ```text
//! {"api":2,"request":"sessions"}
//! {"api":2,"ok":[...]}           or {"api":2,"error":{"code":"not-found","message":"...","fix":"..."}}
//! ```
//!
//! What is in the lines is the crate `lunet-api`.

mod seats;
mod server;

use std::path::PathBuf;

use lunet_config::place::PathTooLong;

pub use server::{Asker, ControlServer, Placed, Source, listen_for};

/// Why the control socket cannot be served, each in one plain sentence.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the variants' messages say what they and their fields mean")]
pub enum Error {
    #[error(transparent)]
    PathTooLong(#[from] PathTooLong),
    #[error(
        "{path}: another lunet is running with this control socket: stop it, or give this one \
         another --data or --socket"
    )]
    Live { path: PathBuf },
    #[error("{path}: there is something that is not a socket: remove it, or give another --socket")]
    NotASocket { path: PathBuf },
    #[error(
        "{path}: cannot listen on the control socket: {error}: give it a directory that lunet's user may write, \
         with --socket or `server.control-socket`"
    )]
    Listen { path: PathBuf, error: std::io::Error },
    #[error(
        "{path}: cannot give the socket to the group {group}: {error}: run lunet as root, or as a user of that group"
    )]
    Group { path: PathBuf, group: u32, error: std::io::Error },
    #[error(
        "{path}: permission denied: only the user that runs lunet, root, and members of the groups that `[control]` of \
         its configuration names may ask it: run this as one of them, or with sudo"
    )]
    Denied { path: PathBuf },
}
