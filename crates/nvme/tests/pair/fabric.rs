//! A simulated RDMA fabric between a host and a controller: ordered Sends and RDMA Writes, RDMA Reads that are carried
//! out and completed in any order, memory that its owner opens and closes, receives that are posted late, and a
//! connection that breaks where real ones do.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use lunet_block::Random;
use lunet_nvme::controller::RdmaRead;
use lunet_nvme::rdma::Remote;
use lunet_nvme::transmit::Transmit;

use crate::world::Bytes;

/// RDMA Reads that a host serves at a time.
const READ_DEPTH: usize = 4;

/// What a controller has its device do.
#[derive(Debug)]
pub enum Effect {
    Send { bytes: Vec<u8>, invalidate: Option<u32> },
    Write { bytes: Vec<u8>, to: Remote },
}

/// What a controller wants to send.
#[derive(Default)]
pub struct Posts {
    bytes: Vec<u8>,
    pub effects: VecDeque<Effect>,
}

impl Transmit for Posts {
    type Payload = Bytes;

    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn payload(&mut self, _: Bytes, _: Range<usize>) {
        panic!("data in a Send of the controller");
    }

    fn end_send(&mut self, invalidate: Option<u32>) {
        let bytes = std::mem::take(&mut self.bytes);
        self.effects.push_back(Effect::Send { bytes, invalidate });
    }

    fn write(&mut self, payload: Bytes, range: Range<usize>, to: Remote) {
        assert!(self.bytes.is_empty() && !range.is_empty());
        self.effects.push_back(Effect::Write { bytes: payload.0[range].to_vec(), to });
    }
}

/// What a controller may do with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    Both,
}

/// Memory that the host has registered.
struct Region {
    base: u64,
    bytes: Vec<u8>,
    /// What the controller may do with it.
    access: Access,
    /// Taken back by a Send with Invalidate.
    invalid: bool,
}

/// Why a connection broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Memory that is not open, or not so.
    Access,
    /// A Send without a receive.
    NoReceive,
    /// A Send longer than its receive.
    TooLong,
}

/// What arrives at an end.
#[derive(Debug)]
pub enum Arrival {
    AtController(Vec<u8>),
    /// A Send at the host, and the key that it took back.
    AtHost(Vec<u8>, Option<u32>),
    Read(RdmaRead<Vec<u8>>),
    Broken,
    Nothing,
}

#[derive(Clone, Copy)]
enum Step {
    ToController,
    ToHost,
    CarryOut,
    Complete,
    PostAtController,
}

/// One connection between two devices, seen from outside.
pub struct Fabric {
    pub to_controller: VecDeque<Vec<u8>>,
    to_host: VecDeque<Effect>,
    asked: Vec<RdmaRead<Vec<u8>>>,
    answered: Vec<RdmaRead<Vec<u8>>>,
    regions: BTreeMap<u32, Region>,
    next_key: u32,
    rng: Random,
    /// Receives that are posted at the controller, of how many, and their length.
    posted: usize,
    receives: usize,
    length: usize,
    /// Receives that are posted at the host: each has to be posted before its command.
    pub at_host: usize,
    pub broken: Option<Fault>,
    /// Keys that Sends took back.
    pub invalidated: usize,
    /// RDMA Reads that were carried out.
    pub reads: usize,
}

impl Fabric {
    pub fn new(rng: Random, receives: usize, length: usize) -> Self {
        Self {
            to_controller: VecDeque::new(),
            to_host: VecDeque::new(),
            asked: Vec::new(),
            answered: Vec::new(),
            regions: BTreeMap::new(),
            next_key: 0x1000_0001,
            rng,
            posted: receives,
            receives,
            length,
            at_host: 0,
            broken: None,
            invalidated: 0,
            reads: 0,
        }
    }

    /// Registers memory.
    pub fn register(&mut self, bytes: Vec<u8>, writable: bool) -> Remote {
        self.open(bytes, if writable { Access::Write } else { Access::Read })
    }

    /// Registers memory for what the controller may do with it.
    pub fn open(&mut self, bytes: Vec<u8>, access: Access) -> Remote {
        // All four bytes of a key count.
        self.next_key = self.next_key.wrapping_add(0x0103_0507);
        let base = self.rng.bits() & 0x0000_7fff_ffff_ffff;
        self.regions.insert(self.next_key, Region { base, bytes, access, invalid: false });
        Remote { address: base, key: self.next_key }
    }

    /// Closes memory; gives what is in it, and whether its key was taken back before.
    pub fn deregister(&mut self, key: u32) -> (Vec<u8>, bool) {
        let region = self.regions.remove(&key).expect("memory that is registered");
        (region.bytes, region.invalid)
    }

    /// What is in memory that is registered.
    pub fn memory(&mut self, key: u32) -> &mut [u8] {
        &mut self.regions.get_mut(&key).expect("memory that is registered").bytes
    }

    pub fn regions(&self) -> usize {
        self.regions.len()
    }

    pub fn takes_reads(&self) -> bool {
        self.asked.len() + self.answered.len() < READ_DEPTH
    }

    pub fn read(&mut self, read: RdmaRead<Vec<u8>>) {
        assert!(read.len as usize <= read.buf.len());
        self.asked.push(read);
    }

    pub fn controller_does(&mut self, effects: &mut VecDeque<Effect>) {
        self.to_host.append(effects);
    }

    /// Lets something happen, if anything can.
    pub fn step(&mut self) -> Option<Arrival> {
        if self.broken.is_some() {
            return None;
        }
        let possible = [
            (Step::ToController, !self.to_controller.is_empty() && self.posted > 0),
            (Step::ToHost, !self.to_host.is_empty()),
            (Step::CarryOut, !self.asked.is_empty()),
            (Step::Complete, !self.answered.is_empty()),
            (Step::PostAtController, self.posted < self.receives),
        ];
        let possible: Vec<Step> =
            possible.into_iter().filter(|(_, can)| *can).map(|(step, _)| step).collect();
        let step = *possible.get(self.rng.below(possible.len() as u64) as usize)?;
        Some(self.take(step).unwrap_or_else(|fault| {
            self.broken = Some(fault);
            Arrival::Broken
        }))
    }

    fn take(&mut self, step: Step) -> Result<Arrival, Fault> {
        match step {
            Step::ToController => {
                let Some(send) = self.to_controller.pop_front() else {
                    return Ok(Arrival::Nothing);
                };
                self.posted -= 1;
                if send.len() > self.length {
                    Err(Fault::TooLong)
                } else {
                    Ok(Arrival::AtController(send))
                }
            }
            Step::ToHost => match self.to_host.pop_front() {
                Some(Effect::Send { bytes, invalidate }) => {
                    self.at_host = self.at_host.checked_sub(1).ok_or(Fault::NoReceive)?;
                    if let Some(key) = invalidate {
                        let region = self.regions.get_mut(&key).filter(|region| !region.invalid);
                        region.ok_or(Fault::Access)?.invalid = true;
                        self.invalidated += 1;
                    }
                    Ok(Arrival::AtHost(bytes, invalidate))
                }
                Some(Effect::Write { bytes, to }) => {
                    self.reach(to, bytes.len(), true)?.copy_from_slice(&bytes);
                    Ok(Arrival::Nothing)
                }
                None => Ok(Arrival::Nothing),
            },
            Step::CarryOut => {
                let any = self.rng.below(self.asked.len() as u64) as usize;
                let mut read = self.asked.swap_remove(any);
                let len = read.len as usize;
                read.buf[..len].copy_from_slice(self.reach(read.from, len, false)?);
                self.answered.push(read);
                self.reads += 1;
                Ok(Arrival::Nothing)
            }
            Step::Complete => {
                let any = self.rng.below(self.answered.len() as u64) as usize;
                Ok(Arrival::Read(self.answered.swap_remove(any)))
            }
            Step::PostAtController => {
                self.posted += 1;
                Ok(Arrival::Nothing)
            }
        }
    }

    /// The memory that an RDMA operation wants to reach.
    fn reach(&mut self, at: Remote, len: usize, write: bool) -> Result<&mut [u8], Fault> {
        let region = self.regions.get_mut(&at.key);
        let refused = if write { Access::Read } else { Access::Write };
        let region = region.filter(|region| !region.invalid && region.access != refused);
        let region = region.ok_or(Fault::Access)?;
        let start = at.address.checked_sub(region.base).ok_or(Fault::Access)? as usize;
        region.bytes.get_mut(start..start.saturating_add(len)).ok_or(Fault::Access)
    }
}
