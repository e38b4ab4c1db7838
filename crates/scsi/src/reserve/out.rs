//! What a nexus asks for is done to the reservations of the volume: one function for each service action of PERSISTENT
//! RESERVE OUT that says more than its name (SPC-5 5.14 and 6.15).

use alloc::vec::Vec;

use lunet_reservations::{
    Event, MAX_REGISTRATIONS, Refusal, Register as Registering, Registrant, Registration,
    Reservations,
};

use super::command::{self, Move, Out, Register, Request};
use super::{InitiatorPort, NexusId, Port, TargetPort, report};
use crate::action::Reply;
use crate::sense::{Code, Sense};

/// The answer to a [`Request`], and what else follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The answer.
    pub reply: Reply,
    /// Who has lost what, and is to be [told](super::Seats::tell). The commands of some are to be
    /// [aborted](Event::aborted) before the answer goes out; the command that asked is spared.
    pub events: Vec<Event>,
}

/// Why a request is refused.
enum Refused {
    Conflict,
    Check(Sense),
}

impl From<Sense> for Refused {
    fn from(sense: Sense) -> Self {
        Self::Check(sense)
    }
}

type Result = core::result::Result<Vec<Event>, Refused>;

/// APTPL, for the field pointer; REGISTER AND MOVE has it elsewhere.
const APTPL: u16 = 20;
const APTPL_OF_MOVE: u16 = 17;

/// SERVICE ACTION RESERVATION KEY, for the field pointer.
const SECOND_KEY: u16 = 8;

/// How SCSI says that a change is refused. `aptpl` is where the command has that bit.
fn refused(refusal: Refusal, aptpl: u16) -> Refused {
    Refused::Check(match refusal {
        // Of a kind that is not valid the command block has told.
        Refusal::Conflict | Refusal::NoKind => return Refused::Conflict,
        Refusal::NoRoom => Sense::illegal(Code::INSUFFICIENT_REGISTRATION_RESOURCES),
        Refusal::NotKept => Sense::invalid_parameter(aptpl),
        Refusal::OtherKind => Sense::illegal(Code::INVALID_RELEASE),
        Refusal::NoKey => Sense::invalid_parameter(SECOND_KEY),
        Refusal::NotHeld => Sense::invalid_cdb(1, 4),
    })
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        refused(refusal, APTPL)
    }
}

impl Request {
    /// Carries it out for a nexus. `ports` are the target ports that lead to the unit.
    pub fn execute(&self, state: &mut Reservations, nexus: &NexusId, ports: &[Port]) -> Outcome {
        let who = &nexus.registrant();
        let result = match self {
            Self::Reserve => state.claim(who).map_err(Refused::from),
            Self::Release => state.give_up_claim(who).map_err(Refused::from),
            // While the unit is taken by RESERVE, nobody may use the other model (SPC-2 5.5.1).
            Self::In { .. } if state.claimed() => Err(Refused::Conflict),
            Self::In { action, allocation } => {
                let data = report::report(state, ports, *action, *allocation);
                return Outcome { reply: Reply::data(data), events: Vec::new() };
            }
            Self::Out(out) => out.execute(state, (nexus, who), ports),
        };
        let (reply, events) = match result {
            Ok(events) => (Reply::GOOD, events),
            Err(Refused::Conflict) => (Reply::CONFLICT, Vec::new()),
            Err(Refused::Check(sense)) => (Reply::check(sense), Vec::new()),
        };
        Outcome { reply, events }
    }
}

impl Out {
    fn execute(
        &self,
        state: &mut Reservations,
        (nexus, who): (&NexusId, &Registrant),
        ports: &[Port],
    ) -> Result {
        Ok(match self {
            Self::Register(asked) => register(state, (nexus, who), ports, asked)?,
            Self::Reserve { key, kind } => state.reserve(who, *key, *kind)?,
            Self::Release { key, kind } => state.release(who, *key, *kind)?,
            Self::Clear { key } => state.clear(who, *key)?,
            Self::Preempt { key, victim, scope_and_kind, abort } => {
                let kind = command::kind(*scope_and_kind);
                let done = state.preempt(who, (*key, *victim), kind.ok(), *abort);
                done.map_err(|refusal| match (refusal, kind) {
                    (Refusal::NoKind, Err(sense)) => Refused::Check(sense),
                    (refusal, _) => refusal.into(),
                })?
            }
            Self::Move(to) => move_to(state, (nexus, who), ports, to)?,
        })
    }
}

/// REGISTER and REGISTER AND IGNORE EXISTING KEY (SPC-5 5.14.7).
fn register(
    state: &mut Reservations,
    (nexus, who): (&NexusId, &Registrant),
    ports: &[Port],
    asked: &Register,
) -> Result {
    let expected = (!asked.ignore).then_some(asked.key);
    // SPEC_I_PT is for new registrations.
    if state.known(who, expected)?.is_some() && asked.initiators.is_some() {
        return Err(Sense::invalid_cdb(1, 4).into());
    }
    let mut also = Vec::new();
    // Where there is nothing to unregister, the others stay as they are.
    if state.key_of(who).is_some() || asked.new_key != 0 {
        also = companions(nexus, ports, asked)?;
    }
    also.retain(|other| match state.key_of(other) {
        // As if the request had come through that port: with a wrong key, nothing happens.
        Some(key) => asked.initiators.is_none() && (asked.ignore || key == asked.key),
        None => asked.ignore || asked.key == 0,
    });
    let keep = Some(asked.persist);
    let asked = Registering { existing: expected, new_key: asked.new_key, also: &also, keep };
    Ok(state.register(who, asked)?)
}

/// The other nexuses that ALL_TG_PT and SPEC_I_PT name.
fn companions(
    nexus: &NexusId,
    leading: &[Port],
    asked: &Register,
) -> core::result::Result<Vec<Registrant>, Refused> {
    let own = core::slice::from_ref(&nexus.port);
    let ports: Vec<&TargetPort> = if asked.all_ports {
        let names = leading.iter().map(|port| &port.name);
        let device = names.filter(|port| port.target == nexus.port.target);
        own.iter().chain(device.filter(|port| **port != nexus.port)).collect()
    } else {
        own.iter().collect()
    };
    let listed: &[InitiatorPort] = asked.initiators.as_deref().unwrap_or_default();
    let initiators = core::iter::once(&nexus.initiator).chain(listed);
    let mut all: Vec<Registrant> = Vec::new();
    for initiator in initiators {
        for port in &ports {
            let id = NexusId { initiator: initiator.clone(), port: (*port).clone() };
            let registrant = id.registrant();
            if id != *nexus && !all.contains(&registrant) {
                all.push(registrant);
            }
            // More than this cannot all be registered, whoever is registered already.
            if all.len() >= 2 * MAX_REGISTRATIONS {
                return Err(Refusal::NoRoom.into());
            }
        }
    }
    Ok(all)
}

/// REGISTER AND MOVE (SPC-5 5.14.8).
fn move_to(
    state: &mut Reservations,
    (nexus, who): (&NexusId, &Registrant),
    ports: &[Port],
    to: &Move,
) -> Result {
    state.may_move(who, to.key)?;
    if to.new_key == 0 {
        return Err(Refusal::NoKey.into());
    }
    // The relative number is one of this target's.
    let mut device = ports.iter().filter(|port| port.name.target == nexus.port.target);
    let port = device.find(|port| port.relative == to.relative_port);
    let port = port.ok_or(Sense::invalid_parameter(18))?.name.clone();
    let target = NexusId { initiator: to.initiator.clone(), port };
    if target == *nexus {
        return Err(Sense::invalid_parameter(24).into());
    }
    let holder = Registration { registrant: target.registrant(), key: to.new_key };
    let moved = state.move_to((who, to.key), holder, to.unregister, Some(to.persist));
    moved.map_err(|refusal| refused(refusal, APTPL_OF_MOVE))
}
