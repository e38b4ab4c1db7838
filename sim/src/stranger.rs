//! Somebody who breaks every rule: bytes that mean nothing, half a login, changed PDUs, a reader that never reads.
//!
//! What becomes of it is free. The hosts beside it are served as if it were not there, and the server goes on. It gets no
//! further than a discovery session, or a session of a target with a volume of its own ([`crate::intruder`]).

use std::net::SocketAddr;
use std::time::Duration;

use lunet_iscsi::initiator::{Connection, Cx, Event, Options};
use lunet_os::simulated::{self, below};
use lunet_os::thread;
use lunet_ring::simulated::{Net, Peer, Received};

use crate::intruder;
use crate::nvme;
use crate::site::{Site, now};

/// How much one connection sends.
const MOST: usize = 300 << 10;

/// A stranger.
#[derive(Clone, Debug)]
pub struct Stranger {
    /// Its number, from 0.
    pub number: u8,
    /// How often it comes.
    pub visits: u64,
    /// What everybody knows.
    pub site: Site,
}

impl Stranger {
    /// Its life. Nobody waits for its end.
    pub fn run(self) {
        let name = format!("stranger {}", self.number);
        // Connections that it does not look at any more.
        let mut open: Vec<Peer> = Vec::new();
        for _ in 0..self.visits {
            thread::sleep(Duration::from_micros(1 + below(400_000)));
            let (iscsi, nvme) = {
                let known = self.site.known();
                (known.address, known.nvme_address)
            };
            let over_nvme = nvme.filter(|_| below(2) == 0);
            let address = over_nvme.or(iscsi);
            let from = SocketAddr::from(([10, 0, 2, self.number + 1], 40_000));
            let Some(peer) = address.and_then(|to| simulated::part::<Net>().connect(to, from))
            else {
                continue;
            };
            let did = match below(10) {
                _ if over_nvme.is_some() => match address {
                    Some(to) if below(8) != 0 => nvme::stranger::visit(&peer, (to, from)),
                    _ => silent(&mut open, &from, address),
                },
                0 => noise(&peer),
                1 => half_a_login(&peer),
                2 => login(&peer, 1 + below(40), 1),
                3 => login(&peer, 0, 1),
                4 => login(&peer, 1 + below(3), 256),
                5 => silent(&mut open, &from, address),
                6 => deaf(&peer),
                _ => intruder::visit(&peer),
            };
            self.site.tell(&name, did);
            if below(3) == 0 {
                open.push(peer);
            } else if below(2) == 0 {
                peer.reset();
            }
            if open.len() > 40 {
                open.drain(..20);
            }
        }
    }
}

/// Sends in pieces of at most so many bytes. False if the connection is gone.
pub(crate) fn send(peer: &Peer, mut bytes: &[u8], piece: usize) -> bool {
    let until = now() + Duration::from_secs(1);
    while !bytes.is_empty() && now() < until {
        match peer.send(&bytes[..bytes.len().min(piece)]) {
            None => return false,
            Some(0) => peer.wait(Duration::from_millis(50)),
            Some(n) => bytes = &bytes[n..],
        }
    }
    true
}

pub(crate) fn random(len: u64) -> Vec<u8> {
    (0..len).map(|_| below(256) as u8).collect()
}

fn noise(peer: &Peer) -> &'static str {
    let len = 1 + below(2000);
    send(peer, &random(len), 1 << 20);
    "sends noise"
}

/// An initiator that wants to know the targets, and its first request.
fn asks() -> (Connection, Vec<u8>) {
    let mut options = Options::new("iqn.2026-11.stranger", None);
    options.isid = [0x80, 0, 0, 0, 9, below(4) as u8];
    options.extra_keys = match below(4) {
        0 => vec![("X-long".into(), "y".repeat(1 + below(7000) as usize))],
        1 => vec![("MaxRecvDataSegmentLength".into(), "0".into()); 3],
        _ => Vec::new(),
    };
    let (mut initiator, mut out) = (Connection::new(options), Vec::new());
    initiator.start(now(), &mut out);
    (initiator, out)
}

fn half_a_login(peer: &Peer) -> &'static str {
    let (_, out) = asks();
    let len = 1 + below(out.len() as u64) as usize;
    send(peer, &out[..len.min(out.len())], 1 + below(64) as usize);
    "sends half a login"
}

/// Changes a few bytes.
pub(crate) fn damage(bytes: &mut [u8], times: u64) {
    for _ in 0..times {
        let len = bytes.len() as u64;
        // Headers are the better aim.
        let at = below(if below(3) == 0 { len } else { len.min(48) });
        bytes[at as usize] = match below(4) {
            0 => 0,
            1 => 0xff,
            _ => below(256) as u8,
        };
    }
}

/// Logs in for discovery, byte by byte for a small `piece`, then sends PDUs that are right or damaged.
fn login(peer: &Peer, damaged: u64, piece: usize) -> &'static str {
    let (mut initiator, mut out) = asks();
    if damaged > 20 {
        damage(&mut out, damaged - 20);
    }
    let until = now() + Duration::from_secs(3);
    let mut left = 30;
    while now() < until && left > 0 {
        if !send(peer, &std::mem::take(&mut out), if below(2) == 0 { piece } else { 4096 }) {
            break;
        }
        let mut events: Vec<Event<Vec<u8>, Vec<u8>>> = Vec::new();
        match peer.receive(64 << 10) {
            Received::Nothing => peer.wait(Duration::from_millis(1 + below(200))),
            Received::Bytes(bytes) => {
                let mut cx = Cx { now: now(), tx: &mut out, events: &mut events };
                initiator.rx_bytes(&bytes, &mut cx);
            }
            Received::Ended | Received::Reset => break,
        }
        if initiator.is_ready() {
            left -= 1;
            let mut pdu = any_pdu();
            damage(&mut pdu, below(damaged + 1).min(6));
            out.extend_from_slice(&pdu);
        }
    }
    if damaged == 0 { "asks in small pieces" } else { "sends damaged PDUs" }
}

/// A PDU that a discovery session may not have, or that is wrong in itself.
fn any_pdu() -> Vec<u8> {
    let opcodes =
        [0x40, 0x41, 0x01, 0x42, 0x02, 0x04, 0x44, 0x05, 0x45, 0x06, 0x46, 0x50, 0x1f, 0x3f];
    let len = [0, 4, 4096, 8192][below(4) as usize];
    let mut pdu = random(48);
    pdu[0] = opcodes[below(opcodes.len() as u64) as usize];
    pdu[1] |= 0x80;
    // What is said to follow, and what does.
    let said: u32 = if below(5) == 0 { below(1 << 24) as u32 } else { len as u32 };
    pdu[4] = if below(10) == 0 { below(256) as u8 } else { 0 };
    pdu[5..8].copy_from_slice(&said.to_be_bytes()[1..]);
    if below(2) == 0 {
        // Numbers that may be right.
        pdu[16..32].fill(0);
        pdu[27] = 1;
    }
    pdu.resize(48 + len, b'a');
    pdu
}

/// Connections that say nothing.
fn silent(open: &mut Vec<Peer>, from: &SocketAddr, to: Option<SocketAddr>) -> &'static str {
    for _ in 0..below(30) {
        open.extend(to.and_then(|to| simulated::part::<Net>().connect(to, *from)));
    }
    "connects many times and says nothing"
}

/// Asks again and again, and reads no answer.
fn deaf(peer: &Peer) -> &'static str {
    let (_, out) = asks();
    let mut sent = 0;
    while sent < MOST {
        if !send(peer, &out, 1 << 20) {
            break;
        }
        sent += out.len();
        thread::sleep(Duration::from_micros(below(1000)));
    }
    "never reads"
}
