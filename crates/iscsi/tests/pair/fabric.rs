//! A simulated RDMA fabric between the two ends: ordered Sends and RDMA Writes, RDMA Reads that are
//! carried out and completed in any order, memory that its owner opens and closes, receives that
//! are posted late, and a connection that breaks where real ones do.

use std::collections::{BTreeMap, VecDeque};

use lunet_block::Random;
use lunet_iscsi::iser::Remote;
use lunet_iscsi::target::{RdmaFault, RdmaRead};

use crate::wire::Effect;

/// RDMA Reads that a queue pair takes at a time.
const READ_DEPTH: usize = 4;

/// Memory that the initiator has registered.
struct Region {
    base: u64,
    bytes: Vec<u8>,
    /// The target may write to it, else read it.
    writable: bool,
    /// Taken back by a Send with Invalidate.
    invalid: bool,
}

/// What arrives at an end.
#[derive(Debug)]
pub enum Arrival {
    /// A Send at the target.
    AtTarget(Vec<u8>),
    /// A Send at the initiator, and the steering tag that it took back.
    AtInitiator(Vec<u8>, Option<u32>),
    /// An RDMA Read is complete.
    Read(RdmaRead<Vec<u8>>),
    /// The connection broke: for the target, this is why.
    Broken(RdmaFault),
    /// Something else moved on.
    Nothing,
}

/// What can happen next.
#[derive(Clone, Copy)]
enum Step {
    ToTarget,
    ToInitiator,
    CarryOut,
    Complete,
    PostAtTarget,
    PostAtInitiator,
}

/// One connection between two devices, seen from outside.
pub struct Fabric {
    to_target: VecDeque<Vec<u8>>,
    to_initiator: VecDeque<Effect>,
    /// RDMA Reads that have left the target, and those that the initiator's device has answered.
    asked: Vec<RdmaRead<Vec<u8>>>,
    answered: Vec<RdmaRead<Vec<u8>>>,
    regions: BTreeMap<u32, Region>,
    next_stag: u32,
    rng: Random,
    /// Receives posted at each end, of how many, and their lengths in bytes.
    posted: (usize, usize),
    receives: (usize, usize),
    lengths: (usize, usize),
    /// The most Sends that were on their way to each end at a time.
    on_their_way: (usize, usize),
    /// A Send without a receive waits for one; else it breaks the connection.
    pub patient: bool,
    /// How many of a hundred registrations fail.
    pub failing: u64,
    /// The connection breaks after so many steps.
    pub breaks_in: Option<u64>,
    /// Why it broke, once the target was told.
    pub broken: Option<RdmaFault>,
    /// Steering tags that Sends took back.
    pub invalidated: usize,
    /// Sends of more bytes than this to the initiator, behind both headers, were seen.
    pub longest: usize,
}

impl Fabric {
    /// A connection whose ends keep so many receives posted, of these lengths: target, initiator.
    pub fn new(rng: Random, receives: (usize, usize), lengths: (usize, usize)) -> Self {
        Self {
            to_target: VecDeque::new(),
            to_initiator: VecDeque::new(),
            asked: Vec::new(),
            answered: Vec::new(),
            regions: BTreeMap::new(),
            next_stag: 0x100,
            rng,
            posted: receives,
            receives,
            lengths,
            on_their_way: (0, 0),
            patient: true,
            failing: 0,
            breaks_in: None,
            broken: None,
            invalidated: 0,
            longest: 0,
        }
    }

    /// Registers memory; none: the device has no more.
    pub fn register(&mut self, bytes: Vec<u8>, writable: bool) -> Option<Remote> {
        if self.rng.chance(self.failing) {
            return None;
        }
        self.next_stag += 0x101;
        let base = self.rng.bits() & 0x0000_7fff_ffff_ffff;
        self.regions.insert(self.next_stag, Region { base, bytes, writable, invalid: false });
        Some(Remote { stag: self.next_stag, offset: base })
    }

    /// Closes memory to the target; gives what is in it.
    pub fn deregister(&mut self, stag: u32) -> Option<Vec<u8>> {
        self.regions.remove(&stag).map(|region| region.bytes)
    }

    /// True if no end ever had more Sends on their way than the other keeps receives posted: then
    /// nothing has to wait, or breaks, however late the other looks.
    pub fn within_credits(&self) -> bool {
        self.on_their_way.0 <= self.receives.0 && self.on_their_way.1 <= self.receives.1
    }

    /// Memory that is registered.
    pub fn regions(&self) -> usize {
        self.regions.len()
    }

    /// Puts what the initiator sends onto the wire.
    pub fn initiator_sends(&mut self, sends: impl Iterator<Item = Vec<u8>>) {
        self.to_target.extend(sends);
        self.on_their_way.0 = self.on_their_way.0.max(self.to_target.len());
    }

    /// Puts what the target sends and writes onto the wire.
    pub fn target_does(&mut self, effects: impl Iterator<Item = Effect>) {
        self.to_initiator.extend(effects);
        let is_send = |effect: &&Effect| matches!(effect, Effect::Send { .. });
        let sends = self.to_initiator.iter().filter(is_send).count();
        self.on_their_way.1 = self.on_their_way.1.max(sends);
    }

    /// True while a further RDMA Read can be posted.
    pub fn takes_reads(&self) -> bool {
        self.asked.len() + self.answered.len() < READ_DEPTH
    }

    pub fn read(&mut self, read: RdmaRead<Vec<u8>>) {
        self.asked.push(read);
    }

    /// Lets something happen, if anything can.
    pub fn step(&mut self) -> Option<Arrival> {
        if self.broken.is_some() {
            return None;
        }
        if let Some(left) = &mut self.breaks_in {
            if *left == 0 {
                return Some(self.fail(RdmaFault::Disconnected));
            }
            *left -= 1;
        }
        let stalled = |posted: usize| posted == 0 && self.patient;
        let possible = [
            (Step::ToTarget, !self.to_target.is_empty() && !stalled(self.posted.0)),
            (Step::ToInitiator, !self.to_initiator.is_empty() && !stalled(self.posted.1)),
            (Step::CarryOut, !self.asked.is_empty()),
            (Step::Complete, !self.answered.is_empty()),
            (Step::PostAtTarget, self.posted.0 < self.receives.0),
            (Step::PostAtInitiator, self.posted.1 < self.receives.1),
        ];
        let possible: Vec<Step> =
            possible.into_iter().filter(|(_, can)| *can).map(|(step, _)| step).collect();
        let step = *possible.get(self.rng.below(possible.len() as u64) as usize)?;
        Some(self.take(step).unwrap_or_else(|fault| self.fail(fault)))
    }

    fn take(&mut self, step: Step) -> Result<Arrival, RdmaFault> {
        match step {
            Step::ToTarget => {
                let Some(send) = self.to_target.pop_front() else { return Ok(Arrival::Nothing) };
                receive(&mut self.posted.0, self.lengths.0, &send)?;
                Ok(Arrival::AtTarget(send))
            }
            Step::ToInitiator => self.at_initiator(),
            Step::CarryOut => {
                let any = self.rng.below(self.asked.len() as u64) as usize;
                let mut read = self.asked.swap_remove(any);
                let len = read.len as usize;
                let bytes = self.reach(read.from, len, false)?;
                read.buf[..len].copy_from_slice(bytes);
                self.answered.push(read);
                Ok(Arrival::Nothing)
            }
            Step::Complete => {
                let any = self.rng.below(self.answered.len() as u64) as usize;
                Ok(Arrival::Read(self.answered.swap_remove(any)))
            }
            Step::PostAtTarget => {
                self.posted.0 += 1;
                Ok(Arrival::Nothing)
            }
            Step::PostAtInitiator => {
                self.posted.1 += 1;
                Ok(Arrival::Nothing)
            }
        }
    }

    fn at_initiator(&mut self) -> Result<Arrival, RdmaFault> {
        match self.to_initiator.pop_front() {
            Some(Effect::Send { bytes, invalidate }) => {
                receive(&mut self.posted.1, self.lengths.1, &bytes)?;
                self.longest = self.longest.max(bytes.len() - 76);
                if let Some(stag) = invalidate {
                    let region = self.regions.get_mut(&stag).filter(|region| !region.invalid);
                    region.ok_or(RdmaFault::RemoteAccess)?.invalid = true;
                    self.invalidated += 1;
                }
                Ok(Arrival::AtInitiator(bytes, invalidate))
            }
            Some(Effect::Write { bytes, to }) => {
                self.reach(to, bytes.len(), true)?.copy_from_slice(&bytes);
                Ok(Arrival::Nothing)
            }
            None => Ok(Arrival::Nothing),
        }
    }

    /// The memory that an RDMA operation wants to reach.
    fn reach(&mut self, at: Remote, len: usize, write: bool) -> Result<&mut [u8], RdmaFault> {
        let region = self.regions.get_mut(&at.stag);
        let region = region.filter(|region| !region.invalid && region.writable == write);
        let region = region.ok_or(RdmaFault::RemoteAccess)?;
        let start = at.offset.checked_sub(region.base).ok_or(RdmaFault::RemoteAccess)? as usize;
        region.bytes.get_mut(start..start.saturating_add(len)).ok_or(RdmaFault::RemoteAccess)
    }

    fn fail(&mut self, fault: RdmaFault) -> Arrival {
        self.broken = Some(fault);
        self.to_target.clear();
        self.to_initiator.clear();
        self.asked.clear();
        self.answered.clear();
        Arrival::Broken(fault)
    }
}

/// Uses a posted receive up.
fn receive(posted: &mut usize, length: usize, send: &[u8]) -> Result<(), RdmaFault> {
    *posted = posted.checked_sub(1).ok_or(RdmaFault::NoReceive)?;
    if send.len() > length { Err(RdmaFault::TooLong) } else { Ok(()) }
}
