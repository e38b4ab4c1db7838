//! PERSISTENT RESERVE OUT, one function for each service action (SPC-5 5.14 and 6.15).

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::command::{self, Move, Out, Register};
use super::{
    Held, InitiatorPort, Kind, MAX_REGISTRATIONS, NexusId, Refusal, Registration, Reservations,
    TargetPort,
};
use crate::nexus::Attention;
use crate::sense::{Code, Sense};

/// The nexuses whose commands are to be aborted: none but for PREEMPT AND ABORT.
type Result = core::result::Result<Vec<Arc<NexusId>>, Refusal>;

/// APTPL, for the field pointer; REGISTER AND MOVE has it elsewhere.
const APTPL: u16 = 20;
const APTPL_OF_MOVE: u16 = 17;

impl Reservations {
    pub(super) fn out(&mut self, nexus: &Arc<NexusId>, out: &Out) -> Result {
        match out {
            Out::Register(register) => self.register(nexus, register),
            Out::Reserve { key, kind } => self.reserve_persistently(nexus, *key, *kind),
            Out::Release { key, kind } => self.release_persistent(nexus, *key, *kind),
            Out::Clear { key } => self.clear(nexus, *key),
            Out::Preempt { key, victim, scope_and_kind, abort } => {
                let aborts = self.preempt(nexus, *key, *victim, *scope_and_kind)?;
                if !*abort {
                    return Ok(Vec::new());
                }
                self.allow_removal(&aborts);
                Ok(aborts)
            }
            Out::Move(to) => self.move_to(nexus, to),
        }
    }

    /// The registration of the nexus, if the key is right.
    fn registered(&self, nexus: &NexusId, key: u64) -> core::result::Result<usize, Refusal> {
        let at = self.position(nexus).ok_or(Refusal::Conflict)?;
        if self.registrations[at].key == key { Ok(at) } else { Err(Refusal::Conflict) }
    }

    /// Remembers whether the state is to be kept through power loss.
    fn keep(&mut self, activate: bool, at: u16) -> core::result::Result<(), Refusal> {
        if activate && !self.capable {
            return Err(Sense::invalid_parameter(at).into());
        }
        self.activated = activate;
        Ok(())
    }

    /// REGISTER and REGISTER AND IGNORE EXISTING KEY (SPC-5 5.14.7).
    fn register(&mut self, nexus: &Arc<NexusId>, asked: &Register) -> Result {
        match self.position(nexus) {
            None if !asked.ignore && asked.key != 0 => return Err(Refusal::Conflict),
            // Nothing to register, nothing to unregister.
            None if asked.new_key == 0 => return Ok(Vec::new()),
            None => {}
            Some(at) if !asked.ignore && self.registrations[at].key != asked.key => {
                return Err(Refusal::Conflict);
            }
            // SPEC_I_PT is for new registrations.
            Some(_) if asked.initiators.is_some() => return Err(Sense::invalid_cdb(1, 4).into()),
            Some(_) => {}
        }
        let more = self.companions(nexus, asked)?;
        let fresh = if asked.new_key == 0 { 0 } else { self.unregistered(nexus, &more) };
        if self.registrations.len() + fresh > MAX_REGISTRATIONS {
            return Err(Sense::illegal(Code::INSUFFICIENT_REGISTRATION_RESOURCES).into());
        }
        self.keep(asked.persist, APTPL)?;
        self.register_one(nexus, asked.new_key, nexus);
        for other in &more {
            let applies = match self.position(other) {
                // As if the request had come through that port: with a wrong key, nothing happens.
                Some(at) => {
                    asked.initiators.is_none()
                        && (asked.ignore || self.registrations[at].key == asked.key)
                }
                None => asked.ignore || asked.key == 0,
            };
            if applies {
                self.register_one(other, asked.new_key, nexus);
            }
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(Vec::new())
    }

    /// The other nexuses that ALL_TG_PT and SPEC_I_PT name.
    fn companions(&self, nexus: &NexusId, asked: &Register) -> Result {
        let own = core::slice::from_ref(&nexus.port);
        let ports: Vec<&TargetPort> = if asked.all_ports {
            let names = self.ports.iter().map(|port| &port.name);
            let device = names.filter(|port| port.target == nexus.port.target);
            own.iter().chain(device.filter(|port| **port != nexus.port)).collect()
        } else {
            own.iter().collect()
        };
        let listed: &[InitiatorPort] = asked.initiators.as_deref().unwrap_or_default();
        let initiators = core::iter::once(&nexus.initiator).chain(listed);
        let mut all: Vec<Arc<NexusId>> = Vec::new();
        for initiator in initiators {
            for port in &ports {
                let id = NexusId { initiator: initiator.clone(), port: (*port).clone() };
                if id != *nexus && !all.iter().any(|other| **other == id) {
                    all.push(Arc::new(id));
                }
                // More than this cannot all be registered, whoever is registered already.
                if all.len() >= 2 * MAX_REGISTRATIONS {
                    return Err(Sense::illegal(Code::INSUFFICIENT_REGISTRATION_RESOURCES).into());
                }
            }
        }
        Ok(all)
    }

    /// How many of these have no registration.
    fn unregistered(&self, nexus: &Arc<NexusId>, more: &[Arc<NexusId>]) -> usize {
        let all = core::iter::once(nexus).chain(more);
        all.filter(|id| self.position(id).is_none()).count()
    }

    /// Registers a nexus, changes its key, or, with key 0, unregisters it.
    fn register_one(&mut self, nexus: &Arc<NexusId>, key: u64, asking: &NexusId) {
        match self.position(nexus) {
            Some(at) if key == 0 => self.unregister(at, asking),
            Some(at) => self.registrations[at].key = key,
            None if key == 0 => {}
            None => self.registrations.push(Registration { nexus: nexus.clone(), key }),
        }
    }

    /// Takes a registration away, and the reservation with its holder (SPC-5 5.14.11.3).
    fn unregister(&mut self, at: usize, asking: &NexusId) {
        let gone = self.registrations.remove(at);
        match &self.held {
            Held::By(kind, holder) if *holder == gone.nexus => {
                let shared = kind.shared();
                self.held = Held::Free;
                if shared {
                    self.tell(&self.others(asking), Attention::ReservationsReleased);
                }
            }
            Held::ByAll(_) if self.registrations.is_empty() => self.held = Held::Free,
            _ => {}
        }
    }

    /// RESERVE (SPC-5 5.14.9).
    fn reserve_persistently(&mut self, nexus: &Arc<NexusId>, key: u64, kind: Kind) -> Result {
        self.registered(nexus, key)?;
        match &self.held {
            Held::Free => self.take(nexus, kind),
            Held::By(held, holder) if *held == kind && holder == nexus => {}
            Held::ByAll(held) if *held == kind => {}
            _ => return Err(Refusal::Conflict),
        }
        Ok(Vec::new())
    }

    fn take(&mut self, nexus: &Arc<NexusId>, kind: Kind) {
        self.held =
            if kind.all_registrants() { Held::ByAll(kind) } else { Held::By(kind, nexus.clone()) };
    }

    /// RELEASE (SPC-5 5.14.11.2).
    fn release_persistent(&mut self, nexus: &Arc<NexusId>, key: u64, kind: Kind) -> Result {
        self.registered(nexus, key)?;
        let held = match &self.held {
            Held::By(held, holder) if holder == nexus => *held,
            Held::ByAll(held) => *held,
            _ => return Ok(Vec::new()),
        };
        if held != kind {
            return Err(Sense::illegal(Code::INVALID_RELEASE).into());
        }
        self.held = Held::Free;
        if held.shared() {
            self.tell(&self.others(nexus), Attention::ReservationsReleased);
        }
        Ok(Vec::new())
    }

    /// CLEAR (SPC-5 5.14.11.6).
    fn clear(&mut self, nexus: &Arc<NexusId>, key: u64) -> Result {
        self.registered(nexus, key)?;
        let others = self.others(nexus);
        self.allow_removal(&others);
        self.registrations.clear();
        self.held = Held::Free;
        self.generation = self.generation.wrapping_add(1);
        self.tell(&others, Attention::ReservationsPreempted);
        Ok(Vec::new())
    }

    /// PREEMPT (SPC-5 5.14.11.4). Returns the nexuses whose commands PREEMPT AND ABORT aborts.
    fn preempt(&mut self, nexus: &Arc<NexusId>, key: u64, victim: u64, cdb_2: u8) -> Result {
        self.registered(nexus, key)?;
        let by_all = matches!(self.held, Held::ByAll(_));
        if victim == 0 && !by_all {
            return Err(Sense::invalid_parameter(8).into());
        }
        let takes = match &self.held {
            Held::By(_, holder) => {
                self.position(holder).is_some_and(|at| self.registrations[at].key == victim)
            }
            Held::ByAll(_) => victim == 0,
            Held::Free | Held::Legacy(_) => false,
        };
        // SCOPE and TYPE are looked at only where they say something.
        let kind = if takes { Some(command::kind(cdb_2)?) } else { None };
        let named = |r: &Registration| {
            if victim == 0 { r.nexus != *nexus } else { r.key == victim }
        };
        let victims = self.registrations.iter().filter(|r| named(r)).map(|r| r.nexus.clone());
        let victims: Vec<Arc<NexusId>> = victims.collect();
        if victims.is_empty() && !takes {
            return Err(Refusal::Conflict);
        }
        // Who takes the reservation keeps its own registration.
        self.registrations.retain(|r| !victims.contains(&r.nexus) || (takes && r.nexus == *nexus));
        let lost: Vec<_> = victims.iter().filter(|id| *id != nexus).cloned().collect();
        self.tell(&lost, Attention::RegistrationsPreempted);
        if let Some(kind) = kind {
            let changes = self.kind() != Some(kind);
            self.take(nexus, kind);
            if changes {
                self.tell(&self.others(nexus), Attention::ReservationsReleased);
            }
        } else if by_all && self.registrations.is_empty() {
            self.held = Held::Free;
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(victims)
    }

    /// REGISTER AND MOVE (SPC-5 5.14.8).
    fn move_to(&mut self, nexus: &Arc<NexusId>, to: &Move) -> Result {
        let own = self.registered(nexus, to.key)?;
        let kind = match &self.held {
            Held::By(kind, holder) if holder == nexus => *kind,
            Held::Free | Held::Legacy(_) => return Err(Sense::invalid_cdb(1, 4).into()),
            Held::By(..) | Held::ByAll(_) => return Err(Refusal::Conflict),
        };
        if to.new_key == 0 {
            return Err(Sense::invalid_parameter(8).into());
        }
        // The relative number is one of this target's.
        let mut device = self.ports.iter().filter(|port| port.name.target == nexus.port.target);
        let port = device.find(|port| port.relative == to.relative_port);
        let port = port.ok_or(Sense::invalid_parameter(18))?.name.clone();
        let target = NexusId { initiator: to.initiator.clone(), port };
        if target == **nexus {
            return Err(Sense::invalid_parameter(24).into());
        }
        let there = self.position(&target);
        let room = MAX_REGISTRATIONS + usize::from(to.unregister);
        if there.is_none() && self.registrations.len() >= room {
            return Err(Sense::illegal(Code::INSUFFICIENT_REGISTRATION_RESOURCES).into());
        }
        self.keep(to.persist, APTPL_OF_MOVE)?;
        let holder = match there {
            Some(at) => {
                self.registrations[at].key = to.new_key;
                self.registrations[at].nexus.clone()
            }
            None => {
                let holder = Arc::new(target);
                let key = to.new_key;
                self.registrations.push(Registration { nexus: holder.clone(), key });
                holder
            }
        };
        self.held = Held::By(kind, holder);
        if to.unregister {
            self.registrations.remove(own);
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(Vec::new())
    }

    pub(super) fn kind(&self) -> Option<Kind> {
        match &self.held {
            Held::By(kind, _) | Held::ByAll(kind) => Some(*kind),
            Held::Free | Held::Legacy(_) => None,
        }
    }
}
