//! The asking end.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lunet_api::{
    Call, Change, Configuration, Done, Group, GroupConfig, GroupGateway, Portal, Preview, Request,
    SecretText, Session, Snapshot, Stats, Target, Unread, Volume, read_reply,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use zeroize::Zeroizing;

use super::remote::Remote;
use super::tame::tame;
use lunet_api::line;
use lunet_config::place::check_length;

use super::Error;

/// How long the server has to answer.
const TIME: Duration = Duration::from_secs(10);

/// How long it has for an order to a failover group, whose end it waits for.
const ORDER_TIME: Duration = Duration::from_secs(30);

/// How long it has for a change: reserving or copying much space takes its time. If the server
/// ends meanwhile, so does the connection.
const LONG_TIME: Duration = Duration::from_secs(3600);

/// The longest answer that is read, in bytes: 65,535 sessions at a KiB each.
const MOST: usize = 64 << 20;

/// The environment variable by which `lunet doctor` wants answers of its own user's servers, root's and system services' alone.
const PEER: &str = "LUNET_PEER";

/// Whether root, the user of this process or a system service listens at the other end, by the kernel's word; or nobody
/// wants to know.
fn trusted(stream: &UnixStream) -> bool {
    if std::env::var_os(PEER).is_none_or(|peer| peer != "trusted") {
        return true;
    }
    let Ok(peer) = rustix::net::sockopt::socket_peercred(stream) else { return false };
    let service = || {
        let groups = fs::read_to_string(format!("/proc/{}/cgroup", peer.pid.as_raw_nonzero()));
        groups.is_ok_and(|all| all.lines().any(|line| line.starts_with("0::/system.slice/")))
    };
    peer.uid.is_root() || peer.uid == rustix::process::geteuid() || service()
}

/// How a server is asked.
#[derive(Clone, Debug)]
enum Way {
    /// By its control socket: a connection for each request.
    Socket(PathBuf),
    /// By its REST interface.
    Rest(Remote),
}

/// Asks a server.
///
/// # Errors
/// Of every method: there is no server, it may not be asked, it refuses, or it is of another version that is not understood.
#[derive(Clone, Debug)]
pub struct Client {
    way: Way,
}

#[expect(missing_docs, reason = "each method is a request of lunet-api")]
#[expect(clippy::missing_errors_doc, reason = "the type says it")]
impl Client {
    pub const fn new(socket: PathBuf) -> Self {
        Self { way: Way::Socket(socket) }
    }

    pub const fn remote(remote: Remote) -> Self {
        Self { way: Way::Rest(remote) }
    }

    pub fn sessions(&self) -> Result<Vec<Session>, Error> {
        self.ask(&Request::Sessions)
    }

    pub fn stats(&self) -> Result<Stats, Error> {
        self.ask(&Request::Stats)
    }

    pub fn volumes(&self) -> Result<Vec<Volume>, Error> {
        self.ask(&Request::Volumes)
    }

    pub fn snapshots(&self, volume: Option<String>) -> Result<Vec<Snapshot>, Error> {
        self.ask(&Request::Snapshots { volume })
    }

    pub fn targets(&self) -> Result<Vec<Target>, Error> {
        self.ask(&Request::Targets)
    }

    pub fn portals(&self) -> Result<Vec<Portal>, Error> {
        self.ask(&Request::Portals)
    }

    pub fn config(&self) -> Result<Configuration, Error> {
        self.ask(&Request::Config)
    }

    pub fn groups(&self) -> Result<Vec<Group>, Error> {
        self.ask(&Request::Groups)
    }

    pub fn gateways(&self, group: String) -> Result<Vec<GroupGateway>, Error> {
        self.ask(&Request::Gateways { group })
    }

    pub fn move_group(&self, group: String, gateway: u16) -> Result<Done, Error> {
        self.ask(&Request::MoveGroup { group, gateway })
    }

    pub fn grow_group(&self, group: String, gateways: u16) -> Result<Done, Error> {
        self.ask(&Request::GrowGroup { group, gateways })
    }

    pub fn take_over_group(&self, group: String) -> Result<Done, Error> {
        self.ask(&Request::TakeOverGroup { group })
    }

    pub fn group_config(&self, group: String) -> Result<GroupConfig, Error> {
        self.ask(&Request::GroupConfig { group })
    }

    pub fn set_group_config(
        &self,
        group: String,
        text: SecretText,
        force: bool,
    ) -> Result<Done, Error> {
        self.ask(&Request::SetGroupConfig { group, text, revision: None, force })
    }

    pub fn change(&self, change: Change) -> Result<Done, Error> {
        self.ask(&Request::change(change))
    }

    pub fn preview(&self, change: Change) -> Result<Preview, Error> {
        self.ask(&Request::preview(change))
    }

    fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T, Error> {
        match &self.way {
            Way::Socket(path) => match ask_socket(path, request) {
                Err(Error::Denied { path }) => match Remote::beside(&path, trusted) {
                    Some(remote) => remote.ask(request),
                    None => Err(Error::Denied { path }),
                },
                other => other,
            },
            Way::Rest(remote) => remote.ask(request),
        }
    }
}

fn ask_socket<T: DeserializeOwned>(path: &Path, request: &Request) -> Result<T, Error> {
    check_length(path)?;
    let mut stream = UnixStream::connect(path).map_err(|error| match error.kind() {
        // A refused connection: the socket was left behind by a server that is gone.
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            Error::NotRunning { path: path.to_owned() }
        }
        ErrorKind::PermissionDenied => Error::Denied { path: path.to_owned() },
        _ => Error::NoAnswer { path: path.to_owned(), error },
    })?;
    if !trusted(&stream) {
        return Err(Error::Denied { path: path.to_owned() });
    }
    let line = exchange(&mut stream, request)
        .map_err(|error| Error::NoAnswer { path: path.to_owned(), error })?;
    match read_reply(&tamed(&line)) {
        Ok(outcome) => outcome.map_err(Error::Refused),
        Err(Unread::Strange(error)) => {
            Err(Error::NoAnswer { path: path.to_owned(), error: error.into() })
        }
        Err(Unread::OtherVersion(error)) => {
            Err(Error::OtherVersion { path: path.to_owned(), error })
        }
    }
}

/// An answer that steers no terminal, whoever listens at the socket. What is no JSON stays as it is: nothing of it is shown.
fn tamed(line: &[u8]) -> Zeroizing<Vec<u8>> {
    let tamed = serde_json::from_slice::<Value>(line).and_then(|mut answer| {
        tame(&mut answer, "");
        serde_json::to_vec(&answer)
    });
    Zeroizing::new(tamed.unwrap_or_else(|_| line.to_vec()))
}

fn exchange(stream: &mut UnixStream, request: &Request) -> io::Result<Zeroizing<Vec<u8>>> {
    let changes = matches!(request, Request::Change { .. } | Request::SetGroupConfig { .. });
    let orders = matches!(
        request,
        Request::MoveGroup { .. }
            | Request::TakeOverGroup { .. }
            | Request::GrowGroup { .. }
            | Request::Gateways { .. }
    );
    let time = match (changes, orders) {
        (true, _) => LONG_TIME,
        (false, true) => ORDER_TIME,
        (false, false) => TIME,
    };
    let deadline = Instant::now() + time;
    // A server that turns us away has closed its end, and its answer is there to be read.
    match line::send(stream, line::of(&Call::new(request))?, deadline) {
        Err(error)
            if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {}
        sent => sent?,
    }
    line::receive(stream, MOST, deadline)
}
