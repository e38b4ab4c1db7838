//! Packets of full size that may not be cut (DF), between two machines.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use serde::{Deserialize, Serialize};

use super::{Pair, joined};

/// More paths than this are not tried.
const MOST: usize = 8;
/// Where traceroute sends: hardly anybody listens there.
const PORTS: std::ops::Range<u16> = 33_434..33_437;
/// How long an answer may take. Linux sends one error a second to each machine, after the first six.
const PATIENCE: Duration = Duration::from_millis(1_200);

/// What became of packets of full size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Probed {
    /// Where they were sent.
    pub address: String,
    /// Their size with the header of IP, in bytes: the smaller MTU of both interfaces.
    pub mtu: i64,
    /// Whether small packets are answered; if not, nothing can be said.
    pub answers: bool,
    /// Whether those of full size are.
    pub whole: bool,
}

/// A packet to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ping {
    /// Where it is sent.
    pub address: String,
    /// Its size with the header of IP, in bytes.
    pub mtu: i64,
}

/// Sends packets and says whether one was answered: `(address, bytes of data)`.
pub type Pinging<'a> = &'a dyn Fn(&str, i64) -> bool;

/// The packets to try from one of the machines: to each address of the other one that shares a network with it.
pub fn paths(pair: &Pair, from_target: bool) -> Vec<Ping> {
    let mut all: Vec<Ping> = Vec::new();
    for (target, initiator, mtu) in joined::links(pair).iter().filter_map(joined::Link::ends) {
        let address = if from_target { initiator } else { target };
        if !all.iter().any(|ping| ping.address == address) {
            all.push(Ping { address: address.to_owned(), mtu });
        }
    }
    all.truncate(MOST);
    all
}

/// Tries them.
pub fn probe(pings: &[Ping], answered: Pinging<'_>) -> Vec<Probed> {
    let one = |ping: &Ping| {
        // Headers of IP and UDP.
        let headers = if ping.address.contains(':') { 48 } else { 28 };
        let answers = answered(&ping.address, 56);
        let whole = answers && answered(&ping.address, ping.mtu - headers);
        Probed { address: ping.address.clone(), mtu: ping.mtu, answers, whole }
    };
    pings.iter().map(one).collect()
}

/// Sends a datagram of so many bytes that may not be cut to a port on which nobody listens: "port unreachable" says that
/// it has arrived whole. Needs no rights. A firewall that drops it answers nothing.
pub fn by_udp(address: &str, bytes: i64) -> bool {
    let Ok(ip) = address.parse::<IpAddr>() else { return false };
    let Ok(bytes) = usize::try_from(bytes) else { return false };
    PORTS.map(|port| SocketAddr::new(ip, port)).any(|to| arrives(to, &vec![0; bytes]))
}

fn arrives(to: SocketAddr, data: &[u8]) -> bool {
    let from = match to.ip() {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let Ok(socket) = UdpSocket::bind((from, 0)) else { return false };
    // What the kernel has learnt of the path before does not count.
    let whole = match to.ip() {
        IpAddr::V4(_) => set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE),
        IpAddr::V6(_) => set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE),
    };
    if whole.is_err()
        || socket.set_read_timeout(Some(PATIENCE)).is_err()
        || socket.connect(to).is_err()
        || socket.send(data).is_err()
    {
        return false;
    }
    // An answer of somebody who listens there after all says the same.
    socket
        .recv(&mut [0])
        .map_or_else(|error| error.kind() == ErrorKind::ConnectionRefused, |_| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_arrives_here_or_is_too_large() {
        assert!(by_udp("127.0.0.1", 56));
        // More than any datagram can have: nothing is sent.
        assert!(!by_udp("127.0.0.1", 70_000));
        for wrong in ["", "host", "10.0.0.1/24"] {
            assert!(!by_udp(wrong, 56), "{wrong:?}");
        }
        assert!(!by_udp("127.0.0.1", -1));
    }
}
