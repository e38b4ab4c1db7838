//! Where a target is: host and port, and a connection there.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Why a text is no host with a port.
#[derive(Debug)]
pub enum PlaceError {
    /// There is no host.
    Host,
    /// An address of IPv6 without brackets.
    Brackets(String),
    /// A bracket that is not closed, or text behind one that is neither empty nor a port.
    Open(String),
    /// The port is none.
    Port(String),
}

/// `host`, `host:port`, `[::1]`, `[::1]:port`.
pub fn host(place: &str, usual: u16) -> Result<(&str, u16), PlaceError> {
    let wrong = |port: &str| PlaceError::Port(port.into());
    let open = || PlaceError::Open(place.into());
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => match rest.split_once(']').ok_or_else(open)? {
            (host, "") => (host, None),
            (host, rest) => (host, Some(rest.strip_prefix(':').ok_or_else(open)?)),
        },
        None => match place.rsplit_once(':') {
            Some((host, _)) if host.contains(':') => {
                return Err(PlaceError::Brackets(place.into()));
            }
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        },
    };
    if host.is_empty() {
        return Err(PlaceError::Host);
    }
    let port = match port {
        Some(port) => port.parse().ok().filter(|&p| p > 0).ok_or_else(|| wrong(port))?,
        None => usual,
    };
    Ok((host, port))
}

/// True if the other end is on this machine: targets treat such connections as local.
pub fn is_local(stream: &TcpStream) -> io::Result<bool> {
    let peer = stream.peer_addr()?.ip().to_canonical();
    Ok(peer.is_loopback() || peer == stream.local_addr()?.ip().to_canonical())
}

/// As [`host`] reads it.
pub fn write(f: &mut fmt::Formatter<'_>, host: &str, port: u16) -> fmt::Result {
    match host.contains(':') {
        true => write!(f, "[{host}]:{port}"),
        false => write!(f, "{host}:{port}"),
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub enum ConnectError {
    /// The host's name has no address.
    Resolve { host: String, source: io::Error },
    /// Nothing answers there.
    Connect { address: SocketAddr, source: io::Error },
    /// The socket cannot be set up.
    Io(io::Error),
}

/// Connects to the first address of a host that answers.
pub fn connect(host: &str, port: u16, patience: Duration) -> Result<TcpStream, ConnectError> {
    let unknown = |source| ConnectError::Resolve { host: host.into(), source };
    let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(unknown)?.collect();
    let mut last = ConnectError::Resolve { host: host.into(), source: ErrorKind::NotFound.into() };
    for address in addresses {
        match TcpStream::connect_timeout(&address, patience) {
            Ok(stream) => {
                // Without it, commands wait for acknowledgements of those before.
                stream.set_nodelay(true).map_err(ConnectError::Io)?;
                stream.set_write_timeout(Some(patience)).map_err(ConnectError::Io)?;
                return Ok(stream);
            }
            Err(source) => last = ConnectError::Connect { address, source },
        }
    }
    Err(last)
}
