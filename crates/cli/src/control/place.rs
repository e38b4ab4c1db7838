//! Where the running server is, for a command that was not told.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use lunet_config::DEFAULT_DATA;
use lunet_config::place::{SYSTEM, default_path};

use super::Error;

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
    let here = Path::new(DEFAULT_DATA);
    // In a directory that this user may not enter (`sudo -u anna` in root's) there is nothing that is his.
    let is_closed = here.metadata().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
    let here = (!is_closed).then(|| default_path(here));
    running(here.into_iter().chain(SYSTEM.map(PathBuf::from)).collect())
}

/// The first of the sockets that somebody listens on.
fn running(places: Vec<PathBuf>) -> Result<PathBuf, Error> {
    found(places, look)
}

fn found(places: Vec<PathBuf>, look: impl Fn(&Path) -> Seen) -> Result<PathBuf, Error> {
    let mut closed = Vec::new();
    for place in &places {
        match look(place) {
            Seen::Live => return Ok(place.clone()),
            Seen::Closed => closed.push(place.parent().unwrap_or(place).to_owned()),
            Seen::Nothing => {}
        }
    }
    if closed.is_empty() {
        return Err(Error::NowhereRunning { places });
    }
    let open =
        |place: &PathBuf| !place.parent().is_some_and(|of| closed.iter().any(|one| one == of));
    let places = places.iter().filter(|place| open(place)).cloned().collect();
    Err(Error::NowhereSeen { places, closed })
}

/// What there is in a place where a server may have its socket.
enum Seen {
    /// Somebody listens there, even if not for us.
    Live,
    /// That cannot be told: its directory is for others alone.
    Closed,
    /// Nobody.
    Nothing,
}

fn look(path: &Path) -> Seen {
    match UnixStream::connect(path) {
        Ok(_) => Seen::Live,
        // Of the socket, or of the directory that it would be in.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => match path.metadata() {
            Ok(_) => Seen::Live,
            Err(_) => Seen::Closed,
        },
        Err(_) => Seen::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use tempfile::TempDir;

    use lunet_config::place::VARIABLE;

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

    #[test]
    fn a_directory_of_others_is_no_running_server() {
        let places = || SYSTEM.map(PathBuf::from).to_vec();
        let look =
            |path: &Path| if path == Path::new(SYSTEM[1]) { Seen::Closed } else { Seen::Nothing };
        let error = found(places(), look).unwrap_err().to_string();
        for words in ["no lunet seems to run", "nothing listens at /run/lunet/lunet.sock,"] {
            assert!(error.contains(words), "{error}");
        }
        assert!(error.contains("look into /var/lib/lunet: start"), "{error}");
        assert!(error.contains("`systemctl start lunet`"), "{error}");
        // One that listens behind it is asked.
        let look =
            |path: &Path| if path == Path::new(SYSTEM[1]) { Seen::Live } else { Seen::Closed };
        assert_eq!(found(places(), look).unwrap(), Path::new(SYSTEM[1]));
    }
}
