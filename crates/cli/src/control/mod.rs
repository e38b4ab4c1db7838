//! The client of a running server: by its control socket, or by its REST interface.
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
mod place;
pub mod remote;
mod tame;

use std::path::PathBuf;

use lunet_config::place::{PathTooLong, VARIABLE};

pub use client::Client;
pub use place::find;

/// Why the control socket cannot be asked, each in one plain sentence.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the variants' messages say what they and their fields mean")]
pub enum Error {
    #[error(transparent)]
    PathTooLong(#[from] PathTooLong),
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
    #[error("{server}: {trouble}")]
    Remote { server: String, trouble: remote::Trouble },
    #[error("{0}")]
    Refused(lunet_api::Error),
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
