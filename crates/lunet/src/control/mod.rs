//! The control socket: how the commands ask and change a running server. A [`Client`] asks by its REST interface as well.
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

mod client;
mod line;
mod place;
#[cfg(feature = "tools")]
pub mod remote;
mod seats;
mod server;
mod tame;

use std::path::{Path, PathBuf};

pub use client::Client;
pub use place::{
    ADMIN, JOB_VARIABLE, Layout, PROGRESS_VARIABLE, READ, SERVER_VARIABLE, VARIABLE, find,
};
pub use server::{Asker, ControlServer, Placed, Source, listen_for};

/// The name of the socket in the data directory.
const SOCKET: &str = "lunet.sock";

/// The longest path of a Unix socket, in bytes: `sun_path` has 108 with the zero behind it.
const MAX_PATH: usize = 107;

/// Why the control socket cannot be used, each in one plain sentence.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the variants' messages say what they and their fields mean")]
pub enum Error {
    #[error(
        "the control socket's path {path} is {length} bytes long, and {MAX_PATH} are allowed: \
         give a shorter one with --socket"
    )]
    PathTooLong { path: PathBuf, length: usize },
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
        "no lunet is running with the control socket {path}: start one with `lunet serve`, or \
         name the right one with --data or --socket"
    )]
    NotRunning { path: PathBuf },
    #[error(
        "no lunet is running: looked at {}; start one with `lunet serve`, or say which one with \
         --data, --socket or the variable {VARIABLE}",
        listed(.places)
    )]
    NowhereRunning { places: Vec<PathBuf> },
    #[error(
        "no lunet seems to run: nothing listens at {}, and this user may not look into {}: start the service with \
         `systemctl start lunet`, or, if one runs with that data directory alone, run this as its user or root",
        listed(.places), listed(.closed)
    )]
    NowhereSeen { places: Vec<PathBuf>, closed: Vec<PathBuf> },
    #[error(
        "{path}: permission denied: only the user that runs lunet, root, and members of the groups that `[control]` of \
         its configuration names may ask it: run this as one of them, or with sudo"
    )]
    Denied { path: PathBuf },
    #[error("{path}: {}", silence(.error))]
    NoAnswer { path: PathBuf, error: std::io::Error },
    #[error("{path}: {error}")]
    OtherVersion { path: PathBuf, error: lunet_api::Error },
    #[cfg(feature = "tools")]
    #[error("{server}: {trouble}")]
    Remote { server: String, trouble: remote::Trouble },
    #[error("{0}")]
    Refused(lunet_api::Error),
}

/// The control socket of a server with this data directory, if it is given no other.
pub fn default_path(data: &Path) -> PathBuf {
    data.join(SOCKET)
}

/// Why there is no answer, and what to do.
fn silence(error: &std::io::Error) -> String {
    use std::io::ErrorKind::{
        BrokenPipe, ConnectionReset, InvalidData, TimedOut, UnexpectedEof, WouldBlock,
    };
    match error.kind() {
        UnexpectedEof | ConnectionReset | BrokenPipe => {
            "lunet has ended before it answered: see its log, and whether it runs again".to_owned()
        }
        TimedOut | WouldBlock => {
            "lunet does not answer in time: see its log, and whether a disk hangs (`dmesg`)"
                .to_owned()
        }
        InvalidData => format!(
            "what answers is no lunet ({error}): name the right one with --data or --socket"
        ),
        _ => format!("lunet does not answer ({error}): see its log"),
    }
}

fn listed(places: &[PathBuf]) -> String {
    let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
    places.join(", ")
}

fn check_length(path: &Path) -> Result<(), Error> {
    let length = path.as_os_str().len();
    if length > MAX_PATH {
        return Err(Error::PathTooLong { path: path.to_owned(), length });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
