//! A host that has logged in, and then breaks the rules: its PDUs are damaged, it does not send the data that it was
//! asked for, reads nothing, or asks for resets again and again.
//!
//! It has a target and a volume of its own, of which nobody knows what they contain. What becomes of its commands is free;
//! the hosts beside it are served as if it were not there.

use std::time::Duration;

use lunet_iscsi::initiator::{Command, Connection, Cx, Data, Event, Options};
use lunet_iscsi::pdu::{TaskAttribute, TmfFunction};
use lunet_os::simulated::below;
use lunet_ring::simulated::{Peer, Received};

use crate::model::SECTOR;
use crate::site::now;
use crate::stranger::{damage, random, send};

/// The target of those who break rules.
pub(crate) const TARGET: &str = "iqn.2026-11.local.lunet:strangers";

/// Commands and functions that one session sends at most.
const MOST: u64 = 60;

/// How long a session lasts at most.
const LONGEST: Duration = Duration::from_secs(40);

type Initiator = Connection<Vec<u8>, Vec<u8>>;

/// What it does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Bytes of what it sends are changed now and then.
    Damages,
    /// It does not send the data that it is asked for.
    KeepsData,
    /// It takes nothing of what it is sent.
    Deaf,
    /// It ends its commands as soon as they are sent.
    Resets,
    /// Nothing; but its commands may be anything.
    Babbles,
}

/// A session, from its login until one of both ends it: what it did, in words.
pub(crate) fn visit(peer: &Peer) -> &'static str {
    let fault = match below(5) {
        0 => Fault::Damages,
        1 => Fault::KeepsData,
        2 => Fault::Deaf,
        3 => Fault::Resets,
        _ => Fault::Babbles,
    };
    let mut options = Options::new("iqn.2026-11.stranger:in", Some(TARGET));
    options.isid = [0x80, 0, 0, 0, 8, below(3) as u8];
    options.initial_r2t = below(2) == 0;
    let (mut initiator, mut out) = (Initiator::new(options), Vec::new());
    initiator.start(now(), &mut out);
    let begun = now();
    let mut left = 1 + below(MOST);
    while left > 0 && now() - begun < LONGEST {
        if fault == Fault::Damages && initiator.is_ready() && !out.is_empty() && below(4) == 0 {
            damage(&mut out, 1 + below(3));
        }
        if !send(peer, &std::mem::take(&mut out), 1 << 20)
            || !hear(peer, &mut initiator, &mut out, fault)
        {
            break;
        }
        if initiator.is_ready() {
            left -= 1;
            ask(&mut initiator, &mut out, (MOST - left, fault));
        }
    }
    match fault {
        Fault::Damages => "has a session with damaged PDUs",
        Fault::KeepsData => "has a session, and keeps the data of its writes",
        Fault::Deaf => "has a session, and takes nothing of what it reads",
        Fault::Resets => "has a session, and ends all that it begins",
        Fault::Babbles => "has a session with commands of any kind",
    }
}

/// Takes what has come, and answers as its fault lets it. False if the connection is gone.
fn hear(peer: &Peer, initiator: &mut Initiator, out: &mut Vec<u8>, fault: Fault) -> bool {
    if fault == Fault::Deaf && initiator.is_ready() {
        peer.wait(Duration::from_millis(1 + below(2000)));
        return true;
    }
    match peer.receive(64 << 10) {
        Received::Nothing => peer.wait(Duration::from_millis(1 + below(100))),
        Received::Bytes(bytes) => {
            let mut events: Vec<Event<Vec<u8>, Vec<u8>>> = Vec::new();
            let ready = initiator.is_ready();
            initiator.rx_bytes(&bytes, &mut Cx { now: now(), tx: out, events: &mut events });
            if ready && fault == Fault::KeepsData {
                out.clear();
            }
        }
        Received::Ended | Received::Reset => return false,
    }
    true
}

/// Sends a command, or a function.
fn ask(initiator: &mut Initiator, out: &mut Vec<u8>, (token, fault): (u64, Fault)) {
    let functions = [
        TmfFunction::AbortTaskSet,
        TmfFunction::ClearTaskSet,
        TmfFunction::LogicalUnitReset,
        TmfFunction::TargetWarmReset,
        TmfFunction::TargetColdReset,
    ];
    if fault == Fault::Resets && below(2) == 0 {
        let function = functions[below(functions.len() as u64) as usize];
        // What it may not do now, it does not.
        let _ = initiator.manage(function, below(2) << 48, None, out);
        return;
    }
    let sectors = 1 + below(128);
    let mut cdb = random(16);
    cdb[2..14].fill(0);
    cdb[5] = below(200) as u8;
    cdb[8] = sectors as u8;
    let bytes = sectors as usize * SECTOR;
    let data = match (fault, below(2)) {
        (Fault::Babbles, _) if below(2) == 0 => {
            cdb = random(16);
            match below(3) {
                0 => Data::None,
                1 => Data::Read(vec![0; below(20_000) as usize]),
                _ => Data::Write(random(below(20_000))),
            }
        }
        (Fault::Deaf, _) | (_, 0) => {
            cdb[0] = 0x28;
            Data::Read(vec![0; bytes])
        }
        _ => {
            cdb[0] = 0x2a;
            Data::Write(vec![7; bytes])
        }
    };
    cdb[1] = 0;
    let command = Command {
        token,
        lun: 0,
        cdb: &cdb,
        attribute: TaskAttribute::Simple,
        immediate: below(10) == 0,
        data,
    };
    // The window may be closed.
    let _ = initiator.submit(command, out);
}
