//! Packets of full size that may not be cut (DF), between two machines.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Pair, joined};
use crate::source::bounded;

/// More paths than this are not tried.
const MOST: usize = 8;
/// How long `ping` may take: three packets, and a second for the last answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// No answer of `ping` is longer.
const LONGEST: u64 = 64 << 10;

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
        // Headers of IP and ICMP.
        let headers = if ping.address.contains(':') { 48 } else { 28 };
        let answers = answered(&ping.address, 56);
        let whole = answers && answered(&ping.address, ping.mtu - headers);
        Probed { address: ping.address.clone(), mtu: ping.mtu, answers, whole }
    };
    pings.iter().map(one).collect()
}

/// `ping -M do`: iputils' forbids fragments.
pub fn by_ping(address: &str, bytes: i64) -> bool {
    let mut command = Command::new("ping");
    command
        .args(["-n", "-q", "-M", "do", "-c", "3", "-i", "0.3", "-W", "1", "-s"])
        .arg(bytes.to_string())
        .arg("--")
        .arg(address)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    // It ends with 0 if one of them was answered.
    bounded::run(&mut command, PATIENCE, LONGEST).is_ok_and(|done| done.code == Some(0))
}
