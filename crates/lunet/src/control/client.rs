//! The asking end.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::protocol::{Answer, Request};
use super::{Error, check_length, line};

/// How long the server has to answer.
const TIME: Duration = Duration::from_secs(10);

/// How long it has for a change: reserving or copying much space takes its time. If the server
/// ends meanwhile, so does the connection.
const LONG_TIME: Duration = Duration::from_secs(3600);

/// The longest answer that is read, in bytes: 65,535 sessions at a KiB each.
const MOST: usize = 64 << 20;

/// The environment variable by which `lunet doctor` wants answers of its own user's servers, root's and system services' alone.
const PEER: &str = "LUNET_PEER";

/// Whether root, the user of this process or a system service listens at the other end, by the kernel's word.
fn trusted(stream: &UnixStream) -> bool {
    let Ok(peer) = rustix::net::sockopt::socket_peercred(stream) else { return false };
    let service = || {
        let groups = fs::read_to_string(format!("/proc/{}/cgroup", peer.pid.as_raw_nonzero()));
        groups.is_ok_and(|all| all.lines().any(|line| line.starts_with("0::/system.slice/")))
    };
    peer.uid.is_root() || peer.uid == rustix::process::geteuid() || service()
}

/// Asks the server behind the socket at `path`.
///
/// # Errors
/// There is no server, it may not be asked, or it gives no sensible answer.
pub fn ask(path: &Path, request: &Request) -> Result<Value, Error> {
    check_length(path)?;
    let mut stream = UnixStream::connect(path).map_err(|error| match error.kind() {
        // A refused connection: the socket was left behind by a server that is gone.
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            Error::NotRunning { path: path.to_owned() }
        }
        ErrorKind::PermissionDenied => Error::Denied { path: path.to_owned() },
        _ => Error::NoAnswer { path: path.to_owned(), error },
    })?;
    if std::env::var_os(PEER).is_some_and(|peer| peer == "trusted") && !trusted(&stream) {
        return Err(Error::Denied { path: path.to_owned() });
    }
    match exchange(&mut stream, request) {
        Ok(Answer::Ok(value)) => Ok(value),
        Ok(Answer::Error(text)) => Err(Error::Refused(text)),
        Err(error) => Err(Error::NoAnswer { path: path.to_owned(), error }),
    }
}

fn exchange(stream: &mut UnixStream, request: &Request) -> io::Result<Answer> {
    let time = if matches!(request, Request::Change { .. }) { LONG_TIME } else { TIME };
    let deadline = Instant::now() + time;
    // A server that turns us away has closed its end, and its answer is there to be read.
    match line::send(stream, line::of(request)?, deadline) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        sent => sent?,
    }
    Ok(serde_json::from_slice(&line::receive(stream, MOST, deadline)?)?)
}
