//! RESERVE, RELEASE, PERSISTENT RESERVE IN and OUT: from command block and parameter list to a
//! [`Request`].

use alloc::vec::Vec;

use lunet_reservations::Kind;

use super::InitiatorPort;
use super::access::kind_of;
use crate::action::{Action, ParameterKind, Task};
use crate::execute::{Cx, Outcome};
use crate::sense::{Code, Sense};
use crate::unit::Unit;

/// A command on the reservations of a logical unit, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// RESERVE (6) or (10).
    Reserve,
    /// RELEASE (6) or (10).
    Release,
    /// PERSISTENT RESERVE IN.
    In {
        /// What to report.
        action: In,
        /// ALLOCATION LENGTH.
        allocation: u16,
    },
    /// PERSISTENT RESERVE OUT.
    Out(Out),
}

impl Request {
    /// True if it aborts the commands of others (PREEMPT AND ABORT).
    pub const fn aborts(&self) -> bool {
        matches!(self, Self::Out(Out::Preempt { abort: true, .. }))
    }

    /// True if it asks for the state to be kept through power loss from now on (APTPL).
    pub const fn persists(&self) -> bool {
        matches!(
            self,
            Self::Out(
                Out::Register(Register { persist: true, .. })
                    | Out::Move(Move { persist: true, .. })
            )
        )
    }
}

/// Service actions of PERSISTENT RESERVE IN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum In {
    /// READ KEYS.
    ReadKeys,
    /// READ RESERVATION.
    ReadReservation,
    /// REPORT CAPABILITIES.
    ReportCapabilities,
    /// READ FULL STATUS.
    ReadFullStatus,
}

/// Service actions of PERSISTENT RESERVE OUT. `key` is the RESERVATION KEY: that of the sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Out {
    /// REGISTER, REGISTER AND IGNORE EXISTING KEY.
    Register(Register),
    /// RESERVE.
    Reserve {
        /// The sender's key.
        key: u64,
        /// TYPE.
        kind: Kind,
    },
    /// RELEASE.
    Release {
        /// The sender's key.
        key: u64,
        /// TYPE.
        kind: Kind,
    },
    /// CLEAR.
    Clear {
        /// The sender's key.
        key: u64,
    },
    /// PREEMPT, PREEMPT AND ABORT.
    Preempt {
        /// The sender's key.
        key: u64,
        /// SERVICE ACTION RESERVATION KEY: whom to preempt.
        victim: u64,
        /// SCOPE and TYPE as they stand in the command block; they count only where a reservation
        /// is preempted.
        scope_and_kind: u8,
        /// PREEMPT AND ABORT.
        abort: bool,
    },
    /// REGISTER AND MOVE.
    Move(Move),
}

/// REGISTER, REGISTER AND IGNORE EXISTING KEY.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// Do not compare `key`.
    pub ignore: bool,
    /// The key that the sender has registered, or 0.
    pub key: u64,
    /// SERVICE ACTION RESERVATION KEY: the key to register; 0 unregisters.
    pub new_key: u64,
    /// APTPL.
    pub persist: bool,
    /// ALL_TG_PT.
    pub all_ports: bool,
    /// SPEC_I_PT: register these too.
    pub initiators: Option<Vec<InitiatorPort>>,
}

/// REGISTER AND MOVE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The sender's key.
    pub key: u64,
    /// The key that the new holder gets.
    pub new_key: u64,
    /// UNREG: the sender loses its registration.
    pub unregister: bool,
    /// APTPL.
    pub persist: bool,
    /// The new holder's end of the nexus: RELATIVE TARGET PORT IDENTIFIER.
    pub relative_port: u16,
    /// The new holder.
    pub initiator: InitiatorPort,
}

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const CLEAR: u8 = 3;
const PREEMPT: u8 = 4;
const PREEMPT_AND_ABORT: u8 = 5;
const REGISTER_AND_IGNORE: u8 = 6;
const REGISTER_AND_MOVE: u8 = 7;

/// The parameter list without TransportIDs, in bytes.
const LIST: usize = 24;

fn task(request: Request) -> Outcome {
    Ok(Task::still(Action::Reservation(request)))
}

/// RESERVE (6) and (10) (SPC-2 7.21, 7.22). Third parties and extents are obsolete.
pub(crate) fn reserve(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    obsolete(cx)?;
    task(Request::Reserve)
}

/// RELEASE (6) and (10) (SPC-2 7.16, 7.17).
pub(crate) fn release(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    obsolete(cx)?;
    task(Request::Release)
}

fn obsolete(cx: &Cx<'_>) -> Result<(), Sense> {
    // 3RDPTY; LONGID of the 10-byte forms; EXTENT.
    let long = cx.cdb.opcode() >= 0x20;
    cx.cdb.must_be_zero(1, if long { 0x13 } else { 0x11 })
}

/// PERSISTENT RESERVE IN (SPC-5 6.14).
pub(crate) fn persistent_in(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    let action = match cx.cdb.service_action() {
        0 => In::ReadKeys,
        1 => In::ReadReservation,
        2 => In::ReportCapabilities,
        _ => In::ReadFullStatus,
    };
    task(Request::In { action, allocation: cx.cdb.be16(7) })
}

/// PERSISTENT RESERVE OUT (SPC-5 6.15): fetches the parameter list.
pub(crate) fn persistent_out(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    let action = cx.cdb.service_action() as u8;
    let scope_and_kind = match action {
        RESERVE | RELEASE => {
            kind(cx.cdb.byte(2))?;
            cx.cdb.byte(2)
        }
        PREEMPT | PREEMPT_AND_ABORT => cx.cdb.byte(2),
        _ => 0,
    };
    let len = cx.cdb.be32(5);
    let kind = ParameterKind::PersistentReserveOut { action, scope_and_kind };
    Ok(cx.parameter_list(kind, len, LIST as u32))
}

/// SCOPE, which must be the logical unit, and TYPE, in byte 2 of the command block.
pub(super) fn kind(byte: u8) -> Result<Kind, Sense> {
    if byte >> 4 != 0 {
        return Err(Sense::invalid_cdb(2, 7));
    }
    kind_of(byte).ok_or(Sense::invalid_cdb(2, 3))
}

/// Decodes the parameter list of PERSISTENT RESERVE OUT.
pub(crate) fn parse(action: u8, scope_and_kind: u8, list: &[u8]) -> Result<Action, Sense> {
    let wrong_length = Sense::illegal(Code::PARAMETER_LIST_LENGTH_ERROR);
    let (head, rest) = list.split_first_chunk::<LIST>().ok_or(wrong_length)?;
    let be64 = |at: usize| head[at..at + 8].iter().fold(0, |n, &b| n << 8 | u64::from(b));
    let (key, second_key) = (be64(0), be64(8));
    if action == REGISTER_AND_MOVE {
        let to = Move {
            key,
            new_key: second_key,
            unregister: head[17] & 0x02 != 0,
            persist: head[17] & 0x01 != 0,
            relative_port: u16::from_be_bytes([head[18], head[19]]),
            initiator: destination(head, rest)?,
        };
        return Ok(Action::Reservation(Request::Out(Out::Move(to))));
    }
    let listed = head[20] & 0x08 != 0;
    if listed && action != REGISTER {
        return Err(Sense::invalid_parameter(20));
    }
    if !listed && !rest.is_empty() {
        return Err(wrong_length);
    }
    let out = match action {
        REGISTER | REGISTER_AND_IGNORE => Out::Register(Register {
            ignore: action == REGISTER_AND_IGNORE,
            key,
            new_key: second_key,
            persist: head[20] & 0x01 != 0,
            all_ports: head[20] & 0x04 != 0,
            initiators: if listed { Some(initiators(rest)?) } else { None },
        }),
        RESERVE => Out::Reserve { key, kind: kind(scope_and_kind)? },
        RELEASE => Out::Release { key, kind: kind(scope_and_kind)? },
        CLEAR => Out::Clear { key },
        PREEMPT | PREEMPT_AND_ABORT => Out::Preempt {
            key,
            victim: second_key,
            scope_and_kind,
            abort: action == PREEMPT_AND_ABORT,
        },
        _ => return Err(Sense::invalid_cdb(1, 4)),
    };
    Ok(Action::Reservation(Request::Out(out)))
}

/// The TransportIDs of SPEC_I_PT: their length in 4 bytes, then the list.
fn initiators(rest: &[u8]) -> Result<Vec<InitiatorPort>, Sense> {
    let wrong_length = Sense::illegal(Code::PARAMETER_LIST_LENGTH_ERROR);
    let (len, list) = rest.split_first_chunk::<4>().ok_or(wrong_length)?;
    let len = u32::from_be_bytes(*len) as usize;
    let mut list = list.get(..len).ok_or(wrong_length)?;
    let mut ports = Vec::new();
    let mut at = LIST + 4;
    while !list.is_empty() {
        let (port, taken) =
            InitiatorPort::decode(list).ok_or(Sense::invalid_parameter(at as u16))?;
        ports.push(port);
        list = &list[taken..];
        at += taken;
    }
    Ok(ports)
}

/// The one TransportID of REGISTER AND MOVE.
fn destination(head: &[u8; LIST], rest: &[u8]) -> Result<InitiatorPort, Sense> {
    let len = u32::from_be_bytes([head[20], head[21], head[22], head[23]]) as usize;
    let list = rest.get(..len).ok_or(Sense::illegal(Code::PARAMETER_LIST_LENGTH_ERROR))?;
    match InitiatorPort::decode(list) {
        Some((port, taken)) if taken == len => Ok(port),
        _ => Err(Sense::invalid_parameter(LIST as u16)),
    }
}
