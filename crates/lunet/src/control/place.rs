//! Where the running server is, for a command that was not told.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use super::{Error, default_path};
use crate::config::DEFAULT_DATA;

/// The variable of the environment that names the data directory.
pub const VARIABLE: &str = "LUNET_DATA";

/// The variable of the environment that names the lunet of another machine.
pub const SERVER_VARIABLE: &str = "LUNET_SERVER";

/// The variable of the environment by which a job is told to write its progress line by line: `lines`.
pub const PROGRESS_VARIABLE: &str = "LUNET_PROGRESS";

/// The variable of a job's environment that has the number of the process whose job it is.
pub const JOB_VARIABLE: &str = "LUNET_JOB_OF";

/// Where the server of an installed system has its control socket.
const SYSTEM: [&str; 2] = ["/run/lunet/lunet.sock", "/var/lib/lunet/lunet.sock"];

/// The control socket to ask: the one that was named (`socket`, or in `data`), or in the directory
/// that the environment names, or of the server that runs in [`DEFAULT_DATA`], or else of the
/// system's.
///
/// # Errors
/// Nothing was named, and nobody listens in any of these places: the error names them.
pub fn find(
    socket: Option<&Path>,
    data: Option<&Path>,
    variable: Option<&Path>,
) -> Result<PathBuf, Error> {
    if let Some(socket) = socket {
        return Ok(socket.to_owned());
    }
    if let Some(data) = data.or(variable) {
        return Ok(default_path(data));
    }
    let system = SYSTEM.map(PathBuf::from);
    running([default_path(Path::new(DEFAULT_DATA))].into_iter().chain(system).collect())
}

/// The first of the sockets that somebody listens on.
fn running(places: Vec<PathBuf>) -> Result<PathBuf, Error> {
    match places.iter().find(|path| is_live(path)) {
        Some(path) => Ok(path.clone()),
        None => Err(Error::NowhereRunning { places }),
    }
}

/// True if somebody listens there, even if not for us.
fn is_live(path: &Path) -> bool {
    match UnixStream::connect(path) {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::PermissionDenied,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn what_was_named_counts_and_nothing_else_is_looked_at() {
        let path = |text: &'static str| Some(Path::new(text));
        let found = |socket, data, variable| find(socket, data, variable).unwrap();
        assert_eq!(found(path("/s"), path("/d"), path("/v")), Path::new("/s"));
        assert_eq!(found(None, path("/d"), path("/v")), Path::new("/d/lunet.sock"));
        assert_eq!(found(None, None, path("/v")), Path::new("/v/lunet.sock"));
    }

    #[test]
    fn the_first_place_with_a_running_server_is_taken_and_all_are_named_without_one() {
        let dir = TempDir::new().unwrap();
        let places: Vec<_> = ["a", "b", "c"].map(|name| dir.path().join(name)).into();
        let error = running(places.clone()).unwrap_err().to_string();
        assert!(places.iter().all(|place| error.contains(place.to_str().unwrap())), "{error}");
        assert!(error.contains("--data") && error.contains(VARIABLE), "{error}");
        // What a dead server has left is no server.
        drop(UnixListener::bind(&places[0]).unwrap());
        let _second = UnixListener::bind(&places[1]).unwrap();
        let _third = UnixListener::bind(&places[2]).unwrap();
        assert_eq!(running(places.clone()).unwrap(), places[1]);
    }
}
