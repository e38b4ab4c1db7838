//! Somebody who breaks every rule of NVMe/TCP: before a Connect, and as a host with a subsystem of its own.
//!
//! What becomes of it is free. The hosts beside it are served as if it were not there. Nobody knows what its volume contains.

use std::net::SocketAddr;
use std::time::Duration;

use lunet_nvme::fabrics::{Fabrics, Property};
use lunet_nvme::host::{Command, Connection, Cx, Data, Event, Options};
use lunet_os::simulated::{self, below};
use lunet_os::thread;
use lunet_ring::simulated::{Net, Peer, Received};
use zerocopy::IntoBytes;

use super::controller::{Bytes, Outgoing, Settings};
use super::visit::ENABLED;
use super::{DISCOVERY, STRANGE};
use crate::model::SECTOR;
use crate::site::now;
use crate::stranger::{damage, random, send};

/// Commands of one visit at most.
const MOST: u64 = 60;

/// How long a visit lasts at most.
const LONGEST: Duration = Duration::from_secs(40);

/// How much one connection sends that never reads.
const DEAF: usize = 300 << 10;

/// What a host does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Bytes of what it sends are changed now and then.
    Damages,
    /// It does not send the data that it is asked for, or other data.
    WrongData,
    /// It takes nothing of what it is sent.
    Deaf,
    /// Its commands may be anything.
    Babbles,
    /// It sends halves of fused pairs.
    Halves,
}

type Queue = Connection<Vec<u8>, Bytes>;

/// A visit from its begin to its end: what it did, in words.
pub(crate) fn visit(peer: &Peer, (to, from): (SocketAddr, SocketAddr)) -> &'static str {
    match below(10) {
        0 => {
            send(peer, &random(1 + below(2000)), 1 << 20);
            "sends noise to NVMe"
        }
        1 => half_a_connect(peer),
        2 => pieces(peer, 1 + below(40)),
        3 => pieces(peer, 0),
        4 => deaf(peer),
        5 => {
            thread::sleep(Duration::from_millis(below(12_000)));
            "connects to NVMe and says nothing"
        }
        _ => as_host(peer, (to, from)),
    }
}

/// A queue that is to be connected, and its first bytes.
fn begins(subsystem: &'static str, qid: u16, cntlid: u16) -> (Queue, Outgoing) {
    let mut settings = Settings::draw("nqn.2026-11.stranger", [9; 16], Duration::from_secs(30));
    (settings.digests, settings.subsystem) = ((false, false), subsystem);
    let options: Options = settings.options(qid, settings.entries, cntlid, 0);
    let (mut queue, mut out) = (Queue::new(options), Outgoing::default());
    queue.start(now(), &mut out);
    (queue, out)
}

/// ICReq and Connect as they are sent to somebody who answers nothing.
fn unanswered() -> Vec<u8> {
    let (_, mut out) = begins(STRANGE, 0, u16::MAX);
    let (mut settings, capsule) =
        (Settings::draw("nqn.2026-11.stranger", [9; 16], Duration::ZERO), 1 + below(20));
    settings.subsystem = if below(2) == 0 { STRANGE } else { DISCOVERY };
    let (mut sqe, data) = settings.options(below(3) as u16, 9, u16::MAX, 0).connect.encode();
    sqe.cid = (capsule as u16).into();
    out.0.extend(pdu(sqe.as_bytes(), data.as_bytes()));
    out.0
}

fn half_a_connect(peer: &Peer) -> &'static str {
    let out = unanswered();
    let len = 1 + below(out.len() as u64) as usize;
    send(peer, &out[..len.min(out.len())], 1 + below(64) as usize);
    "sends half a Connect"
}

/// ICReq, Connect and commands, byte by byte or damaged.
fn pieces(peer: &Peer, damaged: u64) -> &'static str {
    let mut out = unanswered();
    (0..below(10)).for_each(|_| out.extend(any_capsule()));
    damage(&mut out, damaged);
    send(peer, &out, if damaged == 0 { 1 } else { 1 + below(300) as usize });
    if damaged == 0 { "sends a Connect byte by byte" } else { "sends damaged PDUs to NVMe" }
}

/// Asks again and again, and reads no answer.
fn deaf(peer: &Peer) -> &'static str {
    let mut sent = 0;
    let mut out = unanswered();
    while sent < DEAF && send(peer, &out, 1 << 20) {
        sent += out.len();
        out = any_capsule();
        thread::sleep(Duration::from_micros(below(1000)));
    }
    "never reads NVMe's answers"
}

/// A command capsule without digests.
fn pdu(sqe: &[u8], data: &[u8]) -> Vec<u8> {
    let len = 72 + data.len() as u32;
    let mut pdu = vec![4, 0, 72, if data.is_empty() { 0 } else { 72 }];
    pdu.extend_from_slice(&len.to_le_bytes());
    pdu.extend_from_slice(sqe);
    pdu.extend_from_slice(data);
    pdu
}

/// Puts a little-endian number into bytes.
fn put(bytes: &mut [u8], at: usize, number: u64, len: usize) {
    bytes[at..at + len].copy_from_slice(&number.to_le_bytes()[..len]);
}

/// A command whose fields may be anything, with data in its capsule or not.
fn any_capsule() -> Vec<u8> {
    let opcodes = [
        0x00, 0x01, 0x02, 0x05, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x0d, 0x0e, 0x11, 0x15, 0x18, 0x19,
        0x7f, 0x80, 0xff,
    ];
    let mut sqe = random(64);
    sqe[0] = opcodes[below(opcodes.len() as u64) as usize];
    sqe[1] = if below(4) == 0 { sqe[1] } else { 0x40 };
    put(&mut sqe, 2, below(20), 2);
    if below(4) != 0 {
        put(&mut sqe, 4, if below(8) == 0 { u64::from(u32::MAX) } else { 1 }, 4);
    }
    if below(3) != 0 {
        // A range that is there, and flags that mean little.
        put(&mut sqe, 40, below(500), 8);
        put(&mut sqe, 48, below(16), 4);
    }
    let data = random(if below(2) == 0 { 0 } else { [8, 16, 512, 4096, 9000][below(5) as usize] });
    match below(4) {
        0 => {}
        1 => {
            put(&mut sqe, 24, 0, 8);
            put(&mut sqe, 32, below(20_000), 8);
            sqe[39] = 0x5a;
        }
        _ => {
            put(&mut sqe, 24, if below(8) == 0 { below(9000) } else { 0 }, 8);
            put(&mut sqe, 32, data.len() as u64, 8);
            sqe[39] = 1;
        }
    }
    pdu(&sqe, &data)
}

/// A read or a write of the own volume, with data to be asked for.
fn transfer(cid: u64, write: bool) -> Vec<u8> {
    let sectors = 1 + below(128);
    let mut sqe = vec![0; 64];
    (sqe[0], sqe[1], sqe[39]) = (if write { 1 } else { 2 }, 0x40, 0x5a);
    put(&mut sqe, 2, cid, 2);
    put(&mut sqe, 4, 1, 4);
    put(&mut sqe, 32, sectors * SECTOR as u64, 4);
    put(&mut sqe, 40, below(384), 8);
    put(&mut sqe, 48, sectors - 1, 4);
    pdu(&sqe, &[])
}

/// One half of a fused pair, or two that do not belong together.
fn half(cid: u64) -> Vec<u8> {
    let mut sqe = vec![0; 64];
    let data = random(SECTOR as u64);
    let fused = 1 + below(3) as u8;
    (sqe[0], sqe[1], sqe[39]) = ([5, 1, 2][below(3) as usize], 0x40 | fused, 1);
    put(&mut sqe, 2, cid, 2);
    put(&mut sqe, 4, 1, 4);
    put(&mut sqe, 32, SECTOR as u64, 4);
    put(&mut sqe, 40, below(4), 8);
    pdu(&sqe, &data)
}

/// A connection after its Connect: whatever comes is looked at for R2Ts, and forgotten.
struct Line {
    peer: Peer,
    arrived: Vec<u8>,
}

impl Line {
    /// The answers to R2Ts that have come: right, wrong or none. `None` if the connection is gone.
    fn hear(&mut self) -> Option<Vec<u8>> {
        match self.peer.receive(64 << 10) {
            Received::Bytes(bytes) => self.arrived.extend(bytes),
            Received::Nothing => {}
            Received::Ended | Received::Reset => return None,
        }
        let mut answers = Vec::new();
        while let Some(head) = self.arrived.get(..8) {
            let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
            if len < 8 || self.arrived.len() < len {
                break;
            }
            let pdu: Vec<u8> = self.arrived.drain(..len).collect();
            if pdu[0] == 9 && pdu.len() >= 20 {
                answers.extend(wrong_data(&pdu));
            }
        }
        Some(answers)
    }
}

/// H2CData that an R2T has asked for, with something wrong more often than not.
fn wrong_data(r2t: &[u8]) -> Vec<u8> {
    let number = |at: usize| u32::from_le_bytes([r2t[at], r2t[at + 1], r2t[at + 2], r2t[at + 3]]);
    let (mut offset, mut len, mut last) = (number(12), number(16), 4);
    let mut header = r2t[8..12].to_vec();
    match below(8) {
        0 => return Vec::new(),
        1 => offset = offset.wrapping_add(1 + below(5000) as u32),
        2 => len += 1 + below(600) as u32,
        3 => len = 1 + below(u64::from(len)) as u32,
        4 => last = 0,
        5 => header[below(4) as usize] ^= 1 << below(8),
        _ => {}
    }
    let mut pdu = vec![6, last, 24, 24];
    pdu.extend_from_slice(&(24 + len).to_le_bytes());
    pdu.extend_from_slice(&header);
    pdu.extend_from_slice(&offset.to_le_bytes());
    pdu.extend_from_slice(&len.to_le_bytes());
    pdu.extend_from_slice(&[0; 4]);
    pdu.resize(24 + len as usize, 7);
    pdu
}

/// Waits until a queue is connected, and for the answers to what was sent on it: its controller.
fn until_ready(peer: &Peer, queue: &mut Queue, mut out: Outgoing) -> Option<u16> {
    let (begun, mut cntlid) = (now(), None);
    while now() - begun < Duration::from_secs(15) {
        if !send(peer, &std::mem::take(&mut out.0), 1 << 20) {
            return None;
        }
        if cntlid.is_some() && queue.outstanding() == 0 {
            return cntlid;
        }
        let bytes = match peer.receive(64 << 10) {
            Received::Nothing => {
                peer.wait(Duration::from_millis(1 + below(100)));
                continue;
            }
            Received::Bytes(bytes) => bytes,
            Received::Ended | Received::Reset => return None,
        };
        let mut events = Vec::new();
        queue.rx_bytes(&bytes, &mut Cx { now: now(), tx: &mut out, events: &mut events });
        for event in events {
            match event {
                Event::Connected(connected) => {
                    cntlid = Some(connected.cntlid);
                    let (property, value) = (Property::Configuration, ENABLED);
                    let sqe = Fabrics::PropertySet { property, value }.encode();
                    // An I/O queue has no properties, and says so.
                    let command = Command { token: 0, sqe, data: Data::None };
                    queue.submit(command, &mut out).ok()?;
                }
                Event::Failed(_) => return None,
                Event::Finished(_) => {}
            }
        }
    }
    None
}

/// A host with a controller and I/O queues, which then breaks the rules.
fn as_host(peer: &Peer, (to, from): (SocketAddr, SocketAddr)) -> &'static str {
    let fault = match below(5) {
        0 => Fault::Damages,
        1 => Fault::WrongData,
        2 => Fault::Deaf,
        3 => Fault::Halves,
        _ => Fault::Babbles,
    };
    let (mut admin, out) = begins(STRANGE, 0, u16::MAX);
    let Some(cntlid) = until_ready(peer, &mut admin, out) else {
        return "has no controller";
    };
    let mut lines = Vec::new();
    for qid in 1..2 + below(3) as u16 {
        let Some(peer) = simulated::part::<Net>().connect(to, from) else { break };
        let (mut queue, out) = begins(STRANGE, qid, cntlid);
        if until_ready(&peer, &mut queue, out).is_some() {
            lines.push(Line { peer, arrived: Vec::new() });
        }
    }
    let begun = now();
    for cid in 0..1 + below(MOST) {
        if lines.is_empty() || now() - begun > LONGEST {
            break;
        }
        if fault == Fault::Babbles && below(8) == 0 {
            send(peer, &any_capsule(), 1 << 20);
        }
        let at = below(lines.len() as u64) as usize;
        if !goes_on(&mut lines[at], cid, fault) {
            lines.remove(at);
        }
    }
    match fault {
        Fault::Damages => "has a controller, and sends damaged capsules",
        Fault::WrongData => "has a controller, and sends wrong data",
        Fault::Deaf => "has a controller, and takes nothing of what it reads",
        Fault::Babbles => "has a controller, and sends commands of any kind",
        Fault::Halves => "has a controller, and sends halves of fused pairs",
    }
}

/// Sends something on a queue. False if that is gone.
fn goes_on(line: &mut Line, cid: u64, fault: Fault) -> bool {
    let mut out = match fault {
        Fault::Babbles => any_capsule(),
        Fault::Halves if below(3) != 0 => half(cid),
        Fault::Deaf => transfer(cid, below(3) == 0),
        _ => transfer(cid, below(2) == 0),
    };
    if fault == Fault::Deaf {
        line.peer.wait(Duration::from_millis(1 + below(1000)));
    } else {
        let Some(answers) = line.hear() else { return false };
        if fault != Fault::WrongData || below(4) != 0 {
            out.extend(answers);
        }
    }
    if fault == Fault::Damages && below(4) == 0 {
        damage(&mut out, 1 + below(3));
    }
    if below(3) == 0 {
        line.peer.wait(Duration::from_millis(1 + below(50)));
    }
    send(&line.peer, &out, 1 << 20)
}
